"""Batches whose rows are read while the update before computes: for rows that take long to come.

The next batch is drawn, and a thread starts to read its rows, before the current update runs. What that update writes
is read once more afterwards, so every update sees the rows as if it had waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from query2particles.engine.rows import Filling, WorkingSet

__all__ = ["Ahead"]


class _Next(NamedTuple):
    """A batch that was drawn ahead."""

    filling: Filling
    rows: Future[list[Tensor]]
    before: Tensor
    """The generator's state before it was drawn."""


class Ahead:
    """`take` fills the working set with the next batch of `draw`, all of whose random numbers come from `generator`."""

    def __init__(self, working: WorkingSet, draw: Callable[[], Filling], generator: torch.Generator) -> None:
        self._working, self._draw, self._generator = working, draw, generator
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: _Next | None = None
        self._written: Tensor | None = None  # the ids of the last batch

    def take(self) -> Filling:
        current = self._next or self._start()
        filling, rows = current.filling, current.rows.result()
        self._read_again(filling.ids, rows)
        self._working.fill(filling.ids, rows)
        self._written = filling.ids
        self._next = self._start()
        return filling

    def rewind(self) -> None:
        """Draw the next batch once more when it is asked for: a checkpoint holds no batch."""
        if self._next is not None:
            self._next.rows.result()
            self._generator.set_state(self._next.before)
            self._next = self._written = None

    def _start(self) -> _Next:
        before = self._generator.get_state()
        filling = self._draw()
        return _Next(filling, self._reader.submit(self._working.rows.read, filling.ids), before)

    def _read_again(self, ids: Tensor, rows: Sequence[Tensor]) -> None:
        if self._written is None:
            return
        shared = torch.isin(ids, self._written).nonzero()[:, 0]
        for all_rows, new in zip(rows, self._working.rows.read(ids[shared]), strict=True):
            all_rows[shared] = new
