"""The result files that pages are made of, and the commands that make those which are missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from query2particles.errors import UsageError
from query2particles.experiments.published import FIGURE_OF, figures_of, set_of
from query2particles.experiments.recipes import experiment, experiments
from query2particles.report.costs import trained

__all__ = ["Document", "Documents", "asked_of", "commands", "label_of", "made_otherwise", "read_result", "read_results"]

Document = Mapping[str, Any]
Documents = Mapping[str, Document]
"""Results by name."""


def read_results(results: Path) -> dict[str, Document]:
    """Those of the experiments that are there, in their order."""
    return {name: document for name in experiments() if (document := read_result(results, name)) is not None}


def read_result(results: Path, name: str) -> Document | None:
    """A result, if it is there; a UsageError where the file is none."""
    path = results / f"{name}.json"
    if not path.is_file():
        return None
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        figures_of(document, FIGURE_OF[set_of(document)])
        trained(document)
        _changed(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no result of `q2p reproduce` ({error!r}); make it again") from error
    return document


def asked_of(name: str) -> tuple[str, str]:
    """The graph of an experiment and the kind of set whose queries it asks."""
    one = experiment(name)
    return one.recipe.graph, set_of({"queries": one.queries})


def label_of(name: str) -> str:
    """The method and the variant of an experiment: what its name ends with."""
    return name.removeprefix(f"{'-'.join(asked_of(name)).lower()}-")


def made_otherwise(documents: Iterable[Document]) -> list[str]:
    """A line that names the results whose recipes have changed since they were made, and in what; none without such."""
    names: dict[tuple[str, ...], list[str]] = {}
    for document in documents:
        if settings := _changed(document):
            names.setdefault(settings, []).append(f"`{document['name']}`")
    if not names:
        return []
    words = "; ".join(f"{', '.join(own)} ({', '.join(settings)})" for settings, own in names.items())
    return ["", f"Made with other settings than the recipe has now: {words}."]


def _changed(document: Document) -> tuple[str, ...]:
    """Names of the settings that are not what the experiment says now; of a joint reasoner, those of its parts.

    What a result does not name was no setting when it was made.
    """
    one, config = experiment(document["name"]), document["config"]
    parts = zip(("vectors", "links"), one.recipe.parts, strict=False)
    pairs = [(config[name], part.config) for name, part in parts] or [(config, one.config)]
    names: dict[str, None] = {}
    if one.recipe.parts and config.get("weighed_by", one.recipe.parts[0].validation) != one.recipe.validation:
        names["weighed_by"] = None
    for had, has in pairs:
        before, now = _settings(had), _settings(has.as_json())
        names |= dict.fromkeys(key for key, value in before.items() if key in now and now[key] != value)
    return tuple(names)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All that matters to a result, but for what `q2p reproduce` itself sets.

    No benchmark is so large that `auto` means anything but all entities.
    """
    found = {**config["model"], **config["training"]}
    found["negatives"] = 0 if found.get("negatives") == "auto" else found.get("negatives")
    return {key: value for key, value in found.items() if key not in ("seed", "stored", "validation")}


def commands(names: Iterable[str]) -> str:
    """What makes these results, in one command for each graph and set."""
    found: dict[tuple[str, str], list[str]] = {}
    leaking = []
    for name in names:
        if experiment(name).recipe.config.training.leaked:
            leaking.append(name)
        else:
            found.setdefault(asked_of(name), []).append(name)
    made = [f"`q2p reproduce {' '.join(own)}`" for own in found.values()]
    if leaking:
        made.append(f"`q2p reproduce --leaking {' '.join(leaking)}`")
    return "; ".join(made)
