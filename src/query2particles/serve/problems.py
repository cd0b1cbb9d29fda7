"""What can go wrong with a request, in the one shape that every error has.

    {"error": {"code": "unknown_name", "message": "…", "position": 3, "length": 5, "suggestions": ["…"]},
     "request_id": "…"}

`position` and `length` point into the question, in characters; `suggestions` are names that exist. Messages are one
line, and tell nothing about the server: no paths, no traces.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from query2particles.errors import (
    AmbiguousNameError,
    Query2ParticlesError,
    QueryError,
    QuerySyntaxError,
    ShardsLostError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
    clipped,
    printable,
)

__all__ = ["CODES", "RequestError", "busy", "encoded", "internal", "problem_of", "too_slow"]

CODES: Mapping[str, tuple[tuple[int, ...], str]] = {
    "invalid_request": ((400, 422), "the request is no JSON (400), or not of the documented form (422)"),
    "syntax": ((400,), "the question follows no grammar, or is deeper or larger than allowed"),
    "unknown_name": ((400,), "no entity or relation is called so; `suggestions` are the nearest names"),
    "ambiguous_name": ((400,), "several entities or relations carry that label; `suggestions` are their names"),
    "unsupported": ((400,), "understood, but nothing that this run can answer"),
    "unauthorised": ((401,), "the key is missing or wrong"),
    "forbidden_host": ((400,), "the Host header names a host that this server does not answer for"),
    "not_found": ((404,), "no such path, or no run of that name"),
    "method_not_allowed": ((405,), "the path answers to other methods; the header Allow names them"),
    "timeout": ((408, 503), "the client was too slow (408), or the server was (503, with Retry-After)"),
    "too_large": ((413, 431), "the body (413) or the headers (431) are larger than allowed"),
    "wrong_type": ((415,), "the body is not application/json, or it is compressed"),
    "busy": ((429,), "too many questions or connections; come back after Retry-After seconds"),
    "internal": ((500,), "a defect of the server; its log has more under the same request id"),
    "unavailable": ((503,), "processes that share a table are lost, with a part of the entities"),
    "not_ready": ((503,), "the server is ending; come back after Retry-After seconds"),
}
"""Every code, the statuses that it comes with, and what it means."""

_KINDS: tuple[tuple[type[Query2ParticlesError], str], ...] = (
    (QuerySyntaxError, "syntax"),
    (UnknownNameError, "unknown_name"),
    (AmbiguousNameError, "ambiguous_name"),
    (UnsupportedError, "unsupported"),
    (QueryError, "syntax"),
    (UsageError, "unsupported"),
)
_SUGGESTIONS = 10
_MESSAGE = 500


class RequestError(Exception):
    """A request that gets an error: status, code, and what else the one shape holds."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        position: int | None = None,
        length: int | None = None,
        suggestions: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.position, self.length, self.suggestions = position, length, tuple(suggestions)
        self.headers = dict(headers or {})

    def as_json(self) -> dict[str, Any]:
        """What stands under `error`."""
        return {
            "code": self.code,
            "message": clipped(printable(self.message), _MESSAGE),
            **({} if self.position is None else {"position": self.position, "length": self.length}),
            **({"suggestions": list(self.suggestions[:_SUGGESTIONS])} if self.suggestions else {}),
        }

    def body(self, request_id: str) -> bytes:
        return encoded({"error": self.as_json(), "request_id": request_id})


def encoded(document: Any) -> bytes:
    """JSON as it is sent."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def problem_of(error: Query2ParticlesError) -> RequestError:
    """What a client is told of an error of the package; of a defect on our side it is told nothing."""
    if isinstance(error, ShardsLostError):
        return RequestError(503, "unavailable", str(error))
    code = next((code for kind, code in _KINDS if isinstance(error, kind)), None)
    if code is None:
        return internal()
    if not isinstance(error, QueryError):
        return RequestError(400, code, str(error))
    suggestions: tuple[str, ...] = ()
    if isinstance(error, UnknownNameError):
        suggestions = error.nearest
    elif isinstance(error, AmbiguousNameError):
        suggestions = error.candidates
    length = None if error.position is None else error.length
    return RequestError(400, code, error.reason, position=error.position, length=length, suggestions=suggestions)


def internal() -> RequestError:
    return RequestError(500, "internal", "something went wrong here, not with the request; the server's log has more")


def busy(what: str, seconds: float = 1.0) -> RequestError:
    return RequestError(429, "busy", f"{what}; try again in a moment", headers=_later(seconds))


def too_slow(seconds: float) -> RequestError:
    message = f"no answer within {seconds:g} s; ask for less, or try again later"
    return RequestError(503, "timeout", message, headers=_later(seconds))


def _later(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
