"""A served run, for the tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from query2particles.answer import Reasoner
from servers import Server, serving


@pytest.fixture(scope="session")
def server(atlas_run: Path) -> Iterator[Server]:
    """The run and a graph without a model."""
    with serving(atlas_run, "atlas", "--name", "trained", "--name", "stored") as started:
        yield started


@pytest.fixture(scope="session")
def reasoner(atlas_run: Path) -> Reasoner:
    """The same run in this process."""
    return Reasoner.open(atlas_run)
