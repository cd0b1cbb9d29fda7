"""Questions that arrive together are answered together: one call for a batch costs much less than a call for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from query2particles.serve.problems import busy

__all__ = ["Batcher"]

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    since: float
    result: asyncio.Future[Result | Exception]


class Batcher(Generic[Item, Result]):
    """Gathers items for at most `wait` seconds, or until `together` of them are there, and works on them in a thread.

    While the thread is busy others gather, so that batches grow with the load. At most `queue` items wait; more are
    refused. Items are taken in the order of their arrival, and an error stays with the item that it belongs to: `work`
    returns errors in their places, and where it raises one, every item is tried again by itself.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        worker: Executor,
        *,
        together: int,
        wait: float,
        queue: int,
        observe: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._work, self._worker, self._observe = work, worker, observe
        self._together, self._wait, self._queue = together, wait, queue
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._changed = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Work on what waits, then end."""
        self._ending = True
        self._changed.set()
        if self._task is not None:
            await self._task

    async def submit(self, items: Sequence[Item]) -> list[Result | Exception]:
        """The results of these items, in their order; all of them wait, or none."""
        if self._ending or len(self._waiting) + len(items) > self._queue:
            raise busy("too many questions are waiting")
        loop = asyncio.get_running_loop()
        now = loop.time()
        own = [_Waiting[Item, Result](item, now, loop.create_future()) for item in items]
        self._waiting.extend(own)
        if len(self._waiting) - len(own) == 0 or len(self._waiting) >= self._together:
            self._changed.set()
        try:
            return [await waiting.result for waiting in own]
        finally:
            for waiting in own:  # of a request that was given up
                waiting.result.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        while self._waiting or not self._ending:
            if not self._waiting:
                await self._next_change()
                continue
            # Clients that have just been answered are about to ask again: a batch waits for them, too.
            deadline = max(self._waiting[0].since, idle_since) + self._wait
            if len(self._waiting) < self._together and loop.time() < deadline and not self._ending:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._next_change()
                continue
            batch = self._taken()
            if not batch:
                continue
            self._observe(len(batch))
            found = await loop.run_in_executor(self._worker, self._results, [waiting.item for waiting in batch])
            for waiting, result in zip(batch, found, strict=True):
                if not waiting.result.done():
                    waiting.result.set_result(result)
            idle_since = loop.time()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _taken(self) -> list[_Waiting[Item, Result]]:
        """The next batch, without those whose requests were given up."""
        batch: list[_Waiting[Item, Result]] = []
        while self._waiting and len(batch) < self._together:
            waiting = self._waiting.popleft()
            if not waiting.result.done():
                batch.append(waiting)
        return batch

    def _results(self, items: Sequence[Item]) -> Sequence[Result | Exception]:
        try:
            return [result for _, result in zip(items, self._work(items), strict=True)]
        except Exception as error:
            if len(items) == 1:
                _LOG.exception("a question failed")
                return [error]
            return [result for item in items for result in self._results([item])]
