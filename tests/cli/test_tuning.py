"""`q2p tune` as a person uses it: tables and documents, several processes, signals, messages."""

from __future__ import annotations

import fcntl
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import query2particles.tune.search as work
from processes import q2p, q2p_json, start
from query2particles.cli import app
from query2particles.errors import UsageError
from query2particles.run import Run
from query2particles.tune import tune

SETTINGS = {
    "dimension": 8,
    "updates": 4,
    "validation_queries": 3,
    "warm_up": 0,
    "mix": "1p:2,2i:1",
    "batch": 24,
    "decay": 0,
    "smoothing": 0,
}
"""Leaves rate and dropout to be searched."""


def words(graph: Path, out: Path, *more: str, **changes: object) -> list[str]:
    settings = [word for key, value in {**SETTINGS, **changes}.items() for word in ("--set", f"{key}={value}")]
    searched = ("--search", "rate=0.0001,0.01,0.03", "--search", "dropout=0,0.1")
    return ["tune", str(graph), "--out", str(out), "--trials", "4", "--eta", "2", *searched, *settings, *more]


@pytest.fixture(scope="module")
def searched(graph: Path) -> tuple[Path, dict[str, Any]]:
    """A search, left alone, and the document that it ends with."""
    folder = graph.parent / "search"
    return folder, q2p_json(*words(graph, folder))


def call(*arguments: str | Path) -> None:
    """Inside this process, where errors stay exceptions."""
    torch.set_num_threads(1)
    app(list(map(str, arguments)), standalone_mode=False)


def figures(document: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {(one["trial"], one["updates"], one["mrr"]) for one in document["trials"]}


def test_one_document(graph: Path, searched: tuple[Path, dict[str, Any]]) -> None:
    folder, document = searched
    assert document["folder"] == str(folder)
    assert document["rungs"] == [[4, 1], [2, 2], [1, 4]]
    assert document["search"] == {"rate": [0.0001, 0.01, 0.03], "dropout": [0.0, 0.1]}
    assert [one["updates"] for one in document["trials"]] == [1, 1, 1, 1, 2, 2, 4]
    assert (document["method"], document["preset"], document["settings"]["updates"]) == ("q2p", "default", 4)
    best = document["best"]
    assert {key: best[key] for key in document["trials"][-1]} == document["trials"][-1]
    assert best["run"] == str(folder / "runs" / f"{best['trial']:03}-4")
    assert (document["config"], document["interrupted"]) == (str(folder / "best.toml"), False)
    assert all(one["seconds"] > 0 and one["machine"] for one in document["trials"])


def test_a_table_with_the_best_and_the_next_step(graph: Path, searched: tuple[Path, dict[str, Any]]) -> None:
    """Of a search that is over: nothing is trained again."""
    folder, document = searched
    shown = q2p(*words(graph, folder))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines() if "│" in line]
    assert len(rows) == 4
    best = document["best"]
    settings = [str(best["settings"][key]) for key in ("rate", "dropout")]
    assert rows[0][:-1] == ["best", str(best["trial"]), *settings, "4", f"{best['mrr']:.2f}"]
    spent = sum(one["seconds"] for one in document["trials"] if one["trial"] == best["trial"])
    assert rows[0][-1] == f"{spent:.1f}"
    assert [row[0] for row in rows[1:]] == ["", "", ""]
    assert [row[4] for row in rows] == ["4", "2", "1", "1"]
    assert "trials × updates 4 × 1, then 2 × 2, then 1 × 4, by rate, dropout" in shown.stderr
    step = f"Next:  q2p train {graph} --method q2p --config {folder / 'best.toml'} --out RUN"
    assert step in shown.stderr
    assert "update 1 of 1" not in shown.stderr


def test_the_next_step_trains_what_was_found(
    graph: Path, searched: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, document = searched
    call("train", graph, "--config", folder / "best.toml", "--out", tmp_path / "run", "--json")
    assert json.loads(capsys.readouterr().out)["validation"]["all"] == document["best"]["mrr"]
    assert Run.open(tmp_path / "run").config == Run.open(Path(document["best"]["run"])).config


def test_settings_of_another_method_and_preset(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--method", "gqe", "--preset", "small", "--seed", "3")
    call(*words(graph, tmp_path / "search", *options, unions="dnf", updates=4))
    best = json.loads((tmp_path / "search" / "trials.jsonl").read_text().splitlines()[-1])
    file = tmp_path / "search" / "best.toml"
    capsys.readouterr()
    call("train", graph, "--method", "gqe", "--config", file, "--out", tmp_path / "run", "--json")
    assert json.loads(capsys.readouterr().out)["validation"]["all"] == best["mrr"]
    assert Run.open(tmp_path / "run").config.training.seed == 3


def test_workers_share_the_search(
    graph: Path,
    searched: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The process that a person started waits until the one that it started has done everything: it can."""
    folder = tmp_path / "search"
    threads = torch.get_num_threads()

    def wait_first(*given: Any, **options: Any) -> Any:
        until = time.monotonic() + 100
        while not (folder / "best.toml").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(work, "train", lambda *_, **__: pytest.fail("it was trained already"))
        return tune(*given, **options)

    monkeypatch.setattr("query2particles.tune.tune", wait_first)
    call(*words(graph, folder, "--workers", "2", "--json"))
    assert figures(json.loads(capsys.readouterr().out)) == figures(searched[1])
    assert torch.get_num_threads() == threads


def waited_for(found: Callable[[], list[Path]], count: int) -> list[Path]:
    until = time.monotonic() + 100
    while len(paths := found()) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return paths


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_whatever_ends_it_what_it_started_saves_and_ends(
    graph: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = tmp_path / "search"
    long = words(graph, folder, "--workers", "2", updates=4_000_000, validate_every=4_000_000)

    def begun() -> list[Path]:
        return [path.parent for path in folder.glob("runs/*/trace.jsonl") if path.stat().st_size]

    with start(*long) as process:
        runs = waited_for(begun, 2)  # both are at work
        process.send_signal(number)
        _, told = process.communicate(timeout=100)  # until all have closed it
    assert process.returncode == code, told
    saved = [run for run in runs if Run.open(run).saved()]
    if number is signal.SIGKILL:
        assert len(saved) == 1
    else:
        assert len(saved) == 2
        assert f"Stopped by {number.name}; everything is saved. The same command goes on" in told
        assert "Traceback" not in told
    for claim in folder.glob("claims/*"):
        with claim.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_interrupted_search_is_a_document_too(graph: Path, tmp_path: Path) -> None:
    long = words(graph, tmp_path / "search", "--json", updates=4_000_000)
    with start(*long) as process:
        waited_for(lambda: [path for path in tmp_path.glob("search/runs/*/trace.jsonl") if path.stat().st_size], 1)
        process.terminate()
        stdout, _ = process.communicate(timeout=100)
    assert process.returncode == 143
    document = json.loads(stdout)
    assert (document["trials"], document["best"], document["config"], document["interrupted"]) == ([], None, None, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--full"], "leave out --trials and --eta"),
        (["--method", "q2q"], "no method 'q2q'"),
        (["--preset", "large"], "has no preset 'large'"),
        (["--search", "drop_out=0.1,0.2"], "did you mean dropout"),
        (["--search", "batch=1,2"], "both set and searched"),
        (["--set", "validation=nowhere"], "there is no folder 'nowhere'"),
    ],
)
def test_calls_that_are_wrong(graph: Path, tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(*words(graph, tmp_path / "search", *more))
    assert not (tmp_path / "search").exists()


def test_another_search_in_the_same_folder(graph: Path, searched: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=r"search holds a search of another plan \(dimension\)"):
        call(*words(graph, searched[0], dimension=16))
