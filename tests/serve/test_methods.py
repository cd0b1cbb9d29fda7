"""Runs of several methods behind one server: each answers what it can, and says what it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from query2particles.run import Run
from query2particles.train import train
from servers import Server, serving
from trainings import tiny
from worlds import random_graph

METHODS = ("gqe", "cqd-beam", "emql")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("runs")
    graph = random_graph(3, entities=40, relations=3, facts=400)
    graph.save(folder / "graph")
    for method in METHODS:
        train(Run.create(folder / method, tiny(method), graph, str(folder / "graph")), graph)
    names: list[str | Path] = [word for method in METHODS for word in ("--name", method)]
    with serving(*(folder / method for method in METHODS), *names) as started:
        yield started


def test_runs_name_their_methods(several: Server) -> None:
    rows = several.get("/v1/runs").json()["runs"]
    assert [(row["name"], row["method"], row["particles"]) for row in rows] == [(one, one, None) for one in METHODS]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("question", ["e1.r0", "e1.r0.r1 & e2.r1", "(e1.r0 | e2.r1).r2"])
def test_every_run_answers(several: Server, method: str, question: str) -> None:
    found = several.post("/v1/answer", {"question": question, "run": method, "k": 5, "method": "neural"})
    assert found.status_code == 200, found.text
    assert len(found.json()["answers"]) == 5
    for answer in found.json()["answers"][:2]:
        explained = several.post("/v1/explain", {"question": question, "run": method, "answer": answer["name"]})
        assert explained.status_code == 200, explained.text


def test_a_question_that_a_method_cannot_answer_is_its_own_fault(several: Server) -> None:
    """Alone, and in a batch with others that it can answer."""
    asked = {"question": "e1.r0 & !e2.r1"}
    refused = several.post("/v1/answer", {**asked, "run": "gqe"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unsupported"
    assert "q2p methods" in refused.json()["error"]["message"]
    fine = {"question": "e1.r0"}
    results = several.post("/v1/answer/batch", {"run": "gqe", "queries": [fine, asked, fine]})
    assert results.status_code == 200, results.text
    first, second, third = results.json()["results"]
    assert second["error"]["code"] == "unsupported"
    assert all(one["answers"] for one in (first, third))
    assert several.post("/v1/answer", {**asked, "run": "cqd-beam"}).json()["answers"]


def test_a_map_needs_particles(several: Server) -> None:
    assert several.post("/v1/map", {"question": "e1.r0", "run": "gqe"}).status_code == 200
    refused = several.post("/v1/map", {"question": "e1.r0", "run": "cqd-beam"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unsupported"
