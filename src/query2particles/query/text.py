"""The path syntax, which reads from left to right like the walk.

    ("Turing Award".^award_received & !Canada.^citizen_of).graduated_from

`.` follows a relation, `^` its inverse; `&` and, `|` or, `!` not, parentheses. `.` binds closest, then `!`, `&`, `|`.
Names with spaces or signs stand in double quotes, IRIs also in angle brackets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from query2particles.errors import UnknownNameError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
from query2particles.query.grammar import NAME_TERMINALS, SPARQL_START, check_level, name_of, quoted, read
from query2particles.query.names import Lexicon

if TYPE_CHECKING:
    from lark import Token, Tree

__all__ = ["format_path", "parse_path"]

_BARE_CHARACTER = r'[^\s.&|!^()"<>\\]'

_GRAMMAR = (
    r"""
?start: union
?union: intersection ("|" intersection)*
?intersection: negation ("&" negation)*
?negation: "!" negation -> complement
         | path
?path: anchor
     | path "." NAME_ -> project
     | path "." "^" NAME_ -> inverse
     | "(" union ")"
anchor: NAME_
NAME_: QUOTED | IRI | BARE
BARE: /BARE_CHARACTER+/
%ignore /\s+/
""".replace("BARE_CHARACTER", _BARE_CHARACTER)
    + NAME_TERMINALS
)

_DESCRIBED = {
    "NAME_": "a name",
    "DOT": "'.'",
    "VBAR": "'|'",
    "BANG": "'!'",
    "CIRCUMFLEX": "'^'",
    "LPAR": "'('",
    "RPAR": "')'",
    "AMPERSAND": "'&'",
}

_BARE = re.compile(rf"(?![\[?#-]){_BARE_CHARACTER}+")
_DOTTED = re.compile(r"[^&|!^()\"<>\\]*")


def parse_path(text: str, lexicon: Lexicon) -> Query:
    """The query that `text` asks."""
    tree = read(_GRAMMAR, text, _DESCRIBED)
    try:
        return _build(tree, lexicon, text, 0)
    except UnknownNameError as error:
        if whole := _dotted(error, lexicon):
            advice = f"a name with a dot stands in quotes: {quoted(whole)}"
            place = error.text, error.position, error.length
            raise UnknownNameError(error.kind, error.name, (whole,), *place, advice=advice) from None
        raise


def _dotted(error: UnknownNameError, lexicon: Lexicon) -> str | None:
    """The longest name with dots that stands in the text where an unknown name was found."""
    vocabulary = lexicon.graph.entities if error.kind == "entity" else lexicon.graph.relations
    found = _DOTTED.match(error.text or "", error.position or 0)
    name = found[0].rstrip() if found else ""
    while "." in name:
        if vocabulary.find(name) is not None or vocabulary.find_label(name):
            return name
        name = name.rpartition(".")[0].rstrip()
    return None


def _build(tree: Tree[Token] | Token, lexicon: Lexicon, text: str, level: int) -> Query:
    check_level(level, text)
    kind, parts = tree.data, tree.children  # type: ignore[union-attr]  # the grammar leaves no bare token
    if kind == "anchor":
        return Anchor(lexicon.entity(*name_of(parts[0], text)))
    below = [_build(part, lexicon, text, level + 1) for part in parts if not isinstance(part, str)]
    match kind:
        case "project":
            return Project(below[0], lexicon.relation(*name_of(parts[1], text)))
        case "inverse":
            return Project(below[0], lexicon.relation(*name_of(parts[1], text)) ^ 1)
        case "complement":
            return Complement(below[0])
        case "intersection":
            return Intersect(tuple(below))
        case _:
            return Union(tuple(below))


def format_path(query: Query, lexicon: Lexicon) -> str:
    """The text of `query`, which `parse_path` reads back as the same query."""
    match query:
        case Anchor(entity):
            return _written(lexicon.entity_name(entity))
        case Project(inner, relation):
            name, inverse = lexicon.relation_name(relation)
            below = _within(inner, lexicon, loose=(Union, Intersect, Complement))
            return f"{below}.{'^' if inverse else ''}{_written(name)}"
        case Complement(inner):
            return "!" + _within(inner, lexicon, loose=(Union, Intersect))
        case Intersect(queries):
            return " & ".join(_within(branch, lexicon, loose=(Union, Intersect)) for branch in queries)
        case Union(queries):
            return " | ".join(_within(branch, lexicon, loose=(Union,)) for branch in queries)


def _within(query: Query, lexicon: Lexicon, loose: tuple[type[Query], ...]) -> str:
    written = format_path(query, lexicon)
    return f"({written})" if isinstance(query, loose) else written


def _written(name: str) -> str:
    """`name`, in quotes unless it is plain.

    A text may begin with it, and must not look like JSON (`[`), logic (`?`), SPARQL, a remark in a file of questions
    (`#`) or an option on a command line (`-`).
    """
    is_plain = _BARE.fullmatch(name) and name.isprintable() and not SPARQL_START.match(name)
    return name if is_plain else quoted(name)
