"""The benches of a server measure what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from processes import q2p
from query2particles.bench.load import Load, post, send_for
from query2particles.bench.serving import bench_soak, random_graph
from servers import Server


def test_load_is_counted(server: Server) -> None:
    good = post("/v1/answer", b'{"question": "Canada.near"}')
    bad = post("/v1/answer", b'{"question": "Cnada"}')
    closing = post("/v1/answer", b"{}", {"Connection": "close"})
    requests = iter([good, bad, closing] * 10_000)
    load = send_for(server.url, requests, connections=6, seconds=1)
    assert set(load.statuses) == {200, 400, 422}
    assert load.lost == 0
    assert sum(load.statuses.values()) == len(load.milliseconds)
    assert max(load.statuses.values()) - min(load.statuses.values()) <= 6
    assert load.errors == load.statuses[400] + load.statuses[422]
    assert load.failures == 0
    assert load.per_second == pytest.approx(len(load.milliseconds) / load.seconds)
    assert 0 < load.percentile(50) <= load.percentile(99) <= max(load.milliseconds)


def test_failures_are_counted() -> None:
    load = Load()
    load.statuses.update({200: 5, 404: 2, 503: 1})
    load.lost = 3
    assert (load.errors, load.failures) == (6, 4)
    assert math.isnan(load.percentile(50))


def test_a_random_graph_has_the_size_that_is_asked_for() -> None:
    graph = random_graph(300, 7, 4000, seed=1)
    assert (len(graph.entities), len(graph.relations)) == (300, 7)
    facts = graph.facts()
    assert facts["valid"] > 100
    assert facts["test"] > 100
    assert graph.at("train").facts == random_graph(300, 7, 4000, seed=1).at("train").facts


def test_the_command(tmp_path: Path) -> None:
    options = ("--seconds", "2", "--count", "10", "--set", "dimension=16", "--out", tmp_path, "--json")
    told = json.loads(q2p("bench", "serve", *options).stdout)
    assert json.loads((tmp_path / "bench-serve.json").read_text("utf-8")) == told
    figures = told["figures"]
    for way in ("batching", "no batching"):
        assert figures[f"{way} errors"] == 0
        assert figures[f"{way} answers/s"] > 0
        assert figures[f"{way} median ms"] <= figures[f"{way} 99th percentile ms"]
    expected = figures["batching answers/s"] / figures["no batching answers/s"]
    assert told["ratios"]["throughput"] == pytest.approx(expected, rel=0.02)
    assert "14,505 entities, 474 directed relations" in told["about"]


def test_a_short_soak() -> None:
    result = bench_soak(None, seconds=4, count=10, settings=["dimension=16"], say=lambda _: None)
    figures = result.figures
    assert figures["server errors"] == 0
    assert {name for name in figures if name.startswith("answers ")} >= {
        *("answers 200", "answers 400", "answers 404", "answers 405"),
        *("answers 413", "answers 415", "answers 422", "answers 431"),
    }
    assert figures["MiB at the end"] > 100
    assert np.isfinite(result.ratios["memory"])
