"""The path syntax: pairs of text and result, round trips, and errors under the right word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from fuzzing import assert_only_query_errors
from pairs import pairs
from query2particles.errors import AmbiguousNameError, QueryError, QuerySyntaxError, UnknownNameError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import Anchor, Project, Query
from query2particles.query.names import Lexicon
from query2particles.query.nested import format_nested
from query2particles.query.text import format_path, parse_path
from worlds import ENTITIES, RELATIONS, queries


@pytest.mark.parametrize(("text", "outcome"), pairs("path.txt"))
def test_cases(named: Graph, text: str, outcome: str) -> None:
    assert f"=> {format_nested(parse_path(text, Lexicon(named)))}" == outcome


@settings(max_examples=500)
@given(query=queries(len(ENTITIES), len(RELATIONS)))
def test_formatted_text_reads_back(named: Graph, query: Query) -> None:
    assert parse_path(format_path(query, Lexicon(named)), Lexicon(named)) == query


@pytest.mark.parametrize(
    ("text", "kind", "words", "position"),
    [
        ("Canda.^citizen_of", UnknownNameError, "did you mean 'Canada'", 0),
        ("Canada.^citizenof", UnknownNameError, "no relation is called 'citizenof'.*'citizen_of'", 8),
        ("Springfield", AmbiguousNameError, r"Springfield \(Illinois\).*Springfield \(Ohio\)", 0),
        ("Canada & ", QuerySyntaxError, "ends too early", 9),
        ("Canada Ann", QuerySyntaxError, "unexpected 'Ann'", 7),
        ("(Canada", QuerySyntaxError, r"ends too early; expected .*'\)'", 7),
        ("", QuerySyntaxError, "ends too early", 0),
        ('"Canada', QuerySyntaxError, "^this quote is never closed\n", 0),
        ('Ann & "Canada.^citizen_of', QuerySyntaxError, "^this quote is never closed\n", 6),
        ('Ann."lives in', QuerySyntaxError, "^this quote is never closed\n", 4),
        ('Canada" & Ann', QuerySyntaxError, "^this quote is never closed\n", 6),
        ('"Canada\\"', QuerySyntaxError, "^this quote is never closed\n", 0),
        ('"Turing\nAward"', QuerySyntaxError, "^this quote is never closed on its line\n", 0),
        ('Ann "Canada"', QuerySyntaxError, "unexpected '\"Canada\"'", 4),
        ("Canada.^", QuerySyntaxError, "expected a name", 8),
        ("!" * 10_000 + "Canada", QuerySyntaxError, "nested deeper", 0),
        ("Ann & " * 200_000, QuerySyntaxError, "longer than 100,000 characters", 100_000),
    ],
)
def test_errors_point_at_the_spot(named: Graph, text: str, kind: type[QueryError], words: str, position: int) -> None:
    with pytest.raises(kind, match=words) as caught:
        parse_path(text, Lexicon(named))
    assert caught.value.position == position
    assert "^" in str(caught.value).splitlines()[-1]


def test_the_caret_stands_under_the_word(named: Graph) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_path("Ann\n& Bobb.citizen_of", Lexicon(named))
    assert str(caught.value).splitlines()[1:] == ["  & Bobb.citizen_of", "    ^^^^"]


def test_names_resolve_by_name_then_prefix_then_label(named: Graph) -> None:
    lexicon = Lexicon(named)
    assert parse_path('"Springfield (Ohio)"', lexicon) == parse_path('"Springfield (Ohio)"', lexicon)
    with pytest.raises(UnknownNameError):
        parse_path("ex:nobody", lexicon)


@pytest.mark.parametrize(
    ("text", "hint", "position"),
    [
        ("a.b.^likes.to", '"a.b"', 0),
        ("Ann & a . b", "", 6),
        ("Ann & St. Louis.^likes", '"St. Louis"', 6),
        ("a.b.c.d", '"a.b.c"', 0),
        ("Ann.likes.to", '"likes.to"', 4),
        ("(Ann.^likes.to | Ann).^likes.to", '"likes.to"', 6),
        ("The label.^likes", "", 0),
        ("A.C..^likes", "", 0),
        ("b.b", "", 0),
    ],
)
def test_a_dotted_name_without_its_quotes_is_recognized(text: str, hint: str, position: int) -> None:
    zero = np.zeros(1, dtype=np.int64)
    entities = Vocabulary.of(["Ann", "a.b", "a.b.c", "St. Louis"])
    lexicon = Lexicon(Graph.of(entities, Vocabulary.of(["likes.to"]), {"train": (zero, zero, zero)}, {}))
    with pytest.raises(QueryError) as caught:
        parse_path(text, lexicon)
    if hint:
        assert isinstance(caught.value, UnknownNameError)
        assert caught.value.position == position
        assert caught.value.reason.endswith(f"; a name with a dot stands in quotes: {hint}")
    else:
        assert "in quotes" not in caught.value.reason


def test_parentheses_do_not_count_as_depth(named: Graph) -> None:
    assert parse_path("(" * 5000 + "Ann" + ")" * 5000, Lexicon(named)) == parse_path("Ann", Lexicon(named))


@pytest.mark.slow
def test_no_text_raises_anything_but_our_errors(named: Graph) -> None:
    seeds = [text for text, _ in pairs("path.txt")]
    assert_only_query_errors(lambda text: parse_path(text, Lexicon(named)), seeds, '.^&|!()"<>\\ \n')


def test_names_are_printed_with_the_prefixes_of_the_graph() -> None:
    names = ["http://example.org/ann", "http://example.org/people/bob", "ex:cy", "http://example.org/cy"]
    prefixes = {"ex": "http://example.org/", "people": "http://example.org/people/"}
    zeros = np.zeros(4, dtype=np.int64)
    vocabularies = Vocabulary.of(names), Vocabulary.of(["http://example.org/knows"])
    graph = Graph.of(*vocabularies, {"train": (np.arange(4), zeros, zeros)}, {"prefixes": prefixes})
    lexicon = Lexicon(graph)
    printed = [format_path(Project(Anchor(entity), 1), lexicon) for entity in range(4)]
    assert printed[:3] == ["ex:ann.^ex:knows", "people:bob.^ex:knows", "ex:cy.^ex:knows"]
    assert printed[3] == '"http://example.org/cy".^ex:knows'
    assert [parse_path(text, lexicon) for text in printed] == [Project(Anchor(entity), 1) for entity in range(4)]
