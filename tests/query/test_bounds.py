"""What missing facts cannot change, against graphs that have more facts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from query2particles.engine.exact import exact_answers_of, refuted_answers
from query2particles.graph.graph import SPLITS, Split
from query2particles.query.algebra import SHAPES, Anchor, Complement, Intersect, Project, Query, Union, abstract, ground
from query2particles.query.bounds import certain, refuted
from worlds import queries, random_graph

GRAPH = random_graph(7)
EVERYTHING = frozenset(range(len(GRAPH.entities)))


def answers(query: Query | None, split: Split) -> frozenset[int]:
    if query is None:
        return frozenset()
    return frozenset(exact_answers_of(GRAPH.at(split), query)[0].tolist())


@given(queries(len(GRAPH.entities), 3))
def test_later_facts_change_neither_bound(query: Query) -> None:
    """Facts of valid and test are those that train lacks."""
    for split in SPLITS:
        assert answers(certain(query), "train") <= answers(query, split)
        assert not answers(refuted(query), "train") & answers(query, split)


@given(queries(len(GRAPH.entities), 3))
def test_a_complement_turns_the_bounds_around(query: Query) -> None:
    assert answers(certain(Complement(query)), "train") == answers(refuted(query), "train")
    assert answers(refuted(Complement(query)), "train") == answers(certain(query), "train")


def test_what_the_bounds_of_the_shapes_are() -> None:
    for name, shape in SHAPES.items():
        negated = {"2in", "3in", "pin", "pni"}
        assert (refuted(shape) is not None) == (name in negated), name
        assert (certain(shape) == shape) == ("n" not in name), name
    e, other = Anchor(0), Anchor(1)
    assert refuted(e) == Complement(e)
    assert refuted(Union((e, Project(other, 2)))) is None
    assert refuted(Union((e, other))) == Intersect((Complement(e), Complement(other)))
    assert refuted(Intersect((e, Project(other, 2)))) == Complement(e)
    assert certain(Project(Complement(e), 2)) == Project(Complement(e), 2)
    assert certain(Project(Complement(Project(e, 1)), 2)) is None


@pytest.mark.parametrize("name", ["1p", "2in", "pni", "inp"])
def test_a_batch_is_its_queries(name: str) -> None:
    shape = SHAPES[name]
    rng = np.random.default_rng(0)
    width = len(abstract(shape)[1])
    ids = rng.integers(0, GRAPH.at("train").relations, (20, width))
    found = refuted_answers(GRAPH.at("train"), {shape: ids})[shape]
    for row, numbers in enumerate(ids.tolist()):
        assert frozenset(found[row].tolist()) == answers(refuted(ground(shape, numbers)), "train")


def test_shapes_with_the_same_bound_keep_their_own() -> None:
    rng = np.random.default_rng(1)
    batch = {SHAPES[name]: rng.integers(0, 6, (9, len(abstract(SHAPES[name])[1]))) for name in ("2in", "1p", "3in")}
    together = refuted_answers(GRAPH.at("train"), batch)
    assert list(together) == list(batch)
    for shape, ids in batch.items():
        alone = refuted_answers(GRAPH.at("train"), {shape: ids})[shape]
        assert [together[shape][row].tolist() for row in range(9)] == [alone[row].tolist() for row in range(9)]
