"""`q2p particles` as a person uses it: what it prints, writes, draws and refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from processes import q2p
from query2particles.cli import app
from query2particles.errors import UsageError
from query2particles.graph.graph import Graph
from query2particles.plot import plot_spread
from query2particles.query.algebra import SHAPES
from query2particles.run import Run
from query2particles.spread import spread
from query2particles.train import train
from query2particles.workload.selection import drawn_queries
from trainings import tiny
from worlds import random_graph

Printed = Callable[..., tuple[str, str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Calls a command inside this process, where errors stay exceptions; gives stdout and stderr."""
    torch.set_num_threads(1)

    def call(*arguments: str | Path) -> tuple[str, str]:
        app(list(map(str, arguments)), standalone_mode=False)
        captured = capsys.readouterr()
        return captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(scope="module")
def trained(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes run folders of trainings of a moment."""
    folder = tmp_path_factory.mktemp("runs")
    graph.save(folder / "graph")

    def of(method: str, *settings: str) -> Path:
        run = Run.create(folder / method, tiny(method, *settings), graph, str(folder / "graph"))
        train(run, graph)
        return run.folder

    return of


@pytest.fixture(scope="module")
def run(trained: Callable[..., Path]) -> Path:
    return trained("q2p", "particles=3")


def test_it_says_what_the_library_measures(run: Path, graph: Graph, printed: Printed, tmp_path: Path) -> None:
    words = ("particles", run, "--limit", "20", "--seed", "4", "--device", "cpu")
    told = json.loads(printed(*words, "--json", "--out", tmp_path / "spread.json")[0])
    assert json.loads((tmp_path / "spread.json").read_text("utf-8")) == told
    assert (told["method"], told["graph"], told["queries"]) == ("q2p", "random-3", "drawn/test, 20 a shape, seed 4")
    assert told["config"]["model"]["particles"] == 3
    batch, labels = drawn_queries(graph, "test", most=20, seed=4)
    own = spread(Run.open(run).model(graph), batch, labels).as_json()
    assert {"shapes": told["shapes"], "averages": told["averages"]} == own
    assert list(told["shapes"]) == list(SHAPES)
    assert {name: figures["particles"] for name, figures in told["shapes"].items()} == {
        name: 6 if "u" in name else 3 for name in SHAPES
    }


def test_people_see_a_table(run: Path, printed: Printed, tmp_path: Path) -> None:
    words = ("particles", run, "--limit", "20", "--shapes", "2i,2u")
    told = json.loads(printed(*words, "--json")[0])
    shown, notes = printed(*words, "--plot", tmp_path / "spread.png")
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in map(_cells, shown.splitlines())}
    for name, figures in told["shapes"].items():
        queries, particles, cosine, margin, effective, at_most, by_rank, by_number = rows[name]
        assert (int(queries), int(particles)) == (20, 3 if name == "2i" else 6)
        assert [cosine, margin] == [f"{figures[key]:.3f}" for key in ("cosine", "margin")]
        assert [effective, at_most] == [f"{figures[key]:.2f}" for key in ("effective", "at_most")]
        assert [by_rank, by_number] == [
            " ".join(f"{share:.0f}" for share in figures[key]) for key in ("by_rank", "by_number")
        ]
    assert rows["EPFO (mean)"][2] == f"{told['averages']['epfo']['cosine']:.3f}"
    assert "negation (mean)" not in rows
    assert f"Saved in {tmp_path / 'spread.png'}." in notes
    assert (tmp_path / "spread.png").read_bytes().startswith(b"\x89PNG")


def _cells(line: str) -> list[str]:
    return line.split("│") if "│" in line else ["", "", ""]


def test_unions_and_queries_of_a_folder(run: Path, printed: Printed, tmp_path: Path) -> None:
    folder = Run.open(run).graph_folder
    queries = tmp_path / "queries"
    printed("sample", folder, "--shapes", "up,1p", "--count", "8", "--split", "valid", "--out", queries)
    words = ("particles", run, "--queries", queries, "--split", "valid", "--json")
    told = {unions: json.loads(printed(*words, "--unions", unions)[0]) for unions in ("native", "dnf", "de-morgan")}
    for unions, one in told.items():
        assert one["queries"] == "queries/valid"
        assert one["config"]["training"]["unions"] == unions
        assert one["shapes"]["1p"] == told["native"]["shapes"]["1p"]
        assert one["shapes"]["up"]["particles"] == (3 if unions == "de-morgan" else 6)
    assert told["native"]["shapes"]["up"] != told["dnf"]["shapes"]["up"]


def test_one_vector_a_query_leaves_cells_empty(trained: Callable[..., Path], printed: Printed) -> None:
    folder = trained("gqe")
    shown, notes = printed("particles", folder, "--limit", "10", "--shapes", "1p,2in")
    (row,) = (_cells(line) for line in shown.splitlines() if line.startswith("│ 1p"))
    assert [cell.strip() for cell in row[3:7]] == ["1", "", "", "1.00"]
    assert "gqe lacks an operator of 2in" in notes
    with pytest.raises(UsageError, match="name other --shapes"):
        printed("particles", folder, "--limit", "3", "--shapes", "2in")


def test_what_cannot_be_measured_or_drawn_is_refused(
    trained: Callable[..., Path], run: Path, printed: Printed, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"no particles .* q2p"):
        printed("particles", trained("q2b"), "--limit", "3", "--shapes", "1p")
    with pytest.raises(UsageError, match="atlas is no run folder"):
        printed("particles", "atlas")
    for name in ("spread.txt", "spread"):
        with pytest.raises(UsageError, match=r"one of \.png, \.svg, \.pdf"):
            printed("particles", run, "--plot", tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert "error: " in q2p("particles", tmp_path, code=2).stderr


def test_the_picture_shows_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    save = Figure.savefig

    def remember(self: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    averages = {"cosine": 0.25, "margin": 0.5, "effective": 1.5, "at_most": 2.0, "by_rank": [80.0, 15.0, 5.0]}
    document = {
        "shapes": {
            "1p": {"queries": 3, "effective": 1.0, "at_most": 1.0, "by_rank": [100.0]},
            "2u": {"queries": 3, **averages, "cosine": -0.5, "by_rank": [60.0, 30.0, 10.0]},
            "up": {"queries": 3, "cosine": 0.5, "margin": 0.1},
        },
        "averages": {"epfo": averages, "negation": {}, "all": averages},
    }
    plot_spread(document, tmp_path / "spread.svg", title="A run, K = 1")
    assert (tmp_path / "spread.svg").read_bytes().startswith(b"<?xml")
    (figure,) = drawn
    assert figure.get_suptitle() == "A run, K = 1"
    alike, gained, found = figure.axes
    assert [label.get_text() for label in found.get_xticklabels()] == ["1p", "2u", "up", "EPFO\n(mean)", "all\n(mean)"]
    cosines, margins = ([bar.get_height() for bar in axes.patches] for axes in (alike, gained))
    assert math.isnan(cosines[0])
    assert math.isnan(margins[0])
    assert (cosines[1:], margins[1:]) == ([-0.5, 0.5, 0.25, 0.25], [0.5, 0.1, 0.5, 0.5])
    assert alike.get_ylim()[0] < -0.5
    shares = [[bar.get_height() for bar in bars] for bars in found.containers]
    assert shares == [[100, 60, 0, 80, 80], [0, 30, 0, 15, 15], [0, 10, 0, 5, 5]]
    tops = np.add([bar.get_y() for bar in found.containers[2]], shares[2])
    assert tops.tolist() == [100, 100, 0, 100, 100]
    assert [text.get_text() for text in found.texts] == ["1.00\nof 1.00", *["1.50\nof 2.00"] * 3]
    legend = [text.get_text() for text in found.get_legend().get_texts()]
    assert legend == ["third most", "second most", "most"]
    for axes in figure.axes:
        assert axes.get_title()
        assert axes.get_ylabel()
