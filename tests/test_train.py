"""Training: it learns, it repeats itself, it ends in a way that it can be resumed from, bit for bit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from processes import ENVIRONMENT, TESTS
from query2particles.checkpoint import State
from query2particles.config import Config, Training, configured
from query2particles.endings import diverged
from query2particles.errors import (
    Query2ParticlesError,
    RunError,
    SamplingError,
    TrainingError,
    UsageError,
    WorkloadError,
)
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.run import Run
from query2particles.train import Progress, Trained, one_core_spared, prepare, train, validation_set
from query2particles.workload.benchmark import write_set
from query2particles.workload.labels import label
from query2particles.workload.sample import sample_shape
from trainings import contents
from worlds import random_graph

SMALL = (
    "dimension=8",
    "batch=32",
    "updates=12",
    "validate_every=4",
    "validation_queries=3",
    "warm_up=3",
    "mix=1p:2,2i:1,2in:1",
    "dropout=0.2",
)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def small(*settings: str, name: str = "default") -> Config:
    return configured(preset("q2p", name), None, [*SMALL, *settings])


def trained(
    folder: Path,
    graph: Graph,
    config: Config,
    on_progress: Callable[[Progress], object] = lambda _: None,
) -> tuple[Run, Trained]:
    run = Run.create(folder, config, graph, "atlas")
    return run, train(run, graph, on_progress=on_progress)


def cyclic_graph(entities: int = 24) -> Graph:
    """Two relations that lead from every entity to one other."""
    heads = np.tile(np.arange(entities), 2)
    relations = np.repeat([0, 1], entities)
    tails = (heads + np.where(relations == 0, 1, 5)) % entities
    return Graph.of(
        Vocabulary.of([f"e{i}" for i in range(entities)]),
        Vocabulary.of(["next", "fifth"]),
        {"train": (heads, relations, tails)},
        {"name": "cycle"},
    )


def test_a_functional_graph_is_learned(tmp_path: Path) -> None:
    graph = cyclic_graph()
    losses: list[float] = []
    settings = ("dimension=32", "batch=128", "updates=150", "rate=0.01", "warm_up=10", "mix=1p:1,2p:1", "dropout=0")
    alike = ("residual=true", "projection=attention", "norm=plain", "smoothing=0", "decay=0")  # as for small graphs
    run, how = trained(tmp_path / "run", graph, small(*settings, *alike), lambda at: losses.append(at.loss))
    assert losses[0] > 0.8 * math.log(len(graph.entities))
    assert losses[-1] < 0.2 * losses[0]
    assert (how.update, how.best_update, how.best, how.interrupted) == (150, 150, None, False)
    batch = {
        shape: sample_shape(graph, shape, 40, split="train", cap=100, allow_fewer=True).ids
        for shape in (SHAPES["1p"], SHAPES["2p"])
    }
    found = evaluate(run.model(graph), batch, label(graph, "train", batch))
    assert found.shapes["1p"].means["mrr"] > 0.95
    assert found.shapes["2p"].means["mrr"] > 0.9


def test_a_seed_says_everything(tmp_path: Path, graph: Graph) -> None:
    random_state = torch.get_rng_state()
    trained(tmp_path / "one", graph, small("seed=5"))
    assert torch.equal(torch.get_rng_state(), random_state)
    with torch.random.fork_rng([]):
        torch.manual_seed(123)
        trained(tmp_path / "two", graph, small("seed=5"))
    trained(tmp_path / "three", graph, small("seed=6"))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert contents(tmp_path / "one")["last.safetensors"] != contents(tmp_path / "three")["last.safetensors"]


def test_what_a_run_leaves_behind(tmp_path: Path, graph: Graph) -> None:
    reports: list[Progress] = []
    run, how = trained(tmp_path / "run", graph, small(), reports.append)
    validated = [line for line in run.read_trace() if "validation" in line]
    assert [line["update"] for line in validated] == [4, 8, 12]
    assert [at.update for at in reports] == [4, 8, 10, 12]
    assert [at.validation is not None for at in reports] == [True, True, False, True]
    assert [at.mrr for at in reports] == [validated[i]["validation"]["all"] for i in (0, 1, 1, 2)]
    best = max(validated, key=lambda line: line["validation"]["all"])
    assert (how.best_update, how.best, how.best_mrr) == (best["update"], best["validation"], best["validation"]["all"])
    assert [line["best"] for line in validated] == [
        line["validation"]["all"] > max((other["validation"]["all"] for other in validated[:number]), default=-1)
        for number, line in enumerate(validated)
    ]
    assert 0 < run.cost()[0] <= how.seconds + 0.01
    figures = evaluate(run.model(graph), *(validation_set(graph, run.config.training) or ({}, {})))
    assert round(100 * figures.average("all")["mrr"], 4) == how.best_mrr


def test_early_stopping(tmp_path: Path, graph: Graph) -> None:
    """At a rate of nearly nothing no validation is better than the first."""
    settings = ("rate=1e-12", "patience=2", "updates=100", "warm_up=0")
    run, how = trained(tmp_path / "run", graph, small(*settings))
    assert (how.update, how.best_update, how.interrupted) == (12, 4, False)
    before = contents(run.folder)
    again = train(run, graph)
    assert (again.update, again.seconds) == (12, how.seconds)
    assert contents(run.folder) == before


@pytest.mark.parametrize("setting", ["valid_edges=yes", "all_edges=yes"])
def test_what_is_trained_on_validates_nothing(tmp_path: Path, graph: Graph, setting: str) -> None:
    run, how = trained(tmp_path / "run", graph, small(setting))
    assert how.best is None
    assert how.best_update == 12
    assert not any("validation" in line for line in run.read_trace())
    last = load_file(run.folder / "last.safetensors")
    best = load_file(run.folder / "best.safetensors")
    assert all(torch.equal(tensor, last[f"model.{name}"]) for name, tensor in best.items())
    with_less, _ = trained(tmp_path / "less", graph, small())
    assert not torch.equal(last["model.entities"], load_file(with_less.folder / "last.safetensors")["model.entities"])


def test_a_fixed_workload(tmp_path: Path, graph: Graph) -> None:
    samples = [sample_shape(graph, SHAPES[name], 20, split="train", cap=100) for name in ("1p", "2i")]
    batch = {sample.shape: sample.ids for sample in samples}
    write_set(tmp_path / "set", graph, "train", batch, label(graph, "train", batch), about={})
    folder = f"workload={tmp_path / 'set'}"
    _, how = trained(tmp_path / "run", graph, small(folder, "mix=1p:1,2i:1", "union_share=0.5"))
    assert how.update == 12
    with pytest.raises(SamplingError, match="the workload has no 2in queries"):
        trained(tmp_path / "more", graph, small(folder))
    for setting in ("all_edges", "valid_edges"):
        with pytest.raises(UsageError, match="leave out workload, or valid_edges and all_edges"):
            trained(tmp_path / setting, graph, small(folder, "mix=1p:1", f"{setting}=1"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkloadError, match="has no train queries"):
        trained(tmp_path / "nothing", graph, small(f"workload={tmp_path / 'empty'}"))


def test_validation_queries_of_a_folder_are_evenly_spaced(tmp_path: Path, graph: Graph) -> None:
    sample = sample_shape(graph, SHAPES["1p"], None, split="valid", cap=100)
    write_set(tmp_path / "set", graph, "valid", {sample.shape: sample.ids}, {sample.shape: sample.labels}, about={})
    found = validation_set(graph, replace(Training(), validation=str(tmp_path / "set"), validation_queries=5))
    assert found is not None
    stored = [row.tolist() for row in sample.ids]
    places = [stored.index(row.tolist()) for row in found[0][sample.shape]]
    assert places[0] == 0
    assert places[-1] == len(stored) - 1
    assert max(np.diff(places)) - min(np.diff(places)) <= 1
    every = validation_set(graph, replace(Training(), validation=str(tmp_path / "set"), validation_queries=10**6))
    assert every is not None
    assert every[0][sample.shape].tolist() == sample.ids.tolist()


def test_validation_queries_are_drawn_or_there_are_none(graph: Graph) -> None:
    found = validation_set(graph, replace(Training(), validation_queries=4))
    assert found is not None
    assert set(found[0]) == set(SHAPES.values())
    assert all(len(ids) == 4 and found[1][shape].hard.sizes.all() for shape, ids in found[0].items())
    assert validation_set(cyclic_graph(), Training()) is None


def test_validation_without_a_group_of_shapes(tmp_path: Path, graph: Graph) -> None:
    sample = sample_shape(graph, SHAPES["2in"], 4, split="valid", cap=100)
    write_set(tmp_path / "set", graph, "valid", {sample.shape: sample.ids}, {sample.shape: sample.labels}, about={})
    _, how = trained(tmp_path / "run", graph, small(f"validation={tmp_path / 'set'}"))
    assert how.best is not None
    assert set(how.best) == {"negation", "all"}


def test_a_loss_that_is_no_number(tmp_path: Path, graph: Graph) -> None:
    with pytest.raises(TrainingError, match=r"no number after 10 updates; nothing was saved before.*--set rate=3e\+29"):
        trained(tmp_path / "run", graph, small("rate=1e30", "clip=1e30", "warm_up=0", "validate_every=12"))


def test_a_loss_that_is_no_number_after_an_interrupt(tmp_path: Path, graph: Graph) -> None:
    """Nothing was validated, but the interrupt has saved."""
    run, state = Run.create(tmp_path / "run", small("validate_every=12"), graph, "atlas"), State(update=3)
    ready = prepare(run.config, graph, torch.device("cpu"))
    run.save_last(ready.saved, state)
    assert "keeps update 3, where it was interrupted" in str(diverged(run, State(update=10)))


def test_scores_that_are_no_numbers(tmp_path: Path, graph: Graph) -> None:
    """The loss of the first update is sound, the weights after it are huge, and so there is nothing to rank."""
    with pytest.raises(Query2ParticlesError, match=r"scores that are no numbers"):
        trained(tmp_path / "run", graph, small("rate=1e30", "clip=1e30", "warm_up=0", "validate_every=1"))
    assert not (tmp_path / "run" / "last.safetensors").exists()
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_a_loss_that_becomes_no_number_keeps_the_weights_before(tmp_path: Path, graph: Graph) -> None:
    run, _ = trained(tmp_path / "run", graph, small("schedule=constant"))
    before = contents(run.folder)
    tensors = load_file(run.folder / "last.safetensors")
    with safe_open(run.folder / "last.safetensors", framework="pt") as file:
        metadata = file.metadata()
    number = next(name for name in tensors if name.endswith(".exp_avg_sq"))
    save_file(
        {**tensors, number: tensors[number] * -1e30}, run.folder / "last.safetensors", metadata
    )  # its root is NaN
    longer = run.with_config(configured(run.config, None, ["updates=24"]))
    with pytest.raises(TrainingError, match=r"keeps the weights of update \d+"):
        train(longer, graph)
    assert contents(run.folder)["best.safetensors"] == before["best.safetensors"]
    assert run.model(graph) is not None


def test_a_batch_beyond_all_memory(tmp_path: Path, graph: Graph) -> None:
    with pytest.raises(TrainingError, match="in training: lower batch"):
        trained(tmp_path / "run", graph, small("batch=10000000000000"))
    with pytest.raises(TrainingError, match=r"in training: lower negatives .*, then batch"):
        trained(tmp_path / "other", graph, small("negatives=10000000000000"))


def test_a_validation_beyond_all_memory(tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("query2particles.train.evaluate", fail)
    with pytest.raises(TrainingError, match=r"in validation: lower validation_queries \(--set validation_queries=1\)"):
        trained(tmp_path / "run", graph, small())


def notes_of(folder: Path, graph: Graph, config: Config) -> list[str]:
    told: list[str] = []
    train(Run.create(folder, config, graph, "atlas"), graph, on_note=told.append)
    return told


def test_what_a_person_should_know_is_said_once(tmp_path: Path, graph: Graph) -> None:
    assert notes_of(tmp_path / "sound", graph, small("patience=3")) == []
    one_way = small("mix=1p:1", "batch=8")
    (told,) = notes_of(tmp_path / "plain", cyclic_graph(), one_way)
    assert told.startswith("cycle: no validation facts; nothing is validated")
    _, patience = notes_of(tmp_path / "patient", cyclic_graph(), configured(one_way, None, ["patience=3"]))
    assert patience.startswith("patience has no effect")
    for setting in ("all_edges", "valid_edges"):
        (patience,) = notes_of(tmp_path / setting, graph, small(f"{setting}=1", "patience=3"))
        assert patience.startswith("patience has no effect")
    several = notes_of(tmp_path / "several", graph, small("batch=2", "warm_up=20"))
    assert ["no query of" in several[0], "never gets to" in several[1]] == [True, True]
    run = Run.open(tmp_path / "several")
    again: list[str] = []
    train(run, graph, on_note=again.append)
    assert again == [], "it was finished"


def test_validation_facts_that_yield_no_query(tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query2particles.train.drawn_queries", lambda *_, **__: ({}, {}))
    (told,) = notes_of(tmp_path / "run", graph, small())
    assert "no validation query that the method can answer; nothing is validated" in told


def test_a_graph_that_has_grown(tmp_path: Path, graph: Graph) -> None:
    """The ids are the same: its model can be used there, but its training cannot go on."""
    run, _ = trained(tmp_path / "run", graph, small("schedule=constant"))
    more = random_graph(3, entities=40, relations=3, facts=500)
    assert more.fingerprint == graph.fingerprint
    longer = run.with_config(configured(run.config, None, ["updates=24"]))
    with pytest.raises(RunError, match=r"has other facts than when .* began: .* for training, then .*; train anew"):
        train(longer, more)
    assert run.model(more) is not None
    assert train(longer, graph).update == 24


def test_a_run_goes_on_without_its_gpu(tmp_path: Path, graph: Graph) -> None:
    """As if a GPU had saved it: on the CPU it is trained to its end, though not exactly as it would have been."""
    run, _ = trained(tmp_path / "run", graph, small("schedule=constant"))
    path = run.folder / "last.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    states = {name: torch.zeros(16, dtype=torch.uint8) for name in ("random.stream", "random.cuda")}
    save_file({**load_file(path), **states}, path, {"about": json.dumps({**about, "device": "cuda"})})
    how = train(run.with_config(configured(run.config, None, ["updates=24"])), graph)
    assert (how.update, how.interrupted) == (24, False)
    saved = run.saved()
    assert saved is not None
    assert saved[0] == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_earlier_training_does_not_count_as_memory_of_the_next(tmp_path: Path, graph: Graph) -> None:
    """Its CUDA graphs are held by a cycle of references."""
    memory = []
    for seed in range(3):
        run = Run.create(tmp_path / str(seed), small("updates=20", "batch=256", f"seed={seed}"), graph, "atlas")
        memory.append(train(run, graph, device="cuda").gpu_memory)
    assert max(memory[1:]) < 1.2 * memory[0]


def test_another_graph_is_refused(tmp_path: Path, graph: Graph) -> None:
    run = Run.create(tmp_path / "run", small(), graph, "atlas")
    with pytest.raises(RunError, match="another graph"):
        train(run, random_graph(4, entities=41))


def test_two_trainings_in_one_folder(tmp_path: Path, graph: Graph) -> None:
    run = Run.create(tmp_path / "run", small(), graph, "atlas")
    with run.held(), pytest.raises(RunError, match="another process is training"):
        train(run, graph)
    assert train(run, graph).update == 12


def test_training_in_a_thread_leaves_signals_alone(tmp_path: Path, graph: Graph) -> None:
    handler = signal.getsignal(signal.SIGINT)
    found = []
    thread = threading.Thread(target=lambda: found.append(trained(tmp_path / "run", graph, small())[1]))
    thread.start()
    thread.join()
    assert found[0].update == 12
    trained(tmp_path / "other", graph, small())
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("update", [4, 10])
def test_a_signal_between_two_reports_saves(tmp_path: Path, graph: Graph, number: int, update: int) -> None:
    """Wherever it comes, even while a report is made: the next update is the last, and saved."""

    def interrupt(at: Progress) -> None:
        if at.update == update:
            os.kill(os.getpid(), number)

    alone, _ = trained(tmp_path / "alone", graph, small())
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    try:
        run, how = trained(tmp_path / "run", graph, small(), interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (how.update, how.signal, how.interrupted) == (update + 1, number, True)
    assert contents(run.folder)["last.safetensors"][0]["state"]["update"] == update + 1
    again = train(run, graph)
    assert (again.update, again.interrupted) == (12, False)
    ours, theirs = contents(run.folder), contents(alone.folder)
    for name in ("best.safetensors", "last.safetensors"):
        assert ours[name] == theirs[name]
    validations = [[line for line in each["trace"] if "validation" in line] for each in (ours, theirs)]
    assert validations[0] == validations[1]


def test_a_prolonged_run_equals_a_long_one(tmp_path: Path, graph: Graph) -> None:
    short, _ = trained(tmp_path / "short", graph, small("schedule=constant"))
    train(short.with_config(configured(short.config, None, ["updates=20"])), graph)
    trained(tmp_path / "long", graph, small("schedule=constant", "updates=20"))
    assert contents(tmp_path / "short") == contents(tmp_path / "long")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("default", ["dropout=0.2", "union_share=0.3"]),
        ("paper", ["dropout=0", "patience=2"]),
        ("released", ["dropout=0.1", "warm_up=3"]),
    ],
)
def test_a_killed_training_ends_as_if_left_alone(tmp_path: Path, name: str, settings: list[str]) -> None:
    own = [*SMALL[:-1], "updates=24", *settings]
    done = subprocess.run(
        [sys.executable, str(TESTS / "killing.py"), str(tmp_path), name, "1", *own],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] >= 3, "the moments are badly chosen"
    assert len(set(told["resumed_after"])) >= 2
    alone, killed = contents(tmp_path / "alone"), contents(tmp_path / "killed")
    assert killed == alone
    assert alone["trace"][-1]["update"] > 4
    names = {path.name for path in (tmp_path / "killed").iterdir()}
    assert names == {"config.json", "best.safetensors", "last.safetensors", "trace.jsonl", ".lock"}


@pytest.mark.parametrize(("device", "said", "expected"), [("cpu", None, 2), ("cpu", "3", 3), ("cuda", None, 3)])
def test_training_on_a_cpu_leaves_a_core_to_others(
    monkeypatch: pytest.MonkeyPatch, device: str, said: str | None, expected: int
) -> None:
    """Unless the user says how many threads there are; afterwards all is as before."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_core_spared(torch.device(device)):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
