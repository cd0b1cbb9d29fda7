"""Fixtures that many tests share."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import settings

from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from worlds import named_graph, random_graph

# How long one example takes is the machine's affair: on a busy one any deadline is missed at times.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


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


_QUICK = ("updates=300", "batch=256", "warm_up=30", "validate_every=300", "validation_queries=60")
"""Settings that learn something within seconds."""


@pytest.fixture(scope="session")
def atlas_run(tmp_path_factory: pytest.TempPathFactory, atlas: Graph) -> Path:
    """A run folder: a small model, trained on atlas for some seconds and calibrated. Do not write there.

    Processes that test side by side share it: whoever comes first trains, the others wait.
    """
    from query2particles.calibration import CALIBRATION
    from query2particles.config import configured
    from query2particles.presets import preset
    from query2particles.run import Run
    from query2particles.train import train
    from query2particles.training.fit import calibrate_run
    from trainings import fewer_questions

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "atlas-run"
    with (shared / "atlas-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / CALIBRATION).exists():
            run = Run.create(folder, configured(preset(name="small"), None, _QUICK), atlas, "atlas")
            train(run, atlas)
            with pytest.MonkeyPatch.context() as patch:
                fewer_questions(patch)
                calibrate_run(run, atlas, "cpu")
    return folder
