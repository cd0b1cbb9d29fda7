"""The sampler: every rule of the procedure, its determinism, and its distribution."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from query2particles.errors import SamplingError
from query2particles.graph import edges as edges_module
from query2particles.graph.edges import Edges
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph, Split, smaller
from query2particles.plain import PlainGraph, plain_draw, plain_one_hop
from query2particles.query.algebra import (
    SHAPES,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    canonical,
    ground,
    has_complement,
    query_ids,
    shape_named,
)
from query2particles.workload.benchmark import read_set
from query2particles.workload.sample import draw_answers, draw_queries, sample_shape
from worlds import TABLES, oracle, random_graph, successors

GRAPH = random_graph(21, entities=60, relations=5, facts=500)
ODD = ["i(p(e),u(p(e),p(e)))", "p(p(i(p(e),p(e))))", "i(p(e),n(i(p(e),p(e))))", "u(p(p(e)),p(i(p(e),n(p(e)))))"]
ALL = [*SHAPES, *ODD]


def chain(query: Query) -> list[int]:
    """The relations of the chain that ends in `query`, last first."""
    relations = []
    while isinstance(query, Project):
        relations.append(query.relation)
        query = query.query
    return relations


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("name", ALL)
def test_every_rule_holds(name: str, split: Split) -> None:
    shape = shape_named(name)
    drawn = sample_shape(GRAPH, shape, 40, split=split, cap=15, seed=3, allow_fewer=True)
    assert len(drawn.ids) > 5
    known, everything = successors(GRAPH, split), frozenset(range(60))
    before = successors(GRAPH, smaller(split)) if split != "train" else None
    seen = set()
    for row, ids in enumerate(drawn.ids.tolist()):
        query = ground(shape, ids)
        assert query not in seen
        seen.add(query)
        after = oracle(query, known, everything)
        old = oracle(query, before, everything) if before is not None else set()
        assert set(drawn.labels.hard[row].tolist()) == after - old
        assert set(drawn.labels.easy[row].tolist()) == after & old
        assert 0 < len(after - old) <= 15
        if before is not None and has_complement(shape):
            assert 0 < len(old - after) <= 15
        check_branches(query)


def check_branches(query: Query) -> None:
    """No equal branches, and no step straight back within a chain."""
    if isinstance(query, Intersect | Union):
        assert len({canonical(branch) for branch in branches(query)}) == len(branches(query))
    relations = chain(query)
    assert all(later ^ 1 != earlier for later, earlier in pairwise(relations))
    for branch in branches(query):
        check_branches(branch)


@pytest.mark.parametrize("name", ["2p", "3in", ODD[0]])
def test_the_seed_decides_and_the_number_of_cores_does_not(name: str) -> None:
    def draw(seed: int, workers: int) -> list[list[int]]:
        shape = shape_named(name)
        drawn = sample_shape(GRAPH, shape, 30, split="test", cap=30, seed=seed, workers=workers, allow_fewer=True)
        return [list(map(int, ids)) for ids in drawn.ids]

    assert draw(1, 1) == draw(1, 2) == draw(1, 3)
    assert draw(1, 1) != draw(2, 1)


@pytest.mark.parametrize("name", ["2p", "3p", "2i", "ip", "up", "2in", "pni", ODD[3]])
def test_draws_are_distributed_as_one_at_a_time(name: str) -> None:
    """Every id comes as often as when queries are drawn one by one with plain Python."""
    shape, edges, plain = shape_named(name), GRAPH.at("test"), PlainGraph.of(GRAPH.at("test"))
    fast, _ = draw_queries(shape, 60_000, edges, np.random.default_rng(0), draw_answers(edges))
    generator, entities = random.Random(0), list(plain.outgoing)
    drawn = (plain_draw(shape, generator.choice(entities), plain, generator) for _ in range(20_000))
    slow = np.array([tuple(query_ids(query)) for query in drawn if query is not None])
    assert len(fast) / 60_000 == pytest.approx(len(slow) / 20_000, abs=0.02)
    for position in range(slow.shape[1]):
        shares = [np.bincount(ids[:, position], minlength=60) / len(ids) for ids in (fast, slow)]
        spread = np.sqrt(np.maximum(*shares) * (1 / len(fast) + 1 / len(slow)))
        assert (np.abs(shares[0] - shares[1]) < 5 * spread + 1e-3).all()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_large_graph_gives_the_same_queries_without_tables(
    split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Straight from the files, where nothing that grows with the edges may be built. Every entity here has an edge."""
    GRAPH.save(tmp_path / "graph")
    expected = {name: sample_shape(GRAPH, shape_named(name), 30, split=split, cap=15, allow_fewer=True) for name in ALL}
    monkeypatch.setattr(edges_module, "_LARGE", 1)
    monkeypatch.setattr(edges_module, "_BLOCK", 7)
    large = Graph.open(tmp_path / "graph")
    for name, small in expected.items():
        drawn = sample_shape(large, shape_named(name), 30, split=split, cap=15, allow_fewer=True)
        assert drawn.ids.tolist() == small.ids.tolist()
        for kind in ("easy", "hard", "lost"):
            one, other = (getattr(sample.labels, kind) for sample in (drawn, small))
            assert [one[row].tolist() for row in range(len(one))] == [other[row].tolist() for row in range(len(other))]
    every = sample_shape(large, SHAPES["1p"], None, split=split, cap=3).ids.tolist()
    for edges in large.levels.values():
        assert not TABLES & edges.__dict__.keys()
    monkeypatch.undo()
    assert every == sample_shape(GRAPH, SHAPES["1p"], None, split=split, cap=3).ids.tolist()


def test_answers_of_a_large_graph_are_entities_with_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as likely, though most entities here have none."""
    generator = np.random.default_rng(0)
    heads, tails = generator.choice(500, size=(2, 40))
    edges = Edges.of(heads, np.zeros(40, int), tails, entity_count=500, relation_count=1)
    connected = np.flatnonzero(np.diff(edges.row_bounds))
    monkeypatch.setattr(edges_module, "_LARGE", 1)
    drawn = draw_answers(edges)(generator, 20_000)
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == connected.tolist()
    expected = 20_000 / len(connected)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_one_hop_queries_are_all_there() -> None:
    """1p is every (head, relation) of the split's own facts with at most cap answers there."""
    drawn = sample_shape(GRAPH, SHAPES["1p"], None, split="test", cap=2)
    large, small = successors(GRAPH, "test"), successors(GRAPH, "valid")
    plain = plain_one_hop(PlainGraph.of(GRAPH.at("test")), PlainGraph.of(GRAPH.at("valid")), 2)
    assert {tuple(query_ids(query)) for query, _, _ in plain} == {tuple(ids) for ids in drawn.ids.tolist()}
    expected = {key for key, tails in large.items() if 0 < len(tails - small.get(key, set())) <= 2}
    assert {tuple(ids) for ids in drawn.ids.tolist()} == expected
    fewer = sample_shape(GRAPH, SHAPES["1p"], 10, split="test", cap=2)
    assert {tuple(ids) for ids in fewer.ids.tolist()} < expected
    assert len(fewer.ids) == 10


def test_a_shape_that_cannot_be_grounded_often_enough_says_so() -> None:
    with pytest.raises(SamplingError, match=r"only [\d,]+ of 100,000 3i queries could be grounded on the test split"):
        sample_shape(random_graph(2, entities=6, relations=1, facts=9), SHAPES["3i"], 100_000, split="test", cap=10)
    without_splits = Graph(GRAPH.entities, GRAPH.relations, dict.fromkeys(GRAPH.levels, GRAPH.at("train")))
    with pytest.raises(SamplingError, match=r"has no test facts.*--split train"):
        sample_shape(without_splits, SHAPES["2p"], 5, split="test", cap=10, allow_fewer=True)
    lonely = sample_shape(
        random_graph(2, entities=2, relations=1, facts=5), SHAPES["3i"], 5, split="train", cap=9, allow_fewer=True
    )
    assert (len(lonely.ids), len(lonely.labels.hard)) == (0, 0)
    with pytest.raises(SamplingError, match="cannot all be listed"):
        sample_shape(GRAPH, SHAPES["2p"], None, split="test", cap=10)


@pytest.mark.benchmark
def test_published_one_hop_queries(data: Path) -> None:
    graph = open_graph(data / "FB15k-237")
    stored = read_set(data / "FB15k-237" / "betae-resampled", "test", ["1p"])[SHAPES["1p"]]
    drawn = sample_shape(graph, SHAPES["1p"], None, split="test", cap=120)
    assert sorted(drawn.ids.tolist()) == sorted(stored.tolist())


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("name", "hard"), [("2p", 14.9), ("3p", 17.5), ("2i", 5.7), ("ip", 17.4), ("2in", 12.9), ("pin", 16.0)]
)
def test_hard_answers_are_as_many_as_in_the_official_set(data: Path, name: str, hard: float) -> None:
    """BetaE's official NELL test set, in the mean over queries; the same procedure must come close."""
    drawn = sample_shape(open_graph(data / "NELL"), SHAPES[name], 4000, split="test", cap=80)
    assert drawn.labels.hard.sizes.mean() == pytest.approx(hard, rel=0.15)
