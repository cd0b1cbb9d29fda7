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

A *hard set* asks for answers of one hardness: the other hard answers of its queries count as easy (`only_missing`), so
that they are filtered out of the ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Batch, Exact, chunk_size
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.sets import Sets, intersection, union
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph, Split
from query2particles.query.algebra import Complement, Project, Query, Union, branches
from query2particles.workload.labels import Labels, label

__all__ = ["hardness", "label_missing", "most_missing", "only_missing"]

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


def label_missing(
    graph: Graph,
    split: Split,
    batch: Batch,
    wanted: Mapping[Query, Ints],
    *,
    progress: Callable[[int], object] | None = None,
) -> dict[Query, Labels]:
    """The labels of every query of a batch, where `only_missing` answers are hard."""
    labels = label(graph, split, batch, progress=progress)
    return only_missing(graph.at("train"), graph.at(split), batch, labels, wanted, progress=progress)


def only_missing(
    train: Edges,
    whole: Edges,
    batch: Batch,
    labels: Mapping[Query, Labels],
    wanted: Mapping[Query, Ints],
    *,
    progress: Callable[[int], object] | None = None,
) -> dict[Query, Labels]:
    """Labels in which only answers that lack as many edges as `wanted` of their query are hard; the others are easy.

    Where 0 is wanted of a query, all its hard answers stay.
    """
    some = {shape: ids for shape, ids in batch.items() if wanted[shape].any()}
    lacking = hardness(train, whole, some, labels, progress=progress)
    return {
        shape: _narrowed(own, lacking[shape], wanted[shape]) if shape in some else own for shape, own in labels.items()
    }


def _narrowed(labels: Labels, lacking: Ints, wanted: Ints) -> Labels:
    hard = labels.hard.listed()
    rows = hard.row_of_each()
    keep = (wanted[rows] == lacking) | (wanted[rows] == 0)
    offsets = np.append(0, np.bincount(rows[keep], minlength=len(hard)).cumsum())
    kept = replace(hard, offsets=offsets, values=hard.values[keep])
    return Labels(union([labels.easy, hard - kept]), kept, labels.lost)


def most_missing(query: Query) -> int:
    """So many edges can the best proof of an answer lack: a union is proved by one branch, a complement by no edge."""
    match query:
        case Complement():
            return 0
        case Union(several):
            return max(map(most_missing, several))
        case _:
            return isinstance(query, Project) + sum(map(most_missing, branches(query)))


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
    """So many edges decide at most whether an entity is an answer, those below complements among them."""
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
