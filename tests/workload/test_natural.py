"""Natural questions: which pairs they are, how many have no answer, and what each stands for."""

from __future__ import annotations

import numpy as np
import pytest

from query2particles.engine.exact import exact_answers
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.query.algebra import SHAPES
from query2particles.workload.natural import natural_questions, telling_questions
from worlds import random_graph

GRAPH = random_graph(2, entities=120, relations=5, facts=400)
SMALL, LARGE = GRAPH.at("train"), GRAPH.at("test")


def check_pairs(ids: Ints) -> None:
    """Pairs that the larger level has; and as many that it has not, as the smaller one has no answer of."""
    assert len(np.unique(ids, axis=0)) == len(ids)
    stored, answers = SMALL.lengths_of(*ids.T), LARGE.lengths_of(*ids.T)
    unanswerable, unanswered = answers == 0, (answers > 0) & (stored == 0)
    assert unanswerable.sum() == unanswered.sum() > 10
    assert Kinds(SMALL).can(*ids[unanswerable].T).all(), "of a kind that has the relation"


@pytest.mark.parametrize("one_hop", [150, 10_000])
def test_one_hop_questions(one_hop: int) -> None:
    ids = natural_questions(SMALL, LARGE, count=0, one_hop=one_hop, seed=3, shapes=[SHAPES["1p"]])[SHAPES["1p"]]
    check_pairs(ids)
    drawn = int((LARGE.lengths_of(*ids.T) > 0).sum())
    assert drawn == min(one_hop, len(LARGE.keys))


def test_longer_questions_have_an_answer_and_many_have_none_missing() -> None:
    found = natural_questions(SMALL, LARGE, count=30, one_hop=0, seed=3)
    assert set(found) == set(SHAPES.values()) - {SHAPES["1p"]}
    before, after = (exact_answers(edges, found, workers=1) for edges in (SMALL, LARGE))
    for ids in found.values():
        assert len(np.unique(ids, axis=0)) == len(ids) > 15
    of_chains = SHAPES["2p"]
    assert (after[of_chains].sizes > 0).all()
    missing = after[of_chains].sizes - before[of_chains].sizes
    assert (missing == 0).any()
    assert (missing > 0).any()


def test_rare_relations_are_asked_for_as_well() -> None:
    """One relation has 2 of 1,002 facts: of 100 possible answers, 4 have it."""
    generator = np.random.default_rng(0)
    often = np.stack(
        [generator.integers(100, size=1000), np.zeros(1000, dtype=np.int64), generator.integers(100, size=1000)]
    )
    rare = np.array([(0, 1, 1), (2, 1, 3)]).T
    edges = Edges.of(*np.concatenate([often, rare], axis=1), entity_count=100, relation_count=2)
    ids = natural_questions(edges, edges, count=200, one_hop=0, seed=0, shapes=[SHAPES["2i"]])[SHAPES["2i"]]
    assert np.isin(ids[:, [1, 3]], [2, 3]).any(axis=1).mean() > 0.1


def test_weights_add_up_to_all_pairs_of_a_relation() -> None:
    for count in (30, 200, 10_000):
        found = telling_questions(SMALL, LARGE, count=count, seed=1)
        if count > 30:
            check_pairs(found.ids)
        answers = LARGE.lengths_of(*found.ids.T)
        asked = answers > 0
        missing = answers > SMALL.lengths_of(*found.ids.T)
        heads, roles = np.divmod(LARGE.keys, LARGE.relations)
        of_row = LARGE.lengths_of(heads, roles) > SMALL.lengths_of(heads, roles)
        for role in range(LARGE.relations):
            for lacks in (False, True):
                own = asked & (found.ids[:, 1] == role) & (missing == lacks)
                assert found.weights[own].sum() == pytest.approx(((roles == role) & (of_row == lacks)).sum())
        assert asked.sum() <= max(count, 2 * LARGE.relations)


def test_what_has_no_answer_weighs_as_what_misses_one() -> None:
    found = telling_questions(SMALL, LARGE, count=100, seed=1)
    answers = LARGE.lengths_of(*found.ids.T)
    missing = (answers > 0) & (answers > SMALL.lengths_of(*found.ids.T))
    assert found.weights[answers == 0] == pytest.approx(found.weights[missing].mean())


def test_the_same_seed_draws_the_same() -> None:
    one, same, other = (natural_questions(SMALL, LARGE, count=10, one_hop=50, seed=seed) for seed in (0, 0, 1))
    for shape in one:
        np.testing.assert_array_equal(one[shape], same[shape])
        assert one[shape].tolist() != other[shape].tolist()
    first, again, last = (telling_questions(SMALL, LARGE, count=100, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.ids, again.ids)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.ids.tolist() != last.ids.tolist()
