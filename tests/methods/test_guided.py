"""A guided search that is told everything is the full search; told less, it ranks by the same truths."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from formulas import ENTITIES, NORMS, STORED_RELATIONS, WALKS, random_queries, scores_of, with_random_weights
from query2particles.engine.scored import score_all
from query2particles.engine.table import Table
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges
from query2particles.methods import q2p
from query2particles.methods.guided import _VECTORS, Guide, Guided
from query2particles.methods.tree import Settings, Tree
from query2particles.methods.truth import NormName
from query2particles.query.algebra import SHAPES, Query
from worlds import queries

FACTS = np.array([(0, 0, 1), (0, 0, 2), (1, 0, 2), (3, 1, 3), (2, 1, 0), (4, 1, 0)])
EDGES = Edges.of(*FACTS.T, entity_count=ENTITIES, relation_count=STORED_RELATIONS)
ALL = Guide(proposals=ENTITIES, answers=ENTITIES, tails=0, sample=0)

Several = Literal["best", "any"]

each_norm = pytest.mark.parametrize("norm", NORMS)
each_shape = pytest.mark.parametrize("name", SHAPES)


def parts(norm: NormName = "product", seed: int = 0, several: Several = "best", walks: float = 0.0) -> tuple[Any, Tree]:
    options = Settings(
        dimension=3, t_norm=norm, beam=ENTITIES, least=0.0, unseen=0.7, certain=0.9, several=several, walks=walks
    )
    tree: Tree = with_random_weights(Tree(ENTITIES, 2 * STORED_RELATIONS, options).double().eval(), seed)
    tree.attach(EDGES)
    tree.walks = deepcopy(WALKS)  # whose type changes with the model's
    own = replace(q2p.PRESETS["default"], dimension=8)
    vectors: Any = with_random_weights(q2p.Q2P(ENTITIES, 2 * STORED_RELATIONS, own).double().eval(), seed)
    return vectors, tree


def guided(guide: Guide = ALL, norm: NormName = "product", seed: int = 0) -> Guided:
    return Guided(*parts(norm, seed), EDGES, guide).eval()


def clamped(scores: Any) -> Any:
    return np.maximum(scores, -1e3)


@pytest.mark.parametrize("walks", [0.0, 0.4])
@pytest.mark.parametrize("ways", ["best", "any"])
@each_norm
@each_shape
def test_told_everything_it_is_the_full_search(norm: NormName, name: str, ways: Several, walks: float) -> None:
    """Also where an entity is proposed twice, by two particles: it counts once."""
    asked = random_queries(SHAPES[name], 5)
    vectors, whole = parts(norm, several=ways, walks=walks)
    expected = clamped(scores_of(whole, asked))
    found = scores_of(Guided(vectors, whole, EDGES, ALL).eval(), asked)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@each_norm
@pytest.mark.parametrize("name", ["2p", "inp", "pni"])
def test_links_with_a_threshold_and_scaled_complements_are_those_of_the_full_search(norm: NormName, name: str) -> None:
    asked = random_queries(SHAPES[name], 5)
    vectors, whole = parts(norm)
    plain = scores_of(whole, asked)
    whole.settings = replace(whole.settings, threshold=0.15, neg_scale=3.0)
    found, expected = scores_of(Guided(vectors, whole, EDGES, ALL).eval(), asked), scores_of(whole, asked)
    np.testing.assert_allclose(np.exp(found), np.exp(expected), rtol=1e-9, atol=1e-12)
    assert abs(np.exp(plain) - np.exp(expected)).max() > 1e-3


@settings(max_examples=60, deadline=None)
@given(queries(ENTITIES, STORED_RELATIONS))
def test_of_any_tree(query: Query) -> None:
    expected = clamped(scores_of(parts()[1], [query]))
    np.testing.assert_allclose(scores_of(guided(), [query]), expected, rtol=1e-9, atol=1e-12)


@each_shape
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_a_sample_of_all_is_all(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is stored summed by itself, whether all queries are looked at together, or one by one."""
    several = random_queries(SHAPES[name], 4)
    expected = clamped(scores_of(parts()[1], several))
    monkeypatch.setitem(_VECTORS, "cpu", at_once)
    sampled = scores_of(guided(replace(ALL, sample=ENTITIES)), several)
    np.testing.assert_allclose(sampled, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ["transe", "rotate"])
def test_links_that_are_no_products_are_refused(model: Literal["transe", "rotate"]) -> None:
    tree = Tree(ENTITIES, EDGES.relations, Settings(dimension=4, model=model))
    tree.attach(EDGES)
    with pytest.raises(UsageError, match=f"by products, model=complex or distmult, and not {model}"):
        Guided(parts()[0], tree, EDGES)


def test_one_hop_is_scored_for_what_is_proposed_and_the_others_follow_as_the_vectors_rank_them() -> None:
    vectors, tree = parts()
    model = Guided(vectors, tree, EDGES, replace(ALL, answers=2)).eval()
    several = random_queries(SHAPES["1p"], 6)
    scores, full, by_vectors = (scores_of(one, several) for one in (model, tree, vectors))
    for row, truths, ranked in zip(scores, full, by_vectors, strict=True):
        proposed = row > -5e3
        assert 2 <= proposed.sum() <= 4  # the best two of each of two particles
        assert ranked.argmax() in proposed.nonzero()[0]
        np.testing.assert_allclose(row[proposed], clamped(truths[proposed]), rtol=1e-6)
        others = np.flatnonzero(~proposed)
        assert list(others[np.argsort(-row[others])]) == list(others[np.argsort(-ranked[others])])


@each_shape
def test_stored_tails_are_proposed_too(name: str) -> None:
    """So what stored facts make an answer without a complement is certain, however little the vectors propose."""
    model = guided(Guide(proposals=1, answers=1, tails=ENTITIES, sample=0))
    several = random_queries(SHAPES[name], 12)
    scores, full = scores_of(model, several), clamped(scores_of(parts()[1], several))
    if "n" not in name:  # where less is taken out, more is true
        assert (scores <= full + 1e-9).all()
        np.testing.assert_array_equal(scores == 0, full == 0)


def test_several_shapes_at_once_are_each_alone() -> None:
    model = guided(Guide(proposals=2, answers=3, tails=2, sample=3))
    batch = {
        SHAPES[name]: np.array([[0, 1, 2, 3, 1, 0, 2, 1][:width], [1, 0, 3, 2, 0, 1, 3, 0][:width]])
        for name, width in (("1p", 2), ("2p", 3), ("2i", 4), ("2u", 4))
    }
    together = score_all(model, batch, ENTITIES)
    for shape, ids in batch.items():
        for row in range(len(ids)):
            alone = score_all(model, {shape: ids[row : row + 1]}, ENTITIES)[shape].scores[0]
            torch.testing.assert_close(together[shape].scores[row], alone)


def test_chosen_entities() -> None:
    model = guided()
    state = model.project(model.anchor(torch.tensor([0, 1])), torch.tensor([0, 2]))
    every: Tensor = model.score(state)
    for chosen in (torch.tensor([3, 0]), torch.tensor([[1, 2], [4, 0]])):
        torch.testing.assert_close(model.score(state, chosen), every.gather(1, chosen.expand(2, -1)))


def test_a_search_without_edges_is_refused() -> None:
    vectors, _ = parts()
    with pytest.raises(UsageError, match="attach"):
        Guided(vectors, Tree(ENTITIES, 2 * STORED_RELATIONS, Settings(dimension=3)), EDGES)


@each_shape
def test_a_search_proposes_what_the_table_does(name: str) -> None:
    asked = random_queries(SHAPES[name], 5)
    vectors, tree = parts()
    guide = Guide(proposals=2, answers=1, tails=1, sample=0)
    expected = scores_of(Guided(vectors, tree, EDGES, guide).eval(), asked)
    found = scores_of(Guided(vectors, tree, EDGES, guide, Table.of(vectors)).eval(), asked)
    proposed = expected > -5e3
    assert proposed.any()
    np.testing.assert_allclose(found[proposed], expected[proposed])
    assert (found[~proposed] == -1e4).all()
