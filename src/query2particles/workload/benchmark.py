r"""Query sets as folders of JSON lines, the form in which the benchmarks are kept.

    <split>-<shape>.jsonl.xz              one query a line, in the nested form of `query/nested`
    <split>-<shape>-missing<N>.jsonl.xz   only answers that lack exactly N edges are hard (`workload/hardness`)
    counts.json                           for each file: queries, totals, and a SHA-256 of every hard-answer set

Answers are not stored, they follow from the graph. `hard_sha256` is taken over the sorted lines
`query + " " + hard answers, ascending, joined by commas + "\n"`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import lzma
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from query2particles.engine.exact import Batch, fits
from query2particles.engine.sets import Sets
from query2particles.errors import QueryError, SourceError, UsageError, WorkloadError
from query2particles.files import check_replaceable, new_folder
from query2particles.graph.benchmark import read_bytes
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.query.algebra import Query, abstract, nickname, numbered, query_ids
from query2particles.query.nested import from_lists, nested_template
from query2particles.workload.hardness import label_missing
from query2particles.workload.labels import Labels

__all__ = [
    "COUNTS",
    "Check",
    "check_addable",
    "check_set",
    "hard_digest",
    "is_set_file",
    "query_files",
    "read_counts",
    "read_queries",
    "read_set",
    "read_set_with_missing",
    "write_set",
]

COUNTS = "counts.json"
_ENDINGS = (".jsonl", ".jsonl.xz", ".jsonl.gz")
_DIGITS = b"0123456789"
_LARGEST_ID = 2**63 - 1
_MISSING = re.compile(r"-missing([0-9]+)$")


@dataclass(frozen=True)
class Check:
    """What recomputing one file of queries showed."""

    name: str
    queries: int
    hard: int
    problem: str | None
    checksum: bool  # whether the folder stores a checksum to compare with


def query_files(folder: Path) -> dict[tuple[Split, str], Path]:
    """The query files of a set: {(split, shape's name, missing edges where it has them): path}, by their names."""
    found: dict[tuple[Split, str], Path] = {}
    for path in sorted(folder.iterdir()):
        stem = path.name.removesuffix(".xz").removesuffix(".gz")
        for split in SPLITS:
            if stem.startswith(f"{split}-") and stem.endswith(".jsonl"):
                found[split, stem.removeprefix(f"{split}-").removesuffix(".jsonl")] = path
    return found


def read_set(folder: Path, split: Split, shapes: Iterable[str] | None = None) -> dict[Query, Ints]:
    """The queries of one split of a set, all shapes or those named."""
    return read_set_with_missing(folder, split, shapes)[0]


def read_set_with_missing(
    folder: Path, split: Split, shapes: Iterable[str] | None = None
) -> tuple[dict[Query, Ints], dict[Query, Ints]]:
    """As `read_set`; and of each query how many edges its hard answers lack, 0 where any number counts."""
    wanted = None if shapes is None else set(shapes)
    batch: dict[Query, list[Ints]] = {}
    missing: dict[Query, list[Ints]] = {}
    for (of, name), path in query_files(folder).items():
        if of == split and (wanted is None or _MISSING.sub("", name) in wanted):
            for shape, ids in read_queries(path).items():
                batch.setdefault(shape, []).append(ids)
                missing.setdefault(shape, []).append(np.full(len(ids), _missing_in(name)))
    if not batch:
        which = f" of {', '.join(sorted(wanted))}" if wanted else ""
        raise WorkloadError(
            f"{folder} has no {split} queries{which}; q2p sample GRAPH --split {split} --out {folder} draws some"
        )
    found, numbers = ({shape: np.concatenate(parts) for shape, parts in one.items()} for one in (batch, missing))
    return found, numbers


def _missing_in(name: str) -> int:
    """How many edges the hard answers of a file's queries lack, by its name; 0 where any number counts."""
    found = _MISSING.search(name)
    return int(found[1]) if found else 0


def read_queries(path: Path) -> dict[Query, Ints]:
    """The queries of one file, by shape."""
    return {shape: ids for shape, (ids, _) in _read_lines(path).items()}


def _read_lines(path: Path) -> dict[Query, tuple[Ints, list[bytes]]]:
    """The queries of one file, by shape, with their lines as stored."""
    text = read_bytes(path).removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").strip(b"\n")
    lines = text.split(b"\n") if text else []
    alike = _same_shape(text, len(lines))
    if alike is not None:
        return {alike[0]: (alike[1], lines)}
    found: dict[Query, tuple[list[tuple[int, ...]], list[bytes]]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            query = from_lists(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise SourceError(path, number, f"not JSON: {error}") from error
        except QueryError as error:
            raise SourceError(path, number, str(error)) from error
        ids = tuple(query_ids(query))
        if max(ids) > _LARGEST_ID:
            raise SourceError(path, number, f"the id {max(ids)} is too large")
        # As below: branches of one shape stay in the order in which they are stored.
        shape, columns = abstract(numbered(query))
        rows, own = found.setdefault(shape, ([], []))
        rows.append(tuple(ids[column] for column in columns))
        own.append(line)
    return {shape: (np.array(rows, dtype=np.int64), own) for shape, (rows, own) in found.items()}


def _same_shape(text: bytes, count: int) -> tuple[Query, Ints] | None:
    """The fast way: all lines alike but for their ids, so that the file without its digits is one line repeated."""
    first, _, _ = text.partition(b"\n")
    try:
        query = from_lists(json.loads(first))
    except (ValueError, RecursionError, QueryError):
        return None
    # Operator codes are −1 and −2 in every line alike: written as signs, they drop out with the digits.
    text = re.sub(rb"-2(?!\d)", b"--", re.sub(rb"-1(?!\d)", b"-", text))
    skeleton = text.partition(b"\n")[0].translate(None, _DIGITS)
    if text.translate(None, _DIGITS) != b"\n".join([skeleton] * count):
        return None
    spaced = text.translate(bytes.maketrans(b"[],-\n", b"     ")).decode("latin-1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            numbers = np.fromstring(spaced, dtype=np.int64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    # Stored branches may stand in another order than the shape's: their positions tell which column goes where.
    shape, columns = abstract(numbered(query))
    if len(numbers) != count * len(columns) or numbers.max() >= _LARGEST_ID:
        return None  # what does not fit was cut off at the largest number
    return shape, numbers.reshape(count, -1)[:, list(columns)]


def write_set(
    folder: Path,
    graph: Graph,
    split: Split,
    batch: Batch,
    labels: Mapping[Query, Labels],
    *,
    missing: Mapping[Query, Ints] | None = None,
    about: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write queries of one split into a set's folder; its other files stay. The folder changes in one step.

    With `missing`, of each query how many edges its hard answers lack, there is a file for each number. Queries that
    the folder has already are replaced only if `replace` says so.
    """
    if missing is None:
        missing = {shape: np.zeros(len(ids), dtype=np.int64) for shape, ids in batch.items()}
    files = [(shape, number) for shape in batch for number in np.unique(missing[shape]).tolist()]
    with new_folder(folder, replaces=is_set_file) as partial:
        check_addable(folder, graph, split, files, replace=replace)
        counts = read_counts(folder) if (folder / COUNTS).is_file() else {}
        if folder.is_dir():
            for path in folder.iterdir():
                shutil.copy2(path, partial / path.name)
        for shape, number in files:
            name = _file_name(split, shape, number)
            rows = np.flatnonzero(missing[shape] == number)
            lines = _lines(shape, batch[shape][rows])
            for ending in _ENDINGS:
                (partial / f"{name}{ending}").unlink(missing_ok=True)
            (partial / f"{name}.jsonl.xz").write_bytes(lzma.compress(b"".join(line + b"\n" for line in lines)))
            found = labels[shape].take(rows)
            counts[name] = {
                "queries": len(rows),
                "easy_total": int(found.easy.sizes.sum()),
                "hard_total": int(found.hard.sizes.sum()),
                "hard_sha256": hard_digest(lines, [found.hard]),
                "graph": graph.fingerprint,
                **(about or {}),
            }
        (partial / COUNTS).write_text(json.dumps(counts, indent=1) + "\n", "utf-8")


def check_addable(
    folder: Path, graph: Graph, split: Split, files: Iterable[tuple[Query, int]], *, replace: bool = False
) -> None:
    """Refuse, before any work, to add queries of another graph, or to lose queries that the folder has.

    A file is a shape and how many edges its hard answers lack, 0 where any number counts.
    """
    check_replaceable(folder, is_set_file)
    if not (folder / COUNTS).is_file():
        return
    counts = read_counts(folder)
    if any(entry.get("graph", graph.fingerprint) != graph.fingerprint for entry in counts.values()):
        raise UsageError(f"{folder} holds queries of another graph; name another folder")
    there = [name for file in files if (name := _file_name(split, *file)) in counts]
    if there and not replace:
        raise UsageError(f"{folder} has {', '.join(there)} already; name another folder, or say --replace")


def read_counts(folder: Path) -> dict[str, dict[str, Any]]:
    """What a set's folder stores of each of its files."""
    try:
        counts = json.loads((folder / COUNTS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{folder} has no readable {COUNTS}: {error}") from error
    if not isinstance(counts, dict) or not all(isinstance(entry, dict) for entry in counts.values()):
        raise WorkloadError(f"{folder / COUNTS} is not of the form {{file: {{queries: …, hard_sha256: …}}}}")
    return counts


def _file_name(split: Split, shape: Query, missing: int) -> str:
    """The split and the shape's name, or where that is too long for a file its hash: the lines tell the shape."""
    name = nickname(shape)
    stem = f"{split}-{name if len(name) <= 100 else hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{stem}-missing{missing}" if missing else stem


def is_set_file(name: str) -> bool:
    """Whether a file of that name in a set's folder is one of ours."""
    return name == COUNTS or name.endswith(_ENDINGS)


def hard_digest(lines: Iterable[bytes], hard: Sequence[Sets]) -> str:
    """The SHA-256 of queries with their hard answers."""
    rows = (sets[row] for sets in hard for row in range(len(sets)))
    described = sorted(
        line + b" " + ",".join(map(str, row.tolist())).encode() + b"\n" for line, row in zip(lines, rows, strict=True)
    )
    return hashlib.sha256(b"".join(described)).hexdigest()


def _lines(shape: Query, ids: Ints) -> list[bytes]:
    template = nested_template(shape).encode()
    return [template % tuple(row) for row in ids.tolist()]


def check_set(graph: Graph, folder: Path, *, progress: Callable[[int], object] | None = None) -> Iterator[Check]:
    """Recompute every answer set of a folder and compare it with the stored totals and checksums."""
    counts = read_counts(folder)
    files = {f"{split}-{name}": (split, path) for (split, name), path in query_files(folder).items()}
    for name in sorted(counts.keys() - files.keys()):
        yield Check(name, 0, 0, f"{COUNTS} lists it, but its file is missing", "hard_sha256" in counts[name])
    for name, (split, path) in files.items():
        queries, hard, problems = _compare(graph, split, path, _missing_in(name), counts.get(name), progress)
        yield Check(name, queries, hard, "; ".join(problems) or None, "hard_sha256" in counts.get(name, {}))


def _compare(
    graph: Graph,
    split: Split,
    path: Path,
    missing: int,
    stored: Mapping[str, Any] | None,
    progress: Callable[[int], object] | None,
) -> tuple[int, int, list[str]]:
    """The queries and hard answers of one file, and what does not agree with what is stored of it."""
    read = _read_lines(path)
    batch = {shape: ids for shape, (ids, _) in read.items()}
    queries = sum(map(len, batch.values()))
    if stored is None:
        return queries, 0, [f"{COUNTS} does not list it"]
    if stored.get("graph", graph.fingerprint) != graph.fingerprint:
        return queries, 0, ["it was drawn from another graph"]
    if not all(fits(graph.at(split), shape, ids) for shape, ids in batch.items()):
        return queries, 0, ["it names ids that the graph does not have"]
    numbers = {shape: np.full(len(ids), missing) for shape, ids in batch.items()}
    labels = label_missing(graph, split, batch, numbers, progress=progress)
    hard, easy = (
        sum(int(sets.sizes.sum()) for sets in several)
        for several in ([found.hard for found in labels.values()], [found.easy for found in labels.values()])
    )
    unanswered = sum(int((found.hard.sizes == 0).sum()) for found in labels.values())
    seen: dict[str, int | str] = {
        "queries": queries,
        "hard_total": hard,
        "easy_total": easy,
        "without_hard_answer": unanswered,
    }
    if "hard_sha256" in stored:
        lines = [line for _, own in read.values() for line in own]
        seen["hard_sha256"] = hard_digest(lines, [found.hard for found in labels.values()])
    return (
        queries,
        hard,
        [
            f"{key} is {_short(value)}, stored {_short(stored.get(key, 0))}"
            for key, value in seen.items()
            if value != stored.get(key, 0 if key == "without_hard_answer" else value)
        ],
    )


def _short(value: object) -> str:
    """A figure, or the first digits of a checksum."""
    return f"{value:,}" if isinstance(value, int) else f"{str(value)[:12]}…"
