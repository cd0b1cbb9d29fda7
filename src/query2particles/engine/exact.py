"""Exact answers from stored edges: set semantics as a method like any other.

Labels, the split into easy and hard answers, evidence and test oracles all come from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.sets import Sets, intersection, union
from query2particles.errors import QueryError
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    anchor_positions,
    nickname,
)
from query2particles.query.bounds import refuted

__all__ = [
    "Batch",
    "Exact",
    "chunk_size",
    "exact_answers",
    "exact_answers_of",
    "exact_nodes",
    "fits",
    "refuted_answers",
]

Batch = Mapping[Query, Ints]
"""{shape: ids (n, positions)}: queries of mixed shapes."""

_CHUNK = 1024
_CHUNK_CELLS = 1 << 26
"""Bound a chunk's memory: a chunk of queries whose answers were all entities would hold this many."""


@dataclass(frozen=True)
class Exact:
    """The five operators on sets of entities, over the edges of one level of a graph."""

    edges: Edges
    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Union, Complement))

    def anchor(self, entities: Ints) -> Sets:
        return Sets(self.edges.entities, np.arange(len(entities) + 1), entities.astype(np.int32))

    def project(self, state: Sets, relations: Ints, *, hop: int = 0) -> Sets:
        """{t : some h in the set has (h, r, t)}; for a complement by counting, see `_project_complement`."""
        del hop
        if state.complemented:
            return self._project_complement(state, relations)
        if (np.diff(state.offsets) == 1).all():
            return self._project_single(state.values, relations)
        if self.edges.large:
            return self._counted(state, relations)[0]
        return Sets.of_matrix(self._followed(state, relations, self.edges.matrix), ordered=False)

    def intersect(self, branches: Sequence[Sets]) -> Sets:
        return intersection(branches)

    def union(self, branches: Sequence[Sets]) -> Sets:
        return union(branches)

    def complement(self, state: Sets) -> Sets:
        return state.complement()

    def score(self, state: Sets, entities: Ints | None = None) -> npt.NDArray[np.float32]:
        """1 for members, 0 for others."""
        members: npt.NDArray[np.bool_] = state.matrix().toarray() != state.complemented
        if entities is not None:
            members = np.take_along_axis(members, np.broadcast_to(entities, (len(state), entities.shape[-1])), axis=1)
        return members.astype(np.float32)

    def stack(self, states: Sequence[Sets]) -> Sets:
        return Sets.stack(states)

    def split(self, state: Sets, sizes: Sequence[int]) -> list[Sets]:
        return [state.rows(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """Whether the state is a complement, so that complements are only stacked with complements."""
        if operator is Complement:
            return not below[0]
        if operator is Intersect:
            return all(below)
        if operator is Union:
            return any(below)
        return False

    def _project_single(self, entities: Ints, relations: Ints) -> Sets:
        """From one entity each: the stored rows as they are, already in order."""
        if self.edges.large:
            lengths, tails = self.edges.tails_at(self.edges.rows_of(entities, relations))
            return Sets(self.edges.entities, np.concatenate([[0], np.cumsum(lengths)]), tails)
        return Sets.of_matrix(self.edges.matrix[self.edges.rows_of(entities, relations)], ordered=True)

    def _followed(self, state: Sets, relations: Ints, matrix: sparse.csr_array) -> sparse.csr_array:
        """(n, entities): whether any listed member of row i has the edge (member, relation i, t), or how many have."""
        edge_rows = self.edges.rows_of(state.values, relations, np.diff(state.offsets))
        present = np.flatnonzero(edge_rows < self.edges.no_row)
        offsets = np.searchsorted(present, state.offsets)
        ones = np.ones(len(present), dtype=matrix.dtype)
        index = self.edges.offsets.dtype
        chosen = sparse.csr_array(
            (ones, edge_rows.take(present).astype(index, copy=False), offsets.astype(index)),
            shape=(len(state), matrix.shape[0]),
        )
        product: sparse.csr_array = chosen @ matrix
        return product

    def _counted(self, state: Sets, relations: Ints) -> tuple[Sets, Ints]:
        """What the listed members of each row lead to, in order, and how many of them lead to each."""
        if not self.edges.large:
            counts = self._followed(state, relations, self.edges.counting_matrix).sorted_indices()
            return Sets.of_matrix(counts, ordered=True), counts.data
        members = np.diff(state.offsets)
        lengths, tails = self.edges.tails_at(self.edges.rows_of(state.values, relations, members))
        rows = np.repeat(np.repeat(np.arange(len(state)), members), lengths)
        reached, numbers = np.unique(rows * self.edges.entities + tails, return_counts=True)
        rows, values = np.divmod(reached, self.edges.entities)
        offsets = np.searchsorted(rows, np.arange(len(state) + 1))
        return Sets(self.edges.entities, offsets, values.astype(np.int32)), numbers

    def _project_complement(self, state: Sets, relations: Ints) -> Sets:
        """An entity t is reached from outside the listed members unless all its sources are among them:

        project(¬A, r) = range(r) − {t : |{h ∈ A : (h, r, t)}| = |{h : (h, r, t)}|}
        """
        reached, counts = self._counted(state, relations)
        rows = self.edges.rows_of(reached.values, relations ^ 1, np.diff(reached.offsets))
        full = np.flatnonzero(counts == self.edges.lengths_at(rows))
        lost = Sets(reached.entities, np.searchsorted(full, reached.offsets), reached.values[full])
        targets = [self.edges.heads_of(relation) for relation in (relations ^ 1).tolist()]
        offsets = np.cumsum([0] + [len(target) for target in targets])
        return Sets(reached.entities, offsets, np.concatenate([*targets, lost.values[:0]])) - lost


def exact_answers(
    edges: Edges,
    batch: Batch,
    *,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[Query, Sets]:
    """The answers of every query of a batch, in chunks, on all cores (or `workers` threads)."""
    _check_fit(edges, batch)
    method = Exact(edges)
    workers = workers or os.cpu_count() or 1
    total = sum(map(len, batch.values()))
    # As many parts for each worker, none larger than `chunk_size`.
    chunk = math.ceil(total / (math.ceil(total / chunk_size(edges) / workers) * workers)) if total else 1
    pieces: dict[Query, list[Sets]] = {shape: [] for shape in batch}
    edges.prepare(total)

    def answer(part: dict[Query, Ints]) -> dict[Query, Sets]:
        plan = compile_shapes(tuple(part), Exact.kind)
        found = execute(plan, method, list(part.values()))
        return {shape: sets.in_order() for shape, sets in zip(part, found, strict=True)}

    with ThreadPoolExecutor(workers) as pool:
        for answered in pool.map(answer, _chunks(batch, chunk)):
            for shape, sets in answered.items():
                pieces[shape].append(sets)
            if progress is not None:
                progress(sum(map(len, answered.values())))
    return {shape: Sets.stack(found) if found else _no_sets(edges, shape) for shape, found in pieces.items()}


def exact_nodes(edges: Edges, batch: Batch) -> dict[Query, list[Sets]]:
    """The exact answers of every part of each shape, in the order of its plan: those of the whole query come last."""
    _check_fit(edges, batch)
    found = {}
    for shape, ids in batch.items():
        nodes = execute(compile_shapes((shape,), Exact.kind), Exact(edges), [ids], keep=True)
        found[shape] = [sets.in_order() for sets in nodes]
    return found


def _check_fit(edges: Edges, batch: Batch) -> None:
    for shape, ids in batch.items():
        if not fits(edges, shape, ids):
            raise QueryError(f"{nickname(shape)} queries name entities or relations that the graph does not have")


def _no_sets(edges: Edges, shape: Query) -> Sets:
    """The answers of no queries of a shape, which are complements or not all the same."""
    nothing = Sets.empty(edges.entities, 0)
    return nothing.complement() if compile_shapes((shape,), Exact.kind).nodes[-1].kind else nothing


def fits(edges: Edges, shape: Query, ids: Ints) -> bool:
    """Whether all ids of these queries exist."""
    limits = np.full(ids.shape[1], edges.relations)
    limits[anchor_positions(shape)] = edges.entities
    return bool(((ids >= 0) & (ids < limits)).all())


def refuted_answers(edges: Edges, batch: Batch, *, workers: int | None = None) -> dict[Query, Sets]:
    """The entities that stored edges rule out as answers for good, whatever edges are missing (`query/bounds`)."""
    found = {shape: Sets.empty(edges.entities, len(ids)) for shape, ids in batch.items()}
    bounds: dict[Query, list[tuple[Query, Ints]]] = {}  # several shapes may have one bound: 2in and 3in have 1p
    for shape, ids in batch.items():
        if (bound := refuted(shape)) is not None:
            own, positions = abstract(bound)
            bounds.setdefault(own, []).append((shape, ids[:, list(positions)]))
    together = {own: np.concatenate([ids for _, ids in several]) for own, several in bounds.items()}
    for own, answers in exact_answers(edges, together, workers=workers).items():
        stops = accumulate(len(ids) for _, ids in bounds[own])
        for (shape, ids), stop in zip(bounds[own], stops, strict=True):
            found[shape] = answers.rows(stop - len(ids), stop)
    return found


def exact_answers_of(edges: Edges, query: Query) -> Sets:
    """The answers of one query, as a batch of one."""
    shape, ids = abstract(query)
    return exact_answers(edges, {shape: np.array([ids], dtype=np.int64)}, workers=1)[shape]


def chunk_size(edges: Edges) -> int:
    """How many queries to answer at once: what fits the caches, and the memory even if all entities were answers."""
    return max(16, min(_CHUNK, _CHUNK_CELLS // edges.entities))


def _chunks(batch: Batch, chunk: int) -> Iterator[dict[Query, Ints]]:
    """The batch in parts of at most `chunk` queries, shapes mixed where they are short."""
    part: dict[Query, Ints] = {}
    room = chunk
    for shape, ids in batch.items():
        start = 0
        while start < len(ids):
            part[shape] = ids[start : start + room]
            start += len(part[shape])
            room -= len(part[shape])
            if not room:
                yield part
                part, room = {}, chunk
    if part:
        yield part
