"""Rules from query to query; each keeps the exact answers.

flatten      (A & B) & C → A & B & C, the same for |, and !!A → A
lift_unions  unions to the root (disjunctive normal form): (A | B).r → A.r | B.r,  (A | B) & C → A & C | B & C
de_morgan    A | B → !(!A & !B): no unions left
"""

from __future__ import annotations

from math import prod
from typing import Literal, TypeAlias

from query2particles.errors import UnsupportedError
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    replace_branches,
)

__all__ = ["DNF_LIMIT", "Unions", "de_morgan", "flatten", "lift_unions"]

Unions: TypeAlias = Literal["native", "dnf", "de-morgan"]
"""How unions are answered: by the method's own operator, lifted to the root, or rewritten with complements."""

DNF_LIMIT = 256
"""A normal form of more branches than this is refused: it grows exponentially."""


def flatten(query: Query) -> Query:
    """The same question with no intersection directly in an intersection, no union in a union, no double complement."""
    below = [flatten(branch) for branch in branches(query)]
    match query, below:
        case Complement(), [Complement(inner)]:
            return inner
        case ((Intersect() | Union()), _):
            parts = [
                part for branch in below for part in (branches(branch) if type(branch) is type(query) else (branch,))
            ]
            return replace_branches(query, parts)
        case _:
            return replace_branches(query, below)


def lift_unions(query: Query, limit: int = DNF_LIMIT) -> Query:
    """The same question as one union, at the root, of queries without unions; complements are pushed down as needed."""
    parts = _disjuncts(flatten(query), limit)
    return parts[0] if len(parts) == 1 else Union(tuple(parts))


def de_morgan(query: Query) -> Query:
    """The same question without unions."""
    below = [de_morgan(branch) for branch in branches(query)]
    if isinstance(query, Union):
        return flatten(Complement(Intersect(tuple(Complement(branch) for branch in below))))
    return replace_branches(query, below)


def _disjuncts(query: Query, limit: int) -> list[Query]:
    """Queries without unions whose union is `query`."""
    match query:
        case Anchor():
            return [query]
        case Project(inner, relation):
            return [Project(part, relation) for part in _disjuncts(inner, limit)]
        case Union(queries):
            parts = [part for branch in queries for part in _disjuncts(branch, limit)]
            _check(len(parts), limit)
            return parts
        case Intersect(queries):
            choices = [_disjuncts(branch, limit) for branch in queries]
            _check(prod(map(len, choices)), limit)
            combined: list[list[Query]] = [[]]
            for parts in choices:
                combined = [[*chosen, part] for chosen in combined for part in parts]
            return [flatten(Intersect(tuple(chosen))) for chosen in combined]
        case Complement(inner):
            # !(A | B) = !A & !B: one query without unions, as the complement of each part has none.
            negated: list[Query] = [Complement(part) for part in _disjuncts(inner, limit)]
            return [flatten(negated[0] if len(negated) == 1 else Intersect(tuple(negated)))]


def _check(count: int, limit: int) -> None:
    if count > limit:
        raise UnsupportedError(
            f"lifting the unions of this question gives {count} branches, above the limit of {limit}; "
            "ask with native unions, or by De Morgan"
        )
