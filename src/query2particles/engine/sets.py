"""Many sets of entities at once, as sorted rows; complements stay complements as long as they can.

    row i = values[offsets[i] : offsets[i + 1]], without repeats, ascending once `in_order`

With `complemented`, every row stands for the entities that it does *not* list. Set algebra on whole batches is sparse
matrix algebra (scipy), which runs outside Python's lock. Rows are sorted late, where something needs it: what a
projection starts from, and what is dropped for its size, never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.graph.edges import Ints

__all__ = ["Sets", "intersection", "union"]


@dataclass(frozen=True, eq=False)
class Sets:
    """n sets over the entities 0 … entities − 1."""

    entities: int
    offsets: Ints  # (n + 1,)
    values: npt.NDArray[np.int32]
    complemented: bool = False
    ordered: bool = True

    @staticmethod
    def of(rows: Sequence[Sequence[int]], entities: int) -> Sets:
        """The sets of these rows, in any order and with any repeats."""
        sorted_rows = [sorted(set(row)) for row in rows]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in sorted_rows], out=offsets[1:])
        return Sets(entities, offsets, np.array([value for row in sorted_rows for value in row], dtype=np.int32))

    @staticmethod
    def empty(entities: int, count: int) -> Sets:
        """`count` sets without members."""
        return Sets(entities, np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))

    @staticmethod
    def of_matrix(matrix: sparse.csr_array, *, ordered: bool) -> Sets:
        """The columns that each row of a matrix holds."""
        return Sets(matrix.shape[1], matrix.indptr, matrix.indices, ordered=ordered)

    def in_order(self) -> Sets:
        """The same sets with every row ascending."""
        if self.ordered:
            return self
        matrix = self._as_matrix()
        matrix.has_sorted_indices = False
        # Long rows: to columns and back takes linear time, which beats sorting each row.
        matrix = matrix.tocsc().tocsr() if len(self.values) > 8 * self.entities else matrix.sorted_indices()
        return replace(self, offsets=matrix.indptr, values=matrix.indices, ordered=True)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> npt.NDArray[np.int32]:
        """The members of one set, ascending."""
        listed = self.values[self.offsets[row] : self.offsets[row + 1]]
        if not self.complemented:
            return listed if self.ordered else np.sort(listed)
        kept = np.ones(self.entities, dtype=bool)
        kept[listed] = False
        return np.flatnonzero(kept).astype(np.int32)

    @property
    def sizes(self) -> Ints:
        """The number of members of each set."""
        listed = np.diff(self.offsets)
        return self.entities - listed if self.complemented else listed

    def row_of_each(self) -> Ints:
        """The rows of all `values` in turn."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def rows(self, start: int, stop: int) -> Sets:
        first, last = self.offsets[start], self.offsets[stop]
        return replace(self, offsets=self.offsets[start : stop + 1] - first, values=self.values[first:last])

    def take(self, rows: Ints) -> Sets:
        """The sets of these row numbers."""
        matrix = self._as_matrix()[rows]
        return replace(self, offsets=matrix.indptr, values=matrix.indices)

    @staticmethod
    def stack(several: Sequence[Sets]) -> Sets:
        """The sets of several batches as one; all complemented, or none."""
        if len(several) == 1:
            return several[0]
        if not all(sets.ordered for sets in several):
            several = [sets.in_order() for sets in several]
        starts = np.cumsum([0] + [len(sets.values) for sets in several])
        offsets = [sets.offsets[:-1] - sets.offsets[0] + start for sets, start in zip(several, starts, strict=False)]
        values = np.concatenate([sets.values for sets in several])
        return replace(several[0], offsets=np.append(np.concatenate(offsets), starts[-1]), values=values)

    def contain(self, entities: Ints) -> npt.NDArray[np.bool_]:
        """(n, k): whether each of k entities of row i is a member of set i."""
        rows = np.broadcast_to(np.arange(len(self))[:, None], entities.shape)
        listed = np.asarray(self.matrix()[rows.ravel(), entities.ravel()]).reshape(entities.shape)
        found: npt.NDArray[np.bool_] = listed != self.complemented
        return found

    def matrix(self) -> sparse.csr_array:
        """(n, entities), true where a row lists the entity."""
        matrix = self.in_order()._as_matrix()
        matrix.has_canonical_format = True
        return matrix

    def _as_matrix(self) -> sparse.csr_array:
        ones = np.ones(len(self.values), dtype=bool)
        index = np.int32 if len(self.values) < 2**31 else np.int64
        return sparse.csr_array(
            (ones, self.values, self.offsets.astype(index, copy=False)), shape=(len(self), self.entities)
        )

    def complement(self) -> Sets:
        return replace(self, complemented=not self.complemented)

    def listed(self) -> Sets:
        """The same sets with every member listed, none as a complement."""
        if not self.complemented or not len(self):
            return replace(self, complemented=False)
        return Sets.stack(
            [Sets(self.entities, np.array([0, len(row)]), row) for row in map(self.__getitem__, range(len(self)))]
        )

    def __sub__(self, other: Sets) -> Sets:
        """Row by row, the members of self that other does not have."""
        return intersection([self, other.complement()])


def intersection(branches: Sequence[Sets]) -> Sets:
    """Row by row: ⋂ Aᵢ ∩ ⋂ ¬Bⱼ = ⋂ Aᵢ − ⋃ Bⱼ, and ⋂ ¬Bⱼ = ¬ ⋃ Bⱼ where there is no A."""
    positive = [sets.matrix() for sets in branches if not sets.complemented]
    negative = [sets.matrix() for sets in branches if sets.complemented]
    excluded = reduce(lambda one, other: one.maximum(other), negative) if negative else None
    if excluded is not None and not positive:
        return Sets.of_matrix(excluded, ordered=True).complement()
    common = reduce(lambda one, other: one.multiply(other), positive)
    return Sets.of_matrix(common if excluded is None else common > excluded, ordered=True)


def union(branches: Sequence[Sets]) -> Sets:
    """Row by row: A ∪ B = ¬(¬A ∩ ¬B)."""
    return intersection([sets.complement() for sets in branches]).complement()
