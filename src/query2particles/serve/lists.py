"""The endpoints that tell what is served: names for completion, the graph, examples, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel

from query2particles.graph.graph import Graph
from query2particles.serve import schemas
from query2particles.serve.limits import Limits
from query2particles.serve.problems import encoded
from query2particles.serve.replies import documented, json_reply
from query2particles.serve.runs import Runs

__all__ = ["add_lists"]

Prefix = Annotated[str, Query(max_length=200, description="How the name, the label or a word in them begins.")]
RunParameter = Annotated[str | None, Query(max_length=200, description="One of /v1/runs; without it, the default.")]


def add_lists(app: FastAPI, runs: Runs, limits: Limits) -> None:
    def get(path: str, answer: type[BaseModel], summary: str) -> Callable[[Callable[..., Any]], None]:
        def add(endpoint: Callable[..., Any]) -> None:
            if "limit" in endpoint.__annotations__:  # which is known only now
                endpoint.__annotations__["limit"] = Annotated[int, Query(ge=1, le=limits.names)]
            app.add_api_route(
                path,
                endpoint,
                methods=["GET"],
                summary=summary,
                response_model=None,
                responses=documented(answer, 404, 422),
            )

        return add

    @get("/v1/entities", schemas.EntitiesResponse, "Entities for completion.")
    async def entities(prefix: Prefix = "", limit: int = min(20, limits.names), run: RunParameter = None) -> Response:
        version = runs.named(run).current
        names = version.reasoner.graph.entities
        found = version.entities.starting_with(prefix, limit)
        return json_reply(
            encoded({"entities": [{"name": names.name(one), "label": names.label(one)} for one in found]})
        )

    @get("/v1/relations", schemas.RelationsResponse, "Relations for completion, the most used first.")
    async def relations(prefix: Prefix = "", limit: int = min(100, limits.names), run: RunParameter = None) -> Response:
        version = runs.named(run).current
        names, facts = version.reasoner.graph.relations, version.facts_by_relation
        found = version.relations.starting_with(prefix, len(names))
        most_used = sorted(found, key=lambda one: -facts[one])[:limit]
        rows = [{"name": names.name(one), "label": names.label(one), "facts": facts[one]} for one in most_used]
        return json_reply(encoded({"relations": rows}))

    @get("/v1/graph", schemas.GraphResponse, "What the questions are about.")
    async def graph(run: RunParameter = None) -> Response:
        reasoner = runs.named(run).current.reasoner
        return json_reply(
            encoded(
                {
                    **_described(reasoner.graph),
                    "facts": reasoner.graph.at(reasoner.split).facts,
                    "split": reasoner.split,
                }
            )
        )

    @get("/v1/examples", schemas.ExamplesResponse, "Questions to begin with.")
    async def examples(run: RunParameter = None) -> Response:
        keys = ("words", "syntax", "text")
        found = [dict(zip(keys, one, strict=True)) for one in runs.named(run).current.examples]
        return json_reply(encoded({"examples": found}))

    @get("/v1/runs", schemas.RunsResponse, "The runs that are served.")
    async def served() -> Response:
        rows = [{"name": run.name, **run.current.summary()} for run in runs.served.values()]
        return json_reply(encoded({"runs": rows, "default": runs.default}))


def _described(graph: Graph) -> dict[str, Any]:
    about: Mapping[str, Any] = graph.about
    return {
        "name": graph.name,
        "description": str(about.get("description", "a knowledge graph")),
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "attribution": str(about.get("attribution", "")),
        **({"licence": str(about["licence"])} if about.get("licence") else {}),
    }
