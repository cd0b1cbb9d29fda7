"""Every endpoint answers what the Reasoner answers in Python, in the form that OpenAPI describes."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from query2particles.answer import Question, Reasoner
from query2particles.demo import QUESTIONS
from query2particles.query.algebra import SHAPES, Query, branches, ground
from query2particles.query.syntax import Syntax, format_query
from query2particles.serve import schemas
from query2particles.workload.selection import drawn_queries
from servers import Server

TEXTS: list[tuple[Syntax, str]] = [(syntax, text) for _, syntax, text in QUESTIONS]


def checked(model: type[BaseModel], document: dict[str, Any]) -> dict[str, Any]:
    """The document, which is of the described form."""
    model.model_validate(document)
    return document


@pytest.mark.parametrize("method", ["exact", "neural", "both"])
@pytest.mark.parametrize(("syntax", "text"), TEXTS)
def test_answers_are_those_of_the_reasoner(
    server: Server, reasoner: Reasoner, syntax: Syntax, text: str, method: Literal["exact", "neural", "both"]
) -> None:
    found = server.post("/v1/answer", {"question": text, "syntax": syntax, "k": 7, "method": method})
    assert found.status_code == 200
    document = checked(schemas.AnswerResponse, found.json())
    assert document == {**reasoner.answer(Question(text, syntax, 7, method)).as_json(), "run": "trained"}
    assert document["answers"]


def test_the_json_syntax_and_questions_of_every_shape_all_at_once(server: Server, reasoner: Reasoner) -> None:
    batch, _ = drawn_queries(reasoner.graph, "test", most=2, seed=3)
    assert len(batch) == len(SHAPES)
    forms: tuple[Syntax, ...] = ("path", "logic", "json")
    asked = [
        {"question": format_query(ground(shape, ids.tolist()), reasoner.lexicon, forms[number % 3]), "k": 3}
        for number, (shape, rows) in enumerate(batch.items())
        for ids in rows
    ]
    document = checked(schemas.BatchResponse, server.post("/v1/answer/batch", {"queries": asked}).json())
    alone = [reasoner.answer(Question(str(one["question"]), k=3)).as_json() for one in asked]
    for mine, theirs in zip(alone, document["results"], strict=True):
        # Sums in another order differ in the last digits.
        judged: dict[str, Any] = {"answers": None, "folded": None, "expected_more": None}
        assert {**theirs, **judged} == {**mine, **judged}
        assert theirs["expected_more"] == pytest.approx(mine["expected_more"], abs=0.01)
        for own, other in ((theirs[key], mine[key]) for key in ("answers", "folded")):
            assert [one["score"] for one in own] == pytest.approx([one["score"] for one in other], abs=2e-3)


def test_filters(server: Server, reasoner: Reasoner) -> None:
    text = TEXTS[3][1]
    for only in ("known", "predicted"):
        answers = server.post("/v1/answer", {"question": text, "only": only}).json()["answers"]
        assert {one["status"] for one in answers} == {only}
    likely = server.post("/v1/answer", {"question": text, "minimum_probability": 0.9, "k": 100}).json()["answers"]
    wanted = Question(text, k=100, minimum_probability=0.9)
    assert likely == reasoner.answer(wanted).as_json()["answers"]
    assert min(one["probability"] for one in likely) >= 0.9


def test_an_error_in_a_batch_takes_its_own_place(server: Server) -> None:
    queries = [{"question": "Canada.^citizen_of", "k": 1}, {"question": "Cnada.^citizen_of"}, {"question": "Canada"}]
    document = checked(schemas.BatchResponse, server.post("/v1/answer/batch", {"queries": queries}).json())
    first, second, third = document["results"]
    assert first["total"] == 8
    assert second["error"]["code"] == "unknown_name"
    assert "Canada" in second["error"]["suggestions"]
    assert second["error"]["position"] == 0
    assert third["shape"] == "e"


def test_evidence(server: Server, reasoner: Reasoner) -> None:
    text = TEXTS[0][1]
    for answer in reasoner.answer(Question(text, k=3)).answers:
        found = server.post("/v1/explain", {"question": text, "answer": answer.name, "threshold": 0.4}).json()
        own = reasoner.explain(text, answer.entity_id, threshold=0.4).as_json()
        assert checked(schemas.ExplainResponse, found) == {**own, "run": "trained"}


def test_facts_are_judged_as_in_python_and_an_error_takes_its_own_place(server: Server, reasoner: Reasoner) -> None:
    facts = [
        {"head": head, "relation": relation, "tail": "French"}
        for head, relation in (("Canada", "speaks"), ("Canda", "speaks"), ("Ghana", "speaks"), ("Ghana", "speeks"))
    ]
    document = checked(schemas.ScoreResponse, server.post("/v1/score", {"facts": facts}).json())
    assert document["run"] == "trained"
    stored, no_entity, guessed, no_relation = document["results"]
    assert stored == {**facts[0], "probability": 1.0, "stored": True}
    (likely,) = reasoner.probability([("Ghana", "speaks", "French")])
    assert guessed == {**facts[2], "probability": pytest.approx(likely, abs=1e-5), "stored": False}
    for wrong, meant in ((no_entity, "Canada"), (no_relation, "speaks")):
        assert wrong["error"]["code"] == "unknown_name"
        assert meant in wrong["error"]["suggestions"]


def test_many_facts_come_back_in_their_order(server: Server, reasoner: Reasoner) -> None:
    names = [reasoner.graph.entities.name(entity) for entity in range(1200)]
    facts = [{"head": name, "relation": "speaks", "tail": "French"} for name in names]
    found = server.post("/v1/score", {"facts": facts}).json()["results"]
    assert [one["head"] for one in found] == names


def test_guesses_are_folded_away_unless_they_are_wanted(server: Server) -> None:
    countries = ("Iceland", "Japan", "Canada", "Norway", "Kenya", "Chile")
    asked = [{"question": f"{country}.on_continent"} for country in countries]
    found = server.post("/v1/answer/batch", {"queries": asked}).json()["results"]
    folded = next(one for one in found if one["complete"])
    assert {one["status"] for one in folded["answers"]} == {"known"}
    assert {one["status"] for one in folded["folded"]} == {"predicted"}
    whole = server.post("/v1/answer", {"question": folded["question"], "guesses": "always"}).json()
    assert whole["folded"] == []
    assert [one["name"] for one in whole["answers"]] == [one["name"] for one in folded["answers"] + folded["folded"]]


def test_the_particle_map(server: Server, reasoner: Reasoner) -> None:
    text = TEXTS[3][1]
    found = checked(schemas.MapResponse, server.post("/v1/map", {"question": text, "k": 12}).json())
    assert found == {**reasoner.map(Question(text, k=12, guesses="always")).as_json(), "run": "trained"}
    assert len(found["answers"]) == 12


def rebuilt(reasoner: Reasoner, node: dict[str, Any]) -> Query:
    """The query of a tree as the server tells it."""
    from query2particles.query import algebra

    below = tuple(rebuilt(reasoner, branch) for branch in node.get("branches", []))
    match node["op"]:
        case "anchor":
            return algebra.Anchor(reasoner.lexicon.entity(node["entity"]["name"]))
        case "project":
            return algebra.Project(below[0], reasoner.lexicon.relation(node["relation"]["name"]) + node["inverse"])
        case "complement":
            return algebra.Complement(below[0])
        case "intersect":
            return algebra.Intersect(below)
        case _:
            return algebra.Union(below)


@pytest.mark.parametrize(("syntax", "text"), TEXTS)
def test_parsing(server: Server, reasoner: Reasoner, syntax: Syntax, text: str) -> None:
    document = checked(schemas.ParseResponse, server.post("/v1/parse", {"question": text}).json())
    query = reasoner.parse(text)
    assert document["syntax"] == syntax
    assert rebuilt(reasoner, document["ast"]) == query
    assert branches(query)
    for form in ("path", "logic", "json"):
        assert reasoner.parse(document["canonical"][form], form) == query


def test_completion(server: Server, reasoner: Reasoner) -> None:
    found = checked(schemas.EntitiesResponse, server.get("/v1/entities?prefix=GERM&limit=3").json())["entities"]
    assert found[0] == {"name": "German", "label": "German"}
    assert {"name": "Germany", "label": "Germany"} in found
    words = server.get("/v1/entities?prefix=award&limit=50").json()["entities"]
    assert "Turing Award" in [one["label"] for one in words]
    assert len(server.get("/v1/entities?limit=5").json()["entities"]) == 5
    assert server.get("/v1/entities?prefix=no+such+thing").json() == {"entities": []}
    assert server.get("/v1/entities?prefix=%00%ff").json() == {"entities": []}
    relations = checked(schemas.RelationsResponse, server.get("/v1/relations").json())["relations"]
    assert len(relations) == len(reasoner.graph.relations)
    assert [one["facts"] for one in relations] == sorted((one["facts"] for one in relations), reverse=True)
    assert sum(one["facts"] for one in relations) == reasoner.graph.at("test").facts
    assert server.get("/v1/relations?prefix=citizen").json()["relations"][0]["name"] == "citizen_of"


def test_what_is_served(server: Server, reasoner: Reasoner) -> None:
    graph = checked(schemas.GraphResponse, server.get("/v1/graph").json())
    assert graph["entities"] == len(reasoner.graph.entities)
    assert graph["facts"] == reasoner.graph.at("test").facts
    assert "GeoNames" in graph["attribution"]
    examples = checked(schemas.ExamplesResponse, server.get("/v1/examples").json())["examples"]
    assert [(one["words"], one["syntax"], one["text"]) for one in examples] == list(QUESTIONS)
    runs = checked(schemas.RunsResponse, server.get("/v1/runs").json())
    assert runs["default"] == "trained"
    trained, stored = runs["runs"]
    assert (trained["name"], trained["method"], trained["calibrated"]) == ("trained", "q2p", True)
    assert trained["particles"] >= 1
    assert (stored["name"], stored["method"], stored["graph"]) == ("stored", None, "atlas")
    for path in ("/healthz", "/readyz"):
        assert checked(schemas.HealthResponse, server.get(path).json()) == {"status": "ok"}


def test_a_run_by_its_name(server: Server) -> None:
    asked = {"question": "Canada.^citizen_of", "k": 2}
    assert server.post("/v1/answer", {**asked, "run": "stored"}).json()["method"] == "exact"
    assert server.post("/v1/answer", {**asked, "run": "trained"}).json()["method"] == "both"
    assert server.post("/v1/answer", {**asked, "run": "stored", "method": "neural"}).json()["error"]["code"] == (
        "unsupported"
    )
    assert server.post("/v1/map", {"question": "Canada.^citizen_of", "run": "stored"}).status_code == 400
    missing = server.get("/v1/graph?run=nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_metrics_count_what_happened(server: Server) -> None:
    def counted(line: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return next((float(one.rpartition(" ")[2]) for one in lines if one.startswith(line + " ")), 0.0)

    good, bad = 'q2p_requests_total{route="/v1/answer",status="200"}', 'q2p_errors_total{code="syntax"}'
    before = counted(good), counted(bad), counted("q2p_batch_questions_sum")
    server.post("/v1/answer", {"question": "Canada.^citizen_of"})
    server.post("/v1/answer", {"question": "Canada.^"})
    server.post("/v1/answer/batch", {"queries": [{"question": "Canada"}] * 4})
    assert counted(good) == before[0] + 1
    assert counted(bad) == before[1] + 1
    assert counted("q2p_batch_questions_sum") == before[2] + 6
    assert counted("q2p_waiting_questions") == 0
    version = server.get("/v1/runs").json()["runs"][0]["version"]
    assert counted(f'q2p_run_info{{run="trained",version="{version}"}}') == 1
    assert counted('q2p_request_seconds_count{route="/v1/answer"}') >= counted(good)


def test_the_description_and_its_page(server: Server) -> None:
    document = server.get("/openapi.json").json()
    assert document["components"]["schemas"]["AnswerRequest"]["properties"]["k"]["maximum"] == 1000
    page = server.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for path in document["paths"]:
        assert path in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text


def test_the_front_page(server: Server) -> None:
    page = server.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    again = server.get("/", **{"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    whole = server.get("/", **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in whole.headers
    assert whole.text == page.text
    assert server.client.head("/").status_code == 200
