"""Every limit holds, whoever is on the other side, and the server lives on."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from query2particles.errors import UsageError
from query2particles.serve.limits import Limits
from query2particles.serve.schemas import MapRequest, bounded
from servers import Server, serving

ASK = "/v1/answer"
FACT = {"head": "Canada", "relation": "speaks", "tail": "French"}
SMALL = {
    "body": 3000,
    "header": 2000,
    "question": 500,
    "depth": 3,
    "size": 8,
    "k": 20,
    "batch": 3,
    "facts": 4,
    "names": 5,
    "queue": 6,
    "connections": 12,
    "reading": 1,
    "idle": 2,
}


@pytest.fixture(scope="module")
def strict(atlas_run: Path) -> Iterator[Server]:
    with serving(atlas_run, *(f"--max-{name}={value}" for name, value in SMALL.items())) as started:
        yield started


def post_of(length: int) -> bytes:
    """The head of a question whose body is said to be so long."""
    lines = (
        "POST /v1/answer HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def code(answer: bytes) -> tuple[int, str]:
    """Of an answer as it came over the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(body)["error"]["code"]


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    (ASK, {"question": "a" * 501}, 422, "invalid_request"),
    (ASK, {"question": "Canada.near.near.near.near"}, 400, "syntax"),
    (ASK, {"question": " & ".join(["Canada.near"] * 5)}, 400, "syntax"),
    (ASK, {"question": "Canada", "k": 21}, 422, "invalid_request"),
    ("/v1/answer/batch", {"queries": [{"question": "Canada"}] * 4}, 422, "invalid_request"),
    ("/v1/parse", {"question": "Canada.near.near.near.near"}, 400, "syntax"),
    ("/v1/explain", {"question": "Canada.near.near.near.near", "answer": "Canada"}, 400, "syntax"),
    ("/v1/map", {"question": "Canada", "k": 21}, 422, "invalid_request"),
    ("/v1/score", {"facts": [FACT] * 5}, 422, "invalid_request"),
    ("/v1/score", {"facts": [{**FACT, "head": "a" * 501}]}, 422, "invalid_request"),
    (ASK, {"question": "Canada", "syntax": "x" * 3000}, 413, "too_large"),
]


@pytest.mark.parametrize(("path", "body", "status", "expected"), REFUSED)
def test_what_is_too_much(strict: Server, path: str, body: dict[str, Any], status: int, expected: str) -> None:
    found = strict.post(path, body)
    assert (found.status_code, found.json()["error"]["code"]) == (status, expected)


def test_what_is_just_enough(strict: Server) -> None:
    for body in ({"question": "Canada.near.near.near", "k": 20}, {"question": " & ".join(["Canada.near"] * 3)}):
        assert strict.post(ASK, body).status_code == 200
    assert strict.post("/v1/answer/batch", {"queries": [{"question": "Canada"}] * 3}).status_code == 200
    assert strict.post("/v1/score", {"facts": [FACT] * 4}).status_code == 200
    assert strict.get("/v1/entities?limit=5").status_code == 200
    assert strict.get("/v1/entities?limit=6").status_code == 422
    assert len(strict.get("/v1/relations").json()["relations"]) == 5


def test_defaults_are_within_the_limits() -> None:
    small = bounded(MapRequest, Limits(k=3))
    assert small.model_validate({"question": "Canada"}).k == 3
    assert MapRequest.model_validate({"question": "Canada"}).k == 50
    assert small.model_json_schema()["properties"]["k"]["default"] == 3


def test_a_body_of_no_declared_length(strict: Server) -> None:
    def parts(number: int) -> Iterator[bytes]:
        yield b'{"question": "'
        for _ in range(number):
            yield b"x" * 400
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    small = strict.client.post(ASK, content=parts(1), headers=headers)
    large = strict.client.post(ASK, content=parts(2000), headers=headers)
    assert (small.status_code, small.json()["error"]["code"]) == (400, "unknown_name")
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


def test_a_body_that_declares_more_than_anybody_reads(strict: Server) -> None:
    began = time.monotonic()
    assert code(strict.raw(post_of(99_999_999_999))) == (413, "too_large")
    assert time.monotonic() - began < 5


def test_compressed_bodies_are_refused(strict: Server) -> None:
    bomb = gzip.compress(b" " * 2_000_000)
    assert len(bomb) < 3000
    found = strict.post(ASK, bomb, **{"Content-Encoding": "gzip"})
    assert (found.status_code, found.json()["error"]["code"]) == (415, "wrong_type")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""]
)
def test_other_types_are_refused(strict: Server, kind: str) -> None:
    found = strict.post(ASK, {"question": "Canada"}, **{"Content-Type": kind})
    assert (found.status_code, found.json()["error"]["code"]) == (415, "wrong_type")
    assert strict.post(ASK, {"question": "Canada"}, **{"Content-Type": "application/json; charset=utf-8"}).is_success


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Endless: " + b"x" * 100_000,
        b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    ],
    ids=["one long", "one endless", "a long path", "many"],
)
def test_headers_have_an_end(strict: Server, head: bytes) -> None:
    assert code(strict.raw(head)) == (431, "too_large")
    assert strict.is_alive


def test_slow_clients_are_hung_up_on(strict: Server) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        silent = pool.submit(strict.raw)
        headers = pool.submit(strict.raw, *[b"GET /healthz HTTP/1.1\r\n", *[b"A: b\r\n"] * 40], pause=0.1)
        body = pool.submit(strict.raw, post_of(90), *[b" "] * 40, pause=0.1)
        blank = pool.submit(strict.raw, *[b"\r\n"] * 40, pause=0.1)
        for slow in (silent, headers, body, blank):
            assert code(slow.result()) == (408, "timeout")
    assert time.monotonic() - began < 10
    assert strict.is_alive


def test_an_idle_connection_is_closed(strict: Server) -> None:
    began = time.monotonic()
    answer = strict.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert 1 < time.monotonic() - began < 8


def test_no_more_connections_than_allowed(strict: Server) -> None:
    time.sleep(0.2)
    held = [strict.connect() for _ in range(SMALL["connections"] + 3)]
    try:
        time.sleep(0.3)
        refused = 0
        for connection in held:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                refused += code(connection.recv(65536)) == (429, "busy")
        assert refused >= 3
    finally:
        for connection in held:
            connection.close()
    time.sleep(0.3)
    assert strict.is_alive


def test_who_comes_when_the_queue_is_full_is_told_to_come_back(strict: Server) -> None:
    """Clients on all connections ask for whole batches."""
    results: list[tuple[int, str]] = []
    batch = {"queries": [{"question": "(Canada.near & Canada.near).near", "k": 20}] * 3}

    def ask() -> None:
        import httpx

        with httpx.Client(base_url=strict.url, timeout=60, trust_env=False) as client:
            for _ in range(15):
                found = client.post("/v1/answer/batch", json=batch)
                results.append((found.status_code, found.headers.get("retry-after", "")))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {(200, ""), (429, "1")}
    assert strict.is_alive


def test_an_answer_that_takes_too_long(atlas_run: Path) -> None:
    with serving(atlas_run, "--max-seconds", "0.001", "--max-wait", "0.2") as server:
        found = server.post(ASK, {"question": "Canada.near"})
        assert (found.status_code, found.json()["error"]["code"]) == (503, "timeout")
        assert int(found.headers["retry-after"]) >= 1
        assert server.get("/v1/runs").status_code in (200, 503)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_a_limit_is_above_zero(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Limits(**{name: -1})


def test_a_batch_must_fit_the_queue() -> None:
    with pytest.raises(UsageError, match="longer"):
        Limits(batch=10, queue=5)
