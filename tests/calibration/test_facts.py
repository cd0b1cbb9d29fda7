"""Features of facts: the same from either end, and each what its definition says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from literal import Literal
from query2particles.calibration import Rates, facts
from query2particles.calibration.facts import FactFeatures, scorers
from query2particles.calibration.rates import Floats
from query2particles.engine.ranks import scoring
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.methods import links
from query2particles.methods.joint import FAMILIES, FEATURES, Joint
from query2particles.methods.tree import Settings as TreeSettings
from query2particles.methods.tree import Tree
from reasoners import random_reasoner
from worlds import random_graph

GRAPH = random_graph(12, entities=25, relations=3, facts=110)
EDGES = GRAPH.at("train")
MODEL: Any = random_reasoner(GRAPH).model
RATES = Rates.fit(EDGES, GRAPH.at("test"))
LITERAL = Literal.of(GRAPH, "train")


def features_of(model: Any = MODEL, edges: Edges = EDGES) -> FactFeatures:
    return FactFeatures(model, edges, Kinds(edges), RATES)


def every_fact(edges: Edges = EDGES) -> tuple[Ints, Ints, Ints]:
    """All triples with a directed relation."""
    heads, relations, tails = np.indices((edges.entities, edges.relations, edges.entities)).reshape(3, -1)
    return heads, relations, tails


def columns(model: Any = MODEL) -> dict[str, Floats]:
    with scoring(model):
        found = features_of(model)(*every_fact())
    return dict(zip(FactFeatures.names_for(model), found.T, strict=True))


COLUMNS = columns()
FACTS = [tuple(map(int, fact)) for fact in zip(*every_fact(), strict=True)]


def as_stored(head: int, relation: int, tail: int) -> tuple[int, int, int]:
    return (head, relation, tail) if relation % 2 == 0 else (tail, relation ^ 1, head)


def test_a_fact_is_the_same_whichever_end_it_is_asked_from() -> None:
    heads, relations, tails = every_fact()
    with scoring(MODEL):
        forward, backward = features_of()(heads, relations, tails), features_of()(tails, relations ^ 1, heads)
    np.testing.assert_allclose(forward, backward, atol=1e-5)
    assert np.isfinite(forward).all()


def test_judged_alone_it_is_as_among_many() -> None:
    """Where few pairs of many heads and tails are asked for, each is scored by itself."""
    generator = np.random.default_rng(0)
    some = generator.choice(len(FACTS), 30, replace=False)
    heads, relations, tails = (column[some] for column in every_fact())
    features = features_of()
    with scoring(MODEL):
        together = features(heads, relations, tails)
        alone = np.concatenate([features(*(one[at : at + 1] for one in (heads, relations, tails))) for at in range(30)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(facts, "_DENSE", 0)
            patch.setattr(facts, "_AT_ONCE", 7)
            one_by_one = features(heads, relations, tails)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, one_by_one, atol=1e-5)


def literal_share(scores: Floats, relation: int, tail: int) -> float:
    tails = [one for one in range(EDGES.entities) if relation ^ 1 in LITERAL.roles[one]]
    return float(scores[tail] - np.logaddexp.reduce([*scores[tails], scores[tail]]))


def test_shares_are_those_among_all_tails_of_the_relation() -> None:
    with scoring(MODEL):
        scores = {
            (head, relation): MODEL.score(MODEL.project(MODEL.anchor(torch.tensor([head])), torch.tensor([relation])))
            .double()
            .numpy()[0]
            for head in range(EDGES.entities)
            for relation in range(EDGES.relations)
        }
    for place, fact in enumerate(FACTS):
        head, relation, tail = as_stored(*fact)
        expected = literal_share(scores[head, relation], relation, tail)
        assert COLUMNS["score: tail"][place] == pytest.approx(expected, abs=1e-4)
        expected = literal_share(scores[tail, relation ^ 1], relation ^ 1, head)
        assert COLUMNS["score: head"][place] == pytest.approx(expected, abs=1e-4)
    with scoring(MODEL):
        table = features_of().shares_between(np.array([3, 5]), 2, np.array([1, 4, 9]))
    expected_table = [[literal_share(scores[head, 2], 2, tail) for tail in (1, 4, 9)] for head in (3, 5)]
    np.testing.assert_allclose(table, expected_table, atol=1e-4)


def test_a_sample_of_many_tails_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, relations, tails = every_fact()
    features = features_of()
    monkeypatch.setattr(facts, "_SAMPLE", 12)
    with scoring(MODEL):
        sampled = features(heads, relations, tails)[:, 0]
    assert not np.allclose(sampled, COLUMNS["score: tail"], atol=1e-3)
    assert np.abs(sampled - COLUMNS["score: tail"]).mean() < 0.3, "the total of a sample is close to that of all"


def test_structure_by_its_definition() -> None:
    for place, fact in enumerate(FACTS):
        head, relation, tail = as_stored(*fact)
        size = np.log1p(sum(LITERAL.facts(one, relation) for one in range(EDGES.entities)))
        for entity, role, own, room in ((head, relation, "head", "tail"), (tail, relation ^ 1, "tail", "head")):
            count = LITERAL.facts(entity, role)
            rate = RATES(np.array([role]), np.array([count]))[0]
            lift = 0.0 if count else np.clip(np.log(LITERAL.lift(entity, role)), -7, 7)
            expected = {
                f"room for a {room}": np.log(rate),
                f"kind of the {own}": lift,
                f"usual {own}": np.log((count + 0.5) / (LITERAL.usual(entity, role) + 0.5)),
                f"frequent {own}": np.log(count + 0.5) - size,
                f"first {room}": float(count == 0),
                "facts of the relation": size,
            }
            found = {name: COLUMNS[name][place] for name in expected}
            assert found == pytest.approx(expected, abs=1e-9)


def test_walks_lead_where_two_relations_mean_a_third() -> None:
    """Whoever's mother's mother somebody is, is the grandmother; of one the fact is missing."""
    mother = [(one, 0, one + 30) for one in range(30)] + [(one + 30, 0, one + 60) for one in range(30)]
    grand = [(one, 1, one + 60) for one in range(29)]
    edges = Edges.of(*np.array(mother + grand).T, entity_count=90, relation_count=2)
    model: Any = random_reasoner(random_graph(0, entities=90, relations=2, facts=300)).model
    features = FactFeatures(model, edges, Kinds(edges), Rates.constant(4))
    names = FactFeatures.names_for(model)
    with scoring(model):
        right, wrong = features(np.array([29, 29]), np.array([2, 2]), np.array([89, 88]))
    for name in ("walks to the tail", "walks to the head"):
        assert right[names.index(name)] > -1
        assert wrong[names.index(name)] == pytest.approx(np.log(1e-5))


def test_a_relation_without_facts_has_finite_features() -> None:
    edges = Edges.of(*np.array([(0, 0, 1), (1, 0, 2)]).T, entity_count=25, relation_count=3)
    with scoring(MODEL):
        found = FactFeatures(MODEL, edges, Kinds(edges), RATES)(np.array([0, 3]), np.array([4, 5]), np.array([2, 9]))
    assert np.isfinite(found).all()


def test_what_scores_single_facts() -> None:
    assert dict(scorers(MODEL)) == {"score": MODEL}
    assert FactFeatures.names_for(MODEL)[:2] == ("score: tail", "score: head")
    with torch.random.fork_rng([]):
        predictor = links.Links(25, EDGES.relations, links.Settings(dimension=8))
    tree = Tree(25, EDGES.relations, TreeSettings())
    tree.links = predictor
    tree.attach(EDGES)
    joint: Any = Joint(MODEL, tree, EDGES, torch.zeros(FAMILIES, len(FEATURES)))
    assert dict(scorers(joint)) == {"particles": MODEL, "links": predictor}
    assert dict(scorers(tree)) == {"links": predictor}
    names = FactFeatures.names_for(joint)
    assert names[:4] == ("particles: tail", "particles: head", "links: tail", "links: head")
    assert len(names) == len(FactFeatures.rising_for(joint))
    found = columns(joint)
    np.testing.assert_allclose(found["particles: tail"], COLUMNS["score: tail"], atol=1e-5)
    with scoring(predictor):
        alone = FactFeatures(predictor, EDGES, Kinds(EDGES), RATES)(*every_fact())
    np.testing.assert_allclose(np.stack([found["links: tail"], found["links: head"]], axis=1), alone[:, :2], atol=1e-5)


def test_scores_and_walks_never_speak_against_a_fact() -> None:
    names, rising = FactFeatures.names_for(MODEL), FactFeatures.rising_for(MODEL)
    assert {name for name, rises in zip(names, rising, strict=True) if rises} == {
        "score: tail",
        "score: head",
        "walks to the tail",
        "walks to the head",
    }
    stub: Any = SimpleNamespace(scorers={"one": None, "two": None})
    assert sum(FactFeatures.rising_for(stub)) == 6
