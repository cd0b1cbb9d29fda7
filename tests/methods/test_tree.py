"""Tree search against brute force, with links that are stored, likely or neither."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial, reduce
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from formulas import (
    ENTITIES,
    NORMS,
    STORED_RELATIONS,
    WALKS,
    Formula,
    check_assignments,
    random_queries,
    scores_of,
    with_random_weights,
)
from methods.test_walks import paths_of, walked
from query2particles.engine import products
from query2particles.errors import TrainingError, UsageError
from query2particles.graph.edges import Edges
from query2particles.methods import tree as tree_module
from query2particles.methods.stored import StoredTails
from query2particles.methods.tree import Settings, Tree
from query2particles.methods.truth import NormName
from query2particles.methods.walks import fit_walks
from query2particles.query.algebra import EPFO, SHAPES, Anchor, Complement, Intersect, Project, Query, Union
from worlds import queries

FACTS = np.array([(0, 0, 1), (0, 0, 2), (1, 0, 2), (3, 1, 3), (2, 1, 0), (4, 1, 0)])
EDGES = Edges.of(*FACTS.T, entity_count=ENTITIES, relation_count=STORED_RELATIONS)
STORED = {(h, 2 * r, t) for h, r, t in FACTS.tolist()} | {(t, 2 * r + 1, h) for h, r, t in FACTS.tolist()}

PATHS = paths_of(WALKS)

each_norm = pytest.mark.parametrize("norm", NORMS)
each_shape = pytest.mark.parametrize("name", SHAPES)


def tree(
    norm: NormName = "product", *, width: int = ENTITIES, least: float = 0.0, walks: float = 0.0, seed: int = 0
) -> Tree:
    options = Settings(
        dimension=3, t_norm=norm, beam=width, least=least, unseen=0.7, certain=0.9, sharpness=0.8, walks=walks
    )
    found: Tree = with_random_weights(Tree(ENTITIES, 2 * STORED_RELATIONS, options).double().eval(), seed)
    found.attach(EDGES)
    found.walks = deepcopy(WALKS)  # whose type changes with the model's
    return found


def link(model: Tree, u: int, r: int, v: int) -> float:
    """p(u, r, v)"""
    if (u, r, v) in STORED:
        return 1.0
    echoes = not any((e, r, e) in STORED for e in range(ENTITIES))
    if u == v and echoes:
        return 0.0
    d = model.settings.dimension
    e, w = (table.detach().numpy() for table in (model.links.entities, model.links.relations))
    h, relation = (row[:d] + 1j * row[d:] for row in (e[u], w[r]))
    weights = [math.exp(0.8 * np.real(h * relation * np.conj(row[:d] + 1j * row[d:])).sum()) for row in e]
    if echoes:
        weights[u] = 0.0
    chance = weights[v] / sum(weights)
    if share := model.settings.walks:
        ends = share * walked(PATHS[r], STORED, u)
        chance = ends[v] + (1 - sum(ends)) * chance
    tails = sum((head, directed) == (u, r) for head, directed, _ in STORED)
    return min(0.9, max(0.7, tails) * chance)


def any_way(model: Tree, query: Query) -> list[float]:
    """How true a query is of each entity where all ways to it count, by plain numbers."""
    both, either = NORMS[model.settings.t_norm]
    match query:
        case Anchor(e):
            return [float(v == e) for v in range(ENTITIES)]
        case Project(below, r):
            x = any_way(model, below)
            return [
                reduce(either, (both(x[u], link(model, u, r, v)) for u in range(ENTITIES))) for v in range(ENTITIES)
            ]
        case Intersect(several):
            return [reduce(both, column) for column in zip(*(any_way(model, one) for one in several), strict=True)]
        case Union(several):
            return [reduce(either, column) for column in zip(*(any_way(model, one) for one in several), strict=True)]
        case Complement(below):
            return [1 - x for x in any_way(model, below)]
    raise AssertionError(query)


@each_norm
@each_shape
def test_any_way_counts_where_that_is_wanted(norm: NormName, name: str) -> None:
    model = tree(norm)
    model.settings = replace(model.settings, several="any")
    for query in random_queries(SHAPES[name], 4):
        np.testing.assert_allclose(np.exp(scores_of(model, [query])[0]), any_way(model, query), atol=1e-9)


def formula_of(model: Tree) -> Formula:
    return Formula(partial(link, model), model.settings.t_norm, ENTITIES, model.settings.beam, model.settings.least)


@each_norm
@each_shape
@pytest.mark.parametrize(("width", "least"), [(1, 0.0), (3, 0.0), (ENTITIES, 0.0), (ENTITIES, 0.3), (3, 0.3)])
def test_answers_are_as_true_as_defined(name: str, norm: NormName, width: int, least: float) -> None:
    """With a beam of all entities, by brute force."""
    model, several = tree(norm, width=width, least=least), random_queries(SHAPES[name])
    expected = [[formula_of(model).truth(query, v) for v in range(ENTITIES)] for query in several]
    np.testing.assert_allclose(np.exp(scores_of(model, several)), expected, atol=1e-9)


@each_norm
@pytest.mark.parametrize("name", EPFO)
def test_an_answer_is_as_true_as_the_best_assignment_of_all(name: str, norm: NormName) -> None:
    model, (query,) = tree(norm), random_queries(SHAPES[name], count=1, seed=5)
    expected = [formula_of(model).best_of_all(query, v) for v in range(ENTITIES)]
    np.testing.assert_allclose(np.exp(scores_of(model, [query])[0]), expected, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(query=queries(ENTITIES, STORED_RELATIONS))
def test_any_tree_is_answered_as_defined(query: Query) -> None:
    expected = [[formula_of(TREES).truth(query, v) for v in range(ENTITIES)]]
    np.testing.assert_allclose(np.exp(scores_of(TREES, [query])), expected, atol=1e-9)


TREES = tree(seed=3)


@each_norm
@each_shape
def test_walks_have_their_share(name: str, norm: NormName) -> None:
    """By brute force, with what assignments say."""
    model, several = tree(norm, walks=0.4), random_queries(SHAPES[name], 4)
    expected = [[formula_of(model).truth(query, v) for v in range(ENTITIES)] for query in several]
    np.testing.assert_allclose(np.exp(scores_of(model, several)), expected, atol=1e-9)
    for query in several:
        check_assignments(formula_of(model), model, query)


def test_truths_with_walks_are_others() -> None:
    with_walks, plain = (scores_of(tree(walks=walks), random_queries(SHAPES["2p"], 20)) for walks in (0.4, 0.0))
    assert (abs(with_walks - plain) > 0.01).any(1).sum() > 5


def test_links_that_have_diverged_are_told() -> None:
    model = tree()
    with torch.no_grad():
        model.links.relations[0] = torch.nan
    with pytest.raises(TrainingError, match="no numbers"):
        scores_of(model, [Project(Project(Anchor(1), 0), 2)])


def test_walks_are_fitted_to_what_is_attached() -> None:
    """At once where they are needed, or when they first are, and anew to other edges."""
    model = tree(walks=0.4)
    for facts in ([(0, 0, 1), (0, 1, 1), (2, 0, 3), (2, 1, 3)], [(0, 0, 1), (1, 1, 0), (2, 0, 3), (3, 1, 2)]):
        edges = Edges.of(*np.array(facts).T, entity_count=ENTITIES, relation_count=STORED_RELATIONS)
        model.attach(edges)
        assert model.walks is not None
        assert paths_of(model.walks) == paths_of(fit_walks(edges))
        assert paths_of(model.walks)[0].keys() == ({(2,)} if facts[1] == (0, 1, 1) else {(3,)})
    later = tree()
    later.attach(edges)
    assert later.walks is None
    later.settings = model.settings
    queries_of_all = random_queries(SHAPES["1p"], 9)
    np.testing.assert_array_equal(scores_of(later, queries_of_all), scores_of(model, queries_of_all))


@each_norm
@each_shape
@pytest.mark.parametrize("least", [0.0, 0.3])
def test_assignments_are_the_best(name: str, norm: NormName, least: float) -> None:
    model = tree(norm, least=least)
    for query in random_queries(SHAPES[name]):
        check_assignments(formula_of(model), model, query)


def test_what_is_stored_is_certain_and_excluded_for_certain() -> None:
    model = tree()
    ids = torch.tensor([0]), torch.tensor([0])
    followed = model.project(model.anchor(ids[0]), ids[1])
    assert (followed[0].exp() == 1).tolist() == [(0, 0, t) in STORED for t in range(ENTITIES)]
    assert (model.complement(followed)[0].exp() < 1e-30).tolist() == [(0, 0, t) in STORED for t in range(ENTITIES)]


def test_the_tails_of_pairs() -> None:
    """Pairs without any among them, and pairs that come twice."""
    heads, relations = (torch.tensor(ids) for ids in ([0, 4, 0, 2, 0], [0, 0, 0, 1, 3]))
    pairs, tails, counts = StoredTails(EDGES).of(heads, relations)
    expected = [
        (number, tail)
        for number, (head, relation) in enumerate(zip(heads.tolist(), relations.tolist(), strict=True))
        for tail in range(ENTITIES)
        if (head, relation, tail) in STORED
    ]
    assert list(zip(pairs.tolist(), tails.tolist(), strict=True)) == expected
    assert counts.tolist() == [sum(number == pair for pair, _ in expected) for number in range(5)]
    assert 0 in counts


def test_edges_of_another_graph_are_refused() -> None:
    with pytest.raises(UsageError, match="open the graph"):
        Tree(ENTITIES + 1, 2 * STORED_RELATIONS).attach(EDGES)
    model = Tree(ENTITIES, 2 * STORED_RELATIONS, Settings(dimension=3))
    with pytest.raises(UsageError, match="attach"):
        model.project(model.anchor(torch.tensor([0])), torch.tensor([0]))
    wrong = {"certain": Settings(certain=1.0), "unseen": Settings(unseen=0.0), "sharpness": Settings(sharpness=0.0)}
    wrong["walks"] = Settings(walks=1.0)
    for name, own in wrong.items():
        with pytest.raises(UsageError, match=name):
            Tree(ENTITIES, 2 * STORED_RELATIONS, own)


def test_links_by_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where products of float32 are put together from others."""
    model = tree().float()
    model.settings = replace(model.settings, several="any")
    several = random_queries(SHAPES["pi"], 20)
    expected = scores_of(model, several)
    monkeypatch.setattr(products, "_SPLIT_ON", {"cpu"})
    monkeypatch.setattr(products, "_MANY_ROWS", 1)
    found = scores_of(model, several)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not np.array_equal(found, expected)


@pytest.mark.parametrize("most", [1, 7, 10**6])
@pytest.mark.parametrize("several", ["best", "any"])
def test_however_many_links_are_scored_at_once(
    several: Literal["best", "any"], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that follow more entities and less, each as if asked alone."""
    model = tree(least=0.3)
    model.settings = replace(model.settings, several=several)
    asked = random_queries(SHAPES["3p"], 30)
    alone = [scores_of(model, [query])[0] for query in asked]
    monkeypatch.setattr(Tree, "_links_at_once", lambda _: most)
    monkeypatch.setattr(tree_module, "_JOINED_NUMBERS", {"cpu": most})
    np.testing.assert_allclose(scores_of(model, asked), alone, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("several", ["best", "any"])
def test_a_gpu_finds_the_same(several: Literal["best", "any"]) -> None:
    """With so many queries that products are put together from those of float16."""
    model = tree(least=0.3).float()
    model.settings = replace(model.settings, several=several)
    ids = torch.randint(0, min(ENTITIES, 2 * STORED_RELATIONS), (400, 3), generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        model.attach(EDGES)
        entities, *relations = ids.to(device).T
        with torch.no_grad():
            state = model.anchor(entities)
            for hop, relation in enumerate(relations):
                state = model.project(state, relation, hop=hop)
        found.append(state.cpu().exp())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
