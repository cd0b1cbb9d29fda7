"""Four ways in, one tree out: which syntax a text is in, and the table of parsers and printers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

from query2particles.errors import UsageError
from query2particles.query.algebra import Query
from query2particles.query.grammar import SPARQL_START
from query2particles.query.logic import format_logic, parse_logic
from query2particles.query.names import Lexicon
from query2particles.query.nested import format_nested, parse_nested
from query2particles.query.sparql import parse_sparql
from query2particles.query.text import format_path, parse_path

__all__ = ["SYNTAXES", "Syntax", "format_query", "guess_syntax", "parse_query"]

Syntax: TypeAlias = Literal["path", "logic", "sparql", "json"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)

_PARSERS: Mapping[Syntax, Callable[[str, Lexicon], Query]] = {
    "path": parse_path,
    "logic": parse_logic,
    "sparql": parse_sparql,
    "json": parse_nested,
}
_PRINTERS: Mapping[Syntax, Callable[[Query, Lexicon], str]] = {
    "path": format_path,
    "logic": format_logic,
    "json": lambda query, _: format_nested(query),
}
_LOGIC = re.compile(r"\s*\?\w+\s*(:|,)")


def guess_syntax(text: str) -> Syntax:
    """`[…` is JSON, `SELECT …` or `PREFIX …` SPARQL, `?x : …` logic; anything else is the path syntax."""
    if text.lstrip().startswith("["):
        return "json"
    if SPARQL_START.match(text):
        return "sparql"
    return "logic" if _LOGIC.match(text) else "path"


def parse_query(text: str, lexicon: Lexicon, syntax: Syntax | None = None) -> Query:
    """The query that `text` asks, in the syntax named or guessed."""
    return _PARSERS[syntax or guess_syntax(text)](text, lexicon)


def format_query(query: Query, lexicon: Lexicon, syntax: Syntax = "path") -> str:
    """The text of `query`, which `parse_query` reads back as the same query, also where it must guess the syntax."""
    if syntax not in _PRINTERS:
        raise UsageError(f"queries cannot be printed as {syntax}; say one of {', '.join(_PRINTERS)}")
    return _PRINTERS[syntax](query, lexicon)
