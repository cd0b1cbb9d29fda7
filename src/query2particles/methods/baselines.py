"""Two methods that learn nothing: what a learned one has to beat.

Both read the stored edges alone. `FrequentTails` does not look at the question beyond its last relations,
`RelaxAndCount` looks at all of it and forgives what no stored edge supports.

Notation: n_r(v) is the number of stored edges of relation r that end at v, n_r = Σᵥ n_r(v) all edges of r,
n(v) = Σᵣ n_r(v) all that end at v, n = Σᵣ n_r all edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.engine.method import Method
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union

__all__ = ["BASELINES", "FrequentTails", "RelaxAndCount", "Relaxed", "baselines"]

Floats: TypeAlias = npt.NDArray[np.float32]
Counts: TypeAlias = npt.NDArray[np.int16]
Rows = TypeVar("Rows", Floats, Counts)

_BACKGROUND = 1e-3
"""λ: enough to order the entities that a relation never reaches, too little to change the order of those it does."""

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class _Baseline:
    """What both have in common: the edges of one level of a graph, all five operators, one kind of state."""

    edges: Edges
    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Union, Complement))

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """Every state is one dense row of numbers, so any two can be stacked."""
        del operator, below
        return None


class FrequentTails(_Baseline):
    """Entities ranked by how often they are a tail of the relation that leads to them.

    A state x is how likely each entity is, (n, N). Whatever came before a relation, what comes after it is its tails:

        anchor e         x(v) = (1 − λ) [v = e]        + λ n(v) / n
        projection by r  x(v) = (1 − λ) n_r(v) / n_r   + λ n(v) / n
        intersection     x(v) = Πᵢ xᵢ(v)
        union            x(v) = maxᵢ xᵢ(v)
        complement       x(v) = 1 − x₁(v) / max_w x₁(w)

    The second summand, with a small λ, orders by their number of edges the entities that r never reaches, and keeps
    one branch of an intersection from making all entities equal that it lacks. Shares of many tails are all small, so
    that 1 − x would not tell them apart: the complement measures them by the largest.
    """

    def anchor(self, entities: Any) -> Floats:
        ids = _array(entities)
        state = np.tile(self._background, (len(ids), 1))
        state[np.arange(len(ids)), ids] += 1 - _BACKGROUND
        return state

    def project(self, state: Floats, relations: Any, *, hop: int = 0) -> Floats:
        del state, hop
        found: Floats = self._shares[_array(relations)].toarray()
        found += self._background
        return found

    def intersect(self, branches: Sequence[Floats]) -> Floats:
        return reduce(np.multiply, branches)

    def union(self, branches: Sequence[Floats]) -> Floats:
        return reduce(np.maximum, branches)

    def complement(self, state: Floats) -> Floats:
        largest: Floats = np.maximum(state.max(axis=1, keepdims=True), _TINY)
        return 1 - state / largest

    def score(self, state: Floats, entities: Any = None) -> Floats:
        return _chosen(state, entities)

    def stack(self, states: Sequence[Floats]) -> Floats:
        return np.concatenate(states)

    def split(self, state: Floats, sizes: Sequence[int]) -> list[Floats]:
        return _parts(state, sizes)

    @cached_property
    def _background(self) -> Floats:
        """(N,): λ n(v) / n."""
        ends = np.bincount(self.edges.tails, minlength=self.edges.entities)
        return (_BACKGROUND / len(self.edges) * ends).astype(np.float32)

    @cached_property
    def _shares(self) -> sparse.csr_array:
        """(relations, N): (1 − λ) n_r(v) / n_r. As inverses are stored, n_r(v) edges of r's inverse leave v."""
        entities, inverses = np.divmod(self.edges.keys, self.edges.relations)
        relations = inverses ^ 1
        shares = (1 - _BACKGROUND) * self.edges.row_lengths[:-1] / self.edges.edges_by_relation[relations]
        shape = (self.edges.relations, self.edges.entities)
        return sparse.csr_array((shares.astype(np.float32), (relations, entities)), shape=shape)


@dataclass(frozen=True)
class Relaxed:
    """The state of `RelaxAndCount`: of how many conditions each entity misses how many, and how likely it is."""

    missing: Counts  # m, (n, N)
    conditions: Counts  # c, (n, 1)
    likelihood: Floats  # x, (n, N)

    @staticmethod
    def of(missing: Counts, conditions: Counts, likelihood: Floats) -> Relaxed:
        """With x = 1 where nothing is missing: what is certain leaves the order to what is not."""
        return Relaxed(missing, conditions, np.where(missing == 0, np.float32(1), likelihood))


class RelaxAndCount(_Baseline):
    """Entities ranked by how many conditions of the query stored edges satisfy.

    Every anchor and every hop is a condition. Of the c conditions of a query, an entity v misses m(v):

        anchor e         m(v) = [v ≠ e]                                  c = 1
        projection by r  m(v) = min { m₁(h) : (h, r, v) is stored },     c = c₁ + 1
                                c₁ + 1 if there is no such edge
        intersection     m(v) = Σᵢ mᵢ(v)                                 c = Σᵢ cᵢ
        union            m(v) = minᵢ mᵢ(v)                               c = minᵢ cᵢ
        complement       m(v) = c₁ if m₁(v) = 0, else 0                  c = c₁

    So m(v) = 0 just for the exact answers, of any query; a chain whose last hop alone can be made from somewhere
    satisfies one condition, its last two hops two, and so on to the anchor. The score is the number of conditions that
    v satisfies; among equals `FrequentTails` decides. Its state x goes along, with x(v) = 1 wherever m(v) = 0, so that
    in an intersection the branches that v fails are what its likelihood depends on:

        score(v) = c − m(v) + ½ (1 − ln x(v) / ln tiny)

    where tiny is the smallest float32: the logarithm brings differences between small likelihoods to a scale that
    survives being added to a count.
    """

    def anchor(self, entities: Any) -> Relaxed:
        ids = _array(entities)
        missing = np.ones((len(ids), self.edges.entities), dtype=np.int16)
        missing[np.arange(len(ids)), ids] = 0
        return Relaxed.of(missing, np.ones((len(ids), 1), dtype=np.int16), self._frequent_tails.anchor(ids))

    def project(self, state: Relaxed, relations: Any, *, hop: int = 0) -> Relaxed:
        ids = _array(relations)
        conditions = state.conditions + np.int16(1)
        missing = np.repeat(conditions, self.edges.entities, axis=1)
        for row, relation in enumerate(ids.tolist()):
            targets, sources, starts = self._incoming[relation]
            if len(targets):
                missing[row, targets] = np.minimum.reduceat(state.missing[row].take(sources), starts)
        return Relaxed.of(missing, conditions, self._frequent_tails.project(state.likelihood, ids, hop=hop))

    def intersect(self, branches: Sequence[Relaxed]) -> Relaxed:
        return Relaxed.of(
            reduce(np.add, [branch.missing for branch in branches]),
            reduce(np.add, [branch.conditions for branch in branches]),
            self._frequent_tails.intersect([branch.likelihood for branch in branches]),
        )

    def union(self, branches: Sequence[Relaxed]) -> Relaxed:
        return Relaxed.of(
            reduce(np.minimum, [branch.missing for branch in branches]),
            reduce(np.minimum, [branch.conditions for branch in branches]),
            self._frequent_tails.union([branch.likelihood for branch in branches]),
        )

    def complement(self, state: Relaxed) -> Relaxed:
        missing = (state.missing == 0) * state.conditions
        return Relaxed.of(missing, state.conditions, self._frequent_tails.complement(state.likelihood))

    def score(self, state: Relaxed, entities: Any = None) -> Floats:
        scores = np.log(np.clip(state.likelihood, _TINY, 1))
        scores *= -0.5 / math.log(_TINY)
        scores += 0.5
        scores += state.conditions - state.missing
        return _chosen(scores, entities)

    def stack(self, states: Sequence[Relaxed]) -> Relaxed:
        return Relaxed(
            np.concatenate([state.missing for state in states]),
            np.concatenate([state.conditions for state in states]),
            self._frequent_tails.stack([state.likelihood for state in states]),
        )

    def split(self, state: Relaxed, sizes: Sequence[int]) -> list[Relaxed]:
        missing, conditions = _parts(state.missing, sizes), _parts(state.conditions, sizes)
        return list(map(Relaxed, missing, conditions, self._frequent_tails.split(state.likelihood, sizes)))

    @cached_property
    def _frequent_tails(self) -> FrequentTails:
        return FrequentTails(self.edges)

    @cached_property
    def _incoming(self) -> Sequence[tuple[Ints, Ints, Ints]]:
        """For each relation its tails, ascending, and the sources of each: `sources[starts[i]:starts[i + 1]]`.

        As inverses are stored, the sources of a tail under r are what r's inverse leads to.
        """
        targets, inverses = np.divmod(self.edges.keys, self.edges.relations)
        order = np.argsort(inverses ^ 1, kind="stable")
        sources = self.edges.matrix[order]
        bounds = np.searchsorted((inverses ^ 1)[order], np.arange(self.edges.relations + 1))
        return [
            (
                targets[order[first:after]],
                sources.indices[sources.indptr[first] : sources.indptr[after]],
                sources.indptr[first:after] - sources.indptr[first],
            )
            for first, after in pairwise(bounds.tolist())
        ]


BASELINES: Mapping[str, Callable[[Edges], Method[Any]]] = {
    "frequent-tails": FrequentTails,
    "relax-and-count": RelaxAndCount,
}
"""By name, as commands call them."""


def baselines(edges: Edges) -> dict[str, Method[Any]]:
    """All of them, on the facts that a model knows."""
    return {name: kind(edges) for name, kind in BASELINES.items()}


def _array(ids: Any) -> Ints:
    """Ids as numpy holds them: they may come as a torch tensor, on any device."""
    found: Ints = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    return found


def _parts(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    return np.split(rows, np.cumsum(sizes[:-1]))


def _chosen(scores: Floats, entities: Any) -> Floats:
    """(n, N) scores of all entities, or of those given, (m,) or (n, m)."""
    if entities is None:
        return scores
    ids = _array(entities)
    return np.take_along_axis(scores, np.broadcast_to(ids, (len(scores), ids.shape[-1])), axis=1)
