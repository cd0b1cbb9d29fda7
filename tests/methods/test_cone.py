"""ConE against its equations, spelled out one query and one cone at a time, and against the geometry of sectors."""

from __future__ import annotations

import cmath
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
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UsageError
from query2particles.methods.cone import ConE, Settings
from query2particles.query.algebra import Query
from query2particles.query.rewrite import de_morgan
from scoring import Transcription, scattered, scores_of
from worlds import by_shape, queries, random_query

PI = math.pi
Vector: TypeAlias = list[float]


class Cone(NamedTuple):
    """One sector."""

    axis: float
    aperture: float


Cones: TypeAlias = list[Cone]

ENTITIES, STORED_RELATIONS, DIMENSION, HIDDEN = 9, 3, 4, 6
VARIANTS = {
    "default": Settings(),
    "paper": Settings(residual=False, aperture=PI),
    "another": Settings(layers=1, inside=0.5, margin=9.0, aperture=1.0),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)
seeds = st.integers(0, 9999)


def fresh_model(start: Settings) -> ConE:
    """A small model as it is before training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ConE(ENTITIES, 2 * STORED_RELATIONS, replace(start, dimension=DIMENSION, hidden=HIDDEN, dropout=0.0))


def model_of(start: Settings, *, seed: int = 0) -> ConE:
    """A small model in float64, with axes and apertures all over their range."""
    return scattered(fresh_model(start), scale=0.6, seed=seed)


class Equations(Transcription):
    """The operators as printed, and what a residual changes in them; lists of numbers, no batches."""

    def __init__(self, model: ConE) -> None:
        self.settings = model.settings
        self.weights = {name: value.double().tolist() for name, value in model.state_dict().items()}

    def linear(self, place: str, x: Vector) -> Vector:
        matrix, shift = self.weights[f"{place}.weight"], self.weights[f"{place}.bias"]
        return [sum(w * one for w, one in zip(row, x, strict=True)) + b for row, b in zip(matrix, shift, strict=True)]

    def mlp(self, name: str, x: Vector, layers: int) -> Vector:
        x = self.linear(f"{name}.first", x)
        for number in range(layers):
            x = self.linear(f"{name}.others.{2 * number + 1}", relu(x))
        return x

    def angles(self, entity: int) -> Vector:
        return [PI * math.tanh(x) for x in self.weights["entities"][entity]]

    def anchor(self, entity: int) -> Cones:
        return [Cone(angle, 0.0) for angle in self.angles(entity)]

    def project(self, state: Cones, relation: int) -> Cones:
        """g(MLP(cone + relation)); with a residual the axis is turned rather than made."""
        d = self.settings.dimension
        r = [PI * math.tanh(x) for x in self.weights["relations"][relation]]
        axes = [one.axis + r[j] for j, one in enumerate(state)]
        apertures = [one.aperture + r[d + j] for j, one in enumerate(state)]
        found = self.mlp("projection", axes + apertures, self.settings.layers)
        start, result = math.atanh(self.settings.aperture / PI - 1), []
        for j in range(d):
            turn = axes[j] if self.settings.residual else 0.0
            result.append(Cone(wrapped(turn + PI * math.tanh(found[j])), PI + PI * math.tanh(2 * found[d + j] + start)))
        return result

    def intersect(self, several: Sequence[Cones]) -> Cones:
        """SemanticAverage and CardMin."""
        seen = [
            [one.axis - one.aperture / 2 for one in state] + [one.axis + one.aperture / 2 for one in state]
            for state in several
        ]
        logits = [self.mlp("intersection.attention", p, 1) for p in seen]
        inner = [relu(self.linear("intersection.each", p)) for p in seen]
        deep_sets = self.linear(
            "intersection.together", [sum(column) / len(inner) for column in zip(*inner, strict=True)]
        )
        result = []
        for j in range(self.settings.dimension):
            total = sum(math.exp(logit[j]) for logit in logits)
            mean = sum(
                math.exp(logit[j]) / total * cmath.exp(1j * state[j].axis)
                for logit, state in zip(logits, several, strict=True)
            )
            smallest = min(state[j].aperture for state in several)
            result.append(Cone(cmath.phase(mean), smallest / (1 + math.exp(-deep_sets[j]))))
        return result

    def complement(self, state: Cones) -> Cones:
        return [Cone(one.axis - PI if one.axis >= 0 else one.axis + PI, 2 * PI - one.aperture) for one in state]

    def score(self, state: Cones, entity: int) -> float:
        """γ − m (outside + λ inside), by the distances to both bounds and to the axis."""
        outside, inside = 0.0, 0.0
        for angle, one in zip(self.angles(entity), state, strict=True):
            lower, upper = one.axis - one.aperture / 2, one.axis + one.aperture / 2
            to_axis, base = abs(math.sin((angle - one.axis) / 2)), abs(math.sin(one.aperture / 4))
            if to_axis >= base:
                outside += min(abs(math.sin((angle - lower) / 2)), abs(math.sin((angle - upper) / 2)))
            inside += min(to_axis, base)
        return self.settings.margin - float(self.weights["nearness.modulus"]) * (
            outside + self.settings.inside * inside
        )


def relu(x: Vector) -> Vector:
    return [max(one, 0.0) for one in x]


def wrapped(angle: float) -> float:
    """The same direction in [−π, π)."""
    while angle >= PI:
        angle -= 2 * PI
    while angle < -PI:
        angle += 2 * PI
    return angle


def states(count: int, n: int = 4, seed: int = 1) -> list[Tensor]:
    """Random cones (n, 2, d), of all directions and apertures."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand((count, n, 2, DIMENSION), generator=generator, dtype=torch.float64)
    return list(2 * PI * uniform - torch.tensor([[PI], [0]]))


def cones_of(state: Tensor) -> list[Cones]:
    return [[Cone(*pair) for pair in one.T.tolist()] for one in state]


def assert_equal(found: Tensor, expected: Sequence[Cones]) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64).transpose(1, 2))


def distance(state: Tensor, angles: Tensor, inside: float) -> float:
    """The way outside and λ times that inside, of one query (1, 2, d) and one entity (d,), from the model's score."""
    model = model_of(Settings(inside=inside))
    with torch.no_grad():
        model.entities[0] = torch.atanh(torch.tensor([wrapped(x) / PI for x in angles.tolist()], dtype=torch.float64))
        model.nearness.modulus.fill_(1)
        return float(model.settings.margin - model.score(state, torch.tensor([0])))


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
    expected = [
        Equations(model).project(one, relation) for one, relation in zip(cones_of(state), relations, strict=True)
    ]
    assert_equal(model.project(state, torch.tensor(relations), hop=hop), expected)


@each_variant
@pytest.mark.parametrize("count", [2, 3, 4])
def test_intersection(variant: str, count: int) -> None:
    model, several = model_of(VARIANTS[variant]), states(count)
    expected = [Equations(model).intersect(one) for one in zip(*map(cones_of, several), strict=True)]
    assert_equal(model.intersect(several), expected)


def test_complement() -> None:
    model = model_of(Settings())
    (state,) = states(1, n=20)
    assert_equal(model.complement(state), [Equations(model).complement(one) for one in cones_of(state)])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), seeds)
def test_score(variant: str, seed: int) -> None:
    """The distances as the engine sums them are the paper's minima over both bounds."""
    model = model_of(VARIANTS[variant], seed=seed)
    (state,) = states(1, seed=seed)
    expected = [[Equations(model).score(one, v) for v in range(ENTITIES)] for one in cones_of(state)]
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
    torch.testing.assert_close(
        scores_of(model, several), torch.tensor(literal, dtype=torch.float64), rtol=1e-7, atol=1e-7
    )


# The geometry.


def turned(state: Tensor, turns: float) -> Tensor:
    return state + torch.tensor([[2 * PI * turns], [0]], dtype=state.dtype)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_the_complement_of_a_complement_is_the_set(seed: int) -> None:
    model = model_of(Settings())
    (state,) = states(1, seed=seed)
    torch.testing.assert_close(model.complement(model.complement(state)), state)
    torch.testing.assert_close(model.complement(turned(state, 1)), model.complement(state))


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_cone_and_its_complement_share_the_circle(seed: int) -> None:
    """Along every coordinate an entity is inside one and outside the other, as far as the nearer of two bounds is."""
    state, other = states(2, n=1, seed=seed)
    angles = other[0, 0]
    axis, aperture = state[0]
    to_bounds = [torch.sin((angles - bound) / 2).abs() for bound in (axis - aperture / 2, axis + aperture / 2)]
    ways = [distance(one, angles, inside=0.0) for one in (state, model_of(Settings()).complement(state))]
    assert sum(ways) == pytest.approx(float(torch.minimum(*to_bounds).sum()))


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(-1, 1))
def test_inside_a_cone_only_the_way_to_the_axis_counts(seed: int, share: float) -> None:
    """There is no way outside up to the bounds, and there is one beyond."""
    (state,) = states(1, n=1, seed=seed)
    axis, aperture = state[0]
    within = axis + share * aperture / 2
    assert distance(state, within, inside=0.0) == pytest.approx(0, abs=1e-9)
    assert distance(state, within, inside=0.5) == pytest.approx(
        float(0.5 * torch.sin((share * aperture / 4).abs()).sum())
    )
    assert distance(state, axis + aperture / 2 + 0.1 * (2 * PI - aperture), inside=0.0) > 1e-3


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(-3, 3))
def test_whole_turns_change_no_score(seed: int, turns: int) -> None:
    model = model_of(Settings(), seed=seed)
    (state,) = states(1, seed=seed)
    torch.testing.assert_close(model.score(turned(state, turns)), model.score(state))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(2, 4), seeds)
def test_an_intersection_is_no_wider_than_its_narrowest_branch(variant: str, count: int, seed: int) -> None:
    model, several = model_of(VARIANTS[variant], seed=seed), states(count, seed=seed)
    narrowest = torch.stack([state[:, 1] for state in several]).amin(0)
    assert (model.intersect(several)[:, 1] <= narrowest).all()


@each_variant
def test_an_intersection_keeps_an_axis_that_its_branches_share(variant: str) -> None:
    model, several = model_of(VARIANTS[variant]), states(3)
    shared = [torch.stack([several[0][:, 0], state[:, 1]], 1) for state in several]
    torch.testing.assert_close(model.intersect(shared)[:, 0], several[0][:, 0])


@each_variant
def test_the_order_of_branches_does_not_matter(variant: str) -> None:
    model, several = model_of(VARIANTS[variant]), states(3)
    expected = model.intersect(several)
    for order in permutations(several):
        torch.testing.assert_close(model.intersect(order), expected)


@settings(max_examples=60, deadline=None)
@given(queries(ENTITIES, STORED_RELATIONS).map(de_morgan), st.sampled_from(sorted(VARIANTS)), st.integers(0, 99))
def test_axes_and_apertures_stay_in_their_range(query: Query, variant: str, seed: int) -> None:
    model = model_of(VARIANTS[variant], seed=seed)
    batch, _ = by_shape([query])
    ids = [torch.tensor(rows) for rows in batch.values()]
    (state,) = execute(compile_shapes(tuple(batch), model.kind), model, ids)
    axis, aperture = state.detach().unbind(1)
    assert axis.abs().max() <= PI + 1e-12
    assert aperture.min() >= 0
    assert aperture.max() <= 2 * PI


# Training.


@each_variant
def test_gradients_are_those_of_the_operators(variant: str) -> None:
    """Against finite differences."""
    model = model_of(VARIANTS[variant])
    first, second = (state.requires_grad_() for state in states(2, n=2))
    relations = torch.tensor([1, 4])

    def run(first: Tensor, second: Tensor) -> Tensor:
        both = model.intersect([model.project(first, relations, hop=1), model.complement(second)])
        return model.score(both)

    assert torch.autograd.gradcheck(run, (first, second))


def test_axes_that_cancel_have_no_wild_gradients() -> None:
    """A set and its complement point in opposite directions: with equal weights, their mean is no direction at all."""
    model = fresh_model(Settings()).double()
    with torch.no_grad():
        for parameter in model.intersection.attention.parameters():
            parameter.zero_()
    (state,) = (one.requires_grad_() for one in states(1))
    result = model.intersect([state, model.complement(state)])
    (slope,) = torch.autograd.grad(result.sum(), state)
    assert result.isfinite().all()
    assert slope.abs().max() < 1e4


def test_scores_in_float32_are_those_in_float64() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ConE(300, 2, Settings(entity_scale=0.7, hidden=8)).eval()
    with torch.no_grad():
        state = model.project(model.anchor(torch.arange(64)), torch.arange(64) % 2)
        single = model.score(state)
        exact = model.double().score(state.double())
    assert float((single - exact).abs().max()) < 1e-5 * float(exact.std(1).mean())


def test_gradients_are_finite_however_large_the_numbers() -> None:
    model = model_of(Settings()).float()
    with torch.no_grad():
        model.entities.mul_(1000)
    generator = random.Random(0)
    several = [de_morgan(random_query(generator, ENTITIES, STORED_RELATIONS)) for _ in range(20)]
    batch, _ = by_shape(several)
    found = execute(compile_shapes(tuple(batch), model.kind), model, [torch.tensor(rows) for rows in batch.values()])
    loss = torch.cat([torch.logsumexp(model.score(state), 1) for state in found]).sum()
    assert loss.isfinite()
    for slope in torch.autograd.grad(loss, list(model.parameters())):
        assert slope.isfinite().all()


def test_a_model_starts_as_its_settings_say() -> None:
    """With narrow cones, whose scores differ by less than one."""
    start = Settings(hidden=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ConE(300, 40, start).eval()
    for table in (model.entities, model.relations):
        assert float(table.detach().std()) == pytest.approx(start.entity_scale, rel=0.05)
    with torch.no_grad():
        state = model.project(model.anchor(torch.arange(30)), torch.arange(30))
        scores = model.score(state)
    assert float(state[:, 1].median()) == pytest.approx(start.aperture, rel=0.5)
    assert 0.1 < float(scores.std(1).mean()) < 1
    assert float(model.nearness.modulus.detach()) == pytest.approx(start.modulus / 20)


@pytest.mark.parametrize("aperture", [0.0, 2 * PI, 7.0])
def test_an_aperture_that_no_cone_can_start_with_is_refused(aperture: float) -> None:
    with pytest.raises(UsageError, match="aperture"):
        ConE(2, 2, Settings(aperture=aperture))
