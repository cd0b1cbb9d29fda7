"""`q2p bench index`: the best ten of a large table, by an index and exactly, from a file on disk.

The table is made up: entities in clusters of about a thousand, as far from the centre as centres are from each other's
middle, and of different lengths. A query has two particles, each of which lies in some cluster as entities do.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.bench.record import Bench, Say, significant
from query2particles.engine.table import Search, Table
from query2particles.index import build_index
from query2particles.provenance import machine

__all__ = ["bench_index"]

_CLUSTER = 1000
_PARTICLES = 2
_K = 10
_AT_ONCE = 1 << 16
_MEASURED_ON, _ASKED, _ASKED_EXACTLY = 100, 500, 5
"""Queries that the recall is measured on when the index is made; that are timed; that are also timed without it."""


_USUAL = 10_000_000, 400


def bench_index(
    entities: int = _USUAL[0], dimension: int = _USUAL[1], *, recall: float = 0.95, seed: int = 0, say: Say = print
) -> Bench:
    """Latency of single queries, and the recall of queries that the index was not made with.

    Another size than the usual one has a name of its own: one result does not replace the other.
    """
    result = Bench(
        "index" if (entities, dimension) == _USUAL else f"index-{entities / 1e6:g}-million-by-{dimension}",
        machine("cpu"),
        f"cpu, {entities:,} entities in {dimension} dimensions (float16, in a file), clusters of about {_CLUSTER:,}; "
        f"queries of {_PARTICLES} particles, one at a time; the best {_K}",
        seed=seed,
        compares="times as fast as exact answers",
    )
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="q2p-bench-index-") as folder:
        say(f"writing a table of {entities:,} × {dimension}")
        table, centres = _clustered(Path(folder) / "table.bin", entities, dimension, generator)
        first, asked = (_near(centres, count, generator) for count in (_MEASURED_ON, _ASKED))
        say("making the index")
        memory = _Memory()
        started = time.perf_counter()
        index = build_index(
            table, [first], Path(folder) / "index", weights="bench", recall=recall, k=_K, progress=memory.note
        )
        memory.note()
        result.figures["build s"] = round(time.perf_counter() - started, 1)
        result.figures["build, memory of its own GiB"] = round(memory.most, 2)
        say("asking")
        for name, search, some in (("index", index, asked), ("exact", table, asked[:_ASKED_EXACTLY])):
            milliseconds = _timed(search, some)
            result.figures[f"{name} median ms"] = significant(float(np.median(milliseconds)))
            result.figures[f"{name} 95th percentile ms"] = significant(float(np.percentile(milliseconds, 95)))
        best = table.best(asked[:_MEASURED_ON], _K)
        found = index.best(asked[:_MEASURED_ON], _K)
        result.figures[f"recall of the best {_K}"] = round(float(np.mean(found.scores >= best.scores[:, -1:])), 4)
        result.figures["recall when made"] = index.figures.recall
        result.figures["lists"], result.figures["lists looked into"] = index.figures.lists, index.figures.probes
        result.figures["log total, mean error"] = index.figures.log_total_error
        for name in ("table.bin", "index"):
            result.figures[f"{Path(name).stem} GB"] = significant(_bytes_of(Path(folder) / name) / 1e9)
        result.ratios["index"] = significant(result.figures["exact median ms"] / result.figures["index median ms"])
    return result


def _clustered(
    path: Path, entities: int, dimension: int, generator: np.random.Generator
) -> tuple[Table, npt.NDArray[np.float32]]:
    """The table, memory-mapped, and the centres of its clusters."""
    centres = generator.standard_normal((max(1, entities // _CLUSTER), dimension), dtype=np.float32)
    rows = np.memmap(path, dtype=np.float16, mode="w+", shape=(entities, dimension))
    for start in range(0, entities, _AT_ONCE):
        count = min(_AT_ONCE, entities - start)
        own = centres[generator.integers(len(centres), size=count)]
        lengths = generator.lognormal(0, 0.2, size=(count, 1)).astype(np.float32) / np.sqrt(dimension)
        rows[start : start + count] = _around(own, generator) * lengths
    rows.flush()
    bias = generator.normal(0, 0.1, size=entities).astype(np.float32)
    return Table(torch.from_numpy(rows), torch.from_numpy(bias)), centres


def _near(centres: npt.NDArray[np.float32], count: int, generator: np.random.Generator) -> Tensor:
    """Particles (count, K, d)."""
    own = centres[generator.integers(len(centres), size=(count, _PARTICLES))]
    return torch.from_numpy(_around(own, generator) / np.float32(np.sqrt(centres.shape[1])))


def _around(centres: npt.NDArray[np.float32], generator: np.random.Generator) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = centres + generator.standard_normal(centres.shape, dtype=np.float32)
    return found


def _timed(search: Search, particles: Tensor) -> list[float]:
    """Milliseconds of each query alone; the first one, which reads what all need, does not count."""
    search.best(particles[:1], _K)
    milliseconds = []
    for row in range(len(particles)):
        started = time.perf_counter()
        search.best(particles[row : row + 1], _K)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return milliseconds


class _Memory:
    """The most that the process held for itself: mapped files, which the system may drop at any time, do not count."""

    def __init__(self) -> None:
        self.most = 0.0

    def note(self, _: int = 0) -> None:
        status = Path("/proc/self/status").read_text()
        own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        self.most = max(self.most, int(own.split()[1]) / (1 << 20))


def _bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
