"""Facts on their way from names to ids.

Sources hand out batches, each column with a dictionary of its own. The dictionaries are merged as they come, and the
codes turned into ids in order of first appearance; all by array operations, so that millions of rows take seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.errors import SourceError, clipped
from query2particles.graph.edges import Edges, offset_kind
from query2particles.graph.graph import SPLITS, Split
from query2particles.graph.readers import Reader
from query2particles.graph.tables import FACT, complaint

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Dictionary", "FactTable", "Facts", "draw_splits", "fail_at", "first_complaint", "split_numbers"]

Facts: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]
"""Heads, stored relations and tails."""

_WAITING = 1 << 22
"""This many names, or as many as are known, wait for a merge: then merging costs no more than reading."""

_NEVER = np.iinfo(np.int64).max


class Dictionary:
    """One dictionary out of many. `size` grows with the memory that it takes: bytes of names, each with its place."""

    def __init__(self) -> None:
        import pyarrow as pa

        self._known: pa.Array = pa.array([], pa.large_string())
        self._waiting: list[pa.DictionaryArray] = []
        self._names_waiting = 0
        self._codes: list[npt.NDArray[np.int32]] = []
        self.size = 0

    def add(self, column: pa.DictionaryArray) -> None:
        import pyarrow as pa

        # Large strings: the names of a whole graph may be more than the 2 GiB that plain ones can hold.
        names = column.dictionary.cast(pa.large_string())
        self._waiting.append(pa.DictionaryArray.from_arrays(column.indices, names))
        self._names_waiting += len(names)
        self.size += names.nbytes
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

    def finish(self, columns: int) -> tuple[pa.LargeStringArray, npt.NDArray[np.int64], list[npt.NDArray[np.int32]]]:
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
        return self._known.take(pa.array(order)), first[order], [ids[codes] for codes in parts]


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
        entities, relations = Dictionary(), Dictionary()
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
            entity_names.to_pylist(),
            relation_names.to_pylist(),
            (heads, between, tails),
            rows,
            first_entities,
            first_relations,
            origins,
        )
        wrong = first_complaint(table.entities, first_entities, table.relations, first_relations)
        if wrong is not None:
            fail_at(origins, wrong[0], wrong[2])
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
            fail_at(self.origins, row, f"the {kind} {clipped(name)!r} is in no training fact")
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


def first_complaint(
    entities: Iterable[str],
    first_entities: npt.NDArray[np.int64],
    relations: Iterable[str],
    first_relations: npt.NDArray[np.int64],
) -> tuple[int, int, str] | None:
    """What is wrong with the first name that is no name: its row, its column, and words. None where all are good.

    Names come in order of first appearance, each with its place as `Dictionary.finish` counts them.
    """
    bad = []
    for at, name in enumerate(entities):
        if (wrong := complaint(name)) is not None:
            row, tail = divmod(int(first_entities[at]), 2)
            bad.append((row, 2 * tail, wrong))
            break
    for at, name in enumerate(relations):
        if (wrong := complaint(name)) is not None:
            bad.append((int(first_relations[at]), 1, wrong))
            break
    if not bad:
        return None
    row, column, wrong = min(bad)
    return row, column, f"the {FACT[column]} {wrong}"


def fail_at(origins: Sequence[tuple[int, Reader]], row: int, reason: str) -> NoReturn:
    """Raise the error about this row, with the file and line that it came from."""
    start, reader = next(origin for origin in reversed(origins) if origin[0] <= row)
    raise SourceError(reader.path, reader.line_of(row - start), reason)


def draw_splits(
    facts: Facts, entity_count: int, relation_count: int, fractions: tuple[float, float], seed: int
) -> tuple[dict[Split, Facts], int]:
    """Draw validation and test facts; the rest is for training. Also how often the draw met a fact it had to leave."""
    edges = Edges.of(
        *facts, entity_count=entity_count, relation_count=relation_count
    )  # each fact once, and its inverse
    keys = np.repeat(edges.keys, edges.row_lengths[:-1])
    forward = keys % 2 == 0
    heads, relations = (part.astype(np.int32) for part in np.divmod(keys[forward], edges.relations))
    distinct = heads, relations // 2, edges.tails[forward]
    numbers, kept = split_numbers([distinct], len(heads), entity_count, relation_count, fractions, seed)
    splits: dict[Split, Facts] = {}
    for number, split in enumerate(SPLITS):
        heads, relations, tails = (column[numbers == number] for column in distinct)
        splits[split] = heads, relations, tails
    return splits, kept


def split_numbers(
    parts: Iterable[Facts],
    count: int,
    entity_count: int,
    relation_count: int,
    fractions: tuple[float, float],
    seed: int,
) -> tuple[npt.NDArray[np.uint8], int]:
    """Draw the split of each of `count` distinct facts, sorted, which come in parts: 0 train, 1 valid, 2 test.

    In a shuffled row of all facts, the last one of each entity and of each relation stays in training, so that nothing
    is asked of a model that it never saw. The first of the others are drawn. Also how often the draw met a fact it had
    to leave. Takes about fifteen bytes of memory a fact, and four an entity.
    """
    kind = offset_kind(count)
    shuffled = np.arange(count, dtype=kind)
    np.random.default_rng(seed).shuffle(shuffled)
    places = np.empty_like(shuffled)
    places[shuffled] = np.arange(count, dtype=kind)
    del shuffled
    last_entity, last_relation = (np.zeros(size, dtype=kind) for size in (entity_count, relation_count))
    start = 0
    for heads, relations, tails in parts:
        here = places[start : start + len(heads)]
        for last, ids in ((last_entity, heads), (last_entity, tails), (last_relation, relations)):
            np.maximum.at(last, ids, here)
        start += len(heads)
    needed = np.zeros(count, dtype=bool)
    needed[last_entity] = True
    needed[last_relation] = True

    valid, test = (round(fraction * count) for fraction in fractions)
    drawn = np.flatnonzero(~needed)[: valid + test]
    passed = int(drawn[-1]) + 1 if valid + test and len(drawn) == valid + test else count
    valid = round(len(drawn) * valid / max(valid + test, 1))
    numbers = np.zeros(count, dtype=np.uint8)
    numbers[drawn[:valid]] = SPLITS.index("valid")
    numbers[drawn[valid:]] = SPLITS.index("test")
    return numbers[places], passed - len(drawn)
