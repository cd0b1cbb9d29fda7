"""Questions as trees of five operators, over integer ids only.

    Query = Anchor | Project | Intersect | Union | Complement

A query's *shape* is the same tree whose ids are positions 0, 1, 2 … into a row of ids, counted from left to right, an
anchor before the relations applied to it:

    shape("2i") = Intersect((Project(Anchor(0), 1), Project(Anchor(2), 3)))     ids = (e₁, r₁, e₂, r₂)

Shapes are what gets compiled; a batch is {shape: ids of n queries}. Branches of a shape stand in one canonical order
(deepest first, then positive before negated), so that A & B and B & A have one shape. The order agrees with the
published order of the fourteen benchmark shapes, whose nicknames are the table `SHAPES`; `EXTRA_SHAPES` are known by
name as well, and are meant only where they are named.

Relations come in pairs: 2k is a relation as stored, 2k + 1 its inverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from query2particles.errors import QueryError

__all__ = [
    "EPFO",
    "EXTRA_SHAPES",
    "GROUPS",
    "GROUP_NAMES",
    "MAX_DEPTH",
    "NEGATION",
    "SHAPES",
    "Anchor",
    "Complement",
    "Intersect",
    "Project",
    "Query",
    "Union",
    "abstract",
    "anchor_positions",
    "branches",
    "canonical",
    "depth",
    "ground",
    "has_complement",
    "nickname",
    "numbered",
    "query_ids",
    "replace_branches",
    "shape_named",
    "size",
]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The set {entity}."""

    entity: int


@dataclass(frozen=True, slots=True)
class Project:
    """{t : some h in `query` has the edge (h, relation, t)}."""

    query: Query
    relation: int


@dataclass(frozen=True, slots=True)
class Intersect:
    """What all `queries` (two or more) have in common."""

    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """What any of `queries` (two or more) has."""

    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Complement:
    """Every entity that `query` does not have."""

    query: Query


Query: TypeAlias = Anchor | Project | Intersect | Union | Complement

_LETTERS: dict[type[Query], str] = {Anchor: "e", Project: "p", Intersect: "i", Union: "u", Complement: "n"}

MAX_DEPTH = 200
"""Deeper trees are refused by every parser: functions over trees recurse."""


def branches(query: Query) -> tuple[Query, ...]:
    """The queries directly below `query`, from left to right."""
    match query:
        case Anchor():
            return ()
        case Project(inner, _) | Complement(inner):
            return (inner,)
        case Intersect(queries) | Union(queries):
            return queries


def replace_branches(query: Query, new: Sequence[Query]) -> Query:
    """`query` with other queries directly below it."""
    match query:
        case Anchor():
            return query
        case Project(_, relation):
            return Project(new[0], relation)
        case Complement():
            return Complement(new[0])
        case Intersect():
            return Intersect(tuple(new))
        case Union():
            return Union(tuple(new))


def depth(query: Query) -> int:
    """The number of operators on the longest way from the root to an anchor."""
    return 1 + max((depth(branch) for branch in branches(query)), default=-1)


def size(query: Query) -> int:
    """The number of nodes."""
    return 1 + sum(map(size, branches(query)))


def has_complement(query: Query) -> bool:
    return isinstance(query, Complement) or any(map(has_complement, branches(query)))


def query_ids(query: Query) -> Iterator[int]:
    """The ids of `query` in the order of its shape's positions: what is below first, then the node's own."""
    for branch in branches(query):
        yield from query_ids(branch)
    match query:
        case Anchor(own) | Project(_, own):
            yield own


def ground(shape: Query, ids: Sequence[int]) -> Query:
    """The query of this shape with these ids: the inverse of `abstract`."""
    match shape:
        case Anchor(position):
            return Anchor(int(ids[position]))
        case Project(inner, position):
            return Project(ground(inner, ids), int(ids[position]))
        case _:
            return replace_branches(shape, [ground(branch, ids) for branch in branches(shape)])


def canonical(query: Query) -> Query:
    """The same question with the branches of every intersection and union in canonical order."""
    below = [canonical(branch) for branch in branches(query)]
    if isinstance(query, Intersect | Union):
        below.sort(key=_order)
    return replace_branches(query, below)


def abstract(query: Query) -> tuple[Query, tuple[int, ...]]:
    """The shape of `query` and its row of ids."""
    query = canonical(query)
    return numbered(query), tuple(query_ids(query))


def numbered(query: Query) -> Query:
    """`query` with positions in place of its ids, its branches left as they stand."""
    return _positions(query, 0)[0]


def anchor_positions(shape: Query) -> list[int]:
    """The positions of a shape that hold entities; the others hold relations."""
    if isinstance(shape, Anchor):
        return [shape.entity]
    return [position for branch in branches(shape) for position in anchor_positions(branch)]


def _positions(query: Query, first: int) -> tuple[Query, int]:
    """`query` with positions from `first` on in place of ids, and the next free position."""
    below: list[Query] = []
    for branch in branches(query):
        shaped, first = _positions(branch, first)
        below.append(shaped)
    match query:
        case Anchor():
            return Anchor(first), first + 1
        case Project():
            return Project(below[0], first), first + 1
        case _:
            return replace_branches(query, below), first


def _order(query: Query) -> tuple[object, ...]:
    """The sort key of a branch: many hops first, then positive, then by structure, then by ids."""
    return -_hops(query), isinstance(query, Complement), _spelled(query), tuple(query_ids(query))


def _hops(query: Query) -> int:
    return isinstance(query, Project) + max(map(_hops, branches(query)), default=0)


def _spelled(query: Query) -> str:
    """The structure as text, e.g. `i(p(p(e)),n(p(e)))`: equal for two queries just where they differ in ids alone."""
    below = ",".join(map(_spelled, branches(query)))
    return f"{_LETTERS[type(query)]}({below})" if below else _LETTERS[type(query)]


def _chain(*relations: int) -> Query:
    query: Query = Anchor(0)
    for relation in relations:
        query = Project(query, relation)
    return query


def _shape(query: Query) -> Query:
    return abstract(query)[0]


_1P, _2P, _3P = _chain(0), _chain(0, 0), _chain(0, 0, 0)
_I2, _U2, _IN = Intersect((_1P, _1P)), Union((_1P, _1P)), Intersect((_1P, Complement(_1P)))

EPFO: tuple[str, ...] = ("1p", "2p", "3p", "2i", "3i", "pi", "ip", "2u", "up")
NEGATION: tuple[str, ...] = ("2in", "3in", "inp", "pin", "pni")
GROUPS: dict[str, tuple[str, ...]] = {"epfo": EPFO, "negation": NEGATION, "all": EPFO + NEGATION}
"""What averages are taken over."""
GROUP_NAMES = {"epfo": "EPFO", "negation": "negation", "all": "all"}
"""What people call these groups."""

SHAPES: dict[str, Query] = {
    "1p": _shape(_1P),
    "2p": _shape(_2P),
    "3p": _shape(_3P),
    "2i": _shape(_I2),
    "3i": _shape(Intersect((_1P, _1P, _1P))),
    "pi": _shape(Intersect((_2P, _1P))),
    "ip": _shape(Project(_I2, 0)),
    "2u": _shape(_U2),
    "up": _shape(Project(_U2, 0)),
    "2in": _shape(_IN),
    "3in": _shape(Intersect((_1P, _1P, Complement(_1P)))),
    "inp": _shape(Project(_IN, 0)),
    "pin": _shape(Intersect((_2P, Complement(_1P)))),
    "pni": _shape(Intersect((Complement(_2P), _1P))),
}
"""The fourteen shapes of the benchmarks: p projection, i intersection, u union, n complement."""

EXTRA_SHAPES: dict[str, Query] = {
    "4p": _shape(_chain(0, 0, 0, 0)),
    "4i": _shape(Intersect((_1P, _1P, _1P, _1P))),
}
"""Shapes of other benchmarks: no table of the fourteen and no average has them."""

_NAMED = SHAPES | EXTRA_SHAPES
_NICKNAMES = {shape: name for name, shape in _NAMED.items()}


@lru_cache(maxsize=4096)
def nickname(shape: Query) -> str:
    """The benchmark's name of a shape, or its structure spelled out, e.g. `i(p(p(e)),n(p(e)))`."""
    return _NICKNAMES.get(shape) or _spelled(shape)


def shape_named(name: str) -> Query:
    """The shape of a nickname, or of a structure spelled as `nickname` spells it."""
    if name in _NAMED:
        return _NAMED[name]
    spelled = name.replace(" ", "")
    query, rest = _read_shape(spelled, 0, 0)
    if rest != len(spelled):
        raise QueryError(f"there is no shape {name!r}: text after its end", spelled, rest)
    return _shape(query)


def _read_shape(text: str, at: int, level: int) -> tuple[Query, int]:
    """Read one shape from `at` on; return it and where it ends."""
    if level > MAX_DEPTH:
        raise QueryError(f"nested deeper than {MAX_DEPTH} levels", text, at)
    letter = text[at : at + 1]
    if letter not in tuple("epiun"):
        known = ", ".join(_NAMED)
        raise QueryError(
            f"there is no such shape; say one of {known}, or spell it, e.g. 'i(p(p(e)),n(p(e)))'", text, at
        )
    if letter == "e":
        return Anchor(0), at + 1
    below: list[Query] = []
    at += 1
    while text[at : at + 1] == ("," if below else "("):
        branch, at = _read_shape(text, at + 1, level + 1)
        below.append(branch)
    wanted = 1 if letter in "pn" else 2
    if text[at : at + 1] != ")" or len(below) < wanted or (wanted == 1 and len(below) > 1):
        raise QueryError(f"{letter}(…) takes {'one branch' if wanted == 1 else 'two branches or more'}", text, at)
    match letter:
        case "p":
            return Project(below[0], 0), at + 1
        case "n":
            return Complement(below[0]), at + 1
        case "i":
            return Intersect(tuple(below)), at + 1
        case _:
            return Union(tuple(below)), at + 1
