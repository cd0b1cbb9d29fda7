"""Clients that keep a server busy: each sends its next request as soon as it has the answer to the last."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import numpy as np

__all__ = ["Load", "post", "send_for"]

_STRANDED = 10.0
"""Seconds that an answer may be late at the end before it counts as lost."""


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A request as it goes over the wire."""
    given = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@dataclass
class Load:
    """What came back: how many answers of each status, how long each took, how many never came."""

    statuses: Counter[int] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)
    lost: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        """Requests without the answer that a good one gets."""
        return self.lost + sum(count for status, count in self.statuses.items() if status != 200)

    @property
    def failures(self) -> int:
        """Requests that the server is to blame for."""
        return self.lost + sum(count for status, count in self.statuses.items() if status >= 500)

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.milliseconds, share)) if self.milliseconds else float("nan")


class _Client(asyncio.Protocol):
    """One connection, which is made anew where the server has closed it."""

    def __init__(self, requests: Iterator[bytes], load: Load, until: float, ended: asyncio.Future[None]) -> None:
        self._requests, self._load, self._until, self._ended = requests, load, until, ended
        self._transport: asyncio.Transport | None = None
        self._waiting, self._sent, self._received, self._closes = False, 0.0, b"", False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it reads and writes
        self._transport = transport
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        if time.perf_counter() >= self._until:
            self._transport.close()
            return
        self._waiting, self._received, self._sent = True, b"", time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator or not self._waiting:
            return
        lowered = head.lower()
        length = int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
        if len(body) < length:
            return
        self._waiting = False
        self._load.milliseconds.append(1000 * (time.perf_counter() - self._sent))
        self._load.statuses[int(head[9:12])] += 1
        if b"connection: close" not in lowered:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._load.lost += self._waiting
        if not self._ended.done():
            self._ended.set_result(None)


async def _keep_asking(url: str, requests: Iterator[bytes], load: Load, until: float) -> None:
    loop, place = asyncio.get_running_loop(), urlsplit(url)
    assert place.hostname is not None
    while time.perf_counter() < until:
        client = _Client(requests, load, until, ended := loop.create_future())
        transport, _ = await loop.create_connection(partial(_itself, client), place.hostname, place.port or 80)
        try:
            async with asyncio.timeout(max(0.0, until - time.perf_counter()) + _STRANDED):
                await ended
        except TimeoutError:
            load.lost += 1
            transport.abort()


def _itself(client: _Client) -> _Client:
    return client


def send_for(url: str, requests: Iterator[bytes], *, connections: int, seconds: float) -> Load:
    """Keep as many connections busy for so long, with requests taken in turn."""
    load = Load()

    async def all_of_them() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(_keep_asking(url, requests, load, until) for _ in range(connections)))

    started = time.perf_counter()
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(all_of_them())
    load.seconds = time.perf_counter() - started
    return load


def _loop() -> asyncio.AbstractEventLoop:
    """The fastest loop there is: what the clients do not need is left to the server."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
