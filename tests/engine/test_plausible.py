"""What can answer at all: echoes and kinds of every shape by their recursive definition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from literal import Literal
from query2particles.engine.plausible import Plausible
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Project,
    Query,
    anchor_positions,
    ground,
    numbered,
    query_ids,
)
from worlds import random_graph

GRAPH = random_graph(6, entities=40, relations=6, facts=90)
EDGES = GRAPH.at("train")
LITERAL = Literal.of(GRAPH, "train")
PLAUSIBLE = Plausible(EDGES)


def random_ids(shape: Query, count: int, seed: int) -> Ints:
    """Any ids; in the first rows all anchors are the same, so that echoes of branches meet."""
    generator = np.random.default_rng(seed)
    width = ground_width(shape)
    ids = generator.integers(EDGES.relations, size=(count, width))
    anchors = list(anchor_positions(shape))
    ids[:, anchors] = generator.integers(EDGES.entities, size=(count, len(anchors)))
    ids[: count // 3, anchors] = ids[: count // 3, anchors[:1]]
    return ids


def ground_width(shape: Query) -> int:
    return len(tuple(query_ids(shape)))


BATCH: Mapping[str, Ints] = {name: random_ids(shape, 12, number) for number, (name, shape) in enumerate(SHAPES.items())}


@pytest.mark.parametrize("name", SHAPES)
def test_echoes_by_their_definition(name: str) -> None:
    shape, ids = SHAPES[name], BATCH[name]
    found = PLAUSIBLE.echoes({shape: ids})[shape]
    assert len(found) == len(ids)
    for row, own in enumerate(ids.tolist()):
        assert set(found[row].tolist()) == LITERAL.echoes(ground(shape, own))


@pytest.mark.parametrize("name", SHAPES)
def test_kinds_by_their_definition_for_all_entities_and_for_a_few(name: str) -> None:
    shape, ids = SHAPES[name], BATCH[name]
    allowed = PLAUSIBLE.allowed(shape, ids)
    assert allowed is not None, "every shape has a hop that leads to its answers"
    every = np.tile(np.arange(EDGES.entities), (len(ids), 1))
    np.testing.assert_array_equal(allowed, PLAUSIBLE.fits(shape, ids, every))
    for row, own in enumerate(ids.tolist()):
        assert set(np.flatnonzero(allowed[row]).tolist()) == LITERAL.allowed(ground(shape, own))


def test_the_world_has_what_the_rules_are_about() -> None:
    loops = PLAUSIBLE.edges.loops
    assert loops.any()
    assert not loops.all()
    able = np.stack([PLAUSIBLE.kinds.all_that_can(role) for role in range(EDGES.relations)])
    assert 0.02 < (~able).mean() < 0.98
    echoing = {
        name for name, ids in BATCH.items() if any(LITERAL.echoes(ground(SHAPES[name], row)) for row in ids.tolist())
    }
    assert echoing == {"1p", "2i", "3i", "pi", "2u", "2in", "3in", "pni"}


def test_who_leads_to_itself_is_no_echo() -> None:
    edges = Edges.of(*np.array([(0, 0, 0), (0, 1, 1), (2, 0, 1)]).T, entity_count=3, relation_count=2)
    ids = np.array([(1, 0), (1, 1), (1, 2), (1, 3)])
    found = Plausible(edges).echoes({SHAPES["1p"]: ids})[SHAPES["1p"]]
    assert [found[row].tolist() for row in range(4)] == [[], [], [1], [1]]


def test_what_has_no_relation_asks_for_no_kind() -> None:
    for query in (Anchor(0), Complement(Project(Anchor(0), 0))):
        shape = numbered(query)
        ids = np.array([[3] * ground_width(shape)])
        assert PLAUSIBLE.allowed(shape, ids) is None
        assert PLAUSIBLE.fits(shape, ids, np.arange(EDGES.entities)[None]).all()
