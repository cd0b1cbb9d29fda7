"""The benches of a model measure what they say: the products of the loss, the same ranks, the best answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import query2particles.bench.training as measured
from processes import ENVIRONMENT, q2p
from query2particles.bench import answering
from query2particles.bench.answering import Calls, bench_answer, bench_answer_methods, best_answers
from query2particles.bench.evaluating import bench_evaluate, plain_mrr
from query2particles.bench.softmax import WAYS, bench_softmax
from query2particles.bench.symbolic import bench_import_large
from query2particles.bench.training import Effort, Products, bench_train, bench_train_methods
from query2particles.cli import app
from query2particles.config import configured
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import scoring
from query2particles.errors import UsageError
from query2particles.evaluate import evaluate
from query2particles.graph.edges import Ints
from query2particles.methods import gqe
from query2particles.methods.q2p import Settings
from query2particles.methods.registry import METHODS, Model, make
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.report import speed_page
from query2particles.train import prepare
from query2particles.workload.selection import drawn_queries
from worlds import random_graph

GRAPH = random_graph(5, entities=70, relations=3, facts=500)
TINY = ("dimension=16", "batch=48")


def small_q2p() -> Model:
    torch.manual_seed(0)
    return make("q2p", GRAPH.at("train"), Settings(dimension=8, entity_scale=1.0)).eval()


class Multiplications(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down the sizes (m, k, n) of every matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.mm:
            self.sizes.append((*args[0].shape, args[1].shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [(), ("union_share=0.5",), ("particles=3", "inverted_complements=true")], ids=str)
def test_the_score_products_are_those_of_the_loss(settings: tuple[str, ...]) -> None:
    config = configured(preset(), None, [*TINY, *settings])
    prepared = prepare(config, GRAPH, torch.device("cpu"))
    with Multiplications() as seen:
        prepared.update.loss()
    products = Products.of(prepared.parts, config, len(GRAPH.entities))
    assert products.entities == 128
    assert products.depth == 24
    own = [sizes for sizes in seen.sizes if products.entities in sizes and products.depth in sizes]
    assert own
    assert sum(m * k * n for m, k, n in own) == 3 * products.rows * products.entities * products.depth


def test_training_is_set_against_its_products() -> None:
    said: list[str] = []
    result = bench_train(None, settings=TINY, effort=Effort(1, 3, 1), say=said.append)
    figures = result.figures
    assert figures["atlas queries in a batch"] == 48
    assert figures["atlas queries/s"] == pytest.approx(48_000 / figures["atlas ms per update"], rel=0.01)
    expected = figures["atlas ms per update"] / figures["atlas ms of score products"]
    assert result.ratios["atlas"] == pytest.approx(expected, rel=0.01, abs=0.01)
    assert "medians of 3 blocks of 1 updates" in result.about
    assert any("atlas" in line for line in said)
    json.dumps(result.as_json())


def test_compilers_start_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    seen: list[tuple[str, ...]] = []

    def look(*given: Any, **options: Any) -> Any:
        folders = tuple(os.environ[name] for name in names)
        assert not any(Path(folder).exists() and list(Path(folder).iterdir()) for folder in folders)
        seen.append(folders)
        return prepare(*given, **options)

    monkeypatch.setattr(measured, "prepare", look)
    monkeypatch.setenv(names[0], "warm")
    monkeypatch.delenv(names[1], raising=False)
    for _ in range(2):
        bench_train(None, settings=TINY, effort=Effort(1, 1, 1), say=lambda _: None)
    assert len({folder for folders in seen for folder in folders} - {"warm"}) == 4
    assert os.environ[names[0]] == "warm"
    assert names[1] not in os.environ


def test_the_plain_evaluator_ranks_as_the_engine_does() -> None:
    batch, labels = drawn_queries(GRAPH, "test", most=20, seed=0)
    model = small_q2p()
    assert len(batch) > 10
    found = evaluate(model, batch, labels)
    for name, figures in found.shapes.items():
        shape = SHAPES[name]
        assert plain_mrr(model, shape, batch[shape], labels[shape]) == pytest.approx(figures.means["mrr"], rel=1e-5)


def test_evaluation_is_set_against_one_query_at_a_time() -> None:
    result = bench_evaluate(None, count=10, settings=TINY[:1], say=lambda _: None)
    assert "140 test queries of 14 shapes" in result.about
    for way in ("evaluate(chunk=1)", "a plain evaluator"):
        expected = result.figures["queries/s"] / result.figures[f"{way} queries/s"]
        assert result.ratios[f"against {way}"] == pytest.approx(expected, rel=0.02, abs=0.02)


def test_best_answers_are_the_best() -> None:
    batch, _ = drawn_queries(GRAPH, "test", most=5, seed=1)
    model = small_q2p()
    for shape, ids in batch.items():
        with scoring(model):
            (state,) = execute(compile_shapes((shape,), model.kind), model, [torch.as_tensor(ids)])
            order = model.score(state).argsort(dim=1, descending=True, stable=True)[:, :10]
        assert best_answers(model, {shape: ids}, len(GRAPH.entities))[shape][0].tolist() == order.tolist()


@pytest.mark.parametrize("name", ["2u", "up"])
def test_the_best_answers_of_a_union_are_those_of_its_parts(name: str) -> None:
    batch, _ = drawn_queries(GRAPH, "test", most=5, seed=1)
    ids = batch[SHAPES[name]]
    torch.manual_seed(0)
    model = make("gqe", GRAPH.at("train"), gqe.Settings(dimension=8, entity_scale=1.0)).eval()
    with torch.no_grad():
        columns = torch.as_tensor(ids).T
        parts = [model.project(model.anchor(columns[at]), columns[at + 1], hop=0) for at in (0, 2)]
        if name == "up":
            parts = [model.project(part, columns[4], hop=1) for part in parts]
        scores = torch.maximum(*map(model.score, parts))
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :10]
    found, _ = best_answers(model, {SHAPES[name]: ids}, len(GRAPH.entities), "dnf")[SHAPES[name]]
    assert found.tolist() == order.tolist()


def test_calls_go_round_the_queries_until_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(6).reshape(3, 2)
    seen: list[Any] = []
    Calls(uncounted=1, most=3, seconds=100).median_seconds(lambda rows: seen.append(rows[:, 0].tolist()), ids, 2)
    assert seen == [[0, 2], [4, 0], [2, 4], [0, 2]]
    clock = iter([50.0, 0, 1, 10, 13, 20, 22, 30, 31])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert Calls(uncounted=1, most=10, seconds=6).median_seconds(len, ids, 1) == 2
    assert list(clock) == [30, 31]


def small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = drawn_queries(GRAPH, "test", most=10, seed=0)
    monkeypatch.setattr(answering, "bench_data", lambda *_, **__: (GRAPH, batch, 0))


def answerable(method: str, shape: str) -> bool:
    """By what there is to call: whatever has no union has it lifted to the root."""
    needed = {"i": "intersect", "n": "complement"}
    return all(hasattr(METHODS[method].method, call) for letter, call in needed.items() if letter in shape)


class Unhurried(Calls):
    """Answers once, and says that it took a second and a hundredth for each query."""

    def median_seconds(self, work: Callable[[Ints], object], ids: Ints, size: int) -> float:
        work(ids[:size])
        return 1 + size / 100


def test_every_method_is_timed_on_what_it_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)
    said: list[str] = []
    result = bench_answer_methods(None, settings=["dimension=8"], calls=Unhurried(0, 1, 0), say=said.append)
    timed = [pair for pair in product(METHODS, SHAPES) if answerable(*pair)]
    assert len(timed) == 5 * 14 + 4 * 9 + 5
    expected = {f"{method} {shape} batch 1 ms": 1010.0 for method, shape in timed}
    expected |= {f"{method} {shape} batch 128 ms": 17.81 for method, shape in timed}  # (1000 + 1280) / 128
    assert result.figures == expected
    assert [line.partition(",")[0] for line in said] == list(METHODS)
    assert "dimension=8, untrained" in result.about


def test_methods_are_compared_where_there_are_two_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    small_world(monkeypatch)
    figures = bench_answer_methods(None, settings=["dimension=8"], calls=Calls(0, 1, 0), say=lambda _: None)
    hops = ("2p", "3p", "pi", "ip", "up", "inp", "pin", "pni")
    assert sorted(figures.ratios) == sorted(f"{shape} batch {size}" for shape in hops for size in (1, 128))
    for name, ratio in figures.ratios.items():
        slow, fast = (figures.figures[f"{method} {name} ms"] for method in ("cqd-beam", "q2p"))
        assert ratio == pytest.approx(slow / fast, rel=1e-3)


def test_a_setting_that_not_all_methods_have() -> None:
    with pytest.raises(UsageError, match="particles"):
        bench_answer_methods(None, settings=["particles=3"], say=lambda _: None)


@pytest.mark.parametrize("drawn", [True, False], ids=["with matplotlib", "without"])
def test_all_methods_are_timed_where_little_is_installed(tmp_path: Path, drawn: bool) -> None:
    absent = ["lark", "rdflib", "pyoxigraph", "pyarrow", "fastapi", "faiss", "safetensors", "prometheus_client"]
    command = ("bench", "answer", "--all-methods", "--device", "cpu", "--set", "dimension=8", "--json", "--out")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({absent + ['matplotlib'] * (not drawn)}))\n"
        f"sys.argv = {['q2p', *command, str(tmp_path)]}\n"
        "import query2particles.bench.answering as answering\n"
        "from query2particles.cli import main\n"
        "from query2particles.workload.selection import drawn_queries\n"
        "from worlds import random_graph\n"
        "graph = random_graph(5, entities=70, relations=3, facts=500)\n"
        "batch, _ = drawn_queries(graph, 'test', most=10, seed=0)\n"
        "answering.bench_data = lambda *_, **__: (graph, batch, 0)\n"
        "answering._CALLS = {'cpu': answering.Calls(0, 1, 0)}\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert json.loads((tmp_path / "bench-answer-methods-cpu.json").read_text("utf-8")) == told
    assert {"bench", "machine", "figures", "ratios"} <= told.keys()
    assert told["bench"] == "answer-methods"
    assert all(
        isinstance(value, float) and value > 0 for value in (*told["figures"].values(), *told["ratios"].values())
    )
    picture = tmp_path / "bench-answer-methods-cpu.png"
    assert picture.is_file() == drawn
    assert ("no picture" in done.stderr) != drawn
    assert ("bench-answer-methods-cpu.png" in speed_page(tmp_path)) == drawn
    if drawn:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_times_of_all_methods_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_world(monkeypatch)
    monkeypatch.setattr(answering, "_CALLS", {"cpu": Unhurried(0, 1, 0)})
    app(["bench", "answer", "--all-methods", "--device", "cpu", "--set", "dimension=8"], standalone_mode=False)
    told = capsys.readouterr().out
    assert "batch 128" in told
    (first, second) = [line.split("│")[1:-1] for line in told.splitlines() if line.startswith("│ links ")]
    numbers = [[cell.strip() for cell in row[1:]] for row in (first, second)]
    assert numbers == [[cell if answerable("links", shape) else "" for shape in SHAPES] for cell in ("1,010", "17.8")]
    assert told.count("1 │") >= 16


def test_every_method_that_is_trained_is_measured() -> None:
    said: list[str] = []
    found = bench_train_methods(None, effort=Effort(0, 1, 1), say=said.append)
    trained = [name for name, entry in METHODS.items() if not entry.trains_another]
    assert [line.partition(":")[0] for line in said if "queries/s" in line] == trained
    assert {f"{name} queries/s" for name in trained} <= found.figures.keys()
    assert min(found.figures.values()) > 0


def test_methods_are_compared_with_their_own_presets() -> None:
    with pytest.raises(UsageError, match="its own preset: leave out --set"):
        app(["bench", "train", "--all-methods", "--set", "dimension=8"], standalone_mode=False)


def test_answers_are_timed_shape_by_shape() -> None:
    result = bench_answer(None, count=10, settings=TINY[:1], say=lambda _: None)
    medians = [result.figures[f"{name} median ms"] for name in SHAPES]
    assert min(medians) <= result.figures["all median ms"] <= max(medians)
    assert all(result.figures[f"{name} 95th percentile ms"] >= result.figures[f"{name} median ms"] for name in SHAPES)
    assert result.figures["together answers/s"] > 0
    assert result.ratios["together"] > 0
    assert f"{14 * 32} of all shapes together" in result.about


def test_the_command_keeps_a_result_for_each_device(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--count", "10", "--set", "dimension=16", "--out", tmp_path)
    told = json.loads(q2p("bench", "answer", *options, "--json").stdout)
    assert json.loads((tmp_path / "bench-answer-cpu.json").read_text("utf-8")) == told
    page = speed_page(tmp_path)
    assert "## Answers on a CPU" in page
    assert f"| all median ms | {told['figures']['all median ms']:,} |" in page
    assert f"| together | {told['ratios']['together']:,} |" in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    assert "--device cpu" in q2p("bench", "train", "--device", "cuda", code=2).stderr


def test_a_setting_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="dimension"):
        bench_train(None, settings=["dimensions=16"], say=lambda _: None)


@pytest.mark.benchmark
def test_queries_of_the_benchmark_graph(data: Path) -> None:
    result = bench_answer(data, count=10, settings=["dimension=16"], say=lambda _: None)
    assert "FB15k-237, 14,505 entities" in result.about
    result = bench_answer(data, graph="NELL", count=10, settings=["dimension=16"], say=lambda _: None)
    assert "NELL, 63,361 entities" in result.about
    assert np.isfinite(list(result.figures.values())).all()


def test_bench_softmax_trains_every_way_for_as_long() -> None:
    said: list[str] = []
    settings = ["dimension=8", "batch=32", "validation_queries=3", "mix=1p:1"]
    found = bench_softmax(None, seconds=1, settings=settings, say=said.append)
    assert [name for name in found.figures if name.endswith("MRR")] == [f"atlas {way} MRR" for way in WAYS]
    assert all(value > 0 for value in found.figures.values())
    assert len(found.ratios) == len(WAYS) - 1
    assert found.figures["atlas rows MRR"] / found.figures["atlas all entities MRR"] == pytest.approx(
        found.ratios["atlas rows"], abs=2e-3
    )
    assert any("losses" in words for words in said)


def test_the_memory_of_an_import_is_its_own() -> None:
    """Not that of the process which measures it, though Linux counts that to whatever it starts."""
    held = np.ones(1 << 27)  # 1 GiB
    found = bench_import_large(2_000, 1 << 30, lambda _: None)
    assert found.bench == "import-large-0.002-million"
    assert 0.02 < found.figures["peak memory GiB"] < 0.8
    assert held[-1] == 1
