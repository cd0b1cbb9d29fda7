"""The bench of an index measures what the index says, and its page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calls import Call
from query2particles.bench.indexing import bench_index
from query2particles.report import speed_page


def test_figures() -> None:
    said: list[str] = []
    found = bench_index(5000, 16, say=said.append)
    figures = found.figures
    assert figures["recall of the best 10"] > 0.8
    assert figures["recall when made"] >= 0.95
    assert figures["lists"] == 71
    assert 1 <= figures["lists looked into"] <= 18
    assert figures["table GB"] == pytest.approx(5000 * 16 * 2 / 1e9)
    assert figures["index GB"] > 5000 * (17 + 8) / 1e9
    assert figures["index 95th percentile ms"] >= figures["index median ms"] > 0
    assert found.ratios["index"] == pytest.approx(figures["exact median ms"] / figures["index median ms"], rel=0.01)
    assert len(said) == 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = Call(capsys).json("bench", "index", "--entities", "5000", "--dimension", "16", "--out", tmp_path)
    assert document == json.loads((tmp_path / "bench-index-0.005-million-by-16.json").read_text("utf-8"))
    assert "5,000 entities in 16 dimensions" in document["about"]
    assert "## Answers from a large table on a CPU: 0.005 million by 16\n" in speed_page(tmp_path)
