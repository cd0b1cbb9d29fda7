"""Who may ask: keys, hosts, origins, and what is open to other machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processes import q2p
from query2particles.errors import UsageError
from query2particles.serve.security import Access, Keys, check_binding, is_loopback
from servers import Server, serving

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"# the page\n\n{FIRST}\n")
    options = ("--allowed-host", "Questions.example", "--cors-origin", "https://pages.example")
    with serving("atlas", "--key-file", file, *options, environment={"Q2P_API_KEYS": f" {SECOND}, "}) as started:
        yield started


def test_keys(locked: Server) -> None:
    asked = {"question": "Canada.near"}
    for headers in (
        {"Authorization": f"Bearer {FIRST}"},
        {"authorization": f"bearer  {SECOND}"},
        {"X-API-Key": FIRST},
    ):
        assert locked.post("/v1/answer", asked, **headers).status_code == 200
        assert locked.get("/metrics", **headers).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": f"Basic {FIRST}"},
        {"X-API-Key": FIRST[:-1]},
        {"X-API-Key": f"{FIRST},{SECOND}"},
    ):
        found = locked.post("/v1/answer", asked, **headers)
        assert (found.status_code, found.json()["error"]["code"]) == (401, "unauthorised")
        assert found.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/runs", "/v1/entities", "/metrics", "/v1/nothing"):
        assert locked.get(path).status_code == 401
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz"):
        assert locked.get(path).status_code == 200
    assert FIRST not in locked.log.read_text("utf-8")


def test_hosts(locked: Server) -> None:
    known = ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000", "questions.example", "questions.example:443")
    for host in known:
        assert locked.get("/docs", Host=host).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "questions.example.evil:80", "127.0.0.2", ""):
        found = locked.get("/docs", Host=host)
        assert (found.status_code, found.json()["error"]["code"]) == (400, "forbidden_host")
        assert locked.get("/healthz", Host=host).status_code == 200


def test_other_origins_are_shut_out_unless_named(locked: Server, server: Server) -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    allowed = locked.client.options("/v1/answer", headers={"Origin": "https://pages.example", **preflight})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://pages.example"
    assert "Content-Type" in allowed.headers["access-control-allow-headers"]
    refused = locked.client.options("/v1/answer", headers={"Origin": "https://evil.example", **preflight})
    assert refused.status_code == 401
    assert "access-control-allow-origin" not in refused.headers
    answer = locked.get("/v1/runs", Origin="https://pages.example", **{"X-API-Key": FIRST})
    assert answer.headers["access-control-allow-origin"] == "https://pages.example"
    assert answer.headers["vary"] == "Origin"
    for found in (
        server.client.options("/v1/answer", headers={"Origin": "https://pages.example", **preflight}),
        server.get("/v1/runs", Origin="https://pages.example"),
    ):
        assert not [name for name in found.headers if name.startswith("access-control")]


def test_other_machines_need_a_key() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert is_loopback(host)
        check_binding(host, Keys(), insecure=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        with pytest.raises(UsageError, match="--insecure"):
            check_binding(host, Keys(), insecure=False)
        check_binding(host, Keys.of([FIRST]), insecure=False)
        check_binding(host, Keys(), insecure=True)


def test_the_command_refuses_what_is_open_to_all(tmp_path: Path) -> None:
    assert "--key-file" in q2p("serve", "atlas", "--host", "0.0.0.0", "--port", "0", code=2).stderr
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    assert "holds none" in q2p("serve", "atlas", "--key-file", empty, "--port", "0", code=2).stderr
    assert "two runs" in q2p("serve", "atlas", "atlas", "--port", "0", code=2).stderr
    assert "does not exist" in q2p("serve", tmp_path / "nothing", "--port", "0", code=2).stderr


def test_a_port_that_is_taken(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    assert "another --host or --port" in q2p("serve", "atlas", "--port", port, code=2).stderr


def test_keys_are_long_and_plain() -> None:
    for key in ("short", "with spaces in the middle of it", "ümlaute-ümlaute-ümlaute", "x" * 15):
        with pytest.raises(UsageError, match="16"):
            Keys.of([key])
    assert not Keys.read(None, None)
    assert not Keys.read(None, " , ")
    assert len(Keys.read(None, f"{FIRST},{SECOND} {FIRST}").digests) == 2
    assert FIRST not in repr(Keys.of([FIRST]))


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16), st.binary())
def test_only_a_key_opens(key: str, other: bytes) -> None:
    keys = Keys.of([FIRST, key])
    assert keys.open(key.encode())
    assert keys.open(other) == (other in (key.encode(), FIRST.encode()))
    assert not keys.open(None)
    assert Keys().open(None)


def test_every_host_only_where_it_is_said() -> None:
    assert Access.of(Keys(), "127.0.0.1", ["*"]).answers_for("anything")
    assert not Access.of(Keys(), "0.0.0.0").answers_for("anything")
