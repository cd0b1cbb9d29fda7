"""What a trained method adds to stored facts: its best entities in order, and which of them are guesses."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from query2particles.answer import predict
from query2particles.engine.exact import Exact, exact_answers_of
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.errors import QueryError, UsageError
from query2particles.graph.graph import Split
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import Anchor, Complement, Project, Query, Union, abstract
from query2particles.query.rewrite import Unions, de_morgan
from worlds import oracle, queries, random_graph, successors

GRAPH = random_graph(5)
ENTITIES = len(GRAPH.entities)
EDGES = GRAPH.at("train")
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


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


@given(query=queries(ENTITIES, EDGES.relations // 2), k=st.integers(1, 40), split=st.sampled_from(SPLITS))
def test_the_best_entities_are_named_and_the_known_ones_marked(query: Query, k: int, split: Split) -> None:
    scores = scores_of(MODEL, query)
    known = oracle(query, successors(GRAPH, split), frozenset(range(ENTITIES)))
    found = predict(GRAPH, MODEL, query, k=k, split=split)
    assert len(found) == min(k, ENTITIES)
    assert [one.score for one in found] == pytest.approx(sorted(scores, reverse=True)[:k], abs=1e-4)
    for one in found:
        assert one.score == pytest.approx(scores[one.entity], abs=1e-4)
        assert one.known == (one.entity in known)
        assert (one.name, one.label) == (GRAPH.entities.name(one.entity), GRAPH.entities.label(one.entity))


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
    assert [one.entity for one in found if one.known] == answers  # equal scores: by id
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
        assert {one.entity: one.score for one in found} == pytest.approx(dict(enumerate(expected[unions])), abs=1e-4)
    with pytest.raises(UsageError, match="de-morgan"):
        predict(GRAPH, MODEL, query, unions="other")  # type: ignore[arg-type]
