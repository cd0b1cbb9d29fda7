"""A benchmark folder opens as a graph: integer triples, with names beside them.

    train.txt valid.txt test.txt        head<TAB>relation<TAB>tail, each also .xz or .gz
    entities.tsv relations.tsv          id<TAB>name<TAB>label, likewise
    about.json                          optional: name, attribution

Published graphs come in two forms: with forward edges only, or, as BetaE stores them, with every edge followed by its
inverse, relation 2k + 1 being the inverse of 2k and named like it with `_reverse` behind. Here both have the same
directed relations 2k and 2k + 1.
"""

from __future__ import annotations

import gzip
import json
import lzma
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from query2particles.errors import GraphError, SourceError
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.graph.vocabulary import Vocabulary

__all__ = ["find_file", "is_benchmark_folder", "open_benchmark", "read_bytes", "read_triples", "read_vocabulary"]

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
    about: dict[str, Any] = {"name": folder.resolve().name}
    described = folder / "about.json"
    if described.exists():
        about |= json.loads(described.read_text("utf-8"))
    return Graph.of(Vocabulary.of(*entities), relations, facts, about)


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
    names, labels = [], []
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise SourceError(path, None, f"is not UTF-8: {error.reason}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) not in (2, 3) or fields[0] != str(number - 1):
            raise SourceError(path, number, f"expected {number - 1}<TAB>name<TAB>label, found {line[:80]!r}")
        names.append(fields[1])
        labels.append(fields[-1])
    return names, labels


def _required(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise GraphError(f"{folder} has no {name} (plain, .xz or .gz): it is not a benchmark folder")
    return path


def read_triples(path: Path, entities: int, relations: int, both_ways: bool) -> tuple[Ints, Ints, Ints]:
    """Heads, stored relations and tails."""
    text = read_bytes(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            numbers = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" ")
        except (ValueError, DeprecationWarning, UnicodeDecodeError):
            numbers = np.zeros(1, dtype=np.int64)
    lines = text.count(b"\n") + (not text.endswith(b"\n") and len(text) > 0)
    if len(numbers) != 3 * lines or text.count(b"\t") != 2 * lines:
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
    forward = between % 2 == 0
    if 2 * int(forward.sum()) != len(forward):
        raise SourceError(path, None, "relations come as pairs of inverses here, but the edges do not")
    return heads[forward], between[forward] // 2, tails[forward]


def _first_bad_line(path: Path, text: bytes) -> SourceError:
    for number, line in enumerate(text.split(b"\n"), start=1):
        fields = line.split(b"\t")
        if len(fields) != 3 or not all(field.isdigit() for field in fields):
            shown = line[:80].decode(errors="replace")
            return SourceError(path, number, f"expected head<TAB>relation<TAB>tail as numbers, found {shown!r}")
    return SourceError(path, None, "expected lines of head<TAB>relation<TAB>tail as numbers")
