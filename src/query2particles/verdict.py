"""Whether a run is any good, in one sentence: its figures against those of methods that learn nothing.

A grade follows from odds, m / (1 − m) of a mean reciprocal rank m. Where m is small, twice the odds is about twice the
mean; where a baseline is good already, as no mean can be twice 0.7, it is about half of what the baseline leaves over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Literal

from query2particles.evaluate import Evaluation
from query2particles.query.algebra import GROUPS

__all__ = ["Verdict", "verdict"]

_QUERIES = 50
"""Of fewer with a hard answer, chance decides."""

_GOOD, _FAIR = 1.5, 1.2
"""So many times the odds of the better baseline a run must exceed; one that is no worse than that is weak."""

_GOOD_LEADS = 0.75
"""A good run is ahead of all baselines on this share of the shapes."""

_FEW = 4
"""So many shapes are named."""

_ADVICE = "train it longer (more updates) or with another method (q2p methods)"


@dataclass(frozen=True)
class Verdict:
    """What to think of a run, in a word and in a sentence."""

    grade: Literal["good", "fair", "weak", "useless", "unknown"]
    sentence: str

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def verdict(model: Evaluation, baselines: Mapping[str, Evaluation]) -> Verdict:
    """Judge a model by its means over the shapes that all have answered, on the same queries.

    These are those of the fourteen, as in every average; others count where there are none of them.
    """
    answered = [
        name
        for name, found in model.shapes.items()
        if found.queries and all(name in other.shapes for other in baselines.values())
    ]
    shapes = [name for name in answered if name in GROUPS["all"]] or answered
    queries = sum(model.shapes[name].queries for name in shapes)
    if queries < _QUERIES:
        return Verdict(
            "unknown",
            f"Too few queries to tell whether this run is good: {queries} of those asked have a hard answer, and it "
            f"takes {_QUERIES}; ask more (--limit, --shapes).",
        )
    means = {name: _mean(other, shapes) for name, other in baselines.items()}
    better = max(means, key=means.__getitem__)
    own, other = _mean(model, shapes), means[better]
    behind = [name for name in shapes if _mrr(model, name) <= max(_mrr(one, name) for one in baselines.values())]
    odds, other_odds = _odds(own), _odds(other)
    figures = f"{_percent(own)} MRR, {own / other:.1f} times the better baseline ({better}, {_percent(other)})"
    leads = _leads(len(shapes), behind)
    if odds > _GOOD * other_odds and len(behind) <= (1 - _GOOD_LEADS) * len(shapes):
        return Verdict("good", f"This run is good: {figures}; {leads}.")
    if odds > _FAIR * other_odds:
        return Verdict("fair", f"This run is fair: {figures}; {leads}; to get more out of it, {_ADVICE}.")
    if odds >= other_odds:
        return Verdict(
            "weak",
            f"This run is weak: {_percent(own)} MRR, hardly better than counting stored facts ({better}, "
            f"{_percent(other)}); {leads}; to make it worth its training, {_ADVICE}.",
        )
    return Verdict(
        "useless",
        f"This run is worse than counting: {_percent(own)} MRR against {_percent(other)} of {better}, which learns "
        f"nothing; do not use it: {_ADVICE}.",
    )


def _mrr(evaluation: Evaluation, shape: str) -> float:
    return evaluation.shapes[shape].means["mrr"]


def _mean(evaluation: Evaluation, shapes: Sequence[str]) -> float:
    return fmean(_mrr(evaluation, name) for name in shapes)


def _odds(mrr: float) -> float:
    return mrr / (1 - mrr) if mrr < 1 else math.inf


def _percent(mrr: float) -> str:
    return f"{100 * mrr:.1f}"


def _leads(shapes: int, behind: Sequence[str]) -> str:
    """On how many shapes a model is ahead of every baseline; on which it is not, where these are few."""
    if not behind:
        return f"it leads on all {shapes} shapes" if shapes > 1 else "it leads on the one shape that was asked"
    but = f", not on {', '.join(behind)}" if len(behind) <= _FEW else ""
    return f"it leads on {shapes - len(behind)} of {shapes} shapes{but}"
