"""From queries with answers to figures: execute, rank the hard answers, take means, write them down.

The protocol is in `docs/evaluation.md`: filtered ranks; a mean over a query's hard answers, then over queries, then
over shapes. Figures are fractions here and become percentages with two decimals in the result file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.method import Method
from query2particles.engine.plausible import Plausible
from query2particles.engine.ranks import Ranks, ranks, rows_at_once, scoring
from query2particles.errors import UsageError
from query2particles.graph.edges import Ints
from query2particles.query.algebra import GROUPS, SHAPES, Query, nickname
from query2particles.query.rewrite import Unions
from query2particles.workload.labels import Labels

__all__ = ["AsHard", "Evaluation", "Figures", "averages", "compare", "evaluate", "result"]

_AVERAGED = ("mrr", "hits@3", "hits@10")

Floats = npt.NDArray[np.float64]


class AsHard(NamedTuple):
    """The hard answers of one shape that are equally hard, and the queries that have such."""

    queries: int
    answers: int
    mrr: float


@dataclass(frozen=True)
class Figures:
    """Means over the queries of one shape that have hard answers; without such queries there are none."""

    queries: int
    without_hard_answer: int
    means: Mapping[str, float]
    divr_queries: int
    divr_mrr: float
    by_hardness: Mapping[int, AsHard] = field(default_factory=dict)
    """By how many edges of an answer's best proof are missing from the training graph, where that is known."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of every shape, by name: first the fourteen in their order, then others."""

    shapes: Mapping[str, Figures]

    def average(self, group: str) -> dict[str, float]:
        """Plain means over the shapes of a group (epfo, negation, all) that were evaluated."""
        present = [self.shapes[name].means for name in self.averaged(group)]
        return {key: fmean(means[key] for means in present) for key in _AVERAGED} if present else {}

    def averaged(self, group: str) -> list[str]:
        """The shapes of a group that an average is taken over."""
        return [name for name in GROUPS[group] if name in self.shapes and self.shapes[name].queries]

    def average_by_hardness(self, group: str) -> dict[int, float]:
        """Plain means of MRR over the shapes of a group that have answers of that hardness."""
        shapes = [self.shapes[name].by_hardness for name in self.averaged(group)]
        found = sorted({hard for own in shapes for hard in own})
        return {hard: fmean(own[hard].mrr for own in shapes if hard in own) for hard in found}

    def percentages(self, digits: int) -> dict[str, float]:
        """The mean MRRs of the groups of which there were queries."""
        averages = {group: self.average(group) for group in GROUPS}
        return {group: round(100 * average["mrr"], digits) for group, average in averages.items() if average}


def evaluate(
    method: Method[Any],
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    unions: Unions = "native",
    hardness: Mapping[Query, Ints] | None = None,
    chunk: int | None = None,
    plausible: Plausible | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Rank the hard answers of every query, `chunk` queries at a time or as many as memory allows.

    Shapes with operators that the method lacks are left out. With the `hardness` of all hard answers
    (`workload/hardness`) figures are also split by it. With `plausible`, what cannot answer a query, the question's own
    entity and wrong kinds, is ranked behind all others.
    """
    found = {}
    with scoring(method):
        for shape, ids in batch.items():
            disjuncts = Disjuncts.of(shape, unions)
            if not disjuncts.lacking(method):
                how_hard = None if hardness is None else hardness[shape]
                out_of = None if plausible is None else partial(_ruled_out, plausible, shape)
                found[nickname(shape)] = _ranked(
                    method, disjuncts, ids, labels[shape], how_hard, chunk, out_of, progress
                )
            elif progress is not None:
                progress(len(ids))
    return Evaluation({name: found[name] for name in dict.fromkeys([*SHAPES, *found]) if name in found})


def compare(
    methods: Mapping[str, Method[Any]],
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    unions: Unions = "native",
    plausible: Plausible | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Evaluation]:
    """The figures of several methods on the same queries."""
    return {
        name: evaluate(method, batch, labels, unions=unions, plausible=plausible, progress=progress)
        for name, method in methods.items()
    }


def _ranked(
    method: Method[Any],
    disjuncts: Disjuncts,
    ids: Ints,
    labels: Labels,
    hardness: Ints | None,
    chunk: int | None,
    ruled_out: Callable[[Tensor, Ints], Tensor] | None,
    progress: Callable[[int], object] | None,
) -> Figures:
    """The figures of one shape; `ruled_out` takes from scores of queries what cannot answer them."""
    hard, easy = labels.hard, labels.easy
    ranked = np.flatnonzero(hard.sizes)
    asked, without = ids[ranked], len(ids) - len(ranked)

    def scores_of(rows: Ints) -> Tensor:
        scores = disjuncts.scores(method, asked[rows], hard.entities)
        return scores if ruled_out is None else ruled_out(scores, asked[rows])

    counts = ranks(
        scores_of,
        hard.take(ranked),
        easy.take(ranked),
        chunk=chunk or max(1, rows_at_once(method, hard.entities) // len(disjuncts.shapes)),
        progress=progress,
    )
    if progress is not None:
        progress(without)
    return _figures(counts, (hard.sizes + easy.sizes)[ranked], without, hardness)


def _ruled_out(plausible: Plausible, shape: Query, scores: Tensor, ids: Ints) -> Tensor:
    """The scores (n, entities) of queries of one shape, −∞ for what cannot answer them."""
    allowed = plausible.allowed(shape, ids)
    never = np.zeros(scores.shape, dtype=bool) if allowed is None else ~allowed
    echoes = plausible.echoes({shape: ids})[shape]
    never[echoes.row_of_each(), echoes.values] = True
    return scores.masked_fill(torch.from_numpy(never).to(scores.device), -torch.inf)


def _figures(counts: Ranks, answers: Ints, without_hard_answer: int, hardness: Ints | None) -> Figures:
    """The means of one shape; `answers` says how many answers, easy and hard, each query has."""
    if not len(answers):
        return Figures(0, without_hard_answer, {}, 0, 0.0)

    def by_query(values: npt.NDArray[Any]) -> Floats:
        total: Floats = np.add.reduceat(values.astype(np.float64), counts.offsets[:-1])
        return total / np.diff(counts.offsets)

    rank = counts.realistic
    reciprocal = by_query(1 / rank)
    best = np.minimum.reduceat(rank, counts.offsets[:-1])
    # Diverse queries: the tenth with most answers, of equally many the earlier ones.
    diverse = np.argsort(-answers, kind="stable")[: max(1, len(answers) // 10)]
    means = {
        "mrr": reciprocal,
        "mrr_optimistic": by_query(1 / counts.optimistic),
        "mrr_pessimistic": by_query(1 / counts.pessimistic),
        **{f"hits@{k}": by_query(rank <= k) for k in (1, 3, 10)},
        "best_hits@3": best <= 3,
    }
    return Figures(
        len(answers),
        without_hard_answer,
        {key: float(values.mean()) for key, values in means.items()},
        len(diverse),
        float(reciprocal[diverse].mean()),
        {} if hardness is None else _by_hardness(counts, hardness),
    )


def _by_hardness(counts: Ranks, hardness: Ints) -> dict[int, AsHard]:
    """A mean over a query's answers of the same hardness, then over the queries that have such."""
    queries = np.repeat(np.arange(len(counts.offsets) - 1), np.diff(counts.offsets))
    found = {}
    for hard in np.unique(hardness).tolist():
        own = hardness == hard
        answers = np.bincount(queries[own])
        having = np.flatnonzero(answers)
        means = np.bincount(queries[own], weights=1 / counts.realistic[own])[having] / answers[having]
        found[hard] = AsHard(len(having), int(own.sum()), float(means.mean()))
    return found


def result(
    evaluations: Sequence[Evaluation],
    *,
    name: str,
    method: str,
    graph: str,
    queries: str,
    seeds: Sequence[int],
    config: Mapping[str, Any],
    commit: str | None,
    machine: str,
    train_seconds: float,
    gpu_memory_gib: float,
) -> dict[str, Any]:
    """The result file of one evaluation a seed: means over the seeds, percentages with two decimals."""
    if len(evaluations) != len(seeds) or not seeds:
        raise UsageError(f"{len(seeds)} seeds need as many evaluations, not {len(evaluations)}")
    first = evaluations[0]
    if any(_queries_of(other) != _queries_of(first) for other in evaluations):
        raise UsageError("the seeds were evaluated on different queries; evaluate all on the same set")
    return {
        "name": name,
        "method": method,
        "graph": graph,
        "queries": queries,
        "seeds": list(seeds),
        "config": dict(config),
        "commit": commit,
        "machine": machine,
        "train_seconds": round(train_seconds, 2),
        "gpu_memory_gib": round(gpu_memory_gib, 2),
        "shapes": {shape: _shape_entry([one.shapes[shape] for one in evaluations]) for shape in first.shapes},
        "averages": averages(evaluations),
        "per_seed": [
            {
                "seed": seed,
                "mrr": {shape: _percent([found.means["mrr"]]) for shape, found in one.shapes.items() if found.queries},
                "averages": averages([one]),
            }
            for seed, one in zip(seeds, evaluations, strict=True)
        ],
    }


def _queries_of(evaluation: Evaluation) -> dict[str, tuple[int, int]]:
    return {name: (found.queries, found.without_hard_answer) for name, found in evaluation.shapes.items()}


def _shape_entry(seeds: Sequence[Figures]) -> dict[str, Any]:
    """One shape over all seeds."""
    one = seeds[0]
    entry: dict[str, Any] = {"queries": one.queries}
    if one.without_hard_answer:
        entry["without_hard_answer"] = one.without_hard_answer
    for key in one.means:
        values = [seed.means[key] for seed in seeds]
        entry[key] = _percent(values)
        if key == "mrr":
            entry["mrr_std"] = round(100 * stdev(values), 2) if len(values) > 1 else 0.0
    if one.queries:
        entry["divr"] = {"queries": one.divr_queries, "mrr": _percent([seed.divr_mrr for seed in seeds])}
    if one.by_hardness:
        entry["hardness"] = {
            str(hard): {**own._asdict(), "mrr": _percent([seed.by_hardness[hard].mrr for seed in seeds])}
            for hard, own in one.by_hardness.items()
        }
    return entry


def averages(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """The averages of each group over all seeds; which shapes were averaged is said where some are missing."""
    entries: dict[str, Any] = {}
    for group, whole in GROUPS.items():
        means = [one.average(group) for one in evaluations]
        entries[group] = {key: _percent([own[key] for own in means]) for key in means[0]}
        by_hardness = [one.average_by_hardness(group) for one in evaluations]
        if by_hardness[0]:
            entries[group]["hardness"] = {
                str(hard): _percent([own[hard] for own in by_hardness]) for hard in by_hardness[0]
            }
        present = evaluations[0].averaged(group)
        if present and len(present) < len(whole):
            entries[group]["shapes"] = present
    return entries


def _percent(fractions: Sequence[float]) -> float:
    return round(100 * fmean(fractions), 2)
