"""What a run does about the size of its graph, and trainings by rows: they learn, end and go on like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from processes import ENVIRONMENT, TESTS
from query2particles import tables
from query2particles.config import Config, configured
from query2particles.engine.ahead import Ahead
from query2particles.engine.looking import Looking
from query2particles.engine.rows import Filling
from query2particles.errors import UsageError
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.methods.registry import METHODS
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.run import Run
from query2particles.tables import settled
from query2particles.train import Progress, Trained, prepare, train, validation_set
from query2particles.workload.labels import Labelled
from trainings import contents, tiny
from worlds import random_graph

CPU = torch.device("cpu")
PAIR = ("alone", "killed")
KEPT = ("device", "bf16", "host")
each_table = pytest.mark.parametrize("table", KEPT)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(scope="module")
def validation(graph: Graph) -> Labelled:
    drawn = validation_set(graph, tiny("q2p").training)
    assert drawn is not None
    some = [SHAPES[name] for name in ("1p", "2p", "2i")]
    return {shape: drawn[0][shape] for shape in some}, {shape: drawn[1][shape] for shape in some}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def choice(
    *settings: str, method: str = "q2p", entities: int = 10**6, device: torch.device = CPU, **options: Any
) -> tuple[Any, Any, list[str]]:
    found, notes = settled(configured(preset(method), None, settings), entities, device, **options)
    return found.training.negatives, found.training.table, notes


@pytest.fixture
def much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_available_memory", lambda: 64 << 30)


@pytest.mark.usefixtures("much_memory")
def test_what_auto_means() -> None:
    cuda = torch.device("cuda")
    for most, device in ((4_000, CPU), (200_000, cuda)):
        assert choice(entities=most, device=device) == (0, "whole", [])
        assert choice("negatives=64", entities=most, device=device) == (64, "whole", [])
    negatives, table, notes = choice(entities=4_001)
    assert (negatives, table) == (1024, "device")
    assert "4,001 entities are many" in notes[0]
    assert "trained by rows" in notes[1]
    assert choice(entities=200_000)[:2] == (1024, "device")
    assert choice(entities=200_001)[:2] == (4096, "device")
    assert choice("table=whole", entities=200_000) == (0, "whole", [])
    assert choice(method="emql", entities=200_000) == (0, "whole", [])
    assert choice("negatives=0") == (0, "whole", [])
    assert choice("negatives=64")[:2] == (64, "device")
    assert choice("table=whole")[:2] == (4096, "whole")
    assert choice("table=bf16", "negatives=64", entities=10)[:2] == (64, "bf16")
    assert choice(method="cqd-beam")[:2] == (4096, "device")
    assert choice(method="emql")[:2] == (4096, "whole")


def test_memory_that_files_only_lie_in_is_available() -> None:
    """What is, no more than the machine has, and more than this process holds."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (1 << 26) < tables._available_memory() <= pages


@pytest.mark.usefixtures("much_memory")
def test_what_does_not_fit_is_kept_elsewhere() -> None:
    assert choice(entities=10**10)[1] == "host"
    assert choice(entities=10**10, method="cqd-beam")[1] == "device"
    assert choice(entities=10**10, before="bf16")[1] == "bf16", "a save says where it was"


@pytest.mark.parametrize("entities", [4_001, 200_000])
def test_a_run_that_was_trained_whole_goes_on_so(entities: int) -> None:
    """Earlier versions trained so many entities as a whole, against all, on a CPU too."""
    assert choice(entities=entities, before="whole") == (0, "whole", [])
    assert choice("negatives=64", entities=entities, before="whole") == (64, "whole", [])


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("q2p", ("table=device", "negatives=0"), "also set negatives"),
        ("q2p", ("stored=valid",), "where you evaluate"),
        ("emql", ("table=device", "negatives=9"), "looks at all entities"),
        ("cqd-beam", ("table=host", "negatives=9"), "set table=device"),
    ],
)
def test_what_does_not_go_together(method: str, settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choice(*settings, method=method)


def small(table: str, *settings: str, method: str = "q2p") -> Config:
    mix = "1p:1" if method in ("links", "cqd-beam") else "1p:2,2i:1"
    return tiny(method, f"table={table}", "negatives=9", f"mix={mix}", *settings)


def trained(
    folder: Path, graph: Graph, validation: Labelled, config: Config, notes: list[str] | None = None
) -> tuple[Run, Trained]:
    run = Run.create(folder, config, graph, "atlas")
    return run, train(run, graph, validation=validation, on_note=(notes if notes is not None else []).append)


@each_table
@pytest.mark.parametrize("method", ["q2p", "betae", "links"])
def test_a_run_by_rows_is_validated_saved_and_read_like_any_other(
    tmp_path: Path, graph: Graph, validation: Labelled, table: str, method: str
) -> None:
    run, how = trained(tmp_path / "run", graph, validation, small(table, method=method))
    assert how.best is not None
    model = run.model(graph)
    found = evaluate(model, *validation, unions=run.config.training.unions)
    assert found.percentages(3)["all"] == pytest.approx(how.best["all"], abs=0.01)
    weights = load_file(run.folder / "best.safetensors")
    names = METHODS[method].entity_tables(run.config.model)
    expected = torch.bfloat16 if table == "bf16" else torch.float32
    assert {name for name, one in weights.items() if len(one) == len(graph.entities)} >= set(names)
    assert {weights[name].dtype for name in names} == {expected}
    assert weights.keys() == model.state_dict().keys()


@each_table
def test_tables_that_memory_has_no_room_for_answer_from_the_file(
    tmp_path: Path, graph: Graph, validation: Labelled, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = trained(tmp_path / "run", graph, validation, small(table))
    expected = evaluate(run.model(graph), *validation)
    monkeypatch.setattr(tables, "_free", lambda _: 0.0)
    model = run.model(graph)
    assert isinstance(model, Looking)
    assert not any(len(one) == len(graph.entities) for one in model.parameters() if one.dim())
    found = evaluate(model, *validation)
    for shape, figures in found.shapes.items():
        assert figures.means == pytest.approx(expected.shapes[shape].means)
    with pytest.raises(AttributeError):
        _ = model.entities  # a method of few entities has no table of all
    assert run.saved_table() == table


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_table
def test_rows_learn_on_a_gpu(tmp_path: Path, graph: Graph, table: str) -> None:
    """Captured but for those of the host; longer than it takes to capture, and than a pool lasts."""
    config = small(table, "updates=300", "negatives=24", "batch=64", "rate=0.02", "dimension=16", "dropout=0")
    with torch.random.fork_rng([torch.device("cuda")]):
        torch.manual_seed(0)
        prepared = prepare(config, graph, torch.device("cuda"), folder=tmp_path)
        means = []
        for _ in range(3):
            for _ in range(100):
                prepared.update(0.02)
            means.append(prepared.update.mean_loss())
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.9 * means[0]
    assert prepared.saved.finite()


@each_table
def test_a_run_by_rows_that_was_stopped_ends_as_if_left_alone(
    tmp_path: Path, graph: Graph, validation: Labelled, table: str
) -> None:
    trained(tmp_path / "alone", graph, validation, small(table))
    run = Run.create(tmp_path / "stopped", small(table), graph, "atlas")

    class StopError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.update == 8:
            raise StopError

    with pytest.raises(StopError):
        train(run, graph, validation=validation, on_progress=stop)
    train(run, graph, validation=validation)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_rows_in_files_survive_being_killed(tmp_path: Path, seed: str) -> None:
    """At steps of writing and in the midst of updates; all that is left is as if nothing had happened."""
    settings = ["dimension=8", "batch=32", "updates=24", "validate_every=4", "validation_queries=3", "mix=1p:2,2i:1"]
    done = subprocess.run(
        [sys.executable, TESTS / "killing.py", tmp_path, "small", seed, *settings, "table=host", "negatives=9"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 3
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")
    alone, killed = ({path.name: path.read_bytes() for path in (tmp_path / one).glob("*.rows")} for one in PAIR)
    assert {"entities.rows", "bias.rows", "squares.rows", "touched.rows"} < alone.keys()
    assert killed == alone


def test_rows_that_are_read_ahead_are_those_of_the_update(
    tmp_path: Path, graph: Graph, validation: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as few entities as this, most rows of a batch are written by the update before."""
    trained(tmp_path / "ahead", graph, validation, small("host"))

    def at_once(self: Ahead) -> Filling:
        filling = self._draw()
        self._working.fill(filling.ids, self._working.rows.read(filling.ids))
        return filling

    monkeypatch.setattr(Ahead, "take", at_once)
    trained(tmp_path / "at once", graph, validation, small("host"))
    assert contents(tmp_path / "ahead") == contents(tmp_path / "at once")


def test_a_run_with_rows_in_files_can_be_removed(tmp_path: Path, graph: Graph, validation: Labelled) -> None:
    run, _ = trained(tmp_path / "run", graph, validation, small("host"))
    run.remove()
    assert not list(run.folder.iterdir())


def test_a_large_graph_is_trained_by_rows_and_the_run_says_so(
    tmp_path: Path, graph: Graph, validation: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tables._BY_ROWS_FROM, "cpu", 30)
    monkeypatch.setattr(tables, "_FEW_NEGATIVES", 8)
    notes: list[str] = []
    run, _ = trained(tmp_path / "run", graph, validation, tiny("q2p", "mix=1p:2,2i:1"), notes)
    assert [words.split(":")[0] for words in notes] == [
        "40 entities are many",
        "the entities' tables, 0.0 GiB in float32, are trained by rows, on the device (table=device; docs/scale.md)",
    ]
    assert "rows.squares" in load_file(run.folder / "last.safetensors")
    assert run.saved_table() == "device"


def test_what_answers_on_top_of_another_is_validated_with_the_rows(
    tmp_path: Path, graph: Graph, validation: Labelled
) -> None:
    run, how = trained(tmp_path / "run", graph, validation, small("device", method="cqd-beam"))
    assert how.best is not None
    assert run.saved_table() == "device"


@pytest.mark.parametrize("by", ["uniform", "degree"])
@pytest.mark.parametrize("table", ["whole", *KEPT])
def test_rows_learn(tmp_path: Path, graph: Graph, validation: Labelled, table: str, by: str) -> None:
    settings = ("updates=120", "dimension=16", "dropout=0", "negatives=24", f"negatives_by={by}", "batch=64")
    run = Run.create(tmp_path / "run", small(table, *settings, "rate=0.02", "validate_every=120"), graph, "atlas")
    losses: list[float] = []
    train(run, graph, validation=validation, on_progress=lambda at: losses.append(at.loss))
    assert losses[-1] < 0.85 * losses[0]
