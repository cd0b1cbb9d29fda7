"""Two nodes of Ray that share a table answer as one process does; when one is killed, nobody is deceived."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import ENVIRONMENT, q2p
from query2particles.cluster import _connect
from query2particles.engine.table import Table
from query2particles.errors import RunError, UsageError
from query2particles.run import Run
from query2particles.searched import Searching, search_for
from query2particles.train import train
from servers import serving, until
from trainings import tiny
from worlds import random_graph

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
GRAPH = random_graph(8, entities=80, relations=3, facts=600)
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from query2particles.calibration import Calibration, save_calibration

    place = tmp_path_factory.mktemp("cluster")
    GRAPH.save(place / "graph")
    run = Run.create(place / "run", tiny("q2p"), GRAPH, str(place / "graph"))
    train(run, GRAPH)
    save_calibration(run, Calibration.by_scores(run.model(GRAPH), GRAPH.at("train").relations))
    return run.folder


@pytest.fixture(scope="module")
def told(run: Path) -> Any:
    """What `ray_alone` told of a run."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # by which Ray stays on the loopback address
    }
    done = subprocess.run(
        [sys.executable, str(TESTS / "ray_alone.py"), str(run)],
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
        assert "no probabilities meanwhile" in degraded["warning"]
        for row in degraded["answers"]:
            assert row["probability"] == (1.0 if row["status"] == "known" else None)
        guessed = [
            entity
            for entity, row in zip(degraded["ids"], degraded["answers"], strict=True)
            if row["status"] == "predicted"
        ]
        halves |= {entity < 40 for entity in guessed}
    assert len(halves) == 1  # guesses come from the half that is left


def test_more_processes_than_cores_are_refused(told: Any) -> None:
    assert "need a core each" in told["too many"]


def descendants(process: int) -> Iterator[int]:
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def listened_on(processes: Iterable[int]) -> set[str]:
    """The addresses, as /proc/net has them, that processes take connections on."""
    own = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    own.add(str(link.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = columns = line.split()
            if state == "0A" and f"socket:[{columns[9]}]" in own:
                found.add(local.partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="needs the sockets of a process under /proc")
def test_a_server_whose_part_dies(run: Path) -> None:
    """It listens where nobody else can reach it, says that it cannot answer, and nothing of Ray's on its output."""
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    with serving(run, "--cluster", "2", "--split", "train") as server:
        below = list(descendants(server.process.pid))
        assert listened_on([server.process.pid, *below]) - loopback == set()
        assert server.post("/v1/answer", {"question": "e1.r0"}).json()["search"]["by"] == "cluster"
        assert server.get("/readyz").status_code == 200
        parts = [one for one in below if Path(f"/proc/{one}/cmdline").read_bytes().startswith(b"ray::Part")]
        assert len(parts) == 2
        os.kill(parts[0], signal.SIGKILL)
        assert until(lambda: server.post("/v1/answer", {"question": "e1.r0"}).status_code == 503)
        assert "start again" in server.get("/readyz").json()["error"]["message"]
        assert server.get("/readyz").status_code == 503
        assert server.get("/healthz").status_code == 200
        assert until(lambda: "Ray says: " in server.log.read_text("utf-8"))


def test_more_processes_than_this_machine_has_cores_are_refused(run: Path) -> None:
    assert "need a core each" in q2p("answer", run, "e1.r0", "--cluster", "400000", code=2).stderr


def test_a_cluster_that_nobody_answers_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        monkeypatch.setitem(ENVIRONMENT, "RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        said = q2p("answer", run, "e1.r0", "--cluster", "2", code=2).stderr
    assert "there is no Ray cluster at 127.0.0.1:" in said
    assert "ray start --head" in said


def test_a_machine_that_ray_cannot_be_started_on() -> None:
    class Failing:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: object) -> None:
            raise PermissionError(13, "Permission denied", "sessions")

    with pytest.raises(RunError, match=r"Ray could not be started on this machine .*Permission denied"):
        _connect(Failing, None)


def test_calls_that_contradict_themselves_are_refused() -> None:
    from query2particles.methods.registry import make

    run = Run(Path("nowhere"), tiny("q2p"), "", "", "", None)
    model = make("q2p", GRAPH.at("train"), tiny("q2p").model)
    assert Table.fits(model)
    with pytest.raises(UsageError, match="--search index or --cluster"):
        search_for(run, model, Searching("index", shards=2))
