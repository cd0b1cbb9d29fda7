"""What a user may name as a graph: `atlas`, a graph folder, a benchmark folder, or an original one with pickles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.graph.benchmark import is_benchmark_folder, open_benchmark
from query2particles.graph.graph import Graph, is_graph_folder
from query2particles.graph.originals import is_original_folder, open_original

__all__ = ["ATLAS", "is_known_folder", "open_graph"]

ATLAS = "atlas"

_FORMS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Graph]], ...] = (
    (is_graph_folder, Graph.open),
    (is_benchmark_folder, open_benchmark),
    (is_original_folder, open_original),
)
"""What a folder may be, and how it is opened then."""


def is_known_folder(path: Path) -> bool:
    """Whether `path` is a folder that opens as a graph as it is."""
    return any(is_such(path) for is_such, _ in _FORMS)


def open_graph(source: str | Path) -> Graph:
    """The graph that `source` names."""
    path = Path(source)
    for is_such, opened in _FORMS:
        if is_such(path):
            return opened(path)
    if str(source) == ATLAS:
        return open_benchmark(Path(__file__).parent / ATLAS)
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
