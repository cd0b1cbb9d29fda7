"""The bench of a joined run's ways to answer: its figures are those of evaluation, and the curve is drawn from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from processes import q2p
from query2particles.bench.answering import bench_answer
from query2particles.bench.searching import bench_search, guided_curve
from query2particles.errors import UnsupportedError, UsageError
from query2particles.evaluate import evaluate
from query2particles.joined import join, open_run
from query2particles.report import speed_page
from query2particles.run import Run
from query2particles.train import train, validation_set
from trainings import tiny
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("search")
    GRAPH.save(place / "graph")
    vectors, links = (
        Run.create(place / method, tiny(method), GRAPH, str(place / "graph")) for method in ("q2p", "links")
    )
    for run in (vectors, links):
        train(run, GRAPH)
    join(place / "joined", vectors, links, GRAPH, validation_set(GRAPH, vectors.config.training))
    return place / "joined"


def test_figures_are_those_of_evaluation(folder: Path) -> None:
    said: list[str] = []
    found = bench_search(folder, count=12, proposals=(2, 40), say=said.append)
    run = open_run(folder)
    batch, labels = validation_set(GRAPH, replace(run.config.training, validation_queries=12)) or ({}, {})
    for method in ("tree", "fast", "best"):
        model = run.answered_by(method).model(GRAPH)
        for group, value in evaluate(model, batch, labels).percentages(2).items():
            name = {"epfo": "EPFO"}.get(group, group)
            assert found.figures[f"{method} {name} MRR"] == pytest.approx(value, abs=0.011)
        assert found.figures[f"{method} queries/s"] > 0
    curve = guided_curve(found.figures)
    assert list(curve) == [2, 40]
    for m, own in curve.items():
        for name in ("EPFO", "negation", "all"):
            share = own[f"{name} MRR"] / found.figures[f"tree {name} MRR"]
            assert found.ratios[f"m={m} {name}"] == pytest.approx(share, rel=0.01)
    enough = [m for m in curve if found.ratios[f"m={m} all"] >= 0.99]
    assert found.figures.get("smallest m that keeps 99 %") == min(enough, default=None)
    assert said == ["tree", "fast", "best", "guided, m = 2", "guided, m = 40"]


def test_the_command(folder: Path, tmp_path: Path) -> None:
    done = q2p("bench", "search", "--run", str(folder), "--count", "10", "--out", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "bench-search-cpu.json").read_text("utf-8"))
    assert (tmp_path / "bench-search-cpu.png").stat().st_size > 10_000
    assert "![The ways of a joined run on a CPU]" in speed_page(tmp_path)


def test_answers_of_a_run(folder: Path) -> None:
    """Of a joined run and of a part, with unions as each answers them."""
    for run, method in ((folder, "best"), (folder / "vectors", "q2p"), (folder / "links", "links")):
        if method == "links":
            with pytest.raises(UnsupportedError):
                bench_answer(None, run=run, count=10, say=lambda _: None)
            continue
        found = bench_answer(None, run=run, count=10, say=lambda _: None)
        assert f"40 entities, 140 test queries of 14 shapes, a run of {method};" in found.about
        assert found.figures["together answers/s"] > 0


def test_what_is_no_joined_run_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no joined run"):
        bench_search(folder / "vectors")
    for arguments in (["search"], ["train", "--run", str(folder)], ["answer", "--all-methods", "--run", str(folder)]):
        assert "--run" in q2p("bench", *arguments, code=2).stderr
    assert "leave out --set" in q2p("bench", "answer", "--run", str(folder), "--set", "beam=3", code=2).stderr
    assert "--data" in q2p("bench", "answer", "--run", str(folder), "--graph", "NELL", code=2).stderr
    assert "--set" in q2p("bench", "search", "--run", str(folder), "--set", "beam=3", code=2).stderr
