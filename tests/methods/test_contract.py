"""What the engine asks of a method, asked of every method: adding one is one line in `METHODS`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from query2particles.engine.exact import Exact
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.plan import Plan, compile_shapes
from query2particles.graph.edges import Edges
from query2particles.methods.baselines import FrequentTails, RelaxAndCount
from query2particles.methods.q2p import PRESETS, Q2P
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    anchor_positions,
    branches,
    query_ids,
)
from worlds import random_graph, random_query

Floats = npt.NDArray[np.floating[Any]]

EDGES = random_graph(11, entities=14, relations=3, facts=60).at("train")
ROWS = 5


def particles(preset: str) -> Callable[[Edges], Method[Any]]:
    def build(edges: Edges) -> Method[Any]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            small = replace(PRESETS[preset], dimension=8, particles=2)
            return Q2P(edges.entities, edges.relations, small).double().eval()

    return build


METHODS: dict[str, Callable[[Edges], Method[Any]]] = {
    "exact": Exact,
    "frequent tails": FrequentTails,
    "relax and count": RelaxAndCount,
    **{f"q2p, {preset}": particles(preset) for preset in PRESETS},
}


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> Method[Any]:
    return METHODS[request.param](EDGES)


def random_trees(count: int = 40) -> list[Query]:
    """Shapes of random trees, each once."""
    generator = random.Random(2)
    shapes = (abstract(random_query(generator, EDGES.entities, EDGES.relations // 2))[0] for _ in range(count))
    return list(dict.fromkeys(shapes))


EVERY_SHAPE: list[Query] = [Anchor(0), *SHAPES.values(), *random_trees()]


def operators_of(query: Query) -> set[type[Query]]:
    return {type(query)}.union(*map(operators_of, branches(query)))


def supported(method: Method[Any]) -> list[Query]:
    return [shape for shape in EVERY_SHAPE if operators_of(shape) <= method.operators]


def ids_of(method: Method[Any], rows: Any) -> Any:
    """Ids as the method takes them: torch tensors where its parameters are, or numpy arrays."""
    array = np.asarray(rows)
    return torch.from_numpy(array) if isinstance(method, nn.Module) else array


def random_ids(shape: Query, rows: int = ROWS, seed: int = 0) -> npt.NDArray[np.int64]:
    limits = np.full(len(tuple(query_ids(shape))), EDGES.relations)
    limits[anchor_positions(shape)] = EDGES.entities
    return np.random.default_rng(seed).integers(limits, size=(rows, len(limits)))


def run(method: Method[Any], shapes: Sequence[Query], rows: Sequence[Any]) -> tuple[Plan, list[Any]]:
    """Every node's state, with the plan."""
    plan = compile_shapes(tuple(shapes), method.kind)
    with torch.no_grad():
        return plan, execute(plan, method, [ids_of(method, one) for one in rows], keep=True)


def scored(method: Method[Any], state: Any, entities: Any = None) -> Floats:
    with torch.no_grad():
        found = method.score(state, None if entities is None else ids_of(method, entities))
    return np.asarray(found)


def test_operators_are_known(method: Method[Any]) -> None:
    assert {Anchor, Project} <= set(method.operators) <= {Anchor, Project, Intersect, Union, Complement}


@pytest.mark.parametrize("name", METHODS)
def test_plans_serve_all_instances_of_a_method(name: str) -> None:
    """They are remembered by the function `kind`, which therefore belongs to the class."""
    first, second = (compile_shapes((SHAPES["2i"],), METHODS[name](EDGES).kind) for _ in range(2))
    assert first is second


def test_every_shape_gives_a_number_for_every_entity(method: Method[Any]) -> None:
    shapes = supported(method)
    plan, states = run(method, shapes, [random_ids(shape) for shape in shapes])
    for root in plan.roots:
        scores = scored(method, states[root])
        assert scores.shape == (ROWS, EDGES.entities)
        assert np.isfinite(scores).all()


def test_batched_is_alone(method: Method[Any]) -> None:
    """All shapes in one plan, against each query in a plan of its own."""
    shapes = supported(method)
    rows = [random_ids(shape, seed=number) for number, shape in enumerate(shapes)]
    plan, states = run(method, shapes, rows)
    for shape, ids, root in zip(shapes, rows, plan.roots, strict=True):
        together = scored(method, states[root])
        for number in range(ROWS):
            own_plan, own_states = run(method, [shape], [ids[number : number + 1]])
            alone = scored(method, own_states[own_plan.roots[0]])
            np.testing.assert_allclose(alone[0], together[number], rtol=1e-6, atol=1e-6)


def test_states_of_one_kind_stack_and_split(method: Method[Any]) -> None:
    """`split` is the inverse of `stack`, whatever operators the states come from."""
    shapes = supported(method)
    plan, states = run(method, shapes, [random_ids(shape, rows=1 + n % 3) for n, shape in enumerate(shapes)])
    together: dict[Any, list[int]] = {}
    for number, node in enumerate(plan.nodes):
        together.setdefault(node.kind, []).append(number)
    assert any(len({plan.nodes[number].operator for number in numbers}) > 1 for numbers in together.values())
    for numbers in together.values():
        scores = [scored(method, states[number]) for number in numbers]
        stacked = method.stack([states[number] for number in numbers])
        np.testing.assert_allclose(scored(method, stacked), np.concatenate(scores), rtol=1e-6, atol=1e-6)
        parts = method.split(stacked, [len(one) for one in scores])
        assert len(parts) == len(scores)
        for part, expected in zip(parts, scores, strict=True):
            np.testing.assert_allclose(scored(method, part), expected, rtol=1e-6, atol=1e-6)


def test_some_entities_are_columns_of_all(method: Method[Any]) -> None:
    shapes = supported(method)
    plan, states = run(method, shapes, [random_ids(shape) for shape in shapes])
    common = np.array([3, 0, 13, 3])
    own = np.random.default_rng(1).integers(EDGES.entities, size=(ROWS, 6))
    for root in plan.roots:
        scores = scored(method, states[root])
        of_common, of_own = scored(method, states[root], common), scored(method, states[root], own)
        np.testing.assert_allclose(of_common, scores[:, common], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(of_own, np.take_along_axis(scores, own, 1), rtol=1e-6, atol=1e-9)


def test_operators_leave_their_operands_alone(method: Method[Any]) -> None:
    """The engine hands states on without copies, and keeps some: for evidence, and for the other branches."""
    relations = ids_of(method, [0, 1, 2, 3, 4])
    with torch.no_grad():
        first, second = (
            method.project(method.anchor(ids_of(method, [0, 1, 2, 3, start])), relations, hop=0) for start in (4, 7)
        )
        calls: dict[type[Query], Callable[[], Any]] = {
            Project: lambda: method.project(first, relations, hop=1),
            Intersect: lambda: method.intersect([first, second]),
            Union: lambda: method.union([first, second]),
            Complement: lambda: method.complement(first),
        }
        before = scored(method, first).copy(), scored(method, second).copy()
        for operator in calls.keys() & method.operators:
            result = scored(method, calls[operator]()).copy()
            assert np.array_equal(scored(method, first), before[0])
            assert np.array_equal(scored(method, second), before[1])
            assert np.array_equal(scored(method, calls[operator]()), result)


def test_factors_are_the_score(method: Method[Any]) -> None:
    """Where a method offers them: score(v) = max_k ⟨p_k, e_v⟩ + b_v."""
    if not hasattr(method, "factors"):
        pytest.skip("offers no factors")
    shapes = supported(method)
    plan, states = run(method, shapes, [random_ids(shape) for shape in shapes])
    for root in plan.roots:
        particles, table, bias = (factor.detach().numpy() for factor in method.factors(states[root]))
        assert table.shape == (EDGES.entities, particles.shape[-1])
        scores = np.einsum("nwd,vd->nwv", particles, table).max(1) + bias
        np.testing.assert_allclose(scored(method, states[root]), scores, rtol=1e-6, atol=1e-9)


def test_gradients_are_numbers(method: Method[Any]) -> None:
    """Of modules, in training: whatever the shape, no parameter gets a NaN."""
    if not isinstance(method, nn.Module):
        pytest.skip("learns nothing")
    parameters = list(method.parameters())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method.train()
        for shape in supported(method):
            plan = compile_shapes((shape,), method.kind)
            (state,) = execute(plan, method, [torch.from_numpy(random_ids(shape))])
            loss = nn.functional.cross_entropy(method.score(state), torch.arange(ROWS))
            found = [one for one in torch.autograd.grad(loss, parameters, allow_unused=True) if one is not None]
            assert found
            assert all(one.isfinite().all() for one in found)
        method.eval()
