"""The folders that the authors of the benchmarks published open as graphs.

    train.txt valid.txt test.txt     triples: ids with every edge in both directions (BetaE), or names, forward only
    train_ans_1c.pkl …               where there are no such files (Query2Box): the answers of 1p queries are the edges
    id2ent.pkl id2rel.pkl            {id: name} (BetaE); Query2Box says ind2ent.pkl, ind2rel.pkl
    ent2id.pkl rel2id.pkl            {name: id}, likewise; read where the others are missing
    stats.txt                        numentity: …, numrelations: …

Relation 2k + 1 is the inverse of 2k, and the two are named +name and -name (BetaE's FB15k and FB15k-237) or name and
name_reverse (NELL, Query2Box). Where nothing names them, ids are the names. Pickles are read as data, see `pickles`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from query2particles.errors import GraphError, SourceError, clipped
from query2particles.graph.benchmark import find_file, is_benchmark_folder, read_bytes, read_triples, without_inverse
from query2particles.graph.edges import Ints
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.graph.pickles import safe_load
from query2particles.graph.readers import legible
from query2particles.graph.vocabulary import Vocabulary

__all__ = ["is_original_folder", "open_original", "original_names", "read_members"]

_Edges: TypeAlias = tuple[Ints, Ints, Ints]

_NAMES: dict[str, tuple[str, ...]] = {
    kind: (f"id2{kind}.pkl", f"ind2{kind}.pkl", f"{kind}2id.pkl", f"{kind}2ind.pkl") for kind in ("ent", "rel")
}
_STATS = "stats.txt"
_ANSWERS: dict[Split, str] = {
    "train": "train_ans_1c.pkl",
    "valid": "valid_ans_1c_hard.pkl",
    "test": "test_ans_1c_hard.pkl",
}
"""The 1p queries of a split are all (head, relation) of its edges. Hard answers are the new ones: the split's own."""

_NO_LIMIT = 1 << 31


def is_original_folder(folder: Path) -> bool:
    if is_benchmark_folder(folder):
        return False
    beside = (*_NAMES["ent"], *_NAMES["rel"], _STATS, *(f"{split}-queries.pkl" for split in SPLITS))
    has_triples = find_file(folder, "train.txt") is not None
    return (folder / _ANSWERS["train"]).is_file() or (has_triples and any((folder / name).is_file() for name in beside))


def open_original(folder: Path) -> Graph:
    """The graph of an original folder, with its ids."""
    entities, directed = original_names(folder)
    if len(directed) % 2:
        raise GraphError(f"{folder} has {len(directed)} relations, which do not make pairs of inverses")
    stored = [_without_sign(*pair) for pair in zip(directed[::2], directed[1::2], strict=True)]
    about: dict[str, Any] = {"name": legible(folder.resolve().name)}
    facts: dict[Split, _Edges] = {}
    for split in SPLITS:
        path = find_file(folder, f"{split}.txt") or folder / _ANSWERS[split]
        if not path.is_file():
            continue
        if path.suffix == ".pkl":
            edges = _edges_of_answers(path, len(entities), len(directed))
        elif _is_numbered(path):
            edges = read_triples(path, len(entities), len(directed), both_ways=False)
        else:
            edges, dropped = _edges_by_name(path, entities, directed, stored)
            about["unseen_dropped"] = about.get("unseen_dropped", 0) + dropped
        facts[split] = _forward(path, edges)
    return Graph.of(Vocabulary.of(entities), Vocabulary.of(stored), facts, about)


def original_names(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the entities and of the relations, inverses among them, of an original folder."""
    entities, relations = _pickled_names(folder, "ent"), _pickled_names(folder, "rel")
    if entities is None or relations is None:
        counts = _counts(folder)
        entities = entities or list(map(str, range(counts[0])))
        relations = relations or list(map(str, range(counts[1])))
    return entities, relations


def read_members(path: Path, sets: Sequence[object]) -> tuple[Ints, Ints]:
    """Sets of ids from the pickle at `path`, end to end, and the size of each."""
    if not set(map(type, sets)) <= {set, frozenset, list, tuple}:
        raise SourceError(path, None, "expected sets of ids")
    rows: Any = sets
    if not set(map(type, chain.from_iterable(rows))) <= {int}:
        raise SourceError(path, None, "expected integers in the sets of ids")
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())), lengths


def _pickled_names(folder: Path, kind: str) -> list[str] | None:
    path = next((path for name in _NAMES[kind] if (path := folder / name).is_file()), None)
    if path is None:
        return None
    table = safe_load(path)
    if not isinstance(table, dict):
        raise SourceError(path, None, "expected a dictionary of ids and names")
    ids, names = list(table.keys()), list(table.values())
    if path.name.startswith(kind):
        ids, names = names, ids
    if not (set(map(type, ids)) <= {int} and set(map(type, names)) <= {str}):
        raise SourceError(path, None, "expected integers as ids and strings as names")
    if sorted(ids) != list(range(len(ids))):
        raise SourceError(path, None, f"expected each of the ids 0 … {len(ids) - 1} once")
    return [name for _, name in sorted(zip(ids, names, strict=True))]


def _counts(folder: Path) -> tuple[int, int]:
    """The numbers of entities and relations: from stats.txt, or else one more than the highest ids of the triples."""
    stats = folder / _STATS
    if stats.is_file():
        found = re.fullmatch(rb"\s*numentity:\s*(\d{1,9})\s+numrelations:\s*(\d{1,9})\s*", read_bytes(stats))
        if found is None:
            raise SourceError(stats, None, "expected the lines numentity: … and numrelations: …")
        return int(found[1]), int(found[2])
    entities = relations = 0
    for split in SPLITS:
        path = find_file(folder, f"{split}.txt") or folder / _ANSWERS[split]
        if path.is_file():
            pickled = path.suffix == ".pkl"
            heads, between, tails = (
                _edges_of_answers(path, _NO_LIMIT, _NO_LIMIT)
                if pickled
                else read_triples(path, _NO_LIMIT, _NO_LIMIT, both_ways=False)
            )
            entities = max(entities, int(np.max(heads, initial=-1)) + 1, int(np.max(tails, initial=-1)) + 1)
            relations = max(relations, int(np.max(between, initial=-1)) // 2 * 2 + 2)
    return entities, relations


def _without_sign(name: str, inverse: str) -> str:
    """The name that a pair of inverses shares."""
    return name[1:] if len(name) > 1 and name[0] == "+" and inverse == "-" + name[1:] else name


def _is_numbered(path: Path) -> bool:
    first = read_bytes(path).lstrip().partition(b"\n")[0]
    return all(field.isdigit() for field in first.split())


def _edges_by_name(
    path: Path, entities: Sequence[str], directed: Sequence[str], stored: Sequence[str]
) -> tuple[_Edges, int]:
    """The edges of triples of names. Those without ids are left out and counted, as the authors did."""
    entity_ids = {name: index for index, name in enumerate(entities)}
    relation_ids = {name: index for index, name in enumerate(directed)}
    relation_ids |= {name: 2 * index for index, name in enumerate(stored)}
    edges, dropped = [], 0
    try:
        text = read_bytes(path).decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise SourceError(path, None, f"is not UTF-8: {error.reason}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.removesuffix("\r").split("\t")
        if len(fields) != 3:
            raise SourceError(path, number, f"expected head<TAB>relation<TAB>tail, found {clipped(line)!r}")
        ids = entity_ids.get(fields[0]), relation_ids.get(fields[1]), entity_ids.get(fields[2])
        if None in ids:
            dropped += 1
        else:
            edges.append(ids)
    heads, between, tails = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    return (heads, between, tails), dropped


def _edges_of_answers(path: Path, entities: int, relations: int) -> _Edges:
    """The edges of {((head, (relation,)),): tails}."""
    answers = safe_load(path)
    if not isinstance(answers, dict):
        raise SourceError(path, None, "expected a dictionary of queries and answers")
    starts = []
    for query in answers:
        match query:
            case ((int() as head, (int() as relation,)),) if 0 <= head < entities and 0 <= relation < relations:
                starts.append((head, relation))
            case _:
                raise SourceError(path, None, f"expected ((head, (relation,)),), found {clipped(repr(query))}")
    tails, lengths = read_members(path, list(answers.values()))
    if np.any((tails < 0) | (tails >= entities)):
        raise SourceError(path, None, f"an answer does not exist: there are {entities} entities")
    heads, between = np.repeat(np.array(starts, dtype=np.int64).reshape(-1, 2), lengths, axis=0).T
    return heads, between, tails


def _forward(path: Path, edges: _Edges) -> _Edges:
    """The edges as facts; where inverses stand beside them, each must be the inverse of one."""
    heads, between, tails = edges
    forward = between % 2 == 0
    if not forward.all() and len(without_inverse(*edges)):
        raise SourceError(path, None, "the edges of relation 2k + 1 are not the inverses of those of relation 2k")
    return heads[forward], between[forward] // 2, tails[forward]
