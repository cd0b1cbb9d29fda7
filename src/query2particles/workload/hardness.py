"""How hard an answer is: how many edges of its best proof are missing from the training graph.

A proof of an answer is a choice of edges of the whole graph that lead to it, one for every projection on the way. Its
edges may be stored in training or not; the best proof lacks fewest. An answer of hardness 1 is one link away from what
is stored, whatever its question looks like; one of hardness 2 takes two guesses that fit each other.

    C_j = entities with a proof that lacks at most j edges

    anchor        C_j = {e}
    projection    C'_j = {t : (h, r, t) stored in training, h ∈ C_j} ∪ {t : (h, r, t) in the whole graph, h ∈ C_{j−1}}
    intersection  C'_j = ⋃_{a + b = j} C⁽¹⁾_a ∩ C⁽²⁾_b
    union         C'_j = C⁽¹⁾_j ∪ C⁽²⁾_j
    complement    C'_j = what is no answer on the whole graph: that nothing is there takes no edge
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Batch, Exact, chunk_size
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.sets import Sets, intersection, union
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import Project, Query, branches
from query2particles.workload.labels import Labels

__all__ = ["hardness"]

Levels: TypeAlias = tuple[Sets, ...]
"""C_0, C_1, …, C_most; each holds the one before."""


def hardness(
    train: Edges,
    whole: Edges,
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    progress: Callable[[int], object] | None = None,
) -> dict[Query, Ints]:
    """That of all hard answers of every shape's queries, in turn; `whole` has all edges that the labels follow from."""
    found: dict[Query, Ints] = {}
    for shape, ids in batch.items():
        method = _Proofs(train, whole, most=_projections(shape))
        plan = compile_shapes((shape,), method.kind)
        hard, together = labels[shape].hard, chunk_size(whole)
        parts: list[Ints] = [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(ids), together):
            stop = min(start + together, len(ids))
            (levels,) = execute(plan, method, [ids[start:stop]])
            own = hard.rows(start, stop).listed()
            parts.append(len(levels) - np.stack([_holds(level, own) for level in levels]).sum(0))
            if progress is not None:
                progress(stop - start)
        found[shape] = np.concatenate(parts)
    return found


class _Proofs:
    """The five operators on levels of sets."""

    operators: ClassVar[frozenset[type[Query]]] = Exact.operators
    kind = staticmethod(Exact.kind)

    def __init__(self, train: Edges, whole: Edges, most: int) -> None:
        self._train, self._whole, self._most = Exact(train), Exact(whole), most

    def anchor(self, entities: Ints) -> Levels:
        return (self._whole.anchor(entities),) * (self._most + 1)

    def project(self, state: Levels, relations: Ints, *, hop: int = 0) -> Levels:
        del hop
        stored = [self._train.project(level, relations) for level in state]
        lacking = [self._whole.project(level, relations) for level in state[:-1]]
        return stored[0], *(union(pair) for pair in zip(stored[1:], lacking, strict=True))

    def intersect(self, several: Sequence[Levels]) -> Levels:
        def both(one: Levels, other: Levels) -> Levels:
            return tuple(
                union([intersection([one[a], other[j - a]]) for a in range(j + 1)]) for j in range(self._most + 1)
            )

        return reduce(both, several)

    def union(self, several: Sequence[Levels]) -> Levels:
        return tuple(map(union, zip(*several, strict=True)))

    def complement(self, state: Levels) -> Levels:
        return (state[-1].complement(),) * len(state)

    def stack(self, states: Sequence[Levels]) -> Levels:
        return tuple(map(Sets.stack, zip(*states, strict=True)))

    def split(self, state: Levels, sizes: Sequence[int]) -> list[Levels]:
        return list(zip(*(self._whole.split(level, sizes) for level in state), strict=True))

    def score(self, state: Levels, entities: Ints | None = None) -> npt.NDArray[np.float32]:
        """Minus the edges that the best proof lacks; one more than there can be, where there is no proof."""
        held: npt.NDArray[np.float32] = np.sum([self._whole.score(level, entities) for level in state], axis=0)
        return held - len(state)


def _projections(query: Query) -> int:
    """So many edges has a proof at most."""
    return isinstance(query, Project) + sum(map(_projections, branches(query)))


def _holds(level: Sets, answers: Sets) -> npt.NDArray[np.bool_]:
    """Of all answers of all rows in turn, whether the row's set has it."""
    members = level.in_order()
    listed = members.row_of_each() * members.entities + members.values
    wanted = answers.row_of_each() * members.entities + answers.values
    there = np.searchsorted(listed, wanted)
    found = np.full(len(wanted), level.complemented)
    inside = there < len(listed)
    found[inside] ^= listed[there[inside]] == wanted[inside]
    return found
