"""A real server in a process of its own, on a free port of this machine, and a client for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

__all__ = ["Server", "serving", "until"]

_WAITING = 60.0


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[str]
    client: httpx.Client
    log: Path

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """Send JSON; bytes go as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, content=content, headers={"Content-Type": "application/json", **headers})

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def raw(self, *parts: bytes, pause: float = 0.0, timeout: float = 20.0) -> bytes:
        """All that comes back for these bytes, until the server hangs up or has nothing to say for a while."""
        with self.connect(timeout) as connection:
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                for part in parts:
                    connection.sendall(part)
                    if pause and select.select([connection], [], [], pause)[0]:
                        break  # who goes on sending to a closed door never hears what was said
                while data := connection.recv(65536):
                    received += data
        return received

    def connect(self, timeout: float = 20.0) -> socket.socket:
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname, place.port), timeout)

    def logged(self) -> list[dict[str, Any]]:
        """The lines of the log, all of which are JSON."""
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None and self.get("/healthz").status_code == 200


@contextlib.contextmanager
def serving(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """`q2p serve` with these arguments, until the block ends; it must end well."""
    command = [sys.executable, "-m", "query2particles", "serve", *map(str, arguments), "--port", "0"]
    inherited = {name: value for name, value in os.environ.items() if name != "Q2P_API_KEYS"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**inherited, "OMP_NUM_THREADS": "1", **(environment or {})},
            ) as process,
        ):
            assert process.stdout is not None
            try:
                words = process.stdout.readline().split()
                assert words[:2] == ["Serving", "on"], log.read_text("utf-8")
                with httpx.Client(base_url=words[2], headers=headers, timeout=_WAITING, trust_env=False) as client:
                    yield Server(words[2], process, client, log)
            finally:
                process.terminate()
                code = process.wait(_WAITING)
        assert code == 0, f"the server ended with {code}"


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False
