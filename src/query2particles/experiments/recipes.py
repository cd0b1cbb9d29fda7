"""The experiments of `q2p reproduce`, by name: graph-set-method, or graph-set-method-variant.

A recipe is one training; the query sets of its graph share it, so a model is trained once and evaluated on each.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from query2particles.config import Config, answered_by, configured
from query2particles.errors import UsageError, clipped
from query2particles.methods.registry import METHODS
from query2particles.presets import preset

__all__ = ["Experiment", "Recipe", "experiment", "experiments"]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `name` is graph-method-variant, `validation` the folder of the queries that select.

    Of a joint reasoner, whose parts have been selected, they are those that its parts are weighed by.
    """

    name: str
    graph: str
    validation: str
    config: Config
    parts: tuple[Recipe, ...] = ()
    """Of a joint reasoner: the recipes of its vectors, whose settings it has, and of its links."""
    weights_of: Recipe | None = None
    """Of a joint reasoner whose parts are trained again: the one whose search and weights it takes."""


@dataclass(frozen=True)
class Experiment:
    """A recipe, what answers with the weights that it gives, and the folder of the test queries that are evaluated."""

    name: str
    recipe: Recipe
    config: Config
    """The recipe's own; or that of a method which answers on top of what the recipe trains."""
    queries: str


_FOLDER = Path(__file__).parent
_JOINT = "best"


@lru_cache(maxsize=1)
def experiments() -> Mapping[str, Experiment]:
    """All of them, in the order of their methods, graphs, sets and variants."""
    graphs = _read(_FOLDER / "graphs.toml")
    paths = {method: _FOLDER / "methods" / f"{method}.toml" for method in METHODS}
    documents = {method: _read(path) for method, path in paths.items() if path.is_file()}
    found = [
        one
        for method, document in documents.items()
        for graph in document["graphs"]
        for one in _experiments_of(method, graph, graphs[graph], documents)
    ]
    found += _joint_experiments(_read(_FOLDER / "methods" / f"{_JOINT}.toml"), graphs, documents)
    return {one.name: one for one in found}


def _joint_experiments(
    joint: Mapping[str, Any], graphs: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]
) -> list[Experiment]:
    found = []
    for graph in joint["graphs"]:
        validation = graphs[graph]["validation"]
        parts = tuple(_recipe(name, graph, validation, documents[name], "default") for name in joint["joins"])
        for name, queries in graphs[graph]["sets"].items():
            weighed_by = joint["weighed_by"].get(name, validation)
            own_name = _named(_JOINT, "default" if weighed_by == validation else name)
            recipe = Recipe(f"{graph.lower()}-{own_name}", graph, weighed_by, parts[0].config, parts)
            for variant, own in joint["variants"].items():
                trained = _retrained(recipe, variant) if own.get("valid_edges") else recipe
                config = replace(trained.config, training=replace(trained.config.training, **own))
                found.append(Experiment(f"{graph.lower()}-{name}-{_named(_JOINT, variant)}", trained, config, queries))
    return found


def _retrained(joint: Recipe, variant: str) -> Recipe:
    """The parts of a joint reasoner once more, with the facts that have weighed them."""
    parts = tuple(
        replace(
            part,
            name=_named(part.name, variant),
            config=replace(part.config, training=replace(part.config.training, valid_edges=True)),
        )
        for part in joint.parts
    )
    return replace(joint, name=_named(joint.name, variant), config=parts[0].config, parts=parts, weights_of=joint)


def experiment(name: str) -> Experiment:
    known = experiments()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, 3, 0.4)
        advice = f"did you mean {' or '.join(near)}?" if near else "q2p reproduce --list names them all"
        raise UsageError(f"there is no experiment {clipped(repr(name))}; {advice}")
    return known[name]


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def _experiments_of(
    method: str, graph: str, about: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]
) -> list[Experiment]:
    document, found = documents[method], []
    for name, queries in about["sets"].items():
        for variant, own in document["variants"].items():
            if graph not in own.get("on", [graph]) or name not in own.get("sets", [name]):
                continue
            # What is trained: the variant itself, unless it is asked of what another method or variant has trained.
            ground, source = document.get("trains", method), own.get("of", variant)
            recipe = _recipe(ground, graph, about["validation"], documents[ground], source)
            config = recipe.config
            if (ground, source) != (method, variant):
                config = answered_by(config, method, _settings(document, graph, variant)[1])
            found.append(Experiment(f"{graph.lower()}-{name}-{_named(method, variant)}", recipe, config, queries))
    return found


def _recipe(method: str, graph: str, validation: str, document: Mapping[str, Any], variant: str) -> Recipe:
    start, settings = _settings(document, graph, variant)
    config = configured(preset(method, start), None, settings)
    return Recipe(f"{graph.lower()}-{_named(method, variant)}", graph, validation, config)


def _named(method: str, variant: str) -> str:
    return method if variant == "default" else f"{method}-{variant}"


def _settings(document: Mapping[str, Any], graph: str, variant: str) -> tuple[str, list[str]]:
    """The preset of a variant, and what is changed of it: by all, by the graph, by the variant, by it for this graph.

    A variant that is asked of another one's weights changes only what it says itself.
    """
    own = {key: value for key, value in document["variants"][variant].items() if key not in ("on", "sets")}
    for_graph = own.pop("graphs", {}).get(graph, {})
    of_all = {} if own.pop("of", None) else {**document["settings"], **document["graphs"][graph]}
    merged = {**of_all, **own, **for_graph}
    return merged.pop("preset", "default"), [f"{key}={value}" for key, value in merged.items()]
