"""One shape for every error, and nothing in it about the server."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from query2particles.errors import (
    AmbiguousNameError,
    GraphError,
    Query2ParticlesError,
    QueryError,
    QuerySyntaxError,
    RunError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from query2particles.serve import schemas
from query2particles.serve.problems import CODES, problem_of
from servers import Server, until

ASK = "/v1/answer"
FACT = {"head": "Canada", "relation": "speaks", "tail": "French"}
WRONG: list[tuple[str, str, Any, int, str]] = [
    ("POST", ASK, {"question": "Canada.^"}, 400, "syntax"),
    ("POST", ASK, {"question": "Cnada"}, 400, "unknown_name"),
    ("POST", ASK, {"question": "SELECT ?x WHERE { ?x :near ?y OPTIONAL { ?y :near ?x } }"}, 400, "unsupported"),
    ("POST", ASK, {"question": "[[1,[2]],[9999999,[1]]]"}, 400, "syntax"),
    ("POST", ASK, {"question": "Canada", "run": "nobody"}, 404, "not_found"),
    ("POST", ASK, {"question": ""}, 422, "invalid_request"),
    ("POST", ASK, {"question": "Canada", "k": 0}, 422, "invalid_request"),
    ("POST", ASK, {"question": "Canada", "k": "5"}, 422, "invalid_request"),
    ("POST", ASK, {"question": "Canada", "syntax": "prolog"}, 422, "invalid_request"),
    ("POST", ASK, {"question": "Canada", "more": 1}, 422, "invalid_request"),
    ("POST", ASK, {}, 422, "invalid_request"),
    ("POST", ASK, [], 422, "invalid_request"),
    ("POST", ASK, b"{", 400, "invalid_request"),
    ("POST", ASK, b"", 422, "invalid_request"),
    ("POST", ASK, b'{"question": "Canada", "minimum_probability": NaN}', 422, "invalid_request"),
    ("POST", ASK, b'{"question": "\\ud800"}', 422, "invalid_request"),
    ("POST", ASK, b'{"question": "\xff"}', 400, "invalid_request"),
    ("POST", "/v1/answer/batch", {"queries": []}, 422, "invalid_request"),
    ("POST", "/v1/explain", {"question": "Canada", "answer": "Cnada"}, 400, "unknown_name"),
    ("POST", "/v1/explain", {"question": "Canada", "answer": "Canada", "threshold": 0}, 422, "invalid_request"),
    ("POST", ASK, {"question": "Canada", "guesses": "never"}, 422, "invalid_request"),
    ("POST", "/v1/score", {"facts": []}, 422, "invalid_request"),
    ("POST", "/v1/score", {"facts": [{"head": "Canada", "relation": "near"}]}, 422, "invalid_request"),
    ("POST", "/v1/score", {"facts": [FACT], "run": "stored"}, 400, "unsupported"),
    ("POST", "/v1/score", {"facts": [FACT], "run": "nobody"}, 404, "not_found"),
    ("POST", "/v1/parse", {"question": "Canada & "}, 400, "syntax"),
    ("POST", "/v1/map", {"question": "Canada.near", "run": "stored"}, 400, "unsupported"),
    ("GET", "/v1/entities?limit=0", None, 422, "invalid_request"),
    ("GET", "/v1/entities?limit=many", None, 422, "invalid_request"),
    ("GET", "/v1/relations?run=nobody", None, 404, "not_found"),
    ("GET", "/nothing", None, 404, "not_found"),
    ("POST", "/nothing", {}, 404, "not_found"),
    ("GET", "/v1/answer/", None, 404, "not_found"),
    ("GET", "/assets/../../../etc/passwd", None, 404, "not_found"),
    ("GET", "/%2e%2e/%2e%2e/etc/passwd", None, 404, "not_found"),
    ("GET", ASK, None, 405, "method_not_allowed"),
    ("DELETE", "/v1/runs", None, 405, "method_not_allowed"),
    ("POST", "/", {}, 405, "method_not_allowed"),
]


def sent(server: Server, method: str, path: str, body: Any) -> httpx.Response:
    if method == "POST":
        return server.post(path, body)
    return server.client.request(method, path)


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), WRONG, ids=lambda value: str(value)[:40])
def test_one_shape(server: Server, method: str, path: str, body: Any, status: int, code: str) -> None:
    found = sent(server, method, path, body)
    document = found.json()
    schemas.ErrorResponse.model_validate(document)
    assert (found.status_code, document["error"]["code"]) == (status, code)
    assert status in CODES[code][0]
    assert document["request_id"] == found.headers["x-request-id"]
    assert found.headers["content-type"] == "application/json"
    message = document["error"]["message"]
    assert message
    assert "\n" not in message
    assert not re.search(r"/(work|home|usr|tmp|root|site-packages)\b|Traceback|File \"", found.text)
    if status == 405:
        assert found.headers["allow"]


def test_an_error_points_at_its_place(server: Server) -> None:
    question = "Canada.^citizen_of & Germny.^citizen_of"
    error = server.post(ASK, {"question": question}).json()["error"]
    assert question[error["position"] :][: error["length"]] == "Germny"
    assert "Germany" in error["suggestions"]


def test_every_answer_has_the_security_headers(server: Server) -> None:
    for found in (server.get("/"), server.get("/v1/runs"), server.get("/nothing"), server.post(ASK, b"{")):
        assert "default-src 'self'" in found.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in found.headers
        assert "server" not in found.headers
    assert "unsafe" not in server.get("/").headers["content-security-policy"]


def test_request_ids(server: Server) -> None:
    assert server.get("/healthz", **{"X-Request-Id": "mine-1.a_b"}).headers["x-request-id"] == "mine-1.a_b"
    for unsafe in ("x" * 65, "a b", '"', "a,b"):
        assert server.get("/healthz", **{"X-Request-Id": unsafe}).headers["x-request-id"] != unsafe
    one, two = (server.get("/healthz").headers["x-request-id"] for _ in range(2))
    assert one != two


def test_the_log_has_a_line_for_each_request(server: Server) -> None:
    server.post(ASK, {"question": "Cnada"}, **{"X-Request-Id": "for-the-log"})
    server.get('/no%0A{"level":"forged"}', **{"X-Request-Id": "forger"})
    lines: dict[str | None, dict[str, Any]] = {}

    def both_are_logged() -> bool:  # a line is written after its answer was sent
        lines.update({line.get("request_id"): line for line in server.logged()})
        return {"for-the-log", "forger"} <= lines.keys()

    assert until(both_are_logged)
    line = lines["for-the-log"]
    assert (line["event"], line["path"], line["status"], line["code"]) == ("request", ASK, 400, "unknown_name")
    assert line["run"] == "trained"
    assert line["milliseconds"] > 0
    assert line["time"].endswith("Z")
    assert lines["forger"]["path"] == '/no\n{"level":"forged"}'
    assert not any(line["level"] == "forged" for line in lines.values())


def test_errors_of_the_package() -> None:
    expected: dict[str, list[Query2ParticlesError]] = {
        "syntax": [QuerySyntaxError("no", "text", 2), QueryError("no")],
        "unknown_name": [UnknownNameError("entity", "x", ["y"], "x", 0)],
        "ambiguous_name": [AmbiguousNameError("entity", "x", [f"y{number}" for number in range(30)])],
        "unsupported": [UnsupportedError("no"), UsageError("no")],
        "internal": [RunError("/secret/place is broken"), GraphError("/secret/place")],
    }
    for code, errors in expected.items():
        for error in errors:
            problem = problem_of(error)
            assert problem.code == code
            assert problem.status in CODES[code][0]
            assert "secret" not in problem.message
    assert problem_of(expected["syntax"][0]).as_json() == {
        "code": "syntax",
        "message": "no",
        "position": 2,
        "length": 1,
    }
    assert len(problem_of(expected["ambiguous_name"][0]).as_json()["suggestions"]) == 10
