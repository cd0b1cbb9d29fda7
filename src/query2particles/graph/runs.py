"""Sorting what does not fit into memory: sorted runs on the disk, brought together range by range."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Run", "common_ranges"]

Key = TypeVar("Key", bound="tuple[int, int] | bytes")


class Run(Protocol[Key]):
    """Elements in ascending order of their keys."""

    def __len__(self) -> int: ...

    def key(self, at: int) -> Key: ...

    def rank(self, key: Key) -> int:
        """How many elements have a smaller key."""
        ...

    def size(self, at: int) -> int:
        """How much memory the first `at` elements take while they are sorted with others."""
        ...


def common_ranges(runs: Sequence[Run[Any]], memory: int) -> Iterator[list[tuple[int, int]]]:
    """Cut all runs at the same keys, so that what lies between two cuts fits into memory: a slice of each run.

    Of each run, the key after every `stride` bytes is looked at. At most `stride` bytes of one run lie between two such
    keys of its own, so that between every n-th of them all, n being the number of runs, lie at most 2 n · `stride`.
    """
    stride = max(1, memory // (2 * len(runs)))
    looked_at = []
    for run in runs:
        sizes = range(stride, run.size(len(run) - 1) + 1, stride)
        looked_at += [run.key(bisect_left(range(len(run)), size, key=run.size)) for size in sizes]
    starts = [0] * len(runs)
    for cut in dict.fromkeys(sorted(looked_at)[len(runs) :: len(runs)]):
        stops = [run.rank(cut) for run in runs]
        if stops != starts:
            yield list(zip(starts, stops, strict=True))
        starts = stops
    if starts != list(map(len, runs)):
        yield [(start, len(run)) for start, run in zip(starts, runs, strict=True)]
