"""The loss: its formula spelled out query by query, and the fused form against it."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine import loss as loss_module
from query2particles.engine.loss import LossTerms, max_softmax, softmax_loss

TERMS = [LossTerms(*values) for values in product((0.0, 0.3), (0.0, 1.5), (1.0, -1.0))]
each_terms = pytest.mark.parametrize("terms", TERMS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)

# Sums of as many rounded numbers as these tests add up.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}


class Factors(NamedTuple):
    """What a gradient is taken by."""

    particles: Tensor  # (n, w, d)
    table: Tensor  # (N, d)
    bias: Tensor  # (N,)

    def fresh(self) -> Factors:
        return Factors(*(factor.detach().clone().requires_grad_() for factor in self))

    def scores(self) -> Tensor:
        return (self.particles @ self.table.T).amax(1) + self.bias


class Targets(NamedTuple):
    """What is known of each query."""

    positives: Tensor
    excluded: Tensor
    weights: Tensor


def factors(n: int, width: int, entities: int, dimension: int, dtype: torch.dtype, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    shapes = (n, width, dimension), (entities, dimension), (entities,)
    return Factors(*(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)).fresh()


def targets(n: int, entities: int, dtype: torch.dtype, seed: int = 0) -> Targets:
    """Weights of all sizes, zero too; what is excluded may be the positive itself, which then is not."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, generator=generator, dtype=dtype) * 2
    weights[1::4] = 0
    positives, excluded = torch.randint(entities, (2, n), generator=generator)
    excluded[::3] = positives[::3]
    return Targets(positives, excluded, weights)


def literal(own: Factors, of: Targets, terms: LossTerms) -> Tensor:
    """The formula, query by query and entity by entity; where several particles are best, the first one counts."""
    epsilon, kappa, sign = terms
    total = own.bias.new_zeros(())
    for p, positive, excluded, weight in zip(own.particles, *of, strict=True):
        s = []
        for e_v, b_v in zip(own.table, own.bias, strict=True):
            products = [one @ e_v for one in p]
            values = [float(one.detach()) for one in products]
            s.append(sign * (products[values.index(max(values))] + b_v))
        log_z = torch.stack(s).logsumexp(0)
        loss = log_z - (1 - epsilon) * s[positive] - epsilon * sum(s, s[0] * 0) / len(s)
        if excluded != positive:
            loss = loss - kappa * torch.log(torch.sigmoid(s[positive] - s[excluded]))
        total = total + weight * loss
    return total


def with_gradients(loss: Tensor, own: Factors) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, own)]


@each_dtype
@each_terms
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("entities", [1, 63, 64, 70])
def test_both_forms_are_the_formula(terms: LossTerms, width: int, entities: int, dtype: torch.dtype) -> None:
    own, of = factors(5, width, entities, 3, dtype), targets(5, entities, dtype)
    expected = with_gradients(literal(own, of, terms), own)
    fused = with_gradients(max_softmax(*own, *of, terms), own)
    plain = with_gradients(softmax_loss(own.scores(), *of, terms), own)
    for found, wanted in zip(fused, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for found, wanted in zip(plain, expected, strict=True):  # which takes its sums in float32
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4, check_dtype=False)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TERMS),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(1, 20),
    st.integers(0, 99),
)
def test_the_fused_form_is_the_plain_one(
    terms: LossTerms, n: int, width: int, entities: int, dimension: int, seed: int
) -> None:
    own = factors(n, width, entities, dimension, torch.float32, seed)
    of = targets(n, entities, torch.float32, seed)
    fused = with_gradients(max_softmax(*own, *of, terms), own)
    plain = with_gradients(softmax_loss(own.scores(), *of, terms), own)
    for found, wanted in zip(fused, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@each_terms
def test_gradients_against_finite_differences(terms: LossTerms) -> None:
    own, of = factors(4, 2, 6, 3, torch.float64), targets(4, 6, torch.float64)

    def loss(particles: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return max_softmax(particles, table, bias, *of, terms)

    assert torch.autograd.gradcheck(loss, tuple(own))


@each_terms
@pytest.mark.parametrize("queries_in_a_block", [1, 2, 3, 7])
def test_several_blocks_are_one(terms: LossTerms, queries_in_a_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own, of = factors(7, 2, 70, 5, torch.float32), targets(7, 70, torch.float32)
    whole = with_gradients(max_softmax(*own, *of, terms), own)
    padded, bytes_of_a_score = 128, 4
    monkeypatch.setattr(loss_module, "_BLOCK_BYTES", queries_in_a_block * 2 * padded * bytes_of_a_score)
    seen = []
    rows = loss_module._rows

    def recorded(scores: Tensor, *others: object) -> tuple[Tensor, Tensor]:
        seen.append(len(scores))
        return rows(scores, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(loss_module, "_rows", recorded)
    in_blocks = with_gradients(max_softmax(*own, *of, terms), own)
    assert sum(seen) == 7
    assert max(seen) <= queries_in_a_block
    assert len(seen) == math.ceil(7 / queries_in_a_block)
    for found, wanted in zip(in_blocks, whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@each_dtype
@each_terms
def test_among_equal_particles_the_first_has_the_whole_gradient(terms: LossTerms, dtype: torch.dtype) -> None:
    """Small whole numbers, whose products are exact: ties between all particles, between the last two, and none."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randint(-2, 3, (70, 3), generator=generator).to(dtype)
    distinct = torch.randint(-2, 3, (3, 3, 3), generator=generator).to(dtype)
    distinct[0, :] = distinct[0, 0]
    distinct[1, 2] = distinct[1, 1]
    own, of = Factors(distinct, table, torch.zeros(70, dtype=dtype)).fresh(), targets(3, 70, dtype)
    of.weights.fill_(1)
    found = with_gradients(max_softmax(*own, *of, terms), own)
    for one, wanted in zip(found, with_gradients(literal(own, of, terms), own), strict=True):
        torch.testing.assert_close(one, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    of_particles = found[1]
    assert of_particles[0, 0].abs().max() > 0
    assert (of_particles[0, 1:] == 0).all()
    assert (of_particles[1, 2] == 0).all()


def test_a_query_without_weight_counts_for_nothing() -> None:
    own, of = factors(4, 2, 70, 3, torch.float32), targets(4, 70, torch.float32)
    terms = LossTerms(smoothing=0.3, exclusion=1.5)
    rest = torch.tensor([0, 2, 3])
    some = Factors(own.particles[rest], own.table, own.bias).fresh()
    assert float(of.weights[1]) == 0
    whole = with_gradients(max_softmax(*own, *of, terms), own)
    without = with_gradients(max_softmax(*some, *Targets(*(one[rest] for one in of)), terms), some)
    assert (whole[1][1] == 0).all()
    whole[1] = whole[1][rest]
    for found, wanted in zip(whole, without, strict=True):
        torch.testing.assert_close(found, wanted)


@each_dtype
def test_a_scaled_loss_has_scaled_gradients(dtype: torch.dtype) -> None:
    own, of = factors(5, 2, 70, 3, dtype), targets(5, 70, dtype)
    once = torch.autograd.grad(max_softmax(*own, *of), own)
    scaled = torch.autograd.grad(-3.5 * max_softmax(*own, *of), own)
    for found, wanted in zip(scaled, once, strict=True):
        torch.testing.assert_close(found, -3.5 * wanted)


def test_gradients_have_the_types_of_what_they_belong_to() -> None:
    """Particles of operators in bfloat16 against a table in float32."""
    whole, of = factors(5, 2, 70, 3, torch.float32), targets(5, 70, torch.float32)
    rounded = whole.particles.detach().bfloat16()
    own = Factors(rounded, whole.table, whole.bias).fresh()
    reference = Factors(rounded.float(), whole.table, whole.bias).fresh()
    found = torch.autograd.grad(max_softmax(*own, *of), own)
    wanted = torch.autograd.grad(max_softmax(*reference, *of), reference)
    assert [one.dtype for one in found] == [torch.bfloat16, torch.float32, torch.float32]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-2, atol=1e-3)


def test_large_scores_stay_numbers() -> None:
    own, of = factors(5, 2, 70, 3, torch.float32), targets(5, 70, torch.float32)
    large = Factors(own.particles * 300, own.table, own.bias).fresh()
    found = with_gradients(max_softmax(*large, *of, LossTerms(smoothing=0.3)), large)
    assert all(one.isfinite().all() for one in found)
    expected = with_gradients(softmax_loss(large.scores(), *of, LossTerms(smoothing=0.3)), large)
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-2)


def test_only_what_has_the_size_of_a_gradient_is_kept_for_the_way_back() -> None:
    """Nothing of size queries × particles × entities."""
    own, of = factors(50, 2, 640, 7, torch.float32), targets(50, 640, torch.float32)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = max_softmax(*own, *of)
    assert sorted(kept) == sorted(factor.numel() for factor in own)
    assert loss.isfinite()


def test_the_mean_of_what_is_left_out_of_a_tile_is_nothing() -> None:
    """Entities that only fill up the last tile have no part in the smoothing, nor in Z."""
    own, of = factors(3, 2, 65, 3, torch.float64), targets(3, 65, torch.float64)
    low = Factors(own.particles, own.table, own.bias - 500).fresh()
    terms = LossTerms(smoothing=0.9)
    torch.testing.assert_close(max_softmax(*low, *of, terms), literal(low, of, terms))


def descended(terms: LossTerms, of: Targets, entities: int, steps: int = 400) -> Tensor:
    """Scores (n, N), free to take any value, after descent along the loss."""
    generator = torch.Generator().manual_seed(0)
    scores = (3 + torch.randn(len(of.positives), entities, generator=generator)).requires_grad_()
    for _ in range(steps):
        (slope,) = torch.autograd.grad(softmax_loss(scores, *of, terms), scores)
        scores = (scores - 0.5 * slope).detach().requires_grad_()
    return scores.detach()


def test_exclusion_puts_the_positive_above_what_is_excluded() -> None:
    """Both are positives of the same query as often; only where something is excluded does the term tell them apart."""
    of = Targets(torch.tensor([0, 3]), torch.tensor([3, 3]), torch.ones(2))
    shared = torch.zeros(1, 6, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(softmax_loss(shared.expand(2, -1), *of, LossTerms(exclusion=1.0)), shared)
        shared = (shared - 0.5 * slope).detach().requires_grad_()
    assert float((shared[0, 0] - shared[0, 3]).detach()) > 0.5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_positive_becomes_the_best_or_with_negated_scores_the_worst(sign: float) -> None:
    of = Targets(torch.tensor([0, 3, 5, 8]), torch.tensor([0, 3, 5, 8]), torch.ones(4))
    end = descended(LossTerms(sign=sign), of, 12)
    assert (sign * end).argmax(1).tolist() == of.positives.tolist()


@pytest.mark.parametrize("smoothing", [0.0, 0.2, 0.6])
def test_smoothing_is_uniform_over_all_entities(smoothing: float) -> None:
    """The loss is least where the softmax is 1 − ε on the positive and ε/N on all, the positive included."""
    of = Targets(torch.tensor([2, 7]), torch.tensor([2, 7]), torch.ones(2))
    shares = torch.softmax(descended(LossTerms(smoothing=smoothing), of, 10, steps=4000), 1)
    expected = torch.full((2, 10), smoothing / 10)
    expected[[0, 1], [2, 7]] += 1 - smoothing
    torch.testing.assert_close(shares, expected, rtol=0, atol=5e-3)
