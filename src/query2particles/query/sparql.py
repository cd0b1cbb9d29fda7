r"""SPARQL: the part of it that asks for one variable in a tree.

    SELECT ?x WHERE { ?y :award_received "Turing Award" ; :graduated_from ?x  MINUS { ?y :citizen_of :Canada } }

Read are SELECT [DISTINCT] of one variable, triple patterns, UNION, MINUS, FILTER [NOT] EXISTS, and the paths `/`, `^`,
`|`. What a tree of operators cannot ask (OPTIONAL, value filters, aggregates …) is refused by its name.

How names are written:

    <http://example.org/Canada>    the entity or relation of that name, relative to BASE if the text has one
    ex:Canada                      the same with a PREFIX of the text, or one that the graph remembers
    :Canada, <Canada>              plain names as a table of triples has them: where nothing declares the prefix `:`,
                                   and no BASE, they stand for themselves; so does every prefixed name whose prefix is
                                   declared nowhere (`concept:city`)
    :lives%20in, <lives%20in>      spaces and signs in percent-encoding; signs also as `\(`, `\'` after a prefix
    "Turing Award"                 an entity's name or label as it is, in place of a subject or object
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urljoin

from query2particles.errors import QuerySyntaxError, UnknownNameError, UnsupportedError
from query2particles.query.algebra import Query
from query2particles.query.names import Lexicon
from query2particles.query.sparql_tokens import COMPUTED, Places, Token, check, explain, tokens_of
from query2particles.query.variables import Atom, Conjunction, Disjunction, Formula, Negation, Span, Variable, tree

__all__ = ["parse_sparql"]

_VALUE_FILTER = "a filter on values: only FILTER EXISTS and FILTER NOT EXISTS speak of the graph"

_ONE_AT_A_TIME = threading.Lock()
"""rdflib's one parser finds out while it first runs how its actions are to be called: threads must take turns."""

Scope: TypeAlias = Mapping[str, Variable]


def parse_sparql(text: str, lexicon: Lexicon) -> Query:
    """The query that `text` asks."""
    tokens = tokens_of(text)
    check(tokens, text)
    declarations, select = _parsed(text, tokens)
    reader = _Reader(text, lexicon, tokens, declarations)
    asked = reader.variable(_selected(select, text, tokens))
    return tree(reader.group(select.where, {asked.shown: asked}, {}), asked, text)


def _parsed(text: str, tokens: list[Token]) -> tuple[Any, Any]:
    """The declarations and the query form of rdflib's syntax tree.

    The one place where rdflib runs: whatever it raises becomes an error of ours.
    """
    from pyparsing import ParseBaseException
    from rdflib.plugins.sparql.parser import QueryUnit

    spaced = text.replace("\t", " ")  # pyparsing would widen tabs, and its offsets would no longer be ours
    try:
        with _ONE_AT_A_TIME:
            declarations, query = QueryUnit.parse_string(spaced, parse_all=True)
    except RecursionError:
        reason = "too long for the SPARQL parser: put fewer triple patterns between two braces, or join them by ';'"
        raise QuerySyntaxError(reason, text, 0) from None
    except ParseBaseException as error:
        raise explain(tokens, text, error.loc) from None
    except Exception as error:  # rdflib's parse actions raise whatever they stumble upon
        raise QuerySyntaxError(f"not SPARQL: {str(error)[:200]}", text, 0) from None
    if query.name != "SelectQuery":
        raise UnsupportedError(f"{query.name}: write SELECT of one variable", text, 0)
    for clause in sorted(query.keys() - {"modifier", "projection", "where"}):
        raise UnsupportedError(f"{clause} is outside the questions that a tree can ask", text, 0)
    return declarations, query


def _selected(select: Any, text: str, tokens: list[Token]) -> str:
    """The name of the variable that SELECT asks for."""
    if select.projection is None:  # SELECT *
        names = [name for name in _bound(select.where) if name.startswith("?")]
    else:
        if any(item.var is None for item in select.projection):
            raise UnsupportedError(COMPUTED, text, 0)
        names = list(dict.fromkeys(f"?{item.var}" for item in select.projection))
    if len(names) != 1:
        several = f"selects {', '.join(names)}" if names else "selects nothing"
        found = (token.span for token in tokens if token.kind == "variable" and "?" + token.text[1:] in names[1:])
        raise UnsupportedError(f"the question {several}: ask for one variable", text, *next(found, (0, 1)))
    return names[0]


class _Reader:
    """From rdflib's syntax tree to a formula."""

    def __init__(self, text: str, lexicon: Lexicon, tokens: list[Token], declarations: Any) -> None:
        self._text, self._lexicon, self._places = text, lexicon, Places(tokens)
        self._base = ""
        self._prefixes = dict(lexicon.graph.prefixes)
        for declaration in declarations:
            if declaration.name == "Base":
                self._base = str(declaration.iri)
            else:
                self._prefixes[declaration.prefix or ""] = self._absolute(str(declaration.iri))

    def variable(self, name: str) -> Variable:
        span = self._places.first(name)
        return Variable(name if name.startswith("?") or span[0] is not None else "[]", span)

    def group(self, pattern: Any, scope: Scope, substituted: Scope) -> Conjunction:
        """What stands between two braces.

        `scope` has the variables that the surroundings speak of; the others are quantified here. `substituted` has
        those of the patterns that an EXISTS around stands in: the filters inside it see them too.
        """
        if pattern.name != "GroupGraphPatternSub":
            raise UnsupportedError(f"{pattern.name} is outside the questions that a tree can ask", self._text, 0)
        bound = _bound(pattern)
        known = {**substituted, **scope}
        own = {name: self.variable(name) for name in bound if name not in known}
        known.update(own)
        before: list[str] = []
        formulas: list[Formula] = []
        for part in pattern.part or ():
            match part.name:
                case "TriplesBlock":
                    for subject, verb, object_ in _triples(part):
                        span = self._places.following(_spelled(object_))
                        if any(map(self._is_of_collection, (subject, verb, object_))):
                            reason = "a collection: write a pattern for each entity"
                            raise UnsupportedError(reason, self._text, *self._places.preceding("(", span))
                        formulas.append(self._path(verb, self._term(subject, known), self._term(object_, known), span))
                case "GroupOrUnionGraphPattern":
                    span = self._places.following("UNION") if len(part.graph) > 1 else (None, 1)
                    groups = [self.group(branch, known, substituted) for branch in part.graph]
                    formulas.append(Disjunction(groups, span) if len(groups) > 1 else groups[0])
                case "MinusGraphPattern":
                    shared = {name: known[name] for name in before}
                    span = self._places.following("MINUS")
                    formulas.append(Negation(self._within("MINUS", part.graph, shared, substituted, span), span))
                case "Filter":
                    span = self._places.following("FILTER")
                    shared = {name: known[name] for name in (*bound, *substituted)}
                    for positive, test in self._tests(part.expr, span):
                        inner = self._within("FILTER", test, shared, shared, span)
                        formulas.append(inner if positive else Negation(inner, span))
                case other:
                    raise UnsupportedError(f"{other} is outside the questions that a tree can ask", self._text, 0)
            before += _bound_by(part)
        return Conjunction(tuple(own.values()), formulas, formulas[0].span if formulas else (None, 1))

    def _within(self, word: str, pattern: Any, shared: Scope, substituted: Scope, span: Span) -> Formula:
        """The pattern of a MINUS or FILTER, which must speak of a variable that the patterns beside it bind."""
        mentioned = _bound(pattern) if word == "MINUS" else _mentioned(pattern)
        scope = {name: shared[name] for name in mentioned if name in shared}
        if not scope:
            place = "before it" if word == "MINUS" else "beside it"
            reason = f"{word} shares no variable with the patterns {place}, so it cannot narrow the answers"
            raise UnsupportedError(reason, self._text, *span)
        return self.group(pattern, scope, substituted)

    def _tests(self, expression: Any, span: Span) -> Iterator[tuple[bool, Any]]:
        """The patterns of a filter, each with whether it must be there or must not."""
        name = getattr(expression, "name", "")
        if name in ("Builtin_EXISTS", "Builtin_NOTEXISTS"):
            yield name == "Builtin_EXISTS", expression.graph
        elif name == "UnaryNot":
            inner = list(self._tests(expression.expr, span))
            if len(inner) != 1:
                raise UnsupportedError("a negation of several tests: write each FILTER NOT EXISTS", self._text, *span)
            yield not inner[0][0], inner[0][1]
        elif name.endswith("Expression") and (name == "ConditionalAndExpression" or expression.other is None):
            for part in (expression.expr, *(expression.other or ())):
                yield from self._tests(part, span)
        else:
            raise UnsupportedError(_VALUE_FILTER, self._text, *span)

    def _path(self, verb: Any, subject: Variable | int, other: Variable | int, span: Span) -> Formula:
        match getattr(verb, "name", None):
            case "PathAlternative" if len(verb.part) > 1:
                return Disjunction([self._path(part, subject, other, span) for part in verb.part], span)
            case "PathSequence" if len(verb.part) > 1:
                steps = [Variable("a step of the path", span) for _ in verb.part[1:]]
                ends = zip(verb.part, (subject, *steps), (*steps, other), strict=True)
                return Conjunction(steps, [self._path(part, start, end, span) for part, start, end in ends], span)
            case "PathAlternative" | "PathSequence":
                return self._path(verb.part[0], subject, other, span)
            case "PathEltOrInverse":
                return self._path(verb.part, other, subject, span)
            case "PathElt" if not verb.mod:
                return self._path(verb.part, subject, other, span)
            case "PathElt":
                reason = f"the path operator {verb.mod}: the number of hops must be fixed"
                span = self._places.preceding(verb.mod, span)
            case None | "pname" if not _is_variable(verb):
                return Atom(self._resolved(verb, relation=True), subject, other, span)
            case None:
                reason, span = (
                    f"the variable {_spelled(verb)} in place of a relation",
                    self._places.first(_spelled(verb)),
                )
            case _:
                reason = "a negated path: name the relations that are meant"
                span = self._places.preceding("!", span)
        raise UnsupportedError(reason, self._text, *span)

    def _is_of_collection(self, term: Any) -> bool:
        """Whether rdflib put `term` in the place of `(…)`, and not the text itself."""
        from rdflib.namespace import RDF

        return term in (RDF.first, RDF.rest, RDF.nil) and self._places.first(_spelled(term))[0] is None

    def _term(self, term: Any, known: Scope) -> Variable | int:
        return known[_spelled(term)] if _is_variable(term) else self._resolved(term, relation=False)

    def _resolved(self, term: Any, relation: bool) -> int:
        """The id that an IRI, prefixed name or string stands for: as written, or else with percent signs decoded."""
        written = _spelled(term)
        where = self._text, *self._places.first(written)
        find = self._lexicon.relation if relation else self._lexicon.entity
        match getattr(term, "name", None):
            case "literal":
                return find(str(term.string), *where)
            case "pname":
                local = re.sub(r"\\(.)", r"\1", term.localname or "")
                prefix = term.prefix or ""
                name = self._prefixes.get(prefix, f"{prefix}:" if prefix else "") + local
            case _:
                name = self._absolute(str(term))
        try:
            return find(name, *where)
        except UnknownNameError:
            if "%" not in name:
                raise
            return find(unquote(name), *where)

    def _absolute(self, iri: str) -> str:
        try:
            return urljoin(self._base, iri) if self._base else iri
        except ValueError as error:
            raise QuerySyntaxError(f"not an IRI: {error}", self._text, *self._places.first(f"<{iri}>")) from None


def _triples(block: Any) -> Iterator[tuple[Any, Any, Any]]:
    for flat in block.triples:
        if len(flat) % 3:
            raise QuerySyntaxError("not SPARQL: a pattern that is no triple")
        yield from zip(flat[::3], flat[1::3], flat[2::3], strict=True)


def _bound(pattern: Any) -> list[str]:
    """The variables that a match of `pattern` binds, in the order of the text."""
    return list(dict.fromkeys(name for part in pattern.part or () for name in _bound_by(part)))


def _bound_by(part: Any) -> Iterator[str]:
    if part.name == "TriplesBlock":
        for subject, _, object_ in _triples(part):
            yield from (_spelled(term) for term in (subject, object_) if _is_variable(term))
    elif part.name == "GroupOrUnionGraphPattern":
        for branch in part.graph:
            yield from _bound(branch)


def _mentioned(syntax: Any) -> Iterator[str]:
    """All variables anywhere in `syntax`."""
    if _is_variable(syntax):
        yield _spelled(syntax)
    elif not isinstance(syntax, str):
        for part in syntax.values() if isinstance(syntax, dict) else syntax:
            yield from _mentioned(part)


def _is_variable(term: Any) -> bool:
    """Blank nodes are variables in SPARQL, only that they cannot be asked for."""
    from rdflib.term import BNode, Variable

    return isinstance(term, BNode | Variable)


def _spelled(term: Any) -> str:
    """A term as `Token.key` has it."""
    from rdflib.namespace import RDF
    from rdflib.term import BNode, Variable

    match getattr(term, "name", None):
        case "pname":
            return f"{term.prefix or ''}:{term.localname or ''}"
        case "literal":
            return f'"{term.string}"'
        case _ if isinstance(term, Variable):
            return f"?{term}"
        case _ if isinstance(term, BNode):
            return f"_:{term}"
        case _:
            return "A" if term == RDF.type else f"<{term}>"
