"""One probability of every fact, wherever it is shown; and of questions without a relation, that of no relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from query2particles.answer import Question, Ranked, Reasoner
from query2particles.calibration import Additive, Calibration, calibrate
from query2particles.calibration.calibration import ANY
from query2particles.errors import UnknownNameError, UsageError
from query2particles.methods.q2p import Q2P, Settings
from worlds import random_graph

GRAPH = random_graph(4, entities=40, relations=3, facts=300)
ENTITIES = len(GRAPH.entities)


def exactly() -> Reasoner:
    """Calibrated, with a model in double precision, so that what should agree does to the last digits."""
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        model: Any = Q2P(ENTITIES, GRAPH.at("train").relations, Settings(dimension=8, entity_scale=1.0)).double().eval()
    found, _ = calibrate(model, GRAPH.without("valid"), GRAPH.at("test"), one_hop=300, longer=4)
    return Reasoner(GRAPH, model=model, calibration=found, split="train")


REASONER = exactly()


@pytest.mark.parametrize("text", ["e1.r1", "e1.^r1", "e7.r0", "e20.^r2"])
def test_a_fact_has_one_probability_wherever_it_is_shown(text: str) -> None:
    name, relation = text.split(".")
    answered = REASONER.answer(Question(text, k=ENTITIES, only="predicted"))
    assert len(answered.answers) > 20
    discovered = {
        (one.head.name, one.relation.name, one.tail.name): one.probability
        for one in REASONER.discover(entity=name, relation=relation.removeprefix("^"), k=10_000)
    }
    for one in answered.answers:
        assert isinstance(one, Ranked)
        assert one.probability is not None
        assert 0 < one.probability < 1
        fact = (name, relation, one.name) if relation[0] != "^" else (one.name, relation[1:], name)
        evidence = REASONER.explain(text, one.entity_id)
        assert evidence.tree.fact is not None
        told = [
            evidence.probability,
            evidence.tree.fact.probability,
            evidence.worth,
            discovered[fact],
            *REASONER.probability([fact]),
        ]
        assert told == pytest.approx([one.probability] * 5, abs=1e-9)


def test_a_fact_is_as_likely_inside_a_longer_question() -> None:
    """In the evidence of a chain, every fact has the probability that it has alone."""
    predicted = 0
    for one in REASONER.answer(Question("e3.r0.r1", k=10, only="predicted")).answers:
        tree = REASONER.explain("e3.r0.r1", one.entity_id).tree
        for fact in (tree.fact, tree.branches[0].fact):
            assert fact is not None
            named = (fact.head.name, fact.relation.name, fact.tail.name)
            assert fact.probability == pytest.approx(REASONER.probability([named])[0], abs=1e-9)
            predicted += not fact.stored
    assert predicted >= 10


def test_stored_facts_are_certain_and_loops_that_nobody_has_impossible() -> None:
    assert REASONER.judge is not None
    edges = GRAPH.at("train")
    heads, relations = edges.heads_and_relations()
    stored = [
        (f"e{head}", f"r{relation // 2}", f"e{tail}")
        for head, relation, tail in zip(heads.tolist(), relations.tolist(), edges.tails.tolist(), strict=True)
        if relation % 2 == 0
    ]
    assert set(REASONER.probability(stored)) == {1.0}
    loops = REASONER.judge.plausible.edges.loops
    expected = [None if loops[2 * relation] else 0.0 for relation in range(3)]
    assert 0.0 in expected or loops.all()
    for relation, value in enumerate(expected):
        facts = [(f"e{one}", f"r{relation}", f"e{one}") for one in range(ENTITIES)]
        facts = [fact for fact in facts if fact not in stored]
        assert all((found == 0) == (value == 0) for found in REASONER.probability(facts))


def test_thousands_of_facts_in_one_call_are_what_each_is_alone() -> None:
    names = [f"e{one}" for one in range(ENTITIES)]
    facts = [(head, f"r{relation}", tail) for head in names for relation in range(3) for tail in names]
    found = REASONER.probability(facts)
    assert len(found) == len(facts) == 4800
    assert all(0 <= one <= 1 for one in found)
    for place in range(0, 4800, 397):
        assert found[place] == pytest.approx(REASONER.probability([facts[place]])[0], abs=1e-9)
    assert REASONER.probability([]) == []


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (("e400", "r1", "e2"), "no entity is called 'e400'; did you mean 'e0', 'e4'"),
        (("e1", "r11", "e2"), "no relation is called 'r11'; did you mean 'r1'"),
        (("e1", "r1", "nobody"), "no entity is called 'nobody'"),
    ],
)
def test_unknown_names_are_errors_that_name_the_nearest(fact: tuple[str, str, str], words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        REASONER.probability([("e1", "r1", "e2"), fact])


@pytest.mark.parametrize(
    "bare", [lambda: Reasoner(GRAPH), lambda: Reasoner(GRAPH, model=REASONER.model)], ids=["graph", "not calibrated"]
)
def test_without_a_calibration_nothing_is_judged(bare: Callable[[], Reasoner]) -> None:
    with pytest.raises(UsageError, match="q2p calibrate RUN"):
        bare().probability([("e1", "r1", "e2")])


def test_how_many_answers_are_missing_is_finite() -> None:
    for text in ("e1.r1", "e1.r1.r2", "e1.r1 & e2.^r1", "e1.r1 | e2.r1", "e1.r1 & !e2.r1", "!e1.r1", "!((!e1.r0).r1)"):
        expected = REASONER.answer(text).expected_more
        assert expected is not None
        assert np.isfinite(expected)
        assert expected >= 0


def test_a_question_without_a_last_relation_has_the_effect_of_none() -> None:
    """What is complemented at the root: the first relation of the graph has nothing to say about it."""
    text = "!((!e1.r0).r1)"
    model: Any = REASONER.model
    plain = Calibration.by_scores(model, GRAPH.at("train").relations)
    longer = plain.questions[ANY]
    effects: dict[int, tuple[float, float]] = {0: (1.0, 5.0), 1: (1.0, 5.0), 2: (1.0, 5.0)}
    moved = replace(plain, questions={ANY: replace(longer, relations=effects)})

    def told(calibration: Calibration, asked: str) -> list[float | None]:
        reasoner = Reasoner(GRAPH, model=model, calibration=calibration, split="train")
        found = reasoner.answer(Question(asked, k=10, only="predicted")).answers
        return [one.probability for one in found if isinstance(one, Ranked)]

    assert len(told(plain, text)) > 0
    assert told(moved, text) == told(plain, text)
    assert told(moved, "e1.r0.r1") != told(plain, "e1.r0.r1")


def test_a_family_without_a_fit_takes_that_of_any() -> None:
    found = Calibration.by_scores(REASONER.model, 6)  # type: ignore[arg-type]
    own = replace(found.questions[ANY], bias=2.0)
    several = replace(found, questions={**found.questions, "union": own})
    assert several.of_family("union") is own
    assert several.of_family("hops") is found.questions[ANY]
    assert isinstance(several.of_family("complement"), Additive)
