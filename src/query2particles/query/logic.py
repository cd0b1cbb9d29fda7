"""First-order syntax: one free variable, a colon, and what must hold of it.

    ?x : exists y. award_received(y, "Turing Award") & !citizen_of(y, Canada) & graduated_from(y, ?x)

Atoms are relation(subject, object), as facts are stored, and `?x = Canada`, `?x != Canada`. `!` not, `&` and, `|` or
(also ¬ ∧ ∨, or the words); `!` binds closest, then `&`, `|`. `exists a, b.` (also ∃) reaches as far to the right as its
parentheses let it. `?y` is always a variable; one introduced without its `?` may be written without it, and hides an
entity of that name. Names with spaces or signs, and names that are words of this syntax, stand in double quotes, IRIs
also in angle brackets.

Every query can be written so and reads back as the same tree: parentheses within `&` or `|` are branches of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

from query2particles.errors import UnsupportedError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
from query2particles.query.grammar import NAME_TERMINALS, check_level, name_of, quoted, read, span_of
from query2particles.query.names import Lexicon
from query2particles.query.variables import (
    Atom,
    Conjunction,
    Disjunction,
    Equality,
    Formula,
    Negation,
    Span,
    Variable,
    tree,
)

if TYPE_CHECKING:
    from lark import Token, Tree

    Syntax: TypeAlias = Tree[Token] | Token

__all__ = ["format_logic", "parse_logic"]

_BARE_CHARACTER = r'[^\s.,&|!^()"<>\\=?∃∀¬∧∨≠]'

# `exists` leaves two readings of what follows it; the parser takes the longer one, shifting before it reduces.
_GRAMMAR = (
    r"""
start: head ":" disjunction
head: VARIABLE ("," VARIABLE)*
?disjunction: conjunction (_OR conjunction)*
?conjunction: literal (_AND literal)*
?literal: NOT literal -> negation
        | EXISTS variables "." disjunction -> exists
        | FORALL variables "." disjunction -> forall
        | NAME_ "(" term "," term ")" -> atom
        | term "=" term -> equal
        | term DIFFERS term -> different
        | "(" disjunction ")"
variables: _variable ("," _variable)*
_variable: VARIABLE | WORD
?term: VARIABLE | NAME_

VARIABLE: /\?\w+/
WORD: /\w+/
NAME_: QUOTED | IRI | BARE
BARE: /BARE_CHARACTER+/
EXISTS.2: /∃|(?i:exists)(?!BARE_CHARACTER)/
FORALL.2: /∀|(?i:forall)(?!BARE_CHARACTER)/
NOT.2: /!|¬|(?i:not)(?!BARE_CHARACTER)/
_AND.2: /&&?|∧|(?i:and)(?!BARE_CHARACTER)/
_OR.2: /\|\|?|∨|(?i:or)(?!BARE_CHARACTER)/
DIFFERS.3: /!=|≠/
%ignore /\s+/
""".replace("BARE_CHARACTER", _BARE_CHARACTER)
    + NAME_TERMINALS
)

_DESCRIBED = {
    "VARIABLE": "a variable (?x)",
    "WORD": "a variable (?x)",
    "NAME_": "a name",
    "EXISTS": "'exists'",
    "FORALL": "'exists'",
    "NOT": "'!'",
    "_AND": "'&'",
    "_OR": "'|'",
    "DIFFERS": "'!='",
    "EQUAL": "'='",
    "COLON": "':'",
    "COMMA": "','",
    "DOT": "'.'",
    "LPAR": "'('",
    "RPAR": "')'",
}

_BARE = re.compile(rf"(?!(?i:exists|forall|not|and|or)\Z){_BARE_CHARACTER}+")


def parse_logic(text: str, lexicon: Lexicon) -> Query:
    """The query that `text` asks."""
    head, body = read(_GRAMMAR, text, _DESCRIBED).children  # type: ignore[union-attr]  # `start` is never a bare token
    asked, *others = head.children  # type: ignore[union-attr]  # nor is `head`
    if others:
        raise UnsupportedError("several free variables: a question asks for one", text, *span_of(others[0]))
    variable = Variable(str(asked), span_of(asked))
    formula = _Reader(text, lexicon).formula(body, {variable.shown: variable}, 0)
    return tree(formula, variable, text)


Scope: TypeAlias = dict[str, Variable]
"""The variables that may be used at some place, by each of their spellings there."""


class _Reader:
    """From the syntax tree to a formula."""

    def __init__(self, text: str, lexicon: Lexicon) -> None:
        self._text, self._lexicon = text, lexicon

    def formula(self, syntax: Syntax, scope: Scope, level: int) -> Formula:
        check_level(level, self._text)
        kind, below = syntax.data, syntax.children  # type: ignore[union-attr]  # the grammar leaves no bare token
        match kind:
            case "atom":
                relation = self._lexicon.relation(*name_of(below[0], self._text))
                span = _from_to(span_of(below[0]), span_of(below[2]))
                return Atom(relation, self._term(below[1], scope), self._term(below[2], scope), span)
            case "equal":
                return self._equality(below[0], below[1], scope)
            case "different":
                equality = self._equality(below[0], below[2], scope)
                return Negation(equality, equality.span)
            case "negation":
                part = self.formula(below[1], scope, level + 1)
                return Negation(part, _from_to(span_of(below[0]), part.span))
            case "exists":
                return self._exists(below[0], below[1], below[2], scope, level)
            case "forall":
                reason = "'forall' cannot be asked; that all y with r(?x, y) are A is written !exists y. r(?x, y) & !A"
                raise UnsupportedError(reason, self._text, *span_of(below[0]))
            case _:
                parts = [self.formula(part, scope, level + 1) for part in below]
                span = _from_to(parts[0].span, parts[-1].span)
                return Conjunction((), parts, span) if kind == "conjunction" else Disjunction(parts, span)

    def _exists(self, word: Syntax, names: Syntax, body: Syntax, scope: Scope, level: int) -> Formula:
        variables, inner = [], dict(scope)
        for token in names.children:  # type: ignore[union-attr]  # `variables` is never a bare token
            bare = str(token).removeprefix("?")
            variable = Variable(f"?{bare}", span_of(token))
            variables.append(variable)
            inner[variable.shown] = variable
            inner.pop(bare, None)
            if not str(token).startswith("?"):
                inner[bare] = variable
        conjoined = body.children if body.data == "conjunction" else (body,)  # type: ignore[union-attr]  # as above
        parts = [self.formula(part, inner, level + 1) for part in conjoined]
        return Conjunction(variables, parts, _from_to(span_of(word), parts[-1].span))

    def _equality(self, left: Syntax, right: Syntax, scope: Scope) -> Equality:
        one, other = self._term(left, scope), self._term(right, scope)
        span = _from_to(span_of(left), span_of(right))
        match one, other:
            case Variable() as variable, int(entity):
                return Equality(variable, entity, span)
            case int(entity), Variable() as variable:
                return Equality(variable, entity, span)
        kinds = "variables: write one of them for both" if isinstance(one, Variable) else "entities"
        raise UnsupportedError(f"an equality of two {kinds}", self._text, *span)

    def _term(self, token: Syntax, scope: Scope) -> Variable | int:
        if variable := scope.get(str(token)):
            return variable
        if str(token).startswith("?"):
            reason = f"a second free variable: {token} is neither the one asked for nor introduced by 'exists'"
            raise UnsupportedError(reason, self._text, *span_of(token))
        return self._lexicon.entity(*name_of(token, self._text))


def _from_to(first: Span, last: Span) -> Span:
    return first[0], (last[0] or 0) + last[1] - (first[0] or 0)


def format_logic(query: Query, lexicon: Lexicon) -> str:
    """The text of `query`, which `parse_logic` reads back as the same query."""
    variables = (f"?{name}" for name in chain("xyzuvw", map("v{}".format, count(1))))
    return f"{(asked := next(variables))} : {_Writer(lexicon, variables).formula(query, asked)}"


class _Writer:
    """From a tree to text. The variables of a chain of projections stand behind one `exists`."""

    def __init__(self, lexicon: Lexicon, variables: Iterator[str]) -> None:
        self._lexicon, self._variables = lexicon, variables

    def formula(self, query: Query, variable: str) -> str:
        """That `query` has `variable`, as a formula that ends at a parenthesis or at the end of the text."""
        if isinstance(query, Union):
            return " | ".join([self._enclosed(branch, variable) for branch in query.queries])
        introduced: list[str] = []
        parts = " & ".join(self._conjuncts(query, variable, introduced))
        return f"exists {', '.join(introduced)}. {parts}" if introduced else parts

    def _enclosed(self, query: Query, variable: str) -> str:
        match query:
            case Anchor() | Complement() | Project(Anchor()):
                return self.formula(query, variable)
            case _:
                return f"({self.formula(query, variable)})"

    def _conjuncts(self, query: Query, variable: str, introduced: list[str]) -> list[str]:
        """What a conjunction must list to say that `query` has `variable`; adds the variables that this takes."""
        match query:
            case Anchor(entity):
                return [f"{variable} = {self._entity(entity)}"]
            case Project(Anchor(entity), relation):
                return [self._atom(relation, self._entity(entity), variable)]
            case Project(inner, relation):
                introduced.append(middle := next(self._variables))
                return [*self._conjuncts(inner, middle, introduced), self._atom(relation, middle, variable)]
            case Intersect(queries):
                parts: list[str] = []
                for branch in queries:
                    if isinstance(branch, Intersect):
                        parts.append(self._enclosed(branch, variable))
                    else:
                        parts += self._conjuncts(branch, variable, introduced)
                return parts
            case Union():
                return [self._enclosed(query, variable)]
            case Complement(Anchor(entity)):
                return [f"{variable} != {self._entity(entity)}"]
            case Complement(Project(Anchor()) as inner):
                return [f"!{self.formula(inner, variable)}"]
            case Complement(inner):
                return [f"!({self.formula(inner, variable)})"]

    def _atom(self, relation: int, source: str, target: str) -> str:
        name, inverse = self._lexicon.relation_name(relation)
        return f"{_written(name)}({target}, {source})" if inverse else f"{_written(name)}({source}, {target})"

    def _entity(self, entity: int) -> str:
        return _written(self._lexicon.entity_name(entity))


def _written(name: str) -> str:
    return name if _BARE.fullmatch(name) and name.isprintable() else quoted(name)
