"""Rows: what an update reads and writes of the entities is what the whole table would have had, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine.batches import Drawn
from query2particles.engine.looking import Looking
from query2particles.engine.loss import LossTerms, Objective
from query2particles.engine.negatives import Proposal
from query2particles.engine.ranks import scoring
from query2particles.engine.rows import Table, WorkingSet, distinct, rounded_stochastically, with_few_entities
from query2particles.engine.update import Update
from query2particles.methods.registry import METHODS, Model, make, trainee_of
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES, anchor_positions, query_ids
from trainings import tiny
from unattended import Unattended
from worlds import random_graph

ENTITIES, RELATIONS = 60, 4
EDGES = random_graph(4, entities=ENTITIES, relations=RELATIONS // 2, facts=300).at("train")
BY_ROWS = [name for name, entry in METHODS.items() if not entry.trains_another and name != "emql"]
each_method = pytest.mark.parametrize("name", BY_ROWS)
TERMS = LossTerms(smoothing=0.1, exclusion=0.7)


def model_of(name: str) -> Model:
    """Without anything random in it."""
    settings = tiny(name).model
    if hasattr(settings, "dropout"):
        settings = type(settings)(**{**vars(settings), "dropout": 0.0})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(name, EDGES, settings).eval()


def shapes_of(name: str) -> list[Any]:
    return [SHAPES[shape] for shape in preset(name).training.mix]


def batch_of(shapes: Sequence[Any], seed: int, count: int = 3) -> list[Drawn]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for shape in shapes:
        limits = torch.full((len(tuple(query_ids(shape))),), RELATIONS)
        limits[anchor_positions(shape)] = ENTITIES
        ids = (torch.rand(count, len(limits), generator=generator) * limits).long()
        positives, excluded = torch.randint(ENTITIES, (2, count), generator=generator)
        drawn.append(Drawn(ids, positives, excluded, torch.rand(count, generator=generator)))
    return drawn


class Given:
    def __init__(self, shapes: Sequence[Any]) -> None:
        self._batches = iter([batch_of(shapes, number + 1) for number in range(5)])

    def draw(self) -> list[Drawn]:
        return next(self._batches)


def table_of(model: Model, names: Sequence[str], dtype: torch.dtype = torch.float32, decay: float = 0.0) -> Table:
    """A copy of the model's rows."""
    tables = {}
    for name in names:
        own = getattr(model, name).detach()
        tables[name] = torch.cat([own, torch.zeros_like(own[:1])]).to(dtype)
    return Table(tables, decay=decay, generator=torch.Generator().manual_seed(0))


def updates_of(name: str, objective: Objective) -> tuple[Model, Update, Table, Update, list[str]]:
    """The whole model and its update, and the rows of another one and theirs."""
    whole, shapes = model_of(name), shapes_of(name)
    names = list(METHODS[name].entity_tables(tiny(name).model))
    table = table_of(whole, names)
    draws = batch_of(shapes, 0)
    places = sum(len(part.ids) * (2 + len(anchor_positions(shape))) for part, shape in zip(draws, shapes, strict=True))
    few = with_few_entities(model_of(name), names, places + objective.negatives)
    working = WorkingSet(few, names, table, shapes)

    def update_of(model: Any, working: WorkingSet | None) -> Update:
        return Update(
            model,
            torch.optim.SGD([one for key, one in model.named_parameters() if working is None or key not in names]),
            Given(shapes),
            shapes,
            [TERMS] * len(shapes),
            objective=objective,
            proposal=Proposal(ENTITIES, objective.negatives, torch.device("cpu")),
            clip=1e9,
            generator=torch.Generator().manual_seed(0),
            working=working,
            table=None if working is None else table,
        )

    return whole, update_of(whole, None), table, update_of(few, working), names


def seeded(work: Any, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return work()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_distinct_entities_and_their_places(entities: list[int]) -> None:
    found = distinct(torch.tensor(entities), 99)
    expected, places = np.unique(entities, return_inverse=True)
    assert found.ids[: len(expected)].tolist() == expected.tolist()
    assert set(found.ids[len(expected) :].tolist()) <= {99}
    assert found.places.tolist() == places.tolist()


@each_method
@pytest.mark.parametrize("objective", [Objective("softmax", 7), Objective("margin", 7)], ids=str)
def test_the_loss_over_rows_is_that_of_the_whole_table(name: str, objective: Objective) -> None:
    _, on_all, _, on_rows, _ = updates_of(name, objective)
    for seed in range(3):
        torch.testing.assert_close(seeded(on_rows.loss, seed), seeded(on_all.loss, seed))


@each_method
def test_only_the_rows_of_a_batch_move_each_against_its_gradient(name: str) -> None:
    """By the formula, spelled out, from the gradients of the whole model, over several updates."""
    rate, objective = 0.01, Objective("softmax", 7)
    whole, on_all, table, on_rows, names = updates_of(name, objective)
    squares = {key: np.zeros(ENTITIES) for key in names}
    touched = np.zeros(ENTITIES)
    for seed in range(4):
        before = {key: getattr(whole, key).detach().clone() for key in names}
        whole.zero_grad(set_to_none=True)
        loss = seeded(on_all.loss, seed)
        loss.backward()
        seeded(lambda: on_rows(rate), seed)
        drawn = batch_of(shapes_of(name), seed + 1)
        there = {
            *seeded(lambda: torch.randint(ENTITIES, (7,)), seed).tolist(),
            *(one for part in drawn for one in (*part.positives.tolist(), *part.excluded.tolist())),
            *(
                one
                for shape, part in zip(shapes_of(name), drawn, strict=True)
                for one in part.ids[:, anchor_positions(shape)].flatten().tolist()
            ),
        }
        for entity in there:
            touched[entity] += 1
        for key in names:
            own, gradient = getattr(whole, key), getattr(whole, key).grad
            expected = before[key].clone()
            for entity in there:
                g = gradient[entity].double()
                squares[key][entity] += (float(g.square().mean()) - squares[key][entity]) / touched[entity]
                expected[entity] -= (rate * g / (squares[key][entity] ** 0.5 + 1e-8)).float()
            torch.testing.assert_close(table.tables[key][:ENTITIES], expected, rtol=1e-4, atol=1e-5)
            rest = sorted(set(range(ENTITIES)) - there)
            assert torch.equal(table.tables[key][rest], before[key][rest])
            own.data.copy_(table.tables[key][:ENTITIES])
        with torch.no_grad():  # by plain descent, which is what the update's optimiser does to all else
            for key, one in whole.named_parameters():
                if key not in names and one.grad is not None:
                    one.sub_(rate * one.grad)


def test_rows_decay_when_they_are_touched() -> None:
    whole = model_of("gqe")
    table = table_of(whole, ["entities"], decay=0.5)
    before = table.tables["entities"].clone()
    table.write(torch.tensor([3, 5]), [torch.zeros(2, before.shape[1])], 0.1)
    assert torch.allclose(table.tables["entities"][[3, 5]], before[[3, 5]] * 0.95)
    rest = [one for one in range(ENTITIES) if one not in (3, 5)]
    assert torch.equal(table.tables["entities"][rest], before[rest])


def test_rounding_is_right_in_the_mean() -> None:
    """To a neighbour each time, and after many times within what chance allows of the value; bfloat16 stays itself."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(200, generator=generator) * 10 ** torch.linspace(-6, 6, 200)
    several = torch.stack([rounded_stochastically(values, generator).double() for _ in range(4000)])
    exact = values.double()
    gap = (values.abs() * 2**-7).double()
    assert bool(((several - exact).abs() <= gap).all())
    assert all(len(set(column.tolist())) <= 2 for column in several.T)
    error = (several.mean(0) - exact) / several.std(0).clamp(min=1e-30) * 4000**0.5
    assert float(error.abs().max()) < 5  # standard errors
    assert float(error.mean().abs()) < 0.3
    coarse = values.bfloat16().float()
    assert torch.equal(rounded_stochastically(coarse, generator).float(), coarse)


def test_small_steps_add_up_in_bfloat16() -> None:
    """Each is a fiftieth of what bfloat16 can tell from 1; rounded to the nearest, none would ever happen."""
    table = Table({"entities": torch.ones(2, 500).bfloat16()}, decay=0.0, generator=torch.Generator().manual_seed(0))
    for _ in range(200):
        table.write(torch.tensor([0]), [torch.ones(1, 500)], 2**-8 / 50)
    mean = float(table.tables["entities"][0].float().mean())
    assert mean == pytest.approx(1 - 200 * 2**-8 / 50, abs=2e-3)


@each_method
def test_an_update_over_rows_needs_no_host(name: str) -> None:
    """So that a CUDA graph can hold it."""
    *_, on_rows, _ = updates_of(name, Objective("softmax", 7))
    with torch.random.fork_rng(), Unattended():
        for _ in range(2):
            on_rows(0.1)


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_method_that_looks_rows_up_scores_like_one_that_holds_them(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query2particles.engine.looking._BLOCK", 7)
    whole: Any = model_of(name)
    names = list(METHODS[name].entity_tables(tiny(name).model))
    table = table_of(whole, names, dtype)
    for key in names:
        getattr(whole, key).data.copy_(table.tables[key][:ENTITIES])
    looking: Any = Looking(with_few_entities(whole, names, 5), table)
    ids = torch.tensor([7, 3, 7, 59])
    relations = torch.tensor([0, 1, 2, 3])

    def scores(method: Any, entities: Tensor | None) -> Tensor:
        return torch.as_tensor(method.score(method.project(method.anchor(ids), relations, hop=0), entities))

    some = torch.tensor([4, 4, 0, 50])
    pairs = torch.tensor([[1, 2], [2, 2], [0, 59], [3, 4]])
    with scoring(whole), scoring(looking):
        for entities in (None, some, pairs):
            torch.testing.assert_close(scores(looking, entities), scores(whole, entities))
    assert looking.operators == whole.operators
    assert not hasattr(looking, "factors")
    expected = whole.state_dict()
    assert {key: one.shape for key, one in looking.state_dict().items()} == {
        key: one.shape for key, one in expected.items()
    }


def test_which_methods_look_at_all_entities() -> None:
    """Those that keep edges; the others can be trained by rows."""
    for name, entry in METHODS.items():
        if not entry.trains_another:
            assert hasattr(trainee_of(entry.specimen(entry.settings())), "attach") == (name not in BY_ROWS)


@pytest.mark.parametrize("by_degree", [False, True])
def test_negatives_stand_for_all_entities(by_degree: bool) -> None:
    """In the mean over many draws, whatever is summed: here the entities' own numbers."""
    degrees = np.arange(50) ** 2
    proposal = Proposal(
        50,
        4000,
        torch.device("cpu"),
        degrees=degrees if by_degree else None,
        generator=torch.Generator().manual_seed(0),
    )
    drawn, stands_for = proposal.draw()
    assert float((stands_for * drawn).sum()) == pytest.approx(50 * 49 / 2, rel=0.05)
    assert float((stands_for * torch.ones(4000)).sum()) == pytest.approx(50, rel=0.05)
    assert (drawn.float().mean() > 30) == by_degree
    assert set(drawn.tolist()) == set(range(50))


def test_all_entities_stand_for_themselves() -> None:
    drawn, stands_for = Proposal(5, 0, torch.device("cpu")).draw()
    assert drawn.tolist() == [0, 1, 2, 3, 4]
    assert float(stands_for) == 1
