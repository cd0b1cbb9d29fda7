"""The search: the better go on, nothing is done twice, whoever dies and however many work; what it finds trains."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

import query2particles.tune.search as work
from processes import ENVIRONMENT
from query2particles.config import configured
from query2particles.errors import RunError, TrainingError, UsageError
from query2particles.graph.graph import Graph
from query2particles.presets import PRESETS, preset
from query2particles.run import Run
from query2particles.train import Progress, train
from query2particles.tune import PAPER_GRID, SPACE, Outcome, Plan, Tuned, planned, tune
from trainings import contents
from worlds import random_graph

TINY = ("dimension=8", "updates=8", "validate_every=4", "validation_queries=3", "warm_up=4", "mix=1p:2,2i:1")
SETTINGS = (*TINY, "batch=24", "decay=0", "smoothing=0", "dropout=0.2")
"""Leaves the rate to be searched."""
RATES = "rate=1e-9,0.003,0.03,1e-7"
RUNGS = [(4, 2), (2, 4), (1, 8)]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(scope="module")
def stored(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs") / "graph"
    graph.save(folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def plan_of(graph: Graph, *search: str, settings: Sequence[str] = SETTINGS, **options: Any) -> Plan:
    return planned(
        preset("q2p"), graph, settings=settings, search=search or (RATES,), **{"trials": 4, "eta": 2, **options}
    )


def searched(folder: Path, graph: Graph, plan: Plan | None = None, **options: Any) -> Tuned:
    return tune(folder, plan or plan_of(graph), graph, "atlas", **options)


def figures(outcomes: Sequence[Outcome]) -> set[tuple[Any, ...]]:
    """What must not depend on when, where and how fast a trial was trained."""
    return {(one.trial, one.updates, json.dumps(one.settings), one.mrr, one.lost) for one in outcomes}


@pytest.fixture(scope="module")
def alone(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    """A search that nothing disturbed."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone") / "search"
    return folder, searched(folder, graph)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are trained from now on."""
    names: list[str] = []

    def counted(run: Run, *given: Any, **options: Any) -> Any:
        names.append(run.folder.name)
        return train(run, *given, **options)

    monkeypatch.setattr(work, "train", counted)
    return names


def test_the_better_half_goes_on(graph: Graph, alone: tuple[Path, Tuned]) -> None:
    folder, tuned = alone
    plan = plan_of(graph)
    assert list(plan.rungs) == RUNGS
    by_rung = [[one for one in tuned.outcomes if one.updates == updates] for _, updates in RUNGS]
    assert [len(rung) for rung in by_rung] == [4, 2, 1]
    assert tuned.signal is None
    for rung, higher in pairwise(by_rung):
        ranked = sorted(rung, key=lambda one: (-one.score, one.trial))
        assert {one.trial for one in higher} == {one.trial for one in ranked[: len(higher)]}
        assert ranked[0].score > ranked[-1].score, "they are all alike: this says nothing"
    assert tuned.best == by_rung[-1][0]
    for one in tuned.outcomes:
        run = Run.open(folder / "runs" / one.name)
        assert run.config == plan.config_of(one.trial, one.updates)
        validations = [line["validation"]["all"] for line in run.read_trace() if "validation" in line]
        assert one.mrr == max(validations)


def test_a_rung_is_the_whole_training_in_small(graph: Graph) -> None:
    plan = plan_of(graph)
    shapes = [(one.updates, one.warm_up) for one in (plan.config_of(1, updates).training for _, updates in RUNGS)]
    assert shapes == [(2, 1), (4, 2), (8, 4)]
    assert plan.config_of(1, 8) == plan.config_of(1)
    assert plan.config_of(1).training.schedule == "cosine"


def test_the_best_settings_train_to_the_same_weights(graph: Graph, alone: tuple[Path, Tuned], tmp_path: Path) -> None:
    folder, tuned = alone
    assert tuned.best is not None
    config = configured(preset("q2p", "small"), folder / "best.toml")  # all settings: whatever the preset was
    run = Run.create(tmp_path / "run", config, graph, "atlas")
    assert train(run, graph).best_mrr == tuned.best.mrr
    assert contents(run.folder) == contents(folder / "runs" / tuned.best.name)


def test_only_the_best_keeps_its_weights(alone: tuple[Path, Tuned]) -> None:
    folder, tuned = alone
    assert tuned.best is not None
    kept = {path.parent.name for path in folder.rglob("*.safetensors")}
    assert kept == {tuned.best.name}


def test_a_search_that_is_over_has_nothing_to_do(graph: Graph, alone: tuple[Path, Tuned], trained: list[str]) -> None:
    folder, tuned = alone
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert searched(folder, graph) == tuned
    assert trained == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_test_facts_are_not_looked_at(graph: Graph, alone: tuple[Path, Tuned], tmp_path: Path) -> None:
    """A graph without any gives the same figures."""
    without = replace(graph, levels={"train": graph.at("train"), "valid": graph.at("valid"), "test": graph.at("valid")})
    assert without.facts()["test"] == 0 < graph.facts()["test"]
    assert figures(searched(tmp_path / "search", without).outcomes) == figures(alone[1].outcomes)


WORKER = """
import os, signal, sys, time
from pathlib import Path
import torch
import query2particles.tune.search as work
from test_tune import plan_of
from query2particles.graph.folders import open_graph
from query2particles.train import train

folder, graph, kind, number = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
trained = []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def meet():
    # Wait until two processes are at work.
    (folder.parent / f"begun-{os.getpid()}").touch()
    until = time.monotonic() + 100
    while len(list(folder.parent.glob("begun-*"))) < 2:
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.01)

def counted(run, *given, **options):
    trained.append(run.folder.name)
    (folder.parent / f"trained-{os.getpid()}").write_text(" ".join(trained))
    now = len(trained) == number
    if now and kind == "begin":
        die()
    if now and kind == "meet":
        meet()
    if now and kind == "hang":
        signal.pause()
    if now and kind == "middle":
        options["on_progress"] = lambda progress: progress.update == 4 and die()
    how = train(run, *given, **options)
    if now and kind == "end":
        die()
    return how

torch.set_num_threads(1)
work.train = counted
opened = open_graph(graph)
work.tune(folder, plan_of(opened), opened, graph)
"""


def worker(folder: Path, graph: Path, kind: str, number: int = 1) -> subprocess.Popen[str]:
    """A process that works at the search of these tests, and does something else when it trains the n-th time."""
    command = [sys.executable, "-c", WORKER, str(folder), str(graph), kind, str(number)]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "kind"), [(1, "begin"), (3, "end"), (6, "begin"), (7, "middle")])
def test_a_killed_search_goes_on_where_it_was(
    graph: Graph, stored: Path, alone: tuple[Path, Tuned], trained: list[str], tmp_path: Path, number: int, kind: str
) -> None:
    """Before a trial's first update, within one, and after its last one, but before that is written down."""
    folder = tmp_path / "search"
    with worker(folder, stored, kind, number) as process:
        _, told = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL, told
    over = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()] if number > 1 else []
    assert len(over) == number - 1
    tuned = searched(folder, graph)
    assert len(trained) == len(set(trained)) == 7 - len(over)
    assert not set(trained) & {f"{one['trial']:03}-{one['updates']}" for one in over}
    assert figures(tuned.outcomes) == figures(alone[1].outcomes)
    assert tuned.best is not None
    assert contents(folder / "runs" / tuned.best.name) == contents(alone[0] / "runs" / tuned.best.name)
    assert (folder / "best.toml").read_text() == (alone[0] / "best.toml").read_text()


def test_two_processes_share_the_trials(stored: Path, alone: tuple[Path, Tuned], tmp_path: Path) -> None:
    """Each holds its first trial until the other has one, too: no busy machine lets one do all alone."""
    folder = tmp_path / "search"
    with worker(folder, stored, "meet") as one, worker(folder, stored, "meet") as other:
        for process in (one, other):
            _, told = process.communicate(timeout=150)
            assert process.returncode == 0, told
    shares = [(tmp_path / f"trained-{process.pid}").read_text().split() for process in (one, other)]
    outcomes = work.tune(folder, plan_of(Graph.open(stored)), Graph.open(stored), str(stored)).outcomes
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == sorted(outcome.name for outcome in outcomes)
    assert figures(outcomes) == figures(alone[1].outcomes)


def test_what_is_over_by_the_time_of_the_claim_is_left_alone(
    graph: Graph, alone: tuple[Path, Tuned], trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends a trial between the look at what is pending and the claim."""
    folder = shutil.copytree(alone[0], tmp_path / "search")
    looks, pending = [[(0, 2)]], Plan.pending
    waits: list[float] = []
    monkeypatch.setattr(Plan, "pending", lambda self, outcomes: looks.pop() if looks else pending(self, outcomes))
    monkeypatch.setattr(work, "sleep", waits.append)
    assert searched(folder, graph) == alone[1]
    assert trained == []
    assert len(waits) == 1


def test_the_claim_of_a_dead_process_is_void(
    graph: Graph,
    stored: Path,
    alone: tuple[Path, Tuned],
    trained: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the first trial while all others of the rung are trained here; then it is killed."""
    folder, waits = tmp_path / "search", []
    with worker(folder, stored, "hang") as process:
        wait_for(tmp_path / f"trained-{process.pid}", process)

        def kill_it(seconds: float) -> None:
            waits.append(list(trained))
            process.kill()
            process.wait()

        monkeypatch.setattr(work, "sleep", kill_it)
        tuned = searched(folder, graph)
    assert waits == [["001-2", "002-2", "003-2"]]
    assert trained[3] == "000-2"
    assert figures(tuned.outcomes) == figures(alone[1].outcomes)


def test_a_signal_saves_and_the_search_goes_on(
    graph: Graph, alone: tuple[Path, Tuned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "search"
    said: list[str] = []

    @contextmanager
    def interrupting(updates: int) -> Iterator[Any]:
        def report(progress: Progress) -> None:
            if (updates, progress.update) == (8, 4):
                os.kill(os.getpid(), signal.SIGTERM)

        yield report

    stopped = searched(folder, graph, watch=interrupting, say=said.append)
    assert stopped.signal == signal.SIGTERM
    assert len(stopped.outcomes) == 6
    assert not (folder / "best.toml").exists()
    name = f"{stopped.best.trial:03}-8" if stopped.best else ""
    saved = Run.open(folder / "runs" / name).saved()
    assert saved is not None
    assert saved[1].update == 5
    assert "trial 0, 2 updates: rate 1e-09" in said
    assert sum("validation MRR" in line for line in said) == 6

    with (folder / "claims" / name).open("wb") as claim:  # now another process has it
        fcntl.flock(claim, fcntl.LOCK_EX)
        monkeypatch.setattr(work, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        waiting = searched(folder, graph)
    assert waiting == stopped
    tuned = searched(folder, graph)
    assert tuned.signal is None
    assert figures(tuned.outcomes) == figures(alone[1].outcomes)


WILD = (*TINY, "decay=0", "smoothing=0", "dropout=0", "clip=1e30")


@pytest.mark.parametrize("every", [1, 4])
def test_a_lost_trial_is_survived(graph: Graph, tmp_path: Path, every: int) -> None:
    """Losses, weights or scores that are no numbers; a batch beyond all memory."""
    settings = [*WILD, "warm_up=0", f"validate_every={every}"]
    plan = plan_of(graph, "rate=0.003,1e30", "batch=24,10000000000000", settings=settings)
    tuned = searched(tmp_path / "search", graph, plan)
    assert {one.trial: one.lost is None for one in tuned.outcomes if one.updates == 2} == {
        trial: point == {"rate": 0.003, "batch": 24} for trial, point in enumerate(plan.points)
    }
    reasons = {(one.settings["rate"], one.settings["batch"]): str(one.lost) for one in tuned.outcomes if one.lost}
    assert "no number" in reasons[1e30, 24]
    assert "out of memory" in reasons[0.003, 10**13]
    assert len(tuned.outcomes) == 4 + 1 + 1  # one is left for the rung of two
    assert tuned.best is not None
    assert tuned.best.settings == {"rate": 0.003, "batch": 24}


def test_where_all_are_lost_there_is_no_best(graph: Graph, tmp_path: Path) -> None:
    plan = plan_of(graph, "rate=1e30,1e29", settings=[*WILD, "warm_up=0", "batch=24"])
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"every trial was lost, .* no number.*--search"):
            searched(tmp_path / "search", graph, plan)
    assert not (tmp_path / "search" / "best.toml").exists()


def test_where_the_last_is_lost_the_longest_counts(
    graph: Graph, alone: tuple[Path, Tuned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_at_last(run: Run, *given: Any, **options: Any) -> Any:
        if run.config.training.updates == 8:
            raise TrainingError("no number")
        return train(run, *given, **options)

    monkeypatch.setattr(work, "train", lost_at_last)
    tuned = searched(tmp_path / "search", graph)
    assert tuned.best is not None
    assert (tuned.best.updates, tuned.best.trial) == (4, alone[1].best and alone[1].best.trial)
    config = configured(preset("q2p"), tmp_path / "search" / "best.toml")
    assert config.training.updates == 8


def test_another_plan_is_refused(graph: Graph, alone: tuple[Path, Tuned]) -> None:
    folder, _ = alone
    for plan, words in (
        (plan_of(graph, "rate=0.003,0.03"), r"\(search, rungs, trials\)"),
        (plan_of(graph, trials=3), r"\(rungs, trials\)"),
        (plan_of(graph, settings=[*SETTINGS, "dimension=4"]), r"\(dimension\)"),
        (planned(preset("q2p", "small"), graph, settings=SETTINGS, search=[RATES], trials=4, eta=2), "preset"),
    ):
        with pytest.raises(UsageError, match=rf"another plan .*{words}.*--out"):
            searched(folder, graph, plan)
    more = random_graph(3, entities=40, relations=3, facts=500)
    with pytest.raises(UsageError, match=r"another plan \(graph\)"):
        searched(folder, more, plan_of(more))


def test_a_search_that_was_begun_before_there_was_a_setting(graph: Graph, alone: tuple[Path, Tuned]) -> None:
    folder, tuned = alone
    path = folder / "search.json"
    document = json.loads(path.read_text())
    del document["settings"]["valid_edges"]
    path.write_text(json.dumps(document))
    assert searched(folder, graph).best == tuned.best


def test_folders_that_are_no_searches(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        searched(tmp_path / "file", graph)
    with pytest.raises(UsageError, match="not empty"):
        searched(tmp_path, graph)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for name, text in (("search.json", "[]"), ("search.json", "{"), ("trials.jsonl", "{}\n")):
        folder = tmp_path / f"search-{name}-{text[:1]}"
        folder.mkdir()
        if name != "search.json":
            (folder / "search.json").write_text(json.dumps(plan_of(graph).as_json()))
        (folder / name).write_text(text)
        with pytest.raises(RunError, match=f"{name} cannot be read; restore it"):
            searched(folder, graph)


@pytest.mark.parametrize(
    ("search", "settings", "message"),
    [
        (["rates=1,2"], [], "did you mean rate"),
        (["rate=1,fast"], [], "rate is a number, not 'fast'"),
        (["rate="], [], "rate is a number, not ''"),
        (["dropout=0.1,2"], [], "dropout is between 0 and 0.99"),
        (["rate"], [], "--search takes KEY=V1,V2"),
        (["rate=0.1,0.2"], ["rate=0.3"], "both set and searched"),
        (["updates=10,20"], [], "--set updates="),
        (["seed=1,2"], [], "--seed names one"),
        (["mix=1p:1"], [], "--set it"),
        (["validation_queries=1,2"], [], "the same queries"),
        (["leaked_share=0,1"], [], "held out"),
        (["unions=native,sideways"], [], "unions is one of"),
        (["valid_edges=0,1"], [], "held out"),
        ([], ["all_edges=true"], "leave them out"),
        ([], ["valid_edges=true"], "leave them out"),
        ([], [f"{key}=0.5" for key in ("dropout", "rate", "smoothing", "decay")] + ["batch=3"], "nothing to search"),
        ([], ["updates=3"], "too few for 3 rungs: set more, or take fewer --trials"),
    ],
)
def test_wrong_calls(graph: Graph, search: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(preset(), graph, settings=settings, search=search)


def test_without_validation_facts_there_is_nothing_to_search_by(graph: Graph) -> None:
    plain = replace(graph, levels=dict.fromkeys(("train", "valid", "test"), graph.at("train")))
    with pytest.raises(UsageError, match="has no validation facts"):
        plan_of(plain)


def test_points_are_distinct_and_the_seed_says_which(graph: Graph) -> None:
    one, same, other = (planned(preset(), graph, settings=[f"seed={seed}"], trials=30) for seed in (1, 1, 2))
    assert one == same
    assert one.points != other.points
    assert len({json.dumps(point) for point in one.points}) == 30
    for key, values in one.space.items():
        assert {point[key] for point in one.points} == set(values), "30 points leave some values out"
    assert [count for count, _ in one.rungs] == [30, 10, 3, 1]
    assert [updates for _, updates in one.rungs] == [148, 444, 1333, 4000]
    few = plan_of(graph, "rate=0.1,0.2,0.1", trials=100)
    assert [point["rate"] for point in few.points] == [0.1, 0.2]


@pytest.mark.parametrize("method", PRESETS)
def test_every_method_has_a_space(graph: Graph, method: str) -> None:
    for name, start in PRESETS[method].items():
        known = {**vars(start.model), **vars(start.training)}
        assert set(planned(start, graph).space) == set(SPACE) & set(known), name
        assert set(planned(start, graph, full=True).space) == set(PAPER_GRID) & set(known), name


def test_the_grid_of_the_paper(graph: Graph) -> None:
    plan = planned(preset("q2p", "paper"), graph, full=True)
    assert plan.rungs == [(108, 4000)]
    assert len({json.dumps(point) for point in plan.points}) == prod(map(len, PAPER_GRID.values())) == 108
    for printed in ({"batch": 8192, "dropout": 0.1, "rate": 1e-3, "smoothing": 0.5},):
        assert printed in plan.points  # what it found best on FB15k
    assert len(planned(preset(), graph, full=True, search=["rate=0.001"]).points) == 36
