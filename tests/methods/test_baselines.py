"""The methods that learn nothing, against their equations spelled out entity by entity."""

from __future__ import annotations

import math
import random
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings

from query2particles.engine.exact import Exact, exact_answers_of
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.plan import compile_shapes
from query2particles.graph.edges import Edges
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.methods.baselines import FrequentTails, RelaxAndCount
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
)
from query2particles.workload.sample import sample_shape
from worlds import Successors, by_shape, queries, random_graph, random_query, successors

Floats = npt.NDArray[np.float32]

GRAPH = random_graph(11, entities=14, relations=3, facts=60)
Baseline = type[FrequentTails] | type[RelaxAndCount]
BASELINES = pytest.mark.parametrize("baseline", [FrequentTails, RelaxAndCount])


def scores_of(method: Method[Any], several: Sequence[Query]) -> Floats:
    """The scores of queries of mixed shapes in one batch, their branches as they stand; in their order."""
    batch, places = by_shape(several)
    plan = compile_shapes(tuple(batch), method.kind)
    states = execute(plan, method, [np.array(ids) for ids in batch.values()])
    scores = {shape: method.score(state) for shape, state in zip(batch, states, strict=True)}
    return np.array([scores[shape][row] for shape, row in places])


@dataclass(frozen=True)
class World:
    """The equations of both methods in plain Python."""

    known: Successors
    entities: int

    def sources(self, v: int, relation: int) -> list[int]:
        return [h for h in range(self.entities) if v in self.known.get((h, relation), ())]

    def operator(self, query: Query, below: list[list[float]]) -> list[float]:
        """One operator of FrequentTails."""
        everything = range(self.entities)
        edges = sum(map(len, self.known.values()))
        match query:
            case Anchor(entity):
                own = [float(v == entity) for v in everything]
            case Project(_, relation):
                ends = [len(self.sources(v, relation)) for v in everything]
                own = [count / max(sum(ends), 1) for count in ends]
            case Intersect():
                return [math.prod(values) for values in zip(*below, strict=True)]
            case Union():
                return [max(values) for values in zip(*below, strict=True)]
            case Complement():
                return [1 - value / max(*below[0], 1e-38) for value in below[0]]
        all_ends = [sum(v in tails for tails in self.known.values()) for v in everything]
        return [0.999 * value + 0.001 * count / edges for value, count in zip(own, all_ends, strict=True)]

    def likelihoods(self, query: Query) -> list[float]:
        return self.operator(query, [self.likelihoods(branch) for branch in branches(query)])

    def relaxed(self, query: Query) -> tuple[int, list[int], list[float]]:
        """c, m and x of RelaxAndCount."""
        everything = range(self.entities)
        below = [self.relaxed(branch) for branch in branches(query)]
        match query:
            case Anchor(entity):
                c, m = 1, [int(v != entity) for v in everything]
            case Project(_, relation):
                c = below[0][0] + 1
                m = [min([below[0][1][h] for h in self.sources(v, relation)], default=c) for v in everything]
            case Intersect():
                c, m = sum(c for c, _, _ in below), [sum(m[v] for _, m, _ in below) for v in everything]
            case Union():
                c, m = min(c for c, _, _ in below), [min(m[v] for _, m, _ in below) for v in everything]
            case Complement():
                c = below[0][0]
                m = [0 if missing else c for missing in below[0][1]]
        x = self.operator(query, [x for _, _, x in below])
        return c, m, [x[v] if m[v] else 1.0 for v in everything]

    def relaxed_scores(self, query: Query) -> list[float]:
        c, m, x = self.relaxed(query)
        tiny = float(np.finfo(np.float32).tiny)
        return [c - m[v] + 0.5 * (1 - math.log(max(x[v], tiny)) / math.log(tiny)) for v in range(self.entities)]


def small_edges(*facts: tuple[int, int, int]) -> Edges:
    heads, relations, tails = np.array(facts).T
    return Edges.of(heads, relations, tails, entity_count=6, relation_count=2)


EDGES = small_edges((0, 0, 1), (0, 0, 2), (3, 0, 2), (3, 1, 4), (2, 1, 4), (2, 1, 5))
"""0 –0→ 1, 0 –0→ 2, 3 –0→ 2, 3 –1→ 4, 2 –1→ 4, 2 –1→ 5; as directed relations, 0 and 2."""


def test_frequent_tails_by_hand() -> None:
    one_hop, two_hops, both, either, negated = scores_of(
        FrequentTails(EDGES),
        [
            Project(Anchor(5), 0),
            Project(Project(Anchor(0), 0), 2),
            Intersect((Project(Anchor(0), 0), Project(Anchor(4), 3))),
            Union((Project(Anchor(0), 0), Project(Anchor(0), 2))),
            Intersect((Project(Anchor(0), 2), Complement(Project(Anchor(3), 2)))),
        ],
    )
    # Every entity ends some of the 12 directed edges: 0: 2, 1: 1, 2: 4, 3: 2, 4: 2, 5: 1.
    background = np.array([2, 1, 4, 2, 2, 1]) / 12_000
    first = 0.999 * np.array([0, 1, 2, 0, 0, 0]) / 3 + background
    second = 0.999 * np.array([0, 0, 0, 0, 2, 1]) / 3 + background
    back = 0.999 * np.array([0, 0, 2, 1, 0, 0]) / 3 + background
    np.testing.assert_allclose(one_hop, first, rtol=1e-5)
    np.testing.assert_allclose(two_hops, second, rtol=1e-5)
    np.testing.assert_allclose(both, first * back, rtol=1e-5)
    np.testing.assert_allclose(either, np.maximum(first, second), rtol=1e-5)
    np.testing.assert_allclose(negated, second * (1 - second / second[4]), rtol=1e-5, atol=1e-6)


def counted(scores: Floats) -> npt.NDArray[np.int64]:
    """The number of satisfied conditions; likelihoods add 0 … ½ to it."""
    counts: npt.NDArray[np.int64] = np.rint(scores - 0.25).astype(np.int64)
    return counts


def test_relax_and_count_by_hand() -> None:
    queries_and_counts: list[tuple[Query, list[int]]] = [
        (Anchor(3), [0, 0, 0, 1, 0, 0]),
        (Project(Anchor(3), 0), [0, 1, 2, 0, 0, 0]),
        # 4 and 5 are reached from 2, which 0 reaches: all three. Nothing else ends a 1-edge.
        (Project(Project(Anchor(0), 0), 2), [0, 0, 0, 0, 3, 3]),
        # The anchor 1 reaches nothing: the last two hops are satisfied, over 2.
        (Project(Project(Anchor(1), 0), 2), [0, 0, 0, 0, 2, 2]),
        # Nothing ends an edge of the first hop and starts one of the second: the last hop alone.
        (Project(Project(Anchor(0), 2), 2), [0, 0, 0, 0, 1, 1]),
        (Intersect((Project(Anchor(0), 0), Project(Anchor(5), 3))), [0, 2, 4, 1, 0, 0]),
        # Of branches of 3 and 2 conditions, the shorter counts: 4 misses one of it, 1 none.
        (Union((Project(Project(Anchor(1), 0), 2), Project(Anchor(0), 0))), [0, 2, 2, 0, 1, 1]),
        (Complement(Project(Anchor(3), 0)), [2, 2, 0, 2, 2, 2]),
        (Intersect((Project(Anchor(0), 0), Complement(Project(Anchor(3), 0)))), [2, 4, 2, 2, 2, 2]),
    ]
    scores = scores_of(RelaxAndCount(EDGES), [query for query, _ in queries_and_counts])
    assert counted(scores).tolist() == [counts for _, counts in queries_and_counts]


def test_equal_counts_are_ordered_by_what_is_not_satisfied() -> None:
    """1 and 2 satisfy the first branch and are both reached by the second relation, 2 three times as often."""
    edges = small_edges((0, 0, 1), (0, 0, 2), (3, 1, 1), (3, 1, 2), (4, 1, 2), (5, 1, 2))
    scores = scores_of(RelaxAndCount(edges), [Intersect((Project(Anchor(0), 0), Project(Anchor(0), 2)))])[0]
    assert counted(scores).tolist() == [0, 3, 3, 0, 0, 0]
    assert scores[2] > scores[1] > scores[0]


def random_queries(seed: int, count: int, entities: int = 30, relations: int = 4) -> list[Query]:
    generator = random.Random(seed)
    return [random_query(generator, entities, relations) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_mixed_batches_against_the_equations(seed: int) -> None:
    graph = random_graph(seed)
    world = World(successors(graph, "train"), 30)
    several = random_queries(seed, 60)
    found = scores_of(FrequentTails(graph.at("train")), several)
    np.testing.assert_allclose(found, [world.likelihoods(query) for query in several], rtol=1e-4, atol=1e-4)
    found = scores_of(RelaxAndCount(graph.at("train")), several)
    np.testing.assert_allclose(found, [world.relaxed_scores(query) for query in several], rtol=1e-5, atol=1e-5)


@settings(max_examples=300, deadline=None)
@given(queries(14, 3, max_leaves=8))
def test_just_the_exact_answers_satisfy_everything(query: Query) -> None:
    """With complements or without; and they come before all others."""
    edges = GRAPH.at("train")
    scores = scores_of(RelaxAndCount(edges), [query])[0]
    answers = exact_answers_of(edges, query)[0].tolist()
    full = World(successors(GRAPH, "train"), 14).relaxed(query)[0]
    assert np.flatnonzero(scores >= full).tolist() == answers
    np.testing.assert_array_equal(scores[answers], full + 0.5)


@BASELINES
def test_batched_is_alone(baseline: Baseline) -> None:
    method = baseline(GRAPH.at("train"))
    several = random_queries(5, 80, entities=14, relations=3)
    alone = np.concatenate([scores_of(method, [query]) for query in several])
    np.testing.assert_array_equal(scores_of(method, several), alone)


@BASELINES
@pytest.mark.parametrize("operator", [Intersect, Union])
def test_the_order_of_branches_does_not_matter(baseline: Baseline, operator: type[Intersect] | type[Union]) -> None:
    generator = random.Random(2)
    edges = GRAPH.at("train")
    for _ in range(20):
        several = [random_query(generator, 14, 3, depth=3) for _ in range(3)]
        first, *others = scores_of(baseline(edges), [operator(order) for order in permutations(several)])
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-6)


@BASELINES
def test_ids_of_either_library_and_scores_of_some(baseline: Baseline) -> None:
    method: Method[Any] = baseline(GRAPH.at("train"))
    shapes = SHAPES["2in"], SHAPES["up"]
    ids = [np.array([[0, 1, 2, 3], [4, 5, 6, 0]]), np.array([[1, 0, 7, 2, 4]])]
    plan = compile_shapes(shapes, method.kind)
    with_numpy = execute(plan, method, ids)
    with_torch = execute(plan, method, [torch.from_numpy(rows) for rows in ids])
    for state, same in zip(with_numpy, with_torch, strict=True):
        scores = method.score(state)
        assert scores.dtype == np.float32
        np.testing.assert_array_equal(method.score(same), scores)
        some = np.array([3, 0, 3])
        np.testing.assert_array_equal(method.score(state, torch.from_numpy(some)), scores[:, some])
        each = np.stack([some + row for row in range(len(scores))])
        np.testing.assert_array_equal(method.score(state, each), np.take_along_axis(scores, each, axis=1))


@BASELINES
def test_no_queries_and_relations_without_edges(baseline: Baseline) -> None:
    edges = Edges.of(np.array([0]), np.array([0]), np.array([1]), entity_count=3, relation_count=2)
    method: Method[Any] = baseline(edges)
    plan = compile_shapes((SHAPES["pni"],), method.kind)
    assert method.score(execute(plan, method, [np.zeros((0, 5), dtype=int)])[0]).shape == (0, 3)
    scores = scores_of(method, [Project(Anchor(0), 2), Complement(Project(Anchor(0), 2))])
    assert scores[0, 0] == scores[0, 1] > scores[0, 2], "only their edges tell the entities apart"
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("shape", ["3p", "3i", "pni"])
def test_atlas_is_counted_in_no_time(atlas: Graph, shape: str) -> None:
    """Dense rows of thousands of queries are affordable, and known answers come first."""
    edges = atlas.at("valid")
    ids = sample_shape(atlas, SHAPES[shape], 200, split="test", cap=100, allow_fewer=True).ids
    plan = compile_shapes((SHAPES[shape],), RelaxAndCount.kind)
    method: Method[Any] = RelaxAndCount(edges)
    before = time.process_time()
    scores = method.score(execute(plan, method, [ids])[0])
    assert time.process_time() - before < 5
    answers = Exact(edges).score(execute(compile_shapes((SHAPES[shape],), Exact.kind), Exact(edges), [ids])[0])
    for row in range(len(ids)):
        if answers[row].any():
            assert scores[row][answers[row] > 0].min() > scores[row][answers[row] == 0].max()


@pytest.mark.benchmark
@BASELINES
def test_nell_in_chunks(data: Path, baseline: Baseline) -> None:
    """Each state of 64 queries stays within tens of megabytes."""
    graph = open_graph(data / "NELL")
    ids = sample_shape(graph, SHAPES["pni"], 64, split="valid", cap=80).ids
    method: Method[Any] = baseline(graph.at("train"))
    plan = compile_shapes((SHAPES["pni"],), method.kind)
    tracemalloc.start()
    scores = method.score(execute(plan, method, [ids])[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores.shape == (64, 63_361)
    assert peak < 500 * 2**20
