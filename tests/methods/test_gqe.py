"""GQE against its equations, spelled out one query and one coordinate at a time in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.execute import execute
from query2particles.engine.half import HalfOperators
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UsageError
from query2particles.methods.gqe import GQE, Settings
from query2particles.query.algebra import SHAPES, Anchor, Project, Query, Union
from scoring import Transcription, conjunctive_queries, scattered, scores_of

Vector: TypeAlias = list[float]

ENTITIES, STORED_RELATIONS = 11, 3


def variants() -> Iterator[tuple[str, Settings]]:
    """The defaults, and the defaults with any one option at any other value; other blocks; the papers' variant."""
    start = Settings()
    yield "default", start
    for option, hint in get_type_hints(Settings).items():
        values: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ()
        for value in (False, True) if hint is bool else values:
            if value != getattr(start, option):
                yield f"{option}={value}", replace(start, **{option: value})
    for block in (1, 3, 6):
        yield f"block={block}", replace(start, block=block)
    yield "paper", replace(start, projection="translation", score="distance", residual=False, bias=False)


VARIANTS = dict(variants())
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def fresh_model(start: Settings, *, dimension: int = 6, dropout: float = 0.0) -> GQE:
    """A small model, as it is before training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GQE(ENTITIES, 2 * STORED_RELATIONS, replace(start, dimension=dimension, dropout=dropout))


def model_of(start: Settings, *, seed: int = 0) -> GQE:
    """A small model for evaluation in float64. All its numbers are random, those that start at zero or one too."""
    return scattered(fresh_model(start), scale=0.6, seed=seed)


class Equations(Transcription):
    """The operators as the papers print them, and what each option changes in them; no batches, no tensors."""

    def __init__(self, model: GQE) -> None:
        self.settings = model.settings
        self.weights: dict[str, Any] = {name: value.tolist() for name, value in model.state_dict().items()}

    def anchor(self, entity: int) -> Vector:
        found: Vector = self.weights["entities"][entity]
        return found

    def project(self, q: Vector, relation: int) -> Vector:
        """Either q + r, or R q with a matrix R that is zero outside its blocks."""
        r: Vector = self.weights["relations"][relation]
        if self.settings.projection == "translation":
            return [one + shift for one, shift in zip(q, r, strict=True)]
        d, b = len(q), self.settings.block
        matrix = [[0.0] * d for _ in range(d)]
        for place, value in enumerate(r):  # block after block, each row after row
            number, within = divmod(place, b * b)
            row, column = divmod(within, b)
            matrix[number * b + row][number * b + column] = value
        return linear(matrix, q)

    def intersect(self, several: Sequence[Vector]) -> Vector:
        """W Ψ(NN(q⁽ⁱ⁾)), on top of the mean branch if `residual`."""
        w, coordinates = self.weights, range(len(several[0]))
        through = []
        for q in several:
            hidden = linear(w["intersection.inner.inner.weight"], q, w["intersection.inner.inner.bias"])
            active = [relu(one) if self.settings.activation == "relu" else gelu(one) for one in hidden]
            through.append(linear(w["intersection.inner.outer.weight"], active, w["intersection.inner.outer.bias"]))
        pool = min if self.settings.pooling == "min" else mean
        pooled = linear(w["intersection.outer.weight"], [pool([one[j] for one in through]) for j in coordinates])
        if not self.settings.residual:
            return pooled
        return [mean([q[j] for q in several]) + pooled[j] for j in coordinates]

    def score(self, q: Vector, entity: int) -> float:
        e: Vector = self.weights["entities"][entity]
        bias: float = self.weights["bias"][entity] if self.settings.bias else 0.0
        match self.settings.score:
            case "dot":
                return inner(q, e) + bias
            case "cosine":
                return self.settings.sharpness * inner(q, e) / math.sqrt(inner(q, q) * inner(e, e)) + bias
            case "distance":
                return self.settings.margin - sum(abs(x - y) for x, y in zip(q, e, strict=True)) + bias

    def scores(self, query: Query) -> Vector:
        return [self.score(self.answer(query), entity) for entity in range(ENTITIES)]


def linear(matrix: Sequence[Vector], q: Vector, shift: Vector | None = None) -> Vector:
    return [inner(row, q) + (shift[number] if shift else 0.0) for number, row in enumerate(matrix)]


def inner(x: Vector, y: Vector) -> float:
    return sum(one * other for one, other in zip(x, y, strict=True))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def relu(x: float) -> float:
    return max(x, 0.0)


def gelu(x: float) -> float:
    """That is x Φ(x), with the distribution function Φ of a standard normal variable."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def states(count: int, n: int = 4, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 6, generator=generator, dtype=torch.float64) for _ in range(count)]


def assert_equal(found: Tensor, expected: Sequence[Vector]) -> None:
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
    expected = [Equations(model).project(q, relation) for q, relation in zip(state.tolist(), relations, strict=True)]
    assert_equal(model.project(state, torch.tensor(relations), hop=hop), expected)


def test_one_block_is_a_full_matrix() -> None:
    model = model_of(replace(Settings(), block=6))
    (state,), relations = states(1), torch.tensor([0, 5, 3, 5])
    matrices = model.relations.detach().view(-1, 6, 6)
    for q, relation, found in zip(state, relations, model.project(state, relations), strict=True):
        torch.testing.assert_close(found.detach(), matrices[relation] @ q)


@each_variant
@pytest.mark.parametrize("count", [2, 3, 5])
def test_intersection(variant: str, count: int) -> None:
    model = model_of(VARIANTS[variant])
    several = states(count)
    expected = [Equations(model).intersect(one) for one in zip(*(state.tolist() for state in several), strict=True)]
    assert_equal(model.intersect(several), expected)


@each_variant
def test_score(variant: str) -> None:
    """Of all entities, of a few for all queries, and of a few for each."""
    model = model_of(VARIANTS[variant])
    (state,), equations = states(1), Equations(model)
    expected = [[equations.score(q, v) for v in range(ENTITIES)] for q in state.tolist()]
    assert_equal(model.score(state), expected)
    assert_equal(model.score(state, torch.tensor([7, 0, 7])), [[row[7], row[0], row[7]] for row in expected])
    own = torch.tensor([[0, 1], [2, 2], [10, 3], [4, 9]])
    of_own = [[row[v] for v in some] for row, some in zip(expected, own.tolist(), strict=True)]
    assert_equal(model.score(state, own), of_own)


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
def test_only_inner_products_have_factors(variant: str) -> None:
    """Where there are factors, the engine computes scores as products of matrices; it may look for them in a copy."""
    model, (state,) = model_of(VARIANTS[variant]), states(1)
    assert hasattr(model, "factors") == (model.settings.score != "distance")
    if hasattr(model, "factors"):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.entities.mul_(-3)
        for one in (model, other):
            particles, table, bias = one.factors(state)
            assert particles.shape == (4, 1, 6)
            torch.testing.assert_close((particles @ table.T)[:, 0] + bias, one.score(state))


@each_variant
def test_only_the_network_is_rounded(variant: str) -> None:
    """Operators in bfloat16, as on CUDA: vectors stay float32, and only intersections are a little different."""
    model = fresh_model(VARIANTS[variant], dimension=12)
    half = HalfOperators(model)
    half.refresh()
    entities, relations = torch.tensor([1, 2, 3]), torch.tensor([0, 5, 2])
    first, second = (one.project(one.anchor(entities), relations) for one in (model, half.method))
    assert torch.equal(first, second)
    exact, rounded = (one.intersect([first, one.anchor(entities)]) for one in (model, half.method))
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
        table = name in ("entities", "relations", "bias")
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


# How it starts, and what it draws.


def test_the_same_seed_gives_the_same_start() -> None:
    first, second = (fresh_model(Settings()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("projection", get_args(get_type_hints(Settings)["projection"]))
def test_relations_start_by_doing_next_to_nothing(projection: Literal["bilinear", "translation"]) -> None:
    start = replace(Settings(), projection=projection, entity_scale=0.01)
    model, (state,) = fresh_model(start).double(), states(1)
    moved = model.project(state, torch.tensor([0, 1, 2, 5]))
    torch.testing.assert_close(moved.detach(), state, rtol=0, atol=0.2)
    assert not torch.equal(moved, state)


def test_embeddings_start_as_wide_as_the_settings_say() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GQE(500, 40, Settings(dimension=64, block=2, entity_scale=0.07))
    identity = torch.eye(2).flatten().repeat(32)
    assert float(model.entities.detach().std()) == pytest.approx(0.07, rel=0.05)
    assert float((model.relations.detach() - identity).std()) == pytest.approx(0.07, rel=0.05)


def test_dropout_is_for_training() -> None:
    model = fresh_model(Settings(), dimension=32, dropout=0.5)
    state, relations = model.anchor(torch.tensor([1, 2])), torch.tensor([0, 1])
    operators: list[Callable[[], Tensor]] = [
        lambda: model.project(state, relations),
        lambda: model.intersect([state, state]),
    ]
    with torch.random.fork_rng():
        for operator in operators:
            torch.manual_seed(1)
            model.train()
            assert not torch.equal(operator(), operator())
            model.eval()
            before = torch.get_rng_state()
            assert torch.equal(operator(), operator())
            assert torch.equal(torch.get_rng_state(), before)


def test_blocks_have_to_fill_the_matrix() -> None:
    with pytest.raises(UsageError, match="block"):
        GQE(5, 2, Settings(dimension=10, block=4))
    GQE(5, 2, Settings(dimension=10, block=4, projection="translation"))
