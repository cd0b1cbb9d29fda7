"""What a user may name as a graph: `atlas`, a graph folder, a benchmark folder, an original one with pickles, or a file
of facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.graph.benchmark import is_benchmark_folder, open_benchmark
from query2particles.graph.graph import HELD_OUT, Graph, Splits, is_graph_folder
from query2particles.graph.load import ImportOptions, import_graph
from query2particles.graph.originals import is_original_folder, open_original
from query2particles.graph.readers import format_of, known_formats

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


def open_graph(source: str | Path, *, splits: Splits = HELD_OUT, seed: int = 0, labels: Path | None = None) -> Graph:
    """The graph that `source` names: `atlas`, a folder, or a file of facts (tsv, csv, parquet, nt, ttl; .gz, .xz).

    Of a file's facts a tenth each is held out for validation and for test, or as `splits` says, by `seed`; `labels` is
    a file of lines `name<TAB>label`. Folders have splits of their own. Large files are better imported once
    (`import_graph`, `q2p graph import`) than read each time.
    """
    if not isinstance(source, str | Path):
        raise UsageError(f"a graph is named by a path or by {ATLAS!r}, not by {source!r}")
    path = Path(source)
    for is_such, opened in _FORMS:
        if is_such(path):
            return replace(opened(path), source=str(path.resolve()))
    if str(source) == ATLAS:
        return replace(open_benchmark(Path(__file__).parent / ATLAS), source=ATLAS)
    if path.is_file() and format_of(path) is not None:
        return import_graph([path], options=ImportOptions(fractions=splits, seed=seed, labels=labels))
    if path.is_dir():
        what = "holds no graph: neither graph.json nor train.txt with entities.tsv"
    elif path.exists():
        what = f"is a file of an unknown format; known endings are {known_formats()}"
    else:
        what = f"does not exist; name a graph folder, a benchmark folder, a file of facts or `{ATLAS}`"
    raise UsageError(f"{source} {what}. Files of triples become a graph by `q2p graph import SOURCE… --out DIR`.")
