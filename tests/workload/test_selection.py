"""Queries to measure by: where they are found, which of them are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import QueryError, UsageError, WorkloadError
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES
from query2particles.workload.benchmark import write_set
from query2particles.workload.labels import label
from query2particles.workload.sample import sample_shape
from query2particles.workload.selection import drawn_queries, evenly_spaced, stored_queries, stored_set
from worlds import random_graph


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=40, relations=3, facts=400)


def write(graph: Graph, folder: Path, *names: str) -> None:
    samples = [sample_shape(graph, SHAPES[name], 6, split="test", cap=100) for name in names]
    batch = {sample.shape: sample.ids for sample in samples}
    write_set(folder, graph, "test", batch, label(graph, "test", batch), about={})


@given(st.integers(1, 60), st.integers(1, 70))
def test_evenly_spaced(count: int, most: int) -> None:
    ids = np.arange(count)[:, None]
    kept = evenly_spaced(ids, most)[:, 0].tolist()
    assert len(kept) == len(set(kept)) == min(count, most)
    assert kept[0] == 0
    if len(kept) > 1:
        assert kept[-1] == count - 1
        assert max(np.diff(kept)) - min(np.diff(kept)) <= 1
    assert evenly_spaced(ids, None) is ids


def test_a_benchmark_folder_prefers_the_official_set(graph: Graph, tmp_path: Path) -> None:
    assert stored_set(tmp_path, "test") is None
    write(graph, tmp_path / "betae-resampled", "1p")
    assert stored_set(tmp_path, "test") == tmp_path / "betae-resampled"
    assert stored_set(tmp_path, "valid") is None
    write(graph, tmp_path / "betae", "1p")
    assert stored_set(tmp_path, "test") == tmp_path / "betae"


def test_stored_queries(graph: Graph, tmp_path: Path) -> None:
    write(graph, tmp_path / "set", "1p", "2in")
    batch, labels = stored_queries(graph, tmp_path / "set", "test")
    assert set(batch) == set(labels) == {SHAPES["1p"], SHAPES["2in"]}
    some, own = stored_queries(graph, tmp_path / "set", "test", shapes=[SHAPES["2in"]], most=2)
    assert {shape: ids.tolist() for shape, ids in some.items()} == {
        SHAPES["2in"]: batch[SHAPES["2in"]][[0, 5]].tolist()
    }
    assert own[SHAPES["2in"]].hard[1].tolist() == labels[SHAPES["2in"]].hard[5].tolist()
    with pytest.raises(WorkloadError, match=r"has no test queries of 3p, 2u"):
        stored_queries(graph, tmp_path / "set", "test", shapes=[SHAPES["3p"], SHAPES["2u"]])
    with pytest.raises(UsageError, match="there is no folder of queries"):
        stored_queries(graph, tmp_path / "nowhere", "test")


def test_queries_of_a_larger_graph_are_refused(graph: Graph, tmp_path: Path) -> None:
    write(random_graph(4, entities=400, relations=3, facts=900), tmp_path / "set", "1p")
    with pytest.raises(QueryError, match="name entities or relations that the graph does not have"):
        stored_queries(graph, tmp_path / "set", "test")


def test_drawn_queries(graph: Graph) -> None:
    batch, labels = drawn_queries(graph, "valid", most=3, seed=1)
    assert set(batch) == set(labels) == set(SHAPES.values())
    assert all(len(ids) == 3 for ids in batch.values())
    again, _ = drawn_queries(graph, "valid", shapes=[SHAPES["pi"]], most=3, seed=1)
    assert {shape: ids.tolist() for shape, ids in again.items()} == {SHAPES["pi"]: batch[SHAPES["pi"]].tolist()}
