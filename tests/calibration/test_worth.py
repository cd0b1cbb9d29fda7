"""What single facts say about an answer: the recursion of the definition, tried on all entities of a tiny world."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from query2particles.calibration import worth
from query2particles.calibration.worth import Floats, Worth
from query2particles.engine.exact import Exact, exact_nodes
from query2particles.engine.plan import compile_shapes
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import SHAPES, Anchor, Complement, Intersect, Project, Query, Union, ground
from query2particles.workload.natural import natural_questions
from worlds import oracle, random_graph, successors

GRAPH = random_graph(9, entities=12, relations=2, facts=26)
EDGES = GRAPH.at("test")
KNOWN = successors(GRAPH, "test")
EVERYTHING = frozenset(range(12))
BATCH = natural_questions(GRAPH.at("train"), EDGES, count=6, one_hop=6, seed=0)


def made_up(sources: Ints, relations: Ints, targets: Ints) -> Floats:
    """Any probabilities of facts: below a half, and no two alike."""
    found: Floats = ((sources * 37 + relations * 101 + targets * 17) % 89 + 1) / 200
    return found


def literal(query: Query, entity: int, *, deeper: bool = True) -> float:
    """W(v) by its definition."""
    match query:
        case Anchor(anchor):
            return float(anchor == entity)
        case Project(below, relation):
            if entity in oracle(query, KNOWN, EVERYTHING):
                return 1.0
            missed = 1.0
            for source in oracle(below, KNOWN, EVERYTHING):
                missed *= 1 - float(made_up(np.array(source), np.array(relation), np.array(entity)))
            if deeper and not isinstance(below, Anchor):
                for source in KNOWN.get((entity, relation ^ 1), ()):
                    missed *= 1 - literal(below, source, deeper=False)
            return 1 - missed
        case Intersect(several):
            return float(np.prod([literal(one, entity, deeper=deeper) for one in several]))
        case Union(several):
            return 1 - float(np.prod([1 - literal(one, entity, deeper=deeper) for one in several]))
        case Complement(inner):
            return 1 - literal(inner, entity, deeper=deeper)


def worth_of(shape: Query, ids: Ints, edges: Edges = EDGES, shares: Any = None) -> Floats:
    """Of all entities."""
    nodes = exact_nodes(edges, {shape: ids})[shape]
    plan = compile_shapes((shape,), Exact.kind).nodes
    features: Any = SimpleNamespace(edges=edges, shares_between=shares)
    return Worth(plan, ids, nodes, features, made_up)(np.tile(np.arange(edges.entities), (len(ids), 1)))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_worth_what_the_definition_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are fewer sources than are looked at."""
    monkeypatch.setattr(worth, "_SOURCES", 12)
    shape = SHAPES[name]
    found = worth_of(shape, BATCH[shape])
    for row, ids in enumerate(BATCH[shape].tolist()):
        query = ground(shape, ids)
        assert found[row].tolist() == pytest.approx([literal(query, entity) for entity in range(12)])


def test_some_of_it_is_neither_certain_nor_hopeless() -> None:
    shape = SHAPES["3p"]
    values = np.array([[literal(ground(shape, ids), one) for one in range(12)] for ids in BATCH[shape].tolist()])
    assert ((values > 0.1) & (values < 0.9)).mean() > 0.2


def test_of_many_sources_the_few_likeliest_are_judged() -> None:
    """Of ten known sources, the four that the model prefers: here those with the largest ids."""
    facts = [(0, 0, one) for one in range(1, 11)] + [(11, 1, 12)]
    edges = Edges.of(*np.array(facts).T, entity_count=13, relation_count=2)
    shape = SHAPES["2p"]

    def shares(sources: Ints, relation: int, entities: Ints) -> Floats:
        assert relation == 2
        return np.repeat(sources[:, None], len(entities), axis=1).astype(np.float64)

    found = worth_of(shape, np.array([(0, 0, 2)]), edges, shares)
    best = np.arange(7, 11)
    expected = 1 - np.prod(1 - made_up(best, np.full(4, 2), np.full(4, 5)))
    assert found[0, 5] == pytest.approx(expected)
