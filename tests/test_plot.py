"""The picture of a training shows what its trace says, that of a bench what it measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from query2particles.plot import plot_particles, plot_times, plot_training

TRACE: list[dict[str, Any]] = [
    {"update": 10, "loss": 8.7, "queries_per_second": 100, "seconds": 1.0},
    {"update": 20, "loss": 6.5, "queries_per_second": 100, "seconds": 2.0},
    {"update": 20, "validation": {"epfo": 5.0, "negation": 1.0, "all": 3.6}, "best": True},
    {"update": 1500, "loss": 3.0, "queries_per_second": 100, "seconds": 3.0},
    {"update": 1500, "validation": {"epfo": 20.0, "negation": 4.0, "all": 14.3}, "best": True},
]
REFERENCES = {"one baseline": {"epfo": 4.0, "negation": 0.5}, "another": {"epfo": 8.0, "negation": 1.5}}


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What matplotlib was asked to draw, once."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)

    def only() -> Figure:
        (figure,) = figures
        return figure

    return only


@pytest.fixture
def drawn(saved: Callable[[], Any], tmp_path: Path) -> Any:
    def draw(traces: dict[str, list[dict[str, Any]]], **options: Any) -> Any:
        plot_training(traces, tmp_path / "curve.png", title="A training", **options)
        return saved()

    return draw


def test_loss_and_validation_are_drawn_as_traced(drawn: Any) -> None:
    figure = drawn({"a run": TRACE}, references=REFERENCES)
    left, right = figure.axes
    (loss,) = left.lines
    assert loss.get_xydata().tolist() == [[10, 8.7], [20, 6.5], [1500, 3.0]]
    lines = {line.get_label(): line for line in right.lines}
    assert lines["EPFO, a run"].get_xydata().tolist() == [[20, 5.0], [1500, 20.0]]
    assert lines["negation, a run"].get_xydata().tolist() == [[20, 1.0], [1500, 4.0]]
    for name, reached in REFERENCES.items():
        assert set(lines[f"EPFO, {name}"].get_ydata()) == {reached["epfo"]}
        assert set(lines[f"negation, {name}"].get_ydata()) == {reached["negation"]}
    assert figure.get_suptitle() == "A training"
    for axes in (left, right):
        assert axes.get_xlabel() == "updates"
        assert axes.get_title()
    assert "nats" in left.get_ylabel()
    assert "%" in right.get_ylabel()


def test_a_run_without_validation_has_a_curve_too(drawn: Any) -> None:
    left, right = drawn({"a run": [line for line in TRACE if "loss" in line]}).axes
    assert len(left.lines[0].get_xydata()) == 3
    assert all(len(line.get_xydata()) == 0 for line in right.lines)


def test_several_runs_share_a_picture(drawn: Any) -> None:
    """One of them has no complement, and so no average of such queries."""
    chains = [{**line, "validation": {"epfo": 9.0}} if "validation" in line else line for line in TRACE]
    left, right = drawn({"vectors": TRACE, "links": chains}).axes
    assert [line.get_label() for line in left.lines] == ["vectors", "links"]
    assert left.get_legend() is not None
    lines = {line.get_label(): line.get_xydata().tolist() for line in right.lines}
    assert set(lines) == {"EPFO, vectors", "negation, vectors", "EPFO, links"}
    assert lines["EPFO, links"] == [[20, 9.0], [1500, 9.0]]


def test_the_form_follows_the_name(tmp_path: Path) -> None:
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        target = tmp_path / f"curve{suffix}"
        plot_training({"a run": TRACE}, target, title="A training")
        assert target.read_bytes().startswith(start)
    assert len(re.findall(r"<svg\b", (tmp_path / "curve.svg").read_text())) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.pdf", "curve.png", "curve.svg"]


def test_a_form_that_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        plot_training({"a run": TRACE}, tmp_path / "curve.txt", title="A training")
    assert not list(tmp_path.iterdir())


def test_times_are_drawn_by_size_method_and_shape(saved: Callable[[], Any], tmp_path: Path) -> None:
    times = {
        1: {"one": {"1p": 1.0, "2p": 10.0, "2in": 2.0}, "another": {"1p": 3.0, "2p": 400.0}},
        128: {"one": {"1p": 0.1, "2p": 0.2, "2in": 0.3}, "another": {"1p": 0.4, "2p": 0.5}},
    }
    plot_times(times, tmp_path / "times.png", caption="measured on a machine")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    figure = saved()
    assert "a machine" in figure.get_supxlabel()
    assert "milliseconds" in figure.axes[0].get_ylabel()
    for axes, (size, methods) in zip(figure.axes, times.items(), strict=True):
        assert axes.get_yscale() == "log"
        assert (str(size) in axes.get_title()) == (size > 1)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1p", "2p", "2in"]
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        assert lines["one"] == list(methods["one"].values())
        assert lines["another"][:2] == list(methods["another"].values())
        assert math.isnan(lines["another"][2])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "another"]


def test_particles_are_drawn_by_column(saved: Callable[[], Any], tmp_path: Path) -> None:
    curves = {
        "ours": {1: {"2i FULL": 1.0, "2i DIVR": 2.0, "all FULL": 3.0}, 4: {"2i FULL": 4.0}},
        "the paper": {1: {"2i FULL": 5.0}, 2: {"2i FULL": 6.0, "2i DIVR": 7.0}},
    }
    plot_particles(curves, tmp_path / "particles.png")
    figure = saved()
    assert [axes.get_title() for axes in figure.axes] == ["2i", "all"]
    first, second = ({line.get_label(): line.get_xydata().tolist() for line in axes.lines} for axes in figure.axes)
    assert first == {
        "FULL, ours": [[1, 1.0], [4, 4.0]],
        "DIVR, ours": [[1, 2.0]],
        "FULL, the paper": [[1, 5.0], [2, 6.0]],
        "DIVR, the paper": [[2, 7.0]],
    }
    assert second["FULL, ours"] == [[1, 3.0]]
    again = (tmp_path / "particles.png").read_bytes()
    plot_particles(curves, tmp_path / "particles.png")
    assert (tmp_path / "particles.png").read_bytes() == again
