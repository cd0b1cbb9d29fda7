"""Query2Particles against its equations, spelled out one query and one particle at a time in float64."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UsageError
from query2particles.methods.q2p import PRESETS, Q2P, Settings
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    anchor_positions,
    branches,
    query_ids,
    replace_branches,
)
from worlds import by_shape, queries

Vector: TypeAlias = npt.NDArray[np.float64]
Particles: TypeAlias = list[Vector]

ENTITIES, STORED_RELATIONS = 11, 3


def variants() -> Iterator[tuple[str, Settings]]:
    """Every preset, and every preset with any one of its options at any other value."""
    for preset, start in PRESETS.items():
        yield preset, start
        for option, hint in get_type_hints(Settings).items():
            values: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ()
            for value in (False, True) if hint is bool else values:
                if value != getattr(start, option):
                    changes: dict[str, Any] = {option: value}
                    if (option, value) == ("attention", "none") and start.keep == "means":  # which look at all
                        changes["keep"] = "sample"
                    yield f"{preset}, {option}={value}", replace(start, **changes)


VARIANTS = dict(variants())
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_preset = pytest.mark.parametrize("preset", PRESETS)


def fresh_model(start: Settings, *, dimension: int = 5, particles: int = 2, seed: int = 0) -> Q2P:
    """A small model without dropout, as it is before training."""
    small = replace(start, dimension=dimension, particles=particles, dropout=0.0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Q2P(ENTITIES, 2 * STORED_RELATIONS, small)


def model_of(start: Settings, *, dimension: int = 5, particles: int = 2, seed: int = 0) -> Q2P:
    """A small model for evaluation in float64. All its numbers are random, those that start at zero or one too."""
    model = fresh_model(start, dimension=dimension, particles=particles).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6, generator=generator)
    return model


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


def relu(x: Vector) -> Vector:
    return np.where(x > 0, x, 0.0)


def gelu(x: Vector) -> Vector:
    """That is x Φ(x), with the distribution function Φ of a standard normal variable."""
    return np.array([one * (1 + math.erf(one / math.sqrt(2))) / 2 for one in x])


ACTIVATIONS: dict[str, Callable[[Vector], Vector]] = {"relu": relu, "gelu": gelu}


def attention(queries: Particles, keys: Particles, values: Particles) -> Particles:
    """Softmax(Q Kᵀ / √d) V, row by row."""
    found = []
    for q in queries:
        logits = [float(q @ k) / math.sqrt(len(q)) for k in keys]
        highest = max(logits)
        shares = [math.exp(logit - highest) for logit in logits]
        found.append(np.sum([share / sum(shares) * v for share, v in zip(shares, values, strict=True)], axis=0))
    return found


class Equations:
    """The operators as the paper prints them, and what each option changes in them; no batches, no packed matrices."""

    def __init__(self, model: Q2P) -> None:
        self.settings = model.settings
        self.weights = {name: value.double().numpy() for name, value in model.state_dict().items()}

    def anchor(self, entity: int) -> Particles:
        """P₀ = e_v + M."""
        return [self.weights["entities"][entity] + m for m in self.weights["offsets"]]

    def project(self, p: Particles, relation: int, *, hop: int) -> Particles:
        """Gates for each particle, then attention among them, with norms after both."""
        w, option = self.weights, self.settings
        if option.projection == "later-block" and hop > 0:
            p = self.block("projection.later", p, residual=option.residual or option.later_residual)
        e = w["relations"][relation]
        w_z, w_r, w_h = np.split(w["projection.relation.weight"], 3)
        b_z, b_r, b_h = np.split(w["projection.relation.bias"], 3)
        u_z, u_r = np.split(w["projection.gates.weight"], 2)
        u_h = w["projection.transition.weight"]
        a = []
        for one in p:
            z = sigmoid(w_z @ e + u_z @ one + b_z)
            r = sigmoid(w_r @ e + u_r @ one + b_r)
            t = np.tanh(w_h @ e + u_h @ (r * one) + b_h)
            a.append(self.norm("projection.norm", (1 - z) * one + z * t))
        if option.projection == "block":
            return self.block("projection.mix", a)
        return self.half("projection.mix.norm", a, self.attention_of("projection.mix.attention"), option.residual)

    def intersect(self, several: Sequence[Particles]) -> Particles:
        """Attention and MLP over the particles of all branches, K of which stay; or K summaries of them."""
        k, n = self.settings.particles, len(several)
        if self.settings.keep == "summaries":
            return self.pooled([one for branch in several for one in branch])
        if self.settings.keep == "means":
            return self.means([one for branch in several for one in branch])
        p = self.mixed(several)
        match self.settings.keep:
            case "rows":
                return [p[n * row] for row in range(k)]
            case "sample":
                return [p[math.floor(row * len(p) / k)] for row in range(k)]

    def mixed(self, several: Sequence[Particles]) -> Particles:
        """What an intersection makes of the particles of all branches, before some of them stay."""
        return self.passes("intersection", [one for branch in several for one in branch])

    def pooled(self, p: Particles) -> Particles:
        """A = LN(c + Attn(W_q c + s, W_k P, W_v P)) for each seed s, then LN(A + MLP(A)); c is the mean particle."""
        w = self.weights
        w_k, w_v = np.split(w["intersection.particles.weight"], 2)
        c: Vector = np.sum(p, axis=0) / len(p)
        asked = [w["intersection.context.weight"] @ c + seed for seed in w["intersection.seeds"]]
        found = attention(asked, [w_k @ one for one in p], [w_v @ one for one in p])
        a = [self.norm("intersection.norms.0", c + one) for one in found]
        moved = self.mlp_of("intersection.feed_forward")(a)
        return [self.norm("intersection.norms.1", one + more) for one, more in zip(a, moved, strict=True)]

    def means(self, p: Particles) -> Particles:
        """Σ_i w_i ⊙ p_i for each seed s, w the softmax over i of U σ(V p_i + W c + s), coordinate by coordinate."""
        w = self.weights
        c: Vector = np.sum(p, axis=0) / len(p)
        found = []
        for seed in w["intersection.seeds"]:
            logits = [
                w["intersection.weights.weight"]
                @ ACTIVATIONS[self.settings.activation](
                    w["intersection.particles.weight"] @ one + w["intersection.context.weight"] @ c + seed
                )
                for one in p
            ]
            shares = [np.exp(one) for one in logits]
            mean: Vector = np.sum([share * one for share, one in zip(shares, p, strict=True)], axis=0)
            found.append(self.norm("intersection.norm", mean / np.sum(shares, axis=0)))
        return found

    def complement(self, p: Particles) -> Particles:
        return self.passes("complementation", p)

    def union(self, several: Sequence[Particles]) -> Particles:
        return [one for branch in several for one in branch]

    def score(self, p: Particles, entity: int) -> float:
        """max_k ⟨p_k, e_v⟩, with a bias where there is one."""
        bias = float(self.weights["bias"][entity]) if self.settings.bias else 0.0
        return max(float(one @ self.weights["entities"][entity]) for one in p) + bias

    def answer(self, query: Query) -> Particles:
        below = [self.answer(branch) for branch in branches(query)]
        match query:
            case Anchor(entity):
                return self.anchor(entity)
            case Project(inner, relation):
                return self.project(below[0], relation, hop=int(has_projection(inner)))
            case Intersect():
                return self.intersect(below)
            case Union():
                return self.union(below)
            case Complement():
                return self.complement(below[0])

    def passes(self, name: str, p: Particles) -> Particles:
        """The block; a second time through the same matrices, with norms of its own, and so on."""
        p = self.block(f"{name}.block", p)
        for further in range(self.settings.passes - 1):
            p = self.block(f"{name}.block", p, norms=f"{name}.norms.{further}")
        return p

    def block(self, name: str, p: Particles, norms: str = "", residual: bool | None = None) -> Particles:
        """MLP(Attn(P)). Attention adds to its input if `residual`, the MLP if there are norms."""
        norms, option = norms or f"{name}.norms", self.settings
        residual = option.residual if residual is None else residual
        p = self.half(f"{norms}.0", p, self.attention_of(f"{name}.attention"), residual)
        return self.half(f"{norms}.1", p, self.mlp_of(f"{name}.feed_forward"), option.norm != "none")

    def half(
        self, norm: str, p: Particles, layer: Callable[[Particles], Particles] | None, residual: bool
    ) -> Particles:
        """LN(P + Layer(P)), or LN(Layer(P)); LN(P) where there is no layer."""
        if layer is None:
            return [self.norm(norm, one) for one in p]
        changed = layer(p)
        if residual:
            changed = [one + change for one, change in zip(p, changed, strict=True)]
        return [self.norm(norm, one) for one in changed]

    def attention_of(self, name: str) -> Callable[[Particles], Particles] | None:
        if self.settings.attention == "none":
            return None
        packed = self.weights[f"{name}.weights.weight"]
        w_q, w_k, w_v = (packed,) * 3 if self.settings.attention == "shared" else np.split(packed, 3)
        return lambda p: attention([w_q @ one for one in p], [w_k @ one for one in p], [w_v @ one for one in p])

    def mlp_of(self, name: str) -> Callable[[Particles], Particles]:
        w, activation = self.weights, ACTIVATIONS[self.settings.activation]

        def mlp(one: Vector) -> Vector:
            hidden = activation(w[f"{name}.inner.weight"] @ one + w[f"{name}.inner.bias"])
            result: Vector = w[f"{name}.outer.weight"] @ hidden + w[f"{name}.outer.bias"]
            return result

        return lambda p: [mlp(one) for one in p]

    def norm(self, name: str, one: Vector) -> Vector:
        if self.settings.norm == "none":
            return one
        mean = one.sum() / len(one)
        spread = math.sqrt(((one - mean) ** 2).sum() / len(one) + 1e-5)
        standard: Vector = (one - mean) / spread
        if self.settings.norm == "learned":
            standard = standard * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return standard


def has_projection(query: Query) -> bool:
    return isinstance(query, Project) or any(map(has_projection, branches(query)))


def states(*widths: int, n: int = 4, dimension: int = 5, seed: int = 1) -> list[Tensor]:
    """Random states of n queries, one for each width."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, dimension, generator=generator, dtype=torch.float64) for width in widths]


def particles_of(state: Tensor) -> list[Particles]:
    """The particles of each query."""
    return [list(one) for one in state.detach().numpy()]


def assert_equal(state: Tensor, expected: Sequence[Particles]) -> None:
    torch.testing.assert_close(state.detach(), torch.from_numpy(np.array(expected)), rtol=1e-9, atol=1e-9)


def executed(model: Q2P, several: Sequence[Query]) -> list[Tensor]:
    """The states (w, d) of queries of mixed shapes in one plan, their branches as they stand; in their order."""
    batch, places = by_shape(several)
    plan = compile_shapes(tuple(batch), model.kind)
    found = execute(plan, model, [torch.tensor(ids) for ids in batch.values()])
    of_shape = dict(zip(batch, found, strict=True))
    for root, state in zip(plan.roots, found, strict=True):
        assert state.shape[1] == plan.nodes[root].kind * model.settings.particles  # type: ignore[operator]
    return [of_shape[shape][row] for shape, row in places]


def scores_of(model: Q2P, several: Sequence[Query]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.score(state[None]) for state in executed(model, several)])


# Each operator, for every variant.


@each_variant
def test_anchor(variant: str) -> None:
    model = model_of(VARIANTS[variant], particles=3)
    assert_equal(model.anchor(torch.tensor([4, 0, 4, 10])), [Equations(model).anchor(v) for v in (4, 0, 4, 10)])


@each_variant
@pytest.mark.parametrize("hop", [0, 1])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_projection(variant: str, hop: int, width: int) -> None:
    model = model_of(VARIANTS[variant])
    (state,), relations = states(width), [0, 5, 3, 5]
    expected = [
        Equations(model).project(p, relation, hop=hop)
        for p, relation in zip(particles_of(state), relations, strict=True)
    ]
    assert_equal(model.project(state, torch.tensor(relations), hop=hop), expected)


@each_variant
@pytest.mark.parametrize("widths", [(2, 2), (2, 2, 2), (4, 2), (2, 6, 4)], ids=str)
def test_intersection(variant: str, widths: tuple[int, ...]) -> None:
    """A branch that is a union is wider."""
    model = model_of(VARIANTS[variant])
    several = states(*widths)
    expected = [Equations(model).intersect(one) for one in zip(*map(particles_of, several), strict=True)]
    assert_equal(model.intersect(several), expected)


@each_variant
@pytest.mark.parametrize("width", [1, 2, 8, 9])
def test_complement(variant: str, width: int) -> None:
    model = model_of(VARIANTS[variant])
    (state,) = states(width)
    assert_equal(model.complement(state), [Equations(model).complement(p) for p in particles_of(state)])


@each_preset
def test_union(preset: str) -> None:
    model = model_of(PRESETS[preset])
    several = states(2, 4, 2)
    expected = [Equations(model).union(one) for one in zip(*map(particles_of, several), strict=True)]
    assert_equal(model.union(several), expected)


@each_variant
@pytest.mark.parametrize("width", [1, 2, 5])
def test_score(variant: str, width: int) -> None:
    model = model_of(VARIANTS[variant])
    (state,) = states(width)
    expected = [[Equations(model).score(p, v) for v in range(ENTITIES)] for p in particles_of(state)]
    torch.testing.assert_close(model.score(state).detach(), torch.tensor(expected, dtype=torch.float64))


# Whole queries.


@settings(max_examples=150, deadline=None)
@given(
    st.lists(queries(ENTITIES, STORED_RELATIONS), min_size=1, max_size=5),
    st.sampled_from(sorted(VARIANTS)),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(0, 9),
)
def test_mixed_shapes_in_one_plan(
    several: list[Query], variant: str, particles: int, dimension: int, seed: int
) -> None:
    """Any trees, any K, any d: one batch = each query alone = the equations."""
    model = model_of(VARIANTS[variant], dimension=dimension, particles=particles, seed=seed)
    together = scores_of(model, several)
    alone = torch.cat([scores_of(model, [query]) for query in several])
    equations = Equations(model)
    literal = [[equations.score(equations.answer(query), entity) for entity in range(ENTITIES)] for query in several]
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together, torch.tensor(literal, dtype=torch.float64), rtol=1e-7, atol=1e-7)


@each_preset
def test_a_query_does_not_depend_on_its_neighbours(preset: str) -> None:
    """In float32, as it is used: the same rows alone and among others, up to the rounding of larger products."""
    model = fresh_model(PRESETS[preset], dimension=32, particles=3).eval()
    generator = random.Random(3)
    several = [grounded(shape, generator.randrange) for shape in SHAPES.values() for _ in range(6)]
    together = scores_of(model, several)
    alone = torch.cat([scores_of(model, [query]) for query in several])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def grounded(shape: Query, choose: Callable[[int], int]) -> Query:
    """A query of this shape, its ids chosen below the number that there are."""
    below = [grounded(branch, choose) for branch in branches(shape)]
    match shape:
        case Anchor():
            return Anchor(choose(ENTITIES))
        case Project():
            return Project(below[0], choose(2 * STORED_RELATIONS))
        case _:
            return replace_branches(shape, below)


# Gradients.


def gradients(model: Q2P, draws: int) -> dict[str, Tensor]:
    """Of the cross-entropy of all fourteen shapes, which name all entities and relations; summed over several runs."""
    generator = torch.Generator().manual_seed(5)
    rows = 24
    ids = []
    for shape in SHAPES.values():
        limits = torch.full((len(tuple(query_ids(shape))),), 2 * STORED_RELATIONS)
        limits[anchor_positions(shape)] = ENTITIES
        ids.append((torch.rand(rows, len(limits), generator=generator) * limits).long())
    positives = torch.randint(ENTITIES, (rows,), generator=generator)
    plan = compile_shapes(tuple(SHAPES.values()), model.kind)
    for _ in range(draws):
        scores = torch.cat([model.score(state) for state in execute(plan, model, ids)])
        loss = torch.nn.functional.cross_entropy(scores, positives.repeat(len(SHAPES)))
        torch.autograd.backward(loss)
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing, f"no gradient at all: {missing}"
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_all_reached(model: Q2P, found: dict[str, Tensor]) -> None:
    """Every row of a table, and every matrix of those that are packed into one, has a gradient."""
    dimension = model.settings.dimension
    for name, gradient in found.items():
        assert gradient.isfinite().all(), name
        table = name in ("entities", "relations", "offsets", "intersection.seeds", "bias")
        for number, part in enumerate(torch.split(gradient, 1 if table else dimension)):
            assert part.abs().max() > 0, f"{name}, part {number}"


@each_preset
def test_gradients_reach_every_parameter_from_the_start(preset: str) -> None:
    """In training; the particles that `paper` keeps are random, so that a single run may miss one."""
    model = fresh_model(PRESETS[preset], dimension=8).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert_all_reached(model, gradients(model, draws=4))


@each_variant
def test_gradients_reach_every_parameter(variant: str) -> None:
    model = model_of(VARIANTS[variant]).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert_all_reached(model, gradients(model, draws=4))


@each_preset
def test_gradients_are_those_of_the_operators(preset: str) -> None:
    """Against finite differences."""
    model = model_of(PRESETS[preset], dimension=3)
    first, second = (state.requires_grad_() for state in states(2, 2, n=2, dimension=3))
    relations = torch.tensor([1, 4])

    def run(first: Tensor, second: Tensor) -> Tensor:
        both = model.intersect([model.project(first, relations, hop=1), model.complement(second)])
        return model.score(both)

    assert torch.autograd.gradcheck(run, (first, second))


# Order.


def shuffled(query: Query, generator: random.Random) -> Query:
    """The same question with its branches in another order."""
    below = [shuffled(branch, generator) for branch in branches(query)]
    if isinstance(query, Intersect | Union):
        generator.shuffle(below)
    return replace_branches(query, below)


@settings(max_examples=100, deadline=None)
@given(
    queries(ENTITIES, STORED_RELATIONS, max_leaves=8),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.integers(2, 7),
)
def test_the_order_of_branches_does_not_matter(
    query: Query, generator: random.Random, particles: int, dimension: int
) -> None:
    other = shuffled(query, generator)
    model = model_of(PRESETS["default"], dimension=dimension, particles=particles)
    expected = scores_of(model, [query])
    torch.testing.assert_close(scores_of(model, [other]), expected, rtol=1e-8, atol=1e-8)
    single = fresh_model(PRESETS["default"], dimension=dimension, particles=particles).eval()
    torch.testing.assert_close(scores_of(single, [other]), scores_of(single, [query]), rtol=1e-3, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 999))
def test_the_order_of_particles_does_not_matter(widths: list[int], particles: int, seed: int) -> None:
    model = model_of(PRESETS["default"], particles=particles)
    several = states(*widths, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    others = [state[:, torch.randperm(state.shape[1], generator=generator)] for state in several]
    relations = torch.tensor([0, 1, 2, 3])

    def score(operator: Callable[[list[Tensor]], Tensor], operands: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return model.score(operator(operands))

    for operator in (
        model.intersect,
        model.union,
        lambda operands: model.complement(operands[0]),
        lambda operands: model.project(operands[0], relations, hop=0),
        lambda operands: model.project(operands[0], relations, hop=1),
    ):
        torch.testing.assert_close(score(operator, others), score(operator, several), rtol=1e-9, atol=1e-9)


@each_variant
def test_projection_and_complement_follow_the_order_of_particles(variant: str) -> None:
    """As the paper says of all its operators: particles come out in the order in which they come in."""
    model = model_of(VARIANTS[variant])
    (state,), relations, order = states(4), torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0, 3, 1])
    for hop in (0, 1):
        expected = model.project(state, relations, hop=hop)[:, order]
        torch.testing.assert_close(model.project(state[:, order], relations, hop=hop), expected)
    torch.testing.assert_close(model.complement(state[:, order]), model.complement(state)[:, order])


# Which particles an intersection keeps, by name of the option.


def kept_rows(model: Q2P, several: list[Tensor]) -> list[tuple[int, ...]]:
    """For each query, which of the particles of all branches came out of an intersection."""
    equations = Equations(model)
    found = []
    for query, result in enumerate(particles_of(model.intersect(several))):
        rows = equations.mixed([particles_of(branch)[query] for branch in several])
        found.append(tuple(next(row for row, one in enumerate(rows) if np.allclose(one, p)) for p in result))
    return found


def test_the_released_model_depends_on_the_order_of_branches() -> None:
    """With K = 2 and three branches, rows 0 and 3 of six stay: none of the third branch, whatever it is."""
    model = model_of(PRESETS["released"])
    several = states(2, 2, 2)
    assert set(kept_rows(model, several)) == {(0, 3)}
    scores = [model.score(model.intersect(order)).detach() for order in permutations(several)]
    assert max(float((other - scores[0]).abs().max()) for other in scores[1:]) > 0.1


@pytest.mark.parametrize(
    ("particles", "widths", "rows"),
    [(2, (2, 2), (0, 2)), (2, (2, 2, 2), (0, 3)), (3, (3, 3), (0, 2, 4)), (2, (4, 2), (0, 3)), (1, (1, 1, 1), (0,))],
)
def test_the_paper_keeps_evenly_spaced_particles_in_evaluation(
    particles: int, widths: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    model = model_of(PRESETS["paper"], particles=particles)
    assert set(kept_rows(model, states(*widths))) == {rows}


def test_the_paper_keeps_a_random_sample_in_training() -> None:
    """Without repeats, each particle as often as another, and the same again from the same seed."""
    model = model_of(PRESETS["paper"]).train()
    several = states(2, 2, n=1)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        drawn = [kept_rows(model, several)[0] for _ in range(400)]
        torch.manual_seed(8)
        again = [kept_rows(model, several)[0] for _ in range(20)]
    assert again == drawn[:20]
    assert all(len(set(rows)) == 2 for rows in drawn)
    counts = Counter(row for rows in drawn for row in rows)
    assert set(counts) == {0, 1, 2, 3}
    assert all(abs(count - 200) < 50 for count in counts.values())  # five standard deviations


@each_preset
def test_evaluation_draws_nothing(preset: str) -> None:
    model = fresh_model(PRESETS[preset]).eval()
    before = torch.get_rng_state()
    several = [grounded(shape, lambda limit: limit - 1) for shape in SHAPES.values()]
    first = scores_of(model, several)
    assert torch.equal(scores_of(model, several), first)
    assert torch.equal(torch.get_rng_state(), before)


@each_preset
def test_dropout_is_for_training(preset: str) -> None:
    """It falls on what enters a projection and a block, from torch's own generator."""
    small = replace(PRESETS[preset], dimension=16, dropout=0.5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Q2P(ENTITIES, 2 * STORED_RELATIONS, small)
        state, relations = model.anchor(torch.tensor([1, 2])), torch.tensor([0, 1])
        operators: list[Callable[[], Tensor]] = [
            lambda: model.project(state, relations, hop=0),
            lambda: model.project(state, relations, hop=1),
            lambda: model.complement(state),
            lambda: model.intersection(torch.cat([state, state], 1)),
        ]
        for operator in operators:
            model.train()
            torch.manual_seed(1)
            first, second = operator(), operator()
            assert not torch.equal(first, second)
            torch.manual_seed(1)
            assert torch.equal(operator(), first)
            model.eval()
            assert torch.equal(operator(), operator())


# How the presets start.


def test_offsets_start_apart_by_default_and_at_zero_as_released() -> None:
    of = {preset: fresh_model(start, particles=3).anchor(torch.tensor([1, 2])) for preset, start in PRESETS.items()}
    assert torch.equal(of["released"], of["released"][:, :1].expand_as(of["released"]))
    apart = of["default"][:, :, None] - of["default"][:, None]
    assert (apart.abs().amax(-1)[:, *torch.triu_indices(3, 3, 1)] > 1e-3).all()


@each_preset
def test_embeddings_start_as_wide_as_the_settings_say(preset: str) -> None:
    start = replace(PRESETS[preset], dimension=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Q2P(500, 40, start)
    assert float(model.entities.detach().std()) == pytest.approx(start.entity_scale, rel=0.05)
    assert float(model.relations.detach().std()) == pytest.approx(start.entity_scale, rel=0.1)
    assert float(model.offsets.detach().std()) == pytest.approx(start.offset_scale, rel=0.3)
    assert (model.bias is not None) == start.bias
    assert PRESETS["released"].entity_scale == 1


def test_the_presets_are_what_the_two_sources_say() -> None:
    """The paper's equations and the released code, as docs/methods.md tells them apart."""
    options = ("attention", "activation", "projection", "keep", "norm", "residual", "later_residual", "bias", "passes")
    values = {preset: tuple(getattr(PRESETS[preset], option) for option in options) for preset in ("paper", "released")}
    assert values == {
        "paper": ("separate", "relu", "attention", "sample", "none", False, False, False, 1),
        "released": ("shared", "gelu", "later-block", "rows", "learned", False, False, True, 2),
    }


@pytest.mark.parametrize("keep", ["means", "summaries"])
def test_what_looks_at_all_particles_is_no_ablation_of_attention(keep: Literal["means", "summaries"]) -> None:
    with pytest.raises(UsageError, match="keep=sample"):
        Q2P(ENTITIES, STORED_RELATIONS, replace(PRESETS["default"], attention="none", keep=keep))
