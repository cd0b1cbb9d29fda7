"""The benches of a model measure what they say: the products of the loss, the same ranks, the best answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import query2particles.bench.training as measured
from processes import q2p
from query2particles.bench.answering import bench_answer, best_answers
from query2particles.bench.evaluating import bench_evaluate, plain_mrr
from query2particles.bench.training import Effort, Products, bench_train
from query2particles.config import configured
from query2particles.presets import preset
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import scoring
from query2particles.errors import UsageError
from query2particles.evaluate import evaluate
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import SHAPES
from query2particles.report import speed_page
from query2particles.train import prepare
from query2particles.workload.selection import drawn_queries
from worlds import random_graph

GRAPH = random_graph(5, entities=70, relations=3, facts=500)
TINY = ("dimension=16", "batch=48")


def small_q2p() -> Q2P:
    torch.manual_seed(0)
    settings = Settings(dimension=8, entity_scale=1.0)
    return Q2P(len(GRAPH.entities), GRAPH.at("train").relations, settings).eval()


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

    def look(*given: Any) -> Any:
        folders = tuple(os.environ[name] for name in names)
        assert not any(Path(folder).exists() and list(Path(folder).iterdir()) for folder in folders)
        seen.append(folders)
        return prepare(*given)

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
        assert best_answers(model, shape, ids, len(GRAPH.entities)) == order.tolist()


def test_answers_are_timed_shape_by_shape() -> None:
    result = bench_answer(None, count=10, settings=TINY[:1], say=lambda _: None)
    medians = [result.figures[f"{name} median ms"] for name in SHAPES]
    assert min(medians) <= result.figures["all median ms"] <= max(medians)
    assert all(result.figures[f"{name} 95th percentile ms"] >= result.figures[f"{name} median ms"] for name in SHAPES)
    assert result.figures["together answers/s"] > 0
    assert result.ratios["together"] > 0


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
    assert np.isfinite(list(result.figures.values())).all()
