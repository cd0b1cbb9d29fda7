"""How long a training is: sizes that suit a graph, and sizes that fit into a time, from speeds as if measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.config import Config, changed
from query2particles.graph.graph import Graph
from query2particles.planning import Budget, Plan, Speed, grown, measured, plan_part, planned
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from trainings import tiny
from worlds import random_graph

SMALL_GRAPH = random_graph(3, entities=40, relations=3, facts=400)
SMALL = preset("q2p", "small")


def sizes(config: Config, *dimensions: int, update: float, query: float = 0.0) -> list[tuple[Config, Speed]]:
    """Speeds in proportion to the dimension."""
    return [
        (changed(config, {"dimension": dimension}), Speed(update * dimension / dimensions[0], query))
        for dimension in dimensions
    ]


def test_a_small_graph_is_trained_as_the_preset_says() -> None:
    assert grown(SMALL, SMALL_GRAPH, "cpu") == SMALL


def test_a_larger_graph_takes_more_updates(atlas: Graph) -> None:
    """Every edge is seen twenty times, and what goes with the updates grows with them."""
    start = changed(SMALL, {"updates": 100, "warm_up": 10, "validate_every": 20, "batch": 64})
    found = grown(start, atlas, "cpu").training
    edges = len(atlas.at("train"))
    assert (found.updates - 1) * found.batch < 20 * edges <= found.updates * found.batch
    factor = found.updates / 100
    assert (found.warm_up, found.validate_every) == pytest.approx((10 * factor, 20 * factor), abs=1)
    assert grown(changed(start, {"batch": 1}), atlas, "cpu").training.updates == 20_000, "it is to take minutes"


@pytest.mark.parametrize("method", ["q2p", "links"])
def test_what_is_set_by_hand_stays(atlas: Graph, method: str) -> None:
    names = ("updates", "warm_up", "validate_every", "batch", "rate", "n3", "relation_prediction")
    start = preset(method, "small")
    assert grown(start, atlas, "cpu", names) == start
    found = grown(changed(start, {"warm_up": 7, "batch": 64}), atlas, "cpu", ("warm_up", "batch")).training
    assert (found.warm_up, found.batch) == (7, 64)
    assert found.updates > start.training.updates


def test_presets_for_a_gpu_do_not_depend_on_the_graph(atlas: Graph) -> None:
    assert grown(preset("q2p", "default"), atlas, "cuda") == preset("q2p", "default")


def test_links_by_rows_have_a_rate_of_their_own(atlas: Graph) -> None:
    """Where there are many entities for a CPU, unless the whole table is asked for."""
    start = preset("links", "small")
    assert grown(start, atlas, "cpu").training.rate == 0.1
    assert grown(start, atlas, "cuda").training.rate == start.training.rate
    assert grown(start, SMALL_GRAPH, "cpu").training.rate == start.training.rate
    assert grown(changed(start, {"table": "whole"}), atlas, "cpu").training.rate == start.training.rate


@given(
    seconds=st.floats(1, 10_000),
    update=st.floats(1e-4, 1),
    query=st.floats(0, 0.1),
    queries=st.integers(10, 100),
    edges=st.integers(100, 10**7),
)
def test_a_plan_fits_into_its_time(seconds: float, update: float, query: float, queries: int, edges: int) -> None:
    """Validations included, wherever twenty updates and a validation do."""
    start = changed(SMALL, {"validation_queries": queries})
    plan = planned(sizes(start, 64, 32, update=update, query=query), seconds, edges=edges)
    training, dimension = plan.config.training, plan.config.model.dimension
    validation = query * queries * len(SHAPES)
    validations = -(-training.updates // training.validate_every)
    assert 1 <= validations <= 5
    assert training.warm_up < training.updates
    assert plan.passes == pytest.approx(training.updates * training.batch / edges)
    if validation + 20 * update * dimension / 64 <= seconds:
        assert training.updates * update * dimension / 64 + validations * validation <= seconds + 1e-6
    else:
        assert training.updates == 20


def test_the_largest_dimension_is_taken_that_sees_the_edges_often_enough() -> None:
    def dimension(seconds: float) -> int:
        plan = planned(sizes(SMALL, 128, 64, 32, update=0.1), seconds, edges=512 * 100)
        return int(plan.config.model.dimension)

    assert [dimension(seconds) for seconds in (41, 39, 21, 19, 1)] == [128, 64, 64, 32, 32]


def test_a_short_time_says_how_long_it_should_be() -> None:
    def suffices(passes: float) -> int | None:
        return Plan(SMALL, passes).minutes_that_suffice(0.5)

    assert (suffices(2.0), suffices(0.5), suffices(0.1)) == (None, 2, 10)


@given(minutes=st.floats(0.05, 1000), spent=st.floats(0, 1))
def test_the_steps_share_the_time(minutes: float, spent: float) -> None:
    joined, alone = (Budget.of(minutes, joined=one, spent=spent) for one in (True, False))
    for budget in (joined, alone):
        assert sum((budget.training, budget.weighing, budget.probabilities)) + spent <= max(60 * minutes, 2.5)
        if minutes >= 2:
            assert budget.probabilities >= max(20, 0.15 * 60 * minutes) - 1e-6
    assert alone.weighing == 0 < joined.weighing
    assert alone.training >= joined.training


def test_weighing_makes_up_for_what_training_took_too_long() -> None:
    budget = Budget(training=200, weighing=40, probabilities=45)
    assert [budget.left_for_weighing(left) for left in (200, 85, 65, 45, -10)] == [40, 40, 20, 10, 10]


def test_the_larger_the_graph_the_fewer_queries() -> None:
    budget = Budget(training=0, weighing=0, probabilities=45)
    found = [budget.queries(entities, 100) for entities in (1000, 25_000, 100_000, 10**8)]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (100, 10)


@pytest.mark.parametrize("method", ["q2p", "links", "gqe"])
def test_speeds_are_those_of_this_machine(method: str) -> None:
    speed = measured(tiny(method), SMALL_GRAPH, "cpu", 0.05)
    assert 0 < speed.update < 10
    assert 0 < speed.validation_query < 10


def test_a_part_is_planned_with_what_is_set_by_hand() -> None:
    """Presets for a GPU keep their dimension, and what is trained later takes some of the time."""
    start = changed(preset("links", "small"), {"batch": 16, "dimension": 7, "validation_queries": 4})
    fixed = {"dimension", "validation_queries"}
    plan = plan_part(start, SMALL_GRAPH, "cpu", 0.1, fixed=fixed, joined=True)
    assert (plan.config.model.dimension, plan.config.training.validation_queries) == (7, 4)
    assert plan.config.training.batch == 16
    vectors = changed(SMALL, {"batch": 16, "validation_queries": 4})
    plan = plan_part(vectors, SMALL_GRAPH, "cpu", 0.1, fixed={"validation_queries"}, later=["links"])
    assert plan.config.model.dimension in (64, 32)
    other = changed(replace(tiny("gqe"), preset="default"), {"validation_queries": 3})
    plan = plan_part(other, SMALL_GRAPH, "cpu", 0.05)
    assert plan.config.model == other.model
    assert "gqe with dimension" in str(plan)


def test_what_is_spent_is_gone() -> None:
    """Also for what is trained later; however late it is, a few updates are made."""
    start = changed(SMALL, {"batch": 16, "validation_queries": 2, "dimension": 8})

    def updates(spent: float, *later: str) -> int:
        fixed = {"validation_queries", "dimension"}
        plan = plan_part(start, SMALL_GRAPH, "cpu", 1, spent=spent, fixed=fixed, later=later)
        return plan.config.training.updates

    assert updates(0) > 2 * updates(25) > 2 * updates(1000) >= 40
    assert updates(0) > updates(0, "q2p", "q2p", "q2p")
