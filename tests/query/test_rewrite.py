"""Rewriting keeps the exact answers and does what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from query2particles.errors import UnsupportedError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union, branches
from query2particles.query.rewrite import de_morgan, flatten, lift_unions
from worlds import oracle, queries, random_graph, successors

GRAPH = random_graph(5, entities=12, relations=3, facts=50)
KNOWN = successors(GRAPH, "test")
EVERYTHING = frozenset(range(12))
QUERIES = queries(12, 3, max_leaves=7)


def nodes(query: Query) -> list[Query]:
    return [query] + [node for branch in branches(query) for node in nodes(branch)]


def answers(query: Query) -> set[int]:
    return oracle(query, KNOWN, EVERYTHING)


@settings(max_examples=1000)
@given(QUERIES)
def test_rules_keep_the_answers(query: Query) -> None:
    expected = answers(query)
    assert answers(flatten(query)) == expected
    assert answers(de_morgan(query)) == expected
    assert answers(lift_unions(query, limit=10_000)) == expected


@given(QUERIES)
def test_flat_queries_have_nothing_to_flatten(query: Query) -> None:
    flat = flatten(query)
    assert flatten(flat) == flat
    for node in nodes(flat):
        if isinstance(node, Intersect | Union | Complement):
            assert not any(type(branch) is type(node) for branch in branches(node))


@given(QUERIES)
def test_unions_go_where_they_should(query: Query) -> None:
    assert not any(isinstance(node, Union) for node in nodes(de_morgan(query)))
    lifted = lift_unions(query, limit=10_000)
    assert not any(isinstance(node, Union) for branch in branches(lifted) for node in nodes(branch))


def test_examples() -> None:
    a, b, c, d = (Project(Anchor(index), 0) for index in range(4))
    assert flatten(Intersect((Intersect((a, b)), c))) == Intersect((a, b, c))
    assert flatten(Complement(Complement(a))) == a
    assert lift_unions(Project(Union((a, b)), 2)) == Union((Project(a, 2), Project(b, 2)))
    assert lift_unions(Intersect((Union((a, b)), Union((c, d))))) == Union(
        tuple(Intersect((left, right)) for left in (a, b) for right in (c, d))
    )
    assert lift_unions(Complement(Union((a, b)))) == Intersect((Complement(a), Complement(b)))
    assert de_morgan(Union((a, Complement(b)))) == Complement(Intersect((Complement(a), b)))


def test_an_exploding_normal_form_is_refused() -> None:
    pair = Union((Anchor(0), Anchor(1)))
    assert len(branches(lift_unions(Intersect((pair,) * 8)))) == 256
    with pytest.raises(UnsupportedError, match="512 branches, above the limit of 256"):
        lift_unions(Intersect((pair,) * 9))
    with pytest.raises(UnsupportedError):
        lift_unions(Union(tuple(Anchor(index) for index in range(300))))
