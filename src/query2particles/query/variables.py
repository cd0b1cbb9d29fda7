"""From a formula over variables to a tree of operators.

First-order logic and SPARQL speak of variables where the algebra speaks of sets. Both parsers end at a `Formula` with
one free variable, and `tree` turns it into a query:

    ?x : exists y, z. r(A, z) & s(z, y) & !t(y, B) & u(y, ?x)

Take variables as nodes and the parts of a conjunction as edges between the variables that they mention. From the free
variable this graph must be a tree whose leaves are named entities. Then a variable's set is the intersection of what
the parts around it say, and an atom on the way from a child to its parent is a projection. Branches of an intersection
stand in the order in which their first part stands in the text, so atoms may come in any order.

A union that mentions several variables is an edge like any other, because "exists" and "and" distribute over it:

    exists y. P(y) & (r(y, ?x) | s(y, ?x))   =   (exists y. P(y) & r(y, ?x)) | (exists y. P(y) & s(y, ?x))

They do not distribute over a negation, which therefore may mention one variable of its surroundings only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from query2particles.errors import UnsupportedError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
from query2particles.query.grammar import check_level

__all__ = [
    "MAX_SIZE",
    "Atom",
    "Conjunction",
    "Disjunction",
    "Equality",
    "Formula",
    "Negation",
    "Span",
    "Variable",
    "tree",
]

MAX_SIZE = 20_000
"""Trees with more nodes are refused: each union over an inner variable copies what is below, so n of them make 2ⁿ."""

Span: TypeAlias = tuple[int | None, int]
"""Where something stands in the text, offset and length; without an offset if that is not known."""


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """One variable. Two of one name are two, told apart by identity: an inner scope may use a name again."""

    shown: str
    span: Span


Variables: TypeAlias = frozenset[Variable]


@dataclass(eq=False, slots=True)
class Atom:
    """relation(subject, object); the relation is a directed id, an entity stands as its id."""

    relation: int
    subject: Variable | int
    object: Variable | int
    span: Span
    free: Variables = field(init=False)

    def __post_init__(self) -> None:
        self.free = frozenset(term for term in (self.subject, self.object) if isinstance(term, Variable))


@dataclass(eq=False, slots=True)
class Equality:
    """variable = entity."""

    variable: Variable
    entity: int
    span: Span
    free: Variables = field(init=False)

    def __post_init__(self) -> None:
        self.free = frozenset((self.variable,))


@dataclass(eq=False, slots=True)
class Negation:
    """Not `part`."""

    part: Formula
    span: Span
    free: Variables = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.part.free


@dataclass(eq=False, slots=True)
class Disjunction:
    """Any of `parts`."""

    parts: Sequence[Formula]
    span: Span
    free: Variables = field(init=False)

    def __post_init__(self) -> None:
        self.free = frozenset().union(*[part.free for part in self.parts])


@dataclass(eq=False, slots=True)
class Conjunction:
    """There are `variables` (perhaps none) for which all of `parts` hold."""

    variables: Sequence[Variable]
    parts: Sequence[Formula]
    span: Span
    free: Variables = field(init=False)

    def __post_init__(self) -> None:
        self.free = frozenset().union(*[part.free for part in self.parts]) - frozenset(self.variables)


Formula: TypeAlias = Atom | Equality | Negation | Disjunction | Conjunction


class _Tree(NamedTuple):
    """A query with its depth and size, which are too dear to count again at every step."""

    query: Query
    depth: int
    size: int


def tree(formula: Formula, asked: Variable, text: str) -> Query:
    """The query for the values of `asked`, the one free variable, that make `formula` true."""
    if asked not in formula.free:
        raise UnsupportedError(f"nothing is said about {asked.shown}, the variable asked for", text, *asked.span)
    return _Forester(text).grow(formula, asked, {}).query


class _Forester:
    """Grows trees; knows the text, for errors."""

    def __init__(self, text: str) -> None:
        self._text = text

    def grow(self, formula: Formula, target: Variable, known: Mapping[Variable, _Tree]) -> _Tree:
        """The values of `target` in `formula`, whose other free variables take the values of the trees in `known`."""
        match formula:
            case Equality(entity=entity):
                return _Tree(Anchor(entity), 0, 1)
            case Atom(relation, subject, other):
                if subject is other:
                    raise self._refused(f"a cycle: {target.shown} is related to itself", formula.span)
                if subject is target:
                    subject, relation = other, relation ^ 1
                below = known[subject] if isinstance(subject, Variable) else _Tree(Anchor(subject), 0, 1)
                return self._over(Project(below.query, relation), (below,))
            case Negation(part):
                self._check_negation(formula)
                below = self.grow(part, target, {})
                return self._over(Complement(below.query), (below,))
            case Disjunction(parts):
                branches: list[_Tree] = []
                for part in parts:  # no comprehension: the stack must hold as many levels as a tree may have
                    branches.append(self._alternative(part, target, known))
                return self._over(Union(tuple(branch.query for branch in branches)), branches)
            case Conjunction():
                return self._conjunction(formula, target, known)

    def _alternative(self, part: Formula, target: Variable, known: Mapping[Variable, _Tree]) -> _Tree:
        """One branch of a union. What it alone mentions is quantified in it: "exists" distributes over "or"."""
        settled = frozenset((target, *known))
        for missing in _in_order(settled - part.free):
            raise self._refused(f"every branch of this union must speak of {missing.shown}", part.span)
        if own := part.free - settled:
            part = Conjunction(tuple(own), (part,), part.span)
        return self.grow(part, target, known)

    def _conjunction(self, formula: Conjunction, target: Variable, known: Mapping[Variable, _Tree]) -> _Tree:
        parts = self._parts(formula)
        mentions: dict[Variable, list[int]] = {variable: [] for variable in (target, *known)}
        for index, part in enumerate(parts):
            for variable in part.free:
                mentions.setdefault(variable, []).append(index)
        towards = self._walk(parts, mentions, target)
        values: dict[Variable, tuple[int, _Tree]] = {}  # with the index of the first part below, for the order
        for variable, via in reversed(towards.items()):  # leaves first
            branches = [(-1, known[variable])] if variable in known else []
            for index in mentions[variable]:
                if index != via:
                    below = {other: values[other] for other in parts[index].free if other in values}
                    first = min([index, *(first for first, _ in below.values())])
                    grown = self.grow(parts[index], variable, {other: value for other, (_, value) in below.items()})
                    branches.append((first, grown))
            if branches:
                branches.sort(key=lambda branch: branch[0])
                values[variable] = branches[0][0], self._intersection([branch for _, branch in branches])
            elif via is None or not isinstance(parts[via], Disjunction):  # a union's branches may hold what it needs
                reason = f"{variable.shown} leads to no named entity: each branch of a question must end at one"
                raise self._refused(reason, variable.span)
        return values[target][1]

    def _parts(self, formula: Conjunction) -> list[Formula]:
        """The parts of a conjunction; one inside it that ties several variables together is opened."""
        parts: list[Formula] = []
        for part in formula.parts:
            if not part.free:
                raise self._refused("a statement without a free variable: it says nothing about the answers", part.span)
            if isinstance(part, Negation):
                self._check_negation(part)  # before the walk, which would call it a cycle or a loose end
            if isinstance(part, Conjunction) and len(part.free) > 1:
                parts += self._parts(part)
            else:
                parts.append(part)
        for unused in _in_order(frozenset(formula.variables) - frozenset().union(*[part.free for part in parts])):
            raise self._refused(f"nothing is said about {unused.shown}", unused.span)
        return parts

    def _check_negation(self, negation: Negation) -> None:
        if len(negation.free) > 1:
            several = " and ".join(variable.shown for variable in _in_order(negation.free))
            reason = f"a negation about {several}: it may share one variable only with its surroundings"
            raise self._refused(reason, negation.span)

    def _walk(
        self, parts: Sequence[Formula], mentions: Mapping[Variable, Sequence[int]], target: Variable
    ) -> dict[Variable, int | None]:
        """All variables, nearer to `target` first, each with the part that leads towards it."""
        towards: dict[Variable, int | None] = {target: None}
        queue = [target]
        for variable in queue:
            for index in mentions[variable]:
                if index == towards[variable]:
                    continue
                for other in _in_order(parts[index].free - {variable}):
                    if other in towards:
                        reason = f"a cycle: two ways lead from {variable.shown} to {other.shown}, and a tree has one"
                        raise self._refused(reason, parts[index].span)
                    towards[other] = index
                    queue.append(other)
        for part in parts:
            if part.free.isdisjoint(towards):
                name = _in_order(part.free)[0].shown
                raise self._refused(f"{name} is not connected with {target.shown}", part.span)
        return towards

    def _intersection(self, branches: Sequence[_Tree]) -> _Tree:
        if len(branches) == 1:
            return branches[0]
        return self._over(Intersect(tuple(branch.query for branch in branches)), branches)

    def _over(self, query: Query, below: Sequence[_Tree]) -> _Tree:
        """`query`, whose branches are `below`, if it is neither too deep nor too large."""
        grown = _Tree(query, 1 + max(branch.depth for branch in below), 1 + sum(branch.size for branch in below))
        check_level(grown.depth, self._text)
        if grown.size > MAX_SIZE:
            reason = f"the question grows beyond {MAX_SIZE:,} operators; unions over inner variables multiply it"
            raise self._refused(reason, (0, 1))
        return grown

    def _refused(self, reason: str, span: Span) -> UnsupportedError:
        return UnsupportedError(reason, self._text, *span)


def _in_order(variables: Iterable[Variable]) -> list[Variable]:
    """Variables as the text brings them, so that messages do not depend on the order of a set."""
    return sorted(variables, key=lambda variable: (variable.span[0] or 0, variable.shown))
