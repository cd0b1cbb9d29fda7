"""Sums that become probabilities: what they learn from samples of a known law, and how they are told and stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from query2particles.calibration import Additive, expected_calibration_error
from query2particles.calibration.additive import Floats, Samples

NAMES = ("score", "other score", "size")
RISING = (True, True, False)
EFFECTS = np.array([0.0, 1.5, -1.0, 0.3])
SLOPES = np.array([1.0, 1.0, 1.6, 1.0])


def drawn(seed: int, count: int, *, flipped: bool = False) -> tuple[Samples, Floats]:
    """Samples of a logistic law with an effect and a slope of each relation, and their true probabilities."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, 3)) * [1.0, 2.0, 0.5]
    relation = generator.integers(len(EFFECTS), size=count)
    x = SLOPES[relation] * (features @ [1.5, 0.3, -1.2] - 0.7) + EFFECTS[relation]
    true = expit(-x if flipped else x)
    labels = generator.random(count) < true
    return Samples(features, relation, np.ones(count), np.arange(count), labels), true


def fitted(samples: Samples) -> Additive:
    return Additive.fit(NAMES, samples, rising=RISING, by_relation=True)


def test_the_law_that_samples_follow_is_found() -> None:
    found = fitted(drawn(0, 30_000)[0])
    fresh, true = drawn(1, 10_000)
    claimed = found(fresh.features, fresh.relation)
    assert np.abs(claimed - true).mean() < 0.02
    assert expected_calibration_error(claimed, fresh.true) < 0.02
    assert expected_calibration_error(np.full(len(true), 0.9), fresh.true) > 0.2, "not anything is so close"


def test_the_line_straightens_what_is_no_logistic_law() -> None:
    generator = np.random.default_rng(4)
    features = generator.uniform(-6, 6, size=(40_000, 1))
    true = 0.1 + 0.5 * (features[:, 0] > 1)
    some = np.zeros(len(true), dtype=np.int64)
    samples = Samples(features, some, np.ones(len(true)), some, generator.random(len(true)) < true)
    found = Additive.fit(("score",), samples, rising=(True,), by_relation=False)
    low, high = found(np.array([[-3.0], [5.0]]))
    assert low == pytest.approx(0.1, abs=0.03)
    assert high == pytest.approx(0.6, abs=0.03)


@given(seed=st.integers(0, 20), flipped=st.booleans(), size=st.floats(-2, 2), relation=st.integers(0, 5))
def test_a_higher_score_never_has_a_lower_probability(seed: int, flipped: bool, size: float, relation: int) -> None:
    """Whatever it was fitted to; and no guess is certain."""
    found = fitted(drawn(seed, 400, flipped=flipped)[0])
    assert all(weight >= 0 for weight, rises in zip(found.weights, RISING, strict=True) if rises)
    scores = np.linspace(-40, 40, 200)
    rising = np.stack([scores, np.zeros(200), np.full(200, size)], axis=1)
    claimed = found(rising, np.full(200, relation))
    assert (np.diff(claimed) >= 0).all()
    assert (claimed > 0).all()
    assert (claimed < 1).all()


def test_a_weight_that_may_fall_does() -> None:
    assert fitted(drawn(3, 5000)[0]).weights[2] < -0.5


def test_few_samples_of_a_relation_tell_little_and_many_tell_its_rate() -> None:
    generator = np.random.default_rng(0)
    rates, counts = (0.3, 0.8, 1.0), (4000, 4000, 1)
    relation = np.repeat(np.arange(3), counts)
    labels = generator.random(len(relation)) < np.repeat(rates, counts)
    none = np.zeros(len(relation), dtype=np.int64)
    samples = Samples(generator.normal(size=(len(relation), 1)), relation, np.ones(len(relation)), none, labels)
    found = Additive.fit(("score",), samples, rising=(True,), by_relation=True)
    usual, many, most, one = found(np.zeros((4, 1)), np.array([7, 0, 1, 2]))
    assert many == pytest.approx(0.3, abs=0.03)
    assert most == pytest.approx(0.8, abs=0.03)
    assert usual < one < usual + 0.15
    assert set(found.relations) == {0, 1, 2}


def test_each_sample_counts_as_often_as_it_stands_for() -> None:
    """As many false ones as there are, or one in ten of them that stands for ten: the same probabilities."""
    samples, _ = drawn(5, 20_000)
    kept = np.flatnonzero(samples.true | (np.arange(20_000) % 10 == 0))
    fewer = samples.take(kept)
    fewer = replace(fewer, weight=np.where(fewer.true, 1.0, 10.0))
    one, other = fitted(samples), fitted(fewer)
    fresh, _ = drawn(6, 1000)
    assert np.abs(one(fresh.features, fresh.relation) - other(fresh.features, fresh.relation)).mean() < 0.03
    blind = fitted(replace(fewer, weight=np.ones(len(kept))))
    assert (blind(fresh.features, fresh.relation) - one(fresh.features, fresh.relation)).mean() > 0.2


def test_weights_stay_close_to_usual_ones_where_samples_are_few() -> None:
    samples, _ = drawn(7, 40)
    usual = (0.1, 2.0, 0.5)
    held = Additive.fit(NAMES, samples, rising=RISING, by_relation=False, usual=usual, penalty=1e6)
    assert held.weights == pytest.approx(usual, abs=1e-3)
    assert held.relations == {}


def test_where_a_line_parts_the_true_from_the_rest_nothing_is_certain() -> None:
    features = np.repeat([-30.0, 30.0], 500)[:, None]
    none = np.zeros(1000, dtype=np.int64)
    samples = Samples(features, none, np.ones(1000), none, features[:, 0] > 0)
    lowest, highest = Additive.fit(("score",), samples, rising=(True,), by_relation=False)(np.array([[-1e3], [1e3]]))
    assert 0 < lowest < 0.01
    assert 0.99 < highest < 1


@pytest.mark.parametrize("relation", [0, 2, 9])
def test_reasons_add_up_to_how_far_the_log_odds_are_from_usual_ones(relation: int) -> None:
    samples, _ = drawn(0, 3000)
    found = fitted(samples)
    features = np.array([0.7, -2.0, 1.5])
    reasons = found.reasons(features, relation)
    assert list(reasons) == [*NAMES, "relation"]
    usual = replace(found, relations={}).log_odds(samples.features.mean(0))
    assert sum(reasons.values()) == pytest.approx(float(found.log_odds(features, relation) - usual))
    assert (reasons["relation"] == 0) == (relation == 9)


def test_what_is_written_is_read_again() -> None:
    found = fitted(drawn(0, 2000)[0])
    again = Additive.from_json(json.loads(json.dumps(found.as_json())))
    assert again == found
    fresh, _ = drawn(1, 50)
    np.testing.assert_array_equal(again(fresh.features, fresh.relation), found(fresh.features, fresh.relation))


DOCUMENT: Mapping[str, Any] = {
    "features": ["score", "size"],
    "weights": [1.0, 0.0],
    "centre": [0.0, 0.0],
    "bias": 0.0,
    "knots": [[0.0, 0.1], [1.0, 0.9]],
    "relations": {"3": [1.0, 0.5]},
}


def test_a_sound_document_is_read() -> None:
    assert Additive.from_json(DOCUMENT).relations == {3: (1.0, 0.5)}


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": [1.0]},
        {"weights": [1.0, float("nan")]},
        {"centre": []},
        {"bias": float("inf")},
        {"knots": []},
        {"knots": [[0.0, 0.9], [1.0, 0.1]]},
        {"knots": [[1.0, 0.1], [0.0, 0.9]]},
        {"knots": [[0.0, 0.1], [1.0, 1.1]]},
        {"knots": [[0.0, -0.1]]},
        {"knots": [[0.0, 0.1, 0.2]]},
        {"relations": {"-1": [1.0, 0.5]}},
        {"relations": {"3": [1.0, float("nan")]}},
        {"relations": {"third": [1.0, 0.5]}},
    ],
)
def test_a_damaged_document_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Additive.from_json({**DOCUMENT, **damage})
