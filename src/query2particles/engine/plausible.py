"""What can answer a question at all, as far as stored facts tell: no echo of the question, and the right kinds.

Two rules, both about facts that are not stored:

- An entity does not lead to itself along a relation that leads nobody to itself. So the entity that a one-hop question
  starts from is no guess. Inside longer questions logic says the same: what one branch of an intersection rules out,
  the intersection does; a union, what all its branches rule out; a longer hop or a complement, nothing.
- A tail of a relation is of a kind that the relation has (`graph/kinds`). An intersection asks that of all its
  branches, a union of any, a complement of nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Batch
from query2particles.engine.sets import Sets, intersection, union
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union

__all__ = ["Plausible"]

Flags: TypeAlias = npt.NDArray[np.bool_]

_REMEMBERED_BYTES = 1 << 28
"""What the kinds of all entities for some relations may take."""


@dataclass(frozen=True, eq=False)
class Plausible:
    """By the edges of one level of a graph."""

    edges: Edges

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self.edges)

    def echoes(self, batch: Batch) -> dict[Query, Sets]:
        """Of each query, the entities of its own that cannot answer it."""
        return {shape: self._echoes(shape, ids) for shape, ids in batch.items()}

    def _echoes(self, shape: Query, ids: Ints) -> Sets:
        match shape:
            case Project(Anchor(anchor), position):
                rows = np.flatnonzero(~self.edges.loops[ids[:, position]])
                offsets = np.searchsorted(rows, np.arange(len(ids) + 1))
                return Sets(self.edges.entities, offsets, ids[rows, anchor].astype(np.int32))
            case Intersect(several):
                return union([self._echoes(branch, ids) for branch in several])
            case Union(several):
                return intersection([self._echoes(branch, ids) for branch in several])
            case _:
                return Sets.empty(self.edges.entities, len(ids))

    def allowed(self, shape: Query, ids: Ints) -> Flags | None:
        """(n, entities): who is of a kind that can answer each query; None where everybody is."""
        match shape:
            case Project(_, position):
                return np.stack([self._tails(relation) for relation in ids[:, position].tolist()])
            case Intersect(several):
                found = [part for branch in several if (part := self.allowed(branch, ids)) is not None]
                return reduce(np.logical_and, found) if found else None
            case Union(several):
                parts = [self.allowed(branch, ids) for branch in several]
                found = [part for part in parts if part is not None]
                return reduce(np.logical_or, found) if len(found) == len(parts) else None
            case Anchor() | Complement():
                return None

    def fits(self, shape: Query, ids: Ints, entities: Ints) -> Flags:
        """The same of a few entities (n, k) alone."""
        match shape:
            case Project(_, position):
                roles = np.repeat(ids[:, position] ^ 1, entities.shape[1])
                return self.kinds.can(entities.ravel(), roles).reshape(entities.shape)
            case Intersect(several):
                return reduce(np.logical_and, [self.fits(branch, ids, entities) for branch in several])
            case Union(several):
                return reduce(np.logical_or, [self.fits(branch, ids, entities) for branch in several])
            case Anchor() | Complement():
                return np.ones(entities.shape, dtype=bool)

    @cached_property
    def _tails(self) -> Callable[[int], Flags]:
        """Of a relation, who can be a tail of it (entities,); remembered for the relations that were asked for last."""
        most = max(1, _REMEMBERED_BYTES // self.edges.entities)
        return lru_cache(most)(lambda relation: self.kinds.all_that_can(relation ^ 1))
