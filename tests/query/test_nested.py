"""The benchmarks' nested lists."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from fuzzing import assert_only_query_errors
from query2particles.errors import QuerySyntaxError
from query2particles.graph.graph import Graph
from query2particles.query.algebra import (
    MAX_DEPTH,
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    depth,
)
from query2particles.query.names import Lexicon
from query2particles.query.nested import format_nested, from_lists, nested_template, parse_nested
from worlds import ENTITIES, RELATIONS, queries

PUBLISHED = {
    "1p": "[%d,[%d]]",
    "2p": "[%d,[%d,%d]]",
    "3p": "[%d,[%d,%d,%d]]",
    "2i": "[[%d,[%d]],[%d,[%d]]]",
    "3i": "[[%d,[%d]],[%d,[%d]],[%d,[%d]]]",
    "pi": "[[%d,[%d,%d]],[%d,[%d]]]",
    "ip": "[[[%d,[%d]],[%d,[%d]]],[%d]]",
    "2u": "[[%d,[%d]],[%d,[%d]],[-1]]",
    "up": "[[[%d,[%d]],[%d,[%d]],[-1]],[%d]]",
    "2in": "[[%d,[%d]],[%d,[%d,-2]]]",
    "3in": "[[%d,[%d]],[%d,[%d]],[%d,[%d,-2]]]",
    "inp": "[[[%d,[%d]],[%d,[%d,-2]]],[%d]]",
    "pin": "[[%d,[%d,%d]],[%d,[%d,-2]]]",
    "pni": "[[%d,[%d,%d,-2]],[%d,[%d]]]",
}


CHAINS_IN_CHAINS = "[1,[0]]"
"""Chains that are each short enough, one around the other: their depths add up."""
for _ in range(8):
    CHAINS_IN_CHAINS = f"[[{CHAINS_IN_CHAINS},[1,[0]]],[{','.join(['0'] * 190)}]]"


def test_the_published_forms() -> None:
    assert {name: nested_template(shape) for name, shape in SHAPES.items()} == PUBLISHED
    for name, template in PUBLISHED.items():
        text = template % tuple(range(template.count("%d")))
        assert abstract(from_lists(json.loads(text)))[0] == SHAPES[name]


@settings(max_examples=500)
@given(query=queries(len(ENTITIES), len(RELATIONS)))
def test_formatted_text_reads_back(named: Graph, query: Query) -> None:
    assert parse_nested(format_nested(query), Lexicon(named)) == query


def test_tuples_are_lists() -> None:
    assert from_lists(((3, (0, -2)), (4, (1,)))) == from_lists([[3, [0, -2]], [4, [1]]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("[1,[0]] x", "not JSON"),
        ("{}", "neither"),
        ("[]", "neither"),
        ("[[1,[0]]]", "neither"),
        ("[1]", "neither"),
        ("5", "neither"),
        ("null", "neither"),
        ('["Ann",["r"]]', "neither"),
        ("[true,[0]]", "neither"),
        ("[1,[true]]", "neither a relation"),
        ("[1,[0.5]]", "neither a relation"),
        ("[1,[-3]]", "neither a relation"),
        ("[1,[-2.0]]", "-2.0 is neither a relation"),
        ("[1,[0,-2.0]]", "-2.0 is neither a relation"),
        ("[[[1,[0]],[2,[0]]],[-2.0]]", "neither"),
        ("[[1,[0]],[2,[0]],[-1.0]]", "neither"),
        ("[1.0,[0]]", "neither"),
        ("[-1,[0]]", "not an entity"),
        ("[11,[0]]", "entity 11 does not exist"),
        ("[1,[8]]", "relation 8 does not exist"),
        ("[[1,[0]],[-1]]", "neither"),
        ("[[1,[0]],[2,[0]],[-1],[3,[0]]]", "neither"),
        ("[" * 10_000, "nested too deeply"),
        ("[1,[" + "0," * 5000 + "0]]", "nested deeper"),
        (CHAINS_IN_CHAINS, "nested deeper"),
        ("9" * 5000, "not JSON"),
        (" " * 1_000_000, "longer than 100,000 characters"),
    ],
)
def test_wrong_lists(named: Graph, text: str, words: str) -> None:
    with pytest.raises(QuerySyntaxError, match=words):
        parse_nested(text, Lexicon(named))


@pytest.mark.parametrize(
    ("text", "position", "length"),
    [
        ("[11,[0]]", 1, 2),
        ("[ 1,[0, 8]]", 8, 1),
        ("[[1,[0,-2]],[2,[8]]]", 16, 1),
        ("[[8,[0]],[9,[7]],[11,[7]],[-1]]", 18, 2),
        ("[[[8,[-0]],[8,[5]],[-1]],[-2, 800]]", 30, 3),
    ],
)
def test_an_error_about_an_id_points_at_it(named: Graph, text: str, position: int, length: int) -> None:
    with pytest.raises(QuerySyntaxError, match="does not exist") as caught:
        parse_nested(text, Lexicon(named))
    assert (caught.value.position, caught.value.length) == (position, length)


@pytest.mark.parametrize(
    "deeper",
    [
        lambda query: Project(query, 3),
        Complement,
        lambda query: Intersect((Anchor(1), query)),
        lambda query: Union((query, Anchor(1))),
        lambda query: Project(Intersect((query, Anchor(1))), 3) if depth(query) < MAX_DEPTH - 1 else Complement(query),
    ],
)
def test_trees_of_the_greatest_depth_read_back_and_deeper_ones_are_refused(
    named: Graph, deeper: Callable[[Query], Query]
) -> None:
    query: Query = Anchor(0)
    while depth(query) < MAX_DEPTH:
        query = deeper(query)
    text = format_nested(query)
    assert format_nested(parse_nested(text, Lexicon(named))) == text
    with pytest.raises(QuerySyntaxError, match="nested deeper"):
        parse_nested(format_nested(deeper(query)), Lexicon(named))


def test_an_error_about_lists_that_never_were_text_shows_no_text() -> None:
    with pytest.raises(QuerySyntaxError) as caught:
        from_lists([1, [0] * 201])
    assert str(caught.value) == "nested deeper than 200 levels"


@pytest.mark.slow
def test_no_text_raises_anything_but_our_errors(named: Graph) -> None:
    seeds = [template % tuple([1] * template.count("%d")) for template in PUBLISHED.values()]
    seeds.append(CHAINS_IN_CHAINS)
    assert_only_query_errors(lambda text: parse_nested(text, Lexicon(named)), seeds, '[],-0123456789"{}: e.')
