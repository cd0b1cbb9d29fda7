"""The demo: end to end with a model of a few updates; what it may replace; that its real settings keep their word."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from processes import q2p, q2p_json, start
from query2particles import demo
from query2particles.engine.exact import exact_answers_of
from query2particles.errors import RunError, UsageError
from query2particles.graph.graph import Graph
from query2particles.joined import PARTS, open_joined
from query2particles.methods.baselines import RelaxAndCount
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.run import JOINED, Run

QUICK = ("updates=6", "batch=32", "dimension=8", "validate_every=3", "validation_queries=3")
SET = [word for setting in QUICK for word in ("--set", setting)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("demo") / "run"
    return dict(q2p_json("demo", "--count", "5", "--out", out, *SET))


def test_what_people_see(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "demo"
    shown = q2p("demo", "--count", "5", "--out", out, *SET).stdout
    for words in (
        "6,227 entities",
        "GeoNames",
        "not Canadian",
        "border both Germany and Italy",
        "SELECT DISTINCT ?currency",
        "The training facts answer: none",
        "take back 1 of them",
        "guess 5",
        str(out / demo.PLOT),
    ):
        assert words in shown
    for name in SHAPES:
        assert shown.count(f"│ {name} ") == 2  # what was drawn, and how well it went
    for method in ("frequent-tails", "relax-and-count", "best"):
        assert method in shown
    for mean in ("EPFO", "negation", "all"):
        assert f"{mean} (mean)" in shown


def test_the_same_as_one_document(told: dict[str, object]) -> None:
    assert json.loads(json.dumps(told)) == told
    assert set(told) == {"graph", "samples", "run", "plot", "train_seconds", "mrr", "questions"}
    assert Path(str(told["plot"])).read_bytes().startswith(b"\x89PNG")
    run = open_joined(Path(str(told["run"])))
    for part in (run.vectors, run.links):
        assert (part.config.training.updates, part.config.model.dimension) == (6, 8)


def test_every_shape_is_drawn_and_every_method_measured(told: dict[str, object]) -> None:
    samples, mrr = told["samples"], told["mrr"]
    assert isinstance(samples, list)
    assert isinstance(mrr, dict)
    assert [row["shape"] for row in samples] == list(SHAPES)
    assert all(row["queries"] == 5 and row["hard"] > 0 for row in samples)
    assert list(mrr) == ["frequent-tails", "relax-and-count", demo.NAME]
    for averages in mrr.values():
        assert set(averages) == {"epfo", "negation", "all"}
        assert all(0 < value < 100 for value in averages.values())


def test_guesses_are_news_and_held_out_facts_judge_them(atlas: Graph) -> None:
    """A method that knows all facts guesses what is missing, and only that is confirmed."""
    all_facts = RelaxAndCount(atlas.at("test"))
    for guessed in demo.guess_all(atlas, all_facts, k=5):
        known, true = (
            set(exact_answers_of(atlas.at(split), guessed.known.query)[0].tolist()) for split in ("train", "test")
        )
        assert guessed.known.total == len(known)
        assert (guessed.taken_back, guessed.missing) == (len(known - true), len(true - known))
        assert len(guessed.guesses) == 5
        for guess, confirmed in guessed.guesses:
            assert not guess.known
            assert guess.entity_id not in known
            assert confirmed == (guess.entity_id in true)
        assert sum(confirmed for _, confirmed in guessed.guesses) == min(5, guessed.missing)


def test_unions_are_answered_as_the_run_says(atlas: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def remember(*_: object, unions: str, **__: object) -> list[object]:
        asked.append(unions)
        return []

    monkeypatch.setattr(demo, "predict", remember)
    method = RelaxAndCount(atlas.at("train"))
    assert len(list(demo.guess_all(atlas, method, k=5, unions="dnf"))) == len(demo.QUESTIONS)
    assert asked == ["dnf"] * len(demo.QUESTIONS)


def test_an_earlier_demo_gives_way(tmp_path: Path, told: dict[str, object], atlas: Graph) -> None:
    out = shutil.copytree(str(told["run"]), tmp_path / "run")
    for name in ("calibration.json", "calibration.png"):  # six updates are too few for them
        (out / name).touch()
    assert {demo.PLOT, JOINED, *PARTS} < {path.name for path in out.iterdir()}
    parts = demo.new_parts(out, atlas, ("updates=3",))
    assert {path.name for path in out.iterdir()} == set(PARTS)
    for part, run in parts.items():
        assert {path.name for path in (out / part).iterdir()} <= {"config.json", ".lock"}
        assert Run.open(out / part).config == run.config


def test_a_demo_of_an_earlier_version_gives_way(tmp_path: Path, atlas: Graph) -> None:
    """It was one run."""
    run = Run.create(tmp_path / "run", replace(preset(), preset="demo"), atlas, "atlas")
    for name in ("best.safetensors", demo.PLOT, "calibration.json"):
        (run.folder / name).touch()
    demo.new_parts(run.folder, atlas)
    assert {path.name for path in run.folder.iterdir()} == set(PARTS)


def test_nothing_else_gives_way(tmp_path: Path, atlas: Graph) -> None:
    notes = tmp_path / "notes" / "mine.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        demo.new_parts(notes.parent, atlas)
    trained = Run.create(tmp_path / "trained", preset(), atlas, "atlas")
    (trained.folder / "best.safetensors").write_text("weights")
    with pytest.raises(UsageError, match="not empty"):
        demo.new_parts(trained.folder, atlas)
    assert Run.open(trained.folder).config == preset()
    part = Run.create(tmp_path / "joined" / "vectors", preset(), atlas, "atlas")
    (part.folder / "last.safetensors").write_text("weights")
    with pytest.raises(UsageError, match="would be lost"):
        demo.new_parts(tmp_path / "joined", atlas)
    for place in (tmp_path / "earlier", tmp_path / "earlier" / "links"):
        demo.new_parts(tmp_path / "earlier", atlas)
        (place / "mine.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"mine\.txt"):
            demo.new_parts(tmp_path / "earlier", atlas)
        assert Run.open(tmp_path / "earlier" / "vectors").config.preset == "demo", "nothing was removed"
        assert (place / "mine.txt").read_text() == "mine"
        (place / "mine.txt").unlink()
    assert notes.read_text() == "mine"


def test_a_demo_that_is_running_is_left_alone(tmp_path: Path, atlas: Graph) -> None:
    parts = demo.new_parts(tmp_path / "run", atlas)
    with parts["links"].held(), pytest.raises(RunError, match="another process"):
        demo.new_parts(tmp_path / "run", atlas)
    for part, run in parts.items():
        assert Run.open(tmp_path / "run" / part).config == run.config


def test_an_interrupted_demo_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start("demo", "--count", "2", "--out", out, *SET, "--set", "updates=100000") as process:
        deadline = time.monotonic() + 60
        trace = out / "vectors" / "trace.jsonl"
        while not trace.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "vectors. The same command begins anew." in stderr


@pytest.mark.slow
def test_the_model_beats_what_learns_nothing(tmp_path: Path) -> None:
    """The demo as people start it, on both averages and by far: neither seed nor machine decides."""
    with start("demo", "--out", tmp_path / "run", "--json") as process:
        stdout, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stderr
    mrr = json.loads(stdout)["mrr"]
    for average in ("epfo", "negation"):
        best = max(mrr["frequent-tails"][average], mrr["relax-and-count"][average])
        assert mrr[demo.NAME][average] > 1.5 * best, mrr
