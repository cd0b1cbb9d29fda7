"""The exact engine against brute force."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from query2particles.engine import exact as exact_module
from query2particles.engine.exact import Exact, exact_answers, exact_answers_of, exact_nodes
from query2particles.errors import GraphError, QueryError
from query2particles.graph import edges as edges_module
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.plain import PlainGraph, plain_answers
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Project,
    Query,
    abstract,
    branches,
    ground,
    has_complement,
    query_ids,
)
from worlds import TABLES, oracle, queries, random_graph, random_query, successors

GRAPH = random_graph(11, entities=14, relations=3, facts=60)
EVERYTHING = frozenset(range(14))
KNOWN = {split: successors(GRAPH, split) for split in SPLITS}


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(queries(14, 3, max_leaves=8), st.sampled_from(SPLITS))
def test_ten_thousand_random_trees(query: Query, split: Split) -> None:
    found = exact_answers_of(GRAPH.at(split), query)
    assert set(found[0].tolist()) == oracle(query, KNOWN[split], EVERYTHING)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_mixed_shapes(seed: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batched = alone = brute force, whatever the chunks."""
    monkeypatch.setattr(exact_module, "_CHUNK", 37)
    generator = random.Random(seed)
    graph = random_graph(seed)
    split = SPLITS[seed % 3]
    known, everything = successors(graph, split), frozenset(range(30))
    batch: dict[Query, list[tuple[int, ...]]] = {}
    expected: dict[Query, list[set[int]]] = {}
    for _ in range(400):
        query = random_query(generator, 30, 4)
        shape, ids = abstract(query)
        batch.setdefault(shape, []).append(ids)
        expected.setdefault(shape, []).append(oracle(query, known, everything))
    answered: list[int] = []
    found = exact_answers(
        graph.at(split),
        {shape: np.array(ids) for shape, ids in batch.items()},
        workers=workers,
        progress=answered.append,
    )
    assert sum(answered) == 400
    for shape, rows in expected.items():
        assert [set(found[shape][row].tolist()) for row in range(len(rows))] == rows
        assert found[shape].sizes.tolist() == [len(row) for row in rows]


def test_a_large_graph_has_the_same_answers_without_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Straight from the files, where nothing that grows with the edges may be built."""
    graph = random_graph(4)
    graph.save(tmp_path / "graph")
    monkeypatch.setattr(edges_module, "_LARGE", 1)
    monkeypatch.setattr(edges_module, "_BLOCK", 5)
    edges = Graph.open(tmp_path / "graph").at("test")
    known, everything = successors(graph, "test"), frozenset(range(30))
    generator = random.Random(0)
    batch: dict[Query, list[tuple[int, ...]]] = {}
    for _ in range(600):
        shape, ids = abstract(random_query(generator, 30, 4))
        batch.setdefault(shape, []).append(ids)
    for shape, found in exact_answers(edges, {shape: np.array(ids) for shape, ids in batch.items()}).items():
        for row, ids in enumerate(batch[shape]):
            assert set(found[row].tolist()) == oracle(ground(shape, ids), known, everything)
    assert not TABLES & edges.__dict__.keys()


def test_damage_in_a_large_graph_is_found_where_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    random_graph(4).save(tmp_path / "graph")
    monkeypatch.setattr(edges_module, "_LARGE", 1)
    for part, value in (("tails", 30), ("tails", -1), ("offsets", 10**6), ("offsets", -3)):
        path = tmp_path / "graph" / f"test-{part}.npy"
        whole = np.load(path)
        damaged = whole.copy()
        damaged[1:-1] = value
        np.save(path, damaged)
        everything = Project(Complement(Project(Anchor(0), 0)), 1)
        with pytest.raises(GraphError, match="import it again"):
            exact_answers_of(Graph.open(tmp_path / "graph").at("test"), Project(everything, 2))
        np.save(path, whole)


def test_complements_stay_complements() -> None:
    sets = exact_answers_of(GRAPH.at("test"), Complement(Anchor(3)))
    assert sets.complemented
    assert sets.values.tolist() == [3]
    assert sets.sizes.tolist() == [13]


def test_empty_batches_keep_their_kind() -> None:
    negated, _ = abstract(Complement(Anchor(0)))
    found = exact_answers(GRAPH.at("test"), {negated: np.zeros((0, 1), int), SHAPES["2i"]: np.zeros((0, 4), int)})
    assert found[negated].complemented
    assert not found[SHAPES["2i"]].complemented
    assert [len(sets.listed()) for sets in found.values()] == [0, 0]
    assert exact_answers(GRAPH.at("test"), {}) == {}


@given(queries(14, 3))
def test_scores_are_membership(query: Query) -> None:
    edges = GRAPH.at("test")
    sets = exact_answers_of(edges, query)
    scores = Exact(edges).score(sets)
    assert set(np.flatnonzero(scores[0]).tolist()) == set(sets[0].tolist())
    some = np.array([3, 0, 7])
    assert Exact(edges).score(sets, some).tolist() == [scores[0, some].tolist()]
    assert Exact(edges).score(sets, some[None, :]).tolist() == [scores[0, some].tolist()]


@settings(max_examples=500)
@given(queries(14, 3, max_leaves=8))
def test_the_yardstick_is_right(query: Query) -> None:
    """What `q2p bench` measures against gives the same answers as the definition."""
    assert plain_answers(query, PlainGraph.of(GRAPH.at("test"))) == oracle(query, KNOWN["test"], EVERYTHING)


@given(queries(14, 3))
def test_answers_of_positive_queries_only_grow(query: Query) -> None:
    if has_complement(query):
        return
    small, large = (set(exact_answers_of(GRAPH.at(split), query)[0].tolist()) for split in ("train", "test"))
    assert small <= large


def test_bulk_answers_agree_with_small_ones() -> None:
    """Large batches look rows up in a table, small ones by bisection."""
    graph = random_graph(2)
    shape = SHAPES["2p"]
    ids = np.random.default_rng(0).integers((30, 8, 8), size=(5000, 3))
    many = exact_answers(graph.at("test"), {shape: ids})[shape]
    fresh = random_graph(2)
    for row in range(0, 5000, 500):
        entity, first, second = ids[row].tolist()
        alone = exact_answers_of(fresh.at("test"), Project(Project(Anchor(entity), first), second))
        assert many[row].tolist() == alone[0].tolist()


@pytest.mark.parametrize("name", SHAPES)
def test_the_answers_of_all_parts_come_in_the_order_of_the_plan(name: str) -> None:
    """Those of the whole query are the last; each is the oracle's of its part."""

    def parts(query: Query) -> list[Query]:
        return [part for branch in branches(query) for part in parts(branch)] + [query]

    generator, shape = np.random.default_rng(4), SHAPES[name]
    ids = generator.integers(6, size=(10, len(tuple(query_ids(shape)))))
    nodes = exact_nodes(GRAPH.at("train"), {shape: ids})[shape]
    whole = exact_answers(GRAPH.at("train"), {shape: ids}, workers=1)[shape]
    for row, own in enumerate(ids.tolist()):
        expected = [oracle(part, KNOWN["train"], EVERYTHING) for part in parts(ground(shape, own))]
        assert [set(sets[row].tolist()) for sets in nodes] == expected
        assert nodes[-1][row].tolist() == whole[row].tolist()
    with pytest.raises(QueryError, match="does not have"):
        exact_nodes(GRAPH.at("train"), {shape: ids + 14})
