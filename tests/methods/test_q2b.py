"""Query2Box against its equations, spelled out one query and one coordinate at a time in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.execute import execute
from query2particles.engine.half import HalfOperators
from query2particles.engine.plan import compile_shapes
from query2particles.methods.q2b import Q2B, Settings
from query2particles.query.algebra import SHAPES, Anchor, Project, Query, Union
from scoring import Transcription, conjunctive_queries, scattered, scores_of

Vector: TypeAlias = list[float]

ENTITIES, STORED_RELATIONS, DIMENSION = 11, 3, 5

VARIANTS = {
    "default": Settings(),
    "paper": replace(Settings(), context="box", bias=False),
    "released": replace(Settings(), context="part", bias=False),
    "bias": replace(Settings(), bias=True),
    "no bias": replace(Settings(), bias=False),
    "wide inside": replace(Settings(), inside=0.7, margin=5.0),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


class Box(NamedTuple):
    centre: Vector
    offset: Vector


def fresh_model(start: Settings, *, dimension: int = DIMENSION) -> Q2B:
    """A small model, as it is before training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Q2B(ENTITIES, 2 * STORED_RELATIONS, replace(start, dimension=dimension))


def model_of(start: Settings, *, seed: int = 0) -> Q2B:
    """A small model for evaluation in float64. All its numbers are random, those that start at zero too."""
    return scattered(fresh_model(start), scale=0.6, seed=seed)


class Equations(Transcription):
    """The operators as the paper prints them, and what each option changes in them; no batches, no tensors."""

    def __init__(self, model: Q2B) -> None:
        self.settings = model.settings
        self.weights: dict[str, Any] = {name: value.tolist() for name, value in model.state_dict().items()}

    def anchor(self, entity: int) -> Box:
        """A box without extent."""
        point: Vector = self.weights["entities"][entity]
        return Box(point, [0.0] * len(point))

    def project(self, box: Box, relation: int) -> Box:
        """Centres and offsets add up; those of relations are not negative."""
        c, o = self.weights["centres"][relation], self.weights["offsets"][relation]
        return Box(
            [one + shift for one, shift in zip(box.centre, c, strict=True)],
            [one + abs(more) for one, more in zip(box.offset, o, strict=True)],
        )

    def intersect(self, several: Sequence[Box]) -> Box:
        """Attention over the centres, coordinate by coordinate; the smallest offset, shrunk."""
        w = self.weights
        logits, through = [], []
        for box in several:
            whole = [*box.centre, *box.offset]
            for_centre, for_offset = (whole, whole) if self.settings.context == "box" else box
            hidden = self.hidden("intersection.attention.0", for_centre)
            logits.append(linear(w["intersection.attention.2.weight"], hidden, w["intersection.attention.2.bias"]))
            through.append(self.hidden("intersection.each.0", for_offset))
        mean = [sum(values) / len(several) for values in zip(*through, strict=True)]
        deep_sets = linear(w["intersection.together.weight"], mean, w["intersection.together.bias"])
        centre, offset = [], []
        for j, shrinking in enumerate(deep_sets):
            weights = [math.exp(one[j]) for one in logits]
            parts = [a / sum(weights) * box.centre[j] for a, box in zip(weights, several, strict=True)]
            centre.append(sum(parts))
            offset.append(min(box.offset[j] for box in several) / (1 + math.exp(-shrinking)))
        return Box(centre, offset)

    def hidden(self, name: str, seen: Vector) -> Vector:
        return [max(one, 0.0) for one in linear(self.weights[f"{name}.weight"], seen, self.weights[f"{name}.bias"])]

    def score(self, box: Box, entity: int) -> float:
        """γ − outside − α inside, by the corners of the box as the paper has it."""
        outside = inside = 0.0
        for e, c, o in zip(self.weights["entities"][entity], *box, strict=True):
            outside += max(e - (c + o), 0.0) + max((c - o) - e, 0.0)
            inside += abs(c - min(c + o, max(c - o, e)))
        bias: float = self.weights["bias"][entity] if self.settings.bias else 0.0
        return self.settings.margin - outside - self.settings.inside * inside + bias

    def scores(self, query: Query) -> Vector:
        return [self.score(self.answer(query), entity) for entity in range(ENTITIES)]


def linear(matrix: Sequence[Vector], q: Vector, shift: Vector) -> Vector:
    return [sum(x * y for x, y in zip(row, q, strict=True)) + b for row, b in zip(matrix, shift, strict=True)]


def states(count: int, n: int = 4, seed: int = 1) -> list[Tensor]:
    """Random boxes."""
    generator = torch.Generator().manual_seed(seed)
    several = [torch.randn(n, 2, DIMENSION, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [torch.stack([one[:, 0], one[:, 1].abs()], 1) for one in several]


def boxes_of(state: Tensor) -> list[Box]:
    return [Box(*box) for box in state.tolist()]


def assert_equal(found: Tensor, expected: Sequence[Any]) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


# Each operator, for every variant.


@each_variant
def test_anchor(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    assert_equal(model.anchor(torch.tensor([4, 0, 4, 10])), [Equations(model).anchor(v) for v in (4, 0, 4, 10)])


@each_variant
@pytest.mark.parametrize("hop", [0, 1])
def test_projection(variant: str, hop: int) -> None:
    model = model_of(VARIANTS[variant])
    (state,), relations = states(1), [0, 5, 3, 5]
    expected = [Equations(model).project(p, relation) for p, relation in zip(boxes_of(state), relations, strict=True)]
    assert_equal(model.project(state, torch.tensor(relations), hop=hop), expected)


@each_variant
@pytest.mark.parametrize("count", [2, 3, 5])
def test_intersection(variant: str, count: int) -> None:
    model, several = model_of(VARIANTS[variant]), states(count)
    expected = [Equations(model).intersect(one) for one in zip(*map(boxes_of, several), strict=True)]
    assert_equal(model.intersect(several), expected)


@each_variant
def test_score(variant: str) -> None:
    """Of all entities, of a few for all queries, and of a few for each."""
    model = model_of(VARIANTS[variant])
    (state,), equations = states(1), Equations(model)
    expected = [[equations.score(p, v) for v in range(ENTITIES)] for p in boxes_of(state)]
    assert_equal(model.score(state), expected)
    assert_equal(model.score(state, torch.tensor([7, 0, 7])), [[row[7], row[0], row[7]] for row in expected])
    own = torch.tensor([[0, 1], [2, 2], [10, 3], [4, 9]])
    of_own = [[row[v] for v in some] for row, some in zip(expected, own.tolist(), strict=True)]
    assert_equal(model.score(state, own), of_own)


# What holds of boxes.


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(2, 4), st.integers(0, 10**6))
def test_an_intersection_is_no_larger_and_lies_between(variant: str, count: int, seed: int) -> None:
    """Along every axis: at most as wide as the narrowest branch, and its centre between theirs."""
    model, several = model_of(VARIANTS[variant], seed=seed), states(count, seed=seed)
    c, o = model.intersect(several).unbind(1)
    centres, offsets = torch.stack(several).unbind(2)  # (N, n, d)
    assert (o >= 0).all()
    assert (o <= offsets.amin(0)).all()
    assert (c >= centres.amin(0) - 1e-12).all()
    assert (c <= centres.amax(0) + 1e-12).all()


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(VARIANTS)), st.integers(2, 4), st.integers(0, 10**6))
def test_an_intersection_of_concentric_boxes_lies_inside_them(variant: str, count: int, seed: int) -> None:
    model, several = model_of(VARIANTS[variant], seed=seed), states(count, seed=seed)
    several = [torch.stack([several[0][:, 0], one[:, 1]], 1) for one in several]
    result = model.intersect(several)
    for one in several:
        assert (upper(result) <= upper(one) + 1e-12).all()
        assert (lower(result) >= lower(one) - 1e-12).all()


def upper(state: Tensor) -> Tensor:
    return state.sum(1)


def lower(state: Tensor) -> Tensor:
    return state[:, 0] - state[:, 1]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_boxes_grow_along_a_path(hops: int, seed: int) -> None:
    """From a point on, and offsets never turn negative."""
    model = model_of(Settings(), seed=seed)
    state = model.anchor(torch.arange(ENTITIES))
    assert (state[:, 1] == 0).all()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(hops):
        before = state
        state = model.project(state, torch.randint(2 * STORED_RELATIONS, (ENTITIES,), generator=generator))
        assert (state[:, 1] >= before[:, 1]).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_inside_a_box_there_is_no_way_outside(seed: int) -> None:
    """With α = 0, all points of a box are at distance 0, and no others."""
    model = model_of(replace(Settings(), inside=0.0, bias=False), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    ((box,),) = states(1, n=1, seed=seed)
    within = box[0] + box[1] * (2 * torch.rand(ENTITIES, DIMENSION, generator=generator, dtype=torch.float64) - 1)
    with torch.no_grad():
        model.entities.copy_(within)
        beyond = torch.arange(ENTITIES) % 2 == 1
        model.entities[beyond, 2] = (box[0] + 1.25 * box[1])[2]
    distance = (model.settings.margin - model.score(box[None])[0]).detach()
    expected = torch.where(beyond, 0.25 * box[1, 2], 0.0)
    torch.testing.assert_close(distance, expected, rtol=1e-9, atol=1e-9)


def test_a_point_is_at_its_own_box() -> None:
    """The distance of a one-element set is that of two points, and its own element is the best answer."""
    model = model_of(replace(Settings(), bias=False))
    scores = model.score(model.anchor(torch.arange(ENTITIES)))
    apart = torch.cdist(model.entities, model.entities, p=1)
    torch.testing.assert_close(scores, model.settings.margin - apart)
    assert torch.equal(scores.argmax(1), torch.arange(ENTITIES))


# Whole queries.


@each_variant
def test_mixed_shapes_in_one_plan(variant: str) -> None:
    """One batch = each query alone = the equations."""
    model, several = model_of(VARIANTS[variant]), conjunctive_queries(2, ENTITIES, STORED_RELATIONS)
    together = scores_of(model, several)
    alone = torch.cat([scores_of(model, [query]) for query in several])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    assert_equal(together, list(map(Equations(model).scores, several)))


@pytest.mark.parametrize("name", ["2u", "up"])
def test_a_union_scores_as_its_best_branch(name: str) -> None:
    model, ids = model_of(Settings()), torch.tensor([[3, 1, 5, 2, 4][: 4 + (name == "up")]])
    assert Union not in model.operators
    with torch.no_grad():
        found = Disjuncts.of(SHAPES[name], "dnf").scores(model, ids.numpy(), ENTITIES)
    first, second = (Project(Anchor(entity), relation) for entity, relation in ((3, 1), (5, 2)))
    both: list[Query] = [first, second] if name == "2u" else [Project(first, 4), Project(second, 4)]
    expected = [max(pair) for pair in zip(*map(Equations(model).scores, both), strict=True)]
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-5, atol=1e-5)


@each_variant
def test_the_order_of_branches_does_not_matter(variant: str) -> None:
    model, several = model_of(VARIANTS[variant]), states(3)
    first, *others = (model.intersect(order) for order in permutations(several))
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-9, atol=1e-9)


# What the engine builds on.


@each_variant
def test_only_the_networks_are_rounded(variant: str) -> None:
    """Operators in bfloat16, as on CUDA: boxes stay float32, and only intersections are a little different."""
    model = fresh_model(VARIANTS[variant], dimension=12)
    half = HalfOperators(model)
    half.refresh()
    entities, relations = torch.tensor([1, 2, 3]), torch.tensor([0, 5, 2])
    first, second = (one.project(one.anchor(entities), relations) for one in (model, half.method))
    assert torch.equal(first, second)
    exact, rounded = (one.intersect([first, one.project(first, relations)]) for one in (model, half.method))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("trained", [False, True], ids=["fresh", "random"])
@each_variant
def test_gradients_reach_every_parameter(variant: str, trained: bool) -> None:
    model = model_of(VARIANTS[variant]) if trained else fresh_model(VARIANTS[variant])
    shapes = [SHAPES[name] for name in ("1p", "2p", "3p", "2i", "3i")]
    plan = compile_shapes(tuple(shapes), model.kind)
    generator = torch.Generator().manual_seed(5)
    rows, limit = 60, min(ENTITIES, 2 * STORED_RELATIONS)
    ids = [torch.randint(limit, (rows, number), generator=generator) for number in (2, 3, 4, 4, 6)]
    positives = torch.arange(rows).remainder(ENTITIES).repeat(len(shapes))
    scores = torch.cat([model.score(state) for state in execute(plan, model, ids)])
    torch.autograd.backward(torch.nn.functional.cross_entropy(scores, positives))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        table = name in ("entities", "centres", "offsets", "bias")
        for number, part in enumerate(parameter.grad if table else [parameter.grad]):
            assert part.abs().max() > 0, f"{name}, part {number}"


@each_variant
def test_gradients_are_those_of_the_operators(variant: str) -> None:
    """Against finite differences."""
    model, relations = model_of(VARIANTS[variant]), torch.tensor([1, 4])
    first, second = (state.requires_grad_() for state in states(2, n=2))

    def run(first: Tensor, second: Tensor) -> Tensor:
        return model.score(model.project(model.intersect([first, second]), relations))

    assert torch.autograd.gradcheck(run, (first, second))


# How it starts.


def test_the_same_seed_gives_the_same_start() -> None:
    first, second = (fresh_model(Settings()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_embeddings_start_as_wide_as_the_settings_say() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Q2B(500, 40, Settings(dimension=64, entity_scale=0.07))
    for table in (model.entities, model.centres, model.offsets):
        assert float(table.detach().std()) == pytest.approx(0.07, rel=0.05)
