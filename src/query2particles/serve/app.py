"""The application of a server: all endpoints and pages, behind the guard."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from query2particles import __version__
from query2particles.errors import ShardsLostError
from query2particles.serve import schemas
from query2particles.serve.guard import Guard
from query2particles.serve.limits import Limits
from query2particles.serve.lists import add_lists
from query2particles.serve.metrics import METRICS_TYPE, Metrics
from query2particles.serve.pages import Asset, docs_page, page_assets
from query2particles.serve.problems import RequestError, encoded, problem_of
from query2particles.serve.questions import add_questions
from query2particles.serve.replies import add_error_replies, documented, json_reply
from query2particles.serve.runs import Runs
from query2particles.serve.security import Access

__all__ = ["Service", "create_app"]

_DESCRIPTION = (
    "Questions over an incomplete knowledge graph: ranked answers, how likely each is, and why. "
    "Every error has the same shape."
)


@dataclass
class Service:
    """What the endpoints work with. `ready` ends when the server is told to."""

    runs: Runs
    metrics: Metrics
    limits: Limits
    access: Access
    ready: bool = True


def create_app(service: Service) -> ASGIApp:
    """The application of a server, guarded."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.runs.start()
        yield
        await service.runs.stop()

    app = FastAPI(
        title="query2particles",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    add_error_replies(app)
    add_questions(app, service.runs, service.limits)
    add_lists(app, service.runs, service.limits)
    _add_watching(app, service)
    description = _without_validation_model(app.openapi())
    paths: dict[str, Any] = description["paths"]
    pages = {
        "/openapi.json": Asset.of(encoded(description), "application/json"),
        "/docs": docs_page(description),
        **page_assets(),
    }
    for path, asset in pages.items():
        app.add_api_route(path, _asset_endpoint(asset), methods=["GET", "HEAD"], include_in_schema=False)
    return Guard(
        app,
        access=service.access,
        limits=service.limits,
        metrics=service.metrics,
        routes={path: path for path in paths} | dict.fromkeys(pages, "page"),
        readers=[path for path, operations in paths.items() if "post" in operations],
    )


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get(
        "/healthz",
        summary="Whether the server lives.",
        response_model=None,
        responses=documented(schemas.HealthResponse),
    )
    async def healthz() -> Response:
        return json_reply(b'{"status":"ok"}')

    @app.get(
        "/readyz",
        summary="Whether it takes questions.",
        response_model=None,
        responses=documented(schemas.HealthResponse),
    )
    async def readyz() -> Response:
        if not service.ready:
            raise RequestError(503, "not_ready", "the server is ending", headers={"Retry-After": "5"})
        try:
            for run in service.runs.served.values():
                run.current.check()
        except ShardsLostError as error:
            raise problem_of(error) from None
        return json_reply(b'{"status":"ok"}')

    text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text form."}
    }

    @app.get(
        "/metrics", summary="Counts for Prometheus.", response_class=Response, responses={**documented(None), **text}
    )
    async def metrics() -> Response:
        return Response(service.metrics.page(), headers={"Content-Type": METRICS_TYPE, "Cache-Control": "no-store"})


def _asset_endpoint(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == asset.headers["ETag"]:
            return Response(status_code=304, headers=dict(asset.headers))
        if asset.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.compressed, headers={**asset.headers, "Content-Encoding": "gzip"})
        return Response(asset.body, headers=dict(asset.headers))

    return send


def _without_validation_model(openapi: dict[str, Any]) -> dict[str, Any]:
    """FastAPI describes its own shape of errors, which is never sent."""
    for name in ("HTTPValidationError", "ValidationError"):
        openapi.get("components", {}).get("schemas", {}).pop(name, None)
    return openapi
