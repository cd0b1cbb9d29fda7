"""A joined run behind a server: it answers as the Reasoner does, by all its parts or by its vectors alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from query2particles.answer import Method, Question, Reasoner
from query2particles.calibration import Calibration, save_calibration
from query2particles.files import write_json
from query2particles.joined import Joined, join
from query2particles.methods.joint import FAMILIES
from query2particles.run import JOINED, Run
from query2particles.serve import schemas
from query2particles.train import train, validation_set
from servers import Server, serving, until
from trainings import tiny
from worlds import random_graph

QUESTIONS = ("e1.r0", "e1.r0.r1 & !e2.r1", "(e1.r0 | e2.r1).r2")


@dataclass(frozen=True)
class Served:
    server: Server
    run: Joined


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("runs")
    graph = random_graph(3, entities=40, relations=3, facts=400)
    graph.save(folder / "graph")
    runs = [Run.create(folder / method, tiny(method), graph, str(folder / "graph")) for method in ("q2p", "links")]
    for run in runs:
        train(run, graph)
    joined, _ = join(folder / "joined", runs[0], runs[1], graph, validation_set(graph, runs[0].config.training))
    save_calibration(joined, Calibration.by_scores(joined.model(graph), graph.at("train").relations))
    with serving(joined.folder, folder / "q2p") as started:
        yield Served(started, joined)


def answered(found: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """All but the scores, and these: sums in another order differ in the last digits."""
    rows = [{key: value for key, value in row.items() if key != "score"} for row in found["answers"]]
    return {**found, "answers": rows}, [row["score"] for row in found["answers"]]


def test_the_summary_names_the_method(served: Served) -> None:
    document = served.server.get("/v1/runs").json()
    schemas.RunsResponse.model_validate(document)
    rows = document["runs"]
    assert [(row["name"], row["method"], row["calibrated"]) for row in rows] == [
        ("joined", "best", True),
        ("q2p", "q2p", False),
    ]
    assert rows[0]["version"] != rows[1]["version"]


@pytest.mark.parametrize("method", ["exact", "neural", "both", "best", "fast"])
@pytest.mark.parametrize("text", QUESTIONS)
def test_answers_are_those_of_the_reasoner(served: Served, text: str, method: Method) -> None:
    reasoner = Reasoner.open(served.run.folder)
    found = served.server.post("/v1/answer", {"question": text, "k": 7, "method": method})
    assert found.status_code == 200, found.text
    schemas.AnswerResponse.model_validate(found.json())
    expected = {**reasoner.answer(Question(text, k=7, method=method)).as_json(), "run": "joined"}
    assert found.json()["answers"]
    if method == "exact":
        assert found.json() == expected
        return
    (told, scores), (rest, exact) = answered(found.json()), answered(expected)
    assert told == rest
    assert scores == pytest.approx(exact, rel=1e-4)


def test_several_ways_in_one_batch(served: Served) -> None:
    ways = ("fast", "both", "exact", "best", "fast")
    asked = [{"question": QUESTIONS[1], "k": 3, "method": method} for method in ways]
    results = served.server.post("/v1/answer/batch", {"queries": asked}).json()["results"]
    assert [one["method"] for one in results] == list(ways)
    alone = [served.server.post("/v1/answer", one).json() for one in asked]
    for mine, theirs in zip(alone, results, strict=True):
        assert [one["name"] for one in theirs["answers"]] == [one["name"] for one in mine["answers"]]
    assert results[0]["answers"] != results[1]["answers"]


def test_a_plain_run_has_no_parts_to_ask(served: Served) -> None:
    refused = served.server.post("/v1/answer", {"question": "e1.r0", "run": "q2p", "method": "best"})
    assert refused.status_code == 400
    assert "q2p join" in refused.json()["error"]["message"]


def test_answers_are_explained_and_mapped(served: Served) -> None:
    """The map shows the particles of the vectors."""
    (first, *_) = served.server.post("/v1/answer", {"question": QUESTIONS[1], "k": 1}).json()["answers"]
    explained = served.server.post("/v1/explain", {"question": QUESTIONS[1], "answer": first["name"]})
    assert explained.status_code == 200, explained.text
    assert explained.json()["probability"] == pytest.approx(first["probability"], abs=1e-3)
    found = served.server.post("/v1/map", {"question": QUESTIONS[1]})
    assert found.status_code == 200, found.text
    assert len(found.json()["particles"]) == 2


def test_other_weights_are_a_new_version(served: Served) -> None:
    """Taken up without a new start, and so are the old ones when they are back."""
    asked = {"question": QUESTIONS[0], "k": 40, "method": "neural"}

    def version() -> str:
        return str(served.server.get("/v1/runs").json()["runs"][0]["version"])

    def scores() -> list[float]:
        return answered(served.server.post("/v1/answer", asked).json())[1]

    def put(document: object) -> None:
        write_json(served.run.folder / JOINED, document)

    before, told = version(), scores()
    document = json.loads((served.run.folder / JOINED).read_text("utf-8"))
    put({**document, "weights": [[2.0, 0.0, 0.0, 0.0, 0.0]] * FAMILIES})
    assert until(lambda: version() != before)
    expected = Reasoner.open(served.run.folder).answer(Question(QUESTIONS[0], k=40, method="neural"))
    assert scores() == pytest.approx(answered(expected.as_json())[1], rel=1e-4)
    assert scores() != pytest.approx(told, rel=1e-2)
    put(document)
    assert until(lambda: version() == before)
    assert scores() == told
