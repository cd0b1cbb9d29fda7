"""Where an update takes its batch from: drawn for it, or, on CUDA, out of several that were drawn together.

Drawing is many small steps, which take a GPU about as long for eight batches as for one. So eight are drawn at a time,
and every update takes the next one out of the pool, without a word from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Drawn", "Pool", "Stream"]


class Drawn(NamedTuple):
    """Training queries of one shape: ids (n, positions), a positive each (n,), and weights (n,)."""

    ids: Tensor
    positives: Tensor
    weights: Tensor


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
        self._next = torch.zeros(1, dtype=torch.int64, device=device)

    def fill(self) -> None:
        start = 0
        for count, (ids, positives, weights) in zip(self._counts, self._stream.draw(), strict=True):
            stop = start + count
            self._ids[:, start:stop, : ids.shape[1]] = ids.view(self.batches, count, -1)
            self._positives[:, start:stop] = positives.view(self.batches, count)
            self._weights[:, start:stop] = weights.view(self.batches, count)
            start = stop
        self._next.zero_()

    def take(self) -> list[Drawn]:
        whole = (several.index_select(0, self._next)[0] for several in (self._ids, self._positives, self._weights))
        ids, positives, weights = (torch.split(one, self._counts) for one in whole)
        self._next += 1
        return [
            Drawn(part_ids[:, :positions], part_positives, part_weights)
            for part_ids, positions, part_positives, part_weights in zip(
                ids, self._positions, positives, weights, strict=True
            )
        ]
