"""Queries to measure a model by, with their answers: some or all of a folder's, or freshly drawn ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from query2particles.engine.exact import Batch
from query2particles.errors import UsageError, WorkloadError
from query2particles.graph.edges import Ints
from query2particles.graph.graph import Graph, Split
from query2particles.query.algebra import SHAPES, Query, nickname
from query2particles.workload.benchmark import query_files, read_set_with_missing
from query2particles.workload.hardness import label_missing
from query2particles.workload.labels import Labels
from query2particles.workload.originals import is_original_set, read_original
from query2particles.workload.sample import sample_shape

__all__ = ["CAP", "drawn_queries", "evenly_spaced", "stored_queries", "stored_set"]

CAP = 100
"""The most new (or lost) answers of a drawn query."""

_SETS = ("betae", "betae-resampled")
"""What the sets of all fourteen shapes are called in a benchmark folder, the official one first."""


def stored_set(graph_folder: Path, split: Split) -> Path | None:
    """The folder of a benchmark's own queries of this split; None where there is none."""
    if is_original_set(graph_folder):
        return graph_folder
    folders = (graph_folder / name for name in _SETS)
    return next((one for one in folders if one.is_dir() and any(of == split for of, _ in query_files(one))), None)


def stored_queries(
    graph: Graph,
    folder: Path,
    split: Split,
    *,
    shapes: Sequence[Query] | None = None,
    most: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> tuple[Batch, dict[Query, Labels]]:
    """The queries of a folder: all shapes or those given, `most` of each; their answers follow from the graph.

    Of a hard set, only answers that lack the set's number of edges are hard, and the others easy.
    """
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder of queries {folder}; q2p sample GRAPH --split {split} --out {folder} draws one"
        )
    found: dict[Query, Ints]
    missing: dict[Query, Ints]
    if is_original_set(folder):
        found = {shape: queries.ids for shape, queries in read_original(folder, split).items()}
        missing = {shape: np.zeros(len(ids), dtype=np.int64) for shape, ids in found.items()}
    else:
        found, missing = read_set_with_missing(folder, split)
    batch, wanted = (
        {shape: evenly_spaced(rows, most) for shape, rows in one.items() if shapes is None or shape in shapes}
        for one in (found, missing)
    )
    if not batch:
        raise WorkloadError(f"{folder} has no {split} queries of {', '.join(map(nickname, shapes or ()))}")
    return batch, label_missing(graph, split, batch, wanted, progress=progress)


def drawn_queries(
    graph: Graph,
    split: Split,
    *,
    shapes: Sequence[Query] | None = None,
    most: int,
    seed: int,
    progress: Callable[[int], object] | None = None,
) -> tuple[Batch, dict[Query, Labels]]:
    """`most` queries of each shape (all fourteen by default), or as many as the graph yields."""
    samples = [
        sample_shape(graph, shape, most, split=split, cap=CAP, seed=seed, allow_fewer=True, progress=progress)
        for shape in shapes or SHAPES.values()
    ]
    kept = [sample for sample in samples if len(sample.ids)]
    return {sample.shape: sample.ids for sample in kept}, {sample.shape: sample.labels for sample in kept}


def evenly_spaced(rows: Ints, most: int | None) -> Ints:
    """At most so many rows, from the first to the last."""
    if most is None or len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
