"""The experiments of `q2p reproduce`, by name: graph-set-method, or graph-set-method-variant.

A recipe is one training; the query sets of its graph share it, so a model is trained once and evaluated on each.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from query2particles.config import Config, configured, preset
from query2particles.errors import UsageError, clipped

__all__ = ["Experiment", "Recipe", "experiment", "experiments"]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `name` is graph-method-variant, `validation` the folder of the queries that select."""

    name: str
    graph: str
    validation: str
    config: Config


@dataclass(frozen=True)
class Experiment:
    """A recipe, and the folder of the test queries that its model is evaluated on."""

    name: str
    recipe: Recipe
    queries: str


@lru_cache(maxsize=1)
def experiments() -> Mapping[str, Experiment]:
    """All of them, in the order of their graphs, sets and variants."""
    found = [
        one
        for path in sorted(Path(__file__).parent.glob("*-*.toml"))
        for document in [tomllib.loads(path.read_text("utf-8"))]
        for graph in document["graphs"]
        for one in _experiments_of(graph, document)
    ]
    return {one.name: one for one in found}


def experiment(name: str) -> Experiment:
    known = experiments()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, 3, 0.4)
        advice = f"did you mean {' or '.join(near)}?" if near else "q2p reproduce --list names them all"
        raise UsageError(f"there is no experiment {clipped(repr(name))}; {advice}")
    return known[name]


def _experiments_of(graph: str, document: Mapping[str, Any]) -> list[Experiment]:
    method, found = document["method"], []
    for name, queries in document["sets"].items():
        for variant, own in document["variants"].items():
            settings = {**document["settings"], **own}
            start = preset(method, settings.pop("preset", "default"))
            config = configured(start, None, [f"{key}={value}" for key, value in settings.items()])
            ending = "" if variant == "default" else f"-{variant}"
            recipe = Recipe(f"{graph.lower()}-{method}{ending}", graph, document["validation"], config)
            found.append(Experiment(f"{graph.lower()}-{name}-{method}{ending}", recipe, queries))
    return found
