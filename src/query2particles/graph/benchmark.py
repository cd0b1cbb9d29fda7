"""A benchmark folder opens as a graph: integer triples, with names beside them.

    train.txt valid.txt test.txt        head<TAB>relation<TAB>tail, each also .xz or .gz
    entities.tsv relations.tsv          id<TAB>name<TAB>label, likewise
    about.json                          optional: name, attribution

Published graphs come in two forms: with forward edges only, or, as BetaE stores them, with every edge followed by its
inverse, relation 2k + 1 being the inverse of 2k and named like it with `_reverse` behind; then each edge must have its
inverse in the same file. Here both forms have the same directed relations 2k and 2k + 1.
"""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from query2particles.errors import GraphError, SourceError, clipped
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split, checked_about
from query2particles.graph.readers import legible
from query2particles.graph.tables import complaint
from query2particles.graph.vocabulary import Vocabulary

__all__ = [
    "find_file",
    "is_benchmark_folder",
    "open_benchmark",
    "read_bytes",
    "read_triples",
    "read_vocabulary",
    "without_inverse",
]

_REVERSE = "_reverse"
_ENDINGS = ("", ".xz", ".gz")


def is_benchmark_folder(folder: Path) -> bool:
    return find_file(folder, "train.txt") is not None and find_file(folder, "entities.tsv") is not None


def open_benchmark(folder: Path) -> Graph:
    """The graph of a benchmark folder."""
    entities = read_vocabulary(_required(folder, "entities.tsv"))
    names, labels = read_vocabulary(_required(folder, "relations.tsv"))
    both_ways = (
        len(names) > 0
        and len(names) % 2 == 0
        and all(inverse == name + _REVERSE for name, inverse in zip(names[::2], names[1::2], strict=True))
    )
    step = 2 if both_ways else 1
    relations = Vocabulary.of(names[::step], labels[::step])
    facts: dict[Split, tuple[Ints, Ints, Ints]] = {}
    for split in SPLITS:
        path = find_file(folder, f"{split}.txt")
        if path is not None:
            facts[split] = read_triples(path, len(entities[0]), len(names), both_ways)
    about = {"name": legible(folder.resolve().name), **_about(folder / "about.json")}
    return Graph.of(Vocabulary.of(*entities), relations, facts, about)


def _about(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        told = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise SourceError(path, line, f"is not JSON: {error}") from error
    try:
        return checked_about(told)
    except ValueError as error:
        raise SourceError(path, None, str(error)) from error


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in `folder`, plain or compressed."""
    return next((path for ending in _ENDINGS if (path := folder / (name + ending)).is_file()), None)


def read_bytes(path: Path) -> bytes:
    """The content of a plain, .xz or .gz file."""
    try:
        match path.suffix:
            case ".xz":
                return lzma.decompress(path.read_bytes())
            case ".gz":
                return gzip.decompress(path.read_bytes())
            case _:
                return path.read_bytes()
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise SourceError(path, None, f"cannot be read: {error}") from error


def read_vocabulary(path: Path) -> tuple[list[str], list[str]]:
    """The names and labels of a file of lines `id<TAB>name<TAB>label`, ids from 0 on; the label may be left out."""
    ids: dict[str, int] = {}
    labels = []
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise SourceError(path, None, f"is not UTF-8: {error.reason}") from error
    # Not splitlines: that also splits at U+2028 and the like, which names may hold.
    lines = text.removesuffix("\n").split("\n") if text else []
    for index, line in enumerate(lines):
        fields = line.removesuffix("\r").split("\t")
        if len(fields) not in (2, 3) or fields[0] != str(index):
            raise SourceError(path, index + 1, f"expected {index}<TAB>name<TAB>label, found {line[:80]!r}")
        name, label = fields[1], fields[-1]
        if (wrong := complaint(name)) is not None:
            raise SourceError(path, index + 1, f"the name {wrong}")
        if ids.setdefault(name, index) != index:
            raise SourceError(
                path, index + 1, f"the name {clipped(name)!r} stands for two ids, {ids[name]} and {index}"
            )
        labels.append(label if label.strip() else name)
    return list(ids), labels


def _required(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise GraphError(f"{folder} has no {name} (plain, .xz or .gz): it is not a benchmark folder")
    return path


def read_triples(path: Path, entities: int, relations: int, both_ways: bool) -> tuple[Ints, Ints, Ints]:
    """Heads, stored relations and tails."""
    text = read_bytes(path).replace(b"\r\n", b"\n")
    if text and not text.endswith(b"\n"):
        text += b"\n"
    lines = text.count(b"\n")
    if text.translate(None, delete=b"0123456789") != b"\t\t\n" * lines:
        raise _first_bad_line(path, text)
    numbers = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" ")
    if len(numbers) != 3 * lines:  # somewhere no digit stands between two tabs
        raise _first_bad_line(path, text)
    heads, between, tails = numbers.reshape(-1, 3).T
    for what, column, count in (
        ("entity", heads, entities),
        ("relation", between, relations),
        ("entity", tails, entities),
    ):
        outside = np.flatnonzero((column < 0) | (column >= count))
        if len(outside):
            line = int(outside[0])
            raise SourceError(path, line + 1, f"{what} {column[line]} does not exist: there are {count}")
    if not both_ways:
        return heads, between, tails
    lonely = without_inverse(heads, between, tails)
    if len(lonely):
        line = int(lonely[0])
        inverse = f"{tails[line]}\t{between[line] ^ 1}\t{heads[line]}"
        raise SourceError(path, line + 1, f"relations come as pairs of inverses here, but there is no {inverse!r}")
    forward = between % 2 == 0
    return heads[forward], between[forward] // 2, tails[forward]


def without_inverse(heads: Ints, between: Ints, tails: Ints) -> Ints:
    """The places of the edges (h, 2k, t) without an edge (t, 2k + 1, h) among them, and the reverse; repeats may be."""
    first, second = slice(0, None, 2), slice(1, None, 2)
    edges = np.stack([heads, between, tails])
    if np.array_equal(edges[:, second], np.stack([tails[first], between[first] ^ 1, heads[first]])):
        return np.zeros(0, dtype=np.int64)  # each is followed by its inverse, as published: no need to sort
    inverted = between % 2 == 1
    facts = np.stack([np.where(inverted, tails, heads), between // 2, np.where(inverted, heads, tails)])
    order = np.lexsort(facts)
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = np.any(facts[:, order[1:]] != facts[:, order[:-1]], axis=0)
    starts = np.flatnonzero(fresh)
    directions = np.where(inverted, 2, 1)[order]
    paired = np.bitwise_or.reduceat(directions, starts) == 3
    return np.sort(order[~np.repeat(paired, np.diff(np.append(starts, len(order))))])


def _first_bad_line(path: Path, text: bytes) -> SourceError:
    for number, line in enumerate(text.split(b"\n"), start=1):
        fields = line.split(b"\t")
        if len(fields) != 3 or not all(field.isdigit() for field in fields):
            shown = line[:80].decode(errors="replace")
            return SourceError(path, number, f"expected head<TAB>relation<TAB>tail as numbers, found {shown!r}")
    return SourceError(path, None, "expected lines of head<TAB>relation<TAB>tail as numbers")
