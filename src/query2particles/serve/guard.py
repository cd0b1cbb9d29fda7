"""What stands before every request: it reads it within the limits, answers what cannot pass, measures and logs."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from query2particles.errors import clipped
from query2particles.serve.limits import Limits
from query2particles.serve.metrics import Metrics
from query2particles.serve.problems import RequestError, internal, too_slow
from query2particles.serve.security import SECURITY_HEADERS, Access

__all__ = ["Exchange", "Guard", "exchange_of"]

_LOG = logging.getLogger(__name__)

_SCOPE = "query2particles"
_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(rb'application/json\s*(;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)
_DISCARDED = 16 * 1024 * 1024
"""Of a body that is too large so much is still read, so that the client is there to hear the answer."""

_PROBES = ("/healthz", "/readyz")
"""Anybody may look whether the server lives: whoever watches it knows it by address, and has no key."""

_CLIENT_LEFT = 499
"""The status in logs and metrics of a request that nobody waits for any more."""


@dataclass
class Exchange:
    """One request and its answer, as the log tells it."""

    request_id: str
    status: int = _CLIENT_LEFT
    bytes_sent: int = 0
    code: str | None = None
    run: str | None = None
    started: float = field(default_factory=time.perf_counter)


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that a request belongs to."""
    exchange: Exchange = scope[_SCOPE]
    return exchange


class _ClientLeftError(Exception):
    """There is nobody to answer."""


class Guard:
    """An ASGI application around another one.

    `routes` are the paths that exist, and what metrics call them; `readers` those that read a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        routes: Mapping[str, str],
        readers: Collection[str],
    ) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics
        self._routes, self._readers = routes, frozenset(readers)
        self._prefix, self._numbers = secrets.token_hex(4), itertools.count(1)
        self._headers = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and the end of the server
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        safe = _SAFE_ID.fullmatch(given) is not None
        exchange = Exchange(given.decode() if safe else f"{self._prefix}-{next(self._numbers):x}")
        scope[_SCOPE] = exchange
        always = [*self._headers, (b"x-request-id", exchange.request_id.encode()), *self._for_origin(headers)]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                own = message.get("headers", [])
                names = {name.lower() for name, _ in own}
                message = {**message, "headers": [*own, *(one for one in always if one[0] not in names)]}
            else:
                exchange.bytes_sent += len(message.get("body", b""))
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._pass_on(scope, headers, receive, answer, exchange)
        except _ClientLeftError:
            pass
        finally:
            self._metrics.in_flight.dec()
            self._take_down(scope, exchange)

    async def _pass_on(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, answer: Send, exchange: Exchange
    ) -> None:
        try:
            if self._is_preflight(scope, headers):
                await _send(answer, 204, b"", _PREFLIGHT)
                return
            body = await self._body(headers, receive)
            self._check(scope, headers)
            try:
                async with asyncio.timeout(self._limits.seconds):
                    await self._app(scope, _replay(body, receive), answer)
            except TimeoutError:
                raise too_slow(self._limits.seconds) from None
        except RequestError as problem:
            exchange.code = problem.code
            if exchange.status == _CLIENT_LEFT:
                await _send_problem(answer, problem, exchange.request_id)
        except _ClientLeftError:
            raise
        except Exception:
            exchange.code = "internal"
            _LOG.exception("a request failed", extra={"fields": {"request_id": exchange.request_id}})
            if exchange.status == _CLIENT_LEFT:
                await _send_problem(answer, internal(), exchange.request_id)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what cannot pass, as far as its first lines tell."""
        path = scope["path"]
        if path in _PROBES:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._access.answers_for(host):
            advice = "ask for it by a name that it knows (--allowed-host adds one)"
            raise RequestError(400, "forbidden_host", f"this server does not answer for {clipped(host)!r}; {advice}")
        if _needs_key(path) and not self._access.keys.open(_key(headers)):
            message = "a key is needed: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'"
            raise RequestError(401, "unauthorised", message, headers={"WWW-Authenticate": "Bearer"})
        if scope["method"] == "POST" and path in self._readers:
            if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
                raise RequestError(415, "wrong_type", "compressed bodies are not read; send the JSON as it is")
            if not _JSON.fullmatch(headers.get(b"content-type", b"").strip()):
                raise RequestError(415, "wrong_type", "send JSON in UTF-8, with 'Content-Type: application/json'")

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """The whole body. One that is too large is read to its end, within reason, before it is refused."""
        declared = int(headers.get(b"content-length", b"0"))
        if not declared and b"transfer-encoding" not in headers:
            return b""
        too_large = RequestError(413, "too_large", f"the body is larger than {self._limits.body:,} bytes")
        ending = {"Connection": "close"}  # what is left of the body must not be taken for the next request
        if declared > _DISCARDED:
            too_large.headers |= ending
            raise too_large
        parts, length, more = [], 0, True
        try:
            async with asyncio.timeout(self._limits.reading):
                while more and length <= _DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeftError
                    part, more = message.get("body", b""), message.get("more_body", False)
                    length += len(part)
                    if length <= self._limits.body:
                        parts.append(part)
        except TimeoutError:
            message_ = f"the body did not arrive within {self._limits.reading:g} s"
            raise RequestError(408, "timeout", message_, headers=ending) from None
        if length > self._limits.body:
            too_large.headers |= ending if more else {}
            raise too_large
        return b"".join(parts)

    def _is_preflight(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a browser asks if a page of a known origin may ask."""
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        return asks and headers.get(b"origin", b"").decode("latin-1") in self._access.origins

    def _for_origin(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        if not self._access.origins:
            return []
        origin = headers.get(b"origin", b"")
        if origin.decode("latin-1") not in self._access.origins:
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"X-Request-Id, Retry-After"),
        ]

    def _take_down(self, scope: Scope, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        self._metrics.request(self._routes.get(scope["path"], "other"), exchange.status, seconds)
        if exchange.code is not None:
            self._metrics.error(exchange.code)
        if _LOG.isEnabledFor(logging.INFO):
            fields = {
                "request_id": exchange.request_id,
                "method": scope["method"],
                "path": clipped(scope["path"], 200),
                "status": exchange.status,
                "milliseconds": round(1000 * seconds, 2),
                "bytes": exchange.bytes_sent,
                "client": scope["client"][0] if scope.get("client") else None,
                "code": exchange.code,
                "run": exchange.run,
            }
            _LOG.info("request", extra={"fields": {name: one for name, one in fields.items() if one is not None}})


_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-API-Key, X-Request-Id",
    "Access-Control-Max-Age": "600",
}


def _needs_key(path: str) -> bool:
    """The pages and the description of the server are open; what it knows, and how it fares, is not."""
    return path.startswith("/v1/") or path == "/metrics"


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A request whose body has been read already."""
    unread: Iterable[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def next_message() -> Message:
        for message in unread:
            return message
        return await receive()

    return next_message


async def _send_problem(answer: Send, problem: RequestError, request_id: str) -> None:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", **problem.headers}
    await _send(answer, problem.status, problem.body(request_id), headers)


async def _send(answer: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    await answer({"type": "http.response.start", "status": status, "headers": raw})
    await answer({"type": "http.response.body", "body": body})
