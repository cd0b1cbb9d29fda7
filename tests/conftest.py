"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from worlds import named_graph, random_graph


def _data() -> Path | None:
    named = os.environ.get("Q2P_DATA")
    return Path(named) if named and Path(named).is_dir() else None


def pytest_report_header() -> str:
    found = _data()
    return (
        f"benchmark data: {found}" if found else "benchmark data: NONE (set Q2P_DATA); tests that need it are SKIPPED"
    )


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of benchmark graphs; tests that ask for it are skipped where there is none."""
    found = _data()
    if found is None:
        pytest.skip("needs the benchmark data: set Q2P_DATA to their folder")
    return found


@pytest.fixture(scope="session")
def atlas() -> Graph:
    return open_graph("atlas")


@pytest.fixture(scope="session")
def named() -> Graph:
    return named_graph()


@pytest.fixture(scope="session")
def random_world() -> Graph:
    return random_graph(7)
