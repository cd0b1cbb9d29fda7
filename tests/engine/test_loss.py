"""The loss: its formula spelled out query by query, and the fused form against it."""

from __future__ import annotations

import math
from itertools import product
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine import fused_loss
from query2particles.engine.fused_loss import max_sampled_softmax, max_softmax
from query2particles.engine.loss import LossTerms, Objective, negatives_loss, softmax_loss
from query2particles.engine.negatives import Negatives

TERMS = [LossTerms(*values) for values in product((0.0, 0.3), (0.0, 1.5), (1.0, -1.0))]
each_terms = pytest.mark.parametrize("terms", TERMS, ids=str)
each_kind = pytest.mark.parametrize("kind", ["softmax", "margin"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

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
    monkeypatch.setattr(fused_loss, "_BLOCK_BYTES", queries_in_a_block * 2 * padded * bytes_of_a_score)
    seen = []
    rows = fused_loss._rows

    def recorded(scores: Tensor, *others: object) -> Tensor:
        seen.append(len(scores))
        return rows(scores, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fused_loss, "_rows", recorded)
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


def test_precision_is_a_matter_of_cuda_alone() -> None:
    own, of = factors(5, 2, 70, 3, torch.float64), targets(5, 70, torch.float64)
    terms = LossTerms(smoothing=0.3, exclusion=1.5)
    fused = with_gradients(max_softmax(*own, *of, terms), own)
    precise = with_gradients(max_softmax(*own, *of, terms, precise=True), own)
    assert all(torch.equal(one, other) for one, other in zip(fused, precise, strict=True))


@pytest.mark.gpu
@needs_gpu
@each_terms
@pytest.mark.parametrize("width", [1, 2])
def test_precise_products_on_cuda_are_those_of_the_cpu(terms: LossTerms, width: int) -> None:
    """Where scores are large sums that all but cancel, as those of distances: bfloat16 would leave nothing of them."""
    whole, of = factors(33, width, 300, 40, torch.float32), targets(33, 300, torch.float32)
    own = Factors(whole.particles, whole.table, whole.bias - 40).fresh()
    on_device = Factors(*(one.detach().cuda() for one in own)).fresh()
    known = Targets(*(one.cuda() for one in of))
    expected = with_gradients(softmax_loss(own.scores(), *of, terms), own)
    found, rough = (
        with_gradients(max_softmax(*on_device, *known, terms, precise=precise), on_device) for precise in (True, False)
    )
    for one, other, wanted in zip(found, rough, expected, strict=True):
        assert one.dtype == torch.float32
        near, far = (float((some.cpu().float() - wanted).norm()) for some in (one, other))
        assert near < 1e-3 * float(wanted.norm())
        assert near < 0.2 * far


# A few entities in place of all.

Kind = Literal["softmax", "margin"]


class Sampled(NamedTuple):
    """The scores of positives and excluded entities, and those of others."""

    scores: Tensor  # (n, 2)
    others: Tensor  # (n, m)

    def fresh(self) -> Sampled:
        return Sampled(*(one.detach().clone().requires_grad_() for one in self))


class Known(NamedTuple):
    """Of each query: whether something is excluded, which others are its positive, and its weight."""

    apart: Tensor  # (n,)
    hits: Tensor  # (n, m)
    weights: Tensor  # (n,)


def sampled(n: int, m: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Sampled, Known]:
    """Some weights are zero, and the others of some queries are all their positive."""
    generator = torch.Generator().manual_seed(seed)
    own = Sampled(*(2 * torch.randn(n, size, generator=generator, dtype=dtype) for size in (2, m)))
    apart = torch.rand(n, generator=generator) > 0.4
    weights = torch.rand(n, generator=generator, dtype=dtype) * 2
    weights[1::4] = 0
    own.scores[~apart, 1] = own.scores[~apart, 0]
    hits = torch.rand(n, m, generator=generator) > 0.7
    hits[2] = True
    return own.fresh(), Known(apart, hits, weights)


def literal_of_some(
    kind: Kind, own: Sampled, known: Known, stands_for: Tensor, entities: int, terms: LossTerms
) -> Tensor:
    """Query by query and entity by entity."""
    epsilon, kappa, sign = terms
    total = own.scores.new_zeros(())
    for (positive, excluded), others, is_apart, hits, weight in zip(*own, *known, strict=True):
        s, u = sign * positive, sign * excluded
        rest = [sign * one for one in others]
        counted = [(one, share) for one, share, hit in zip(rest, stands_for, hits, strict=True) if not hit]
        if kind == "softmax":
            z = s.exp() + sum((share * one.exp() for one, share in counted), s * 0)
            smooth = sum((share * one for one, share in zip(rest, stands_for, strict=True)), s * 0) / entities
            loss = z.log() - (1 - epsilon) * s - epsilon * smooth
        else:
            loss = -torch.sigmoid(s).log()
            for one, _ in counted:
                loss = loss - torch.sigmoid(-one).log() / len(counted)
        if is_apart:
            loss = loss - kappa * torch.sigmoid(s - u).log()
        total = total + weight * loss
    return total


@each_kind
@each_terms
@pytest.mark.parametrize(("m", "entities"), [(1, 2), (1, 50), (6, 50), (6, 7)])
def test_losses_of_some_entities_are_the_formula(kind: Kind, terms: LossTerms, m: int, entities: int) -> None:
    own, known = sampled(9, m)
    stands_for = torch.rand(m, generator=torch.Generator().manual_seed(8), dtype=torch.float64) * 2 * entities / m
    wanted = literal_of_some(kind, own, known, stands_for, entities, terms)
    found = negatives_loss(kind, *own, *known, stands_for=stands_for, entities=entities, terms=terms)
    torch.testing.assert_close(found, wanted)
    for one, slope in zip(torch.autograd.grad(found, own), torch.autograd.grad(wanted, own), strict=True):
        torch.testing.assert_close(one, slope)


@each_kind
def test_gradients_of_some_entities_against_finite_differences(kind: Kind) -> None:
    own, known = sampled(5, 4)
    terms = LossTerms(smoothing=0.3, exclusion=1.5, sign=-1.0)

    def loss(scores: Tensor, others: Tensor) -> Tensor:
        stands_for = torch.tensor(7.5, dtype=torch.float64)
        return negatives_loss(kind, scores, others, *known, stands_for=stands_for, entities=30, terms=terms)

    assert torch.autograd.gradcheck(loss, tuple(own))


@each_terms
def test_with_all_entities_it_is_the_softmax_over_all(terms: LossTerms) -> None:
    """Each stands for itself, and the positive among them does not count twice."""
    n, entities = 7, 11
    of = targets(n, entities, torch.float64)
    s = torch.randn(n, entities, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = s.gather(1, torch.stack([of.positives, of.excluded], 1))
    hits = torch.arange(entities) == of.positives[:, None]
    one = torch.ones(entities, dtype=torch.float64)
    apart = of.positives != of.excluded
    found = negatives_loss("softmax", pairs, s, apart, hits, of.weights, stands_for=one, entities=entities, terms=terms)
    torch.testing.assert_close(found, softmax_loss(s, *of, terms))


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("proposal", ["uniform", "any"])
def test_some_others_stand_for_all_in_the_mean(m: int, proposal: str) -> None:
    """Z is estimated without bias: its mean over all draws of m, with repeats and hits, is the softmax's own."""
    entities, positive = 5, torch.tensor([2])
    generator = torch.Generator().manual_seed(2)
    s, q = torch.randn(2, entities, generator=generator, dtype=torch.float64)
    q = torch.softmax(q if proposal == "any" else q * 0, 0)
    one, pairs, apart = torch.ones(1, dtype=torch.float64), s[None, [2, 2]], torch.tensor([False])
    odds = s.new_zeros(())
    for draw in product(range(entities), repeat=m):
        drawn = torch.tensor(draw)
        hits = drawn[None] == positive[:, None]
        loss = negatives_loss(
            "softmax", pairs, s[None, drawn], apart, hits, one, stands_for=1 / (m * q[drawn]), entities=entities
        )
        odds = odds + q[drawn].prod() * loss.exp()
    torch.testing.assert_close(odds, softmax_loss(s[None], positive, positive, one).exp())


@each_kind
def test_the_scores_of_operators_in_bfloat16_are_summed_in_float32(kind: Kind) -> None:
    own, known = sampled(9, 6, torch.float32)
    rounded = Sampled(*(one.detach().bfloat16() for one in own)).fresh()
    widened = Sampled(*(one.detach().float() for one in rounded)).fresh()
    share = torch.tensor(50 / 6)
    found, wanted = (negatives_loss(kind, *some, *known, stands_for=share, entities=50) for some in (rounded, widened))
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)
    assert [one.dtype for one in torch.autograd.grad(found, rounded)] == [torch.bfloat16] * 2


@each_kind
def test_large_scores_of_some_stay_numbers(kind: Kind) -> None:
    own, known = sampled(9, 6, torch.float32)
    large = Sampled(*(3000 * one for one in own)).fresh()
    loss = negatives_loss(kind, *large, *known, stands_for=torch.tensor(50 / 6), entities=50, terms=LossTerms(0.3, 1.5))
    assert loss.isfinite()
    assert all(one.isfinite().all() for one in torch.autograd.grad(loss, large))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_margin_puts_answers_above_zero_and_others_below(sign: float) -> None:
    """Or, with negated scores, the other way round."""
    own, known = sampled(5, 4, torch.float32)
    known = Known(known.apart, torch.zeros_like(known.hits), torch.ones(5))
    for _ in range(200):
        loss = negatives_loss(
            "margin", *own, *known, stands_for=torch.ones(()), entities=50, terms=LossTerms(sign=sign)
        )
        slopes = torch.autograd.grad(loss, own)
        own = Sampled(*(one - slope for one, slope in zip(own, slopes, strict=True))).fresh()
    assert (sign * own.scores[:, 0] > 1).all()
    assert (sign * own.others < -1).all()


# The fused form of a few entities in place of all.


class Drawn(NamedTuple):
    """A case: factors of all entities, of which some are drawn, with repeats."""

    own: Factors
    of: Targets
    negatives: Negatives

    def fused(self, terms: LossTerms, own: Factors | None = None) -> Tensor:
        own = own or self.own
        n, entities = len(own.particles), len(own.table)
        pairs = torch.stack([self.of.positives, self.of.excluded], 1)
        scores = own.scores()[torch.arange(n)[:, None], pairs]
        some = own.particles, own.table[self.negatives.entities], own.bias[self.negatives.entities]
        return max_sampled_softmax(*some, scores, *self.of, self.negatives, entities, terms)

    def plain(self, terms: LossTerms, own: Factors | None = None) -> Tensor:
        own, of, (drawn, stands_for) = own or self.own, self.of, self.negatives
        scores = own.scores()
        pairs = scores[torch.arange(len(scores))[:, None], torch.stack([of.positives, of.excluded], 1)]
        known = of.positives != of.excluded, drawn == of.positives[:, None], of.weights
        how = {"stands_for": stands_for, "entities": len(own.table), "terms": terms}
        return negatives_loss("softmax", pairs, scores[:, drawn], *known, **how)  # type: ignore[arg-type]


def drawn_case(
    n: int, width: int, entities: int, m: int, dtype: torch.dtype, *, alike: bool = True, seed: int = 0
) -> Drawn:
    """`alike`: each negative stands for as many as any other."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(entities, (m,), generator=generator)
    apart = 2 * entities / m * torch.rand(m, generator=generator, dtype=dtype) + 1e-3
    stands_for = torch.tensor(entities / m, dtype=dtype) if alike else apart
    own, of = factors(n, width, entities, 3, dtype, seed), targets(n, entities, dtype, seed)
    return Drawn(own, of, Negatives(drawn, stands_for))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(TERMS),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(1, 140),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_fused_form_of_some_entities_is_the_plain_one(
    terms: LossTerms, n: int, width: int, entities: int, m: int, alike: bool, seed: int
) -> None:
    """Where few entities are drawn from, often all that are drawn are the positive."""
    case = drawn_case(n, width, entities, m, torch.float64, alike=alike, seed=seed)
    fused = with_gradients(case.fused(terms), case.own)
    for found, wanted in zip(fused, with_gradients(case.plain(terms), case.own), strict=True):
        torch.testing.assert_close(found, wanted)


@each_terms
def test_gradients_of_the_fused_form_of_some_entities_against_finite_differences(terms: LossTerms) -> None:
    case = drawn_case(4, 2, 9, 6, torch.float64, alike=False)

    def loss(*own: Tensor) -> Tensor:
        return case.fused(terms, Factors(*own))

    assert torch.autograd.gradcheck(loss, tuple(case.own))


@pytest.mark.parametrize("queries_in_a_block", [1, 3, 7])
def test_several_blocks_of_the_fused_form_of_some_entities_are_one(
    queries_in_a_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, terms = drawn_case(7, 2, 30, 70, torch.float32), LossTerms(0.3, 1.5)
    whole = with_gradients(case.fused(terms), case.own)
    monkeypatch.setattr(fused_loss, "_BLOCK_BYTES", queries_in_a_block * 2 * 128 * 4)
    seen = []
    rows = fused_loss._other_rows

    def recorded(scores: Tensor, *others: object) -> tuple[Tensor, Tensor]:
        seen.append(len(scores))
        return rows(scores, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fused_loss, "_other_rows", recorded)
    in_blocks = with_gradients(case.fused(terms), case.own)
    assert seen == [queries_in_a_block] * (7 // queries_in_a_block) + [7 % queries_in_a_block] * (
        7 % queries_in_a_block > 0
    )
    for found, wanted in zip(in_blocks, whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@each_terms
@pytest.mark.parametrize("shift", [-500.0, 0.0, 500.0])
def test_large_scores_of_some_stay_numbers_in_the_fused_form(terms: LossTerms, shift: float) -> None:
    """And what only fills up a tile has no part in it, however low all others are."""
    case = drawn_case(5, 2, 40, 65, torch.float32)
    large = Factors(case.own.particles * 100, case.own.table, case.own.bias + shift).fresh()
    found, wanted = (with_gradients(form(terms, large), large) for form in (case.fused, case.plain))
    assert all(one.isfinite().all() for one in found)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


def test_gradients_of_the_fused_form_of_some_entities_have_the_types_of_what_they_belong_to() -> None:
    case = drawn_case(5, 2, 40, 30, torch.float32)
    rounded = case.own.particles.detach().bfloat16()
    own = Factors(rounded, case.own.table.detach(), case.own.bias.detach()).fresh()
    reference = Factors(rounded.float(), *own[1:]).fresh()
    scores = reference.scores().detach()[:, :2]
    found, wanted = (
        torch.autograd.grad(
            max_sampled_softmax(one.particles, one.table[:30], one.bias[:30], scores, *case.of, case.negatives, 40), one
        )
        for one in (own, reference)
    )
    assert [one.dtype for one in found] == [torch.bfloat16, torch.float32, torch.float32]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-2, atol=1e-3)


def test_only_a_softmax_without_negatives_is_one_over_all_entities() -> None:
    assert Objective().over_all
    assert Objective("softmax", 0).over_all
    assert not Objective("softmax", 5).over_all
    assert not Objective("margin", 0).over_all
    assert not Objective("margin", 5).over_all
