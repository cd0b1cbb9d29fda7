"""SPARQL text cut into tokens, before rdflib parses it.

rdflib's parser is slow, deeply recursive and tells little about errors. Tokens are enough to keep long or deeply nested
texts away from it, to refuse at their place the words of SPARQL that the subset leaves out, to explain common slips,
and to say where a name stands.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from query2particles.errors import QuerySyntaxError, UnsupportedError
from query2particles.query.variables import Span

__all__ = ["COMPUTED", "Places", "Token", "check", "explain", "tokens_of"]

MAX_LENGTH = 10_000
MAX_NESTING = 20
"""rdflib takes half a second for the one, and most of Python's stack for the other."""

_TOKEN = re.compile(
    r"""
    (?P<space>   \s+ | \#[^\n]* )
  | (?P<iri>     <[^<>"{}|^`\\\x00-\x20]*> )
  | (?P<string>  "{3}(?:[^\\]|\\.)*?"{3} | '{3}(?:[^\\]|\\.)*?'{3} | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
  | (?P<variable>[?$]\w+ )
  | (?P<name>    (?:[^\W\d_](?:[\w.-]{0,60}[\w-])?|_)?:(?:[\w:-]|%[0-9a-fA-F]{2}|\\[^\w\s]|\.(?=[\w:%\\.-]))* )
  | (?P<number>  [+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)? )
  | (?P<word>    [^\W\d]\w* )
  | (?P<literal> @[a-zA-Z]+(?:-[a-zA-Z0-9]+)* | \^\^ )
  | (?P<sign>    . )
    """,
    re.VERBOSE | re.DOTALL,
)

_SUBSET = frozenset(
    ("SELECT", "DISTINCT", "REDUCED", "WHERE", "PREFIX", "BASE", "UNION", "MINUS", "FILTER", "NOT", "EXISTS", "A")
)

COMPUTED = "expressions and aggregates: a question asks for the entities that one variable stands for"

_UPDATES = ("INSERT", "DELETE", "LOAD", "CLEAR", "DROP", "CREATE", "ADD", "MOVE", "COPY", "WITH")

_BEYOND = {
    "OPTIONAL": "OPTIONAL: every part of a question must hold",
    "GRAPH": "GRAPH: a question is about one graph",
    "FROM": "FROM: a question is about one graph",
    "SERVICE": "SERVICE: a question is about one graph",
    "BIND": "BIND: values cannot be computed",
    "VALUES": "VALUES: write a UNION of patterns with one entity each",
    "ORDER": "ORDER BY: answers are a set; a method that ranks them has its own order",
    "LIMIT": "LIMIT: the number of answers is an option of its own; use -k",
    "OFFSET": "OFFSET: the number of answers is an option of its own; use -k",
    "GROUP": "GROUP BY: values cannot be aggregated",
    "HAVING": "HAVING: values cannot be aggregated",
    "AS": COMPUTED,
    "ASK": "ASK: write SELECT of one variable",
    "CONSTRUCT": "CONSTRUCT: write SELECT of one variable",
    "DESCRIBE": "DESCRIBE: write SELECT of one variable",
    "TRUE": "true is no name; an entity of that name stands in quotes",
    "FALSE": "false is no name; an entity of that name stands in quotes",
    **dict.fromkeys(_UPDATES, "an update: a question only reads the graph"),
}
"""Words of SPARQL that the subset leaves out, with the reason. Names never look like words, so this is exact."""

_CODE_POINT = re.compile(r"(?<!\\)(?:\\\\)*\\[uU]")
_REPEATED = re.compile(r"\{\s*(?:[0-9]+\s*(?:,\s*[0-9]*\s*)?|,\s*[0-9]+\s*)\}")
_CLOSED_BY = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    position: int

    @property
    def span(self) -> Span:
        return self.position, len(self.text)

    @property
    def key(self) -> str:
        """The text in one spelling: `?x` and `$x`, "A" and 'A', `MINUS` and `minus` are the same."""
        match self.kind:
            case "variable":
                return f"?{self.text[1:]}"
            case "string":
                return '"' + self.text.strip("\"'") + '"'
            case "word":
                return self.text.upper()
            case _:
                return self.text


class Places:
    """Where the words, names and variables of a text stand."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for token in tokens:
            self._spans.setdefault(token.key, []).append((token.position, len(token.text)))
        self._read = self.first("{")[0] or 0

    def first(self, key: str) -> Span:
        return self._spans[key][0] if key in self._spans else (None, 1)

    def following(self, key: str) -> Span:
        """The next place behind the last one that was found so: syntax trees are read in the order of the text."""
        spans = self._spans.get(key, [])
        index = bisect_left(spans, (self._read, 0))
        if index == len(spans):
            return self.first(key)
        self._read = sum(spans[index])
        return spans[index]

    def preceding(self, key: str, place: Span) -> Span:
        """The last place before another one; that one itself if there is none."""
        spans = self._spans.get(key, [])
        index = len(spans) if place[0] is None else bisect_left(spans, place)
        return spans[index - 1] if index else place


def tokens_of(text: str) -> list[Token]:
    """All of `text` but spaces and comments."""
    if len(text) > MAX_LENGTH:
        raise QuerySyntaxError(f"longer than {MAX_LENGTH:,} characters", text, MAX_LENGTH)
    found = (Token(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(text))
    return [token for token in found if token.kind != "space"]


def check(tokens: Sequence[Token], text: str) -> None:
    """Refuse what is nested too deeply for rdflib or known to be outside the subset."""
    nesting = selects = 0
    for token in tokens:
        nesting += (token.text in _CLOSED_BY) - (token.text in _CLOSED_BY.values())
        if nesting > MAX_NESTING:
            raise QuerySyntaxError(f"nested deeper than {MAX_NESTING} levels", text, token.position)
        if (token.kind == "sign" and token.text == "\\") or (token.kind == "string" and _CODE_POINT.search(token.text)):
            raise QuerySyntaxError("an escape that is not read here; write the character itself", text, *token.span)
        if token.text == "{" and (repeated := _REPEATED.match(text, token.position)):
            reason = f"the path operator {repeated[0]}: write the hops out, joined by '/'"
            raise UnsupportedError(reason, text, token.position, len(repeated[0]))
        word = token.text.upper() if token.kind == "word" else ""
        selects += word == "SELECT"
        if word in _BEYOND:
            raise UnsupportedError(_BEYOND[word], text, *token.span)
        if selects > 1:
            raise UnsupportedError("a SELECT within a SELECT: write its pattern in its place", text, *token.span)
        if token.kind == "number":
            raise UnsupportedError("a number is no name; an entity of that name stands in quotes", text, *token.span)
        if token.kind == "literal":
            raise UnsupportedError("a literal with a language or type: write the name alone", text, *token.span)


def explain(tokens: Sequence[Token], text: str, position: int) -> QuerySyntaxError:
    """Why `text` is no SPARQL. rdflib knows the `position` where its outermost pattern failed; we may know better."""
    opened: list[Token] = []
    for token, following in zip_longest(tokens, tokens[1:]):
        if token.kind == "sign" and token.text in "\"'":
            return QuerySyntaxError("this quote is never closed", text, token.position)
        is_call = following is not None and following.text == "("
        if token.kind == "word" and token.text.upper() not in _SUBSET and not is_call:
            reason = f'unexpected {token.text[:40]!r}; names are written :name, <name> or "name"; a space is %20'
            return QuerySyntaxError(reason, text, *token.span)
        if token.text in _CLOSED_BY:
            opened.append(token)
        elif token.text in _CLOSED_BY.values() and (not opened or _CLOSED_BY[opened.pop().text] != token.text):
            return QuerySyntaxError(f"unexpected {token.text!r}", text, token.position)
    if opened:
        return QuerySyntaxError(f"{opened[-1].text!r} is never closed", text, opened[-1].position)
    if position >= len(text.rstrip()):
        return QuerySyntaxError("the question ends too early", text, len(text))
    return QuerySyntaxError("not SPARQL from here on", text, position)
