"""A server as it lives: it drains at its end, and picks up new versions of a run without dropping a request."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import shutil
import signal
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from query2particles.checkpoint import State
from query2particles.errors import UsageError
from query2particles.run import Run
from query2particles.serve.limits import Limits
from query2particles.serve.metrics import Metrics
from query2particles.serve.runs import Runs, named_sources
from servers import Server, serving, until

QUESTIONS = ["Canada.near", "Canada.^citizen_of", "(French.^speaks & Africa.^on_continent).^citizen_of"]


class Askers:
    """Clients that ask again and again on connections that stay open, until the server takes no more."""

    def __init__(self, server: Server, count: int) -> None:
        self.place = urlsplit(server.url)
        self.answers: Counter[int] = Counter()
        self.lost: list[Exception] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def _ask(self, number: int) -> None:
        assert self.place.hostname is not None
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=60)
        while not self.stop.is_set():
            number += 1
            body = json.dumps({"question": QUESTIONS[number % len(QUESTIONS)], "k": 3})
            try:
                if connection.sock is None:
                    connection.connect()
            except ConnectionRefusedError:
                return  # nothing was accepted, so nothing is lost
            try:
                connection.request("POST", "/v1/answer", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                document = json.loads(answer.read())
                assert document["answers"] or document["folded"]
                self.answers[answer.status] += 1
            except Exception as error:
                self.lost.append(error)
                return
        connection.close()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_accepted_request_is_answered(atlas_run: Path, number: signal.Signals) -> None:
    with serving(atlas_run) as server:
        askers = Askers(server, 16)
        assert until(lambda: askers.answers[200] > 50)
        server.process.send_signal(number)
        assert server.process.wait(30) == 0
        askers.join()
        assert askers.lost == []
        assert set(askers.answers) == {200}
        lines = server.logged()
    assert lines[-1]["event"] == "ended"
    assert sum(line.get("path") == "/v1/answer" for line in lines) == askers.answers[200]
    assert not [line for line in lines if line["level"] not in ("info", "debug")]


def test_while_it_drains_it_is_not_ready(atlas_run: Path) -> None:
    with serving(atlas_run, "--max-wait", "2") as server:
        waiting = server.connect()
        idle = server.connect()
        body = b'{"question":"Canada.near"}'
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        waiting.sendall(f"POST /v1/answer HTTP/1.1\r\n{head}".encode() + body)
        time.sleep(0.3)
        server.process.terminate()
        time.sleep(0.4)
        idle.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        late = b""
        while data := idle.recv(65536):
            late += data
        assert late.startswith(b"HTTP/1.1 503")
        assert b'"not_ready"' in late
        assert b"connection: close" in late
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert waiting.recv(65536).startswith(b"HTTP/1.1 200")
        waiting.close()
        idle.close()


def other_weights(folder: Path) -> None:
    """Train on, so to speak."""
    run = Run.open(folder)
    model = run.model(run.graph())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    run.save_best(model, State())


def test_a_new_version_is_picked_up(atlas_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(atlas_run, folder)

    def version(server: Server) -> str:
        found: str = server.get("/v1/runs").json()["runs"][0]["version"]
        return found

    def answers(server: Server) -> list[str]:
        """By name: the last digits of scores depend on what else is in a batch."""
        found = server.post("/v1/answer", {"question": "Canada.near", "method": "neural"}).json()["answers"]
        return [answer["name"] for answer in found]

    with serving(folder) as server:
        before, told = version(server), answers(server)
        askers = Askers(server, 4)
        other_weights(folder)
        assert until(lambda: version(server) != before)
        after = version(server)
        assert answers(server) != told
        assert server.get("/v1/runs").json()["runs"][0]["calibrated"] is False  # of other weights
        weights = (folder / "best.safetensors").read_bytes()
        (folder / "best.safetensors").write_bytes(weights[:1000])
        assert until(lambda: 'q2p_reloads_total{outcome="failed",run="run"} 1.0' in server.get("/metrics").text)
        assert version(server) == after
        (folder / "best.safetensors").write_bytes(weights)
        shutil.copy(atlas_run / "best.safetensors", folder / "best.safetensors")
        assert until(lambda: version(server) == before)
        assert answers(server) == told
        askers.stop.set()
        askers.join()
        assert askers.lost == []
        assert set(askers.answers) == {200}
        assert f'version="{before}"' in server.get("/metrics").text
        assert f'version="{after}"' not in server.get("/metrics").text
        lines = server.logged()
        (failed,) = [line for line in lines if line["level"] == "error"]
    assert failed["version"] == after


def test_an_old_version_leaves_the_memory(atlas_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(atlas_run, folder)

    async def replaced() -> bool:
        runs = Runs({"run": str(folder)}, limits=Limits(), metrics=Metrics())
        runs.start()
        old = weakref.ref(runs.named(None).current.reasoner)
        other_weights(folder)
        for _ in range(200):
            await asyncio.sleep(0.1)
            if old() is None:
                break
        await runs.stop()
        return old() is None

    try:
        assert asyncio.run(replaced())
    finally:
        gc.unfreeze()


def test_names_of_runs(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert named_sources([str(tmp_path / "one"), "atlas"]) == {"one": str(tmp_path / "one"), "atlas": "atlas"}
    assert named_sources(["atlas"], ["world"]) == {"world": "atlas"}
    for sources, names in ((["atlas", "atlas"], []), (["atlas"], ["a", "b"]), (["atlas"], ["a b"]), (["atlas"], [""])):
        with pytest.raises(UsageError, match="--name"):
            named_sources(sources, names)
