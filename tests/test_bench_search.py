"""The bench of a joined run's ways to answer: its figures are those of evaluation, and the curve is drawn from them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calls import Call
from processes import q2p
from query2particles.bench import searching
from query2particles.bench.answering import bench_answer
from query2particles.bench.searching import bench_search, guided_curve
from query2particles.errors import Query2ParticlesError, RunError, UnsupportedError, UsageError
from query2particles.evaluate import evaluate
from query2particles.joined import PARTS, join, open_run
from query2particles.report import speed_page
from query2particles.run import Run
from query2particles.train import train, validation_set
from trainings import tiny
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


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
    assert said == ["tree", "fast", "best", "guided, m = 2", "guided, m = 40"]


def test_an_m_is_enough_where_no_larger_one_keeps_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"tree": 1.0, "fast": 0.5, "best": 1.1, "m=2": 0.99, "m=4": 0.98, "m=8": 0.99, "m=16": 1.0}
    groups = ("EPFO", "negation", "all")
    monkeypatch.setattr(searching, "_measure", lambda _, name, *__: dict.fromkeys(groups, shares[name]))

    def smallest(*proposals: int) -> float | None:
        found = bench_search(folder, count=12, proposals=proposals, say=lambda _: None)
        return found.figures.get("smallest m that keeps 99 %")

    assert [smallest(2, 4, 8, 16), smallest(2, 8), smallest(2, 4)] == [8, 2, None]


def test_its_graph_may_have_moved(folder: Path, tmp_path: Path, call: Call) -> None:
    moved = shutil.copytree(folder, tmp_path / "joined")
    for part in PARTS:
        config = moved / part / "config.json"
        config.write_text(config.read_text("utf-8").replace(str(folder.parent / "graph"), "/nowhere"), "utf-8")
    words = ("bench", "search", "--run", moved, "--count", "10")
    with pytest.raises(RunError, match=r"name the new place \(--graph GRAPH\)"):
        call(*words)
    assert (
        "best was weighed by validation queries, too" in call.json(*words, "--graph", folder.parent / "graph")["about"]
    )


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


def test_the_page_has_answers_on_every_graph(tmp_path: Path) -> None:
    """Also on graphs that are nobody's but the user's, as `about` spells their names; what is no bench is left out."""
    document = {"machine": "ours", "version": "0", "seed": 0, "compares": "", "figures": {"a": 1}, "ratios": {}}
    for name in ("answer-cpu", "answer-run-my-Graph-cpu", "answer-run-my-Graph-cuda", "answer-methods-cpu", "other"):
        about = "cpu, My-Graph, 40 entities"
        (tmp_path / f"bench-{name.lower()}.json").write_text(json.dumps({**document, "about": about}))
    assert [line for line in speed_page(tmp_path).splitlines() if line.startswith("## ")] == [
        "## Answers on a CPU",
        "## Answers of a trained run on a GPU: My-Graph",
        "## Answers of a trained run on a CPU: My-Graph",
        "## Answers of all methods on a CPU",
    ]


def test_answers_of_a_run_whose_graph_has_moved(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder.parent / "graph", moved)
    found = bench_answer(None, run=folder / "vectors", graph=str(moved), count=10, say=lambda _: None)
    assert "40 entities, 140 test queries" in found.about
    with pytest.raises(Query2ParticlesError, match="nowhere"):
        bench_answer(None, run=folder / "vectors", graph=str(tmp_path / "nowhere"), count=10, say=lambda _: None)


def test_what_is_no_joined_run_is_refused(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no joined run"):
        bench_search(folder / "vectors")
    for arguments in (["search"], ["train", "--run", str(folder)], ["answer", "--all-methods", "--run", str(folder)]):
        assert "--run" in q2p("bench", *arguments, code=2).stderr
    assert "leave out --set" in q2p("bench", "answer", "--run", str(folder), "--set", "beam=3", code=2).stderr
    monkeypatch.delenv("Q2P_DATA", raising=False)
    with pytest.raises(UsageError, match="--data"):
        call("bench", "answer", "--graph", "NELL")
    assert "--set" in q2p("bench", "search", "--run", str(folder), "--set", "beam=3", code=2).stderr
