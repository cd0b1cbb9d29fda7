"""Calibrating: a model that knows the truth is believed, one that knows nothing is not, and both say so."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from query2particles.answer import Answers, Question, Ranked, Reasoner
from query2particles.calibration import Calibration, Judged, calibrate, questions_for
from query2particles.calibration.calibration import ANY, ONE_HOP, name_of
from query2particles.calibration.fitting import _Gathered
from query2particles.calibration.rates import Rates
from query2particles.engine.exact import Exact, exact_answers
from query2particles.engine.plausible import Plausible
from query2particles.engine.ranks import scoring
from query2particles.errors import WorkloadError
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import SHAPES, ground
from query2particles.query.syntax import format_query
from query2particles.ranking import rank
from query2particles.workload.labels import labels_between
from query2particles.workload.natural import natural_questions
from worlds import random_graph

GRAPH = random_graph(4, entities=70, relations=4, facts=700)


class Truth(Exact):
    """Scores by what is true, held out or not."""

    def score(self, state: Any, entities: Ints | None = None) -> npt.NDArray[np.float32]:
        return 12 * super().score(state, entities)


TRUTH: Any = Truth(GRAPH.at("test"))


@cache
def calibrated(seed: int = 0) -> tuple[Calibration, dict[str, Judged]]:
    found, judged = calibrate(TRUTH, GRAPH.without("valid"), GRAPH.at("test"), one_hop=300, longer=20, seed=seed)
    return found, dict(judged)


def test_what_knows_the_truth_is_believed() -> None:
    found, judged = calibrated()
    assert set(found.figures) == set(judged) == {ONE_HOP, "hops", "intersection", "union"}
    assert set(found.questions) <= {"hops", "intersection", "union", ANY}
    for name, one in found.figures.items():
        assert one.top_ece < 0.2, name
        assert one.likely > 10
        assert one.likely_true > 0.85
    for shown in judged.values():
        assert ((shown.claimed > 0) & (shown.claimed < 1)).all()


def test_what_knows_nothing_is_not() -> None:
    model: Any = Q2P(70, GRAPH.at("train").relations, Settings(dimension=8)).eval()
    found, judged = calibrate(model, GRAPH.without("valid"), GRAPH.at("test"), one_hop=300, longer=10)
    assert found.figures[ONE_HOP].ece < 0.05
    assert judged[ONE_HOP].claimed.mean() < 0.1, "hardly any fact of a random graph is missing"


def test_the_same_seed_gives_the_same() -> None:
    one = calibrated()[0].as_json()
    calibrated.cache_clear()
    assert calibrated()[0].as_json() == one
    assert calibrated(1)[0].as_json() != one


def test_guesses_that_are_shown_as_likely_come_true() -> None:
    reasoner = Reasoner(GRAPH, model=TRUTH, calibration=calibrated()[0], split="valid")
    batch = natural_questions(GRAPH.at("valid"), GRAPH.at("test"), count=12, one_hop=80, seed=5)
    after, before = (exact_answers(GRAPH.at(split), batch, workers=1) for split in ("test", "valid"))
    likely: list[bool] = []
    expected, missing = 0.0, 0
    for shape, ids in batch.items():
        texts = [format_query(ground(shape, row), reasoner.lexicon) for row in ids.tolist()]
        answered = reasoner.answer_many([Question(text, k=70, guesses="always") for text in texts])
        for row, one in enumerate(answered):
            assert isinstance(one, Answers)
            assert one.expected_more is not None
            assert np.isfinite(one.expected_more)
            new = set(after[shape][row].tolist()) - set(before[shape][row].tolist())
            if shape == SHAPES["1p"]:
                expected, missing = expected + one.expected_more, missing + len(new)
            for answer in one.answers:
                assert isinstance(answer, Ranked)
                assert answer.probability is not None
                assert answer.status != "predicted" or 0 < answer.probability < 1
                if answer.status == "predicted" and answer.probability >= 0.5:
                    likely.append(answer.entity_id in new)
    assert len(likely) > 50
    assert np.mean(likely) > 0.8
    assert 0.5 * missing < expected < 2 * missing


def test_it_says_how_far_it_has_come() -> None:
    heard: list[int] = []
    _, judged = calibrate(TRUTH, GRAPH.without("valid"), GRAPH.at("test"), one_hop=200, longer=5, progress=heard.append)
    assert sum(heard) >= 200 + 13 * 4
    assert judged[ONE_HOP].question.max() < sum(heard)


def test_groups_that_are_ranked_apart_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one-hop questions random entities are drawn group by group: only what they are told by may differ."""
    monkeypatch.setattr("query2particles.engine.ranks._MOST_ROWS", 64)
    found, judged = calibrate(TRUTH, GRAPH.without("valid"), GRAPH.at("test"), one_hop=300, longer=20)
    whole, of_whole = calibrated()
    for name, one in judged.items():
        assert one.question.tolist() == of_whole[name].question.tolist()
        assert one.true.tolist() == of_whole[name].true.tolist()
    assert found.figures[ONE_HOP].likely_true == pytest.approx(whole.figures[ONE_HOP].likely_true, abs=0.05)


def test_without_validation_facts_there_is_nothing_to_learn(named: Graph) -> None:
    edges = named.at("test")
    with pytest.raises(WorkloadError, match="no validation facts"):
        calibrate(Exact(edges), named.without("valid"), edges, one_hop=10, longer=1)


def test_too_few_validation_facts_tell_nothing() -> None:
    graph = random_graph(3, entities=12, relations=1, facts=12)
    with pytest.raises(WorkloadError, match="too few"):
        calibrate(Exact(graph.at("test")), graph.without("valid"), graph.at("test"), one_hop=10, longer=1)


def test_a_missing_answer_of_a_wrong_kind_is_a_sample_too() -> None:
    """No guess may be one, but facts of any kind have a probability: no answer that was held out gets lost."""
    people, towns = np.arange(40), np.arange(40, 46)
    lives = [(int(one), 0, int(towns[one % 6])) for one in people] + [(40, 0, 41)]
    lies = [(int(one), 1, 46) for one in towns]
    facts = np.array(lives[1:40] + lies)
    small = Edges.of(*facts.T, entity_count=47, relation_count=2)
    large = Edges.of(*np.concatenate([facts, [(5, 0, 46)], lives[-1:]]).T, entity_count=47, relation_count=2)
    method: Any = Truth(large)
    ids = np.array([(5, 0), (40, 0)])
    gathered = _Gathered(method, small, Rates.fit(small, large), np.random.default_rng(0))
    before, after = (exact_answers(edges, {SHAPES["1p"]: ids}, workers=1)[SHAPES["1p"]] for edges in (small, large))
    labels = labels_between(before, after)
    plausible = Plausible(small)
    assert not plausible.fits(SHAPES["1p"], ids[:1], np.array([[46]]))[0, 0], "a country is no town"
    with scoring(method):
        ranking = rank(method, small, {SHAPES["1p"]: ids}, 47, plausible=plausible)[SHAPES["1p"]]
        gathered.add(SHAPES["1p"], ids, np.ones(2), labels, ranking)
    (samples,) = gathered.samples[ONE_HOP]
    assert samples.true.sum() == labels.hard.sizes.sum() == 2


def test_fewer_questions_are_asked_of_larger_graphs() -> None:
    asked = [questions_for(entities, "cpu") for entities in (100, 10_000, 10_001, 10**5, 10**8)]
    for name in ("one_hop", "longer"):
        assert [one[name] for one in asked] == sorted((one[name] for one in asked), reverse=True)
        assert questions_for(10**8, "cuda")[name] > asked[0][name]
    assert asked[0] == asked[1]
    assert asked[1]["longer"] > asked[2]["longer"] > asked[3]["longer"]


def test_fewer_questions_are_asked_in_less_time() -> None:
    usual, hurried, at_once = (questions_for(25_000, "cpu", seconds) for seconds in (None, 10.0, 0.001))
    for name in ("one_hop", "longer"):
        assert usual[name] > hurried[name] > at_once[name] > 0
    assert questions_for(25_000, "cpu", 1e6) == usual


def test_what_is_judged_as_what() -> None:
    assert {name: name_of(SHAPES[name]) for name in ("1p", "2p", "2u", "2in")} == {
        "1p": ONE_HOP,
        "2p": "hops",
        "2u": "union",
        "2in": "intersection",
    }


def test_what_is_written_is_read_again() -> None:
    found = calibrated()[0]
    document = json.loads(json.dumps(found.as_json()))
    again = Calibration.from_json(document)
    assert again.as_json() == document
    assert again.facts == found.facts
    assert again.questions == found.questions
    assert again.lost == found.lost


def test_where_no_longer_question_tells_anything_single_facts_do() -> None:
    found, _ = calibrate(TRUTH, GRAPH.without("valid"), GRAPH.at("test"), one_hop=300, longer=0)
    assert set(found.questions) == {ANY}
    again = Calibration.from_json(json.loads(json.dumps(found.as_json())))
    reasoner = Reasoner(GRAPH, model=TRUTH, calibration=again, split="valid")
    answered = reasoner.answer(Question("e1.r0.r1", k=5, only="predicted"))
    for one in answered.answers:
        assert isinstance(one, Ranked)
        assert one.probability is not None
        assert 0 < one.probability < 1
