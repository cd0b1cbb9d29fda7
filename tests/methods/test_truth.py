"""Fuzzy logic of logarithms against the definitions, and the axioms of t-norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from query2particles.methods.truth import FALSE, NORMS, LinkTruth, NormName, highest_at, link_truths, negated

each_norm = pytest.mark.parametrize("name", NORMS)
truths = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-300, 1e-9, 0.5, 1 - 1e-9, 1.0]))

DEFINITIONS: dict[NormName, tuple[Callable[[float, float], float], Callable[[float, float], float]]] = {
    "product": (lambda a, b: a * b, lambda a, b: a + b - a * b),
    "godel": (min, max),
    "lukasiewicz": (lambda a, b: max(0.0, a + b - 1), lambda a, b: min(1.0, a + b)),
}


def logarithm(truth: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(math.log(truth) if truth else FALSE, dtype=dtype)


def both(name: NormName, a: float, b: float) -> float:
    return float(NORMS[name].both(logarithm(a), logarithm(b)).exp())


def either(name: NormName, a: float, b: float) -> float:
    return float(NORMS[name].either(logarithm(a), logarithm(b)).exp())


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-12)


@each_norm
@given(a=truths, b=truths)
def test_norms_are_as_defined(name: NormName, a: float, b: float) -> None:
    expected_both, expected_either = DEFINITIONS[name]
    assert both(name, a, b) == near(expected_both(a, b))
    assert either(name, a, b) == near(expected_either(a, b))


@each_norm
@given(st.lists(truths, min_size=1, max_size=5))
def test_any_of_several_is_each_or_the_next(name: NormName, several: list[float]) -> None:
    found = NORMS[name].any_of(torch.stack([logarithm(truth) for truth in several]))
    assert float(found.exp()) == near(reduce(DEFINITIONS[name][1], several))


@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(several=st.lists(st.tuples(truths, st.integers(0, 3)), max_size=9))
def test_any_at_a_place_is_any_of_what_is_there(
    name: NormName, dtype: torch.dtype, several: list[tuple[float, int]]
) -> None:
    x = torch.tensor([float(logarithm(truth)) for truth, _ in several], dtype=dtype)
    places = torch.tensor([place for _, place in several], dtype=torch.int64)
    found, highest = NORMS[name].any_at(x, places, 4), highest_at(x, places, 4)
    assert found.dtype == highest.dtype == dtype
    assert (found >= highest - 1e-6).all()
    for place in range(4):
        here = [truth for truth, at in several if at == place]
        expected = reduce(DEFINITIONS[name][1], here, 0.0)
        assert float(found[place].exp()) == pytest.approx(expected, abs=1e-12 if dtype == torch.float64 else 1e-6)
        assert float(highest[place].exp()) == pytest.approx(max(here, default=0.0), abs=1e-6)
        assert here or float(found[place]) == float(highest[place]) == pytest.approx(FALSE)


@each_norm
def test_any_of_what_is_unlikely_in_float32(name: NormName) -> None:
    """Where truths themselves would not differ from their complements, or from 0."""
    x = torch.tensor([[-20.0, -60.0, FALSE, 0.0], [-21.0, -61.0, FALSE, -3.0]])
    found = NORMS[name].any_of(x)
    exact = NORMS[name].any_of(x.double())
    assert found[:2].tolist() == pytest.approx(exact[:2].tolist(), rel=1e-6)
    assert found[2] < -80
    assert float(found[3]) == 0


@each_norm
@given(a=truths, b=truths, c=truths)
def test_norms_satisfy_the_axioms(name: NormName, a: float, b: float, c: float) -> None:
    for join, neutral, absorbing in ((both, 1.0, 0.0), (either, 0.0, 1.0)):
        assert join(name, a, b) == near(join(name, b, a))
        assert join(name, join(name, a, b), c) == near(join(name, a, join(name, b, c)))
        assert join(name, a, neutral) == near(a)
        assert join(name, a, absorbing) == near(absorbing)
        low, high = sorted((b, c))
        assert join(name, a, low) <= join(name, a, high) + 1e-12
        assert 0 <= join(name, a, b) <= 1


@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(a=truths)
def test_what_is_certain_stays_so(name: NormName, dtype: torch.dtype, a: float) -> None:
    """To the last bit, or what is followed first would be a matter of rounding."""
    x, certain = logarithm(a, dtype), torch.zeros((), dtype=dtype)
    assert NORMS[name].either(x, certain) == NORMS[name].either(certain, x) == 0


@each_norm
@given(a=truths, b=truths)
def test_a_co_norm_is_its_norm_between_two_negations(name: NormName, a: float, b: float) -> None:
    x, y = negated(logarithm(a)), negated(logarithm(b))
    assert either(name, a, b) == near(float(negated(NORMS[name].both(x, y)).exp()))


@given(a=truths)
def test_negation_is_one_minus_and_its_own_inverse(a: float) -> None:
    assert float(negated(logarithm(a)).exp()) == near(1 - a)
    assert float(negated(negated(logarithm(a))).exp()) == near(a)


@given(a=truths, scale=st.floats(0.1, 10))
def test_a_scaled_negation_is_never_below_nothing(a: float, scale: float) -> None:
    assert float(negated(logarithm(a), scale).exp()) == near(max(0.0, 1 - scale * a))


def test_certain_and_impossible_truths_stay_apart_in_float32() -> None:
    """1 − 1e-12 and 1 − 2e-12 are one number in float32, as are 1e-50 and 3e-50."""
    nearly_one, nearly_zero = torch.tensor([-1e-12, -2e-12]), torch.tensor([-115.0, -114.0])
    almost_true, false = torch.tensor(-1e-13), torch.tensor(FALSE)
    results = [negated(nearly_one)]
    for name, norm in NORMS.items():
        results += [norm.both(nearly_one, almost_true), norm.either(nearly_one, false), norm.either(nearly_zero, false)]
        if name != "lukasiewicz":  # of which a ⊤ b is 0 there
            results.append(norm.both(nearly_zero, almost_true))
    for found in results:
        assert found[0] != found[1]


@each_norm
def test_results_and_slopes_are_numbers_at_the_ends(name: NormName) -> None:
    ends = [FALSE, -800.0, -math.log(2), -1e-20, 0.0]
    for dtype in (torch.float32, torch.float64):
        x, y = (one.flatten() for one in torch.meshgrid(*[torch.tensor(ends, dtype=dtype)] * 2, indexing="ij"))
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        for found in (NORMS[name].both(x, y), NORMS[name].either(x, y), negated(x)):
            assert found.isfinite().all()
            assert (found <= 0).all()
            slopes = torch.autograd.grad(found.sum(), [x, y], allow_unused=True)
            assert all(slope.isfinite().all() for slope in slopes if slope is not None)


SCORES = torch.tensor([[2.0, -1.0, 0.5], [0.0, 30.0, 31.0]], dtype=torch.float64)


@pytest.mark.parametrize("how", ["sigmoid", "softmax", "min-max"])
def test_links_are_as_true_as_defined(how: LinkTruth) -> None:
    found = link_truths(SCORES, how, 1.5).exp()
    for row, scores in enumerate(SCORES.tolist()):
        total, low, high = sum(map(math.exp, scores)), min(scores), max(scores)
        expected = {
            "sigmoid": [1 / (1 + math.exp(1.5 - s)) for s in scores],
            "softmax": [math.exp(s) / total for s in scores],
            "min-max": [(s - low) / (high - low) for s in scores],
        }
        assert found[row].tolist() == pytest.approx(expected[how], abs=1e-12)


@pytest.mark.parametrize("how", ["sigmoid", "softmax", "min-max"])
def test_links_of_equal_scores_are_equally_true(how: LinkTruth) -> None:
    scores = torch.zeros(1, 4, requires_grad=True)
    found = link_truths(scores, how)
    assert found.isfinite().all()
    assert len(set(found[0].tolist())) == 1
    (slope,) = torch.autograd.grad(found.sum(), scores)
    assert slope.isfinite().all()
