"""The micro-batcher: everybody gets their own result, batches are as large as they may be, nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query2particles.serve.batching import Batcher
from query2particles.serve.problems import RequestError


class Work:
    """A stand-in for a model: squares numbers, refuses negative ones, breaks down on 13; takes down its batches."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.seconds = seconds
        self.threads: set[int] = set()

    def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        if 13 in items:
            raise RuntimeError("thirteen")
        return [ValueError(item) if item < 0 else item * item for item in items]


def batcher(
    work: Work, pool: ThreadPoolExecutor, *, together: int = 8, wait: float = 0.01, queue: int = 100
) -> Batcher[int, int]:
    return Batcher(work, pool, together=together, wait=wait, queue=queue)


def expected(item: int) -> object:
    return ValueError if item < 0 else RuntimeError if item == 13 else item * item


def shown(result: object) -> object:
    return type(result) if isinstance(result, Exception) else result


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.lists(st.integers(-5, 20), min_size=1, max_size=6), min_size=1, max_size=8),
    together=st.integers(1, 8),
    wait=st.sampled_from([0.0, 0.002]),
)
def test_everybody_gets_their_own(groups: list[list[int]], together: int, wait: float) -> None:
    work = Work()

    async def ask() -> list[list[int | Exception]]:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(work, pool, together=together, wait=wait)
            own.start()
            found = await asyncio.gather(*(own.submit(group) for group in groups))
            await own.stop()
            return found

    found = asyncio.run(ask())
    assert [[shown(one) for one in group] for group in found] == [
        [expected(item) for item in group] for group in groups
    ]
    assert max(map(len, work.batches)) <= together
    if 13 not in [item for group in groups for item in group]:
        assert [item for batch in work.batches for item in batch] == [item for group in groups for item in group]
    assert len(work.threads) == 1


def test_what_arrives_together_is_worked_on_together() -> None:
    work = Work()

    async def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(work, pool, together=8)
            own.start()
            await asyncio.gather(*(own.submit([number]) for number in range(20, 40)))
            await own.stop()

    asyncio.run(ask())
    assert [len(batch) for batch in work.batches] == [8, 8, 4]


def test_a_full_batch_does_not_wait_and_a_lone_question_not_for_long() -> None:
    async def ask(items: int, wait: float) -> float:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(Work(), pool, together=4, wait=wait)
            own.start()
            began = time.monotonic()
            await own.submit(list(range(items)))
            taken = time.monotonic() - began
            await own.stop()
            return taken

    assert asyncio.run(ask(4, wait=30)) < 5
    assert 0.2 <= asyncio.run(ask(1, wait=0.2)) < 5


def test_while_the_worker_is_busy_a_batch_grows() -> None:
    work = Work(seconds=0.2)

    async def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(work, pool, together=50, wait=0.001)
            own.start()
            first = asyncio.create_task(own.submit([1]))
            await asyncio.sleep(0.1)
            await asyncio.gather(first, *(own.submit([number]) for number in range(20, 50)))
            await own.stop()

    asyncio.run(ask())
    assert list(map(len, work.batches)) == [1, 30]


def test_the_queue_is_bounded() -> None:
    async def ask() -> tuple[list[object], int]:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(Work(seconds=0.05), pool, together=1, wait=0, queue=5)
            own.start()
            found = await asyncio.gather(*(own.submit([n]) for n in range(9)), return_exceptions=True)
            waiting = len(own)
            with pytest.raises(RequestError):  # all wait, or none
                await own.submit(list(range(6)))
            await own.stop()
            return list(found), waiting

    found, waiting = asyncio.run(ask())
    refused = [one for one in found if isinstance(one, RequestError)]
    assert len(refused) == 4
    assert {(one.status, one.code) for one in refused} == {(429, "busy")}
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert [one for one in found if not isinstance(one, RequestError)] == [[n * n] for n in range(5)]
    assert waiting == 0


def test_who_gives_up_is_not_worked_for() -> None:
    work = Work(seconds=0.1)

    async def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(work, pool, together=1, wait=0)
            own.start()
            first = asyncio.create_task(own.submit([1]))
            await asyncio.sleep(0.02)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await own.submit([2])
            assert await first == [1]
            assert await own.submit([3]) == [9]
            await own.stop()

    asyncio.run(ask())
    assert work.batches == [[1], [3]]


def test_stopping_works_on_what_waits_and_takes_no_more() -> None:
    async def ask() -> list[list[int | Exception]]:
        with ThreadPoolExecutor(1) as pool:
            own = batcher(Work(seconds=0.02), pool, together=2, wait=5)
            own.start()
            asked = [asyncio.create_task(own.submit([number])) for number in range(7)]
            await asyncio.sleep(0)
            await own.stop()
            with pytest.raises(RequestError):
                await own.submit([1])
            return list(await asyncio.gather(*asked))

    began = time.monotonic()
    assert asyncio.run(ask()) == [[n * n] for n in range(7)]
    assert time.monotonic() - began < 4
