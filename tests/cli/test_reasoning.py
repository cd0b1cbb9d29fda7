"""`q2p calibrate`, `q2p discover` and `q2p export` as a person uses them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from processes import q2p
from query2particles.answer import Reasoner
from query2particles.calibration import CALIBRATION, RELIABILITY, read_calibration
from query2particles.cli import app
from query2particles.errors import RunError, SourceError, UnknownNameError, UsageError, WorkloadError
from query2particles.run import Run
from trainings import fewer_questions
from worlds import named_graph, random_graph

QUICK = {"dimension": 8, "batch": 32, "updates": 4, "validate_every": 4, "validation_queries": 20, "warm_up": 1}


@pytest.fixture
def run(atlas_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(atlas_run, tmp_path / "run")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls a command inside this process and gives what it printed on stdout."""

    def call(*arguments: object) -> str:
        app(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out

    return call


def trained(tmp_path: Path, graph: Any, *options: str) -> Path:
    graph.save(tmp_path / "graph")
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    app(
        ["train", str(tmp_path / "graph"), "--method", "q2p", "--out", str(tmp_path / "run"), *settings, *options],
        standalone_mode=False,
    )
    return tmp_path / "run"


def test_calibrating_again_gives_the_same(run: Path, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer_questions(monkeypatch)
    before = (run / CALIBRATION).read_bytes()
    for name in (CALIBRATION, RELIABILITY):
        (run / name).unlink()
    figures = json.loads(told("calibrate", run, "--json"))["figures"]
    assert figures == json.loads(before)["figures"]
    assert (run / CALIBRATION).read_bytes() == before
    assert (run / RELIABILITY).read_bytes().startswith(b"\x89PNG")
    shown = told("calibrate", run)
    for family in figures:
        assert f"│ {family} " in shown


def test_training_ends_with_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = random_graph(3, entities=40, relations=3, facts=400)
    folder = trained(tmp_path, graph)
    assert "q2p evaluate" in capsys.readouterr().err
    assert read_calibration(Run.open(folder)) is not None
    assert Reasoner.open(folder).answer("e1.r1").warning is None


def test_training_without_validation_goes_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, random_graph(3, entities=40, relations=3, facts=400), "--all-edges")
    assert read_calibration(Run.open(folder)) is None
    with pytest.raises(UsageError, match="trained on all facts"):
        app(["calibrate", str(folder)], standalone_mode=False)
    capsys.readouterr()
    app(["discover", str(folder), "--entity", "e1"], standalone_mode=False)
    shown = capsys.readouterr()
    assert f"q2p calibrate {folder}" in shown.err
    assert "–" in shown.out


def test_a_graph_without_validation_facts_cannot_be_calibrated_on(tmp_path: Path) -> None:
    folder = trained(tmp_path, named_graph(), "--set", "mix=1p:1")
    assert not (folder / CALIBRATION).exists()
    with pytest.raises(WorkloadError, match="no validation facts"):
        app(["calibrate", str(folder)], standalone_mode=False)


def test_too_few_validation_queries_do_not_spoil_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = random_graph(3, entities=12, relations=1, facts=24)
    folder = trained(tmp_path, graph, "--set", "validation_queries=1", "--set", "mix=1p:1")
    assert "will carry no probabilities" in capsys.readouterr().err
    assert (folder / "best.safetensors").exists()
    assert not (folder / CALIBRATION).exists()


def test_discover(atlas_run: Path, told: Any) -> None:
    arguments = ("discover", atlas_run, "--relation", "speaks", "--split", "train", "-k", 5)
    found = json.loads(told(*arguments, "--json"))
    assert len(found) == 5
    assert {fact["relation"]["name"] for fact in found} == {"speaks"}
    expected = Reasoner.open(atlas_run, split="train").discover(relation="speaks", k=5)
    assert found == [one.as_json() for one in expected]
    shown = told(*arguments)
    assert "Missing facts of speaks" in shown
    assert found[0]["head"]["label"] in shown
    with pytest.raises(UsageError, match="relation or an entity"):
        told("discover", atlas_run)
    with pytest.raises(UnknownNameError, match="no entity is called 'Nobody'"):
        told("discover", atlas_run, "--entity", "Nobody")
    with pytest.raises(UsageError, match="trained run"):
        told("discover", "atlas", "--entity", "Canada")


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    file = tmp_path / "facts.tsv"
    file.write_text("Canada\tspeaks\tFrench\n\nGhana\tspeaks\tFrench\nCanda\tspeaks\tFrench\n")
    return file


def test_score(atlas_run: Path, facts: Path, told: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (likely,) = Reasoner.open(atlas_run).probability([("Ghana", "speaks", "French")])
    ghana = {"head": "Ghana", "relation": "speaks", "tail": "French", "probability": round(likely, 6), "stored": False}
    assert json.loads(told("score", atlas_run, "--fact", "Ghana", "speaks", "French", "--json")) == [ghana]
    assert app(["score", str(facts), str(atlas_run), "--json"], standalone_mode=False) == 1
    shown = capsys.readouterr()
    stored, guessed, wrong = json.loads(shown.out)
    assert (stored["line"], stored["probability"], stored["stored"]) == (1, 1.0, True)
    assert guessed == {"line": 3, **ghana}
    assert (wrong["line"], wrong["head"]) == (4, "Canda")
    assert "did you mean 'Canada'" in wrong["error"]
    assert "1 of 3 facts could not be understood" in shown.err
    assert app(["score", str(facts), str(atlas_run)], standalone_mode=False) == 1
    shown = capsys.readouterr()
    assert "line 4: no entity is called 'Canda'; did you mean 'Canada'" in shown.err
    assert re.search(r"│ +100 % │ stored +│ Canada", shown.out)
    assert re.search(r"│ +[<>\d. ]+ % │ predicted │ Ghana", shown.out)


def test_scores_of_compressed_files_are_written(atlas_run: Path, facts: Path, tmp_path: Path, told: Any) -> None:
    packed = tmp_path / "facts.csv.gz"
    packed.write_bytes(gzip.compress(b'tail,head,relation\nFrench,Ghana,speaks\n"French","Canada",speaks\n'))
    for target in (tmp_path / "new" / "scored.tsv", tmp_path / "scored.csv"):
        assert "1 stored, 1 predicted, 0 not understood" in told("score", packed, atlas_run, "--out", target)
        with target.open(newline="") as file:
            first, second = csv.DictReader(file, delimiter="\t" if target.suffix == ".tsv" else ",")
        assert list(first) == ["head", "relation", "tail", "probability", "stored"]
        assert [(one["head"], one["stored"]) for one in (first, second)] == [("Ghana", "false"), ("Canada", "true")]
        assert 0 < float(first["probability"]) < 1 == float(second["probability"])
    told("score", facts, atlas_run, "--out", tmp_path / "some.tsv")
    assert (tmp_path / "some.tsv").read_text().splitlines()[-1] == "Canda\tspeaks\tFrench\t\t"


def test_scores_of_stdin(atlas_run: Path, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Canada\tspeaks\tFrench\n")))
    (found,) = json.loads(told("score", "-", atlas_run, "--json"))
    assert (found["line"], found["stored"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("{run}",), UsageError, "and then a RUN"),
        (("{facts}", "{run}", "--fact", "a", "b", "c"), UsageError, "and then a RUN"),
        (("nowhere.tsv", "{run}"), UsageError, "nowhere.tsv does not exist"),
        (("facts.parquet", "{run}"), UsageError, "TSV or CSV"),
        (("{facts}", "atlas"), UsageError, "trained run"),
        (("{facts}", "{run}", "--format", "csv"), SourceError, "line 1: 1 column"),
        (("{facts}", "{run}", "--out", "x.json"), UsageError, ".tsv or .csv"),
        (("{run}", "--fact", "Canda", "speaks", "French"), UnknownNameError, "did you mean 'Canada'"),
        (("{run}", "--fact", "Canada\n", "speaks\tx", "French", "--out", "x.tsv"), UnknownNameError, "no entity"),
    ],
)
def test_scores_that_cannot_be(
    atlas_run: Path, facts: Path, told: Any, arguments: tuple[str, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        told("score", *(one.format(run=atlas_run, facts=facts) for one in arguments))
    assert not Path("x.tsv").exists()


def test_export(atlas_run: Path, tmp_path: Path, told: Any) -> None:
    run = Run.open(atlas_run)
    model = run.model(run.graph())
    target = tmp_path / "new" / "atlas.safetensors"
    document = json.loads(told("export", atlas_run, "--out", target, "--json"))
    assert (document["format"], document["vectors"], document["dimension"]) == ("safetensors", 6227 + 38, 64)
    assert torch.equal(load_file(target)["entities"], dict(model.named_parameters())["entities"])
    assert "6,265 vectors of 64 numbers" in told("export", atlas_run, "--format", "tsv", "--out", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text().count("\n") == 6266
    with pytest.raises(UsageError, match="--format"):
        told("export", atlas_run, "--out", tmp_path / "x.csv")
    with pytest.raises(UsageError, match="is a folder"):
        told("export", atlas_run, "--format", "tsv", "--out", tmp_path)
    for own in (atlas_run / "best.safetensors", atlas_run / "new.tsv"):
        with pytest.raises(UsageError, match="the run's own files"):
            told("export", atlas_run, "--out", own)
    with pytest.raises(RunError, match="no run folder"):
        told("export", tmp_path, "--format", "tsv", "--out", tmp_path / "y")


def test_a_damaged_calibration_is_one_line(run: Path) -> None:
    (run / CALIBRATION).write_text("{")
    done = q2p("answer", run, "Canada", code=1)
    assert done.stderr.startswith("error: ")
    assert f"q2p calibrate {run}" in done.stderr
