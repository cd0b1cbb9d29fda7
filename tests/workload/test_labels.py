"""Easy, hard and lost answers against their definition."""

from __future__ import annotations

import random

import numpy as np
import pytest

from query2particles.graph.graph import Split, smaller
from query2particles.query.algebra import Query, abstract
from query2particles.workload.labels import label
from worlds import oracle, random_graph, random_query, successors


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_labels_follow_from_two_levels(split: Split) -> None:
    graph, generator, everything = random_graph(4), random.Random(1), frozenset(range(30))
    large = successors(graph, split)
    small = successors(graph, smaller(split)) if split != "train" else None
    batch: dict[Query, list[tuple[int, ...]]] = {}
    asked: dict[Query, list[Query]] = {}
    for _ in range(300):
        query = random_query(generator, 30, 4)
        shape, ids = abstract(query)
        batch.setdefault(shape, []).append(ids)
        asked.setdefault(shape, []).append(query)
    found = label(graph, split, {shape: np.array(ids) for shape, ids in batch.items()})
    for shape, several in asked.items():
        for row, query in enumerate(several):
            after = oracle(query, large, everything)
            before = oracle(query, small, everything) if small is not None else set()
            assert set(found[shape].easy[row].tolist()) == before & after
            assert set(found[shape].hard[row].tolist()) == after - before
            assert set(found[shape].lost[row].tolist()) == before - after
