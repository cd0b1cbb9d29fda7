"""Connections: how many there are, how slow they may be, and how long their headers.

uvicorn's own protocol waits for ever for a request to begin and for a client to take its answer, answers in words of
its own what is no HTTP, and hangs up on idle connections when it ends, though a request may be on its way.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from query2particles.serve.limits import Limits
from query2particles.serve.problems import RequestError, busy
from query2particles.serve.security import SECURITY_HEADERS

__all__ = ["Connection", "protocol_for"]

_LOG = logging.getLogger(__name__)

_LINGERING = 1.0
"""Seconds that an idle connection is still listened to when the server ends."""


class Connection(HttpToolsProtocol):
    """A connection within limits."""

    limits = Limits()

    _in_headers = False
    """Whether a request has begun whose headers are not complete."""
    _header_bytes = 0
    _headers_too_long = False
    _draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if len(self.connections) > self.limits.connections:
            self._refuse(busy("too many connections are open"))
        else:
            self._set_timer("reading", self.limits.reading, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header:
                self._refuse_headers()
                return
        waits_for_a_request = self._in_headers or (self._is_idle and self.timeout_keep_alive_task is None)
        if waits_for_a_request and "reading" not in self._timers:
            self._set_timer("reading", self.limits.reading, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._stop_timer("reading")
        self._in_headers = False
        length = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if length > self.limits.header:
            self._headers_too_long = True
            raise ValueError("headers too long")  # the parser stops, and asks for a 400
        super().on_headers_complete()
        if self._draining:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Answer what has begun, and what arrives on a connection that seems idle, and close it then."""
        self._draining = True
        if self._is_idle:
            self._set_timer("lingering", _LINGERING, self._close_if_idle)
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_timer("writing", self.limits.reading, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_timer("writing")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self._headers_too_long:
            self._refuse_headers()
        else:
            self._refuse(RequestError(400, "invalid_request", "this is no HTTP/1.1 request"))

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self._is_idle and not self._in_headers:
            self.transport.close()

    def _too_slow(self) -> None:
        if self._is_idle:
            message = f"no request arrived within {self.limits.reading:g} s"
            self._refuse(RequestError(408, "timeout", message))
        else:  # the next request is slow, the one before it is still being answered
            self.cycle.keep_alive = False

    def _refuse_headers(self) -> None:
        self._refuse(RequestError(431, "too_large", f"the headers are larger than {self.limits.header:,} bytes"))

    def _refuse(self, problem: RequestError) -> None:
        """Answer where no request has come as far as the application, and hang up."""
        request_id = secrets.token_hex(6)
        body = problem.body(request_id)
        headers = {
            **SECURITY_HEADERS,
            **problem.headers,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "X-Request-Id": request_id,
            "Connection": "close",
        }
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[problem.status] + lines.encode("latin-1") + b"\r\n" + body)
        self.transport.close()
        fields = {"request_id": request_id, "status": problem.status, "code": problem.code}
        _LOG.info("connection refused", extra={"fields": fields})

    def _set_timer(self, name: str, seconds: float, then: Callable[[], object]) -> None:
        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, then)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()


def protocol_for(given: Limits) -> type[Connection]:
    """The protocol of a server with these limits."""

    class Limited(Connection):
        limits = given

    return Limited
