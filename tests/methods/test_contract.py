"""What the engine asks of a method, asked of every method: adding one is a line or two in `METHODS`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Exact
from query2particles.engine.execute import execute
from query2particles.engine.half import HalfOperators
from query2particles.engine.method import Method
from query2particles.engine.plan import Plan, compile_shapes
from query2particles.engine.ranks import scoring
from query2particles.graph.edges import Edges
from query2particles.methods import betae, cone, cqd, cqd_co, emql, gqe, links, q2b, q2p, registry, tree
from query2particles.methods.baselines import FrequentTails, RelaxAndCount
from query2particles.methods.registry import Model, make, trainee_of
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
    query_ids,
)
from scoring import operators_of
from worlds import random_graph, random_query

Floats = npt.NDArray[np.floating[Any]]

ENTITIES = 14
EDGES = random_graph(11, entities=ENTITIES, relations=3, facts=60).at("train")
ROWS = 5

SETTINGS: dict[str, Any] = {
    **{f"q2p, {name}": replace(preset, dimension=8, particles=2) for name, preset in q2p.PRESETS.items()},
    "gqe": gqe.Settings(dimension=8),
    "gqe, as in its paper": gqe.Settings(dimension=8, projection="translation", residual=False, score="distance"),
    "gqe, cosine": gqe.Settings(dimension=8, score="cosine", pooling="min", bias=False),
    "q2b": q2b.Settings(dimension=8),
    "q2b, as in its code": q2b.Settings(dimension=8, context="part", bias=True),
    "betae": betae.Settings(dimension=8, hidden=12),
    "cone": cone.Settings(dimension=8, hidden=12),
    "links, complex": links.Settings(model="complex", dimension=6, entity_scale=0.5),
    "links, distmult": links.Settings(model="distmult", dimension=6, entity_scale=0.5),
    "links, transe": links.Settings(model="transe", dimension=6, entity_scale=0.5),
    "links, transe l2": links.Settings(model="transe", dimension=6, entity_scale=0.5, distance="l2"),
    "links, rotate": links.Settings(model="rotate", dimension=6, entity_scale=0.5),
    "cqd-beam": cqd.Settings(dimension=6, entity_scale=0.5, beam=ENTITIES, threshold=0.5),
    "cqd-beam, narrow": cqd.Settings(dimension=6, entity_scale=0.5, beam=3, threshold=0.5, t_norm="godel"),
    "tree": tree.Settings(dimension=6, entity_scale=0.5, beam=ENTITIES),
    "tree, narrow": tree.Settings(dimension=6, entity_scale=0.5, beam=3, t_norm="lukasiewicz"),
    "cqd-co": cqd_co.Settings(dimension=6, entity_scale=0.5, steps=5),
    "emql": emql.Settings(dimension=8, triples=12, width=64),
    "emql, no sketch": emql.Settings(dimension=8, triples=12, width=64, sketch=False),
}
"""Small ones of every trained method: a method's name, and after a comma which of its variants it is."""


def built(name: str, seed: int = 0, edges: Edges = EDGES) -> Model:
    """A method that was not trained, as it is in training."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(name.partition(",")[0], edges, SETTINGS[name])


def ready(name: str) -> Model:
    """The same, as it is asked."""
    return built(name).double().eval()


METHODS: dict[str, Callable[[], Method[Any]]] = {
    "exact": partial(Exact, EDGES),
    "frequent tails": partial(FrequentTails, EDGES),
    "relax and count": partial(RelaxAndCount, EDGES),
    **{name: partial(ready, name) for name in SETTINGS},
}


def test_every_method_of_the_registry_is_here() -> None:
    assert {name.partition(",")[0] for name in SETTINGS} == registry.METHODS.keys()


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> Method[Any]:
    return METHODS[request.param]()


def random_trees(count: int = 40) -> list[Query]:
    """Shapes of random trees, each once."""
    generator = random.Random(2)
    shapes = (abstract(random_query(generator, EDGES.entities, EDGES.relations // 2))[0] for _ in range(count))
    return list(dict.fromkeys(shapes))


EVERY_SHAPE: list[Query] = [Anchor(0), *SHAPES.values(), *random_trees()]


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
    first, second = (compile_shapes((SHAPES["2i"],), METHODS[name]().kind) for _ in range(2))
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
    assert any(len(numbers) > 1 for numbers in together.values())
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
        others: Any = method  # has those of the last three that it says it has
        calls: dict[type[Query], Callable[[], Any]] = {
            Project: lambda: method.project(first, relations, hop=1),
            Intersect: lambda: others.intersect([first, second]),
            Union: lambda: others.union([first, second]),
            Complement: lambda: others.complement(first),
        }
        before = scored(method, first).copy(), scored(method, second).copy()
        for operator in calls.keys() & method.operators:
            result = scored(method, calls[operator]()).copy()
            assert np.array_equal(scored(method, first), before[0])
            assert np.array_equal(scored(method, second), before[1])
            assert np.array_equal(scored(method, calls[operator]()), result)


def test_factors_are_the_score(method: Method[Any]) -> None:
    """Where a method offers them: score(v) = max_k ⟨p_k, e_v⟩ + b_v; of all entities, or of those named."""
    if not hasattr(method, "factors"):
        pytest.skip("offers no factors")
    shapes = supported(method)
    plan, states = run(method, shapes, [random_ids(shape) for shape in shapes])
    for root in plan.roots:
        particles, table, bias = (factor.detach().numpy() for factor in method.factors(states[root]))
        assert table.shape == (EDGES.entities, particles.shape[-1])
        scores = np.einsum("nwd,vd->nwv", particles, table).max(1) + bias
        np.testing.assert_allclose(scored(method, states[root]), scores, rtol=1e-6, atol=1e-9)
        for some in (np.array([3, 0, 3]), np.arange(2 * ROWS).reshape(ROWS, 2) % EDGES.entities):
            named = method.factors(states[root], torch.from_numpy(some))
            for found, wanted in zip(named, (particles, table[some], bias[some]), strict=True):
                np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-6, atol=1e-9)


each_trained = pytest.mark.parametrize("name", SETTINGS)


def loss_of(model: Model, shape: Query, seed: int = 0) -> Tensor:
    """Of some queries of a shape, with arbitrary answers."""
    plan = compile_shapes((shape,), model.kind)
    (state,) = execute(plan, model, [torch.from_numpy(random_ids(shape, seed=seed))])
    return nn.functional.cross_entropy(model.score(state), torch.arange(ROWS))


@each_trained
def test_gradients_are_numbers_and_reach_every_parameter(name: str) -> None:
    """In training, of what is trained; no shape needs all of the parameters, but every one is needed by some shape."""
    model = trainee_of(built(name).double().train())
    names, parameters = zip(*model.named_parameters(), strict=True)
    reached = set()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for number, shape in enumerate(supported(model)):
            loss = loss_of(model, shape, seed=number)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            reached |= {one for one, slope in zip(names, found, strict=True) if slope is not None and slope.any()}
            assert all(slope.isfinite().all() for slope in found if slope is not None)
            assert any(slope is not None for slope in found)
    assert reached == set(names)


@each_trained
def test_penalties_are_sums_over_queries(name: str) -> None:
    """Of what is trained, where it has some."""
    model: Any = trainee_of(built(name).double())
    if not hasattr(model, "penalty"):
        pytest.skip("has none")
    for shape in supported(model):
        ids, positives = torch.from_numpy(random_ids(shape)), torch.arange(ROWS)
        together = model.penalty(shape, ids, positives)
        alone = [model.penalty(shape, ids[row : row + 1], positives[row : row + 1]) for row in range(ROWS)]
        assert together.shape == ()
        assert together > 0
        torch.testing.assert_close(together, torch.stack(alone).sum())


@each_trained
def test_what_is_saved_is_all_there_is(name: str) -> None:
    """The weights of one model make another, that was started otherwise, say the same."""
    trained, other = (built(name, seed).double().eval() for seed in (0, 1))
    shapes = supported(trained)
    rows = [random_ids(shape) for shape in shapes]

    def everything(model: Model) -> Floats:
        plan, states = run(model, shapes, rows)
        return np.concatenate([scored(model, states[root]) for root in plan.roots])

    before = everything(other)
    trainee_of(other).load_state_dict(trainee_of(trained).state_dict())
    assert not np.allclose(before, everything(trained))
    np.testing.assert_array_equal(everything(other), everything(trained))


@each_trained
def test_scores_are_those_of_the_weights_of_the_moment(name: str) -> None:
    """As validation between two updates needs it. Fused optimisers, and replayed CUDA graphs, move weights without a
    new version of the tensor: whoever remembers something of the weights must not go by that.
    """
    model, other = built(name).train(), built(name, seed=1).train()
    trained = trainee_of(model)
    optimiser = torch.optim.AdamW(trained.parameters(), lr=0.1, fused=True)

    def asked(one: Model) -> Floats:
        with scoring(one):
            return Disjuncts((SHAPES["1p"],)).scores(one, random_ids(SHAPES["1p"]), EDGES.entities).numpy()

    before = asked(model)
    for number in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            torch.autograd.backward(loss_of(trained, SHAPES["1p"]))
        optimiser.step()
        trainee_of(other).load_state_dict(trained.state_dict())
        now = asked(model)
        assert not np.allclose(now, before)
        np.testing.assert_array_equal(now, asked(other))
        before = now


@each_trained
def test_first_weights_follow_from_the_seed(name: str) -> None:
    first, second, other = (trainee_of(built(name, seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@each_trained
def test_what_grows_with_the_graph_is_a_table(name: str) -> None:
    """A parameter of the method itself, not of its parts: tables decay and are kept in float32, operators are not."""
    larger = random_graph(12, entities=17, relations=5, facts=90).at("train")
    models = [trainee_of(built(name, edges=edges)) for edges in (EDGES, larger)]
    sizes = [{key: one.shape for key, one in model.named_parameters()} for model in models]
    growing = {key for key in sizes[0] if sizes[0][key] != sizes[1][key]}
    assert growing
    assert growing <= {key for key, _ in models[0].named_parameters(recurse=False)}


@each_trained
def test_operators_in_half_precision(name: str) -> None:
    """As training on CUDA runs them: scores in float32, near the others, gradients for the same parameters."""
    model = trainee_of(built(name)).eval()
    half = HalfOperators(model)
    half.refresh()

    def scores_and_used(one: Model, shape: Query) -> tuple[Tensor, set[str]]:
        (state,) = execute(compile_shapes((shape,), one.kind), one, [torch.from_numpy(random_ids(shape))])
        scores = one.score(state)
        names, parameters = zip(*one.named_parameters(), strict=True)
        slopes = torch.autograd.grad(scores.sum(), parameters, allow_unused=True)
        return scores.detach(), {name for name, slope in zip(names, slopes, strict=True) if slope is not None}

    for shape in supported(model):
        exact, used = scores_and_used(model, shape)
        found, used_too = scores_and_used(half.method, shape)
        assert found.dtype == torch.float32
        assert float((found - exact).norm()) < 0.1 * float(exact.norm())
        assert used == used_too


@each_trained
def test_unions_at_the_root(name: str) -> None:
    """Lifted there they are answered by every method; no branch is worth less for the other, and none is the first."""
    model = ready(name)
    ids = random_ids(SHAPES["2u"])
    disjuncts = Disjuncts.of(SHAPES["2u"], "dnf")
    with scoring(model):
        scores = disjuncts.scores(model, ids, EDGES.entities).numpy()
        swapped = disjuncts.scores(model, ids[:, [2, 3, 0, 1]], EDGES.entities).numpy()
        branches = [
            Disjuncts((SHAPES["1p"],)).scores(model, part, EDGES.entities).numpy() for part in (ids[:, :2], ids[:, 2:])
        ]
    np.testing.assert_allclose(scores, swapped, rtol=1e-5)
    assert (scores >= np.maximum(*branches) - 1e-5).all()
