"""The picture of a training shows what its trace says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from query2particles.plot import plot_training

TRACE: list[dict[str, Any]] = [
    {"update": 10, "loss": 8.7, "queries_per_second": 100, "seconds": 1.0},
    {"update": 20, "loss": 6.5, "queries_per_second": 100, "seconds": 2.0},
    {"update": 20, "validation": {"epfo": 5.0, "negation": 1.0, "all": 3.6}, "best": True},
    {"update": 1500, "loss": 3.0, "queries_per_second": 100, "seconds": 3.0},
    {"update": 1500, "validation": {"epfo": 20.0, "negation": 4.0, "all": 14.3}, "best": True},
]
REFERENCES = {"one baseline": {"epfo": 4.0, "negation": 0.5}, "another": {"epfo": 8.0, "negation": 1.5}}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What matplotlib was asked to draw, with the file that came of it."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(trace: list[dict[str, Any]], **options: Any) -> Figure:
        plot_training(trace, tmp_path / "curve.png", title="A training", **options)
        (figure,) = figures
        return figure

    return draw


def test_loss_and_validation_are_drawn_as_traced(drawn: Any) -> None:
    figure = drawn(TRACE, references=REFERENCES)
    left, right = figure.axes
    (loss,) = left.lines
    assert loss.get_xydata().tolist() == [[10, 8.7], [20, 6.5], [1500, 3.0]]
    lines = {line.get_label(): line for line in right.lines}
    assert lines["EPFO"].get_xydata().tolist() == [[20, 5.0], [1500, 20.0]]
    assert lines["negation"].get_xydata().tolist() == [[20, 1.0], [1500, 4.0]]
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
    left, right = drawn([line for line in TRACE if "loss" in line]).axes
    assert len(left.lines[0].get_xydata()) == 3
    assert all(len(line.get_xydata()) == 0 for line in right.lines)


def test_the_form_follows_the_name(tmp_path: Path) -> None:
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        target = tmp_path / f"curve{suffix}"
        plot_training(TRACE, target, title="A training")
        assert target.read_bytes().startswith(start)
    assert len(re.findall(r"<svg\b", (tmp_path / "curve.svg").read_text())) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.pdf", "curve.png", "curve.svg"]


def test_a_form_that_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        plot_training(TRACE, tmp_path / "curve.txt", title="A training")
    assert not list(tmp_path.iterdir())
