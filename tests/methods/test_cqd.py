"""Complex query decomposition against brute force: all entities in place of all variables, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings

from formulas import (
    ENTITIES,
    NORMS,
    STORED_RELATIONS,
    Formula,
    check_assignments,
    inner_variables,
    nodes,
    random_queries,
    scores_of,
    with_random_weights,
)
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import scoring
from query2particles.errors import UnsupportedError
from query2particles.methods import cqd, cqd_co, search
from query2particles.methods.cqd import CQDBeam
from query2particles.methods.cqd_co import CQDCO
from query2particles.methods.search import Decomposition
from query2particles.methods.truth import LinkTruth, NormName
from query2particles.query.algebra import (
    EPFO,
    SHAPES,
    Anchor,
    Project,
    Query,
    branches,
    ground,
    query_ids,
)
from worlds import queries

Floats: TypeAlias = npt.NDArray[np.float64]
Vector: TypeAlias = npt.NDArray[np.complex128]
Join: TypeAlias = Callable[[float, float], float]

each_norm = pytest.mark.parametrize("norm", NORMS)
each_shape = pytest.mark.parametrize("name", SHAPES)
CONJUNCTIVE = [name for name in EPFO if "u" not in name]


def beam(
    norm: NormName = "product",
    truth: LinkTruth = "sigmoid",
    *,
    width: int = ENTITIES,
    model: str = "complex",
    seed: int = 0,
) -> CQDBeam:
    chosen: Any = model
    options = cqd.Settings(model=chosen, dimension=3, t_norm=norm, truth=truth, threshold=0.7, beam=width)
    found: CQDBeam = with_random_weights(CQDBeam(ENTITIES, 2 * STORED_RELATIONS, options).double().eval(), seed)
    return found


def continuous(norm: NormName = "product", *, steps: int = 4, seed: int = 0, **options: Any) -> CQDCO:
    chosen = cqd_co.Settings(
        **{"dimension": 2, "threshold": 0.7, "step_size": 0.1, **options}, t_norm=norm, steps=steps
    )
    found: CQDCO = with_random_weights(CQDCO(ENTITIES, 2 * STORED_RELATIONS, chosen).double().eval(), seed)
    return found


def link(model: CQDBeam, u: int, r: int, v: int) -> float:
    """p(u, r, v)"""
    d = model.settings.dimension
    e, w = (table.detach().numpy() for table in (model.links.entities, model.links.relations))
    h, relation = (row[:d] + 1j * row[d:] for row in (e[u], w[r]))
    scores = [float(np.real(h * relation * np.conj(row[:d] + 1j * row[d:])).sum()) for row in e]
    match model.settings.truth:
        case "sigmoid":
            return 1 / (1 + math.exp(model.settings.threshold - scores[v]))
        case "softmax":
            return math.exp(scores[v]) / sum(map(math.exp, scores))
        case "min-max":
            return (scores[v] - min(scores)) / (max(scores) - min(scores))


def formula_of(model: CQDBeam) -> Formula:
    return Formula(partial(link, model), model.settings.t_norm, ENTITIES, model.settings.beam)


def truths(model: CQDBeam, several: Sequence[Query]) -> list[list[float]]:
    return [[formula_of(model).truth(query, v) for v in range(ENTITIES)] for query in several]


@each_norm
@each_shape
def test_with_every_entity_followed_the_beam_is_brute_force(name: str, norm: NormName) -> None:
    model, several = beam(norm), random_queries(SHAPES[name])
    np.testing.assert_allclose(np.exp(scores_of(model, several)), truths(model, several), atol=1e-9)


@each_shape
@pytest.mark.parametrize("how", ["softmax", "min-max"])
def test_other_truths_of_links(name: str, how: LinkTruth) -> None:
    model, several = beam("product", how), random_queries(SHAPES[name])
    np.testing.assert_allclose(np.exp(scores_of(model, several)), truths(model, several), atol=1e-9)


@each_norm
@pytest.mark.parametrize("name", EPFO)
def test_an_answer_is_as_true_as_the_best_assignment_of_all(name: str, norm: NormName) -> None:
    model, (query,) = beam(norm), random_queries(SHAPES[name], count=1, seed=5)
    expected = [formula_of(model).best_of_all(query, v) for v in range(ENTITIES)]
    np.testing.assert_allclose(np.exp(scores_of(model, [query])[0]), expected, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(query=queries(ENTITIES, STORED_RELATIONS))
def test_any_tree_is_answered_as_defined(query: Query) -> None:
    np.testing.assert_allclose(np.exp(scores_of(TREES, [query])), truths(TREES, [query]), atol=1e-9)


TREES = beam(seed=3)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("name", ["2p", "3p", "ip", "up", "inp"])
def test_a_narrow_beam_follows_the_best(name: str, width: int) -> None:
    model, several = beam(width=width), random_queries(SHAPES[name])
    np.testing.assert_allclose(np.exp(scores_of(model, several)), truths(model, several), atol=1e-9)


def test_a_single_entity_is_followed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first hop costs one row of links a query, whatever the beam."""
    model, rows = beam(), []
    score = model.links.score
    monkeypatch.setattr(model.links, "score", lambda state: rows.append(len(state)) or score(state))  # type: ignore[func-returns-value]
    scores_of(model, random_queries(SHAPES["2p"], count=3))
    assert rows == [3, 3 * ENTITIES]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    several = random_queries(SHAPES["3p"], count=7)
    whole = scores_of(beam(), several)
    monkeypatch.setattr(search, "_BLOCK_BYTES", {"cpu": 2 * ENTITIES**2 * 8})
    np.testing.assert_allclose(scores_of(beam(), several), whole, rtol=1e-12)
    monkeypatch.setattr(search, "_BLOCK_BYTES", {"cpu": 1})
    np.testing.assert_allclose(scores_of(beam(), several), whole, rtol=1e-12)


def test_links_that_all_seem_certain_keep_their_order() -> None:
    """In float32 the sigmoids of scores above 17 are all 1."""
    model: Any = beam().float()
    with torch.no_grad():
        model.links.entities *= 5
        state = model.project(torch.tensor([0]), torch.tensor([1]))
        scores = model.links.score(model.links.project(model.links.anchor(torch.tensor([0])), torch.tensor([1])))
    assert len(set(scores[0].sigmoid().tolist())) < ENTITIES
    assert torch.equal(model.score(state)[0].argsort(), scores[0].argsort())


@pytest.mark.parametrize("model", ["distmult", "transe", "rotate"])
def test_other_link_predictors(model: str) -> None:
    """Of one hop the order is theirs."""
    found = beam(model=model)
    ids = torch.arange(ENTITIES), torch.arange(ENTITIES) % (2 * STORED_RELATIONS)
    with torch.no_grad():
        scores = found.links.score(found.links.project(found.links.anchor(ids[0]), ids[1]))
        assert torch.equal(found.score(found.project(found.anchor(ids[0]), ids[1])).argsort(), scores.argsort())


@pytest.mark.parametrize("model", [beam(), continuous()])
def test_the_link_predictor_is_what_is_trained(model: Decomposition) -> None:
    assert model.trainee is model.links
    assert {id(one) for one in model.parameters()} == {id(one) for one in model.trainee.parameters()}


@each_norm
@each_shape
def test_assignments_of_the_beam_are_the_best(name: str, norm: NormName) -> None:
    model = beam(norm)
    for query in random_queries(SHAPES[name]):
        check_assignments(formula_of(model), model, query)


# Continuous optimisation: a conjunctive query by the equations, with complex vectors and numerical derivatives.


class Literal:
    def __init__(self, model: CQDCO, query: Query) -> None:
        self.settings, self.query = model.settings, query
        d = self.settings.dimension
        tables = (table.detach().numpy() for table in (model.links.entities, model.links.relations))
        self.e, self.r = (list[Vector](table[:, :d] + 1j * table[:, d:]) for table in tables)
        self.starts: list[Vector] = []  # of inner variables, those further in first, then of the answer
        self.starts.append(self.start(query))

    def start(self, query: Query) -> Vector:
        if isinstance(query, Anchor):
            return self.e[query.entity]
        if isinstance(query, Project):
            source = self.start(query.query)
            if not isinstance(query.query, Anchor):
                self.starts.append(source)
            return source * self.r[query.relation]
        found: Vector = np.mean([self.start(branch) for branch in branches(query)], axis=0)
        return found

    def truth(self, query: Query, v: Vector, variables: Sequence[Vector]) -> float:
        both = NORMS[self.settings.t_norm][0]
        match query:
            case Project(Anchor(e), r):
                return self.link(self.e[e], r, v)
            case Project(inner, r):
                *others, u = variables
                return both(self.truth(inner, u, others), self.link(u, r, v))
            case _:
                parts, rest = [], list(variables)
                for branch in branches(query):
                    count = inner_variables(branch)
                    parts.append(self.truth(branch, v, rest[:count]))
                    rest = rest[count:]
                return reduce(both, parts)

    def link(self, u: Vector, r: int, v: Vector) -> float:
        score = float(np.real(u * self.r[r] * np.conj(v)).sum())
        return 1 / (1 + math.exp(self.settings.threshold - score))

    def objective(self, numbers: Floats) -> float:
        *others, answer = numbers.view(np.complex128).reshape(len(self.starts), -1)
        cubes = sum(abs(number) ** 3 for vector in (*others, answer) for number in vector)
        return math.log(self.truth(self.query, answer, others)) - self.settings.variable_n3 * float(cubes)

    def slope(self, numbers: Floats, step: float = 1e-6) -> Floats:
        moves = np.eye(len(numbers)) * step
        return np.array([self.objective(numbers + one) - self.objective(numbers - one) for one in moves]) / (2 * step)

    def optimised(self) -> list[Vector]:
        """Adam, as its paper has it."""
        numbers = np.concatenate(self.starts).view(np.float64).copy()
        first, second = np.zeros_like(numbers), np.zeros_like(numbers)
        for step in range(1, self.settings.steps + 1):
            slope = self.slope(numbers)
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
            mean, spread = first / (1 - 0.9**step), second / (1 - 0.999**step)
            numbers = numbers + self.settings.step_size * mean / (np.sqrt(spread) + 1e-8)
        return list(numbers.view(np.complex128).reshape(len(self.starts), -1))

    def truths(self) -> list[float]:
        """Of all entities in the answer's place."""
        *others, _ = self.optimised()
        return [self.truth(self.query, v, others) for v in self.e]


@each_norm
@pytest.mark.parametrize("name", CONJUNCTIVE)
def test_variables_move_as_adam_moves_them(name: str, norm: NormName) -> None:
    model = continuous(norm, variable_n3=0.02)
    if norm == "lukasiewicz":  # where all links are near enough to true that there is a slope
        model = continuous(norm, variable_n3=0.02, threshold=-6.0)
    several = random_queries(SHAPES[name])
    expected = [Literal(model, query).truths() for query in several]
    np.testing.assert_allclose(np.exp(scores_of(model, several)), expected, rtol=1e-5, atol=1e-7)


def test_steps_make_a_query_more_true() -> None:
    several = random_queries(SHAPES["3p"], count=8)
    truths_after = [scores_of(continuous(steps=steps, variable_n3=0.0), several).max(1).mean() for steps in (0, 5, 50)]
    assert truths_after[0] < truths_after[1] < truths_after[2]


@pytest.mark.parametrize("name", ["1p", "2i", "3i"])
def test_without_inner_variables_there_is_nothing_to_move(name: str) -> None:
    model = continuous()
    exact = CQDBeam(ENTITIES, 2 * STORED_RELATIONS, cqd.Settings(dimension=2, threshold=0.7)).double()
    exact.links.load_state_dict(model.links.state_dict())
    several = random_queries(SHAPES[name])
    np.testing.assert_allclose(scores_of(model, several), scores_of(exact, several), rtol=1e-9)


def test_equal_questions_get_equal_answers_whatever_is_asked_along() -> None:
    model, several = continuous(steps=20), random_queries(SHAPES["pi"], count=6)
    together = scores_of(model, several)
    for number, query in enumerate(several):
        np.testing.assert_allclose(scores_of(model, [query])[0], together[number], rtol=1e-9)


def test_answers_are_the_same_where_gradients_are_off() -> None:
    """`scoring` is inference mode, in which nothing could be differentiated; and weights never get a gradient."""
    model: Any = continuous()
    ids = torch.tensor([tuple(query_ids(query)) for query in random_queries(SHAPES["2p"])])
    plan = compile_shapes((SHAPES["2p"],), model.kind)
    with scoring(model):
        (state,) = execute(plan, model, [torch.tensor(ids.tolist())])
        inside = model.score(state)
    (state,) = execute(plan, model, [ids])
    outside = model.score(state)
    np.testing.assert_array_equal(inside.numpy(), outside.detach().numpy())
    assert outside.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


@each_norm
@pytest.mark.parametrize("name", ["2u", "up"])
def test_the_co_norm_joins_the_branches_of_a_union(name: str, norm: NormName) -> None:
    model: Any = continuous(norm)
    disjuncts = Disjuncts.of(SHAPES[name], "dnf")
    ids = np.array([tuple(query_ids(query)) for query in random_queries(SHAPES[name])])
    with scoring(model):
        found = disjuncts.scores(model, ids, ENTITIES).exp().numpy()
    parts = [np.exp(scores_of(model, [ground(shape, row) for row in ids.tolist()])) for shape in disjuncts.shapes]
    expected = np.vectorize(NORMS[norm][1])(*parts)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("name", "operator"), [("2in", "complement"), ("2u", "union")])
def test_other_operators_are_refused(name: str, operator: str) -> None:
    with pytest.raises(UnsupportedError, match=operator):
        scores_of(continuous(), random_queries(SHAPES[name]))


@pytest.mark.parametrize("name", CONJUNCTIVE)
def test_assignments_are_the_entities_nearest_to_the_variables(name: str) -> None:
    model = continuous()
    for query in random_queries(SHAPES[name]):
        literal = Literal(model, query)
        *others, _ = literal.optimised()
        nearest = [int(np.argmin((np.abs(np.array(literal.e) - place) ** 2).sum(1))) for place in others]
        scores = scores_of(model, [query])[0]
        for v in range(ENTITIES):
            root = model.assignments(query, v)
            assert (root.query, root.entity) == (query, v)
            assert root.truth == pytest.approx(math.exp(scores[v]))
            chosen = [below.entity for one in nodes(root) for below in one.below if isinstance(one.query, Project)]
            anchors = [one.entity for one in nodes(root) if isinstance(one.query, Anchor)]
            assert sorted(chosen) == sorted([*nearest, *anchors])
            assert anchors == [one.query.entity for one in nodes(root) if isinstance(one.query, Anchor)]
