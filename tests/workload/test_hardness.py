"""Hardness against brute force: all proofs of every answer, one by one."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.query.algebra import SHAPES, Query, abstract, ground
from query2particles.workload import hardness as module
from query2particles.workload.hardness import hardness
from query2particles.workload.labels import label, labels_between
from query2particles.workload.selection import drawn_queries
from worlds import queries, random_graph, successors

GRAPH = random_graph(4, entities=25, relations=2, facts=140)
TRAIN, WHOLE = GRAPH.at("train"), GRAPH.at("test")


lacking = partial(worlds.lacking, stored=successors(GRAPH, "train"), whole=successors(GRAPH, "test"))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("together", [1, 3, 1000])
def test_the_best_of_all_proofs(name: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hard answers lack at least one edge; however many queries are looked at at a time."""
    monkeypatch.setattr(module, "chunk_size", lambda _: together)
    shape = SHAPES[name]
    batch, labels = drawn_queries(GRAPH, "test", shapes=[shape], most=8, seed=1)
    heard: list[int] = []
    found = hardness(TRAIN, WHOLE, batch, labels, progress=heard.append)[shape]
    hard = labels[shape].hard
    expected = [
        lacking(ground(shape, ids), v) for row, ids in enumerate(batch[shape].tolist()) for v in hard[row].tolist()
    ]
    assert found.tolist() == expected
    assert min(expected) >= 1
    assert sum(heard) == len(batch[shape])


@settings(max_examples=80, deadline=None)
@given(query=queries(25, 2), seed=st.integers(0, 5))
def test_any_tree(query: Query, seed: int) -> None:
    """Of all entities, as scores: those without a proof have the lowest. Complements at the root are answers, too."""
    shape, ids = abstract(query)
    method = module._Proofs(TRAIN, WHOLE, most=module._projections(shape))
    (levels,) = execute(compile_shapes((shape,), method.kind), method, [np.array([ids])])
    some = random.Random(seed).sample(range(25), 6)
    scores = method.score(levels, np.array([some]))[0]
    costs = [lacking(query, v) for v in some]
    assert (-scores).tolist() == [min(cost, len(levels)) for cost in costs]
    answers = {shape: np.array([ids])}
    everything = {shape: labels_between(None, label(GRAPH, "test", answers)[shape].hard)}
    assert hardness(TRAIN, WHOLE, answers, everything)[shape].tolist() == [
        lacking(query, v) for v in everything[shape].hard[0].tolist()
    ]


def test_with_all_edges_nothing_is_missing() -> None:
    batch, labels = drawn_queries(GRAPH, "test", most=5, seed=1)
    for found in hardness(WHOLE, WHOLE, batch, labels).values():
        assert set(found.tolist()) == {0}
