"""Where an update takes its batch from: drawn for it, or, on CUDA, out of several that were drawn together.

Drawing is many small steps, which take a GPU hardly longer for several batches than for one. So several are drawn at a
time, and every update takes the next one out of the pool, without a word from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Drawn", "Pool", "Stream"]


class Drawn(NamedTuple):
    """Training queries of one shape."""

    ids: Tensor  # (n, positions)
    positives: Tensor  # (n,) an answer of each
    excluded: Tensor  # (n,) an entity that a complement takes out of the answers; the positive where none is known
    weights: Tensor  # (n,) 1, or 0 for what is not to be trained on


class Stream(Protocol):
    """Where training queries come from."""

    def draw(self) -> Sequence[Drawn]:
        """As many queries of each shape every time."""
        ...


class Pool:
    """`batches` batches: `fill` draws them all, from a stream of that many times the queries; `take` gives the next."""

    def __init__(self, stream: Stream, batches: int) -> None:
        self.batches = batches
        self._stream = stream
        drawn = stream.draw()
        self._counts = [len(part.ids) // batches for part in drawn]
        self._positions = [part.ids.shape[1] for part in drawn]
        total, device = sum(self._counts), drawn[0].ids.device
        self._ids = torch.zeros((batches, total, max(self._positions)), dtype=torch.int64, device=device)
        self._positives = torch.zeros((batches, total), dtype=torch.int64, device=device)
        self._weights = torch.zeros((batches, total), device=device)
        self._excluded = torch.zeros_like(self._positives)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)

    def fill(self) -> None:
        start = 0
        for count, (ids, positives, excluded, weights) in zip(self._counts, self._stream.draw(), strict=True):
            stop = start + count
            self._ids[:, start:stop, : ids.shape[1]] = ids.view(self.batches, count, -1)
            self._positives[:, start:stop] = positives.view(self.batches, count)
            self._weights[:, start:stop] = weights.view(self.batches, count)
            self._excluded[:, start:stop] = excluded.view(self.batches, count)
            start = stop
        self._next.zero_()

    def take(self) -> list[Drawn]:
        pool = self._ids, self._positives, self._excluded, self._weights
        ids, *others = (torch.split(several.index_select(0, self._next)[0], self._counts) for several in pool)
        self._next += 1
        narrow = (part[:, :positions] for part, positions in zip(ids, self._positions, strict=True))
        return [Drawn(*part) for part in zip(narrow, *others, strict=True)]
