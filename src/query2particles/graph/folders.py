"""What a user may name as a graph: `atlas`, a graph folder, or a benchmark folder."""

from __future__ import annotations

from pathlib import Path

from query2particles.errors import UsageError
from query2particles.graph.benchmark import is_benchmark_folder, open_benchmark
from query2particles.graph.graph import Graph, is_graph_folder

__all__ = ["ATLAS", "open_graph"]

ATLAS = "atlas"


def open_graph(source: str | Path) -> Graph:
    """The graph that `source` names."""
    path = Path(source)
    if str(source) == ATLAS and not path.exists():
        return open_benchmark(Path(__file__).parent / ATLAS)
    if is_graph_folder(path):
        return Graph.open(path)
    if is_benchmark_folder(path):
        return open_benchmark(path)
    if path.is_dir():
        raise UsageError(
            f"{source} holds no graph: neither graph.json nor train.txt with entities.tsv. "
            "Files of triples become a graph by `q2p graph import SOURCE… --out DIR`."
        )
    missing = "is a file" if path.exists() else "does not exist"
    raise UsageError(
        f"{source} {missing}; name a graph folder, a benchmark folder or `{ATLAS}`. "
        "Files of triples become a graph by `q2p graph import SOURCE… --out DIR`."
    )
