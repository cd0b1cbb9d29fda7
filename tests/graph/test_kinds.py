"""Kinds from roles: lifts and thresholds by their definition, and who is never ruled out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from literal import Literal
from query2particles.graph.edges import Edges
from query2particles.graph.graph import Graph
from query2particles.graph.kinds import Kinds
from worlds import random_graph

GRAPHS = {
    "dense": random_graph(1),
    "sparse": random_graph(2, entities=60, relations=6, facts=70),
    "few": random_graph(3, entities=9, relations=2, facts=12),
}
WORLDS = [pytest.param(graph, id=name) for name, graph in GRAPHS.items()]


def pairs_of(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """Every entity in every role."""
    every = np.indices((edges.entities, edges.relations)).reshape(2, -1)
    return every[0], every[1]


@pytest.mark.parametrize("graph", WORLDS)
def test_lifts_and_usual_numbers_by_their_formulas(graph: Graph) -> None:
    literal, kinds = Literal.of(graph, "test"), Kinds(graph.at("test"))
    entities, roles = pairs_of(kinds.edges)
    every = list(zip(entities.tolist(), roles.tolist(), strict=True))
    np.testing.assert_allclose(kinds.lift(entities, roles), [literal.lift(*pair) for pair in every])
    np.testing.assert_allclose(kinds.usual(entities, roles), [literal.usual(*pair) for pair in every])
    assert kinds.counts.tolist() == [sum(role in own for own in literal.roles) for role in range(kinds.edges.relations)]
    assert kinds.threshold == pytest.approx(literal.threshold)
    assert kinds.edges.loops.tolist() == [literal.loops(relation) for relation in range(kinds.edges.relations)]


@pytest.mark.parametrize("graph", WORLDS)
def test_who_can_have_a_role_is_the_same_for_one_and_for_all(graph: Graph) -> None:
    kinds = Kinds(graph.at("train"))
    entities, roles = pairs_of(kinds.edges)
    one_by_one = kinds.can(entities, roles).reshape(kinds.edges.entities, kinds.edges.relations)
    at_once = np.stack([kinds.all_that_can(role) for role in range(kinds.edges.relations)], axis=1)
    np.testing.assert_array_equal(one_by_one, at_once)
    has = kinds.has(entities, roles).reshape(one_by_one.shape)
    assert one_by_one[has].all(), "who has a role can"
    nothing_known = ~has.any(axis=1)
    assert one_by_one[nothing_known].all()
    assert nothing_known.any() or graph is GRAPHS["dense"]


def facts_of_kinds() -> Edges:
    """People live in towns, towns lie in countries; one town has a person's role once, one entity stands alone."""
    people, towns, countries = np.arange(300), np.arange(300, 330), np.arange(330, 333)
    generator = np.random.default_rng(0)
    lives = np.stack([people, np.zeros(300, dtype=np.int64), generator.choice(towns, 300)])
    knows = np.stack([people, np.ones(300, dtype=np.int64), np.roll(people, 1)])
    lies = np.stack([towns, np.full(30, 2), generator.choice(countries, 30)])
    odd = np.array([[towns[0]], [1], [people[0]]])
    columns = np.concatenate([lives, knows, lies, odd], axis=1)
    return Edges.of(*columns, entity_count=334, relation_count=3)


def test_a_wrong_kind_is_ruled_out_and_a_rare_role_is_not() -> None:
    kinds = Kinds(facts_of_kinds())
    person, odd_town, town, country, nobody = 7, 300, 305, 331, 333

    def can(entity: int, role: int) -> bool:
        return bool(kinds.can(np.array([entity]), np.array([role]))[0])

    lives, knows, lies = 0, 2, 4
    assert [can(one, lives ^ 1) for one in (person, town, country, nobody)] == [False, True, False, True]
    assert [can(one, lies ^ 1) for one in (person, town, country, nobody)] == [False, False, True, True]
    assert can(odd_town, knows)
    assert not can(country, knows)


@pytest.mark.parametrize("graph", WORLDS)
def test_hardly_any_single_role_is_lost(graph: Graph) -> None:
    """Of what is legal but rare, asked as if it were not stored, at most half a percent lies below the threshold."""
    kinds = Kinds(graph.at("test"))
    lifts = np.array(Literal.of(graph, "test").single_lifts)
    assert len(lifts) > 5
    assert np.mean(lifts < kinds.threshold - 1e-12) <= 0.005
    assert kinds.threshold <= 1


def test_most_wrong_kinds_are_told_although_few_single_roles_are_lost() -> None:
    kinds = Kinds(facts_of_kinds())
    single = np.concatenate([keys[lengths == 1] for keys, lengths in kinds.edges.row_blocks()])
    entities, roles = np.divmod(single, kinds.edges.relations)
    assert np.mean(kinds.lift(entities, roles) < kinds.threshold) <= 0.005
    assert 0 < kinds.threshold <= 1
    assert kinds.all_that_can(5).sum() < 20, "countries, the lone entity, and next to nobody else"


def test_without_single_roles_nothing_is_ruled_out() -> None:
    complete = np.array([(head, 0, tail) for head in range(3) for tail in range(3, 6)]).T
    kinds = Kinds(Edges.of(*complete, entity_count=6, relation_count=1))
    assert kinds.threshold == 0
    assert kinds.all_that_can(0).all()
    assert not kinds.edges.loops.any()


def test_a_loop_is_one_of_both_directions() -> None:
    columns = np.array([(0, 0, 1), (1, 1, 1), (1, 2, 0)]).T
    kinds = Kinds(Edges.of(*columns, entity_count=2, relation_count=3))
    assert kinds.edges.loops.tolist() == [False, False, True, True, False, False]


def test_rows_that_are_read_in_blocks_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GRAPHS["dense"]
    whole = Kinds(graph.at("test"))
    expected = whole.edges.loops, whole.threshold
    monkeypatch.setattr("query2particles.graph.edges._BLOCK", 7)
    parts = Kinds(replace(graph.at("test")))
    np.testing.assert_array_equal(parts.edges.loops, expected[0])
    np.testing.assert_array_equal(parts.counts, whole.counts)
    assert parts.threshold <= expected[1], "pairs of roles that lie in two blocks count less"
