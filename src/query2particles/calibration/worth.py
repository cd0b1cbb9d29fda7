"""What single facts say about an answer of a longer question: the chance that some way of them leads to it.

    anchor        W(v) = [v = e]
    projection    W(v) = 1 where stored facts lead to v, else  1 − Π_u (1 − p(u, r, v)) Π_w (1 − W₁(w))
    intersection  W(v) = Π W_i(v)          union  1 − Π (1 − W_i(v))          complement  1 − W₁(v)

u are the known sources from which a missing fact may lead to v, the few that a model finds likeliest, and p is the
probability of that fact, as it is wherever the fact is shown; w are the sources that stored facts lead to v from, which
may be missing themselves. It looks no further than one missing fact at each of the last two hops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.calibration.facts import FactFeatures
from query2particles.engine.plan import Node
from query2particles.engine.sets import Sets
from query2particles.graph.edges import Ints
from query2particles.query.algebra import Anchor, Complement, Intersect, Project

__all__ = ["Facts", "Worth"]

Floats: TypeAlias = npt.NDArray[np.float64]
Facts: TypeAlias = Callable[[Ints, Ints, Ints], Floats]
"""The probabilities of facts (m,)."""

_SOURCES = 4
"""So many sources of a missing fact are judged, and so many stored ones looked at."""

_LISTED = 256
"""Of a larger set of sources, as many are compared."""


class Worth:
    """Of n questions of one shape, with the exact answers of all its parts."""

    def __init__(
        self, plan: Sequence[Node], ids: Ints, nodes: Sequence[Sets], features: FactFeatures, facts: Facts
    ) -> None:
        self.plan, self.ids, self.nodes, self.features, self.facts = plan, ids, nodes, features, facts

    def __call__(self, entities: Ints) -> Floats:
        """W(v) of entities (n, k)."""
        return self._of(len(self.plan) - 1, entities, deeper=True)

    def _of(self, number: int, entities: Ints, *, deeper: bool) -> Floats:
        node = self.plan[number]
        if node.operator is Anchor:
            return np.where(self.ids[:, node.position][:, None] == entities, 1.0, 0.0)
        if node.operator is Project:
            return self._projected(number, entities, deeper=deeper)
        below = [self._of(branch, entities, deeper=deeper) for branch in node.below]
        if node.operator is Complement:
            return 1 - below[0]
        if node.operator is Intersect:
            return reduce(np.multiply, below)
        return 1 - reduce(np.multiply, [1 - one for one in below])

    def _projected(self, number: int, entities: Ints, *, deeper: bool) -> Floats:
        node = self.plan[number]
        missed = np.ones(entities.shape)  # that no way leads there
        rows, places, sources = self._promising(node, entities)
        if len(rows):
            likely = self.facts(sources, self.ids[rows, node.position], entities[rows, places])
            np.multiply.at(missed, (rows, places), 1 - likely)
        if deeper and self.plan[node.below[0]].operator is not Anchor:
            stored, there = self._stored_sources(node, entities)
            within = self._of(node.below[0], stored.reshape(len(entities), -1), deeper=False)
            missed *= np.where(there, 1 - within.reshape(stored.shape), 1.0).prod(axis=2)
        return np.where(self.nodes[number].contain(entities), 1.0, 1 - missed)

    def _promising(self, node: Node, entities: Ints) -> tuple[Ints, Ints, Ints]:
        """Facts that may be missing: of which question and which entity each is, and its source."""
        known = self.nodes[node.below[0]]
        none: Ints = np.zeros(0, dtype=np.int64)
        found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
        for row in range(len(entities)):
            members = known.values[known.offsets[row] : known.offsets[row + 1]]
            if known.complemented or not len(members):
                continue
            if len(members) > _LISTED:
                members = members[np.linspace(0, len(members) - 1, _LISTED).astype(np.int64)]
            members = members.astype(np.int64)
            if len(members) > _SOURCES:
                shares = self.features.shares_between(members, int(self.ids[row, node.position]), entities[row])
                best = np.argpartition(-shares, _SOURCES - 1, axis=0)[:_SOURCES]
            else:
                best = np.broadcast_to(np.arange(len(members))[:, None], (len(members), entities.shape[1]))
            places = np.broadcast_to(np.arange(entities.shape[1]), best.shape)
            found.append((np.full(best.size, row), places.ravel(), members[best].ravel()))
        rows, places, sources = (np.concatenate(column) for column in zip(*found, strict=True))
        return rows, places, sources

    def _stored_sources(self, node: Node, entities: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """(n, k, sources): entities that stored facts lead to each of (n, k) from, and whether there are so many."""
        edges, flat = self.features.edges, entities.ravel()
        rows = edges.rows_of(flat, np.repeat(self.ids[:, node.position] ^ 1, entities.shape[1]))
        there = np.arange(_SOURCES) < edges.lengths_at(rows)[:, None]
        first = edges.offsets[np.minimum(rows, edges.no_row)].astype(np.int64)
        places = np.minimum(first[:, None] + np.arange(_SOURCES), len(edges.tails) - 1)
        stored = np.where(there, edges.tails[places], 0).astype(np.int64)
        return stored.reshape(*entities.shape, _SOURCES), there.reshape(*entities.shape, _SOURCES)
