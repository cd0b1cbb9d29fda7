"""Graphs: nested levels, inverses, folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import GraphError, UsageError
from query2particles.graph import edges as edges_module
from query2particles.graph.edges import Edges
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import SPLITS, Graph, smaller
from query2particles.graph.vocabulary import Vocabulary
from worlds import named_graph, random_graph

TRIPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=40)


def edges_of(triples: list[tuple[int, int, int]]) -> Edges:
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return Edges.of(columns[0], columns[1], columns[2], entity_count=7, relation_count=3)


@given(TRIPLES)
def test_edges_hold_each_fact_once_in_both_directions(triples: list[tuple[int, int, int]]) -> None:
    edges = edges_of(triples)
    assert edges.facts == len(set(triples))
    for head in range(7):
        for relation in range(3):
            forward = sorted({t for h, r, t in triples if (h, r) == (head, relation)})
            backward = sorted({h for h, r, t in triples if (t, r) == (head, relation)})
            assert edges.tails_of(head, 2 * relation).tolist() == forward
            assert edges.tails_of(head, 2 * relation + 1).tolist() == backward
            assert all(edges.has(head, 2 * relation, tail) == (tail in forward) for tail in range(7))
        leaving = {2 * r for h, r, _ in triples if h == head} | {2 * r + 1 for _, r, t in triples if t == head}
        assert edges.relations_of(head).tolist() == sorted(leaving)


@given(TRIPLES)
def test_bulk_look_ups_agree_by_table_and_by_bisection(triples: list[tuple[int, int, int]]) -> None:
    by_bisection, by_table = edges_of(triples), edges_of(triples)
    entities, relations = (grid.ravel() for grid in np.meshgrid(np.arange(7), np.arange(6)))
    slow = by_bisection.rows_of(entities, relations)
    by_table.prepare(edges_module._BULK)
    assert "_row_table" in by_table.__dict__
    assert by_table.rows_of(entities.astype(np.int32), relations.astype(np.int32)).tolist() == slow.tolist()
    lengths = [len(by_bisection.tails_of(e, r)) for e, r in zip(entities.tolist(), relations.tolist(), strict=True)]
    assert by_bisection.lengths_of(entities, relations).tolist() == lengths


@given(TRIPLES)
def test_wide_ids_sort_the_same(triples: list[tuple[int, int, int]]) -> None:
    """Where head, relation and tail do not fit one 64-bit number, they are sorted as three."""
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    wide = Edges.of(columns[0], columns[1], columns[2], entity_count=2**31, relation_count=3)
    narrow = edges_of(triples)
    assert wide.tails.tolist() == narrow.tails.tolist()
    assert wide.offsets.tolist() == narrow.offsets.tolist()
    assert wide.keys.tolist() == narrow.keys.tolist()


def test_levels_nest() -> None:
    graph = random_graph(3)
    for large in SPLITS[1:]:
        less, more = graph.at(smaller(large)), graph.at(large)
        for row, key in enumerate(less.keys.tolist()):
            tails = less.tails[less.offsets[row] : less.offsets[row + 1]]
            assert set(tails.tolist()) <= set(more.tails_of(*divmod(key, less.relations)).tolist())
    with pytest.raises(GraphError):
        smaller("train")
    assert sum(graph.facts().values()) == graph.at("test").facts


def test_a_graph_without_splits_is_the_same_on_every_level() -> None:
    graph = named_graph()
    assert graph.at("train") is graph.at("valid") is graph.at("test")
    assert graph.facts() == {"train": 9, "valid": 0, "test": 0}


def test_no_facts_is_an_error() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    with pytest.raises(GraphError, match="no facts"):
        Graph.of(Vocabulary.of(["a"]), Vocabulary.of(["r"]), {"train": (nothing, nothing, nothing)})


@pytest.mark.parametrize("graph", [named_graph(), random_graph(1)], ids=lambda graph: graph.name)
def test_saved_and_opened_it_is_the_same(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "graph")
    again = open_graph(tmp_path / "graph")
    assert again.fingerprint == graph.fingerprint
    assert again.about == graph.about
    for split in SPLITS:
        for part in ("keys", "offsets", "tails"):
            assert np.array_equal(getattr(again.at(split), part), getattr(graph.at(split), part))
    assert isinstance(again.at("train").tails, np.memmap)
    assert not again.at("train").tails.flags.writeable


def test_broken_graph_folders_say_so(tmp_path: Path) -> None:
    named_graph().save(tmp_path / "graph")
    manifest = tmp_path / "graph" / "graph.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "format": 99}))
    with pytest.raises(GraphError, match="format 99"):
        open_graph(tmp_path / "graph")
    manifest.write_text("{")
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")
    manifest.write_text(json.dumps(told))
    (tmp_path / "graph" / "train-tails.npy").write_bytes(b"")
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


def test_what_is_no_graph_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "triples.tsv"):
        with pytest.raises(UsageError, match="q2p graph import"):
            open_graph(place)


def test_foreign_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"letters\.txt"):
        named_graph().save(tmp_path)
    assert (tmp_path / "letters.txt").read_text() == "dear"
