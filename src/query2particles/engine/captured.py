"""Work that is the same every time, captured as a CUDA graph: after a few calls the host only says "again"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Captured"]

_WARM_UP = 3
"""Calls before one is captured: compilers and libraries settle in them."""


class Captured:
    """Work of fixed shapes, from and to tensors that stay where they are: run as it is a few times, then replayed.

    A `generator` that is drawn from goes on at every replay. Graphs of one `pool` share the memory for what they
    compute on the way, so none of them may be replayed while the results of another are still needed.
    """

    def __init__(
        self,
        work: Callable[[], object],
        generator: torch.Generator | None = None,
        pool: Any = None,
    ) -> None:
        self._work, self._generator, self._pool = work, generator, pool
        self._calls = 0
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        self._calls += 1
        if self._calls <= _WARM_UP:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):  # as what is to be captured must
                self._work()
            torch.cuda.current_stream().wait_stream(self._side)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            if self._generator is not None:
                self._graph.register_generator_state(self._generator)
            # What other threads do at that moment is their own affair.
            with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
                self._work()
        self._graph.replay()
