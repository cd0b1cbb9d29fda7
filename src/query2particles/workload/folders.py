"""Query sets in all forms that a user may have on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.graph.folders import open_graph
from query2particles.workload.benchmark import COUNTS, Check, check_set
from query2particles.workload.originals import check_original, is_original_set

__all__ = ["check_folder"]


def check_folder(
    folder: Path, graph: str | Path | None = None, *, progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, Check]]:
    """Recompute the answers of every set in a benchmark folder, or of one set; yield the set's name with each check.

    The graph is the one that `graph` names, or the folder itself, or for a set the folder around it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    if is_original_set(folder):
        opened = open_graph(graph or folder)
        yield from ((folder.name, check) for check in check_original(opened, folder, progress=progress))
        return
    if (folder / COUNTS).is_file():
        opened, sets = open_graph(graph or folder.resolve().parent), [folder]
    else:
        opened, sets = open_graph(graph or folder), sorted(path.parent for path in folder.glob(f"*/{COUNTS}"))
    if not sets:
        raise UsageError(f"{folder} holds no set of queries with a {COUNTS}; `q2p sample` draws one")
    for one in sets:
        place = f"{folder.resolve().name}/{one.name}" if one != folder else one.name
        yield from ((place, check) for check in check_set(opened, one, progress=progress))
