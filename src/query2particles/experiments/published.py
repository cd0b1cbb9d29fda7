"""What papers print, and our figures in the same columns."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from query2particles.query.algebra import EPFO, NEGATION

__all__ = [
    "FIGURE_OF",
    "GROUPS",
    "METHOD_NAMES",
    "Published",
    "Study",
    "columns_of",
    "figure_printed",
    "figures_of",
    "knows_validation",
    "leaked_into",
    "printed",
    "published",
    "set_of",
    "study",
    "trainings_of",
]

GROUPS: Mapping[str, Sequence[str]] = {"epfo": EPFO, "negation": NEGATION}
FIGURE_OF = {"betae": "mrr", "q2b": "hits@3"}
"""What is compared on which query sets."""

_OTHER_FIGURES = {("q2b", "emql"): "best_hits@3"}
"""What a published row counts, where it is not what all others on that set do."""

METHOD_NAMES = {
    **{"q2p": "Q2P", "gqe": "GQE", "q2b": "Q2B", "betae": "BetaE", "cone": "ConE"},
    **{"cqd-beam": "CQD-Beam", "cqd-co": "CQD-CO", "emql": "EmQL"},
    **{"tree": "tree search", "best": "best (joint)"},
}
"""What methods are called in tables, which is how published rows name them."""


@dataclass(frozen=True)
class Published:
    """One row of a published table: percentages by shape and group of shapes, as far as they were printed."""

    method: str
    graph: str
    set: str
    figure: str
    source: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Study:
    """A published table that varies one method: percentages by row and column, as far as they were printed."""

    graph: str
    set: str
    source: str
    rows: Mapping[str, Mapping[str, float]]


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def study(name: str) -> Study:
    table = _document()["studies"][name]
    rows = {row: dict(zip(table["columns"], numbers, strict=False)) for row, numbers in table["rows"].items()}
    return Study(table["graph"], table["set"], table["source"], rows)


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    return tuple(
        Published(
            method,
            graph,
            table["set"],
            table["figure"],
            table["source"],
            dict(zip(table["columns"], numbers, strict=False)),  # rows may stop early
        )
        for table in _document()["tables"]
        for graph, rows in table["rows"].items()
        for method, numbers in rows.items()
    )


def printed(method: str, graph: str, kind: str) -> Mapping[str, float]:
    """What is published for a method of ours on a graph and set; nothing, where nothing is."""
    wanted = METHOD_NAMES.get(method), graph, kind, FIGURE_OF[kind]
    return next((row.values for row in published() if (row.method, row.graph, row.set, row.figure) == wanted), {})


def set_of(result: Mapping[str, Any]) -> str:
    """Which published set the queries of a result stand for: drawn anew or not, betae or q2b."""
    return str(result["queries"]).partition("/")[0].removesuffix("-resampled")


def knows_validation(result: Mapping[str, Any]) -> bool:
    """Whether validation facts were stored when what was evaluated was asked, or trained on."""
    return any(training.get("stored") == "valid" or training.get("valid_edges") for training in trainings_of(result))


def leaked_into(result: Mapping[str, Any]) -> bool:
    """Whether what was evaluated was trained on."""
    return any(training.get("leaked") for training in trainings_of(result))


def trainings_of(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of training, of every part where several answer together."""
    config = result["config"]
    parts = [config[part] for part in ("vectors", "links") if part in config] or [config]
    return [part.get("training", {}) for part in parts]


def figure_printed(kind: str, method: str) -> str:
    """What a method's published row on this kind of set counts."""
    return _OTHER_FIGURES.get((kind, method), FIGURE_OF[kind])


def columns_of(figures: Mapping[str, float]) -> list[str]:
    """The columns that a table of these figures has: each group's shapes, then its average."""
    return [column for group, shapes in GROUPS.items() for column in (*shapes, group) if column in figures]


def figures_of(result: Mapping[str, Any], figure: str) -> dict[str, float]:
    """One figure of a result in all columns; averages only over whole groups."""
    found = {shape: float(entry[figure]) for shape, entry in result["shapes"].items() if figure in entry}
    for group, shapes in GROUPS.items():
        if all(shape in found for shape in shapes):
            average = result["averages"].get(group, {}).get(figure)
            found[group] = float(average) if average is not None else round(fmean(found[shape] for shape in shapes), 2)
    return found
