"""A server takes a new index as it takes new weights; weights that have none yet do not replace those that have."""

from __future__ import annotations

import shutil
from pathlib import Path

from query2particles.cli import app
from query2particles.run import Run
from query2particles.serve import schemas
from query2particles.train import train
from servers import Server, serving, until
from trainings import tiny
from worlds import random_graph

INDEX = ("--lists", "4", "--most-probes", "4", "--count", "5", "--json")


def test_an_index_comes_and_grows_stale(tmp_path: Path) -> None:
    graph = random_graph(3, entities=40, relations=3, facts=400)
    graph.save(tmp_path / "graph")
    run, newer = (
        Run.create(tmp_path / name, tiny("q2p", setting), graph, str(tmp_path / "graph"))
        for name, setting in (("run", "seed=0"), ("newer", "seed=1"))
    )
    for one in (run, newer):
        train(one, graph)
    with serving(run.folder) as server:
        before = _asked(server)
        assert before.search is None
        app(["index", str(run.folder), *INDEX], standalone_mode=False)
        assert until(lambda: _asked(server).search is not None)
        found = _asked(server)
        assert found.search is not None
        assert found.search.by == "index"
        assert found.search.recall is not None
        assert [row.name for row in found.answers] == [row.name for row in before.answers]
        shutil.copy(newer.folder / "best.safetensors", run.folder / "best.safetensors")
        assert until(lambda: any("could not be loaded" in str(line) for line in server.logged()))
        assert [row.score for row in _asked(server).answers] == [row.score for row in found.answers]
        app(["index", str(run.folder), *INDEX], standalone_mode=False)
        assert until(lambda: [row.score for row in _asked(server).answers] != [row.score for row in found.answers])


def _asked(server: Server) -> schemas.AnswerResponse:
    found = server.post("/v1/answer", {"question": "e1.r0.r1", "k": 40})
    assert found.status_code == 200, found.text
    return schemas.AnswerResponse.model_validate(found.json())
