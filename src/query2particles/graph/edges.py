"""The edges of one nested level of a graph: immutable sorted arrays.

Every fact (h, r, t) is stored as two edges, (h, 2r, t) and (t, 2r + 1, h), so that the neighbours in either direction
are one slice. Edges are sorted by head, relation, tail and cut into *rows*, one for each distinct (head, relation):

    keys[row] = head · R + relation          tails[offsets[row] : offsets[row + 1]] = its tails, ascending

with R the number of directed relations. `matrix` is the same as a sparse matrix (rows, entities): a projection of many
sets at once is one product with it.

The matrix and the other tables that grow with the edges are for graphs that fit into memory. Of a `large` one nothing
is copied: rows are found by bisection in the memory-mapped keys, their tails read where they lie, and what is asked of
all rows is gathered block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.errors import UsageError
from query2particles.graph.arrays import open_array, unreadable

__all__ = ["Edges", "Ints", "distinct_edges", "offset_kind", "sorted_edges"]

Ints: TypeAlias = npt.NDArray[np.integer[Any]]

_TABLE_CELLS = 1 << 26
"""Up to this many (entity, relation) cells, a table of 4-byte rows answers bulk look-ups; beyond, bisection does."""

_LARGE = 1 << 28
"""From this many edges on, nothing is built that grows with their number."""

_BLOCK = 1 << 22
"""So many rows are read at once where all are."""

_BULK = 4_000
"""Fewer look-ups than this are not worth building the table for."""


@dataclass(frozen=True, eq=False)
class Edges:
    """All edges of one level, both directions."""

    entities: int
    relations: int  # directed: twice the stored ones
    keys: npt.NDArray[np.int64]  # (rows,) ascending
    offsets: Ints  # (rows + 1,)
    tails: npt.NDArray[np.int32]  # (edges,)
    folder: Path | None = None  # that they were opened from

    def check_fit(self, entities: int, relations: int) -> None:
        """Refuse these edges for a model of so many entities and directed relations, if they have others."""
        if (self.entities, self.relations) != (entities, relations):
            raise UsageError(
                f"the model is for {entities:,} entities and {relations:,} directed relations, "
                f"the graph has {self.entities:,} and {self.relations:,}; open the graph that it was trained on"
            )

    @staticmethod
    def of(heads: Ints, relations: Ints, tails: Ints, *, entity_count: int, relation_count: int) -> Edges:
        """The edges of these facts (one or more), relations as stored, 0 … relation_count − 1; repeats count once."""
        keys, ends = sorted_edges(heads, relations, tails, entity_count=entity_count, relation_count=relation_count)
        return Edges._in_rows(keys, ends, entity_count, 2 * relation_count)

    @staticmethod
    def _in_rows(keys: npt.NDArray[np.int64], tails: npt.NDArray[np.int32], entities: int, relations: int) -> Edges:
        """Edges, sorted and different, each with the key of its row."""
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        offsets: Ints = np.append(first, len(keys)).astype(offset_kind(len(keys)))
        return Edges(entities, relations, keys[first], offsets, tails)

    def without(self, smaller: Edges) -> Edges:
        """The edges that a smaller level of the same graph does not have. Only rows that differ are read."""
        longer = [
            keys[lengths > smaller.lengths_of(*np.divmod(keys, self.relations))] for keys, lengths in self.row_blocks()
        ]
        keys = np.concatenate(longer)
        rows = np.divmod(keys, self.relations)

        def packed(level: Edges) -> npt.NDArray[np.int64]:
            lengths, tails = level.tails_at(level.rows_of(*rows))
            return np.repeat(keys, lengths) * self.entities + tails

        left, tails = np.divmod(np.setdiff1d(packed(self), packed(smaller), assume_unique=True), self.entities)
        return Edges._in_rows(left, tails.astype(np.int32), self.entities, self.relations)

    def __len__(self) -> int:
        return len(self.tails)

    @property
    def no_row(self) -> int:
        """The number that stands for no row: one more than the last."""
        return len(self.keys)

    @property
    def facts(self) -> int:
        return len(self.tails) // 2

    @property
    def large(self) -> bool:
        """Whether these edges are too many for tables of them."""
        return len(self.tails) >= _LARGE

    def tails_of(self, entity: int, relation: int) -> npt.NDArray[np.int32]:
        """Every t with an edge (entity, relation, t), ascending."""
        key = entity * self.relations + relation
        row = int(np.searchsorted(self.keys, key))
        if row == len(self.keys) or self.keys[row] != key:
            return self.tails[:0]
        return self.tails[self.offsets[row] : self.offsets[row + 1]]

    def has(self, head: int, relation: int, tail: int) -> bool:
        tails = self.tails_of(head, relation)
        at = int(np.searchsorted(tails, tail))
        return at < len(tails) and bool(tails[at] == tail)

    def relations_of(self, entity: int) -> npt.NDArray[np.int64]:
        """The directed relations that leave `entity`, ascending."""
        first, after = self.row_range(np.array([entity]))
        return self.keys[int(first[0]) : int(after[0])] % self.relations

    def row_range(self, entities: Ints) -> tuple[Ints, Ints]:
        """The first row of each entity, and the one after its last."""
        if not self.large:
            return self.row_bounds[entities], self.row_bounds[entities + 1]
        starts = entities.astype(np.int64) * self.relations
        return np.searchsorted(self.keys, starts), np.searchsorted(self.keys, starts + self.relations)

    def rows_of(self, entities: Ints, relations: Ints, repeats: Ints | None = None) -> Ints:
        """The row of each (entity, relation), `no_row` where there is none.

        With `repeats`, relation i serves the next `repeats[i]` entities.
        """
        if "_row_table" in self.__dict__ or self._worth_a_table(len(entities)):
            starts = relations.astype(np.int64) * self.entities
            cells = starts if repeats is None else np.repeat(starts, repeats)
            cells += entities
            return self._row_table.take(cells)
        keys = entities.astype(np.int64) * self.relations
        keys += relations if repeats is None else np.repeat(relations, repeats)
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, self.no_row)

    def prepare(self, lookups: int) -> None:
        """Build what bulk look-ups need, once, rather than in each of several threads."""
        if not self.large:
            _ = self.matrix, self.row_lengths
        if self._worth_a_table(lookups):
            _ = self._row_table

    def _worth_a_table(self, lookups: int) -> bool:
        return lookups >= _BULK and self.entities * self.relations <= _TABLE_CELLS and not self.large

    def lengths_of(self, entities: Ints, relations: Ints) -> Ints:
        """The number of tails of each (entity, relation)."""
        return self.lengths_at(self.rows_of(entities, relations))

    def lengths_at(self, rows: Ints) -> Ints:
        """The number of tails of each of these rows, none for `no_row`."""
        if not self.large:
            return self.row_lengths[rows]
        return self.offsets[np.minimum(rows + 1, self.no_row)] - self.offsets[rows]

    def tails_at(self, rows: Ints) -> tuple[Ints, npt.NDArray[np.int32]]:
        """The number of tails of each of these rows, and the tails of one row after another."""
        lengths, firsts = self.lengths_at(rows).astype(np.int64), self.offsets[rows].astype(np.int64)
        if np.any(lengths < (rows < self.no_row)) or np.any(firsts < 0) or np.any(firsts + lengths > len(self.tails)):
            raise unreadable(self.folder, "the offsets are not ascending")
        starts = firsts - (np.cumsum(lengths) - lengths)
        places = np.repeat(starts, lengths)
        places += np.arange(len(places))
        tails = self.tails[places]
        if len(tails) and (tails.min() < 0 or tails.max() >= self.entities):
            raise unreadable(self.folder, f"a tail does not exist: there are {self.entities} entities")
        return lengths, tails

    def row_blocks(self) -> Iterator[tuple[npt.NDArray[np.int64], Ints]]:
        """The keys and the lengths of all rows, block by block."""
        for start in range(0, self.no_row, _BLOCK):
            stop = min(start + _BLOCK, self.no_row)
            yield self.keys[start:stop], np.diff(self.offsets[start : stop + 1])

    @cached_property
    def edges_by_relation(self) -> Ints:
        """(relations,): how many edges each directed relation has."""
        counts = np.zeros(self.relations, dtype=np.int64)
        for keys, lengths in self.row_blocks():
            np.add.at(counts, keys % self.relations, lengths)
        return counts

    @cached_property
    def loops(self) -> npt.NDArray[np.bool_]:
        """(relations,): which directed relations lead some entity to itself."""
        found = np.zeros(self.relations, dtype=bool)
        start = 0
        for keys, lengths in self.row_blocks():
            heads = np.repeat(keys // self.relations, lengths)
            own = heads == self.tails[start : start + len(heads)]
            found[np.repeat(keys % self.relations, lengths)[own]] = True
            start += len(heads)
        return found

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """(entities,): how many edges leave each entity."""
        counts = np.zeros(self.entities, dtype=np.int64)
        for keys, lengths in self.row_blocks():
            np.add.at(counts, keys // self.relations, lengths)
        return counts

    def heads_of(self, relation: int) -> npt.NDArray[np.int32]:
        """The entities that a directed relation leaves, ascending. Of a large graph all keys are read for that."""
        if not self.large:
            return self.heads_by_relation[relation]
        found = [keys[keys % self.relations == relation] // self.relations for keys, _ in self.row_blocks()]
        return np.concatenate(found).astype(np.int32)

    @cached_property
    def row_bounds(self) -> npt.NDArray[np.int64]:
        """(entities + 1,): the rows of entity e are row_bounds[e] … row_bounds[e + 1] − 1."""
        return np.searchsorted(self.keys, np.arange(self.entities + 1, dtype=np.int64) * self.relations)

    def heads_and_relations(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of every edge, in the order of `tails`."""
        return np.divmod(np.repeat(self.keys, self.row_lengths[:-1]), self.relations)

    def packed(self) -> npt.NDArray[np.int64]:
        """A number for each edge, in the order of `tails`: equal just for equal edges of two levels of one graph."""
        return np.repeat(self.keys, self.row_lengths[:-1]) * self.entities + self.tails

    @cached_property
    def row_lengths(self) -> Ints:
        """(rows + 1,): the number of tails of each row, none for `no_row`."""
        return np.append(np.diff(self.offsets), 0)

    @cached_property
    def _row_table(self) -> npt.NDArray[np.int32]:
        """Relation by relation, as the members of one set follow one relation: their cells lie close together."""
        self._check()
        table = np.full(self.entities * self.relations, self.no_row, dtype=np.int32)
        heads, relations = np.divmod(self.keys, self.relations)
        table[relations * self.entities + heads] = np.arange(len(self.keys), dtype=np.int32)
        return table

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """(rows + 1, entities), true where the row has the tail; the last row, `no_row`, is empty."""
        self._check()
        ones = np.ones(len(self.tails), dtype=bool)
        offsets = np.append(self.offsets, self.offsets[-1])
        return sparse.csr_array((ones, self.tails, offsets), shape=(len(self.keys) + 1, self.entities))

    def _check(self) -> None:
        """Raise where the contents are damaged. Products trust them: one wrong tail is a crash."""
        if self._damage is not None:
            raise unreadable(self.folder, self._damage)

    @cached_property
    def _damage(self) -> str | None:
        """What is wrong with the contents, None where nothing is."""
        heads_and_relations = self.entities * self.relations
        if np.any(self.keys[1:] <= self.keys[:-1]) or self.keys[0] < 0 or self.keys[-1] >= heads_and_relations:
            return "the keys are not ascending heads and relations"
        if np.any(self.offsets[1:] <= self.offsets[:-1]):
            return "the offsets are not ascending"
        if self.tails.min() < 0 or self.tails.max() >= self.entities:
            return f"a tail does not exist: there are {self.entities} entities"
        ascending = self.tails[1:] > self.tails[:-1]
        ascending[self.offsets[1:-1] - 1] = True  # from one row to the next
        return None if ascending.all() else "the tails of a row are not ascending"

    @cached_property
    def counting_matrix(self) -> sparse.csr_array:
        """The same with 1 for true, so that products count."""
        return self.matrix.astype(np.int32)

    @cached_property
    def heads_by_relation(self) -> Sequence[npt.NDArray[np.int32]]:
        """For each directed relation, the entities that it leaves, ascending."""
        self._check()
        relations = self.keys % self.relations
        order = np.argsort(relations, kind="stable")
        heads = (self.keys[order] // self.relations).astype(np.int32)
        return np.split(heads, np.searchsorted(relations[order], np.arange(1, self.relations)))

    def save(self, folder: Path, level: str) -> None:
        for part in ("keys", "offsets", "tails"):
            np.save(folder / f"{level}-{part}.npy", getattr(self, part))

    @staticmethod
    def open(folder: Path, level: str, *, entity_count: int, relation_count: int) -> Edges:
        """Memory-map what `save` wrote. Sizes and ends are checked here, the contents when `matrix` reads them all."""
        keys = open_array(folder / f"{level}-keys.npy", np.int64)
        offsets = open_array(folder / f"{level}-offsets.npy", np.int32, np.int64)
        tails = open_array(folder / f"{level}-tails.npy", np.int32)
        if not (len(keys) and len(offsets) == len(keys) + 1 and offsets[0] == 0 and offsets[-1] == len(tails)):
            raise unreadable(folder, f"the keys, offsets and tails of {level} do not fit together")
        if keys[0] < 0 or keys[-1] >= 2 * entity_count * relation_count:
            raise unreadable(folder, f"the keys of {level} are not heads and relations of this graph")
        return Edges(entity_count, 2 * relation_count, keys, offsets, tails, folder)


def sorted_edges(
    heads: Ints, relations: Ints, tails: Ints, *, entity_count: int, relation_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The key and the tail of both edges of each of these facts, ascending, without repeats."""
    forward = relations.astype(np.int64) * 2
    # numpy 1 multiplies a narrow array by a wide scalar into a narrow one: widen the array itself.
    outward, inward = (ids.astype(np.int64) * (2 * relation_count) for ids in (heads, tails))
    keys = np.concatenate([outward + forward, inward + forward + 1])
    return distinct_edges(keys, np.concatenate([tails, heads]).astype(np.int32), entity_count)


def distinct_edges(
    keys: npt.NDArray[np.int64], tails: npt.NDArray[np.int32], entity_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Edges (one or more) in ascending order of key and tail, each once."""
    least = int(keys.min())
    if (int(keys.max()) - least + 1) * entity_count < 2**63:  # then both fit one number
        packed = (keys - least) * entity_count
        packed += tails
        packed.sort()
        packed = packed[np.concatenate([[True], packed[1:] != packed[:-1]])]
        keys, remainders = np.divmod(packed, entity_count)
        keys += least
        return keys, remainders.astype(np.int32)
    order = np.lexsort((tails, keys))
    keys, tails = keys[order], tails[order]
    fresh = np.ones(len(keys), dtype=bool)
    fresh[1:] = (keys[1:] != keys[:-1]) | (tails[1:] != tails[:-1])
    return keys[fresh], tails[fresh]


def offset_kind(edges: int) -> type[np.int32] | type[np.int64]:
    """What the offsets of so many edges are stored as."""
    return np.int32 if edges < 2**31 else np.int64
