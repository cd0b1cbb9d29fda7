"""How endpoints reply, well or not, and how they are described."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from query2particles.errors import Query2ParticlesError
from query2particles.serve import schemas
from query2particles.serve.guard import exchange_of
from query2particles.serve.problems import CODES, RequestError, internal, problem_of

__all__ = ["add_error_replies", "documented", "json_reply"]

_JSON_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_COMMON = (400, 401, 408, 413, 429, 431, 500, 503)
"""What any request may be answered with."""

_WORDS = {status: [code for code, (statuses, _) in CODES.items() if status in statuses] for status in range(400, 600)}


def json_reply(body: bytes) -> Response:
    return Response(body, headers=_JSON_HEADERS)


def documented(model: type[BaseModel] | None, *others: int) -> dict[int | str, dict[str, Any]]:
    """What an endpoint may answer, for its description."""
    found: dict[int | str, dict[str, Any]] = {} if model is None else {200: {"model": model, "description": "Done."}}
    for status in sorted({*_COMMON, *others}):
        found[status] = {"model": schemas.ErrorResponse, "description": " or ".join(_WORDS[status])}
    return found


def add_error_replies(app: FastAPI) -> None:
    """Whatever is raised below gets the one shape of errors."""
    app.add_exception_handler(RequestError, _on_problem)
    app.add_exception_handler(Query2ParticlesError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_defect)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError | Query2ParticlesError)
    problem = error if isinstance(error, RequestError) else problem_of(error)
    exchange = exchange_of(request.scope)
    exchange.code = problem.code
    return Response(problem.body(exchange.request_id), problem.status, headers={**_JSON_HEADERS, **problem.headers})


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "json_invalid":
        return await _on_problem(
            request, RequestError(400, "invalid_request", f"the body is no JSON: {first['ctx']['error']}")
        )
    where = f"{place}: " if place else ""
    return await _on_problem(request, RequestError(422, "invalid_request", f"{where}{first['msg']}"))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: ("not_found", "there is nothing at this path; GET /docs lists the endpoints"),
        405: ("method_not_allowed", f"{request.method} is not for this path; the header Allow names what is"),
    }
    code, message = words.get(error.status_code, ("invalid_request", "the body is no JSON that can be read"))
    return await _on_problem(request, RequestError(error.status_code, code, message, headers=error.headers))


async def _on_defect(request: Request, error: Exception) -> Response:
    del error  # the guard logs it
    return await _on_problem(request, internal())
