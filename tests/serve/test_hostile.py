"""Whatever is thrown at it, the server refuses it with a 4xx, says so in its one shape, and lives on."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from query2particles.serve import schemas
from servers import Server

ASK = "/v1/answer"

QUESTIONS = {
    "a megabyte": "x" * 1_000_000,
    "a megabyte of operators": "&" * 1_000_000,
    "ten thousand parentheses": "(" * 10_000 + "Canada" + ")" * 10_000,
    "ten thousand brackets": "[" * 10_000,
    "brackets that fit": "[" * 1_900,
    "braces": "SELECT ?x WHERE " + "{" * 1_900,
    "complements": "!" * 1_900 + "Canada",
    "a long chain": "Canada" + ".near" * 390,
    "a long conjunction": "&".join(["Canada"] * 280),
    "a normal form that explodes": "&".join(["(Canada|Chad)"] * 40),
    "null bytes": "Can\0ada.\0near",
    "control characters": "Canada\x1b[2J\x07.near",
    "a homoglyph": "С\u0430n\u0430d\u0430.near",
    "another script": "ᎪᏴᏟ.near",
    "right to left": "\u202eadanaC.near",
    "zero width": "Can\u200bada.near",
    "a quote that never ends": '"' + "a" * 1_900,
    "a backslash": '"\\',
    "numbers without end": "[[" + "9" * 1_800 + ",[1]],[1,[2]]]",
    "logic": "?x : " + "exists y. " * 190,
    "combining": "a" + "\u0301" * 1_900,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(server: Server, name: str) -> None:
    for path in (ASK, "/v1/parse"):
        found = server.post(path, {"question": QUESTIONS[name]})
        assert 400 <= found.status_code < 500, found.text
        error = schemas.ErrorResponse.model_validate(found.json()).error
        assert len(found.content) < 5000
        assert error.message.isprintable()
    assert server.is_alive


def test_parentheses_that_fit(server: Server) -> None:
    found = server.post(ASK, {"question": "(" * 950 + "Canada.near" + ")" * 950})
    assert found.json()["query"] == "Canada.near"


BODIES = {
    "nested objects": b'{"question":' * 10_000,
    "nested lists": b"[" * 200_000,
    "a list in place of a text": json.dumps({"question": [["Canada"]] * 1000}).encode(),
    "not UTF-8": b'{"question": "\xc3\x28"}',
    "a number without end": b'{"question": "Canada", "k": ' + b"9" * 10_000 + b"}",
    "a float without end": b'{"question": "Canada", "minimum_probability": 1e999}',
    "a key twice": b'{"question": "Canada", "question": "Canada.^^"}',
    "two documents": b'{"question": "Canada"}{"question": "Canada"}',
    "null": b"null",
    "null bytes": b"\0" * 1000,
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(server: Server, name: str) -> None:
    found = server.post(ASK, BODIES[name])
    assert 400 <= found.status_code < 500, found.text
    schemas.ErrorResponse.model_validate(found.json())
    assert server.is_alive


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x" * 500])
def test_compressed_bombs(server: Server, encoding: str) -> None:
    bomb = gzip.compress(zlib.compress(b"\0" * 50_000_000))
    assert server.post(ASK, bomb, **{"Content-Encoding": encoding}).status_code == 415
    assert server.is_alive


REQUESTS = {
    "nonsense": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" * 20,
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a length in words": b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
    "no host": b"GET /v1/runs HTTP/1.1\r\nConnection: close\r\n\r\n",
    "another host in the line": b"GET http://evil.example/v1/nothing HTTP/1.1\r\nHost: localhost\r\n"
    b"Connection: close\r\n\r\n",
    "a proxy": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n"
    b"Upgrade: websocket\r\n\r\n",
    "letters in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "a broken chunk": b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a folded header": b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(server: Server, name: str) -> None:
    head, _, body = server.raw(REQUESTS[name], timeout=15).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4"), head
    schemas.ErrorResponse.model_validate(json.loads(body))
    assert server.is_alive


def test_many_requests_in_one_packet(server: Server) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert server.raw(one * 50 + last).count(b"HTTP/1.1 200") == 51


def test_who_leaves_early_leaves_no_trace(server: Server) -> None:
    question = json.dumps({"question": "Canada.near.near"}).encode()
    lines = (
        f"POST {ASK} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(question)}",
    )
    head = "\r\n".join((*lines, "", ""))
    for part in (question, question[:5], b""):
        for _ in range(20):
            with server.connect() as connection:
                connection.sendall(head.encode() + part)
    assert server.is_alive
    assert not [line for line in server.logged() if line["level"] in ("error", "critical")]
