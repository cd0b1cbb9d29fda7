"""What was claimed and what came true, counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from query2particles.calibration import Figures, Judged, expected_calibration_error, plot_reliability
from query2particles.calibration.reliability import reliability


def literal_error(claimed: list[float], true: list[bool], weight: list[float]) -> float:
    total = 0.0
    for number in range(10):
        own = [one for one, p in enumerate(claimed) if number / 10 <= p < (number + 1) / 10 or (number == 9 and p == 1)]
        mass = sum(weight[one] for one in own)
        if mass:
            gap = sum(weight[one] * (claimed[one] - true[one]) for one in own) / mass
            total += mass * abs(gap)
    return total / sum(weight)


@pytest.mark.parametrize("seed", range(3))
def test_the_error_is_what_counting_gives(seed: int) -> None:
    generator = np.random.default_rng(seed)
    claimed = np.append(np.round(generator.random(80), 3), [0.0, 1.0])
    true, weight = generator.random(82) < 0.4, generator.uniform(0.5, 3, 82)
    listed = claimed.tolist(), true.tolist()
    assert expected_calibration_error(claimed, true) == pytest.approx(literal_error(*listed, [1.0] * 82))
    assert expected_calibration_error(claimed, true, weight) == pytest.approx(literal_error(*listed, weight.tolist()))
    assert sum(one.count for one in reliability(claimed, true)) == 82


def test_the_error_by_hand() -> None:
    probabilities = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    labels = np.array([False, True, True, True, False])
    # Two in the lowest bin, claimed 0.05, true 1/2; three in the highest, claimed 2.9/3, true 2/3.
    by_hand = 2 / 5 * abs(0.05 - 0.5) + 3 / 5 * abs(2.9 / 3 - 2 / 3)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(by_hand)


JUDGED = Judged(
    claimed=np.array([0.2, 0.7, 0.6, 0.1, 0.5]),
    true=np.array([True, True, False, False, False]),
    question=np.array([0, 0, 3, 3, 1]),
    relation=np.array([4, 4, 5, 5, 4]),
    weight=np.array([1.0, 1.0, 3.0, 3.0, 2.0]),
)


def test_the_likeliest_guess_of_every_question() -> None:
    top = JUDGED.top()
    assert top.question.tolist() == [0, 1, 3]
    assert top.claimed.tolist() == [0.7, 0.5, 0.6]
    assert top.true.tolist() == [True, False, False]
    assert top.relation.tolist() == [4, 4, 5]
    assert top.weight.tolist() == [1, 2, 3]


def test_figures_by_hand() -> None:
    found = JUDGED.figures()
    assert (found.questions, found.likely) == (3, 3)
    assert found.likely_claimed == pytest.approx((0.7 + 3 * 0.6 + 2 * 0.5) / 6)
    assert found.likely_true == pytest.approx(1 / 6)
    assert found.brier == pytest.approx((0.8**2 + 0.3**2 + 3 * 0.6**2 + 3 * 0.1**2 + 2 * 0.5**2) / 10)
    losses = [np.log(0.2), np.log(0.7), 3 * np.log(0.4), 3 * np.log(0.9), 2 * np.log(0.5)]
    assert found.log_loss == pytest.approx(-sum(losses) / 10)
    assert found.top_ece == pytest.approx((1 * 0.3 + 2 * 0.5 + 3 * 0.6) / 6)
    assert Figures.from_json(found.as_json()).likely_claimed == pytest.approx(found.likely_claimed, abs=1e-6)


def test_relations_by_hand() -> None:
    found = JUDGED.by_relation(fewest=2)
    assert set(found) == {4}
    assert [found[4].claimed, found[4].true, found[4].count] == pytest.approx([1.7 / 3, 1 / 3, 2])
    assert set(JUDGED.by_relation(fewest=1)) == {4, 5}
    assert JUDGED.by_relation() == {}


def test_questions_of_several_are_told_apart() -> None:
    both = Judged.joined([JUDGED, JUDGED])
    assert len(both.top().claimed) == 2 * len(JUDGED.top().claimed)
    assert len(both.claimed) == 10


def test_a_panel_of_each_family_and_one_of_relations(tmp_path: Path) -> None:
    plot_reliability({"one hop": JUDGED, "union": JUDGED}, tmp_path / "two.svg", title="two families")
    drawn = (tmp_path / "two.svg").read_text()
    assert [f'id="axes_{number}"' in drawn for number in (1, 2, 3, 4)] == [True, True, True, False]
    plot_reliability({"one hop": JUDGED}, tmp_path / "one.png", title="one family")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.svg"]
