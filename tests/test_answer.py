"""Answers: what a trained method adds to stored facts, how sure it is of it, and that batches change nothing."""

from __future__ import annotations

import contextlib
import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from literal import Literal
from query2particles.answer import Answers, Question, Ranked, Reasoner, ask, predict
from query2particles.calibration import Additive, Calibration
from query2particles.calibration.calibration import ANY
from query2particles.calibration.facts import FactFeatures
from query2particles.calibration.questions import KNOWN, OPEN, family_of
from query2particles.demo import QUESTIONS
from query2particles.engine.exact import Exact, exact_answers_of, refuted_answers
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.errors import Query2ParticlesError, QueryError, UnknownNameError, UsageError
from query2particles.graph.graph import Graph, Split
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    canonical,
    ground,
    has_complement,
)
from query2particles.query.bounds import refuted
from query2particles.query.names import Lexicon
from query2particles.query.rewrite import Unions, de_morgan
from query2particles.query.syntax import format_query
from query2particles.workload.sample import sample_shape
from worlds import oracle, queries, random_graph, successors

GRAPH = random_graph(5)
ENTITIES = len(GRAPH.entities)
EDGES = GRAPH.at("train")
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
LITERALS = {split: Literal.of(GRAPH, split) for split in SPLITS}


def small_model(**settings: Any) -> Q2P:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return Q2P(ENTITIES, EDGES.relations, Settings(dimension=8, entity_scale=1.0, **settings))


MODEL = small_model().eval()


def scores_of(model: Q2P, query: Query) -> list[float]:
    shape, ids = abstract(query)
    with torch.no_grad():
        (state,) = execute(compile_shapes((shape,), Q2P.kind), model, [torch.tensor([ids])])
        return list(model.score(state)[0].tolist())


def ruled_out(query: Query, split: Split) -> set[int]:
    """By stored facts, for good (tests/query/test_bounds.py)."""
    bound = refuted(query)
    return set() if bound is None else oracle(bound, successors(GRAPH, split), frozenset(range(ENTITIES)))


@given(query=queries(ENTITIES, EDGES.relations // 2), k=st.integers(1, 40), split=st.sampled_from(SPLITS))
def test_the_best_entities_are_named_and_the_known_ones_marked(query: Query, k: int, split: Split) -> None:
    scores = scores_of(MODEL, query)
    known = oracle(query, successors(GRAPH, split), frozenset(range(ENTITIES)))
    found = predict(GRAPH, MODEL, query, k=k, split=split)
    guessable = LITERALS[split].open(query, known | ruled_out(query, split))
    open_ones = [score for entity, score in enumerate(scores) if entity in known | guessable]
    assert len(found) == min(k, len(open_ones))
    assert [one.score for one in found] == pytest.approx(sorted(open_ones, reverse=True)[:k], abs=1e-4)
    for one in found:
        assert one.score == pytest.approx(scores[one.entity_id], abs=1e-4)
        assert one.known == (one.entity_id in known)
        assert (one.name, one.label) == (GRAPH.entities.name(one.entity_id), GRAPH.entities.label(one.entity_id))


@given(query=queries(ENTITIES, EDGES.relations // 2), k=st.integers(1, 40), split=st.sampled_from(SPLITS))
def test_guesses_are_the_best_of_what_is_not_known(query: Query, k: int, split: Split) -> None:
    everything = predict(GRAPH, MODEL, query, k=ENTITIES, split=split)
    guesses = predict(GRAPH, MODEL, query, k=k, split=split, guesses_only=True)
    assert guesses == [one for one in everything if not one.known][:k]


def test_where_all_is_known_there_is_nothing_to_guess() -> None:
    all_of_them = Union((Anchor(0), Complement(Anchor(0))))
    assert predict(GRAPH, MODEL, all_of_them, guesses_only=True) == []


def test_stored_facts_as_a_method_rank_their_own_answers_first() -> None:
    query = Project(Anchor(int(EDGES.keys[0]) // EDGES.relations), int(EDGES.keys[0]) % EDGES.relations)
    answers = exact_answers_of(EDGES, query)[0].tolist()
    found = predict(GRAPH, Exact(EDGES), query, k=len(answers) + 2, split="train")
    assert [one.entity_id for one in found if one.known] == answers  # equal scores: by id
    assert [one.known for one in found] == [True] * len(answers) + [False] * 2


def test_a_model_in_training_answers_without_dropout_and_stays_in_training() -> None:
    model = small_model(dropout=0.5).train()
    query = Project(Project(Anchor(3), 1), 2)
    found = predict(GRAPH, model, query)
    assert model.training
    assert predict(GRAPH, model.eval(), query) == found


def test_ids_that_the_graph_lacks_are_refused() -> None:
    with pytest.raises(QueryError, match="does not have"):
        predict(GRAPH, MODEL, Project(Anchor(ENTITIES), 0))


def test_unions_are_answered_as_asked() -> None:
    """Lifted to the root, the best of the disjuncts counts; by complements, what has no unions."""
    left, right = Project(Project(Anchor(3), 1), 2), Project(Project(Anchor(4), 0), 2)
    query = Project(Union((Project(Anchor(3), 1), Project(Anchor(4), 0))), 2)
    expected = {
        "native": scores_of(MODEL, query),
        "dnf": [max(pair) for pair in zip(scores_of(MODEL, left), scores_of(MODEL, right), strict=True)],
        "de-morgan": scores_of(MODEL, de_morgan(query)),
    }
    assert expected["native"] != pytest.approx(expected["de-morgan"], abs=1e-4)
    for unions in get_args(Unions):
        found = predict(GRAPH, MODEL, query, k=ENTITIES, unions=unions)
        assert len(found) > ENTITIES // 2
        for one in found:
            assert one.score == pytest.approx(expected[unions][one.entity_id], abs=1e-4)
    with pytest.raises(UsageError, match="de-morgan"):
        predict(GRAPH, MODEL, query, unions="other")  # type: ignore[arg-type]


def additive(names: tuple[str, ...], bias: float, weights: dict[str, float], **more: Any) -> Additive:
    knots = ((0.0, 0.01), (0.3, 0.4), (1.0, 0.9))
    own = tuple(weights.get(name, 0.0) for name in names)
    return Additive(names, own, bias, knots, centre=(0.0,) * len(names), **more)


CALIBRATION = replace(
    Calibration.by_scores(MODEL, EDGES.relations),
    facts=additive(
        FactFeatures.names_for(MODEL), 0.5, {"score: tail": 0.9, "score: head": 0.3}, relations={1: (1.2, -0.4)}
    ),
    questions={
        ANY: additive(OPEN, -1.0, {"score": 0.7, "lead": 0.1, "total": 0.05}, relations={0: (0.8, 1.5)}),
        "union": additive(OPEN, 0.5, {"score": 1.5, "lead": -0.2}),
    },
    lost=additive(KNOWN, -2.0, {"low score": 0.3, "known": 0.1}),
)
"""Made up: what counts is that it is applied as it says."""

REASONER = Reasoner(GRAPH, model=MODEL, calibration=CALIBRATION, split="train")
LEXICON = Lexicon(GRAPH)
QUERIES = queries(ENTITIES, EDGES.relations // 2)


def text_of(query: Query) -> str:
    return format_query(query, LEXICON)


def ranked(answered: Answers) -> list[Ranked]:
    found = [answer for answer in answered.answers if isinstance(answer, Ranked)]
    assert len(found) == len(answered.answers)
    return found


def claimed(additive: Additive, relation: int | None, **features: float) -> float:
    """By the definition, in plain numbers."""
    slope, effect = (1.0, 0.0) if relation is None else additive.relations.get(relation // 2, (1.0, 0.0))
    named = dict(zip(additive.names, additive.weights, strict=True))
    x = slope * (sum(named[name] * value for name, value in features.items()) + additive.bias) + effect
    return float(np.interp(1 / (1 + np.exp(-x)), *np.array(additive.knots).T))


@cache
def links_of(source: int, relation: int) -> list[float]:
    return scores_of(MODEL, Project(Anchor(source), relation))


def share(source: int, relation: int, target: int) -> float:
    """s(t) − log Σ exp s(u) over the tails of a relation and t."""
    scores = links_of(source, relation)
    tails = [one for one in range(ENTITIES) if relation ^ 1 in LITERALS["train"].roles[one]]
    return scores[target] - float(np.logaddexp.reduce([scores[one] for one in [*tails, target]]))


def fact_probability(source: int, relation: int, target: int) -> float:
    if source == target and not LITERALS["train"].loops(relation):
        return 0.0
    head, tail = (source, target) if relation % 2 == 0 else (target, source)
    forward = relation & ~1
    shares = {"score: tail": share(head, forward, tail), "score: head": share(tail, forward ^ 1, head)}
    return claimed(CALIBRATION.facts, relation, **shares)


def last_relation(query: Query) -> int | None:
    match query:
        case Project(_, relation):
            return relation
        case Intersect(several) | Union(several):
            return next((found for one in several if (found := last_relation(one)) is not None), None)
        case _:
            return None


def probability_of(query: Query, entity: int, scores: list[float], known: set[int]) -> float:
    """That of an entity which stored facts do not rule out."""
    if entity in known and not has_complement(query):
        return 1.0
    if isinstance(query, Project) and isinstance(query.query, Anchor) and entity not in known:
        return fact_probability(query.query.entity, query.relation, entity)
    closed = known | ruled_out(query, "train") | LITERALS["train"].echoes(query)
    unknown = [score for number, score in enumerate(scores) if number not in closed] or scores
    log_total = float(np.logaddexp.reduce(unknown))
    score, lead = scores[entity] - log_total, max(unknown) - log_total
    if entity in known:
        assert CALIBRATION.lost is not None
        features = {"low score": -score, "lead": lead, "known": float(np.log1p(len(known)))}
        return 1 - claimed(CALIBRATION.lost, None, **features)
    own = CALIBRATION.questions.get(family_of(query), CALIBRATION.questions[ANY])
    return claimed(own, last_relation(query), score=score, lead=lead, total=log_total)


@given(query=QUERIES, k=st.integers(1, 40), only=st.sampled_from((None, "known", "predicted")))
def test_answers_carry_status_and_probability_by_their_definition(query: Query, k: int, only: Any) -> None:
    query = canonical(query)
    scores = scores_of(MODEL, query)
    known = oracle(query, successors(GRAPH, "train"), frozenset(range(ENTITIES)))
    answered = REASONER.answer(Question(text_of(query), k=k, only=only, guesses="always"))
    found = ranked(answered)
    guessable = LITERALS["train"].open(query, known | ruled_out(query, "train"))
    likely = {entity: probability_of(query, entity, scores, known) for entity in guessable}
    kept = {entity: probability_of(query, entity, scores, known) for entity in known}
    expected = {**(likely if only != "known" else {}), **(kept if only != "predicted" else {})}
    assert answered.total == len(known)
    assert answered.expected_more == pytest.approx(sum(likely.values()), abs=1e-4)
    assert answered.complete == (answered.expected_more is not None and answered.expected_more < 0.5)
    assert answered.folded == ()
    assert len(found) == min(k, len(expected))
    for one in found:
        assert one.probability == pytest.approx(expected[one.entity_id], abs=1e-5)
        assert one.score == pytest.approx(scores[one.entity_id], abs=1e-4)
        sure = "supported" if has_complement(query) else "known"
        assert one.status == (sure if one.entity_id in known else "predicted")
        assert one.known == (one.entity_id in known)
    probabilities = [one.probability for one in found]
    assert probabilities == sorted(probabilities, key=lambda one: -(one or 0))
    best = sorted(expected.values(), reverse=True)[:k]
    assert probabilities == pytest.approx(best, abs=1e-5)


@given(query=QUERIES, k=st.integers(1, 40), only=st.sampled_from((None, "known", "predicted")))
def test_guesses_are_folded_where_less_than_half_an_answer_is_missing(query: Query, k: int, only: Any) -> None:
    """Whatever is folded is what would have been shown; where nobody asked for it, nothing is lost."""
    everything = REASONER.answer(Question(text_of(query), k=k, only=only, guesses="always"))
    found = REASONER.answer(Question(text_of(query), k=k, only=only))
    guesses = [one for one in ranked(everything) if not one.known]
    if everything.complete and only != "predicted":
        assert found.folded == tuple(guesses)
        assert ranked(found) == [one for one in ranked(everything) if one.known]
    else:
        assert found == everything
    told = found.as_json()
    assert [one["rank"] for one in told["answers"] + told["folded"]] == list(range(1, len(everything.answers) + 1))
    assert (told["complete"], told["expected_more"]) == (found.complete, round(found.expected_more or 0.0, 3))


def test_some_questions_look_complete_and_some_do_not() -> None:
    asked = [Question(f"e{entity}.r{relation}") for entity in range(ENTITIES) for relation in range(4)]
    found = [one.complete for one in REASONER.answer_many(asked) if isinstance(one, Answers)]
    assert set(found) == {True, False}


@given(query=QUERIES, least=st.floats(0, 1))
def test_unlikely_answers_can_be_left_out(query: Query, least: float) -> None:
    asked = Question(text_of(query), k=ENTITIES, guesses="always")
    everything = ranked(REASONER.answer(asked))
    found = ranked(REASONER.answer(replace(asked, minimum_probability=least)))
    assert found == [one for one in everything if one.probability is not None and one.probability >= least]


@given(query=QUERIES)
def test_in_one_query_a_higher_score_never_has_a_lower_probability(query: Query) -> None:
    """Where nothing but scores counts; of a single fact, its score from the other end does, too."""
    assume(not (isinstance(query, Project) and isinstance(query.query, Anchor)))
    found = ranked(REASONER.answer(Question(text_of(query), k=ENTITIES, guesses="always")))
    for status in ("known", "supported", "predicted"):
        own = sorted((one.score, one.probability or 0.0) for one in found if one.status == status)
        assert [probability for _, probability in own] == sorted(probability for _, probability in own)


@given(query=QUERIES, k=st.integers(1, 40))
def test_the_model_alone_ranks_by_score_and_marks_nothing(query: Query, k: int) -> None:
    answered = REASONER.answer(Question(text_of(query), k=k, method="neural"))
    found = ranked(answered)
    assert (answered.expected_more, answered.complete, answered.folded) == (None, None, ())
    assert [one.score for one in found] == pytest.approx(sorted(scores_of(MODEL, query), reverse=True)[:k], abs=1e-4)
    assert {one.status for one in found} == {"predicted"}
    assert {one.probability for one in found} == {None}


@given(query=QUERIES)
def test_the_particle_is_the_one_with_the_best_inner_product(query: Query) -> None:
    shape, ids = abstract(query)
    with torch.no_grad():
        (state,) = execute(compile_shapes((shape,), Q2P.kind), MODEL, [torch.tensor([ids])])
        products = (state[0] @ MODEL.entities.T).tolist()  # (w, N)
    for one in ranked(REASONER.answer(Question(text_of(query), k=ENTITIES, guesses="always"))):
        assert one.particle is not None
        own = [row[one.entity_id] for row in products]
        assert own[one.particle] == pytest.approx(max(own), rel=1e-4, abs=1e-4)


@settings(deadline=None)
@given(
    asked=st.lists(
        st.builds(
            Question,
            st.one_of(QUERIES.map(text_of), st.sampled_from(("nobody.r1", "e1 &", "e1.r9"))),
            k=st.integers(0, 5),
            method=st.sampled_from(("exact", "neural", "both")),
            only=st.sampled_from((None, "known", "predicted")),
            guesses=st.sampled_from(("auto", "always")),
        ),
        max_size=12,
    ),
    unions=st.sampled_from(get_args(Unions)),
)
def test_together_is_the_same_as_one_by_one(asked: list[Question], unions: Unions) -> None:
    reasoner = Reasoner(GRAPH, model=MODEL, calibration=CALIBRATION, split="valid", unions=unions)
    together = reasoner.answer_many(asked)
    assert len(together) == len(asked)
    for question, found in zip(asked, together, strict=True):
        if isinstance(found, Query2ParticlesError):
            with pytest.raises(type(found), match=re.escape(str(found))):
                reasoner.answer(question)
            continue
        alone = reasoner.answer(question)
        bare: dict[str, Any] = {"answers": (), "folded": (), "expected_more": None}
        assert replace(found, **bare) == replace(alone, **bare)
        assert found.expected_more == pytest.approx(alone.expected_more, abs=1e-4)
        if question.method == "exact":
            assert found.answers == alone.answers
            continue
        listed = [ranked(one) + list(one.folded) for one in (found, alone)]
        assert len(found.folded) == len(alone.folded)
        for one, other in zip(*listed, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.probability == pytest.approx(other.probability, abs=1e-4)


def test_more_questions_than_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Question(f"e{number}.r1", k=3) for number in range(20)]
    expected = REASONER.answer_many(asked)
    monkeypatch.setattr("query2particles.answer._COPIES", 1)
    monkeypatch.setattr("query2particles.engine.ranks._MOST_ROWS", 3)
    monkeypatch.setattr("query2particles.ranking._CHOSEN_NUMBERS", 1)
    for found, other in zip(REASONER.answer_many(asked), expected, strict=True):
        assert isinstance(found, Answers)
        assert isinstance(other, Answers)
        assert found.question == other.question
        for one, expects in zip(ranked(found), ranked(other), strict=True):
            assert (one.name, one.particle) == (expects.name, expects.particle)


def test_threads_may_share_a_reasoner() -> None:
    asked = [Question(f"(e{number}.r1 & !e{number + 1}.r2).r3", k=5) for number in range(20)]
    expected = [REASONER.answer(question) for question in asked]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(REASONER.answer, asked * 3)) == expected * 3


def test_a_graph_alone_answers_exactly(named: Graph) -> None:
    reasoner = Reasoner(named)
    question = '"Turing Award".^award_received & !Canada.^citizen_of'
    assert reasoner.answer(question) == ask(named, question)
    assert reasoner.answer(question).method == "exact"
    told = reasoner.answer(question).as_json()["answers"]
    unknown = {"score": None, "probability": None, "particle": None}
    assert told == [{"rank": 1, "name": "Bob", "label": "Bob", **unknown, "status": "supported"}]
    assert reasoner.answer("Bob.citizen_of").as_json()["answers"][0]["probability"] == 1
    assert reasoner.answer(Question("Bob.citizen_of", only="predicted")).answers == ()
    for wrong in (
        lambda: reasoner.answer(Question(question, method="neural")),
        lambda: reasoner.map(question),
        lambda: reasoner.discover(entity="Bob"),
    ):
        with pytest.raises(UsageError, match="run"):
            wrong()


def test_without_a_calibration_there_are_no_probabilities() -> None:
    reasoner = Reasoner(GRAPH, model=MODEL, split="train")
    answered = reasoner.answer(Question("e1.r1", k=ENTITIES))
    assert answered.warning is not None
    assert "q2p calibrate RUN" in answered.warning
    scores = [one.score for one in ranked(answered)]
    assert scores == sorted(scores, reverse=True)
    assert {one.probability for one in ranked(answered) if not one.known} == {None}
    with pytest.raises(UsageError, match="q2p calibrate RUN"):
        reasoner.answer(Question("e1.r1", minimum_probability=0.5))
    assert reasoner.answer(Question("e1.r1", method="exact", minimum_probability=1)).total > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 0}, "at least 1"),
        ({"method": "guess"}, "exact, neural, both"),
        ({"only": "some"}, "known, predicted"),
        ({"guesses": "never"}, "auto, always"),
        ({"method": "neural", "minimum_probability": 0.1}, "no probabilities; ask with the method both"),
        ({"syntax": "words"}, "path, logic, sparql, json"),
        ({"minimum_probability": 1.5}, "between 0 and 1"),
        ({"minimum_probability": float("nan")}, "between 0 and 1"),
    ],
)
def test_questions_that_make_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        REASONER.answer(replace(Question("e1.r1"), **change))


def test_what_is_remembered_is_bounded() -> None:
    reasoner = Reasoner(GRAPH)
    for _ in range(3):
        reasoner.parse("e1.r1")
    information = reasoner._remembered.cache_info()
    assert (information.hits, information.currsize) == (2, 1)
    assert information.maxsize is not None
    reasoner.parse(" | ".join(["e1.r1"] * 1000))
    with pytest.raises(UnknownNameError):
        reasoner.parse("e1.r9")
    assert reasoner._remembered.cache_info().currsize == 1


def test_a_map_is_a_view_of_the_vectors() -> None:
    """A projection keeps no distance too long; along the plane it shows as much variance as it says."""
    question = Question("(e1.r1 | e2.r2).r3", k=12, guesses="always")
    found = REASONER.map(question)
    assert found.answered == REASONER.answer(question)
    shape, ids = abstract(REASONER.parse(question.text))
    with torch.no_grad():
        (state,) = execute(compile_shapes((shape,), Q2P.kind), MODEL, [torch.tensor([ids])])
        vectors = torch.cat([MODEL.entities[[point.answer.entity_id for point in found.points]], state[0]])
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    places = torch.tensor([[point.x, point.y] for point in found.points] + [list(place) for place in found.particles])
    assert len(places) == len(vectors)
    assert (torch.cdist(places, places) <= torch.cdist(vectors, vectors) + 1e-4).all()
    centred = vectors - vectors.mean(0)
    assert float(places.pow(2).sum() / centred.pow(2).sum()) == pytest.approx(sum(found.variance), abs=1e-4)
    singular = torch.linalg.svdvals(centred)
    assert sum(found.variance) == pytest.approx(float(singular[:2].pow(2).sum() / singular.pow(2).sum()), abs=1e-4)
    told = found.as_json()
    assert set(told) == {"question", "query", "shape", "answers", "particles", "variance"}
    assert set(told["answers"][0]) == {"name", "label", "x", "y", "particle", "status", "probability", "rank"}
    assert sum(particle["answers"] for particle in told["particles"]) == len(told["answers"]) == 12


def test_a_run_answers_the_same_in_every_syntax(atlas_run: Path) -> None:
    reasoner = Reasoner.open(atlas_run, split="train")
    assert reasoner.run is not None
    assert reasoner.calibration is not None
    for _, syntax, text in QUESTIONS:
        query = reasoner.parse(text, syntax)
        expected = reasoner.answer(Question(text, syntax, guesses="always")).answers
        assert len(expected) == 10
        for other in ("path", "logic", "json"):
            again = Question(format_query(query, reasoner.lexicon, other), guesses="always")
            assert reasoner.answer(again).answers == expected


def test_the_form_of_answers(atlas_run: Path) -> None:
    told = Reasoner.open(atlas_run, split="train").answer(Question("French.^speaks", k=30, guesses="always")).as_json()
    counted = {"total", "expected_more", "complete"}
    assert set(told) == {"question", "query", "shape", "method", "answers", "folded"} | counted
    assert [answer["rank"] for answer in told["answers"]] == list(range(1, 31))
    assert set(told["answers"][0]) == {"rank", "name", "label", "score", "probability", "status", "particle"}
    statuses = [answer["status"] for answer in told["answers"]]
    assert statuses == ["known"] * min(told["total"], 30) + ["predicted"] * max(30 - told["total"], 0)


def test_what_cannot_be_opened(tmp_path: Path, atlas_run: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        Reasoner.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="graph itself"):
        Reasoner.open("atlas", graph="atlas")
    assert Reasoner.open(atlas_run, graph="atlas").graph.name == "atlas"


def test_the_lines_of_the_page_run(atlas_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs" / "answering.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "atlas").symlink_to(atlas_run)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "answering.md", "exec"), {})
    numbers, *guesses, folded, facts, last = printed.getvalue().splitlines()
    assert re.fullmatch(r"\d+ known; [\d.]+ more expected; complete: (True|False)", numbers)
    assert len(guesses) == 3
    assert folded == "()"
    assert facts.endswith(", 1.0]")
    assert last.endswith(
        "known; no entity is called 'Canda'; did you mean 'Canada', 'Anda (China)', 'Cabinda (Angola)'?"
    )


@pytest.mark.parametrize("name", ["2in", "3in", "pin", "pni"])
def test_no_guess_is_what_stored_facts_rule_out(atlas: Graph, atlas_run: Path, name: str) -> None:
    """What the negated branch reaches stays excluded; the model alone, which knows no facts, may name it."""
    reasoner = Reasoner.open(atlas_run, split="train")
    shape = SHAPES[name]
    batch = {shape: sample_shape(atlas, shape, 20, split="test", cap=200, allow_fewer=True).ids}
    ruled_out = refuted_answers(atlas.at("train"), batch)[shape]
    questions = [format_query(ground(shape, ids), reasoner.lexicon) for ids in batch[shape].tolist()]
    named_by_the_model = 0
    for row, text in enumerate(questions):
        never = set(ruled_out[row].tolist())
        for answer in reasoner.answer(Question(text, k=20, guesses="always")).answers:
            assert answer.entity_id not in never
        by_the_model = reasoner.answer(Question(text, k=20, method="neural")).answers
        named_by_the_model += sum(answer.entity_id in never for answer in by_the_model)
        for entity in sorted(never)[:1]:
            assert reasoner.explain(text, entity).probability == 0
    assert named_by_the_model > 0
