"""Evidence: what is said to be stored is, the tree entails the answer, and missing facts are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from literal import Literal
from query2particles import evidence as search
from query2particles.answer import Question, Ranked, Reasoner
from query2particles.calibration import Calibration
from query2particles.engine.exact import exact_answers_of
from query2particles.engine.ranks import scoring
from query2particles.errors import UsageError
from query2particles.evidence import Estimates, Evidence, Fact, Named, Proof
from query2particles.graph.edges import Edges
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    canonical,
    ground,
    has_complement,
    nickname,
)
from query2particles.query.syntax import format_query
from query2particles.workload.selection import drawn_queries
from reasoners import random_reasoner
from worlds import oracle, queries, random_graph, successors

GRAPH = random_graph(11, entities=20, relations=3, facts=90)
ENTITIES = len(GRAPH.entities)
EDGES = GRAPH.at("train")
KNOWN = successors(GRAPH, "train")
EVERYTHING = frozenset(range(ENTITIES))
QUERIES = queries(ENTITIES, EDGES.relations // 2)
REASONER = random_reasoner(GRAPH)


def facts_of(proof: Proof) -> Iterator[Fact]:
    """All facts that speak for an answer; counter-paths do not."""
    if proof.fact is not None:
        yield proof.fact
    if proof.op != "complement":
        for branch in proof.branches:
            yield from facts_of(branch)


def all_facts(proof: Proof) -> Iterator[Fact]:
    if proof.fact is not None:
        yield proof.fact
    for branch in proof.branches:
        yield from all_facts(branch)


def entails(query: Query, proof: Proof, threshold: float) -> bool:
    """Whether the facts of a proof, taken as true, make its entity an answer of the query: by the definition alone."""
    entity = proof.entity.id
    match query:
        case Anchor(anchor):
            return proof.op == "anchor" and entity == anchor
        case Project(inner, relation):
            if proof.op != "project" or proof.fact is None:
                return False
            (below,) = proof.branches
            ends = (below.entity.id, entity) if relation % 2 == 0 else (entity, below.entity.id)
            fact = proof.fact
            follows = (fact.head.id, fact.relation.id, fact.tail.id) == (ends[0], relation // 2, ends[1])
            return follows and entails(inner, below, threshold)
        case Intersect(several):
            return (proof.op, len(proof.branches)) == ("intersect", len(several)) and all(
                branch.entity.id == entity and entails(one, branch, threshold)
                for one, branch in zip(several, proof.branches, strict=True)
            )
        case Union(several):
            return (proof.op, len(proof.branches)) == ("union", 1) and any(
                proof.branches[0].entity.id == entity and entails(one, proof.branches[0], threshold) for one in several
            )
        case Complement(inner):
            said = entity in oracle(inner, KNOWN, EVERYTHING)
            return proof.op == "complement" and not said and proof.counter_probability < threshold


@settings(deadline=None)
@given(query=QUERIES, entity=st.integers(0, ENTITIES - 1), threshold=st.sampled_from((0.1, 0.5, 1.0)))
def test_what_is_stored_is_and_a_complete_tree_entails_the_answer(query: Query, entity: int, threshold: float) -> None:
    found = REASONER.explain(query, entity, threshold=threshold)
    for fact in all_facts(found.tree):
        assert fact.stored == EDGES.has(fact.head.id, 2 * fact.relation.id, fact.tail.id)
        is_echo = fact.head == fact.tail and not fact.stored
        assert fact.probability == 1 if fact.stored else 0 <= fact.probability < 1
        assert fact.probability > 0 or is_echo
        assert (fact.score is None) == fact.stored
    if found.complete:
        assert found.tree.entity.id == entity
        assert entails(canonical(query), found.tree, threshold)
    is_known = entity in oracle(query, KNOWN, EVERYTHING)
    sure = "supported" if has_complement(query) else "known"
    assert found.status == (sure if is_known else "predicted")
    if found.status == "known":
        assert found.complete
        assert all(fact.stored for fact in facts_of(found.tree))
        assert found.tree.value == 1


@settings(deadline=None)
@given(query=QUERIES, entity=st.integers(0, ENTITIES - 1))
def test_where_all_entities_are_tried_the_best_assignment_is_found(query: Query, entity: int) -> None:
    with pytest.MonkeyPatch.context() as patch, scoring(REASONER.model):  # type: ignore[arg-type]
        patch.setattr(search, "_SOURCES", ENTITIES)
        found = REASONER.explain(query, entity)
        assert found.tree.value == pytest.approx(best_value(query, entity), abs=1e-6)


def best_value(query: Query, entity: int) -> float:
    """The best product over all assignments, by trying them all."""
    match query:
        case Anchor(anchor):
            return float(anchor == entity)
        case Project(inner, relation):
            links = [
                1.0 if entity in KNOWN.get((source, relation), set()) else link(source, relation, entity)
                for source in range(ENTITIES)
            ]
            return max(best_value(inner, source) * links[source] for source in range(ENTITIES))
        case Intersect(several):
            return float(np.prod([best_value(branch, entity) for branch in several]))
        case Union(several):
            return max(best_value(branch, entity) for branch in several)
        case Complement(inner):
            return 0.0 if entity in oracle(inner, KNOWN, EVERYTHING) else 1 - best_value(inner, entity)


LINKS: dict[int, Any] = {}


def link(source: int, relation: int, target: int) -> float:
    """What the fact is worth wherever it is shown."""
    if relation not in LINKS:
        assert REASONER.judge is not None
        sources, targets = np.indices((ENTITIES, ENTITIES)).reshape(2, -1)
        found = REASONER.judge.guessed_facts(sources, np.full(len(sources), relation), targets)
        LINKS[relation] = found.reshape(ENTITIES, ENTITIES)
    return float(LINKS[relation][source, target])


def test_a_one_hop_fact_has_the_probability_of_its_answer() -> None:
    """Asked from either end, a fact is as likely as the answer of the question that asks for it, and says why."""
    for text in ("e1.r1", "e1.^r1"):
        answers = REASONER.answer(Question(text, k=ENTITIES, only="predicted")).answers
        assert len(answers) > 10
        for answer in answers:
            assert isinstance(answer, Ranked)
            found = REASONER.explain(text, answer.entity_id)
            assert found.tree.fact is not None
            assert found.tree.fact.probability == pytest.approx(answer.probability, abs=1e-6)
            assert found.worth == found.tree.fact.probability
            assert found.difference is None
            assert found.tree.fact.score == pytest.approx(answer.score, abs=1e-4)
            assert REASONER.judge is not None
            assert set(found.reasons) == set(REASONER.judge.calibration.facts.names)
            sizes = [abs(value) for value in found.reasons.values()]
            assert sizes == sorted(sizes, reverse=True)


def test_estimates_are_a_softmax_over_what_is_open() -> None:
    """1 for what is stored, 0 for what is no guess, and for the rest what the scores say."""
    entity, relation = 1, 2
    assert REASONER.model is not None
    with scoring(REASONER.model):
        estimates = Estimates(EDGES, REASONER.model, plausible=REASONER.plausible)
        links, scores = estimates.links(np.array([entity]), np.array([relation]))
    assert scores is not None
    stored = KNOWN[entity, relation]
    guessable = Literal.of(GRAPH, "train").open(Project(Anchor(entity), relation), stored)
    echo = Literal.of(GRAPH, "train").echoes(Project(Anchor(entity), relation))
    total = np.logaddexp.reduce([scores[0, one] for one in EVERYTHING - stored - echo])
    for one in EVERYTHING:
        expected = 1.0 if one in stored else np.exp(scores[0, one] - total) if one in guessable else 0.0
        assert links[0, one] == pytest.approx(expected, abs=1e-6)


def evidence_of(probability: float | None, worth: float, status: Any = "predicted") -> Evidence:
    entity = Named(0, "e0", "e0")
    return Evidence("", "", entity, status, probability, 0.5, True, Proof("union", entity, worth))


def test_evidence_says_why_an_answer_is_worth_something_else() -> None:
    for same in (
        evidence_of(None, 0.3),
        evidence_of(0.305, 0.3),
        evidence_of(0.4, 0.3),
        evidence_of(1.0, 0.3, "known"),
    ):
        assert same.difference is None
    more, less = evidence_of(0.6, 0.1).difference, evidence_of(0.1, 0.6).difference
    assert more is not None
    assert less is not None
    assert "10 %" in more
    assert "60 % counts all ways" in more
    assert "worth 60 % together; the answer's 10 % is lower" in less


@settings(deadline=None)
@given(query=QUERIES)
def test_evidence_says_of_an_answer_what_answers_say(query: Query) -> None:
    text = format_query(query, REASONER.lexicon)
    for answer in REASONER.answer(Question(text, k=3, guesses="always")).answers:
        assert isinstance(answer, Ranked)
        found = REASONER.explain(text, answer.entity_id)
        assert (found.status, found.answer.name) == (answer.status, answer.name)
        assert found.probability == pytest.approx(answer.probability, abs=1e-5)


@settings(deadline=None)
@given(query=QUERIES, entity=st.integers(0, ENTITIES - 1))
def test_stored_facts_alone_explain_exactly_what_follows(query: Query, entity: int) -> None:
    found = Reasoner(GRAPH, split="train").explain(query, entity)
    assert all(fact.stored for fact in facts_of(found.tree) if found.complete)
    is_known = entity in oracle(query, KNOWN, EVERYTHING)
    assert found.complete == is_known
    assert found.probability == (1 if is_known and not has_complement(query) else None)


@pytest.mark.parametrize("with_model", [False, True], ids=["graph", "model"])
def test_the_way_of_stored_facts_is_not_crowded_out(with_model: bool) -> None:
    """Of more entities than are tried: many have stored ways to the anchor, one alone leads on to the answer."""
    anchor, answer, between, source = 0, 1, 2, 219
    others, their_sources = range(10, 80), range(80, 219)
    facts = [(anchor, 0, one) for one in (*their_sources, source)]
    facts += [(one, 1, others[number % len(others)]) for number, one in enumerate(their_sources)]
    facts += [(source, 1, between), (between, 2, answer)]
    columns = np.array(facts).T
    graph = Graph.of(
        Vocabulary.of([f"e{number}" for number in range(220)]),
        Vocabulary.of(["r0", "r1", "r2"]),
        {"train": (columns[0], columns[1], columns[2])},
        {"name": "crowded"},
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        model = Q2P(220, 6, Settings(dimension=8, entity_scale=0.5)).eval()
    calibration = Calibration.by_scores(model, 6)
    reasoner = Reasoner(graph, model=model, calibration=calibration) if with_model else Reasoner(graph)
    found = reasoner.explain("e0.r0.r1.r2", answer)
    assert found.complete
    assert [(fact.head.id, fact.tail.id) for fact in facts_of(found.tree) if fact.stored] == [
        (between, answer),
        (source, between),
        (anchor, source),
    ]


def test_an_anchor_far_from_the_answer_proves_nothing() -> None:
    found = REASONER.explain("e1", 2)
    assert not found.complete
    assert found.as_json()["tree"] == {"op": "anchor", "entity": {"name": "e1", "label": "e1"}}


def test_the_form_of_evidence(named: Graph) -> None:
    question = '"Turing Award".^award_received & !Canada.^citizen_of'
    bob = named.entities.find("Bob")
    assert bob is not None
    told = Reasoner(named).explain(question, bob).as_json()
    prize, person = {"name": "Turing Award", "label": "Turing Award"}, {"name": "Bob", "label": "Bob"}
    fact = {
        "head": person,
        "relation": {"name": "award_received", "label": "award_received"},
        "tail": prize,
        "status": "stored",
        "probability": 1,
        "score": None,
    }
    project = {
        "op": "project",
        "entity": person,
        "fact": fact,
        "branches": [{"op": "anchor", "entity": prize}],
    }
    complement = {
        "op": "complement",
        "entity": person,
        "holds": True,
        "stored_path": False,
        "counter_probability": 0,
        "threshold": 0.5,
        "branches": [],
    }
    assert told == {
        "question": question,
        "query": question,
        "answer": person,
        "status": "supported",
        "probability": None,
        "worth": 1,
        "difference": None,
        "reasons": {},
        "threshold": 0.5,
        "complete": True,
        "tree": {"op": "intersect", "entity": person, "branches": [project, complement]},
    }
    ann = named.entities.find("Ann")
    assert ann is not None
    against = Reasoner(named).explain(question, ann)
    assert not against.complete
    _, excluded = against.as_json()["tree"]["branches"]
    assert (excluded["holds"], excluded["stored_path"], excluded["counter_probability"]) == (False, True, 1)
    assert excluded["branches"][0]["fact"]["tail"]["name"] == "Canada"


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.1, float("nan")])
def test_thresholds_are_probabilities(threshold: float) -> None:
    with pytest.raises(UsageError, match="threshold"):
        REASONER.explain("e1.r1", 1, threshold=threshold)


def test_only_entities_can_be_explained() -> None:
    for entity in (-1, ENTITIES):
        with pytest.raises(UsageError, match="no entity"):
            REASONER.explain("e1.r1", entity)


Triple = tuple[int, int, int]


def missing_facts(query: Query, entity: int, small: Edges, large: Edges) -> set[frozenset[Triple]]:
    """Of every proof on the larger level, the facts that the smaller one lacks; proofs that lack two are left out."""
    match query:
        case Anchor(anchor):
            return {frozenset()} if anchor == entity else set()
        case Project(inner, relation):
            found = set()
            for source in large.tails_of(entity, relation ^ 1).tolist():
                ends = (source, entity) if relation % 2 == 0 else (entity, source)
                fact = (ends[0], relation // 2, ends[1])
                own = frozenset() if small.has(source, relation, entity) else frozenset([fact])
                found |= {own | other for other in missing_facts(inner, source, small, large) if len(own | other) < 2}
            return found
        case Intersect(several):
            found = {frozenset()}
            for branch in several:
                own_ones = missing_facts(branch, entity, small, large)
                found = {one | other for one in found for other in own_ones if len(one | other) < 2}
            return found
        case Union(several):
            return set().union(*(missing_facts(branch, entity, small, large) for branch in several))
        case Complement(inner):
            return set() if entity in exact_answers_of(large, inner)[0] else {frozenset()}


PAIRS = 16
"""Of each shape: 224 in all."""


def held_out_pairs(reasoner: Reasoner, shape: Query, ids: Any) -> Iterator[tuple[Query, int, set[Triple]]]:
    """Answers in the top ten that one held-out fact would prove, and the facts that would do so."""
    small, large = reasoner.graph.at("train"), reasoner.graph.at("test")
    for row in ids.tolist():
        query = ground(shape, row)
        text = format_query(query, reasoner.lexicon)
        true = set(exact_answers_of(large, query)[0].tolist())
        for answer in reasoner.answer(Question(text, only="predicted")).answers:
            if answer.entity_id in true:
                lacking = missing_facts(query, answer.entity_id, small, large)
                assert frozenset() not in lacking, "it would follow from stored facts"
                if lacking:
                    yield query, answer.entity_id, {fact for (fact,) in lacking}


def test_evidence_names_the_fact_that_was_held_out(atlas_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reasoner = Reasoner.open(atlas_run, split="train")
    batch, _ = drawn_queries(reasoner.graph, "test", most=200, seed=11)
    asked: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for shape, ids in batch.items():
        name = nickname(shape)
        for query, entity, lacking in held_out_pairs(reasoner, shape, ids):
            found: Evidence = reasoner.explain(query, entity)
            told = {(fact.head.id, fact.relation.id, fact.tail.id) for fact in facts_of(found.tree)}
            asked[name] += 1
            named[name] += bool(told & lacking)
            if asked[name] == PAIRS:
                break
    shares = {name: f"{named[name]}/{count}" for name, count in asked.items()}
    many_hops = [name for name in asked if name != "1p"]
    share = sum(named[name] for name in many_hops) / sum(asked[name] for name in many_hops)
    with capsys.disabled():
        print(f"\nheld-out facts named by evidence: {share:.0%} without 1p; {shares}")
    assert len(many_hops) >= 10
    assert sum(asked.values()) >= 150
    assert share >= 0.6


def test_all_shapes_have_evidence(atlas_run: Path) -> None:
    """Whatever the shape, the best guess is explained: completely, or with what is missing."""
    reasoner = Reasoner.open(atlas_run, split="train")
    batch, _ = drawn_queries(reasoner.graph, "test", most=2, seed=5)
    assert set(batch) == set(SHAPES.values())
    complete = 0
    for shape, ids in batch.items():
        text = format_query(ground(shape, ids[0].tolist()), reasoner.lexicon)
        for answer in reasoner.answer(Question(text, k=2, guesses="always")).answers:
            complete += reasoner.explain(text, answer.entity_id).complete
    assert complete >= 20
