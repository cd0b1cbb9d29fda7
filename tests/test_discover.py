"""Missing facts: none that is stored, the likeliest first, and on a real graph some that are true."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from literal import Literal
from query2particles.answer import Reasoner
from query2particles.calibration import Calibration
from query2particles.engine.ranks import scoring
from query2particles.errors import UnknownNameError, UsageError
from query2particles.evidence import Estimates
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P, Settings
from reasoners import random_reasoner
from worlds import ENTITIES as ENTITIES_NAMED
from worlds import random_graph, successors

GRAPH = random_graph(4, entities=25, relations=3, facts=80)
ENTITIES = len(GRAPH.entities)
EDGES = GRAPH.at("train")
REASONER = random_reasoner(GRAPH)


def everything_missing() -> dict[tuple[int, int, int], float]:
    """Every plausible fact that is not stored with its probability, judged one by one."""
    assert REASONER.judge is not None
    assert REASONER.model is not None
    literal, found = Literal.of(GRAPH, "train"), {}
    with scoring(REASONER.model):
        for relation in range(EDGES.relations // 2):
            able = [
                [one for one in range(ENTITIES) if literal.can(one, role)] for role in (2 * relation, 2 * relation + 1)
            ]
            for head, tail in product(*able):
                if (head != tail or literal.loops(2 * relation)) and tail not in KNOWN.get((head, 2 * relation), set()):
                    fact = (np.array([one]) for one in (head, 2 * relation, tail))
                    found[head, relation, tail] = float(REASONER.judge.facts(*fact)[0])
    return found


KNOWN = successors(GRAPH, "train")
MISSING = everything_missing()


def found_by(**options: object) -> list[tuple[tuple[int, int, int], float]]:
    found = REASONER.discover(**options)  # type: ignore[arg-type]
    pairs = [((one.head.id, one.relation.id, one.tail.id), one.probability or 0.0) for one in found]
    probabilities = [probability for _, probability in pairs]
    assert probabilities == sorted(probabilities, reverse=True)
    return pairs


def test_of_an_entity() -> None:
    found = found_by(entity="e3", k=1000)
    own = {fact: value for fact, value in MISSING.items() if 3 in (fact[0], fact[2])}
    assert dict(found) == pytest.approx(own, abs=1e-6)


def test_of_a_relation() -> None:
    found = found_by(relation="r1", k=1000)
    own = {fact: value for fact, value in MISSING.items() if fact[1] == 1}
    assert dict(found) == pytest.approx(own, abs=1e-6)


def test_what_is_of_a_wrong_kind_is_not_found(named: Graph) -> None:
    """Prizes and countries graduate from nowhere, whatever a model says that has learned nothing."""
    with torch.random.fork_rng([]):
        model = Q2P(len(named.entities), named.at("train").relations, Settings(dimension=8)).eval()
    reasoner = Reasoner(named, model=model, calibration=Calibration.by_scores(model, named.at("train").relations))
    found = reasoner.discover(relation="graduated_from")
    assert found
    assert {one.head.name for one in found} <= {"Ann", "Bob", ENTITIES_NAMED[9]}
    assert {one.tail.name for one in found} & {"Canada", "Turing Award", "Ann"} == set()


def test_of_both_and_not_too_many() -> None:
    found = found_by(relation="r1", entity="e3", k=5)
    own = {fact: value for fact, value in MISSING.items() if fact[1] == 1 and 3 in (fact[0], fact[2])}
    assert len(found) == 5
    assert set(dict(found)) <= set(own)
    assert [value for _, value in found] == pytest.approx(sorted(own.values(), reverse=True)[:5], abs=1e-6)


def test_wrong_calls() -> None:
    with pytest.raises(UsageError, match="relation or an entity"):
        REASONER.discover()
    with pytest.raises(UsageError, match="at least 1"):
        REASONER.discover(entity="e1", k=0)
    with pytest.raises(UnknownNameError, match="no relation"):
        REASONER.discover(relation="nothing")


def test_without_a_calibration_the_order_stays_and_nothing_is_claimed() -> None:
    bare = Reasoner(GRAPH, model=REASONER.model, split="train")
    found = bare.discover(entity="e3", k=4)
    assert [one.probability for one in found] == [None] * 4
    estimates = Estimates(EDGES, REASONER.model, plausible=REASONER.plausible)
    with scoring(REASONER.model):  # type: ignore[arg-type]
        softmax = [
            estimates.links(np.array([start]), np.array([directed]))[0][0, end]
            for one in found
            for start, directed, end in (
                (one.head.id, 2 * one.relation.id, one.tail.id),
                (one.tail.id, 2 * one.relation.id + 1, one.head.id),
            )
        ]
    both = [one * other for one, other in zip(softmax[::2], softmax[1::2], strict=True)]
    assert both == sorted(both, reverse=True)
    assert set(found[0].as_json()) == {"head", "relation", "tail", "score", "probability"}


def test_held_out_facts_are_among_the_likeliest(atlas_run: Path) -> None:
    reasoner = Reasoner.open(atlas_run, split="train")
    everything = reasoner.graph.at("test")
    heard: list[int] = []
    found = reasoner.discover(relation="in_state", k=20, progress=heard.append)
    true = [one for one in found if everything.has(one.head.id, 2 * one.relation.id, one.tail.id)]
    stored = [one for one in found if reasoner.graph.at("train").has(one.head.id, 2 * one.relation.id, one.tail.id)]
    assert not stored
    assert len(true) >= 5
    assert sum(heard) > 10
