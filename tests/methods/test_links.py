"""Link predictors against their formulas, with Python's complex numbers, one coordinate at a time in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.evaluate import evaluate
from query2particles.graph.folders import open_graph
from query2particles.methods.baselines import FrequentTails
from query2particles.methods.links import Links, Settings
from query2particles.query.algebra import SHAPES
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.selection import drawn_queries
from query2particles.workload.stream import Grounding, Part, Stream

Model: TypeAlias = Literal["complex", "distmult", "transe", "rotate"]
Vector: TypeAlias = list[complex]

ENTITIES, RELATIONS = 7, 6
HEADS, HOPS, TAILS = [0, 3, 6, 3], [5, 0, 2, 2], [1, 4, 4, 0]

VARIANTS: dict[str, Settings] = {
    **{name: Settings(model=name, dimension=5) for name in get_args(Model)},
    "transe, l2": Settings(model="transe", dimension=5, distance="l2"),
    "distmult, other strengths": Settings(model="distmult", dimension=5, n3=0.3, relation_prediction=0.2),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def model_of(settings: Settings, seed: int = 0) -> Links:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Links(ENTITIES, RELATIONS, settings).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
    return model


def entity(model: Links, number: int) -> Vector:
    return numbers(model, model.entities[number])


def relation(model: Links, number: int) -> Vector:
    if model.settings.model == "rotate":
        return [complex(math.cos(angle), math.sin(angle)) for angle in model.relations[number].tolist()]
    return numbers(model, model.relations[number])


def numbers(model: Links, parameters: Tensor) -> Vector:
    """The coordinates that a row of parameters stands for."""
    values = parameters.tolist()
    d = model.settings.dimension
    return [complex(values[j], values[d + j]) for j in range(d)] if len(values) == 2 * d else list(map(complex, values))


def phi(model: Links, head: int, relations: Sequence[int], tail: int) -> float:
    """φ(h, r, t) as printed; of several relations, of what the ones before lead to."""
    h, t = entity(model, head), entity(model, tail)
    for one in relations:
        r = relation(model, one)
        h = [a + b if model.settings.model == "transe" else a * b for a, b in zip(h, r, strict=True)]
    pairs = list(zip(h, t, strict=True))
    match model.settings.model:
        case "complex" | "distmult":
            return sum((a * b.conjugate()).real for a, b in pairs)
        case "transe" if model.settings.distance == "l2":
            return model.settings.margin - math.sqrt(sum(abs(a - b) ** 2 for a, b in pairs))
        case _:
            return model.settings.margin - sum(abs(a - b) for a, b in pairs)


@each_variant
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_scores_are_the_formula(variant: str, hops: int) -> None:
    model: Any = model_of(VARIANTS[variant])
    ids = torch.tensor([HEADS, HOPS, HOPS[::-1], HOPS]).T[:, : hops + 1]
    with torch.no_grad():
        (state,) = execute(compile_shapes((SHAPES[f"{hops}p"],), model.kind), model, [ids])
        scores = model.score(state)
    expected = [[phi(model, h, chain, t) for t in range(ENTITIES)] for h, *chain in ids.tolist()]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


@each_variant
def test_only_inner_products_have_factors(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    assert hasattr(model, "factors") == (model.settings.model in ("complex", "distmult"))


def test_the_factors_of_a_copy_are_its_own() -> None:
    """Training in less precision works on a copy."""
    model = model_of(Settings(dimension=3))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.entities.zero_()
    _, table, _ = copied.factors(copied.anchor(torch.tensor([0])))
    assert not table.any()


@each_variant
def test_the_penalty_is_both_formulas(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    cubes, surprise = 0.0, 0.0
    for h, r, t in zip(HEADS, HOPS, TAILS, strict=True):
        vectors = entity(model, h), relation(model, r), entity(model, t)
        cubes += sum(abs(number) ** 3 for vector in vectors for number in vector)
        scores = [phi(model, h, [one], t) for one in range(RELATIONS)]
        surprise += math.log(sum(map(math.exp, scores))) - scores[r]
    found = model.penalty(SHAPES["1p"], torch.tensor([HEADS, HOPS]).T, torch.tensor(TAILS))
    settings = model.settings
    assert float(found.detach()) == pytest.approx(settings.n3 * cubes + settings.relation_prediction * surprise)


@each_variant
def test_of_a_longer_chain_the_penalty_is_n3_of_all_its_parts(variant: str) -> None:
    model = model_of(VARIANTS[variant])
    parts = [*(entity(model, one) for one in HEADS + TAILS), *(relation(model, one) for one in HOPS + HOPS[::-1])]
    cubes = sum(abs(number) ** 3 for vector in parts for number in vector)
    ids = torch.tensor([HEADS, HOPS, HOPS[::-1]]).T
    found = model.penalty(SHAPES["2p"], ids, torch.tensor(TAILS))
    assert float(found.detach()) == pytest.approx(model.settings.n3 * cubes)


def test_without_strengths_there_is_no_penalty() -> None:
    model = model_of(Settings(dimension=3, n3=0.0, relation_prediction=0.0))
    found = model.penalty(SHAPES["1p"], torch.tensor([HEADS, HOPS]).T, torch.tensor(TAILS))
    assert float(found) == 0
    assert found.shape == ()


@each_variant
def test_gradients_reach_every_parameter(variant: str) -> None:
    """Those of the scores and those of the penalty are what differences say."""
    model = model_of(VARIANTS[variant])
    ids, positives = torch.tensor([HEADS, HOPS]).T, torch.tensor(TAILS)

    def loss(entities: Tensor, relations: Tensor) -> Tensor:
        found = torch.func.functional_call(
            _Loss(model), {"model.entities": entities, "model.relations": relations}, (ids, positives)
        )
        return torch.as_tensor(found)

    tables = [parameter.detach().clone().requires_grad_() for parameter in (model.entities, model.relations)]
    assert torch.autograd.gradcheck(loss, tables)
    for slope in torch.autograd.grad(loss(*tables), tables):
        assert (slope.abs().sum(1) > 0).all()


class _Loss(torch.nn.Module):
    """Scores and penalty of one-hop queries, as one number."""

    def __init__(self, model: Links) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positives: Tensor) -> Tensor:
        scores = self.model.score(self.model.project(self.model.anchor(ids[:, 0]), ids[:, 1]))
        return scores.logsumexp(1).sum() + self.model.penalty(SHAPES["1p"], ids, positives)


@each_variant
def test_gradients_are_numbers_where_distances_are_zero(variant: str) -> None:
    """The head of a chain without hops is at distance zero from itself."""
    model = model_of(VARIANTS[variant])
    (slope,) = torch.autograd.grad(model.score(model.anchor(torch.arange(ENTITIES))).sum(), [model.entities])
    assert slope.isfinite().all()


@each_variant
def test_a_model_starts_as_its_settings_say(variant: str) -> None:
    settings = VARIANTS[variant]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Links(2000, 2000, settings)
        torch.manual_seed(3)
        assert torch.equal(Links(2000, 2000, settings).entities, model.entities)
    assert float(model.entities.detach().std()) == pytest.approx(settings.entity_scale, rel=0.05)
    spread = math.pi / math.sqrt(3) if settings.model == "rotate" else settings.entity_scale
    assert float(model.relations.detach().std()) == pytest.approx(spread, rel=0.05)


def test_operators_compile_whole() -> None:
    """Nothing in them needs a look at values."""
    for settings in VARIANTS.values():
        model = model_of(settings)
        ids = torch.tensor(HEADS), torch.tensor(HOPS)
        project = torch.compile(
            lambda h, r, model=model: model.project(model.anchor(h), r), backend="eager", fullgraph=True
        )
        assert torch.equal(project(*ids), model.project(model.anchor(ids[0]), ids[1]))


def test_it_learns_links() -> None:
    """With a hundred steps of a few hundred edges each, on the embedded graph."""
    graph = open_graph("atlas")
    edges = graph.at("train")
    generator = torch.Generator().manual_seed(0)
    stream = Stream(DeviceEdges.of(edges, torch.device("cpu")), [Part(SHAPES["1p"], 256, Grounding.EDGE)], generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = Links(edges.entities, edges.relations, Settings(dimension=24, entity_scale=0.2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.0)
    for _ in range(100):
        (drawn,) = stream.draw()
        state = model.project(model.anchor(drawn.ids[:, 0]), drawn.ids[:, 1])
        loss = functional.cross_entropy(model.score(state), drawn.positives, reduction="sum")
        optimiser.zero_grad()
        ((loss + model.penalty(SHAPES["1p"], drawn.ids, drawn.positives)) / 256).backward()
        optimiser.step()
    batch, labels = drawn_queries(graph, "valid", shapes=[SHAPES["1p"]], most=200, seed=0)
    mrr, frequent = (evaluate(one, batch, labels).average("epfo")["mrr"] for one in (model, FrequentTails(edges)))
    assert mrr > frequent + 0.05
