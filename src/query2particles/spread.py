"""How far apart the particles of a trained model are, and whether each of them finds answers.

A query's score is the best inner product with any of its w particles, so particles that lie on one another are one
particle. A hard answer is *found* by the particle that has the best inner product with it, of those that all but tie
by the first, so that copies of a particle find nothing. For each query:

    cosine       mean of cos(p, p′) over the pairs of its particles
    margin       mean over its hard answers of the best inner product less the second best: what the score owes to the
                 particle that finds it
    by rank      shares of its hard answers: that of the particle that finds most of them, second most, …
    effective    exp(−Σ s log s) of these shares s: between 1, where one particle finds all, and w

One particle has no pairs, and neither of the first two. All belong together: particles that nearly coincide may well
share out the answers evenly, by margins that are worth nothing.

Particles are shown by rank, since a set has no order: the one that finds most may be another in every query, and the
mean over queries of each place's own share would level that out. Whether one place of the set never finds anything
only its own share can tell, so that is shown, too (`by_number`); it means something where a model gives places
parameters of their own, which stay with them through its operators, and it is not averaged over shapes, whose sets
differ in size. A query with one hard answer says nothing about shares: by rank and in the effective number, only
queries with several count, and `at_most`, the mean of min(w, hard answers), bounds the effective number.

Figures are means over a shape's queries with hard answers, then over shapes, as in `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import entr
from torch import Tensor
from torch.nn import functional

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import Factored, finders, ids_for, scoring
from query2particles.engine.sets import Sets
from query2particles.errors import TrainingError, UsageError
from query2particles.graph.edges import Ints
from query2particles.query.algebra import GROUPS, SHAPES, Query, nickname
from query2particles.query.rewrite import Unions
from query2particles.workload.labels import Labels

__all__ = ["Particles", "Spread", "spread"]


_NUMBERS = 1 << 23
"""Particles take as many numbers where they stand beside the answers that they are compared with."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Particles:
    """The particles of one shape's queries that have hard answers; without such queries there are no figures."""

    queries: int
    without_hard_answer: int
    several: int
    """Queries with at least two hard answers, of which `effective`, `at_most` and `by_rank` are."""
    particles: int
    """w, of each query."""
    means: Mapping[str, float]
    """`cosine`, `margin`, `effective` and `at_most`, as far as there are queries that have them."""
    by_rank: Sequence[float]
    by_number: Sequence[float]

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"queries": self.queries}
        if self.without_hard_answer:
            entry["without_hard_answer"] = self.without_hard_answer
        if self.queries:
            entry |= {"particles": self.particles, "several": self.several, **_figures(self.means, self.by_rank)}
            entry["by_number"] = _percentages(self.by_number)
        return entry


@dataclass(frozen=True)
class Spread:
    """The figures of every shape, by name: first the fourteen in their order, then others."""

    shapes: Mapping[str, Particles]

    def average(self, group: str) -> dict[str, float]:
        """Plain means over the shapes of a group (epfo, negation, all), of each figure over those that have it."""
        means = [self.shapes[name].means for name in self.averaged(group)]
        keys = dict.fromkeys(key for own in means for key in own)
        return {key: fmean(own[key] for own in means if key in own) for key in keys}

    def average_by_rank(self, group: str) -> list[float]:
        """The same of the shares by rank; in smaller sets, particles that are not there find nothing."""
        shares = [self.shapes[name].by_rank for name in self.averaged(group) if self.shapes[name].several]
        widest = max(map(len, shares), default=0)
        return [fmean(own[rank] if rank < len(own) else 0.0 for own in shares) for rank in range(widest)]

    def averaged(self, group: str) -> list[str]:
        """The shapes of a group that an average is taken over."""
        return [name for name in GROUPS[group] if name in self.shapes and self.shapes[name].queries]

    def as_json(self) -> dict[str, Any]:
        """Shares as percentages; which shapes were averaged is said where some of a group are missing."""
        averages: dict[str, Any] = {}
        for group, whole in GROUPS.items():
            averages[group] = _figures(self.average(group), self.average_by_rank(group))
            present = self.averaged(group)
            if present and len(present) < len(whole):
                averages[group]["shapes"] = present
        return {"shapes": {name: own.as_json() for name, own in self.shapes.items()}, "averages": averages}


class _WithParticles(Method[Any], Factored, Protocol):
    """What can be measured here."""


def spread(
    method: Method[Any],
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    unions: Unions = "native",
    chunk: int = 1024,
    progress: Callable[[int], object] | None = None,
) -> Spread:
    """Measure the particles of every query that has hard answers, `chunk` queries at a time.

    Shapes with operators that the method lacks are left out.
    """
    if not isinstance(method, Factored):
        raise UsageError(
            "this method has no particles to measure, since its scores are no inner products; name a run of q2p, which "
            "has several a query, or of betae, emql, gqe or links, which have one"
        )
    found = {}
    with scoring(method):
        for shape, ids in batch.items():
            disjuncts = Disjuncts.of(shape, unions)
            if not disjuncts.lacking(method):
                found[nickname(shape)] = _measured(method, disjuncts, ids, labels[shape].hard, chunk, progress)
            elif progress is not None:
                progress(len(ids))
    return Spread({name: found[name] for name in dict.fromkeys([*SHAPES, *found]) if name in found})


def _measured(
    method: _WithParticles,
    disjuncts: Disjuncts,
    ids: Ints,
    hard: Sets,
    chunk: int,
    progress: Callable[[int], object] | None,
) -> Particles:
    """The figures of one shape."""
    asked = np.flatnonzero(hard.sizes)
    without = len(ids) - len(asked)
    cosines: list[Floats] = []
    margins: list[Floats] = []
    counts: list[Ints] = []
    for start in range(0, len(asked), chunk):
        rows = asked[start : start + chunk]
        particles, table = _particles(method, disjuncts, ids[rows])
        cosines.append(_cosines(particles))
        found, margin = _found(particles, table, hard.take(rows).listed())
        counts.append(found)
        margins.append(margin)
        if progress is not None:
            progress(len(rows))
    if progress is not None:
        progress(without)
    if not counts:
        return Particles(0, without, 0, 0, {}, (), ())
    return _means(np.concatenate(cosines), np.concatenate(margins), np.concatenate(counts), without)


def _particles(method: _WithParticles, disjuncts: Disjuncts, ids: Ints) -> tuple[Tensor, Tensor]:
    """Of n queries the particles (n, w, d), those of all disjuncts side by side, and the table of entities (N, d)."""
    own = ids_for(method, ids)
    states = execute(compile_shapes(disjuncts.shapes, method.kind), method, [own] * len(disjuncts.shapes))
    sets, tables, _ = zip(*map(method.factors, states), strict=True)
    particles = torch.cat(sets, 1).float()
    if not bool(particles.isfinite().all()):
        raise TrainingError("the method gave particles that are no numbers (NaN); train again at a lower rate")
    return particles, tables[0]


def _cosines(particles: Tensor) -> Floats:
    """The mean over the pairs of each query's particles; of single ones nothing.

    All ordered pairs of unit vectors u, those with themselves left out, sum up to |Σ u|² − Σ |u|².
    """
    w = particles.shape[1]
    if w == 1:
        return np.zeros(0)
    units = functional.normalize(particles.double(), dim=-1)
    pairs = units.sum(1).square().sum(-1) - units.square().sum((1, 2))
    found: Floats = (pairs / (w * (w - 1))).cpu().numpy()
    return found


def _found(particles: Tensor, table: Tensor, answers: Sets) -> tuple[Ints, Floats]:
    """How many answers (n, w) each particle of a query finds, and the margins of each query; of single ones none."""
    n, w, d = particles.shape
    queries = np.repeat(np.arange(n), answers.sizes)
    counts, margins = np.zeros(n * w, dtype=np.int64), np.zeros(n)
    together = max(1, _NUMBERS // (w * d))
    for start in range(0, len(queries), together):
        own, entities = queries[start : start + together], answers.values[start : start + together]
        rows, places = (torch.as_tensor(ids, dtype=torch.int64, device=table.device) for ids in (own, entities))
        products = (particles[rows] @ table[places].float()[..., None])[..., 0].cpu().numpy()  # (answers, w)
        counts += np.bincount(own * w + finders(products), minlength=n * w)
        if w > 1:
            second, best = np.partition(products, -2)[:, -2:].T
            margins += np.bincount(own, weights=best - second, minlength=n)
    return counts.reshape(n, w), margins / answers.sizes if w > 1 else np.zeros(0)


def _means(cosines: Floats, margins: Floats, counts: Ints, without_hard_answer: int) -> Particles:
    """The figures of one shape from those of its queries."""
    answers = counts.sum(1)
    shares = counts / answers[:, None]
    several = -np.sort(-shares[answers > 1], axis=1)
    by_query = {
        "cosine": cosines,
        "margin": margins,
        "effective": np.exp(entr(several).sum(1)),
        "at_most": np.minimum(answers[answers > 1], counts.shape[1]),
    }
    return Particles(
        len(counts),
        without_hard_answer,
        len(several),
        counts.shape[1],
        {key: float(values.mean()) for key, values in by_query.items() if len(values)},
        several.mean(0).tolist() if len(several) else (),
        shares.mean(0).tolist(),
    )


def _figures(means: Mapping[str, float], by_rank: Sequence[float]) -> dict[str, Any]:
    entry: dict[str, Any] = {key: round(value, 3) for key, value in means.items()}
    return {**entry, "by_rank": _percentages(by_rank)} if by_rank else entry


def _percentages(shares: Sequence[float]) -> list[float]:
    return [round(100 * share, 2) for share in shares]
