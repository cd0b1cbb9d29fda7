"""Query sets as their authors published them: pickles, with the answers beside the queries.

BetaE      {split}-queries.pkl              {structure: queries}
           train-answers.pkl                {query: answers}
           {split}-easy-answers.pkl         {query: answers on the smaller graph}, for valid and test
           {split}-hard-answers.pkl         {query: further answers on the larger graph}
Query2Box  {split}_ans_{code}.pkl           {query: answers}
           {split}_ans_{code}_hard.pkl      {query: those of them that are hard}, for valid and test

A structure is a nested tuple, and a query is the same tuple with ids, −2 and −1 in place of the letters:

    (("e", ("r",)), ("e", ("r", "n")))      2in         ((5, (7,)), (8, (2, -2)))
    (("e", ("r",)), ("e", ("r",)), ("u",))  2u          ((5, (7,)), (8, (2,)), (-1,))

Any structure is read under its own shape. BetaE's De Morgan forms of 2u and up are shapes beside the fourteen, so that
averages over those leave them out. Query2Box has a code for each structure and no mark for unions. Answers are the
authors'; `check_original` holds them against the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from query2particles.engine.exact import fits
from query2particles.engine.sets import Sets
from query2particles.errors import QueryError, SourceError, UsageError, WorkloadError, clipped
from query2particles.files import check_replaceable
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.graph.originals import original_names, read_members
from query2particles.graph.pickles import safe_load
from query2particles.query.algebra import SHAPES, Query, abstract, nickname, shape_named
from query2particles.query.nested import NEGATE, UNITE, from_lists
from query2particles.workload.benchmark import Check, is_set_file, write_set
from query2particles.workload.labels import label

__all__ = ["OriginalQueries", "check_original", "convert_original", "is_original_set", "read_original"]

_E1: tuple[object, ...] = ("e", ("r",))
_E2: tuple[object, ...] = ("e", ("r", "r"))
_QUERY2BOX: dict[str, tuple[str, tuple[object, ...]]] = {
    "1c": ("1p", (_E1,)),
    "2c": ("2p", (_E2,)),
    "3c": ("3p", (("e", ("r", "r", "r")),)),
    "2i": ("2i", (_E1, _E1)),
    "3i": ("3i", (_E1, _E1, _E1)),
    "ci": ("pi", (_E2, _E1)),
    "ic": ("ip", (_E1, _E1, "r")),
    "2u": ("2u", (_E1, _E1)),
    "uc": ("up", (_E1, _E1, "r")),
}
"""Query2Box's codes (c for chain): the shape's name here, and how its tuples are built."""

_CODES: dict[object, int] = {"u": UNITE, "n": NEGATE}
_NUMBERS = b"0123456789-"

_INCOMPLETE = ("test", "1p")
"""Query2Box's answers of these queries lack some that validation edges give; its hard answers are right."""


@dataclass(frozen=True, eq=False)
class OriginalQueries:
    """Queries of one shape with the answers stored for them; those of training queries count as hard."""

    ids: Ints  # (n, positions of the shape), ascending
    easy: Sets
    hard: Sets


def is_original_set(folder: Path) -> bool:
    return bool(_splits(folder))


def read_original(folder: Path, split: Split, shapes: Iterable[str] | None = None) -> dict[Query, OriginalQueries]:
    """The queries of one split with their stored answers, of all shapes or those named."""
    wanted = None if shapes is None else {shape_named(name): name for name in shapes}
    entities = len(original_names(folder)[0])
    read = _read_betae if (folder / f"{split}-queries.pkl").is_file() else _read_query2box
    found: dict[Query, OriginalQueries] = {}
    for shape, queries in read(folder, split, entities, wanted):
        found[shape] = _joined(found[shape], queries) if shape in found else queries
    if not found:
        which = f" of {', '.join(wanted.values())}" if wanted else ""
        raise WorkloadError(f"{folder} has no {split} queries{which}")
    return found


def check_original(graph: Graph, folder: Path, *, progress: Callable[[int], object] | None = None) -> Iterator[Check]:
    """Recompute every answer set of a folder and compare it with the stored one."""
    for split in _splits(folder):
        for shape, stored in read_original(folder, split).items():
            hard, problems = _compare(graph, split, shape, stored, progress)
            yield Check(f"{split}-{nickname(shape)}", len(stored.ids), hard, "; ".join(problems) or None, checksum=True)


def convert_original(graph: Graph, folder: Path, out: Path) -> None:
    """Write the queries as a set of the folder form. Its checksums are those of the stored hard answers."""
    splits = _splits(folder)
    check_replaceable(out, is_set_file)
    if not splits:
        raise UsageError(f"{folder} holds no queries of an original BetaE or Query2Box folder (pickles)")
    for split in splits:
        stored = read_original(folder, split)
        batch = {shape: queries.ids for shape, queries in stored.items()}
        for shape, queries in stored.items():
            if problem := _misfit(graph, shape, queries):
                raise WorkloadError(f"{folder}, {split}-{nickname(shape)}: {problem}")
        labels = label(graph, split, batch)
        kept = {shape: replace(found, hard=stored[shape].hard) for shape, found in labels.items()}
        write_set(out, graph, split, batch, kept, about={"source": folder.resolve().name}, replace=True)


def _splits(folder: Path) -> list[Split]:
    """The splits of which a folder holds queries."""

    def present(split: Split) -> bool:
        ending = "" if split == "train" else "_hard"
        names = [f"{split}-queries.pkl", *(f"{split}_ans_{code}{ending}.pkl" for code in _QUERY2BOX)]
        return any((folder / name).is_file() for name in names)

    return list(filter(present, SPLITS))


def _read_betae(
    folder: Path, split: Split, entities: int, wanted: dict[Query, str] | None
) -> Iterator[tuple[Query, OriginalQueries]]:
    path = folder / f"{split}-queries.pkl"
    hard_path = folder / ("train-answers.pkl" if split == "train" else f"{split}-hard-answers.pkl")
    easy_path = folder / f"{split}-easy-answers.pkl"
    structures, hard = _dictionary(path), _dictionary(hard_path)
    easy = {} if split == "train" else _dictionary(easy_path)
    for structure, queries in structures.items():
        shape, columns = _shape(path, structure)
        if wanted is not None and shape not in wanted:
            continue
        if not isinstance(queries, set | frozenset):
            raise SourceError(path, None, f"expected a set of queries under {clipped(repr(structure))}")
        ids, order = _rows(path, structure, list(queries))
        # The authors' dictionaries have an empty set for every query that they do not list.
        answers = [
            _sets(source, [table.get(query, ()) for query in order], entities)
            for source, table in ((easy_path, easy), (hard_path, hard))
        ]
        yield shape, OriginalQueries(ids[:, columns], *answers)


def _read_query2box(
    folder: Path, split: Split, entities: int, wanted: dict[Query, str] | None
) -> Iterator[tuple[Query, OriginalQueries]]:
    for code, (name, structure) in _QUERY2BOX.items():
        path, hard_path = folder / f"{split}_ans_{code}.pkl", folder / f"{split}_ans_{code}_hard.pkl"
        if split == "train":
            hard_path = path
        if not hard_path.is_file() or (wanted is not None and SHAPES[name] not in wanted):
            continue
        hard_answers = _dictionary(hard_path)
        ids, order = _rows(hard_path, structure, list(hard_answers))
        hard = _sets(hard_path, [hard_answers[query] for query in order], entities)
        answers = hard_answers if split == "train" else _dictionary(path)
        easy = _sets(path, [answers.get(query, ()) for query in order], entities) - hard
        yield SHAPES[name], OriginalQueries(ids, easy, hard)


def _dictionary(path: Path) -> dict[Any, object]:
    table = safe_load(path)
    if not isinstance(table, dict):
        raise SourceError(path, None, f"expected a dictionary, found a {type(table).__name__}")
    return table


def _shape(path: Path, structure: object) -> tuple[Query, list[int]]:
    """The shape of a structure, and where each of its positions stands among the ids of a stored query."""
    numbers = count()

    def lists(part: object) -> object:
        if isinstance(part, tuple):
            return [lists(inner) for inner in part]
        return next(numbers) if part in ("e", "r") else _CODES.get(part)

    try:
        shape, columns = abstract(from_lists(lists(structure)))
    except QueryError as error:
        raise SourceError(path, None, f"the structure {clipped(repr(structure))} is not understood: {error}") from error
    return shape, list(columns)


def _rows(path: Path, structure: object, queries: list[object]) -> tuple[Ints, list[object]]:
    """The ids of queries of one structure, ascending, and the queries in that order.

    Printed without its numbers, a query looks like its structure without the letters; the numbers are checked at once.
    """
    letters, bare = re.findall("[ernu]", repr(structure)), re.sub("'[ernu]'", "", repr(structure)).encode()
    text = "\n".join(map(repr, queries)).encode()
    if text.translate(None, _NUMBERS) != b"\n".join([bare] * len(queries)):
        strange = next(query for query in queries if repr(query).encode().translate(None, _NUMBERS) != bare)
        raise _strange(path, structure, strange)
    numbers = np.fromiter(map(int, re.findall(rb"-?\d+", text)), dtype=np.int64).reshape(len(queries), len(letters))
    is_id = np.array([letter not in _CODES for letter in letters])
    codes = np.array([_CODES.get(letter, 0) for letter in letters])
    wrong = np.flatnonzero(np.where(is_id, numbers < 0, numbers != codes).any(axis=1))
    if len(wrong):
        raise _strange(path, structure, queries[int(wrong[0])])
    ids = numbers[:, is_id]
    order = np.lexsort(ids.T[::-1])
    return ids[order], [queries[index] for index in order.tolist()]


def _strange(path: Path, structure: object, query: object) -> SourceError:
    return SourceError(path, None, f"{clipped(repr(query))} has not the structure {clipped(repr(structure))}")


def _sets(path: Path, rows: list[object], entities: int) -> Sets:
    members, lengths = read_members(path, rows)
    if np.any((members < 0) | (members >= entities)):
        raise SourceError(path, None, f"an answer does not exist: there are {entities} entities")
    packed = np.sort(np.repeat(np.arange(len(rows)), lengths) * entities + members)
    row_of, values = np.divmod(packed[np.diff(packed, prepend=-1) > 0], max(entities, 1))
    return Sets(entities, np.searchsorted(row_of, np.arange(len(rows) + 1)), values.astype(np.int32))


def _joined(one: OriginalQueries, other: OriginalQueries) -> OriginalQueries:
    """Queries of two structures that differ in the order of branches only."""
    ids = np.concatenate([one.ids, other.ids])
    return OriginalQueries(ids, Sets.stack([one.easy, other.easy]), Sets.stack([one.hard, other.hard]))


def _misfit(graph: Graph, shape: Query, queries: OriginalQueries) -> str | None:
    if len(graph.entities) != queries.hard.entities:
        return f"the set is of {queries.hard.entities} entities, the graph has {len(graph.entities)}"
    return None if fits(graph.at("test"), shape, queries.ids) else "it names ids that the graph does not have"


def _compare(
    graph: Graph, split: Split, shape: Query, stored: OriginalQueries, progress: Callable[[int], object] | None
) -> tuple[int, list[str]]:
    """The number of hard answers, and what does not agree with the stored ones."""
    if problem := _misfit(graph, shape, stored):
        return 0, [problem]
    found = label(graph, split, {shape: stored.ids}, progress=progress)[shape]
    hard = ((found.hard - stored.hard).sizes > 0) | ((stored.hard - found.hard).sizes > 0)
    # The authors' program counts lost answers as easy: its easy answers are all those on the smaller graph.
    easy = (stored.easy - found.easy - found.lost).sizes > 0
    if (split, nickname(shape)) != _INCOMPLETE:
        easy |= (found.easy - stored.easy).sizes > 0
    return int(found.hard.sizes.sum()), [
        f"the {which} answers of {int(differ.sum())} queries differ from the stored ones"
        for which, differ in (("hard", hard), ("easy", easy))
        if differ.any()
    ]
