"""What benches run on: the benchmark graphs where they are at hand, otherwise the embedded graph."""

from __future__ import annotations

from pathlib import Path

from query2particles.bench.record import Say
from query2particles.engine.exact import Batch
from query2particles.errors import UsageError
from query2particles.graph.folders import ATLAS, open_graph
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES
from query2particles.workload.benchmark import read_set
from query2particles.workload.sample import sample_shape

__all__ = ["bench_data", "bench_graph"]

_CAPS = {"FB15k": 100, "FB15k-237": 120, "NELL": 80, ATLAS: 100}
"""How many new or lost answers a query may have, where more are drawn."""

_DRAWN = 5000
"""Queries of each shape on the embedded graph, where no number is named."""


def bench_graph(data: Path | None, name: str = "FB15k-237", say: Say = print) -> Graph:
    """A benchmark graph of the folder `data`; without one, atlas."""
    if data is None:
        say("no --data: measuring on the small embedded graph, where ratios are lower")
        return open_graph(ATLAS)
    if not (data / name).is_dir():
        raise UsageError(f"{data} has no folder {name}: name the folder of benchmark graphs, or none")
    return open_graph(data / name)


def bench_data(
    data: Path | None,
    count: int | None,
    say: Say = print,
    *,
    name: str = "FB15k-237",
    queries: str = "betae-resampled",
) -> tuple[Graph, Batch, int]:
    """A graph, `count` test queries of each shape (None: all) and their cap; on atlas the queries are drawn."""
    graph = bench_graph(data, name, say)
    if data is not None:
        batch = read_set(data / name / queries, "test", SHAPES)
        return graph, {shape: ids[:count] for shape, ids in batch.items()}, _CAPS[name]
    cap = _CAPS[ATLAS]
    drawn = {
        shape: sample_shape(graph, shape, count or _DRAWN, split="test", cap=cap, allow_fewer=True).ids
        for shape in SHAPES.values()
    }
    return graph, drawn, cap
