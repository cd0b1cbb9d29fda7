"""SPARQL: fixture pairs, names, the same question in three syntaxes, rdflib's own answers, hostile text."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fuzzing import assert_only_query_errors
from pairs import pairs, refusal
from query2particles.errors import QueryError, QuerySyntaxError, UnknownNameError, UnsupportedError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import SHAPES, abstract, canonical, nickname
from query2particles.query.logic import parse_logic
from query2particles.query.names import Lexicon
from query2particles.query.sparql import parse_sparql
from query2particles.query.text import format_path, parse_path
from worlds import named_graph, oracle, random_graph, successors

NAMED = Lexicon(named_graph())
PAIRS = pairs("sparql.txt")


@pytest.mark.parametrize(("question", "outcome"), PAIRS, ids=[question[:60] for question, _ in PAIRS])
def test_pairs(question: str, outcome: str) -> None:
    refused = refusal(outcome)
    if refused is None:
        assert f"=> {format_path(parse_sparql(question, NAMED), NAMED)}" == outcome
    else:
        with pytest.raises(refused[0]) as caught:
            parse_sparql(question, NAMED)
        assert type(caught.value) is refused[0]
        assert refused[1] in str(caught.value)


THREE_WAYS = {
    "1p": ("Ann.citizen_of", "?x : citizen_of(Ann, ?x)", "SELECT ?x { :Ann :citizen_of ?x }"),
    "2p": (
        "Canada.^citizen_of.graduated_from",
        "?x : exists y. graduated_from(y, ?x) & citizen_of(y, Canada)",
        "SELECT ?x { ?y :graduated_from ?x ; :citizen_of :Canada }",
    ),
    "3p": (
        'Canada.^citizen_of.graduated_from.^"lives in"',
        '?x : exists y, z. "lives in"(?x, z) & citizen_of(y, Canada) & graduated_from(y, z)',
        "SELECT ?x { ?x :lives%20in/^:graduated_from/:citizen_of :Canada }",
    ),
    "2i": (
        'Canada.^citizen_of & "Turing Award".^award_received',
        '?x : award_received(?x, "Turing Award") & citizen_of(?x, Canada)',
        'SELECT ?x { ?x :citizen_of :Canada ; :award_received "Turing Award" }',
    ),
    "3i": (
        'Canada.^citizen_of & "Turing Award".^award_received & MIT.^graduated_from',
        '?x : award_received(?x, "Turing Award") & citizen_of(?x, Canada) & graduated_from(?x, MIT)',
        'SELECT ?x { ?x :graduated_from :MIT . ?x :citizen_of :Canada ; :award_received "Turing Award" }',
    ),
    "pi": (
        "Canada.^citizen_of.graduated_from & Ann.graduated_from",
        "?x : graduated_from(Ann, ?x) & exists y. graduated_from(y, ?x) & citizen_of(y, Canada)",
        "SELECT ?x { :Ann :graduated_from ?x . [ :citizen_of :Canada ] :graduated_from ?x }",
    ),
    "ip": (
        '(Canada.^citizen_of & "Turing Award".^award_received).graduated_from',
        '?x : exists y. graduated_from(y, ?x) & award_received(y, "Turing Award") & citizen_of(y, Canada)',
        "SELECT ?x { ?y :graduated_from ?x ; :citizen_of :Canada ; :award_received <Turing%20Award> }",
    ),
    "2u": (
        "Canada.^citizen_of | Israel.^citizen_of",
        "?x : citizen_of(?x, Israel) or citizen_of(?x, Canada)",
        "SELECT ?x { { ?x :citizen_of :Israel } UNION { ?x :citizen_of :Canada } }",
    ),
    "up": (
        "(Canada.^citizen_of | Israel.^citizen_of).graduated_from",
        "?x : exists y. graduated_from(y, ?x) & (citizen_of(y, Israel) | citizen_of(y, Canada))",
        "SELECT ?x { ?y :graduated_from ?x { ?y :citizen_of :Israel } UNION { ?y :citizen_of :Canada } }",
    ),
    "2in": (
        "Canada.^citizen_of & !MIT.^graduated_from",
        "?x : !graduated_from(?x, MIT) & citizen_of(?x, Canada)",
        "SELECT ?x { ?x :citizen_of :Canada MINUS { ?x :graduated_from :MIT } }",
    ),
    "3in": (
        'Canada.^citizen_of & "Turing Award".^award_received & !MIT.^graduated_from',
        '?x : !graduated_from(?x, MIT) & citizen_of(?x, Canada) & award_received(?x, "Turing Award")',
        "SELECT ?x { FILTER NOT EXISTS { ?x :graduated_from :MIT } "
        '?x :citizen_of :Canada ; :award_received "Turing Award" }',
    ),
    "inp": (
        "(Canada.^citizen_of & !MIT.^graduated_from).award_received",
        "?x : exists y. award_received(y, ?x) & !graduated_from(y, MIT) & citizen_of(y, Canada)",
        "SELECT ?x { ?y :award_received ?x ; :citizen_of :Canada MINUS { ?y :graduated_from :MIT } }",
    ),
    "pin": (
        "Canada.^citizen_of.graduated_from & !Ann.graduated_from",
        "?x : !graduated_from(Ann, ?x) & exists y. graduated_from(y, ?x) & citizen_of(y, Canada)",
        "SELECT ?x { ?x ^:graduated_from/:citizen_of :Canada FILTER NOT EXISTS { :Ann :graduated_from ?x } }",
    ),
    "pni": (
        "!Canada.^citizen_of.graduated_from & Ann.graduated_from",
        "?x : graduated_from(Ann, ?x) & !exists y. graduated_from(y, ?x) & citizen_of(y, Canada)",
        "SELECT ?x { :Ann :graduated_from ?x MINUS { ?y :graduated_from ?x ; :citizen_of :Canada } }",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_one_question_in_three_syntaxes_is_one_query(shape: str) -> None:
    path, logic, sparql = THREE_WAYS[shape]
    query = parse_path(path, NAMED)
    assert nickname(abstract(query)[0]) == shape
    assert canonical(parse_logic(logic, NAMED)) == canonical(query)
    assert canonical(parse_sparql(sparql, NAMED)) == canonical(query)


# Names -------------------------------------------------------------------------------------------------------------


def _lexicon(entities: list[str], relations: list[str], prefixes: dict[str, str]) -> Lexicon:
    zero = np.zeros(1, dtype=np.int64)
    vocabularies = Vocabulary.of(entities), Vocabulary.of(relations)
    return Lexicon(Graph.of(*vocabularies, {"train": (zero, zero, zero)}, {"prefixes": prefixes}))


RDF = _lexicon(
    ["http://ex.org/a", "http://ex.org/b%20c", "urn:b", "http://ex.org/x/(y)"],
    ["http://ex.org/r", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"],
    {"": "http://ex.org/", "ex": "http://ex.org/x/"},
)


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("SELECT ?x { ?x <http://ex.org/r> <http://ex.org/a> }", 0),
        ("SELECT ?x { ?x :r :a }", 0),
        ("SELECT ?x { ?x a :a }", 0),
        ("SELECT ?x { ?x :r <http://ex.org/b%20c> }", 1),
        ("SELECT ?x { ?x :r :b%20c }", 1),
        ("SELECT ?x { ?x :r <urn:b> }", 2),
        ("BASE <http://ex.org/> SELECT ?x { ?x <r> <urn:b> }", 2),
        (r"SELECT ?x { ?x :r ex:\(y\) }", 3),
        ("SELECT ?x { ?x :r ex:%28y%29 }", 3),
        ('SELECT ?x { ?x :r "http://ex.org/x/(y)" }', 3),
        (r"PREFIX : <http://ex.org/x/> PREFIX ex: <http://ex.org/> SELECT ?x { ?x ex:r :\(y\) }", 3),
        (r"BASE <http://ex.org/> PREFIX p: <x/> SELECT ?x { ?x <r> p:\(y\) }", 3),
    ],
)
def test_iris_prefixes_and_base(text: str, entity: int) -> None:
    query = parse_sparql(text, RDF)
    relation = 3 if " a " in text else 1
    assert query == parse_path(f'"{RDF.entity_name(entity)}".^"{RDF.relation_name(relation)[0]}"', RDF)


def test_prefixed_names_without_a_declaration_stand_for_themselves() -> None:
    lexicon = _lexicon(["concept:city:york", "50%20"], ["concept:in"], {})
    assert parse_sparql("SELECT ?x { ?x concept:in concept:city:york }", lexicon) == parse_path(
        "concept:city:york.^concept:in", lexicon
    )
    assert parse_sparql("SELECT ?x { ?x concept:in <50%20> }", lexicon) == parse_path('"50%20".^concept:in', lexicon)


def test_an_error_points_at_the_name() -> None:
    text = "SELECT ?x {\n\t?x :citizen_of :Canada ;\n\t:award_received 'Touring Award' }"
    with pytest.raises(UnknownNameError) as caught:
        parse_sparql(text, NAMED)
    assert caught.value.position == text.index("'Touring")
    assert caught.value.length == len("'Touring Award'")
    broken = text.replace(":award_received", ";")
    with pytest.raises(QuerySyntaxError) as unread:
        parse_sparql(broken, NAMED)
    assert unread.value.position == broken.index("'Touring")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ?x { ?x :citizen_of«+» :Canada }",
        "SELECT * { ?x :citizen_of«*» :Canada }",
        "SELECT ?x { ?x :citizen_of«?»/:citizen_of :Canada }",
        "SELECT ?x { ?x :citizen_of :Canada . ?x (:citizen_of/:graduated_from)«*» :Canada }",
        "SELECT ?x { ?x :graduated_from [ :citizen_of«+» :Canada ] }",
        "SELECT ?x { ?x :citizen_of«{2}» :Canada }",
        "SELECT ?x { ?x :citizen_of :Canada FILTER (!EXISTS { ?x :graduated_from :MIT }) ?x «!»:citizen_of :MIT }",
        "SELECT ?x { ?x (:citizen_of) «(»:Canada) }",
        "SELECT ?x { ?x (:citizen_of) «(»:Canada :Israel) ; (:citizen_of) :MIT }",
        "SELECT ?x { «(»:Ann) :citizen_of ?x }",
        "SELECT ?x { ?x :citizen_of «(») }",
    ],
)
def test_what_is_refused_is_marked(text: str) -> None:
    before, marked, after = text.replace("»", "«").split("«")
    with pytest.raises(UnsupportedError) as caught:
        parse_sparql(before + marked + after, NAMED)
    assert (caught.value.position, caught.value.length) == (len(before), len(marked))


# Meaning, by what rdflib answers -----------------------------------------------------------------------------------


def test_answers_are_those_of_rdflib() -> None:
    """Patterns of any form: where the parser takes one, the tree has just the answers that rdflib finds."""
    import rdflib

    base = "http://t/"
    graph = random_graph(3, entities=6, relations=2, facts=24)
    lexicon = _lexicon([f"{base}e{i}" for i in range(6)], [f"{base}r{i}" for i in range(2)], {"": base})
    known, everything = successors(graph, "test"), frozenset(range(6))
    facts = rdflib.Graph()
    for (head, relation), tails in known.items():
        for tail in tails if relation % 2 == 0 else ():
            triple = (f"{base}e{head}", f"{base}r{relation // 2}", f"{base}e{tail}")
            facts.add(tuple(map(rdflib.URIRef, triple)))  # type: ignore[arg-type]  # three of them
    generator = random.Random(4)
    taken = refused = 0
    while taken < 120:
        text = f"PREFIX : <{base}> SELECT DISTINCT ?x {_pattern(generator, ['?x'], 2)}"
        try:
            query = parse_sparql(text, lexicon)
        except UnsupportedError:
            refused += 1
            continue
        taken += 1
        answers = {str(row[0]) for row in facts.query(text)}  # type: ignore[index]  # SELECT yields rows
        assert set(lexicon.graph.entities.names(oracle(query, known, everything))) == answers, text
    assert refused > 50


def _pattern(generator: random.Random, scope: list[str], depth: int, place: str = "") -> str:
    """A group that says something about one variable of `scope`, and perhaps about others.

    In a group within an EXISTS (`place`) there are no filters, and each new variable has a name of its own: in rdflib 7
    the former are dropped, and a variable of the surroundings leaks into the filters of an inner group.
    """
    variable = generator.choice(scope)
    fresh = f"?v{generator.randrange(10**6)}"
    parts = [_triple(generator, variable, f":e{generator.randrange(6)}")]
    if generator.random() < 0.4:
        parts = [_triple(generator, variable, fresh), _triple(generator, fresh, f":e{generator.randrange(6)}")]
    for _ in range(generator.choice((0, 1, 1, 2)) if depth else 0):
        about = generator.choice(([variable], [variable], [fresh], [variable, fresh]))
        match generator.choice(("FILTER EXISTS", "FILTER NOT EXISTS", "MINUS", "UNION", "")):
            case "FILTER EXISTS" | "FILTER NOT EXISTS" as word if place != "group in EXISTS":
                parts.append(f"{word} {_pattern(generator, about, depth - 1, 'EXISTS')}")
            case word:
                inside = "group in EXISTS" if place else ""
                groups = [_pattern(generator, about, depth - 1, inside) for _ in range(2)]
                parts.append(" UNION ".join(groups) if word == "UNION" else f"{word and 'MINUS'} {groups[0]}")
    generator.shuffle(parts)
    return "{ " + " ".join(parts) + " }"


def _triple(generator: random.Random, one: str, other: str) -> str:
    subject, object_ = generator.sample([one, other], 2)
    relation = f":r{generator.randrange(2)}"
    path = generator.choice(
        (relation, relation, f"^{relation}", ":r0|:r1", ":r0/:r1", "^:r0/(:r1|:r0)", "(:r0|:r1)/:r0")
    )
    return f"{subject} {path} {object_} ."


# Hostile text --------------------------------------------------------------------------------------------------------


def _hostile() -> Iterator[str]:
    fact = "?x :citizen_of :Canada"
    for many in (20, 1_000, 10_000):
        yield "SELECT ?x " + "{" * many
        yield f"SELECT ?x {{ {'{' * many} {fact} {'}' * many} }}"
        yield f"SELECT ?x {{ ?x {'(' * many} :citizen_of {')' * many} :Canada }}"
        yield f"SELECT ?x {{ ?x :citizen_of {'[ :citizen_of ' * many} :Canada {']' * many} }}"
        yield f"SELECT ?x {{ {fact} {('FILTER NOT EXISTS { ' + fact) * many} {'}' * many} }}"
        yield f"SELECT ?x {{ {fact} FILTER ({'!(' * many} EXISTS {{ {fact} }} {')' * many}) }}"
    yield f"SELECT ?x {{ {(fact + ' . ') * 400} }}"
    yield f"SELECT ?x {{ ?x {'/'.join([':citizen_of'] * 300)} :Canada }}"
    yield f"SELECT ?x {{ ?x {'/'.join(['(:citizen_of|:graduated_from)'] * 60)} :Canada }}"
    yield "BASE <http://[> SELECT ?x { ?x <a> :Canada }"
    for piece in ("a.", "'''a", '"', "?", ":", "\\", "<", "#", "SELECT ", "^", "-1", "\0", "\ud800"):
        yield piece * (10_000 // len(piece))


@pytest.mark.parametrize("text", list(_hostile()), ids=lambda text: f"{text[:24]!a}{len(text)}")
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    with pytest.raises(QueryError):
        parse_sparql("SELECT", NAMED)  # the first call imports rdflib
    started = time.process_time()
    with pytest.raises(QueryError):
        parse_sparql(text, NAMED)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("error", [Exception("bare"), RecursionError(), ValueError("odd"), AttributeError("name")])
def test_whatever_rdflib_raises_is_a_syntax_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    from rdflib.plugins.sparql.parser import QueryUnit

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(QueryUnit, "parse_string", fail)
    with pytest.raises(QuerySyntaxError):
        parse_sparql("SELECT ?x { ?x :citizen_of :Canada }", NAMED)


def test_text_of_any_kind_raises_nothing_but_query_errors(caplog: pytest.LogCaptureFixture) -> None:
    questions = [question for question, _ in PAIRS]
    with caplog.at_level(logging.DEBUG):
        assert_only_query_errors(
            lambda text: parse_sparql(text, NAMED), questions, "?xy{}[]().;,/^|!+*=\\\"'<>#%:@5a \n\t"
        )
    assert not caplog.records


def test_threads_may_ask_at_once() -> None:
    """In a process of its own, as the parser is only in danger before its first question is done."""
    script = """
import sys, threading
from query2particles.graph.folders import open_graph
from query2particles.query.names import Lexicon
from query2particles.query.sparql import parse_sparql
lexicon = Lexicon(open_graph("atlas"))
text = "SELECT ?x { ?y :speaks ?x . { ?y :borders :France } UNION { ?y :borders :Spain } MINUS { ?y :speaks :French } }"
sys.setswitchinterval(1e-6)
together, found = threading.Barrier(6), []
def ask():
    together.wait()
    found.append(parse_sparql(text, lexicon))
threads = [threading.Thread(target=ask) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 6 and len(set(found)) == 1, found
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
