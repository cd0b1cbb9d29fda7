"""Trees and their shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import QueryError
from query2particles.query.algebra import (
    EPFO,
    EXTRA_SHAPES,
    NEGATION,
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    anchor_positions,
    branches,
    canonical,
    depth,
    ground,
    has_complement,
    nickname,
    numbered,
    query_ids,
    replace_branches,
    shape_named,
    size,
)
from worlds import queries

QUERIES = queries(20, 5)


def shuffled(query: Query, random: st.DataObject) -> Query:
    below = [shuffled(branch, random) for branch in branches(query)]
    if isinstance(query, Intersect | Union):
        below = random.draw(st.permutations(below))
    return replace_branches(query, below)


def test_the_fourteen_shapes() -> None:
    assert tuple(SHAPES) == EPFO + NEGATION
    assert [len(list(query_ids(shape))) for shape in SHAPES.values()] == [2, 3, 4, 4, 6, 5, 5, 4, 5, 4, 6, 5, 5, 5]
    assert [has_complement(shape) for shape in SHAPES.values()] == [False] * 9 + [True] * 5
    assert SHAPES["pni"] == Intersect((Complement(Project(Project(Anchor(0), 1), 2)), Project(Anchor(3), 4)))
    for name, shape in SHAPES.items():
        assert nickname(shape) == name
        assert shape_named(name) == shape
        assert numbered(shape) == shape


def test_extra_shapes_have_names_and_are_none_of_the_fourteen() -> None:
    assert not EXTRA_SHAPES.keys() & SHAPES.keys()
    assert nickname(abstract(shape_named("p(p(p(p(e))))"))[0]) == "4p"
    assert nickname(abstract(shape_named("i(p(e),p(e),p(e),p(e))"))[0]) == "4i"
    assert {name: shape_named(name) for name in EXTRA_SHAPES} == EXTRA_SHAPES


@given(QUERIES)
def test_abstract_and_ground_are_inverse(query: Query) -> None:
    shape, ids = abstract(query)
    assert ground(shape, ids) == canonical(query)
    assert abstract(ground(shape, ids)) == (shape, ids)
    assert sorted(query_ids(shape)) == list(range(len(ids)))


@given(QUERIES, st.data())
def test_branch_order_does_not_count(query: Query, random: st.DataObject) -> None:
    assert abstract(shuffled(query, random)) == abstract(query)


@given(QUERIES)
def test_spelled_shapes_read_back(query: Query) -> None:
    shape, _ = abstract(query)
    assert shape_named(nickname(shape)) == shape


@given(QUERIES)
def test_positions_hold_entities_or_relations(query: Query) -> None:
    shape, _ = abstract(query)
    marked = ground(shape, [0 if position in anchor_positions(shape) else 1 for position in range(size(shape))])

    def check(node: Query) -> None:
        assert not (isinstance(node, Anchor) and node.entity != 0)
        assert not (isinstance(node, Project) and node.relation != 1)
        for branch in branches(node):
            check(branch)

    check(marked)


def test_depth_and_size() -> None:
    assert (depth(Anchor(1)), size(Anchor(1))) == (0, 1)
    assert (depth(SHAPES["3p"]), size(SHAPES["3p"])) == (3, 4)
    assert (depth(SHAPES["inp"]), size(SHAPES["inp"])) == (4, 7)


@pytest.mark.parametrize("name", ["", "5p", "x", "p", "p(", "p()", "p(e,e)", "i(e)", "i(e,e", "i(e,e)e", "p(" * 500])
def test_no_such_shape(name: str) -> None:
    with pytest.raises(QueryError):
        shape_named(name)


def test_a_shape_nested_too_deeply_is_called_so() -> None:
    with pytest.raises(QueryError, match="nested deeper than 200 levels"):
        shape_named("p(" * 201 + "e" + ")" * 201)
    assert depth(shape_named("p(" * 200 + "e" + ")" * 200)) == 200
