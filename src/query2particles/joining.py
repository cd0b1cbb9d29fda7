"""How a joint reasoner (`methods/joint`) searches and weighs, fitted to validation queries.

First the search is settled, for all queries the same: which of a few ways has the best mean MRR by itself. How sharp
links are is tried out on some queries; the best few, each with both ways to count what leads to an answer, are compared
on more, and then what walks are to say in the best of these. Then every family of queries gets weights of its own. How
many queries say all this depends on the device, and on a CPU on the size of the graph (`Effort`).

Of every query, its hard answers compete with the entities that are no answers: those that the vectors or the search
rank highest, and a random few that stand for all others. A family's weights w minimise

    mean over hard answers a of  log (exp s(a) + Σ_v c(v) exp s(v)) − s(a)          s = w · x

with c(v) = 1 for the highest, and the number that each of the random ones stands for. A small loss is not yet a good
rank: how far to go to these weights w, from w₀ of the best part alone, is decided by the MRR of w₀ + λ (w − w₀) on each
half of the queries with w fitted to the other half. Where nothing ranks better than the best part alone, that is taken:
no family is worse off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

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
from query2particles.engine.sets import Sets
from query2particles.errors import WorkloadError
from query2particles.evaluate import evaluate
from query2particles.graph.edges import Ints
from query2particles.methods.joint import ALONE, FAMILIES, FEATURES, Joint
from query2particles.methods.tree import WAYS, Tree, Way
from query2particles.query.algebra import Query
from query2particles.workload.labels import Labelled, Labels

__all__ = ["Effort", "FamilyFit", "Search", "fit_search", "fit_weights", "queries_asked", "seconds_per_search"]

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
_WALKS = (0.03, 0.1, 0.25, 0.5)
_NEG_SCALES = (3.0,)
_LEFT = 3
"""So many values of sharpness are compared."""

_ASKED_ON_A_CPU = 350 * 25_000
"""How many queries of each shape, times entities, a CPU of two cores searches in about a minute."""


class Search(NamedTuple):
    """What of `methods/tree` is settled."""

    sharpness: float
    several: Way
    walks: float = 0.0
    neg_scale: float = 1.0

    @property
    def settings(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._asdict().items()]


class Effort(NamedTuple):
    """How many queries of each shape are asked, at most."""

    tried: int
    """Which say how sharp links should be."""
    deciding: int
    """Which say what is taken of the searches that are left."""
    weighed: int
    """Which the weights are fitted to."""

    @staticmethod
    def on(device: torch.device | str, entities: int) -> Effort:
        """What takes about a minute on a CPU of two cores, whatever the size of the graph; more on a GPU."""
        if torch.device(device).type == "cuda":
            return _ON_A_GPU
        return Effort.within(_ASKED_ON_A_CPU / entities)

    @staticmethod
    def within(searches: float) -> Effort:
        """What takes as long as so many searches for one query of each shape, but no less than a few of them."""
        passes = len(_SHARPNESS) + 2 * (len(WAYS) * _LEFT + len(_WALKS) + len(_NEG_SCALES)) + 6 * _SEARCHES_PER_WEIGHED
        tried = max(int(searches / passes), _FEWEST)
        return Effort(*map(min, (tried, 2 * tried, 6 * tried), _ON_A_GPU))


_ON_A_GPU = Effort(100, 300, 1_000_000)
_FEWEST = 3
_SEARCHES_PER_WEIGHED = 1.5
"""Features are those of both ways, and of the vectors."""


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


def queries_asked(batch: Batch, effort: Effort) -> int:
    """How many `fit_search` and `fit_weights` ask together."""
    again = len(WAYS) if _more_than_tried(batch, effort) else len(WAYS) - 1  # else what was tried stays as it is
    return sum(
        min(len(ids), effort.weighed)
        + len(_SHARPNESS) * min(len(ids), effort.tried)
        + (again * _LEFT + len(_WALKS) + len(_NEG_SCALES)) * min(len(ids), effort.deciding)
        for ids in batch.values()
    )


def seconds_per_search(tree: Tree, batch: Batch, labels: Mapping[Query, Labels]) -> float:
    """How long the search takes here for one query of each shape, by the first few of each."""
    some = _first_of(batch, labels, _FEWEST)
    evaluate(tree, *_first_of(batch, labels, 1))  # what only the first call does is not counted
    begin = time.perf_counter()
    evaluate(tree, *some)
    return (time.perf_counter() - begin) / max(map(len, some[0].values()))


def _first_of(batch: Batch, labels: Mapping[Query, Labels], most: int) -> Labelled:
    """The first queries of each shape."""
    some = {shape: ids[:most] for shape, ids in batch.items()}
    return some, {shape: labels[shape].take(np.arange(len(ids))) for shape, ids in some.items()}


def fit_search(
    tree: Tree,
    batch: Batch,
    labels: Mapping[Query, Labels],
    effort: Effort,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Search, dict[Search, float]]:
    """The search that suits these queries, which the tree then has, and the mean MRR of each that was compared."""

    def mrr(search: Search, some: Labelled) -> float:
        tree.settings = replace(tree.settings, **search._asdict())
        return evaluate(tree, *some, progress=progress).average("all").get("mrr", 0.0)

    few, more = (_first_of(batch, labels, most) for most in (effort.tried, effort.deciding))
    tried = {Search(sharpness, "any"): mrr(Search(sharpness, "any"), few) for sharpness in _SHARPNESS}
    left = sorted(tried, key=lambda search: -tried[search])[:_LEFT]
    found = {} if _more_than_tried(batch, effort) else {search: tried[search] for search in left}
    for search in (one._replace(several=way) for one in left for way in WAYS):
        if search not in found:
            found[search] = mrr(search, more)
    best = max(found, key=lambda search: found[search])
    found |= {search: mrr(search, more) for search in (best._replace(walks=share) for share in _WALKS)}
    best = max(found, key=lambda search: found[search])
    found |= {search: mrr(search, more) for search in (best._replace(neg_scale=scale) for scale in _NEG_SCALES)}
    chosen = max(found, key=lambda search: found[search])
    tree.settings = replace(tree.settings, **chosen._asdict())
    return chosen, found


def _more_than_tried(batch: Batch, effort: Effort) -> bool:
    return any(len(ids) > effort.tried for ids in batch.values())


def fit_weights(
    model: Joint,
    batch: Batch,
    labels: Mapping[Query, Labels],
    effort: Effort,
    *,
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Tensor, dict[int, FamilyFit]]:
    """The weights (families, features) that suit these queries, and how each family came out.

    Shapes with operators that a part lacks are left out. Families that no query belongs to take the weights that suit
    all queries together; one with a single query takes the part that ranks it better.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, labels = _first_of(batch, labels, effort.weighed)
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
        fits = {family: _fitted(_together(parts)) for family, parts in sorted(found.items())}
        of_all = _fitted(_together([one for parts in found.values() for one in parts]))
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
    """Those of some queries at a time, with their family, which all queries of a shape have in common."""
    plan = compile_shapes((shape,), model.kind)
    for start in range(0, len(ids), _CHUNK):
        stop = min(start + _CHUNK, len(ids))
        (state,) = execute(plan, model, [ids_for(model, ids[start:stop])])
        easy, hard = (sets.rows(start, stop) for sets in (labels.easy, labels.hard))
        some = _compared(torch.stack(model.features(state)), easy, hard, generator)
        if len(some.query):
            yield int(state.family[0]), some
        progress(stop - start)


def _compared(features: Tensor, easy: Sets, hard: Sets, generator: torch.Generator) -> _Candidates:
    """From features (features, n, N): hard answers, and what they compete with, of those of n queries that have any."""
    is_hard = _flags(hard, features.device)
    counts = is_hard.any(1)
    others = counts[:, None] & ~is_hard & ~_flags(easy, features.device)
    highest = torch.zeros_like(others)
    for scores in features[: len(ALONE)]:
        highest |= _first(scores, others, _TOP)
    rest = others & ~highest
    lots = torch.rand(rest.shape, generator=generator).to(rest.device)
    some = _first(lots, rest, _RANDOM)
    query, entity = (is_hard | highest | some).nonzero(as_tuple=True)
    each = rest.sum(1) / some.sum(1)  # of the random ones stands for so many
    stands_for = torch.where(some[query, entity], each[query], 1.0)
    columns = (features[:, query, entity].T, (counts.cumsum(0) - 1)[query], is_hard[query, entity])
    return _Candidates(*(column.cpu() for column in (*columns, stands_for)))


def _flags(sets: Sets, device: torch.device) -> Tensor:
    """Which entities are members, (n, N)."""
    listed = torch.from_numpy(sets.matrix().toarray()).to(device)
    return ~listed if sets.complemented else listed


def _first(scores: Tensor, among: Tensor, most: int) -> Tensor:
    """Of each row, the entities of highest scores among some, (n, N), or all of these where there are no more."""
    best = scores.masked_fill(~among, -torch.inf).topk(min(most, scores.shape[1])).indices
    return torch.zeros_like(among).scatter(1, best, value=True) & among


def _together(parts: list[_Candidates]) -> _Candidates:
    """With queries numbered in turn."""
    counts = torch.tensor([int(part.query[-1]) + 1 for part in parts])
    starts = (counts.cumsum(0) - counts).tolist()
    return _Candidates(
        torch.cat([part.features for part in parts]).double(),
        torch.cat([part.query + start for part, start in zip(parts, starts, strict=True)]),
        torch.cat([part.hard for part in parts]),
        torch.cat([part.stands_for for part in parts]).double(),
    )


def _fitted(some: _Candidates) -> FamilyFit:
    alone = torch.eye(len(FEATURES), dtype=torch.float64)
    found = {name: _mrr(some, alone[number]) for number, name in enumerate(ALONE)}
    part = alone[max(range(len(ALONE)), key=lambda number: found[ALONE[number]])]
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
    scores, query, hard = (column.numpy() for column in (some.features @ weights, some.query, some.hard))
    order = np.lexsort((scores, query))
    scores, query, hard = scores[order], query[order], hard[order]
    count = np.where(hard, 0.0, some.stands_for.numpy()[order])
    differs = (np.diff(scores, prepend=np.nan) != 0) | (np.diff(query, prepend=-1) != 0)
    tie, first = np.cumsum(differs) - 1, np.flatnonzero(differs)
    equal = np.add.reduceat(count, first)
    up_to = equal.cumsum()
    whole = up_to[tie[np.append(np.flatnonzero(np.diff(query)), len(query) - 1)]]  # (queries,) with all before
    rank = 1 + (whole[query] - up_to[tie] + equal[tie] / 2)[hard]
    answers = np.bincount(query[hard])
    return float(100 * np.mean(np.bincount(query[hard], 1 / rank) / answers))
