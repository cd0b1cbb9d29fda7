"""Two nodes of Ray that share a table answer as one process does; when one is killed, nobody is deceived."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from query2particles.engine.table import Table
from query2particles.errors import UsageError
from query2particles.run import Run
from query2particles.searched import Searching, search_for
from query2particles.train import train
from reasoners import CALIBRATION
from trainings import tiny
from worlds import random_graph

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
GRAPH = random_graph(8, entities=80, relations=3, facts=600)
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `ray_alone` told of a run."""
    from query2particles.calibration import save_calibration

    place = tmp_path_factory.mktemp("cluster")
    GRAPH.save(place / "graph")
    run = Run.create(place / "run", tiny("q2p"), GRAPH, str(place / "graph"))
    train(run, GRAPH)
    save_calibration(run, CALIBRATION)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # by which Ray stays on the loopback address
    }
    done = subprocess.run(
        [sys.executable, str(TESTS / "ray_alone.py"), str(run.folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_two_nodes_answer_as_one_process(told: Any) -> None:
    assert told["nodes"] == 2
    assert told["sizes"] == [40, 40]
    assert len(told["alone"]) == 29
    for alone, shared in zip(told["alone"], told["shared"], strict=True):
        assert shared.pop("search") == {"by": "cluster", "exact": True, "shards": 2}
        assert shared["ids"] == alone["ids"]
        for one, other in zip(alone.pop("answers"), shared.pop("answers"), strict=True):
            assert one == {**other, "score": pytest.approx(other["score"], abs=2e-4)}
        assert shared == alone
        assert alone["ids"]


def test_a_killed_node_is_an_error(told: Any) -> None:
    assert len(told["refused"]) == told["asked"]
    for message in told["refused"]:
        assert message.startswith("1 of 2 processes that share the table are lost, with 50 % of the entities")
        assert "--degraded allow" in message


def test_or_answers_say_what_was_not_asked(told: Any) -> None:
    halves = set()
    for degraded in told["degraded"]:
        assert degraded["search"] == {"by": "cluster", "exact": False, "shards": 2, "unasked": 0.5}
        assert "50 % of the entities were not asked" in degraded["warning"]
        guessed = [
            entity
            for entity, row in zip(degraded["ids"], degraded["answers"], strict=True)
            if row["status"] == "predicted"
        ]
        halves |= {entity < 40 for entity in guessed}
    assert len(halves) == 1  # guesses come from the half that is left


def test_more_processes_than_cores_are_refused(told: Any) -> None:
    assert "need a core each" in told["too many"]


def test_calls_that_contradict_themselves_are_refused() -> None:
    from query2particles.methods.registry import make

    run = Run(Path("nowhere"), tiny("q2p"), "", "", "", None)
    model = make("q2p", GRAPH.at("train"), tiny("q2p").model)
    assert Table.fits(model)
    with pytest.raises(UsageError, match="--search index or --cluster"):
        search_for(run, model, Searching("index", shards=2))
