"""An update is the step that one would write by hand; what CUDA adds to it is run here too, as far as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from query2particles.engine import update as update_module
from query2particles.engine.batches import Drawn, Pool
from query2particles.engine.captured import Captured
from query2particles.engine.execute import execute
from query2particles.engine.loss import LossTerms, Objective, negatives_loss
from query2particles.engine.negatives import Proposal
from query2particles.engine.plan import compile_shapes
from query2particles.engine.update import POOLED, Update
from query2particles.methods import betae, cone, emql, gqe, links, q2b
from query2particles.methods.q2p import PRESETS, Q2P
from query2particles.methods.registry import Model, make
from query2particles.query.algebra import SHAPES, Complement, Query, anchor_positions, query_ids
from unattended import Unattended
from worlds import random_graph

ENTITIES, RELATIONS = 70, 6
TERMS = LossTerms(smoothing=0.1, exclusion=0.7)
SHAPES_AND_TERMS: list[tuple[Query, LossTerms]] = [
    *((SHAPES[name], TERMS) for name in ("1p", "3p", "2i", "2u", "pin")),
    (Complement(SHAPES["1p"]), TERMS._replace(sign=-1.0)),  # as the released code trains complements
]
COUNTS = [6, 4, 4, 3, 2, 5]
SOFTMAX = Objective()

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Given:
    """A stream of random queries, `batches` batches at a time; after `rounds` draws the same ones again."""

    def __init__(
        self,
        batches: int = 1,
        rounds: int = 4,
        device: str = "cpu",
        shapes_and_terms: Sequence[tuple[Query, LossTerms]] = SHAPES_AND_TERMS,
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        self.rounds = [
            [
                Drawn(*(value.to(device) for value in self._part(shape, batches * count, generator)))
                for (shape, _), count in zip(shapes_and_terms, COUNTS, strict=False)
            ]
            for _ in range(rounds)
        ]
        self.draws = 0

    def draw(self) -> list[Drawn]:
        self.draws += 1
        return self.rounds[(self.draws - 1) % len(self.rounds)]

    @staticmethod
    def _part(shape: Query, count: int, generator: torch.Generator) -> Drawn:
        limits = torch.full((len(tuple(query_ids(shape))),), RELATIONS)
        limits[anchor_positions(shape)] = ENTITIES
        return Drawn(
            ids=(torch.rand(count, len(limits), generator=generator) * limits).long(),
            positives=torch.randint(ENTITIES, (count,), generator=generator),
            weights=(torch.rand(count, generator=generator) > 0.2).float(),
            excluded=torch.randint(ENTITIES, (count,), generator=generator),
        )


class OneByOne:
    """The batches of a stream that draws several at a time, as a pool deals them out."""

    def __init__(self, several: Given) -> None:
        several.draw()  # which a pool does to see how many queries there are
        self._several, self._left = several, iter(())  # type: Given, Any

    def draw(self) -> list[Drawn]:
        batch = next(self._left, None)
        if batch is None:
            parts = [[torch.chunk(field, POOLED) for field in part] for part in self._several.draw()]
            self._left = iter([[Drawn(*(field[b] for field in part)) for part in parts] for b in range(POOLED)])
            batch = next(self._left)
        found: list[Drawn] = batch
        return found


def model_of(preset: str = "default", dimension: int = 8) -> Q2P:
    """Without anything random in it, so that two runs compare."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Q2P(ENTITIES, RELATIONS, replace(PRESETS[preset], dimension=dimension, dropout=0.0)).eval()


def update_of(
    method: Any,
    optimiser: torch.optim.Optimizer,
    stream: Any,
    clip: float = 1.0,
    *,
    objective: Objective = SOFTMAX,
    shapes_and_terms: Sequence[tuple[Query, LossTerms]] = SHAPES_AND_TERMS,
) -> Update:
    shapes, terms = zip(*shapes_and_terms, strict=True)
    generator = torch.Generator(next(method.parameters()).device)
    return Update(
        method,
        optimiser,
        stream,
        shapes,
        terms,
        objective=objective,
        proposal=Proposal(ENTITIES, objective.negatives, generator.device),
        clip=clip,
        generator=generator,
    )


def literal_loss(method: Q2P, drawn: Sequence[Drawn]) -> Tensor:
    """The mean over all queries, each shape in a plan of its own."""
    total = torch.zeros((), dtype=method.entities.dtype)
    for (shape, (epsilon, kappa, sign)), part in zip(SHAPES_AND_TERMS, drawn, strict=True):
        (state,) = execute(compile_shapes((shape,), method.kind), method, [part.ids])
        for s, positive, excluded, weight in zip(sign * method.score(state), *part[1:], strict=True):
            log_z = s.logsumexp(0)
            loss = log_z - (1 - epsilon) * s[positive] - epsilon * s.mean()
            loss = loss - kappa * (excluded != positive) * torch.sigmoid(s[positive] - s[excluded]).log()
            total = total + weight * loss
    return total / sum(COUNTS)


def by_hand(method: Q2P, optimiser: torch.optim.Optimizer, stream: Any, rate: float, clip: float = 1.0) -> float:
    """One step, with nothing fused, shared or captured; its loss."""
    optimiser.param_groups[0]["lr"] = rate
    optimiser.zero_grad(set_to_none=True)
    loss = literal_loss(method, stream.draw())
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(list(method.parameters()), clip)
    optimiser.step()
    return float(loss.detach())


def moved(method: nn.Module, start: nn.Module) -> Tensor:
    """How far all parameters have moved, as one vector."""
    pairs = zip(method.parameters(), start.parameters(), strict=True)
    return torch.cat([(now.detach().cpu() - before.detach().cpu()).flatten() for now, before in pairs])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("clip", [0.05, 1e9], ids=["clipped", "not clipped"])
def test_updates_are_steps_by_hand(preset: str, clip: float) -> None:
    """All weights after several updates at changing rates; in float64 but for what a stream gives."""
    method, reference = model_of(preset).double(), model_of(preset).double()
    optimiser, other = (torch.optim.AdamW(one.parameters(), weight_decay=0.01) for one in (method, reference))
    update, stream = update_of(method, optimiser, Given(), clip), Given()
    losses = []
    for rate in (1e-3, 5e-3, 2e-3, 1e-3, 1e-4):
        update(rate)
        losses.append(by_hand(reference, other, stream, rate, clip))
    for (name, found), expected in zip(method.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8), name
    assert update.mean_loss() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_methods_without_factors_are_trained_by_their_scores() -> None:
    class ScoresOnly:
        def __init__(self, method: Q2P) -> None:
            self._method = method

        def __getattr__(self, name: str) -> Any:
            if name == "factors":
                raise AttributeError(name)
            return getattr(self._method, name)

    method, reference = model_of(), model_of()
    optimiser, other = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (method, reference))
    update, stream = update_of(ScoresOnly(method), optimiser, Given()), Given()
    for _ in range(4):
        update(0.1)
        by_hand(reference, other, stream, 0.1)
    assert relative(moved(method, model_of()), moved(reference, model_of())) < 1e-3


def test_two_runs_end_with_the_same_weights_bit_for_bit() -> None:
    ends = []
    for _ in range(2):
        method = model_of()
        update = update_of(method, torch.optim.AdamW(method.parameters()), Given())
        for _ in range(5):
            update(1e-2)
        ends.append([parameter.detach().clone() for parameter in method.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*ends, strict=True))


def test_the_mean_loss_is_that_of_the_updates_since_it_was_last_asked() -> None:
    method = model_of()
    stream = Given()
    update = update_of(method, torch.optim.SGD(method.parameters(), lr=0.0), Given())
    expected = [float(literal_loss(method, stream.draw()).detach()) for _ in range(3)]
    update(0.0)
    update(0.0)
    assert update.mean_loss() == pytest.approx((expected[0] + expected[1]) / 2, rel=1e-5)
    update(0.0)
    assert update.mean_loss() == pytest.approx(expected[2], rel=1e-5)
    assert update.mean_loss() == 0


def test_a_rate_that_is_a_tensor_is_written_in_place() -> None:
    """A captured update reads it where it was."""
    method = model_of()
    rate = torch.tensor(1.0)
    update = update_of(method, torch.optim.SGD(method.parameters(), lr=rate), Given())
    update(0.0)
    assert float(rate) == 0
    assert not moved(method, model_of()).any()
    update(0.25)
    assert float(rate) == 0.25
    assert moved(method, model_of()).any()


def test_the_loss_falls() -> None:
    method = model_of(dimension=16)
    update = update_of(method, torch.optim.AdamW(method.parameters()), Given(rounds=2))
    means = []
    for _ in range(4):
        for _ in range(20):
            update(1e-2)
        means.append(update.mean_loss())
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.85 * means[0]


# Other methods, and other objectives than the softmax over all entities.

CHAINS: list[tuple[Query, LossTerms]] = [(SHAPES[name], TERMS) for name in ("1p", "3p")]
WITHOUT_COMPLEMENT: list[tuple[Query, LossTerms]] = [(SHAPES[name], TERMS) for name in ("1p", "3p", "2i", "ip")]
WITHOUT_UNION: list[tuple[Query, LossTerms]] = [(SHAPES[name], TERMS) for name in ("1p", "3p", "2i", "pin")]
EDGES = random_graph(4, entities=ENTITIES, relations=RELATIONS // 2, facts=400).at("train")
OTHERS: dict[str, tuple[Any, list[tuple[Query, LossTerms]]]] = {
    "gqe": (gqe.Settings(dimension=8, dropout=0.0), WITHOUT_COMPLEMENT),
    "q2b": (q2b.Settings(dimension=8, entity_scale=0.6), WITHOUT_COMPLEMENT),
    "betae": (betae.Settings(dimension=8, hidden=12, dropout=0.0), WITHOUT_UNION),
    "cone": (cone.Settings(dimension=8, hidden=12, dropout=0.0), WITHOUT_UNION),
    "links": (links.Settings(dimension=8, entity_scale=0.3, n3=0.0, relation_prediction=0.0), CHAINS),
    "emql": (emql.Settings(dimension=8, triples=12, width=32, dropout=0.0), WITHOUT_COMPLEMENT),
}
"""With what they are trained on. `q2b` has no factors, `links` and `emql` only tables, `emql` states of two parts."""
OBJECTIVES = [Objective("softmax", 5), Objective("margin", 5), Objective("margin", 0)]

each_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=["softmax", "margin", "margin over all"])
each_every_objective = pytest.mark.parametrize("objective", [SOFTMAX, *OBJECTIVES], ids=str)
each_other = pytest.mark.parametrize("name", OTHERS)


def other_model(name: str, **settings: Any) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(name, EDGES, replace(OTHERS[name][0], **settings)).eval()


def other_update(model: Any, name: str, *, stream: Any = None, rate: Any = 0.1, **options: Any) -> Update:
    """By plain gradient descent."""
    shapes_and_terms = OTHERS[name][1]
    stream = stream or Given(shapes_and_terms=shapes_and_terms)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    return update_of(model, optimiser, stream, shapes_and_terms=shapes_and_terms, **options)


def loss_of_some(model: Model, name: str, drawn: Sequence[Drawn], objective: Objective) -> Tensor:
    """The mean over all queries, each shape in a plan of its own; negatives are drawn as an update draws them."""
    kind, count = objective
    negatives = torch.randint(ENTITIES, (count,)) if count else torch.arange(ENTITIES)
    share = torch.tensor(ENTITIES / len(negatives))
    total = torch.zeros((), dtype=torch.float64)
    for (shape, terms), part in zip(OTHERS[name][1], drawn, strict=True):
        (state,) = execute(compile_shapes((shape,), model.kind), model, [part.ids])
        scores, rows = model.score(state), torch.arange(len(part.ids))[:, None]
        pairs = scores[rows, torch.stack([part.positives, part.excluded], 1)]
        apart = part.positives != part.excluded
        hits, others = negatives == part.positives[:, None], scores[:, negatives]
        total = total + negatives_loss(
            kind, pairs, others, apart, hits, part.weights, stands_for=share, entities=ENTITIES, terms=terms
        )
    return total / sum(len(part.ids) for part in drawn)


@each_objective
@each_other
def test_the_loss_of_some_entities(name: str, objective: Objective) -> None:
    """The same negatives for all queries, from torch's own generator, others in every update."""
    model = other_model(name).double()
    update, stream = other_update(model, name, objective=objective), Given(shapes_and_terms=OTHERS[name][1])
    losses = []
    for seed in (1, 2, 2):
        drawn = stream.draw()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = update.loss()
            torch.manual_seed(seed)
            expected = loss_of_some(model, name, drawn, objective)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(one, list(model.parameters()), allow_unused=True) for one in (found, expected)]
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                torch.testing.assert_close(one, other)
        losses.append(found.item())
    assert len(set(losses)) == 3


@pytest.mark.parametrize("name", ["q2p", *OTHERS])
@each_every_objective
def test_every_objective_can_be_descended(name: str, objective: Objective) -> None:
    """Queries that come again and again are learned, whatever they are set against."""
    if name == "q2p":
        model: Any = model_of()
        update = update_of(model, torch.optim.AdamW(model.parameters()), Given(rounds=1), objective=objective)
    else:
        model, shapes_and_terms = other_model(name), OTHERS[name][1]
        stream = Given(rounds=1, shapes_and_terms=shapes_and_terms)
        optimiser = torch.optim.AdamW(model.parameters())
        update = update_of(model, optimiser, stream, objective=objective, shapes_and_terms=shapes_and_terms)
    means = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(3):
            for _ in range(30):
                update(1e-2)
            means.append(update.mean_loss())
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.9 * means[0]


def test_negatives_are_the_same_in_two_runs_that_start_the_same() -> None:
    ends = []
    for seed in (5, 5, 6):
        model = other_model("gqe")
        update = other_update(model, "gqe", objective=Objective("margin", 3))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for _ in range(3):
                update(0.1)
        ends.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@each_every_objective
def test_penalties_are_added(objective: Objective) -> None:
    """Those of the rows of all shapes, in the mean over all queries, whatever their weights."""
    plain = other_model("links").double()
    with_penalty: Any = other_model("links", n3=0.7, relation_prediction=0.3).double()
    with torch.random.fork_rng():
        losses = []
        for model in (plain, with_penalty):
            torch.manual_seed(0)
            losses.append(other_update(model, "links", objective=objective).loss())
    drawn = Given(shapes_and_terms=CHAINS).draw()
    penalties = [
        with_penalty.penalty(shape, part.ids, part.positives) for (shape, _), part in zip(CHAINS, drawn, strict=True)
    ]
    expected = torch.stack(penalties).sum() / sum(len(part.ids) for part in drawn)
    assert expected > 0
    torch.testing.assert_close(losses[1] - losses[0], expected)


@pytest.mark.parametrize("training", [True, False])
@each_every_objective
@pytest.mark.parametrize("name", ["q2p", *OTHERS])
def test_an_update_needs_no_host(name: str, objective: Objective, training: bool) -> None:
    model: Any = (model_of() if name == "q2p" else other_model(name)).train(training)
    shapes_and_terms = SHAPES_AND_TERMS if name == "q2p" else OTHERS[name][1]
    stream = Given(POOLED, shapes_and_terms=shapes_and_terms)
    with pretended_cuda(), torch.random.fork_rng():
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        update = update_of(model, optimiser, stream, objective=objective, shapes_and_terms=shapes_and_terms)
        with Unattended():
            for _ in range(2):
                update(0.1)


@contextmanager
def pretended_cuda() -> Iterator[list[str]]:
    """Parameters say that they are on CUDA; nothing is compiled or captured, but what would be is noted."""
    noted: list[str] = []

    def compiled(operator: Callable[..., Any]) -> Callable[..., Any]:
        noted.append(f"compile {operator.__name__}")
        return operator

    def captured(work: Callable[[], None], generator: torch.Generator | None = None) -> Callable[[], None]:
        noted.append(f"capture {work.__name__}" + (" with a generator" if generator else ""))
        return work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Parameter, "is_cuda", True, raising=False)
        patch.setattr(torch, "compile", compiled)
        patch.setattr(update_module, "Captured", captured)
        yield noted


@pytest.fixture
def as_on_cuda() -> Iterator[list[str]]:
    with pretended_cuda() as noted:
        yield noted


def test_what_cuda_adds_changes_nothing_but_rounding(as_on_cuda: list[str]) -> None:
    """Batches out of a pool, operators in bfloat16: weights move as by hand, for longer than a pool lasts."""
    method, reference = model_of(), model_of()
    optimiser, other = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (method, reference))
    update, stream = update_of(method, optimiser, Given(POOLED)), OneByOne(Given(POOLED))
    losses = []
    for _ in range(POOLED + 3):
        update(0.1)
        losses.append(by_hand(reference, other, stream, 0.1))
    assert relative(moved(method, model_of()), moved(reference, model_of())) < 0.05
    assert update.mean_loss() == pytest.approx(sum(losses) / len(losses), rel=0.01)
    assert all(parameter.dtype == torch.float32 for parameter in method.parameters())
    assert {note for note in as_on_cuda if note.startswith("compile")} == {
        *("compile anchor", "compile project", "compile intersect", "compile complement"),
    }
    assert [note for note in as_on_cuda if note.startswith("capture")] == [
        *("capture _work", "capture fill with a generator"),
    ]


def test_a_pool_is_filled_when_it_is_empty_and_not_before(as_on_cuda: list[str]) -> None:
    method = model_of()
    stream = Given(POOLED)
    update = update_of(method, torch.optim.SGD(method.parameters(), lr=0.0), stream)
    draws = []
    for _ in range(2 * POOLED + 1):
        update(0.0)
        draws.append(stream.draws - 1)  # but for the one that a pool is made with
    assert draws == [1] * POOLED + [2] * POOLED + [3]
    assert as_on_cuda


@each_every_objective
@each_other
def test_what_cuda_adds_to_other_methods(name: str, objective: Objective) -> None:
    """Only the operators that a method has are compiled; of one that has nothing but tables, nothing is rounded."""
    model, reference, start = (other_model(name) for _ in range(3))
    shapes_and_terms = OTHERS[name][1]
    several = [Given(POOLED, 2, shapes_and_terms=shapes_and_terms) for _ in range(2)]

    def run(one: Model, stream: Any) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            update = other_update(one, name, stream=stream, objective=objective)
            for _ in range(POOLED + 2):
                update(0.003)  # so little that what is rounded does not lead elsewhere

    run(reference, OneByOne(several[0]))
    with pretended_cuda() as noted:
        run(model, several[1])
    rounded = any(True for part in model.children() for _ in part.parameters())
    assert relative(moved(model, start), moved(reference, start)) < (0.2 if rounded else 1e-5)
    assert all(one.dtype == torch.float32 for one in model.parameters())
    here = [operator for operator in ("anchor", "project", "intersect", "complement") if hasattr(model, operator)]
    assert [note for note in noted if note.startswith("compile")] == [f"compile {operator}" for operator in here]


# On a GPU: captured, compiled, in bfloat16.


def fused(method: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        method.parameters(), lr=torch.tensor(0.0, device="cuda"), weight_decay=0.0, fused=True, capturable=True
    )


@pytest.mark.gpu
@needs_gpu
def test_captured_updates_are_those_of_the_cpu() -> None:
    """Within what bfloat16 rounds away: the course of the loss, and where the weights end."""
    method, reference = model_of(dimension=32).cuda(), model_of(dimension=32)
    update = update_of(method, fused(method), Given(POOLED, rounds=1, device="cuda"))
    other = update_of(
        reference, torch.optim.AdamW(reference.parameters(), weight_decay=0.0), OneByOne(Given(POOLED, 1))
    )
    for _ in range(4):
        for _ in range(10):
            update(3e-3)
            other(3e-3)
        assert update.mean_loss() == pytest.approx(other.mean_loss(), rel=0.03)
    start = model_of(dimension=32)
    assert relative(moved(method, start), moved(reference, start)) < 0.3


@pytest.mark.gpu
@needs_gpu
def test_the_loss_of_captured_updates_falls() -> None:
    method = model_of(dimension=32).cuda().train()
    update = update_of(method, fused(method), Given(POOLED, rounds=1, device="cuda"))
    means = []
    for _ in range(5):
        for _ in range(40):
            update(3e-3)
        means.append(update.mean_loss())
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.85 * means[0]


@pytest.mark.gpu
@needs_gpu
def test_a_captured_update_reads_the_rate_anew() -> None:
    method = model_of(dimension=32).cuda()
    update = update_of(method, fused(method), Given(POOLED, rounds=1, device="cuda"))
    for _ in range(2 * POOLED):
        update(1e-3)
    before = [parameter.detach().clone() for parameter in method.parameters()]
    update(0.0)
    assert all(torch.equal(now, then) for now, then in zip(method.parameters(), before, strict=True))
    update(1e-3)
    assert not all(torch.equal(now, then) for now, then in zip(method.parameters(), before, strict=True))


@pytest.mark.gpu
@needs_gpu
def test_a_captured_fill_draws_something_new_every_time() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    class Random:
        def draw(self) -> list[Drawn]:
            ids = torch.randint(1 << 40, (4, 2), generator=generator, device="cuda")
            ones = torch.ones(4, device="cuda")
            return [Drawn(ids, ids[:, 0], ones, ones)]

    pool = Pool(Random(), 2)
    fill = Captured(pool.fill, generator)
    seen = []
    for _ in range(8):
        fill()
        seen += [tuple(part.ids.flatten().tolist()) for _ in range(2) for part in pool.take()]
    assert len(set(seen)) == 16


@pytest.mark.gpu
@needs_gpu
@each_every_objective
@each_other
def test_captured_updates_of_other_methods(name: str, objective: Objective) -> None:
    """The course of the loss is that of the CPU, but for which negatives are drawn; and it falls."""
    shapes_and_terms = OTHERS[name][1]
    model, reference = other_model(name).cuda(), other_model(name)
    given, given_too = (Given(POOLED, 1, device, shapes_and_terms) for device in ("cuda", "cpu"))
    optimiser = torch.optim.AdamW(reference.parameters(), weight_decay=0.0)
    update = update_of(model, fused(model), given, objective=objective, shapes_and_terms=shapes_and_terms)
    other = update_of(reference, optimiser, OneByOne(given_too), objective=objective, shapes_and_terms=shapes_and_terms)
    means = []
    for _ in range(4):
        for _ in range(3 * POOLED):
            update(3e-3)
            other(3e-3)
        means.append(update.mean_loss())
        assert means[-1] == pytest.approx(other.mean_loss(), rel=0.1)
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.97 * means[0]
