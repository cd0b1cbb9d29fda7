"""The benchmarks' nested lists of ids, as JSON.

    [e,[r₁,r₂]]                         from e follow r₁, then r₂
    [[…],[…]]                           intersection of branches
    [[…],[…],[-1]]                      union of branches
    [X,[r,-2]]                          from X (an entity or branches) follow r, then take the complement

Every tree of operators has such a form; the fourteen benchmark shapes have their published one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from query2particles.errors import QueryError, QuerySyntaxError, clipped
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    anchor_positions,
    numbered,
    query_ids,
)
from query2particles.query.grammar import check_length, check_level
from query2particles.query.names import Lexicon

__all__ = ["NEGATE", "UNITE", "format_nested", "from_lists", "nested_template", "parse_nested"]

UNITE, NEGATE = -1, -2

_NUMBER = re.compile(r"-?[0-9]+")


def parse_nested(text: str, lexicon: Lexicon) -> Query:
    """The query of a nested list, its ids checked against the graph."""
    check_length(text)
    _check_brackets(text)
    try:
        lists = json.loads(text)
    except json.JSONDecodeError as error:
        raise QuerySyntaxError(f"not JSON: {error.msg}", text, error.pos) from None
    except ValueError as error:  # an integer with thousands of digits
        raise QuerySyntaxError(f"not JSON: {error}", text, 0) from None
    query = from_lists(lists, text)
    _check_range(query, len(lexicon.graph.entities), 2 * len(lexicon.graph.relations), text)
    return query


def from_lists(lists: object, text: str = "") -> Query:
    """The query of nested lists (or tuples) of ids."""
    return _read(lists, text or None, 0)


def format_nested(query: Query) -> str:
    """The nested list of `query` as compact JSON, which `parse_nested` reads back as the same query."""
    return json.dumps(_lists(query), separators=(",", ":"))


@lru_cache(maxsize=1024)
def nested_template(shape: Query) -> str:
    """The JSON of a shape with `%d` in place of each id, in the order of the shape's positions."""

    def marked(lists: Any) -> str:
        if isinstance(lists, list):
            return "[" + ",".join(map(marked, lists)) + "]"
        return str(lists) if lists < 0 else "%d"

    return marked(_lists(shape))


def _lists(query: Query) -> list[Any]:
    """Chains gather their operators in one list; an anchor under anything else is a chain of no operators."""
    operators: list[int] = []
    while isinstance(query, Project | Complement):
        operators.append(query.relation if isinstance(query, Project) else NEGATE)
        query = query.query
    match query:
        case Anchor(entity):
            return [entity, operators[::-1]]
        case Intersect(queries):
            inner = [_lists(branch) for branch in queries]
        case Union(queries):
            inner = [*(_lists(branch) for branch in queries), [UNITE]]
    return [inner, operators[::-1]] if operators else inner


def _read(lists: object, text: str | None, level: int) -> Query:
    """The query of `lists`, which has `level` operators above it."""
    check_level(level, text)
    match lists:
        case [int() as entity, [*operators]] if not isinstance(entity, bool):
            if entity < 0:
                raise _wrong(f"{entity} is not an entity", text)
            check_level(level + len(operators), text)
            return _applied(Anchor(entity), operators, text)
        case [[_, *_] as inner, [int(), *_] as operators] if not _is_chain(operators) and operators != [UNITE]:
            return _applied(_read(inner, text, level + len(operators)), operators, text)
        case [*several, [int(-1)]] if len(several) >= 2:  # a bare -1 would match -1.0 too
            return Union(tuple(_read(branch, text, level + 1) for branch in several))
        case [_, _, *_]:
            return Intersect(tuple(_read(branch, text, level + 1) for branch in lists))
    shown = json.dumps(lists)[:60]
    raise _wrong(f"{shown} is neither [entity,[relations]] nor a list of branches", text)


def _is_chain(lists: Sequence[object]) -> bool:
    """Whether [a, b] is an entity with its operators, rather than a list of operators."""
    return len(lists) == 2 and isinstance(lists[1], list | tuple)


def _applied(query: Query, operators: Sequence[object], text: str | None) -> Query:
    for operator in operators:
        match operator:
            case int(-2):
                query = Complement(query)
            case int() if operator >= 0 and not isinstance(operator, bool):
                query = Project(query, operator)
            case _:
                raise _wrong(f"{json.dumps(operator)[:60]} is neither a relation nor {NEGATE}", text)
    return query


def _check_range(query: Query, entities: int, relations: int, text: str) -> None:
    """Refuse ids that the graph does not have, at their place: but for the signs, numbers of the text are the ids."""
    places = (number for number in _NUMBER.finditer(text) if int(number[0]) >= 0)
    anchors = frozenset(anchor_positions(numbered(query)))
    for position, (own, place) in enumerate(zip(query_ids(query), places, strict=True)):
        kind, known = ("entity", entities) if position in anchors else ("relation", relations)
        if own >= known:
            reason = f"{kind} {clipped(str(own))} does not exist; the graph has 0 … {known - 1}"
            raise QuerySyntaxError(reason, text, place.start(), len(place[0]))


def _check_brackets(text: str) -> None:
    """Refuse deep nesting before the JSON reader, which recurses, sees it."""
    level = 0
    for position, character in enumerate(text):
        level += (character in "[{") - (character in "]}")
        if level > 400:
            raise QuerySyntaxError("nested too deeply", text, position)


def _wrong(reason: str, text: str | None) -> QueryError:
    return QuerySyntaxError(reason, text, 0 if text else None)
