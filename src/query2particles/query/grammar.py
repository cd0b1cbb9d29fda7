"""Reading text by a grammar (Lark, LALR), with our errors in place of Lark's."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from query2particles.errors import QuerySyntaxError
from query2particles.query.algebra import MAX_DEPTH

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

__all__ = [
    "MAX_LENGTH",
    "NAME_TERMINALS",
    "SPARQL_START",
    "check_length",
    "check_level",
    "name_of",
    "quoted",
    "read",
    "span_of",
    "unquoted",
]

NAME_TERMINALS = r"""
QUOTED: /"(?:[^"\\\n]|\\.)*"/
IRI: /<[^<>"\s]*>/
"""
"""How odd names are written in every syntax of ours: quoted, or as an IRI between angle brackets."""

SPARQL_START = re.compile(r"\s*(#[^\n]*\n\s*)*(select|prefix|base|ask|construct|describe)\b", re.IGNORECASE)
"""What makes a text SPARQL. Whoever reads a text of no named syntax looks for it; whoever prints one must avoid it."""

MAX_LENGTH = 100_000

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


@lru_cache(maxsize=8)
def _parser(grammar: str) -> Lark:
    from lark import Lark

    return Lark(grammar, parser="lalr", maybe_placeholders=False)


def read(grammar: str, text: str, described: dict[str, str]) -> Tree[Token] | Token:
    """The syntax tree of `text`. `described` says in words what the terminals are, for error messages."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    check_length(text)
    try:
        return _parser(grammar).parse(text)
    except UnexpectedInput as error:
        expected: set[str] = set()
        position = error.pos_in_stream if error.pos_in_stream is not None else len(text)
        found = f"unexpected {text[position : position + 1]!r}"
        if isinstance(error, UnexpectedCharacters):
            if text[position : position + 1] == '"':  # of a whole name in quotes Lark would make an unexpected token
                here = " on its line" if "\n" in text[position:] else ""
                raise QuerySyntaxError(f"this quote is never closed{here}", text, position) from None
            expected = set(error.allowed or ())
        elif isinstance(error, UnexpectedToken):
            expected = set(error.accepts or error.expected)
            if error.token.type == "$END":
                position, found = len(text), "the question ends too early"
            else:
                found = f"unexpected {str(error.token)[:40]!r}"
        words = sorted({described.get(terminal, terminal.lower()) for terminal in expected} - {"$end"})
        hint = f"; expected {' or '.join(words)}" if words else ""
        raise QuerySyntaxError(found + hint, text, position) from None


def check_length(text: str) -> None:
    """Refuse texts that would keep a parser busy for long."""
    if len(text) > MAX_LENGTH:
        raise QuerySyntaxError(f"longer than {MAX_LENGTH:,} characters", text, MAX_LENGTH)


def check_level(level: int, text: str | None) -> None:
    """Refuse trees deeper than the limit while they are being built."""
    if level > MAX_DEPTH:
        raise QuerySyntaxError(f"nested deeper than {MAX_DEPTH} levels", text, 0)


def name_of(token: Tree[Token] | Token, text: str) -> tuple[str, str, int | None, int]:
    """The name that a token stands for and where it stands, as `Lexicon` takes them."""
    return unquoted(str(token)), text, *span_of(token)


def span_of(token: Tree[Token] | Token) -> tuple[int | None, int]:
    """Where a token starts, and how long it is."""
    return token.start_pos, len(token)  # type: ignore[union-attr, arg-type]  # asked of tokens only


def unquoted(token: str) -> str:
    """The name that a QUOTED or IRI token stands for; any other token is its own name."""
    if token.startswith('"'):
        return _ESCAPED.sub(_unescape, token[1:-1])
    if token.startswith("<") and token.endswith(">"):
        return token[1:-1]
    return token


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        code = int(escape[1:], 16)
        return chr(code) if code <= 0x10FFFF else match[0]
    return _ESCAPES.get(escape, escape)


def quoted(name: str) -> str:
    """`name` as a QUOTED token."""
    escaped = "".join(
        "\\" + c
        if c in '"\\'
        else c
        if c.isprintable()
        else f"\\u{ord(c):04x}"
        if ord(c) < 0x10000
        else f"\\U{ord(c):08x}"
        for c in name
    )
    return f'"{escaped}"'
