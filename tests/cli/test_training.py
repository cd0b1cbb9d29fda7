"""`q2p train` and `q2p evaluate` as a person uses them: real processes, exit codes, signals, messages."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from calls import Call
from processes import ENVIRONMENT, q2p, q2p_json, start
from query2particles.cli import app
from query2particles.cli.root import Stopped
from query2particles.errors import RunError, SamplingError, UsageError, WorkloadError
from query2particles.graph.graph import Graph, Split
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import SHAPES
from query2particles.run import Run
from worlds import named_graph

SETTINGS = {
    "dimension": 8,
    "batch": 32,
    "updates": 150,
    "validate_every": 1000,
    "validation_queries": 3,
    "warm_up": 3,
    "schedule": "constant",
    "mix": "1p:2,2i:1,2in:1",
}


def settings(**changes: object) -> list[str]:
    return [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def run(graph: Path) -> Path:
    """A short training, left alone."""
    folder = graph.parent / "run"
    shown = q2p("train", graph, "--method", "q2p", "--out", folder, "--seed", "5", *settings())
    assert "│     150 │" in shown.stdout
    assert "update 150 of 150 · loss " in shown.stderr
    assert f"Next:  q2p evaluate {folder}" in shown.stderr
    return folder


def same_weights(one: Path, other: Path) -> bool:
    return all(
        {key: tensor.numpy().tobytes() for key, tensor in load_file(one / name).items()}
        == {key: tensor.numpy().tobytes() for key, tensor in load_file(other / name).items()}
        for name in ("best.safetensors", "last.safetensors")
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path: Path, graph: Path, run: Path, number: signal.Signals, code: int
) -> None:
    folder = tmp_path / "run"
    with start("train", graph, "--method", "q2p", "--out", folder, "--seed", "5", *settings()) as process:
        trace = folder / "trace.jsonl"
        until = time.monotonic() + 60
        while not (trace.exists() and trace.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert f"Stopped by {number.name} after update " in told
    assert f"Go on with:  q2p train --resume {folder}" in told
    assert "nothing was changed" not in told
    stopped_after = Run.open(folder).read_trace()[-1]["update"]
    assert 10 < stopped_after < 150
    with safe_open(folder / "last.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["about"])["state"]["update"] == stopped_after
    done = q2p_json("train", "--resume", folder)
    assert (done["update"], done["interrupted"]) == (150, False)
    assert same_weights(folder, run)


def test_a_signal_while_probabilities_are_made(
    tmp_path: Path,
    graph: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(
            "query2particles.training.fit.fit_probabilities", lambda *_, **__: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(Stopped):
            call("train", graph, "--method", "q2p", "--out", folder, *settings(updates=2))
    told = capsys.readouterr().err
    advice = f"The run is saved. To go on:  q2p calibrate {folder}"
    assert f"Stopped by SIGINT while answers were given probabilities. {advice}\n" in told
    call("calibrate", folder)
    assert (folder / "calibration.json").is_file()


def test_a_finished_run_has_nothing_to_resume(run: Path, call: Call) -> None:
    before = load_file(run / "last.safetensors")
    done = call.json("train", "--resume", run)
    assert f"{run} was finished after update 150: there is nothing left to do" in call.stderr
    assert (done["update"], done["updates"], done["run"]) == (150, 150, str(run))
    assert set(done["validation"]) == {"epfo", "negation", "all"}
    assert all((load_file(run / "last.safetensors")[key] == tensor).all() for key, tensor in before.items())


def test_options_and_files_of_settings(tmp_path: Path, graph: Path, call: Call) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[model]\ndimension = 4\n[training]\nupdates = 3\nbatch = 16\nseed = 3\nmix = {1p = 1}\n")
    words = ["--config", str(file), "--set", "updates=2", "--preset", "paper", "--unions", "dnf", "--seed", "9"]
    told = call.json(
        "train", graph, "--method", "q2p", "--out", tmp_path / "run", "--device", "cpu", "--all-edges", *words
    )
    assert (told["update"], told["validation"], told["best_update"]) == (2, None, 2)
    config = Run.open(tmp_path / "run").config
    assert (config.preset, config.model.dimension, config.training.updates, config.training.batch) == (
        "paper",
        4,
        2,
        16,
    )
    assert (config.training.seed, config.training.unions, config.training.all_edges) == (9, "dnf", True)
    call("evaluate", tmp_path / "run", "--shapes", "1p", "--limit", "3")
    assert "was trained on all facts" in call.stderr
    assert "note: no verdict: what these queries ask for was trained on, or may have been" in call.stderr
    assert "baselines" not in call.stdout


@pytest.mark.parametrize("words", [["--all-edges"], ["--set", "all_edges=true"]])
def test_what_was_trained_on_all_facts_has_nothing_to_be_measured_by(
    tmp_path: Path, graph: Path, call: Call, words: list[str]
) -> None:
    call("train", graph, "--method", "q2p", "--out", tmp_path / "run", *words, *settings(updates=2))
    assert f"Saved in {tmp_path / 'run'}.\n" in call.stderr
    call("train", "--resume", tmp_path / "run", "--set", "updates=4")
    assert f"Saved in {tmp_path / 'run'}.\n" in call.stderr


def test_what_was_trained_on_validation_facts_is_measured_by_test_facts(
    tmp_path: Path, graph: Path, call: Call
) -> None:
    run = tmp_path / "run"
    call("train", graph, "--method", "q2p", "--out", run, "--set", "valid_edges=true", *settings(updates=2))
    assert f"Saved in {run}. Next:  q2p evaluate {run}\n" in call.stderr
    assert "will carry no probabilities: " in call.stderr
    words = ("evaluate", run, "--shapes", "1p", "--limit", "3", "--hardness")
    told = call.json(*words)
    assert told["config"]["training"]["valid_edges"] is True
    assert "warning" not in call.stderr
    without = call.json(*words, "--method", "relax-and-count")["averages"]["all"]["mrr"]
    assert told["baselines"]["relax-and-count"]["all"]["mrr"] != without  # baselines know these facts as well
    call(*words, "--split", "valid")
    assert f"warning: {run} was trained on validation facts, too, those that these queries ask for" in call.stderr
    with pytest.raises(UsageError, match=r"was trained on validation facts, too: .* without valid_edges"):
        call("calibrate", run)


def test_the_next_step_is_one_that_the_graph_allows(tmp_path: Path, call: Call) -> None:
    facts = np.arange(20), np.zeros(20, dtype=np.int64), (np.arange(20) + 1) % 20
    held_out = np.arange(20), np.zeros(20, dtype=np.int64), (np.arange(20) + 2) % 20
    names = Vocabulary.of([f"e{number}" for number in range(20)]), Vocabulary.of(["next"])
    splits: dict[str, dict[Split, Any]] = {"plain": {"train": facts}, "valid": {"train": facts, "valid": held_out}}
    for name, split in splits.items():
        Graph.of(*names, split, {"name": name}).save(tmp_path / name)
        call(
            "train",
            tmp_path / name,
            "--method",
            "q2p",
            "--out",
            tmp_path / f"run-{name}",
            *settings(updates=2, mix="1p:1", patience=2),
        )
        if name == "plain":
            assert call.stderr.count("plain: no validation facts; nothing is validated") == 1
            assert "patience has no effect" in call.stderr
            assert "Next:" not in call.stderr
        else:
            assert f"Next:  q2p evaluate {tmp_path / 'run-valid'} --split valid\n" in call.stderr
            call("evaluate", tmp_path / "run-valid", "--split", "valid", "--limit", "3")


def test_a_small_batch_and_a_long_warm_up_are_noted(tmp_path: Path, graph: Path, call: Call) -> None:
    call("train", graph, "--method", "q2p", "--out", tmp_path / "run", *settings(updates=2, batch=1))
    assert "note: a batch of 1 has no query of " in call.stderr
    assert "note: the rate never gets to" in call.stderr


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a training of atlas says before it begins."""

    def no_training(*_: object, **__: object) -> None:
        raise UsageError("not here")

    def begin(*options: str) -> str:
        monkeypatch.setattr("query2particles.training.fit.train", no_training)
        arguments = ["train", "atlas", "--device", "cpu", "--out", str(tmp_path / "run"), *options]
        with pytest.raises(UsageError, match="not here"):
            app(arguments, standalone_mode=False)
        return capsys.readouterr().err

    return begin


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        (["--preset", "default"], True),
        (["--preset", "paper", "--seed", "3"], True),
        (["--preset", "small"], False),
        (["--preset", "default", "--set", "updates=5"], False),
        ([], False),
    ],
)
def test_what_is_made_for_a_gpu_says_so_on_a_cpu(begun: Callable[..., str], options: list[str], noted: bool) -> None:
    assert ("--preset small takes minutes" in begun("--method", "q2p", *options)) == noted


@pytest.mark.parametrize("method", ["q2p", "links", "best"])
def test_a_cpu_takes_the_small_preset(tmp_path: Path, begun: Callable[..., str], method: str) -> None:
    """In the size that suits the graph, and says so."""
    assert "note: on a CPU, this takes --preset small" in begun("--method", method)
    folder = tmp_path / "run" / ("links" if method == "best" else "")
    config = Run.open(folder).config
    assert config.preset == "small"
    assert config.training.updates * config.training.batch >= 20 * 2 * 19_706


def test_best_is_the_usual_method(tmp_path: Path, begun: Callable[..., str]) -> None:
    begun()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"vectors", "links"}


@pytest.mark.parametrize(
    "options",
    [
        ["--all-edges"],
        ["--unions", "dnf"],
        ["--preset", "paper"],
        ["--config", "FILE"],
        ["--set", "valid_edges=true"],
        ["--set", "all_edges = true"],
    ],
    ids=" ".join,
)
def test_what_is_for_one_method_trains_one(tmp_path: Path, begun: Callable[..., str], options: list[str]) -> None:
    """Which is said, and is another one where that is named."""
    (tmp_path / "file.toml").write_text("updates = 3\n")
    words = [str(tmp_path / "file.toml") if word == "FILE" else word for word in options]
    assert "for one method" in (told := begun(*words))
    assert "this trains q2p alone" in told
    assert Run.open(tmp_path / "run").config.method == "q2p"
    assert "for one method" not in begun("--method", "q2p", *words)


def test_minutes_choose_the_size_of_one_method(tmp_path: Path, graph: Path, call: Call) -> None:
    """Which is fixed before training begins: the run says how many updates it has."""
    run, begin = tmp_path / "run", time.monotonic()
    call("train", graph, "--method", "q2p", "--preset", "small", "--minutes", "0.1", "--out", run, "--set", "batch=32")
    assert time.monotonic() - begin < 30
    config = Run.open(run).config
    words = f"for 0.1 minutes on this machine: q2p with dimension {config.model.dimension} and "
    assert f"{words}{config.training.updates:,} updates of 32 queries" in call.stderr
    assert Run.open(run).read_trace()[-1]["update"] == config.training.updates
    call("train", "--resume", run)
    assert "there is nothing left to do" in call.stderr


def test_a_run_can_be_asked(graph: Path, run: Path, call: Call) -> None:
    assert len(call.json("answer", run, "e1.r1", "-k", "4")["answers"]) == 4
    with pytest.raises(UsageError, match="holds no graph"):
        call("answer", graph.parent, "e1.r1")


def test_a_run_of_a_gpu_on_a_machine_without(
    tmp_path: Path, run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the messages say to do works."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = shutil.copytree(run, tmp_path / "run")
    path = folder / "last.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    states = {name: torch.zeros(16, dtype=torch.uint8) for name in ("random.stream", "random.cuda")}
    save_file({**load_file(path), **states}, path, {"about": json.dumps({**about, "device": "cuda"})})
    words = ("train", "--resume", folder, "--set", "updates=160")
    with pytest.raises(UsageError, match=r"was saved on a CUDA device.*or here with --device cpu"):
        call(*words)
    with pytest.raises(UsageError, match="no CUDA device"):
        call(*words, "--device", "cuda")
    assert Run.open(folder).config.training.updates == 150, "nothing was changed"
    call(*words, "--device", "cpu")
    assert f"{folder} was saved on cuda; on cpu it goes on with other random numbers" in call.stderr
    assert "│     160 │" in call.stdout


def test_folders_that_have_moved(tmp_path: Path, graph: Path, call: Call) -> None:
    call("sample", graph, "--shapes", "1p", "--count", "3", "--split", "valid", "--out", tmp_path / "queries")
    words = settings(updates=2, validation=tmp_path / "queries")
    call("train", graph, "--method", "q2p", "--out", tmp_path / "run", *words)
    (tmp_path / "queries").rename(tmp_path / "moved")
    resume = ("train", "--resume", tmp_path / "run", "--set", "updates=4")
    with pytest.raises(UsageError, match="where it has moved, --set validation=DIR says"):
        call(*resume)
    call(*resume, "--set", f"validation={tmp_path / 'moved'}")
    assert Run.open(tmp_path / "run").config.training.validation == str(tmp_path / "moved")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "name a GRAPH and the run folder"),
        ("train GRAPH", "name a GRAPH and the run folder"),
        ("train GRAPH --method q2p --out RUN", "not empty: resume it with q2p train --resume "),
        ("train --resume RUN --seed 3 --out NEW", "leave out --out, --seed"),
        ("train --resume RUN --set rate=3", "only updates can be set anew"),
        ("train --resume NEW", "there is no run folder"),
        ("train GRAPH --out NEW --set dimensions=3", "did you mean dimension"),
        ("train GRAPH --out NEW --minutes 0", "--minutes is a number above 0"),
        ("train GRAPH --out NEW --minutes nan", "--minutes is a number above 0"),
        ("train GRAPH --out NEW --minutes 1 --set links.updates=3", "leave out it, or updates"),
        ("train --resume RUN --minutes 1", "leave out --minutes"),
        ("train GRAPH --method q2p --out NEW --preset papers", "has no preset 'papers'"),
        ("train GRAPH --out NEW --method gqx", "no method 'gqx'"),
        ("train GRAPH --out NEW --set workload=nowhere", "there is no folder 'nowhere'"),
        ("evaluate GRAPH", r"only what learns nothing can be evaluated \(--method frequent-tails or"),
        ("evaluate RUN --queries NEW", "there is no folder of queries"),
    ],
)
def test_calls_that_are_wrong(tmp_path: Path, graph: Path, run: Path, call: Call, words: str, message: str) -> None:
    places = {"GRAPH": graph, "RUN": run, "NEW": tmp_path / "new"}
    with pytest.raises(UsageError, match=message):
        call(*(places.get(word, word) for word in words.split()))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        "evaluate RUN --out FILE/x.json",
        "particles RUN --out FILE/x.json",
        "particles RUN --plot FILE/x.png",
        "bench exact --out FILE/x",
        "bench search --run RUN --out FILE/x",
        "reproduce nell-betae-q2p --data GRAPH --out FILE/x",
    ],
)
def test_a_result_that_could_not_be_saved_is_not_made(
    tmp_path: Path, graph: Path, run: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("that is work")

    for work in ("joined.open_run", "bench.bench_data", "reproduce.reproduce"):
        monkeypatch.setattr(f"query2particles.{work}", refuse)
    (tmp_path / "file").write_text("")
    places = {"GRAPH": graph, "RUN": run}
    with pytest.raises(UsageError, match=r"file/x.* cannot be written \(Not a directory\)"):
        call(*(places.get(word, word.replace("FILE", str(tmp_path / "file"))) for word in words.split()))


def test_a_calibration_that_could_not_be_saved_is_not_made(
    tmp_path: Path, run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    (own / "calibration.json").unlink(missing_ok=True)
    (own / "calibration.json").mkdir()
    monkeypatch.setattr("query2particles.training.fit.calibrate_run", lambda *_: pytest.fail("that is work"))
    with pytest.raises(UsageError, match=r"calibration\.json is a folder"):
        call("calibrate", own)


def test_without_a_gpu_cuda_is_refused(tmp_path: Path, graph: Path, call: Call) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="no CUDA device"):
        call("train", graph, "--method", "q2p", "--out", tmp_path / "x", "--device", "cuda")


def test_tensorboard(tmp_path: Path, graph: Path, call: Call) -> None:
    """Where it is not installed, the message says how; where it is, scalars are written."""
    words: list[str | Path] = [
        "train",
        graph,
        "--method",
        "q2p",
        "--out",
        tmp_path / "run",
        "--tensorboard",
        *settings(updates=10),
    ]
    if find_spec("tensorboard") is None:
        with pytest.raises(UsageError, match=r"pip install 'query2particles\[tensorboard\]'"):
            call(*words)
        assert not (tmp_path / "run").exists()
    else:
        call(*words)
        assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_full_disk(tmp_path: Path, graph: Path) -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "from query2particles.cli import main; main()"
    )
    words = ["train", str(graph), "--method", "q2p", "--out", str(tmp_path / "run"), *settings(updates=10)]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert "last.safetensors could not be written" in done.stderr
    assert f"q2p train --resume {tmp_path / 'run'}" in done.stderr
    assert "Traceback" not in done.stderr
    assert q2p_json("train", "--resume", tmp_path / "run")["update"] == 10  # there is room again


def test_damages_are_one_clear_message(tmp_path: Path, run: Path, call: Call) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    (damaged / "last.safetensors").write_bytes(b"garbage")
    assert "error: " in (told := q2p("train", "--resume", damaged, code=1).stderr)
    assert "last.safetensors cannot be read" in told
    call("evaluate", damaged, "--limit", "3")  # the best weights are whole
    (damaged / "best.safetensors").write_bytes((run / "best.safetensors").read_bytes()[:500])
    with pytest.raises(RunError, match=r"best\.safetensors cannot be read"):
        call("evaluate", damaged)
    (damaged / "config.json").write_text('{"format": 1, "graph": 5, "config": []}')
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        call("evaluate", damaged)
    with pytest.raises(RunError, match="it has no config"):
        call("train", "--resume", tmp_path)


def test_evaluation_by_hardness(run: Path, call: Call) -> None:
    told = call.json("evaluate", run, "--limit", "5", "--shapes", "1p,2i", "--hardness")
    by_hardness = told["shapes"]["2i"]["hardness"]
    assert set(by_hardness) <= {"1", "2"}
    assert {*told["shapes"]["1p"]["hardness"]} == {"1"}
    assert told["shapes"]["1p"]["hardness"]["1"]["mrr"] == told["shapes"]["1p"]["mrr"]
    call("evaluate", run, "--limit", "5", "--shapes", "1p,2i", "--hardness")
    assert "% with 1" in call.stdout
    assert f"{told['averages']['epfo']['hardness']['1']:.2f}" in call.stdout


def test_evaluation_in_the_form_of_a_result(tmp_path: Path, run: Path, call: Call) -> None:
    told = call.json("evaluate", run, "--limit", "5", "--out", tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) == told
    assert told["name"] == "random-3-drawn-q2p"
    assert (told["method"], told["graph"], told["queries"]) == ("q2p", "random-3", "drawn/test, 5 a shape, seed 0")
    assert told["seeds"] == [5]
    assert told["config"]["model"]["dimension"] == 8
    assert told["train_seconds"] > 0
    assert list(told["shapes"]) == list(SHAPES)
    assert all(figures["queries"] == 5 for figures in told["shapes"].values())
    assert set(told["averages"]) == {"epfo", "negation", "all"}
    call("evaluate", run, "--limit", "5", "--split", "test", "--seed", "0")
    shown = call.stdout
    for name, figures in told["shapes"].items():
        assert f"│ {name} " in shown
        assert f"{figures['mrr']:.2f}" in shown
    assert f"{told['averages']['epfo']['mrr']:.2f}" in shown
    assert "EPFO (mean)" in shown


def test_a_run_is_judged_beside_baselines_on_the_same_queries(run: Path, call: Call) -> None:
    words = ("evaluate", run, "--limit", "20", "--shapes", "1p,2i,2in")
    told = call.json(*words)
    assert list(told)[-2:] == ["baselines", "verdict"]
    assert told["verdict"]["grade"] in ("good", "fair", "weak", "useless")
    for name, averages in told["baselines"].items():
        alone = call.json(*words, "--method", name)
        assert alone["averages"] == averages
        assert not {"baselines", "verdict"} & alone.keys()  # what learns nothing is no run to judge
        assert averages["all"]["shapes"] == told["averages"]["all"]["shapes"] == ["1p", "2i", "2in"]
    assert list(told["baselines"]) == ["frequent-tails", "relax-and-count"]
    call(*words)
    assert call.stdout.endswith(f"{told['verdict']['sentence']}\n")
    for means in (told["averages"], *told["baselines"].values()):
        assert re.search(rf"│ +{means['epfo']['mrr']:.2f} │ +{means['negation']['mrr']:.2f} │", call.stdout)
    assert call.json(*words, "--no-baselines") == {key: told[key] for key in list(told)[:-2]}
    assert call.json("evaluate", run, "--limit", "5", "--shapes", "1p")["verdict"]["grade"] == "unknown"


def test_on_large_graphs_baselines_wait_to_be_asked_for(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query2particles.cli.evaluating._MANY_ENTITIES", 39)
    words = ("evaluate", run, "--limit", "3", "--shapes", "1p")
    assert "verdict" not in call.json(*words)
    assert "with 40 entities baselines take long; --baselines asks them all the same" in call.stderr
    assert "verdict" in call.json(*words, "--baselines")
    call(*words, "--no-baselines")
    assert "baselines" not in call.stderr


def test_what_a_method_lacks_is_left_out_of_its_evaluation_and_said(tmp_path: Path, graph: Path, call: Call) -> None:
    folder, small = tmp_path / "vectors", ("updates=4", "validate_every=4", "validation_queries=3", "dimension=8")
    settings = [word for setting in small for word in ("--set", setting)]
    call("train", graph, "--method", "gqe", "--preset", "small", "--out", folder, *settings)
    told = call.json("evaluate", folder, "--limit", "3", "--shapes", "1p,2u,2in")
    assert list(told["shapes"]) == ["1p", "2u"]
    assert (told["method"], told["queries"]) == ("gqe", "drawn/test, 3 a shape, seed 0")
    assert "gqe lacks an operator of 2in" in call.stderr
    assert told["baselines"]["relax-and-count"]["all"]["shapes"] == ["1p", "2u"]
    with pytest.raises(UsageError, match="name other --shapes"):
        call("evaluate", folder, "--limit", "3", "--shapes", "2in,pin")


def test_queries_of_a_folder_and_shapes_and_unions(tmp_path: Path, graph: Path, run: Path, call: Call) -> None:
    queries = tmp_path / "queries"
    call("sample", graph, "--shapes", "2u,up,2in", "--count", "8", "--split", "valid", "--out", queries)
    words = ("evaluate", run, "--queries", queries, "--split", "valid")
    told = {unions: call.json(*words, "--unions", unions) for unions in ("native", "dnf", "de-morgan")}
    for unions, one in told.items():
        assert one["queries"] == "queries/valid"
        assert one["config"]["training"]["unions"] == unions
        assert {name: figures["queries"] for name, figures in one["shapes"].items()} == {"2u": 8, "up": 8, "2in": 8}
    assert told["native"]["shapes"]["2in"] == told["dnf"]["shapes"]["2in"]
    assert told["native"]["shapes"]["up"] != told["de-morgan"]["shapes"]["up"]
    few = call.json(*words, "--shapes", "2u", "--limit", "3")
    assert {name: figures["queries"] for name, figures in few["shapes"].items()} == {"2u": 3}
    with pytest.raises(WorkloadError, match="has no valid queries of 3p"):
        call(*words, "--shapes", "3p")
    with pytest.raises(WorkloadError, match="has no test queries"):
        call("evaluate", run, "--queries", queries)


@pytest.mark.parametrize("method", ["frequent-tails", "relax-and-count"])
def test_baselines_on_a_graph_and_on_the_graph_of_a_run(graph: Path, run: Path, call: Call, method: str) -> None:
    words = ("--method", method, "--limit", "5", "--shapes", "1p,2i")
    told = call.json("evaluate", graph, *words)
    assert (told["method"], told["config"], told["train_seconds"]) == (method, {"unions": "native", "alone": False}, 0)
    assert told["shapes"] == call.json("evaluate", run, *words)["shapes"]


def test_a_graph_with_runs_inside_is_a_graph(tmp_path: Path, graph: Path, run: Path, call: Call) -> None:
    folder = shutil.copytree(graph, tmp_path / "graph")
    words = ("evaluate", folder, "--method", "relax-and-count", "--limit", "5", "--shapes", "1p")
    before = call.json(*words)["shapes"]
    shutil.copytree(run, folder / "links")
    assert call.json(*words)["shapes"] == before


def test_a_graph_that_has_moved_and_one_that_is_another(tmp_path: Path, graph: Path, run: Path, call: Call) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(graph, moved)
    words = ("evaluate", run, "--shapes", "1p", "--limit", "3")
    assert call.json(*words, "--graph", moved)["shapes"] == call.json(*words)["shapes"]
    assert call.json("train", moved, "--resume", run)["update"] == 150
    with pytest.raises(RunError, match="was trained on another graph"):
        call(*words, "--graph", "atlas")
    with pytest.raises(RunError, match="was trained on another graph"):
        call("train", "atlas", "--resume", run)
    copied = shutil.copytree(run, tmp_path / "run")
    document = json.loads((copied / "config.json").read_text())
    document["graph"]["folder"] = str(tmp_path / "gone")
    (copied / "config.json").write_text(json.dumps(document))
    for call_without in (("evaluate", copied), ("train", "--resume", copied)):
        with pytest.raises(RunError, match=rf"the graph of {copied} cannot be opened: .*gone does not exist"):
            call(*call_without)


def test_a_graph_without_test_facts(tmp_path: Path, call: Call) -> None:
    named_graph().save(tmp_path / "named")
    with pytest.raises(SamplingError, match="has no test facts"):
        call("evaluate", tmp_path / "named", "--method", "frequent-tails")


@pytest.mark.benchmark
def test_a_benchmark_folder_brings_its_own_queries(data: Path, call: Call) -> None:
    words = ("evaluate", data / "NELL", "--method", "frequent-tails", "--shapes", "1p,2u", "--limit", "20")
    assert call.json(*words)["queries"] == "betae/test"
    assert call.json(*words, "--split", "valid")["queries"] == "betae-resampled/valid"
