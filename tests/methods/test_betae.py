"""BetaE against its equations, spelled out one query and one distribution at a time, and against other calculations."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.execute import execute
from query2particles.engine.fused_loss import max_softmax
from query2particles.engine.loss import softmax_loss
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UsageError
from query2particles.methods.betae import BetaE, Settings
from query2particles.query.algebra import SHAPES, Anchor, Complement, Intersect, Project, Query, Union
from query2particles.query.rewrite import de_morgan
from scoring import Transcription, scattered, scores_of
from worlds import by_shape, queries, random_query

Vector: TypeAlias = list[float]


class Beta(NamedTuple):
    """One distribution."""

    alpha: float
    beta: float


Distributions: TypeAlias = list[Beta]

ENTITIES, STORED_RELATIONS, DIMENSION, HIDDEN = 9, 3, 4, 6
VARIANTS = {
    "default": Settings(),
    "paper": Settings(positive="clamp", residual=False),
    "bounded, no residual": Settings(residual=False, layers=1, minimum=0.2),
    "clamped, residual": Settings(positive="clamp", layers=3, margin=24.0),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def fresh_model(start: Settings, *, dimension: int = DIMENSION) -> BetaE:
    """A small model as it is before training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BetaE(ENTITIES, 2 * STORED_RELATIONS, replace(start, dimension=dimension, hidden=HIDDEN, dropout=0.0))


def model_of(start: Settings, *, seed: int = 0) -> BetaE:
    """A small model in float64, with numbers as large as those of a trained one: some parameters are at their bound."""
    return scattered(fresh_model(start), scale=0.8, seed=seed)


class Equations(Transcription):
    """The operators as printed, and what each option changes in them; lists of numbers, no batches."""

    def __init__(self, model: BetaE) -> None:
        self.settings = model.settings
        self.weights = {name: value.double().tolist() for name, value in model.state_dict().items()}

    def positive(self, x: float) -> float:
        if self.settings.positive == "clamp":
            return max(1 + x, self.settings.minimum)
        bound = math.log(1 / self.settings.minimum)
        return math.exp(bound * math.tanh(x / bound))

    def free(self, parameter: float) -> float:
        return parameter - 1 if self.settings.positive == "clamp" else math.log(parameter)

    def distributions(self, x: Vector) -> Distributions:
        """All α come first, then all β."""
        d = self.settings.dimension
        return [Beta(self.positive(x[j]), self.positive(x[d + j])) for j in range(d)]

    def seen(self, state: Distributions) -> Vector:
        return [self.free(one.alpha) for one in state] + [self.free(one.beta) for one in state]

    def mlp(self, name: str, x: Vector, layers: int) -> Vector:
        for number in range(layers + 1):
            place = f"{name}.first" if number == 0 else f"{name}.others.{2 * number - 1}"
            matrix, shift = self.weights[f"{place}.weight"], self.weights[f"{place}.bias"]
            x = [sum(w * one for w, one in zip(row, x, strict=True)) + b for row, b in zip(matrix, shift, strict=True)]
            if number < layers:
                x = [max(one, 0.0) for one in x]
        return x

    def anchor(self, entity: int) -> Distributions:
        return self.distributions(self.weights["entities"][entity])

    def project(self, state: Distributions, relation: int) -> Distributions:
        """MLP(S, r), which is added to S + r where there is a residual."""
        s, r = self.seen(state), self.weights["relations"][relation]
        result = self.mlp("projection", s + r, self.settings.layers)
        if self.settings.residual:
            result = [sum(three) for three in zip(s, r, result, strict=True)]
        return self.distributions(result)

    def shares(self, several: Sequence[Distributions]) -> list[Vector]:
        """The weights w of an intersection: a softmax over the branches, for each distribution."""
        logits = [self.mlp("attention", self.seen(state), 1) for state in several]
        totals = [sum(math.exp(logit[j]) for logit in logits) for j in range(self.settings.dimension)]
        return [[math.exp(one) / total for one, total in zip(logit, totals, strict=True)] for logit in logits]

    def intersect(self, several: Sequence[Distributions]) -> Distributions:
        shares, found = self.shares(several), []
        for j in range(self.settings.dimension):
            parts = [(share[j], state[j]) for share, state in zip(shares, several, strict=True)]
            found.append(Beta(sum(w * one.alpha for w, one in parts), sum(w * one.beta for w, one in parts)))
        return found

    def complement(self, state: Distributions) -> Distributions:
        return [Beta(1 / one.alpha, 1 / one.beta) for one in state]

    def score(self, state: Distributions, entity: int) -> float:
        pairs = zip(self.anchor(entity), state, strict=True)
        return self.settings.margin - sum(divergence(own, one) for own, one in pairs)


def divergence(p: Beta, q: Beta) -> float:
    """KL(p ‖ q), as the paper's appendix has it."""
    found = (
        special.betaln(q.alpha, q.beta)
        - special.betaln(p.alpha, p.beta)
        + (p.alpha - q.alpha) * special.digamma(p.alpha)
        + (p.beta - q.beta) * special.digamma(p.beta)
        + (q.alpha - p.alpha + q.beta - p.beta) * special.digamma(p.alpha + p.beta)
    )
    return float(found)


def states(count: int, n: int = 4, seed: int = 1) -> list[Tensor]:
    """Random distributions (n, 2, d), with parameters from 0.1 to 10."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, n, 2, DIMENSION)
    return list(torch.exp(2.3 * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)))


def distributions_of(state: Tensor) -> list[Distributions]:
    return [[Beta(*pair) for pair in one.T.tolist()] for one in state]


def assert_equal(found: Tensor, expected: Sequence[Distributions]) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64).transpose(1, 2))


# Operators.


@each_variant
def test_anchor(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    entities = [3, 0, 3, 8]
    assert_equal(model.anchor(torch.tensor(entities)), [Equations(model).anchor(entity) for entity in entities])


@each_variant
@pytest.mark.parametrize("hop", [0, 1])
def test_projection(variant: str, hop: int) -> None:
    model, relations = model_of(VARIANTS[variant]), [0, 5, 3, 5]
    (state,) = states(1)
    pairs = zip(distributions_of(state), relations, strict=True)
    expected = [Equations(model).project(one, relation) for one, relation in pairs]
    assert_equal(model.project(state, torch.tensor(relations), hop=hop), expected)


@each_variant
@pytest.mark.parametrize("count", [2, 3, 4])
def test_intersection(variant: str, count: int) -> None:
    model, several = model_of(VARIANTS[variant]), states(count)
    expected = [Equations(model).intersect(one) for one in zip(*map(distributions_of, several), strict=True)]
    assert_equal(model.intersect(several), expected)


def test_complement() -> None:
    model = model_of(Settings())
    (state,) = states(1)
    assert_equal(model.complement(state), [Equations(model).complement(one) for one in distributions_of(state)])


@each_variant
def test_score(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    (state,) = states(1)
    expected = [[Equations(model).score(one, v) for v in range(ENTITIES)] for one in distributions_of(state)]
    torch.testing.assert_close(model.score(state).detach(), torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(queries(ENTITIES, STORED_RELATIONS).map(de_morgan), min_size=1, max_size=4),
    st.sampled_from(sorted(VARIANTS)),
    st.integers(0, 9),
)
def test_mixed_shapes_in_one_plan(several: list[Query], variant: str, seed: int) -> None:
    """Any trees without unions: one batch = the equations."""
    model = model_of(VARIANTS[variant], seed=seed)
    equations = Equations(model)
    literal = [[equations.score(equations.answer(query), entity) for entity in range(ENTITIES)] for query in several]
    torch.testing.assert_close(scores_of(model, several), torch.tensor(literal, dtype=torch.float64), rtol=1e-8, atol=0)


# What the score means.


parameters = st.floats(0.3, 8.0)
betas = st.builds(Beta, parameters, parameters)


@settings(max_examples=25, deadline=None)
@given(betas, betas)
def test_a_score_is_the_margin_less_an_integral(own: Beta, one: Beta) -> None:
    """The divergence of an entity from a query, by its definition: ∫ p ln(p / q)."""
    model = fresh_model(Settings(), dimension=1).double().eval()

    def from_zero_to_half(own: Beta, one: Beta) -> float:
        """By x = t⁴, which takes away the pole that a density may have at zero."""
        p, q = stats.beta(*own), stats.beta(*one)

        def weighed(t: float) -> float:
            x = t**4
            return float(4 * t**3 * p.pdf(x) * (p.logpdf(x) - q.logpdf(x)))

        return float(integrate.quad(weighed, 0, 0.5**0.25, limit=200)[0])

    swapped = Beta(*reversed(own)), Beta(*reversed(one))  # x is now what 1 − x was
    integral = from_zero_to_half(own, one) + from_zero_to_half(*swapped)
    bound = -math.log(model.settings.minimum)
    with torch.no_grad():
        model.entities[0] = bound * torch.atanh(torch.tensor(own, dtype=torch.float64).log() / bound)
        score = model.score(torch.tensor(one, dtype=torch.float64)[None, :, None], torch.tensor([0]))
    assert float(score) == pytest.approx(model.settings.margin - integral, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(0, 999))
def test_no_score_is_above_the_margin_and_only_an_entity_itself_has_it(variant: str, seed: int) -> None:
    """As no divergence is below 0, and that of a distribution from itself is 0."""
    model = model_of(VARIANTS[variant], seed=seed)
    scores = model.score(model.anchor(torch.arange(ENTITIES))).detach()
    margin = torch.tensor(model.settings.margin, dtype=torch.float64)
    torch.testing.assert_close(scores.diagonal(), margin.expand(ENTITIES), rtol=0, atol=1e-9)
    others = scores[~torch.eye(ENTITIES, dtype=torch.bool)]
    assert others.max() < margin - 1e-3
    (state,) = states(1, seed=seed)
    assert model.score(state).max() <= margin


def test_scores_in_float32_are_those_in_float64() -> None:
    """As large as it is used, with parameters all over their range: errors are tiny beside how scores differ."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BetaE(500, 2, Settings(entity_scale=1.5, hidden=8)).eval()
    with torch.no_grad():
        state = model.project(model.anchor(torch.arange(64)), torch.arange(64) % 2)
        single = model.score(state)
        exact = model.double().score(state.double())
    spread = float(exact.std(1).mean())
    assert spread > 10
    assert float((single - exact).abs().max()) < 1e-5 * spread


def test_the_fast_softmax_is_the_slow_one() -> None:
    """What a query adds to all its scores rides along as a coordinate, so that the loss from factors is the same."""
    model = model_of(Settings())
    (state,) = states(1)
    targets, weights = torch.tensor([3, 1, 0, 7]), torch.ones(4, dtype=torch.float64)
    fast = max_softmax(*model.factors(state), targets, targets, weights)
    torch.testing.assert_close(fast, softmax_loss(model.score(state), targets, targets, weights))


# Invariants of the operators.


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999))
def test_the_complement_of_a_complement_is_the_set(seed: int) -> None:
    model = model_of(Settings())
    (state,) = states(1, seed=seed)
    torch.testing.assert_close(model.complement(model.complement(state)), state)


@settings(max_examples=60, deadline=None)
@given(queries(ENTITIES, STORED_RELATIONS).map(de_morgan), st.integers(0, 99))
def test_parameters_stay_between_the_minimum_and_its_reciprocal(query: Query, seed: int) -> None:
    """Whatever is asked, however large the weights: complements and means cannot leave the bounds either."""
    model = model_of(VARIANTS["bounded, no residual"], seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    shape, ((_, row),) = by_shape([query])
    (state,) = execute(compile_shapes(tuple(shape), model.kind), model, [torch.tensor(rows) for rows in shape.values()])
    minimum = model.settings.minimum
    assert state[row].min() >= minimum - 1e-12
    assert state[row].max() <= 1 / minimum + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(2, 4), st.integers(0, 999))
def test_an_intersection_is_a_product_of_densities(variant: str, count: int, seed: int) -> None:
    """Up to a factor, that of its branches' densities to the powers of their weights."""
    model, several = model_of(VARIANTS[variant], seed=seed), states(count, n=1, seed=seed)
    (result,) = distributions_of(model.intersect(several).detach())
    operands = [distributions_of(state)[0] for state in several]
    shares = Equations(model).shares(operands)
    for j, one in enumerate(result):
        excess = []
        for x in (0.1, 0.4, 0.8, 0.95):
            parts = [share[j] * stats.beta.logpdf(x, *state[j]) for share, state in zip(shares, operands, strict=True)]
            excess.append(stats.beta.logpdf(x, *one) - sum(parts))
        assert excess == pytest.approx([excess[0]] * len(excess), abs=1e-7)


@each_variant
def test_the_intersection_of_a_set_with_itself_is_the_set(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    (state,) = states(1)
    torch.testing.assert_close(model.intersect([state] * 3).detach(), state)


@each_variant
def test_the_order_of_branches_does_not_matter(variant: str) -> None:
    model, several = model_of(VARIANTS[variant]), states(3)
    expected = model.intersect(several)
    for order in permutations(several):
        torch.testing.assert_close(model.intersect(order), expected)


@pytest.mark.parametrize("name", ["2u", "up"])
def test_unions_are_the_best_branch_or_a_complement(name: str) -> None:
    """Lifted to the root, a union scores as its best branch; by De Morgan it is the complement of an intersection."""
    model, equations = model_of(Settings()), Equations(model_of(Settings()))
    ids = torch.randint(ENTITIES, (5, 5 if name == "up" else 4), generator=torch.Generator().manual_seed(2)) % 6
    for unions in ("dnf", "de-morgan"):
        disjuncts = Disjuncts.of(SHAPES[name], unions)
        with torch.inference_mode():
            found = disjuncts.scores(model, ids.numpy(), ENTITIES)
        for row, own in enumerate(ids.tolist()):
            parts = [equations.answer(replaced(shape, own)) for shape in disjuncts.shapes]
            best = [max(equations.score(part, entity) for part in parts) for entity in range(ENTITIES)]
            torch.testing.assert_close(
                found[row].double(), torch.tensor(best, dtype=torch.float64), rtol=1e-5, atol=1e-5
            )


def replaced(shape: Query, ids: Sequence[int]) -> Query:
    """The query of a shape with these ids."""
    match shape:
        case Anchor(position):
            return Anchor(ids[position])
        case Project(inner, position):
            return Project(replaced(inner, ids), ids[position])
        case Intersect(several):
            return Intersect(tuple(replaced(one, ids) for one in several))
        case Union(several):
            return Union(tuple(replaced(one, ids) for one in several))
        case Complement(inner):
            return Complement(replaced(inner, ids))


# Training.


@each_variant
def test_gradients_are_those_of_the_operators(variant: str) -> None:
    """Against finite differences, for queries and for entities."""
    model = model_of(VARIANTS[variant])
    first, second = (state.requires_grad_() for state in states(2, n=2))
    relations = torch.tensor([1, 4])

    def run(first: Tensor, second: Tensor, entities: Tensor) -> Tensor:
        both = model.intersect([model.project(first, relations, hop=1), model.complement(second)])
        scores: Tensor = torch.func.functional_call(_Scores(model), {"model.entities": entities}, (both,))
        return scores

    assert torch.autograd.gradcheck(run, (first, second, model.entities.detach().clone().requires_grad_()))


class _Scores(torch.nn.Module):
    """A model's score as a module's call, so that its table can be replaced."""

    def __init__(self, model: BetaE) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: Tensor) -> Tensor:
        return self.model.score(state)


def test_numbers_beyond_all_bounds_do_no_harm() -> None:
    """Scores and gradients stay finite: tanh flattens, it does not overflow."""
    model = model_of(Settings())
    with torch.no_grad():
        model.entities.mul_(1000)
    model.float()
    generator = random.Random(0)
    several = [de_morgan(random_query(generator, ENTITIES, STORED_RELATIONS)) for _ in range(20)]
    batch, _ = by_shape(several)
    plan = compile_shapes(tuple(batch), model.kind)
    found = execute(plan, model, [torch.tensor(rows) for rows in batch.values()])
    loss = sum(torch.logsumexp(model.score(state), 1).sum() for state in found)
    assert isinstance(loss, Tensor)
    assert loss.isfinite()
    for slope in torch.autograd.grad(loss, list(model.parameters())):
        assert slope.isfinite().all()


def test_dropout_is_for_training() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BetaE(ENTITIES, 2 * STORED_RELATIONS, Settings(dimension=64, hidden=8, dropout=0.5))
        state, relations = model.anchor(torch.tensor([1, 2])), torch.tensor([0, 1])
        assert not torch.equal(model.project(state, relations), model.project(state, relations))
        model.eval()
        assert torch.equal(model.project(state, relations), model.project(state, relations))


def test_a_model_starts_as_its_settings_say() -> None:
    """Around uniform distributions, with scores that differ by about one."""
    start = Settings(hidden=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BetaE(300, 40, start).eval()
    for table in (model.entities, model.relations):
        assert float(table.detach().std()) == pytest.approx(start.entity_scale, rel=0.05)
    with torch.no_grad():
        scores = model.score(model.project(model.anchor(torch.arange(30)), torch.arange(30)))
    assert 0.3 < float(scores.std(1).mean()) < 3


def test_what_is_remembered_of_entities_is_forgotten_when_they_change() -> None:
    model = BetaE(12, 4, Settings(dimension=3, hidden=4)).double().eval()
    states = model.anchor(torch.tensor([1, 2])).detach()
    for _ in range(2):
        with torch.no_grad():
            found, again = model.score(states), model.score(states)
            alone = model.score(states, torch.arange(12))
            torch.testing.assert_close(found, alone)
            assert torch.equal(found, again)
            model.entities.add_(0.1)
    with torch.inference_mode():
        torch.testing.assert_close(model.score(states), model.score(states, torch.arange(12)))
    slopes = torch.autograd.grad(model.score(states).sum(), model.entities)
    assert bool(slopes[0].abs().sum() > 0)


@pytest.mark.parametrize("minimum", [0.0, 1.0, 3.0])
def test_a_minimum_that_leaves_no_range_is_refused(minimum: float) -> None:
    with pytest.raises(UsageError, match="minimum"):
        BetaE(2, 2, Settings(minimum=minimum))
