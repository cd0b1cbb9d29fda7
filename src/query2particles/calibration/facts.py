"""What tells whether a fact (h, r, t) that is not stored is true: named features, the same wherever a fact is judged.

A fact is seen from both ends, as it is stored: its tail among the tails of r, its head among the heads. For each part
of a model that scores single facts (`scorers`) with a score s,

    share = s(t) − log Σ_u exp s(u)          u: the tails of r, or a fixed sample that stands for them; and t

so nothing depends on all entities, and thousands of facts are judged in a second. Beside the scores: how many tails
such a head is short of (`rates`), the kinds of both (`graph/kinds`), how often either has the relation, and whether
walks along stored facts lead from one to the other (`methods/walks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from query2particles.calibration.rates import Rates
from query2particles.engine.method import Method
from query2particles.engine.ranks import ids_for
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.methods.stored import StoredTails
from query2particles.methods.walks import fit_walks

__all__ = ["FactFeatures", "scorers"]

Floats: TypeAlias = npt.NDArray[np.float64]

_SAMPLE = 256
"""So many tails stand for all tails of a relation."""

_AT_ONCE = 4096
"""Facts of one relation that are scored together."""

_DENSE = 16
"""Where so many times as many pairs of heads and tails exist as are asked for, or fewer, all are scored."""

_NO_WALK = 1e-5
"""In place of the chance of a walk where none leads to the other end."""

_STRUCTURE = (
    *("room for a tail", "room for a head", "kind of the tail", "kind of the head", "usual tail", "usual head"),
    *("frequent tail", "frequent head", "first tail", "first head", "facts of the relation"),
)
_WALKS = ("walks to the tail", "walks to the head")


def scorers(model: Method[Any]) -> Mapping[str, Method[Any]]:
    """What scores single facts, by name: the parts that a method names as its `scorers`, or the method itself."""
    return getattr(model, "scorers", None) or {"score": model}


class FactFeatures:
    """For one model, over the edges of one level; `rates` are what was learned about missing tails."""

    def __init__(self, model: Method[Any], edges: Edges, kinds: Kinds, rates: Rates) -> None:
        self.edges, self.kinds, self.rates = edges, kinds, rates
        self.scorers = scorers(model)
        self._tails = lru_cache(4096)(self._sampled_tails)

    @staticmethod
    def names_for(model: Method[Any]) -> tuple[str, ...]:
        """Of the features, in their order."""
        scores = [f"{name}: {end}" for name in scorers(model) for end in ("tail", "head")]
        return (*scores, *_WALKS, *_STRUCTURE)

    @staticmethod
    def rising_for(model: Method[Any]) -> tuple[bool, ...]:
        """Which of them never make a fact less likely: those that say how well its ends go together."""
        return (True,) * (2 * len(scorers(model)) + len(_WALKS)) + (False,) * len(_STRUCTURE)

    def prepare(self) -> None:
        """Fit walks now rather than when the first fact is judged."""
        _ = self._walker, self.kinds.threshold

    def __call__(self, heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """(m, features) of facts with directed relations (m,); call it in `scoring`."""
        inverse = relations % 2 == 1
        h, t = (np.where(inverse, *ends).astype(np.int64) for ends in ((tails, heads), (heads, tails)))
        r = (relations & ~1).astype(np.int64)
        columns: list[Floats] = []
        for scorer in self.scorers.values():
            columns += [self._shares(scorer, h, r, t), self._shares(scorer, t, r ^ 1, h)]
        columns += [self._walks(h, r, t), self._walks(t, r ^ 1, h)]
        (count_h, room_t, kind_h, usual_h), (count_t, room_h, kind_t, usual_t) = self._end(h, r), self._end(t, r ^ 1)
        size = np.log1p(self.edges.edges_by_relation[r])
        columns += [
            room_t,
            room_h,
            kind_t,
            kind_h,
            usual_t,
            usual_h,
            np.log(count_t + 0.5) - size,
            np.log(count_h + 0.5) - size,
        ]
        columns += [(count_h == 0).astype(np.float64), (count_t == 0).astype(np.float64), size]
        return np.stack(columns, axis=1)

    def shares_between(self, heads: Ints, relation: int, tails: Ints) -> Floats:
        """(heads, tails): the share of every tail for every head, by the last of the scorers."""
        scorer = list(self.scorers.values())[-1]
        state = self._projected(scorer, heads, relation)
        scores = _numbers(scorer.score(state, ids_for(scorer, tails)))
        return scores - np.logaddexp(self._totals(scorer, state, relation)[:, None], scores)

    def _end(self, entities: Ints, roles: Ints) -> tuple[Ints, Floats, Floats, Floats]:
        """Of one end of each fact: its facts of the relation; and as logarithms how many it is short of, its lift where
        it has none, and how many facts it has in relation to what is usual for such an entity.
        """
        each, which = np.unique(entities * self.edges.relations + roles, return_inverse=True)
        entity, role = np.divmod(each, self.edges.relations)
        counts = self.edges.lengths_of(entity, role)
        lift = self.kinds.log_lift(entity, role)
        lift[counts > 0] = 0.0  # who has the relation is of the right kind
        usual = np.log((counts + 0.5) / (self.kinds.usual(entity, role) + 0.5))
        return counts[which], np.log(self.rates(role, counts))[which], lift[which], usual[which]

    def _shares(self, scorer: Method[Any], heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """The share of each tail, (m,)."""
        found = np.empty(len(heads))
        for own in _alike(relations):
            relation = int(relations[own[0]])
            sources, source = np.unique(heads[own], return_inverse=True)
            ends, end = np.unique(tails[own], return_inverse=True)
            state = self._projected(scorer, sources, relation)
            if len(sources) * len(ends) <= _DENSE * len(own):  # most pairs of these are asked for
                scores = _numbers(scorer.score(state, ids_for(scorer, ends)))[source, end]
            else:
                each = self._projected(scorer, sources[source], relation)
                scores = _numbers(scorer.score(each, ids_for(scorer, tails[own][:, None]))).ravel()
            found[own] = scores - np.logaddexp(self._totals(scorer, state, relation)[source], scores)
        return found

    def _totals(self, scorer: Method[Any], state: Any, relation: int) -> Floats:
        """Of n states (n,): log Σ_u exp s(u) over the tails of a relation; −∞ where it has none."""
        others, stand_for = self._tails(relation)
        scores = _numbers(scorer.score(state, ids_for(scorer, others if len(others) else np.zeros(1, dtype=np.int64))))
        if not len(others):
            return np.full(len(scores), -np.inf)
        total: Floats = np.logaddexp.reduce(scores, axis=1) + stand_for
        return total

    def _projected(self, scorer: Method[Any], heads: Ints, relation: int) -> Any:
        relations = ids_for(scorer, np.full(len(heads), relation))
        return scorer.project(scorer.anchor(ids_for(scorer, heads)), relations, hop=0)

    def _sampled_tails(self, relation: int) -> tuple[Ints, float]:
        """Tails of a relation, and the logarithm of how many each stands for."""
        tails = self.edges.heads_of(relation ^ 1).astype(np.int64)
        if len(tails) <= _SAMPLE:
            return tails, 0.0
        some = np.random.default_rng(relation).choice(tails, _SAMPLE, replace=False)
        return np.sort(some), float(np.log(len(tails) / _SAMPLE))

    def _walks(self, heads: Ints, relations: Ints, tails: Ints) -> Floats:
        """The logarithm of the chance that walks from each head end at its tail."""
        found = np.full(len(heads), _NO_WALK)
        if self._walker is None:
            return np.asarray(np.log(found))
        walks, stored = self._walker
        for start in range(0, len(heads), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            pairs, which = np.unique(np.stack([heads[some], relations[some]], axis=1), axis=0, return_inverse=True)
            ends = walks.of(stored, torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1]), 0.5)
            places = ends.pairs.numpy() * self.edges.entities + ends.tails.numpy()  # ascending
            wanted = which.ravel() * self.edges.entities + tails[some]
            at = np.minimum(np.searchsorted(places, wanted), max(len(places) - 1, 0))
            if len(places):
                there = places[at] == wanted
                found[some][there] += np.exp(ends.chances.numpy()[at[there]])
        return np.asarray(np.log(found))

    @cached_property
    def _walker(self) -> tuple[Any, StoredTails] | None:
        """Paths of every relation and the edges to follow; None of a graph too large for tables of its edges."""
        if self.edges.large:
            return None
        return fit_walks(self.edges), StoredTails(self.edges)


def _alike(relations: Ints) -> Iterator[Ints]:
    """The places of facts of one relation, at most `_AT_ONCE` together."""
    order = np.argsort(relations, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(relations[order])) + 1).tolist(), len(order)]
    for first, after in pairwise(bounds):
        for start in range(first, after, _AT_ONCE):
            yield order[start : min(start + _AT_ONCE, after)]


def _numbers(scores: Any) -> Floats:
    """Scores of a method, which may be torch's or numpy's."""
    found: Floats = torch.as_tensor(scores).double().cpu().numpy()
    return found
