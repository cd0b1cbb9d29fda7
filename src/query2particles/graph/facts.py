"""Facts on their way from names to ids.

Sources hand out batches, each column with a dictionary of its own. The dictionaries are merged as they come, and the
codes turned into ids in order of first appearance; all by array operations, so that millions of rows take seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.errors import SourceError, clipped
from query2particles.graph.edges import Edges
from query2particles.graph.graph import SPLITS, Split
from query2particles.graph.readers import Reader
from query2particles.graph.tables import FACT, complaint

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FactTable", "Facts", "draw_splits"]

Facts: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]
"""Heads, stored relations and tails."""

_WAITING = 1 << 22
"""This many names, or as many as are known, wait for a merge: then merging costs no more than reading."""

_NEVER = np.iinfo(np.int64).max


class _Dictionary:
    """One dictionary out of many."""

    def __init__(self) -> None:
        import pyarrow as pa

        self._known: pa.Array = pa.array([], pa.large_string())
        self._waiting: list[pa.DictionaryArray] = []
        self._names_waiting = 0
        self._codes: list[npt.NDArray[np.int32]] = []

    def add(self, column: pa.DictionaryArray) -> None:
        import pyarrow as pa

        # Large strings: the names of a whole graph may be more than the 2 GiB that plain ones can hold.
        names = column.dictionary.cast(pa.large_string())
        self._waiting.append(pa.DictionaryArray.from_arrays(column.indices, names))
        self._names_waiting += len(column.dictionary)
        if self._names_waiting > max(_WAITING, len(self._known)):
            self._merge()

    def _merge(self) -> None:
        import pyarrow as pa

        known = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), self._known)
        # The merged dictionary starts with that of the first chunk, so codes given out earlier stay good.
        first, *rest = pa.chunked_array([known, *self._waiting]).unify_dictionaries().chunks
        self._known = first.dictionary
        self._codes += [column.indices.to_numpy() for column in rest]
        self._waiting, self._names_waiting = [], 0

    def finish(self, columns: int) -> tuple[list[str], npt.NDArray[np.int64], list[npt.NDArray[np.int32]]]:
        """Names in order of first appearance, where each appears first, and the ids of every column.

        `columns` says how many columns took turns in `add`; an appearance counts as row · columns + column.
        """
        import pyarrow as pa

        self._merge()
        nothing = [np.zeros(0, np.int32)]
        parts = [np.concatenate(nothing + self._codes[column::columns]) for column in range(columns)]
        rows = np.arange(len(parts[0]))[::-1]
        first = np.full(len(self._known), _NEVER)
        for column, codes in enumerate(parts):
            appears = np.full_like(first, _NEVER)
            appears[codes[::-1]] = rows * columns + column  # of equal codes the last assigned stays: the first row
            np.minimum(first, appears, out=first)
        # The dictionary of a batch may have names that no row of it uses: those of a header that was cut off.
        order = np.argsort(first)[: np.count_nonzero(first < _NEVER)]
        ids = np.zeros(len(first), dtype=np.int32)
        ids[order] = np.arange(len(order), dtype=np.int32)
        return self._known.take(pa.array(order)).to_pylist(), first[order], [ids[codes] for codes in parts]


@dataclass(frozen=True, eq=False)
class FactTable:
    """The facts of all sources as ids: training, then validation, then test rows. Ids in order of first appearance."""

    entities: list[str]
    relations: list[str]
    columns: Facts
    rows: Mapping[Split, int]
    first_entities: npt.NDArray[np.int64]  # 2 · row + (0 head, 1 tail), ascending
    first_relations: npt.NDArray[np.int64]  # row, ascending
    origins: Sequence[tuple[int, Reader]]  # the first row of each source

    @staticmethod
    def read(readers: Mapping[Split, Sequence[Reader]]) -> FactTable:
        """Read all sources; every name in them is checked."""
        entities, relations = _Dictionary(), _Dictionary()
        rows = dict.fromkeys(SPLITS, 0)
        origins = []
        for split in SPLITS:
            for reader in readers[split]:
                origins.append((sum(rows.values()), reader))
                for heads, between, tails in reader.batches():
                    entities.add(heads)
                    entities.add(tails)
                    relations.add(between)
                    rows[split] += len(heads)
        entity_names, first_entities, (heads, tails) = entities.finish(2)
        relation_names, first_relations, (between,) = relations.finish(1)
        table = FactTable(
            entity_names, relation_names, (heads, between, tails), rows, first_entities, first_relations, origins
        )
        table._check_names()
        return table

    def facts(self, split: Split) -> Facts:
        """The rows of one split."""
        start = sum(self.rows[before] for before in SPLITS[: SPLITS.index(split)])
        heads, relations, tails = (column[start : start + self.rows[split]] for column in self.columns)
        return heads, relations, tails

    def all_seen(self) -> FactTable:
        """The table itself, where every entity and relation has a training fact; else an error."""
        entities, relations = self._seen()
        unseen = []
        if entities < len(self.entities):
            unseen.append((int(self.first_entities[entities]) // 2, "entity", self.entities[entities]))
        if relations < len(self.relations):
            unseen.append((int(self.first_relations[relations]), "relation", self.relations[relations]))
        if unseen:
            row, kind, name = min(unseen)
            self._fail(row, f"the {kind} {clipped(name)!r} is in no training fact")
        return self

    def seen_only(self) -> tuple[FactTable, int]:
        """The table without facts whose entities or relation no training fact has, and how many those are."""
        entities, relations = self._seen()
        heads, between, tails = self.columns
        keep = (heads < entities) & (tails < entities) & (between < relations)
        ends = np.cumsum([self.rows[split] for split in SPLITS])
        rows = {split: int(part.sum()) for split, part in zip(SPLITS, np.split(keep, ends[:-1]), strict=True)}
        table = dataclasses.replace(
            self,
            entities=self.entities[:entities],
            relations=self.relations[:relations],
            columns=(heads[keep], between[keep], tails[keep]),
            rows=rows,
        )
        return table, int(len(keep) - keep.sum())

    def _seen(self) -> tuple[int, int]:
        """How many entities and relations the training facts have: theirs are the first ids."""
        train = self.rows["train"]
        entities = np.searchsorted(self.first_entities, 2 * train)
        return int(entities), int(np.searchsorted(self.first_relations, train))

    def _check_names(self) -> None:
        bad = []
        for at, name in enumerate(self.entities):
            if (wrong := complaint(name)) is not None:
                row, tail = divmod(int(self.first_entities[at]), 2)
                bad.append((row, 2 * tail, wrong))
                break
        for at, name in enumerate(self.relations):
            if (wrong := complaint(name)) is not None:
                bad.append((int(self.first_relations[at]), 1, wrong))
                break
        if bad:
            row, column, wrong = min(bad)
            self._fail(row, f"the {FACT[column]} {wrong}")

    def _fail(self, row: int, reason: str) -> NoReturn:
        """Raise the error about this row, with the file and line that it came from."""
        start, reader = next(origin for origin in reversed(self.origins) if origin[0] <= row)
        raise SourceError(reader.path, reader.line_of(row - start), reason)


def draw_splits(
    facts: Facts, entity_count: int, relation_count: int, fractions: tuple[float, float], seed: int
) -> tuple[dict[Split, Facts], int]:
    """Draw validation and test facts; the rest is for training. Also how often the draw met a fact it had to leave.

    Repeated facts count once. In a shuffled row of all facts, the last one of each entity and of each relation stays in
    training, so that nothing is asked of a model that it never saw. The first of the others are drawn.
    """
    edges = Edges.of(
        *facts, entity_count=entity_count, relation_count=relation_count
    )  # each fact once, and its inverse
    keys = np.repeat(edges.keys, edges.row_lengths[:-1])
    forward = np.random.default_rng(seed).permutation(np.flatnonzero(keys % 2 == 0))
    heads, relations = (part.astype(np.int32) for part in np.divmod(keys[forward], edges.relations))
    relations //= 2
    tails = edges.tails[forward]

    places = np.arange(len(forward))
    last_entity = np.zeros(entity_count, dtype=np.int64)
    last_entity[heads] = places  # of equal ids the last assigned stays
    last_tail = np.zeros(entity_count, dtype=np.int64)
    last_tail[tails] = places
    last_relation = np.zeros(relation_count, dtype=np.int64)
    last_relation[relations] = places
    needed = np.zeros(len(forward), dtype=bool)
    needed[np.maximum(last_entity, last_tail)] = True
    needed[last_relation] = True

    valid, test = (round(fraction * len(forward)) for fraction in fractions)
    drawn = np.flatnonzero(~needed)[: valid + test]
    passed = int(drawn[-1]) + 1 if valid + test and len(drawn) == valid + test else len(forward)
    valid = round(len(drawn) * valid / max(valid + test, 1))
    train = np.ones(len(forward), dtype=bool)
    train[drawn] = False
    parts = {"train": train, "valid": drawn[:valid], "test": drawn[valid:]}
    splits: dict[Split, Facts] = {
        split: (heads[parts[split]], relations[parts[split]], tails[parts[split]]) for split in SPLITS
    }
    return splits, passed - len(drawn)
