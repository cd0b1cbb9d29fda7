"""The endpoints that take a question, or facts: answers, evidence, probabilities, maps, trees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from query2particles.answer import Question
from query2particles.query import algebra
from query2particles.query.algebra import abstract, nickname
from query2particles.query.names import Lexicon
from query2particles.query.syntax import format_query, guess_syntax
from query2particles.score import Scored, Scorer, Triple
from query2particles.serve import schemas
from query2particles.serve.guard import exchange_of
from query2particles.serve.limits import Limits
from query2particles.serve.problems import RequestError, encoded, internal, problem_of
from query2particles.serve.replies import documented, json_reply
from query2particles.serve.runs import Runs, ServedRun

__all__ = ["add_questions"]

Body = TypeVar("Body", bound=BaseModel)

_FACTS = 500
"""Facts that are judged in one go."""


def add_questions(app: FastAPI, runs: Runs, limits: Limits) -> None:
    def post(path: str, model: type[Body], answer: type[BaseModel], summary: str) -> Callable[..., None]:
        """Add an endpoint for a body within the limits of this server."""

        def add(work: Callable[[Body, ServedRun], Awaitable[bytes]]) -> None:
            async def endpoint(request: Request, body: Body) -> Response:
                run = runs.named(getattr(body, "run", None))
                exchange_of(request.scope).run = run.name
                return json_reply(await work(body, run))

            # What a body may be is known only now that the limits are.
            endpoint.__annotations__["body"] = schemas.bounded(model, limits)
            endpoint.__name__ = work.__name__
            app.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                summary=summary,
                response_model=None,
                responses=documented(answer, 404, 415, 422),
            )

        return add

    @post("/v1/answer", schemas.AnswerRequest, schemas.AnswerResponse, "The answers of a question, best first.")
    async def answer(body: schemas.AnswerRequest, run: ServedRun) -> bytes:
        (found,) = await run.batcher.submit([_question(body)])
        if isinstance(found, Exception):
            raise found
        return _with_run(found, run)

    @post("/v1/answer/batch", schemas.BatchRequest, schemas.BatchResponse, "The answers of many questions.")
    async def answer_batch(body: schemas.BatchRequest, run: ServedRun) -> bytes:
        found = await run.batcher.submit(list(map(_question, body.queries)))
        results = b",".join(map(_result, found))
        return _with_run(b'{"results":[' + results + b"]}", run)

    @post("/v1/explain", schemas.ExplainRequest, schemas.ExplainResponse, "Why an entity answers a question.")
    async def explain(body: schemas.ExplainRequest, run: ServedRun) -> bytes:
        def evidence() -> bytes:
            version = run.current
            version.parse(body.question, body.syntax)
            entity = version.reasoner.lexicon.entity(body.answer)
            asked = Question(body.question, body.syntax)
            return encoded(version.reasoner.explain(asked, entity, threshold=body.threshold).as_json())

        return _with_run(await runs.apart(evidence), run)

    @post("/v1/score", schemas.ScoreRequest, schemas.ScoreResponse, "How likely facts are true.")
    async def score(body: schemas.ScoreRequest, run: ServedRun) -> bytes:
        scorer = Scorer(run.current.reasoner)
        facts = [(fact.head, fact.relation, fact.tail) for fact in body.facts]

        def judged(some: Sequence[Triple]) -> bytes:
            return b",".join(
                encoded(one.as_json()) if isinstance(one, Scored) else _result(problem_of(one)) for one in scorer(some)
            )

        # Part by part, so that others get their turn between them.
        parts = [facts[start : start + _FACTS] for start in range(0, len(facts), _FACTS)]
        results = b",".join([await runs.apart(partial(judged, some)) for some in parts])
        return _with_run(b'{"results":[' + results + b"]}", run)

    @post(
        "/v1/map", schemas.MapRequest, schemas.MapResponse, "The answers and the particles that found them, in a plane."
    )
    async def particle_map(body: schemas.MapRequest, run: ServedRun) -> bytes:
        def placed() -> bytes:
            version = run.current
            version.parse(body.question, body.syntax)
            asked = Question(body.question, body.syntax, body.k, guesses="always")  # they are the neighbourhood
            return encoded(version.reasoner.map(asked).as_json())

        return _with_run(await runs.apart(placed), run)

    @post("/v1/parse", schemas.ParseRequest, schemas.ParseResponse, "A question as a tree, and in canonical words.")
    async def parse(body: schemas.ParseRequest, run: ServedRun) -> bytes:
        def parsed() -> bytes:
            version = run.current
            query, lexicon = version.parse(body.question, body.syntax), version.reasoner.lexicon
            return encoded(
                {
                    "syntax": body.syntax or guess_syntax(body.question),
                    "shape": nickname(abstract(query)[0]),
                    "ast": _tree(query, lexicon),
                    "canonical": {form: format_query(query, lexicon, form) for form in ("path", "logic", "json")},
                }
            )

        return _with_run(await runs.apart(parsed), run)


def _question(quest: schemas.Quest) -> Question:
    return Question(
        quest.question, quest.syntax, quest.k, quest.method, quest.only, quest.minimum_probability, quest.guesses
    )


def _result(found: bytes | Exception) -> bytes:
    """The place of one question, or one fact, in the answer to many."""
    if isinstance(found, bytes):
        return found
    problem = found if isinstance(found, RequestError) else internal()
    return encoded({"error": problem.as_json()})


def _with_run(document: bytes, run: ServedRun) -> bytes:
    """An object with the name of the run that it came from."""
    return document[:-1] + b',"run":' + encoded(run.name) + b"}"


def _tree(query: algebra.Query, lexicon: Lexicon) -> dict[str, Any]:
    """A query for programs that draw it."""
    entities, relations = lexicon.graph.entities, lexicon.graph.relations
    below = [_tree(branch, lexicon) for branch in algebra.branches(query)]
    match query:
        case algebra.Anchor(entity):
            return {"op": "anchor", "entity": {"name": entities.name(entity), "label": entities.label(entity)}}
        case algebra.Project(_, relation):
            name = {"name": relations.name(relation // 2), "label": relations.label(relation // 2)}
            return {"op": "project", "relation": name, "inverse": relation % 2 == 1, "branches": below}
        case _:
            return {"op": type(query).__name__.lower(), "branches": below}
