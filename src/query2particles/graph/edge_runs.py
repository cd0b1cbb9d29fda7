"""The edges of a level from more facts than fit into memory.

Edges are sorted in *runs*, each as large as memory allows. All runs are cut at the same edges into ranges that fit into
memory again; range by range the edges of all runs are brought together, sorted, and written behind those before, as the
same files that `Edges.save` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from query2particles.graph.arrays import ArrayWriter, open_array, read_part
from query2particles.graph.edges import Ints, distinct_edges, offset_kind, sorted_edges
from query2particles.graph.facts import Facts
from query2particles.graph.runs import common_ranges

__all__ = ["EdgeRun", "merge_edges", "stored_facts"]

_STORED_BYTES = 12
"""What an edge of a run takes on the disk."""

_EDGE_BYTES = 48
"""What an edge takes in memory while it is sorted with others."""


@dataclass(frozen=True)
class EdgeRun:
    """Sorted edges without repeats in a folder: keys and tails, one of each an edge."""

    folder: Path

    def write(self, heads: Ints, relations: Ints, tails: Ints, *, entity_count: int, relation_count: int) -> None:
        """Write both edges of each of these facts."""
        keys, ends = np.zeros(0, np.int64), np.zeros(0, np.int32)
        if len(heads):
            keys, ends = sorted_edges(heads, relations, tails, entity_count=entity_count, relation_count=relation_count)
        np.save(self.folder / "run-keys.npy", keys)
        np.save(self.folder / "run-tails.npy", ends)

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, at: int) -> tuple[int, int]:
        return int(self._keys[at]), int(self._tails[at])

    def edges(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        return read_part(self.folder / "run-keys.npy", start, stop), read_part(
            self.folder / "run-tails.npy", start, stop
        )

    def rank(self, key: tuple[int, int]) -> int:
        first, after = (int(np.searchsorted(self._keys, key[0], side)) for side in ("left", "right"))
        return first + int(np.searchsorted(self._tails[first:after], key[1]))

    def size(self, at: int) -> int:
        return _EDGE_BYTES * at

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        return open_array(self.folder / "run-keys.npy", np.int64)

    @cached_property
    def _tails(self) -> npt.NDArray[np.int32]:
        return open_array(self.folder / "run-tails.npy", np.int32)


def merge_edges(
    runs: Sequence[EdgeRun],
    folder: Path,
    level: str,
    *,
    entity_count: int,
    memory: int,
    progress: Callable[[int, int], object],
) -> int:
    """Write the edges of all runs, each once, as a level; returns how many facts they are."""
    total = sum(map(len, runs))
    read = 0
    last_key = -1
    wide = folder / f"{level}-offsets-wide.npy"
    with (
        ArrayWriter(folder / f"{level}-keys.npy", np.int64) as key_file,
        ArrayWriter(wide, np.int64) as offset_file,
        ArrayWriter(folder / f"{level}-tails.npy", np.int32) as tail_file,
    ):
        for slices in common_ranges(runs, memory):
            parts = [run.edges(*cut) for run, cut in zip(runs, slices, strict=True)]
            keys, tails = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            read += len(keys)
            keys, tails = distinct_edges(keys, tails, entity_count)
            # A row may begin in one range and go on in the next.
            first = np.flatnonzero(np.concatenate([[keys[0] != last_key], keys[1:] != keys[:-1]]))
            key_file.append(keys[first])
            offset_file.append(tail_file.count + first)
            tail_file.append(tails)
            last_key = int(keys[-1])
            progress(_STORED_BYTES * read, _STORED_BYTES * total)
        offset_file.append(np.array([tail_file.count]))
    kind = offset_kind(tail_file.count)
    with ArrayWriter(folder / f"{level}-offsets.npy", kind) as narrow:
        step = max(1, memory // 16)
        for start in range(0, offset_file.count, step):
            narrow.append(read_part(wide, start, start + step))
    wide.unlink()
    return tail_file.count // 2


def stored_facts(folder: Path, level: str, relation_count: int, *, memory: int) -> Iterator[Facts]:
    """The facts of a level in parts, in the order of its edges."""
    keys = open_array(folder / f"{level}-keys.npy", np.int64)
    offsets = open_array(folder / f"{level}-offsets.npy", np.int32, np.int64)
    step = max(1, memory // _EDGE_BYTES)
    for start in range(0, int(offsets[-1]), step):
        stop = min(int(offsets[-1]), start + step)
        row, end = int(np.searchsorted(offsets, start, "right")) - 1, int(np.searchsorted(offsets, stop))
        lengths = np.diff(offsets[row : end + 1].clip(start, stop))
        every = np.repeat(keys[row:end], lengths)
        forward = every % 2 == 0
        heads, relations = (ids.astype(np.int32) for ids in np.divmod(every[forward], 2 * relation_count))
        yield heads, relations // 2, read_part(folder / f"{level}-tails.npy", start, stop)[forward]
