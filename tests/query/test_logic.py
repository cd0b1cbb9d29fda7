"""The first-order syntax: fixture pairs, identity of parsing and printing, meaning by brute force, hostile text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings

from fuzzing import assert_only_query_errors
from pairs import pairs, refusal
from query2particles.errors import QueryError, QuerySyntaxError, UnsupportedError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import (
    MAX_DEPTH,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    canonical,
    depth,
    size,
)
from query2particles.query.logic import format_logic, parse_logic
from query2particles.query.names import Lexicon
from query2particles.query.text import format_path, parse_path
from worlds import ENTITIES, RELATIONS, Successors, named_graph, oracle, queries, random_graph, successors

NAMED = Lexicon(named_graph())
PAIRS = pairs("logic.txt")


@pytest.mark.parametrize(("question", "outcome"), PAIRS, ids=[question[:60] for question, _ in PAIRS])
def test_pairs(question: str, outcome: str) -> None:
    refused = refusal(outcome)
    if refused is None:
        query = parse_logic(question, NAMED)
        assert f"=> {format_path(query, NAMED)}" == outcome
        assert parse_logic(format_logic(query, NAMED), NAMED) == query
    else:
        with pytest.raises(refused[0]) as caught:
            parse_logic(question, NAMED)
        assert type(caught.value) is refused[0]
        assert refused[1] in str(caught.value)
        assert "^" in str(caught.value).rpartition("\n")[2], "a caret shows the place"


@settings(max_examples=500, deadline=None)
@given(queries(len(ENTITIES), len(RELATIONS)))
def test_a_printed_query_reads_back_as_the_same_tree(query: Query) -> None:
    assert parse_logic(format_logic(query, NAMED), NAMED) == query


@pytest.mark.parametrize("last", range(6))
def test_trees_of_the_greatest_depth_read_back_and_deeper_ones_are_refused(last: int) -> None:
    generator = random.Random(last)
    query: Query = Anchor(0)
    while depth(query) < MAX_DEPTH:
        query = _one_deeper(query, last if last < 5 else generator.randrange(5))
    # texts are compared: comparing trees of this depth takes more of the stack than building them
    text = format_logic(query, NAMED)
    assert format_logic(parse_logic(text, NAMED), NAMED) == text
    with pytest.raises(QuerySyntaxError, match="nested deeper"):
        parse_logic(format_logic(_one_deeper(query, last % 5), NAMED), NAMED)


def _one_deeper(query: Query, operator: int) -> Query:
    match operator:
        case 0:
            return Project(query, 3)
        case 1:
            return Complement(query)
        case 2:
            return Intersect((Anchor(1), query))
        case 3:
            return Union((query, Anchor(1)))
        case _:
            return Project(Complement(query), 2) if depth(query) < MAX_DEPTH - 1 else Complement(query)


def test_variables_are_not_mistaken_for_entities_of_their_name() -> None:
    names = ["x", "y", "?y", "not", "OR", "", " ", "a b", "é", "\n"]
    zero = np.zeros(1, dtype=np.int64)
    graph = Graph.of(Vocabulary.of(names), Vocabulary.of(["exists", "y"]), {"train": (zero, zero, zero)}, {})
    lexicon = Lexicon(graph)
    for entity in range(len(names)):
        for relation in range(4):
            query = Project(Intersect((Anchor(entity), Project(Anchor(entity), relation))), relation)
            assert parse_logic(format_logic(query, lexicon), lexicon) == query


def test_the_order_of_atoms_does_not_matter() -> None:
    atoms = [
        'award_received(z, "Turing Award")',
        "citizen_of(z, y)",
        "!citizen_of(Bob, y)",
        '"lives in"(?x, y)',
        "?x != Ann",
    ]
    expected = parse_path('("Turing Award".^award_received.citizen_of & !Bob.citizen_of).^"lives in" & !Ann', NAMED)
    for order in permutations(atoms):
        assert canonical(parse_logic(f"?x : exists y, z. {' & '.join(order)}", NAMED)) == canonical(expected)


# Meaning, by brute force over assignments of variables -------------------------------------------------------------

Wild: TypeAlias = tuple[Any, ...]
"""A formula: ("atom", relation, term, term), ("equal", variable, entity), ("not", f), ("and" | "or", f, …),
("exists", variable, f). Entities are numbers, variables text."""


def test_answers_are_those_of_the_formula() -> None:
    """Formulas of any form: where the parser takes one, the tree has just the formula's answers."""
    graph = random_graph(7, entities=6, relations=2, facts=30)
    lexicon, known, everything = Lexicon(graph), successors(graph, "test"), frozenset(range(6))
    generator = random.Random(2)
    taken = refused = with_variables = 0
    while taken < 600:
        formula = _wild(generator, ["?x"], generator.randrange(1, 5))
        text = f"?x : {_text(formula)}"
        try:
            query = parse_logic(text, lexicon)
        except UnsupportedError:
            refused += 1
            continue
        taken += 1
        with_variables += "exists" in text
        answers = {entity for entity in everything if _holds(formula, {"?x": entity}, known, everything)}
        assert oracle(query, known, everything) == answers, text
    assert with_variables > 150
    assert refused > 150


def _wild(generator: random.Random, scope: list[str], depth: int) -> Wild:
    match generator.choice(["atom", "and", "and", "or", "not", "exists", "exists"] if depth else ["atom"]):
        case "exists":
            variable = f"?v{len(scope)}"
            inner = [*scope, variable]
            edge = _edge(generator, variable, generator.choice(scope), depth - 1)
            parts = [edge, *(_wild(generator, generator.choice([[variable], inner]), depth - 1) for _ in range(2))]
            parts = parts[: generator.choice((1, 2, 3))]
            generator.shuffle(parts)
            return ("exists", variable, ("and", *parts))
        case "not":
            return ("not", _wild(generator, scope, depth - 1))
        case "and" | "or" as kind:
            parts = [_wild(generator, scope, depth - 1) for _ in range(generator.choice((2, 2, 3)))]
            return (kind, *parts)
        case _:
            variable = generator.choice(scope)
            other = generator.choice([*scope, *range(6)])
            if other == variable or generator.random() < 0.15:
                return ("equal", variable, generator.randrange(6))
            return ("atom", generator.randrange(2), *generator.sample([variable, other], 2))


def _edge(generator: random.Random, one: str, other: str, depth: int) -> Wild:
    """What ties two variables together: an atom, or a union or conjunction around one."""
    match generator.choice(["atom", "atom", "or", "and"] if depth else ["atom"]):
        case "or":
            return ("or", _edge(generator, one, other, depth - 1), _edge(generator, one, other, depth - 1))
        case "and":
            beside = _wild(generator, [generator.choice((one, other))], depth - 1)
            return ("and", *generator.sample([_edge(generator, one, other, depth - 1), beside], 2))
        case _:
            return ("atom", generator.randrange(2), *generator.sample([one, other], 2))


def _text(formula: Wild) -> str:
    match formula:
        case ("atom", relation, one, other):
            return f"r{relation}({_term(one)}, {_term(other)})"
        case ("equal", variable, entity):
            return f"{variable} = e{entity}"
        case ("not", inner):
            return f"!({_text(inner)})"
        case ("exists", variable, inner):
            return f"(exists {variable}. {_text(inner)})"
        case (kind, *parts):
            sign = " & " if kind == "and" else " | "
            return f"({sign.join(map(_text, parts))})"
    raise AssertionError(formula)


def _term(term: str | int) -> str:
    return term if isinstance(term, str) else f"e{term}"


def _holds(formula: Wild, values: Mapping[str, int], known: Successors, everything: frozenset[int]) -> bool:
    match formula:
        case ("atom", relation, one, other):
            head, tail = (values[term] if isinstance(term, str) else term for term in (one, other))
            return tail in known.get((head, 2 * relation), ())
        case ("equal", variable, entity):
            return bool(values[variable] == entity)
        case ("not", inner):
            return not _holds(inner, values, known, everything)
        case ("exists", variable, inner):
            return any(_holds(inner, {**values, variable: entity}, known, everything) for entity in everything)
        case (kind, *parts):
            return (all if kind == "and" else any)(_holds(part, values, known, everything) for part in parts)
    raise AssertionError(formula)


# Hostile text --------------------------------------------------------------------------------------------------------


def _hostile() -> Iterator[str]:
    many = 10_000
    yield "?x : " + "!" * many + "?x = Ann"
    yield "?x : " + "(" * many
    yield "?x : " + "(?x = Ann & " * many + "?x = Bob" + ")" * many
    yield "?x : " + "(?x = Ann | " * many + "?x = Bob" + ")" * many
    yield "?x : " + "exists y. " * many + "citizen_of(y, ?x)"
    yield "?x : " + "& " * many
    yield "?" * many
    yield '"' * many
    chain = " & ".join(f"citizen_of(y{i}, y{i + 1})" for i in range(999))
    yield f"?x : exists {', '.join(f'y{i}' for i in range(1000))}. ?x = Ann & citizen_of(?x, y0) & {chain} & y999 = Ann"
    unions = " & ".join(f"(citizen_of(y{i}, y{i + 1}) | graduated_from(y{i}, y{i + 1}))" for i in range(60))
    yield f"?x : exists {', '.join(f'y{i}' for i in range(61))}. y0 = Ann & {unions} & citizen_of(y60, ?x)"


@pytest.mark.parametrize("text", list(_hostile()), ids=lambda text: text[:20])
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(QueryError):
        parse_logic(text, NAMED)
    assert time.process_time() - started < 2


def test_parentheses_alone_cost_no_depth() -> None:
    query = parse_logic("?x : " + "(" * 10_000 + "?x = Ann" + ")" * 10_000, NAMED)
    assert query == Anchor(ENTITIES.index("Ann"))


def test_a_wide_question_is_read() -> None:
    assert size(parse_logic("?x : " + " | ".join(["?x = Ann"] * 5_000), NAMED)) == 5_001


def test_text_of_any_kind_raises_nothing_but_query_errors() -> None:
    def read_and_read_back(text: str) -> None:
        query = parse_logic(text, NAMED)
        assert parse_logic(format_logic(query, NAMED), NAMED) == query

    questions = [question for question, _ in PAIRS]
    assert_only_query_errors(read_and_read_back, questions, '?xyz:&|!¬∧∨∃∀(),.="≠<>\\ \n')
