"""How a joint reasoner (`methods/joint`) searches and weighs, fitted to validation queries.

First the search is settled, for all queries the same: which of a few ways has the best mean MRR by itself. Then every
family of queries gets weights of its own.

Of every query, its hard answers compete with the entities that are no answers: those that the vectors or the search
rank highest, and a random few that stand for all others. A family's weights w minimise

    mean over hard answers a of  log (exp s(a) + Σ_v c(v) exp s(v)) − s(a)          s = w · x

with c(v) = 1 for the highest, and the number that each of the random ones stands for. A small loss is not yet a good
rank: how far to go to these weights w, from w₀ of the best part alone, is decided by the MRR of w₀ + λ (w − w₀) on each
half of the queries with w fitted to the other half. Where nothing ranks better than the best part alone, that is taken:
no family is worse off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.method import lacking
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import ids_for, scoring
from query2particles.errors import WorkloadError
from query2particles.evaluate import evaluate
from query2particles.graph.edges import Ints
from query2particles.methods.joint import FAMILIES, FEATURES, Joint
from query2particles.methods.tree import Tree
from query2particles.query.algebra import Query
from query2particles.workload.labels import Labels

__all__ = ["FamilyFit", "Search", "fit_search", "fit_weights", "queries_asked"]

Floats: TypeAlias = npt.NDArray[np.float64]

_TOP = 100
"""So many of the entities that a part ranks highest compete."""

_RANDOM = 100
"""So many others."""

_CHUNK = 32
_PENALTY = 1e-3
"""Of the squares of the weights: a feature that says nothing weighs nothing."""

_SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
"""λ: how much of the way from a part alone to the weights of least loss is tried."""

_SHARPNESS = (0.5, 0.65, 0.8, 1.0, 1.4, 2.0)
_SEARCHED = 100
"""The search is settled by so many queries of each shape."""


class Search(NamedTuple):
    """What of `methods/tree` is settled."""

    sharpness: float
    several: Literal["best", "any"]

    @property
    def settings(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._asdict().items()]


@dataclass(frozen=True)
class FamilyFit:
    """What a family's weights are, and the MRR in percent that they, and each part alone, have on what was fitted."""

    weights: tuple[float, ...]
    queries: int
    mrr: float
    alone: Mapping[str, float]


@dataclass(frozen=True)
class _Candidates:
    """Of some queries of one family, concatenated."""

    features: Tensor  # (c, features)
    query: Tensor  # (c,) ascending
    hard: Tensor  # (c,) whether it is a hard answer
    stands_for: Tensor  # (c,) how many entities

    def every_second(self, first: int) -> _Candidates:
        """Those of every second query from this one on, numbered anew."""
        own = self.query % 2 == first
        return _Candidates(self.features[own], self.query[own] // 2, self.hard[own], self.stands_for[own])


def queries_asked(batch: Batch) -> int:
    """How many `fit_search` and `fit_weights` ask together."""
    return sum(len(ids) + (len(_SHARPNESS) + 1) * min(len(ids), _SEARCHED) for ids in batch.values())


def fit_search(
    tree: Tree,
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Search, dict[Search, float]]:
    """The search that suits these queries, which the tree then has, and the mean MRR of each that was tried.

    How sharp links are comes first, where all ways to an answer count; then whether they do.
    """
    some = {shape: ids[:_SEARCHED] for shape, ids in batch.items()}
    theirs = {shape: labels[shape].take(np.arange(len(ids))) for shape, ids in some.items()}
    found: dict[Search, float] = {}

    def try_out(search: Search) -> None:
        tree.settings = replace(tree.settings, **search._asdict())
        found[search] = evaluate(tree, some, theirs, progress=progress).average("all").get("mrr", 0.0)

    def best() -> Search:
        return max(found, key=lambda search: found[search])

    for sharpness in _SHARPNESS:
        try_out(Search(sharpness, "any"))
    try_out(best()._replace(several="best"))
    chosen = best()
    tree.settings = replace(tree.settings, **chosen._asdict())
    return chosen, found


def fit_weights(
    model: Joint,
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Tensor, dict[int, FamilyFit]]:
    """The weights (families, features) that suit these queries, and how each family came out.

    Shapes with operators that a part lacks are left out. Families that no query belongs to take the weights that suit
    all queries together; one with a single query takes the part that ranks it better.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, list[_Candidates]] = {}
    with scoring(model):
        for shape, ids in batch.items():
            if lacking(model.operators, shape):
                progress(len(ids))
                continue
            for family, some in _candidates(model, shape, ids, labels[shape], generator, progress):
                found.setdefault(family, []).append(some)
    if not found:
        raise WorkloadError("there is no validation query with a hard answer that both parts can answer")
    with torch.inference_mode(mode=False):
        fits = {family: _fitted(_joined(parts)) for family, parts in sorted(found.items())}
        of_all = _fitted(_joined([one for parts in found.values() for one in parts]))
    rows = [fits[family].weights if family in fits else of_all.weights for family in range(FAMILIES)]
    return torch.tensor(rows), fits


def _candidates(
    model: Joint,
    shape: Query,
    ids: Ints,
    labels: Labels,
    generator: torch.Generator,
    progress: Callable[[int], object],
) -> Iterator[tuple[int, _Candidates]]:
    plan = compile_shapes((shape,), model.kind)
    for start in range(0, len(ids), _CHUNK):
        rows = slice(start, start + _CHUNK)
        (state,) = execute(plan, model, [ids_for(model, ids[rows])])
        features = torch.stack(model.features(state), -1).cpu()  # (n, N, features): a GPU would wait at each step below
        families = state.family.tolist()
        for number in range(len(features)):
            one = _compared(features[number], labels.easy[start + number], labels.hard[start + number], generator)
            if one is not None:
                yield families[number], one
        progress(len(features))


def _compared(features: Tensor, easy: Ints, hard: Ints, generator: torch.Generator) -> _Candidates | None:
    """Of one query, from features on the CPU: its hard answers, and what they compete with; None where it has none."""
    if not len(hard):
        return None
    answers = torch.as_tensor(np.concatenate([hard, easy]), dtype=torch.int64)
    others = torch.ones(len(features), dtype=torch.bool)
    others[answers] = False
    highest = torch.zeros_like(others)
    for part in range(2):
        scores = features[:, part].masked_fill(~others, -torch.inf)
        highest[scores.topk(min(_TOP, len(features) - len(answers))).indices] = True
    rest = (others & ~highest).nonzero()[:, 0]
    some = rest[torch.randperm(len(rest), generator=generator)[:_RANDOM]]
    top = highest.nonzero()[:, 0]
    chosen = torch.cat([answers[: len(hard)], top, some])
    stands_for = torch.ones(len(chosen))
    stands_for[len(hard) + len(top) :] = len(rest) / max(len(some), 1)
    is_hard = torch.arange(len(chosen)) < len(hard)
    return _Candidates(features[chosen], torch.zeros(len(chosen), dtype=torch.int64), is_hard, stands_for)


def _joined(parts: list[_Candidates]) -> _Candidates:
    """With queries numbered in turn."""
    sizes = torch.tensor([len(part.query) for part in parts])
    return _Candidates(
        torch.cat([part.features for part in parts]).double(),
        torch.repeat_interleave(torch.arange(len(parts)), sizes),
        torch.cat([part.hard for part in parts]),
        torch.cat([part.stands_for for part in parts]).double(),
    )


def _fitted(some: _Candidates) -> FamilyFit:
    alone = torch.eye(len(FEATURES), dtype=torch.float64)
    found = {name: _mrr(some, alone[number]) for number, name in enumerate(FEATURES[:2])}
    part = alone[max(range(2), key=lambda number: found[FEATURES[number]])]
    queries = int(some.query[-1]) + 1
    weights, mrr = part, max(found.values())
    if queries > 1 and (share := _share(some, part)):
        joint = part.lerp(_of_least_loss(some, part), share)
        if (reached := _mrr(some, joint)) > mrr:
            weights, mrr = joint, reached
    return FamilyFit(tuple(weights.tolist()), queries, mrr, found)


def _share(some: _Candidates, part: Tensor) -> float:
    """λ, of two queries or more."""
    halves = [some.every_second(first) for first in (0, 1)]
    fits = [_of_least_loss(half, part) for half in halves]
    sizes = [int(half.query[-1]) + 1 for half in halves]

    def mrr_of_unseen(share: float) -> float:
        found = [_mrr(half, part.lerp(fit, share)) for half, fit in zip(halves, reversed(fits), strict=True)]
        return float(np.average(found, weights=sizes))

    return max(_SHARES, key=mrr_of_unseen)


def _of_least_loss(some: _Candidates, start: Tensor) -> Tensor:
    def loss_and_slope(values: Floats) -> tuple[float, Floats]:
        weights = torch.tensor(values, requires_grad=True)
        loss = _loss(some, weights) + _PENALTY * weights.square().sum()
        (slope,) = torch.autograd.grad(loss, [weights])
        return float(loss.detach()), slope.numpy()

    return torch.from_numpy(minimize(loss_and_slope, start.numpy(), jac=True, method="L-BFGS-B").x)


def _loss(some: _Candidates, weights: Tensor) -> Tensor:
    """The mean over queries of the mean over their hard answers."""
    scores = some.features @ weights
    queries = int(some.query[-1]) + 1
    highest = torch.full((queries,), -torch.inf, dtype=scores.dtype).scatter_reduce(
        0, some.query, scores.detach(), "amax"
    )
    weighted = torch.where(some.hard, 0.0, some.stands_for * (scores - highest[some.query]).exp())
    against = torch.zeros(queries, dtype=scores.dtype).index_add(0, some.query, weighted)
    own = some.query[some.hard]
    shifted = scores[some.hard] - highest[own]
    losses = torch.log(shifted.exp() + against[own]) - shifted
    counts = torch.bincount(own, minlength=queries)
    return (losses / counts[own]).sum() / queries


def _mrr(some: _Candidates, weights: Tensor) -> float:
    """In percent: the mean over queries, those of one query over its hard answers; ties count half."""
    scores = some.features @ weights
    total = 0.0
    bounds = torch.searchsorted(some.query, torch.arange(int(some.query[-1]) + 2)).tolist()
    for first, after in pairwise(bounds):
        own, hard, stands_for = scores[first:after], some.hard[first:after], some.stands_for[first:after]
        others, counts = own[~hard], stands_for[~hard]
        above = (others > own[hard][:, None]) + 0.5 * (others == own[hard][:, None])
        total += float((1 / (1 + (above * counts).sum(1))).mean())
    return 100 * total / max(len(bounds) - 1, 1)
