"""Features of longer questions, by hand on a tiny world, and finite on any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from literal import Literal
from query2particles.calibration import Rates
from query2particles.calibration.questions import KNOWN, OPEN, QuestionFeatures, family_of, last_relation
from query2particles.engine.exact import exact_nodes
from query2particles.engine.ranks import scoring
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Query,
    abstract,
    has_complement,
    numbered,
    shape_named,
)
from query2particles.ranking import Contexts, rank
from query2particles.workload.natural import natural_questions
from reasoners import random_reasoner
from worlds import random_graph

RATE = 0.1

ANN, BOB, CARL, OSLO, ROME, NORWAY, ITALY = range(7)
LIVES, LIES = 0, 2
FACTS = [(ANN, 0, OSLO), (BOB, 0, ROME), (CARL, 0, ROME), (CARL, 0, OSLO), (OSLO, 1, NORWAY), (ROME, 1, ITALY)]
EDGES = Edges.of(*np.array(FACTS).T, entity_count=7, relation_count=2)


def features_of(shape: Query, ids: Ints) -> QuestionFeatures:
    features: Any = SimpleNamespace(edges=EDGES, kinds=Kinds(EDGES), rates=Rates.constant(4, RATE))
    contexts: Any = None
    facts: Any = None
    return QuestionFeatures(shape, ids, exact_nodes(EDGES, {shape: ids})[shape], contexts, features, facts)


def room(name: str, *ids: int, against: bool = False) -> float:
    return float(np.exp(features_of(SHAPES[name], np.array([ids])).room(against=against)[0, 0]))


def test_a_hop_is_short_of_what_its_sources_are_short_of() -> None:
    assert room("1p", ANN, LIVES) == pytest.approx(RATE)
    # Carl has two towns and misses 0.1, and each town leads to one country: 0.1 · 1; both towns miss 0.1 countries.
    assert room("2p", CARL, LIVES, LIES) == pytest.approx(RATE * 1 + 2 * RATE)
    # Each of the two towns has two inhabitants.
    assert room("2p", NORWAY, LIES ^ 1, LIVES ^ 1) == pytest.approx(RATE * 2 + RATE)


def test_an_intersection_is_short_of_no_more_than_another_branch_has() -> None:
    # Each branch misses 0.1 of those that the other one has, 2 and 0.1 more.
    assert room("2i", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == pytest.approx(2 * RATE)
    # Nobody lives in Norway: that branch has 0.1 at most, and so has what the other one misses.
    assert room("2i", OSLO, LIVES ^ 1, NORWAY, LIVES ^ 1) == pytest.approx(2 * RATE)
    # A chain misses 0.3 of them, but no more than the single hop has, 1 and 0.1 more.
    assert room("pi", CARL, LIVES, LIES, OSLO, LIES) == pytest.approx(0.3 + RATE)


def test_a_union_is_short_of_what_all_are_short_of() -> None:
    assert room("2u", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == pytest.approx(2 * RATE)
    assert room("up", ANN, LIVES, BOB, LIVES, LIES) == pytest.approx(2 * RATE * 1 + 2 * RATE)


def test_a_complement_is_not_counted_but_may_take_back() -> None:
    assert room("2in", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == pytest.approx(RATE)
    assert room("2in", OSLO, LIVES ^ 1, ROME, LIVES ^ 1, against=True) == pytest.approx(RATE)
    assert room("2i", OSLO, LIVES ^ 1, ROME, LIVES ^ 1, against=True) == pytest.approx(1e-6), "there is none"


def conditions(name: str, *ids: int) -> list[float]:
    """Of Ann, Bob, Carl and Norway."""
    asked = np.array([[ANN, BOB, CARL, NORWAY]])
    return list(features_of(SHAPES[name], np.array([ids]))._conditions(asked)[0].tolist())


def test_conditions_that_no_stored_fact_satisfies() -> None:
    assert conditions("1p", OSLO, LIVES ^ 1) == [0, 1, 0, 1]
    assert conditions("2i", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == [1, 1, 0, 2]
    assert conditions("2u", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == [0, 0, 0, 1]
    assert conditions("2in", OSLO, LIVES ^ 1, ROME, LIVES ^ 1) == [0, 2, 1, 1]
    assert conditions("2p", NORWAY, LIES ^ 1, LIVES ^ 1) == [0, 1, 0, 1]


def test_kinds_are_those_of_the_last_relation() -> None:
    """Of an intersection's branches the least counts, of a union's the largest."""
    graph = random_graph(6, entities=40, relations=6, facts=90)
    literal, edges = Literal.of(graph, "train"), graph.at("train")
    stub: Any = SimpleNamespace(edges=edges, kinds=Kinds(edges), rates=Rates.constant(edges.relations, RATE))
    nothing: Any = None
    entities = np.arange(40)[None]
    for name, join in (("1p", np.minimum), ("2i", np.minimum), ("2u", np.maximum)):
        ids = np.array([[3, 1, 7, 4] if name != "1p" else [3, 1]])
        nodes = exact_nodes(edges, {SHAPES[name]: ids})[SHAPES[name]]
        kind, role, _ = QuestionFeatures(SHAPES[name], ids, nodes, nothing, stub, nothing)._kinds(entities)
        branches = [0, 5] if name != "1p" else [0]  # the inverses of 1 and of 4
        lifts = [[np.log(literal.lift(one, branch)) for one in range(40)] for branch in branches]
        often = [[np.log1p(literal.facts(one, branch)) for one in range(40)] for branch in branches]
        np.testing.assert_allclose(kind[0], join.reduce(np.clip(lifts, -7, 7), axis=0))
        np.testing.assert_allclose(role[0], join.reduce(often, axis=0))


GRAPH = random_graph(7, entities=80, relations=3, facts=500)
BATCH = natural_questions(GRAPH.at("train"), GRAPH.at("test"), count=8, one_hop=8, seed=0)


@pytest.mark.parametrize("name", SHAPES)
def test_features_of_any_shape_are_finite(name: str) -> None:
    reasoner = random_reasoner(GRAPH)
    assert reasoner.model is not None
    assert reasoner.judge is not None
    shape, edges = SHAPES[name], GRAPH.at("train")
    with scoring(reasoner.model):
        ranking = rank(reasoner.model, edges, {shape: BATCH[shape]}, 20, plausible=reasoner.plausible)[shape]
        features = reasoner.judge._questions(shape, BATCH[shape], ranking)
        scores = np.where(np.isfinite(ranking.best_scores), ranking.best_scores, 0.0)
        found = features.of_open(scores, ranking.best)
        claimed = reasoner.judge.open(shape, BATCH[shape], ranking, scores, ranking.best)
    assert found.shape == (len(BATCH[shape]), 20, len(OPEN))
    assert np.isfinite(found).all()
    assert np.ptp(found[..., OPEN.index("score")]) > 0
    assert ((claimed >= 0) & (claimed < 1)).all()
    if has_complement(shape):
        known = features.of_known(scores)
        assert known.shape == (len(BATCH[shape]), 20, len(KNOWN))
        assert np.isfinite(known).all()
        hops = {"2in": 1, "3in": 1, "inp": 2, "pin": 2, "pni": 2}
        assert set(known[..., KNOWN.index("hops")].ravel()) == {hops[name]}


def test_scores_are_measured_by_what_is_open() -> None:
    shape = SHAPES["2u"]
    contexts = Contexts(np.array([2.0]), np.array([1.5]), np.array([3.0]))
    ids = np.array([(OSLO, LIVES ^ 1, ROME, LIVES ^ 1)])
    features: Any = SimpleNamespace(edges=EDGES, kinds=Kinds(EDGES), rates=Rates.constant(4, RATE))

    def likely(*fact: Ints) -> Any:
        return np.full(len(fact[0]), 0.25)

    nodes = exact_nodes(EDGES, {shape: ids})[shape]
    found = QuestionFeatures(shape, ids, nodes, contexts, features, likely).of_open(
        np.array([[0.5]]), np.array([[NORWAY]])
    )
    named = dict(zip(OPEN, found[0, 0].tolist(), strict=True))
    worth = 1 - 0.75**2
    assert named["facts"] == pytest.approx(np.log(worth / (1 - worth)))
    assert (named["score"], named["lead"], named["total"]) == (pytest.approx(-1.5), pytest.approx(-0.5), 2.0)
    assert (named["room"], named["conditions"]) == (pytest.approx(np.log(2 * RATE)), 1)


def test_every_shape_has_a_family() -> None:
    families: dict[str, list[str]] = {}
    for name, shape in SHAPES.items():
        families.setdefault(family_of(shape), []).append(name)
    assert families == {
        "hops": ["1p", "2p", "3p", "ip", "up", "inp"],
        "intersection": ["2i", "3i", "pi", "2in", "3in", "pin", "pni"],
        "union": ["2u"],
    }
    spelled = {"e": "hops", "n(e)": "complement", "u(e,i(e,e))": "union"}
    assert {text: family_of(shape_named(text)) for text in spelled} == spelled


def test_the_relation_that_leads_to_the_answers() -> None:
    assert last_relation(SHAPES["2p"], np.array([(0, 4, 6), (1, 2, 3)])).tolist() == [6, 3]
    assert last_relation(SHAPES["2i"], np.array([(0, 4, 6, 2)])).tolist() == [4]
    assert last_relation(SHAPES["pni"], np.array([(0, 4, 6, 2, 5)])).tolist() == [5]
    for query in (Anchor(3), Complement(Anchor(3))):
        shape, ids = abstract(query)
        assert shape == numbered(query)
        assert last_relation(shape, np.array([ids])).tolist() == [-1]
