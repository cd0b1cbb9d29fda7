"""Calibrations in run folders: bound to weights, older ones passed over, damaged ones refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from query2particles.answer import Reasoner
from query2particles.calibration import (
    CALIBRATION,
    RELIABILITY,
    read_calibration,
    save_calibration,
)
from query2particles.errors import RunError
from query2particles.methods.registry import Model
from query2particles.run import Run
from query2particles.training.fit import calibrate_run


@pytest.fixture
def run(atlas_run: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(atlas_run, tmp_path / "run"))


def test_a_run_is_calibrated_on_questions_that_no_fit_has_seen(atlas_run: Path) -> None:
    found = read_calibration(Run.open(atlas_run))
    assert found is not None
    assert set(found.figures) == {"one hop", "hops", "intersection", "union"}
    assert found.figures["one hop"].top_ece < 0.05
    for one in found.figures.values():
        assert one.ece < 0.05
        assert one.questions > 50
    assert (atlas_run / RELIABILITY).read_bytes().startswith(b"\x89PNG")


def test_what_is_stored_is_read_back(run: Run) -> None:
    found = read_calibration(run)
    assert found is not None
    again = save_calibration(run, found)
    assert again.as_json() == found.as_json()
    read = read_calibration(run)
    assert read is not None
    assert read.as_json() == found.as_json()
    assert not list(run.folder.glob(".*.partial-*"))


def test_without_a_file_there_is_no_calibration(run: Run) -> None:
    (run.folder / CALIBRATION).unlink()
    assert read_calibration(run) is None
    reasoner = Reasoner.open(run.folder)
    assert reasoner.calibration is None
    assert reasoner.judge is None


def test_weights_that_come_while_it_is_fitted_have_no_calibration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training may go on beside it."""
    load = Run.model

    def loaded_before_newer_ones_came(self: Run, *arguments: Any) -> Model:
        model = load(self, *arguments)
        with (run.folder / "best.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"!")
        return model

    monkeypatch.setattr(Run, "model", loaded_before_newer_ones_came)
    monkeypatch.setattr("query2particles.training.fit.questions_for", lambda *_: {"one_hop": 100, "longer": 2})
    calibrate_run(run, run.graph(), "cpu")
    assert read_calibration(run) is None


def test_other_weights_need_another_calibration(run: Run) -> None:
    weights = run.folder / "best.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert read_calibration(run) is None
    warning = Reasoner.open(run.folder).answer("Canada.^citizen_of").warning
    assert warning is not None
    assert "q2p calibrate RUN" in warning


def test_one_of_an_older_version_is_none(run: Run) -> None:
    older = {"format": 1, "weights": "0", "curves": {"all": {"weights": [1, 0, 0], "bias": 0, "knots": [[0, 0]]}}}
    (run.folder / CALIBRATION).write_text(json.dumps(older))
    assert read_calibration(run) is None


def damaged(document: Any, *path: str, to: Any) -> str:
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: "",
        lambda document: "[]",
        lambda document: "[" * 100_000,
        lambda document: damaged(document, "format", to=99),
        lambda document: damaged(document, "facts", to={}),
        lambda document: damaged(document, "facts", "weights", to=[1, 2]),
        lambda document: damaged(document, "facts", "knots", to=[[0, 1], [1, 0]]),
        lambda document: damaged(document, "facts", "features", to=["one"]),
        lambda document: damaged(document, "questions", to={}),
        lambda document: damaged(document, "questions", "hops", "bias", to=float("nan")),
        lambda document: damaged(document, "questions", "hops", "features", to=["facts", "score"] + 7 * ["other"]),
        lambda document: damaged(document, "lost", to=[]),
        lambda document: damaged(document, "rates", "missing", to=[[0.1]]),
        lambda document: damaged(document, "figures", to={"one hop": {}}),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(run: Run, damage: Any) -> None:
    path = run.folder / CALIBRATION
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(RunError, match=f"cannot be read.*q2p calibrate {run.folder}"):
        read_calibration(run)


def test_features_of_facts_that_the_model_does_not_have(run: Run) -> None:
    path = run.folder / CALIBRATION
    names = json.loads(path.read_text())["facts"]["features"]
    path.write_text(damaged(json.loads(path.read_text()), "facts", "features", to=["other", *names[1:]]))
    with pytest.raises(RunError, match="q2p calibrate RUN"):
        Reasoner.open(run.folder).answer("Canada.^citizen_of")
