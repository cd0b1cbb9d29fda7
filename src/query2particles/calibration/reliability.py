"""How reliable probabilities are: what was claimed and what came true, of the top guesses and of all that are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.files import new_file
from query2particles.graph.edges import Ints

__all__ = ["Bin", "Figures", "Judged", "expected_calibration_error", "plot_reliability", "reliability"]

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_BINS = 10
_FEWEST = 20
"""A relation with fewer top guesses is not drawn."""


@dataclass(frozen=True)
class Bin:
    """Samples of about the same probability."""

    claimed: float
    true: float
    count: int
    weight: float = 0.0


@dataclass(frozen=True)
class Figures:
    """Of the top guess of each question, and of all guesses that are shown."""

    questions: int
    top_ece: float
    ece: float
    log_loss: float
    brier: float
    likely: int
    """Guesses of ½ or more; what they claim, and what came true of them."""
    likely_claimed: float
    likely_true: float

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Figures:
        kinds = {"int": int, "float": float}
        return Figures(**{one.name: kinds[str(one.type)](document[one.name]) for one in fields(Figures)})


@dataclass(frozen=True)
class Judged:
    """Guesses (m,) of some questions: what was claimed of each, whether it came true, and which question it answers."""

    claimed: Floats
    true: Flags
    question: Ints
    relation: Ints
    """The directed relation that leads to the answer."""
    weight: Floats
    """How many natural guesses each stands for."""

    @staticmethod
    def joined(several: Sequence[Judged]) -> Judged:
        """Questions are numbered in turn."""
        starts = np.cumsum([0, *(int(one.question.max(initial=-1)) + 1 for one in several)])
        names = ("claimed", "true", "relation", "weight")
        claimed, true, relation, weight = (np.concatenate([getattr(one, name) for one in several]) for name in names)
        question = np.concatenate([one.question + start for one, start in zip(several, starts, strict=False)])
        return Judged(claimed, true, question, relation, weight)

    def top(self) -> Judged:
        """The likeliest guess of every question."""
        order = np.lexsort((-self.claimed, self.question))
        first = order[np.flatnonzero(np.diff(self.question[order], prepend=-1))]
        return Judged(
            self.claimed[first], self.true[first], self.question[first], self.relation[first], self.weight[first]
        )

    def figures(self) -> Figures:
        top, likely = self.top(), self.claimed >= 0.5
        safe = np.clip(self.claimed, 1e-9, 1 - 1e-9)
        losses = -np.log(np.where(self.true, safe, 1 - safe))

        def mean(values: npt.NDArray[Any], own: Flags | slice = slice(None)) -> float:
            weight = self.weight[own]
            return float(weight @ values[own] / weight.sum()) if weight.sum() else 0.0

        return Figures(
            questions=len(top.claimed),
            top_ece=expected_calibration_error(top.claimed, top.true, top.weight),
            ece=expected_calibration_error(self.claimed, self.true, self.weight),
            log_loss=mean(losses),
            brier=mean(np.square(self.claimed - self.true)),
            likely=int(likely.sum()),
            likely_claimed=mean(self.claimed, likely),
            likely_true=mean(self.true, likely),
        )

    def by_relation(self, fewest: int = _FEWEST) -> dict[int, Bin]:
        """Of every directed relation with so many top guesses: what they claim, and what came true."""
        top, found = self.top(), {}
        for relation, count in zip(*np.unique(top.relation, return_counts=True), strict=True):
            if count >= fewest:
                own = top.relation == relation
                claimed, true = (np.average(one[own], weights=top.weight[own]) for one in (top.claimed, top.true))
                found[int(relation)] = Bin(float(claimed), float(true), int(count))
        return found


def reliability(probabilities: Floats, labels: Flags, weights: Floats | None = None, bins: int = _BINS) -> list[Bin]:
    """Of every bin of equal width that holds samples: their mean probability, the share of the true, their number."""
    each = np.ones(len(labels)) if weights is None else weights
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    count, total = np.bincount(place, minlength=bins), np.bincount(place, weights=each, minlength=bins)
    claimed, true = (np.bincount(place, weights=each * values, minlength=bins) for values in (probabilities, labels))
    return [
        Bin(float(claimed[one] / total[one]), float(true[one] / total[one]), int(count[one]), float(total[one]))
        for one in np.flatnonzero(total)
    ]


def expected_calibration_error(
    probabilities: Floats, labels: Flags, weights: Floats | None = None, bins: int = _BINS
) -> float:
    """Σ over bins of equal width: the share of samples there times |mean probability − share of the true|."""
    found = reliability(probabilities, labels, weights, bins)
    return sum(one.weight * abs(one.claimed - one.true) for one in found) / max(
        sum(one.weight for one in found), 1e-300
    )


def plot_reliability(judged: Mapping[str, Judged], target: Path, *, title: str) -> None:
    """How often the top guesses of each family come true, beside what they claim; and the same by relation."""
    from matplotlib.figure import Figure

    panels = len(judged) + 1
    columns = min(panels, 4)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(3.2 * columns, 3.2 * rows), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (name, one) in zip(grid, judged.items(), strict=False):
        top = one.top()
        bins = reliability(top.claimed, top.true, top.weight)
        error = 100 * expected_calibration_error(top.claimed, top.true, top.weight)
        sizes = [10 + 60 * math.sqrt(own.weight / top.weight.sum()) for own in bins]
        axes.plot([own.claimed for own in bins], [own.true for own in bins], color="tab:blue", linewidth=1)
        axes.scatter([own.claimed for own in bins], [own.true for own in bins], s=sizes, color="tab:blue")
        axes.set_title(f"{name}: top guesses\nof {len(top.claimed):,} questions, error {error:.1f} %", fontsize="small")
    relations = Judged.joined(list(judged.values())).by_relation().values()
    axes = grid[len(judged)]
    sizes = [5 + 2 * math.sqrt(one.count) for one in relations]
    axes.scatter([one.claimed for one in relations], [one.true for one in relations], s=sizes, color="tab:orange")
    axes.set_title(f"{len(relations)} relations: top guesses", fontsize="small")
    for number, axes in enumerate(grid):
        if number >= panels:
            axes.set_axis_off()
            continue
        axes.plot((0, 1), (0, 1), color="lightgray", linewidth=1, zorder=0)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="claimed", ylabel="came true")
        axes.grid(alpha=0.3)
    with new_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=120)
