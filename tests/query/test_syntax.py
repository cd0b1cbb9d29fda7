"""Which syntax a text is in, and printed queries that read back without naming it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query2particles.errors import UsageError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import Anchor, Project, Query
from query2particles.query.names import Lexicon
from query2particles.query.syntax import SYNTAXES, Syntax, format_query, guess_syntax, parse_query
from worlds import queries

PRINTED: tuple[Syntax, ...] = ("path", "logic", "json")

NASTY = [
    *("[", "[1,[0]]", "{}", "select", "SELECT", "Prefix", "base", "ask", "construct", "DESCRIBE", "\u017felect"),
    *("select-me", "base:x", "selected", "?x", "?x:y", "?x,", "?", "#", "# remark", "#tag", "-", "-k", "--help"),
    *("", " ", "a b", " a", "a ", "\n", "a\nb", "\t", "\r", "\x00", "\x1b[0m", "\x1c", "\x7f", "\x85", "\u2028"),
    *("\u200b", "\u202e", "\xa0", "\u3000", "\ufeff", "\U000e0001", "é", "🜚", "a.b", ".", "^a", "!a"),
    *("&", "|", "(a)", '"', '"a"', "\\", "\\n", "\\u0041", "<a>", "<", ">", "a,b", ":", ":a", "a:b", "=", "a=b", "%20"),
    *("exists", "Forall", "not", "AND", "or", "∃", "∀y", "¬", "∧", "∨", "≠", "x", "y", "'", "`", "$x", "*", "5", "-1"),
]


def _lexicon(names: list[str], prefixes: dict[str, str]) -> Lexicon:
    zero = np.zeros(1, dtype=np.int64)
    vocabularies = Vocabulary.of(names), Vocabulary.of(names)
    return Lexicon(Graph.of(*vocabularies, {"train": (zero, zero, zero)}, {"prefixes": prefixes}))


NASTILY_NAMED = _lexicon(NASTY, {})


def _assert_reads_back(query: Query, lexicon: Lexicon) -> None:
    for syntax in PRINTED:
        text = format_query(query, lexicon, syntax)
        assert guess_syntax(text) == syntax
        assert parse_query(text, lexicon) == query
        assert text.isprintable(), "it can be shown, and stands on one line"
        assert not text.startswith(("#", "-")), "neither a remark in a file of questions nor an option"


@settings(max_examples=500, deadline=None)
@given(queries(len(NASTY), len(NASTY)))
def test_printed_queries_read_back_without_naming_the_syntax(query: Query) -> None:
    _assert_reads_back(query, NASTILY_NAMED)


@pytest.mark.parametrize("index", range(len(NASTY)), ids=map(ascii, NASTY))
def test_each_nasty_name_reads_back_at_the_beginning(index: int) -> None:
    _assert_reads_back(Anchor(index), NASTILY_NAMED)
    _assert_reads_back(Project(Anchor(index), 2 * index), NASTILY_NAMED)
    _assert_reads_back(Project(Anchor(index), 2 * index + 1), NASTILY_NAMED)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=8))
def test_any_name_reads_back(name: str) -> None:
    _assert_reads_back(Project(Anchor(0), 0), _lexicon([name], {}))


def test_prefixes_that_are_words_of_sparql_read_back() -> None:
    names = ["http://example.org/a", "http://example.org/b"]
    lexicon = _lexicon(names, {"base": "http://example.org/"})
    assert format_query(Anchor(0), lexicon) == '"base:a"'
    _assert_reads_back(Project(Anchor(0), 3), lexicon)


def test_plain_names_stay_without_quotes() -> None:
    names = ["selected", "a-b", "a#b", "é", "x?", "/people/person", "$x"]
    lexicon = _lexicon(names, {})
    assert [format_query(Anchor(index), lexicon) for index in range(len(names))] == names


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        (" [1,[0]]", "json"),
        ("select ?x { }", "sparql"),
        ("# a remark\nPREFIX : <a>", "sparql"),
        ("?x : ?x = Ann", "logic"),
        ("?x, ?y : ", "logic"),
        ("Ann.citizen_of", "path"),
        ("selected.citizen_of", "path"),
        ('"select".citizen_of', "path"),
        ("", "path"),
    ],
)
def test_the_beginning_tells_the_syntax(text: str, syntax: Syntax) -> None:
    assert guess_syntax(text) == syntax


def test_sparql_is_not_printed() -> None:
    assert set(SYNTAXES) == {*PRINTED, "sparql"}
    with pytest.raises(UsageError, match="path, logic, json"):
        format_query(Anchor(0), NASTILY_NAMED, "sparql")
