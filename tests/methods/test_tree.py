"""Tree search against brute force, with links that are stored, likely or neither."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
from methods.test_walks import Edge, paths_of, walked
from query2particles.engine import products
from query2particles.engine.ranks import scoring
from query2particles.engine.scored import score_all
from query2particles.errors import TrainingError, UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.methods import stored as stored_module
from query2particles.methods import tree as tree_module
from query2particles.methods.stored import StoredTails
from query2particles.methods.tree import WAYS, Settings, Tree, Way
from query2particles.methods.truth import FALSE, NormName
from query2particles.methods.walks import fit_walks
from query2particles.query.algebra import EPFO, SHAPES, Anchor, Project, Query, branches, query_ids
from worlds import queries

FACTS = np.array([(0, 0, 1), (0, 0, 2), (1, 0, 2), (3, 1, 3), (2, 1, 0), (4, 1, 0)])
EDGES = Edges.of(*FACTS.T, entity_count=ENTITIES, relation_count=STORED_RELATIONS)


def both_directions(facts: Ints) -> set[Edge]:
    forward = {(h, 2 * r, t) for h, r, t in facts.tolist()}
    return forward | {(t, r + 1, h) for h, r, t in forward}


STORED = both_directions(FACTS)

PATHS = paths_of(WALKS)

each_norm = pytest.mark.parametrize("norm", NORMS)
each_shape = pytest.mark.parametrize("name", SHAPES)
each_way = pytest.mark.parametrize("way", WAYS)


def tree(norm: NormName = "product", *, edges: Edges = EDGES, seed: int = 0, **options: Any) -> Tree:
    usual = {"beam": ENTITIES, "least": 0.0, "unseen": 0.7, "certain": 0.9, "sharpness": 0.8}
    own = Settings(dimension=3, t_norm=norm, **{**usual, **options})
    found: Tree = with_random_weights(Tree(ENTITIES, 2 * STORED_RELATIONS, own).double().eval(), seed)
    found.attach(edges)
    found.walks = deepcopy(WALKS)  # whose type changes with the model's
    return found


def link(model: Tree, stored: set[Edge], u: int, r: int, v: int) -> float:
    """p(u, r, v)"""
    if (u, r, v) in stored:
        return 1.0
    echoes = not any((e, r, e) in stored for e in range(ENTITIES))
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
        ends = share * walked(PATHS[r], stored, u)
        chance = ends[v] + (1 - sum(ends)) * chance
    tails = sum((head, directed) == (u, r) for head, directed, _ in stored)
    p = min(0.9, max(0.7, tails) * chance)
    return p if p >= model.settings.threshold else 0.0


def formula_of(model: Tree, stored: set[Edge] = STORED) -> Formula:
    own = model.settings
    return Formula(
        *(partial(link, model, stored), own.t_norm, ENTITIES, model.beam, own.least, stored, own.several),
        scale=own.neg_scale,
        by_edge=own.negated_hops == "edge",
    )


@each_norm
@each_shape
@each_way
@pytest.mark.parametrize(("beam", "least"), [(1, 0.0), (3, 0.0), (ENTITIES, 0.0), (ENTITIES, 0.3), (3, 0.3)])
def test_answers_are_as_true_as_defined(name: str, norm: NormName, way: Way, beam: int, least: float) -> None:
    """By brute force, whether the beam binds or not."""
    model, several = tree(norm, beam=beam, least=least, several=way), random_queries(SHAPES[name])
    expected = [[formula_of(model).truth(query, v) for v in range(ENTITIES)] for query in several]
    np.testing.assert_allclose(np.exp(scores_of(model, several)), expected, atol=1e-9)


@each_norm
@each_shape
@pytest.mark.parametrize(("beam", "scale"), [(ENTITIES, 1.0), (ENTITIES, 3.0), (2, 3.0), (2, 0.5)])
def test_complements_of_edges_and_links_with_a_threshold(name: str, norm: NormName, beam: int, scale: float) -> None:
    """As QTO has them, by brute force, with what assignments say."""
    model = tree(norm, beam=beam, threshold=0.15, neg_scale=scale, negated_hops="edge")
    several = random_queries(SHAPES[name])
    expected = [[formula_of(model).truth(query, v) for v in range(ENTITIES)] for query in several]
    np.testing.assert_allclose(np.exp(scores_of(model, several)), expected, atol=1e-9)
    for query in several:
        check_assignments(formula_of(model), model, query)


@settings(max_examples=60, deadline=None)
@given(query=queries(ENTITIES, STORED_RELATIONS))
def test_any_tree_is_answered_with_complements_of_edges(query: Query) -> None:
    expected = [[formula_of(BY_EDGE).truth(query, v) for v in range(ENTITIES)]]
    np.testing.assert_allclose(np.exp(scores_of(BY_EDGE, [query])), expected, atol=1e-9)


def test_all_shapes_together_are_each_alone_with_complements_of_edges() -> None:
    """What projections lead to is stacked and split by itself."""
    batch = {shape: np.array([[0] * len(tuple(query_ids(shape)))] * 2) for shape in SHAPES.values()}
    with scoring(BY_EDGE):
        together = score_all(BY_EDGE, batch, ENTITIES)
        for shape, ids in batch.items():
            alone = score_all(BY_EDGE, {shape: ids}, ENTITIES)[shape].scores
            torch.testing.assert_close(alone, together[shape].scores)


def test_a_complement_of_an_edge_is_another_than_that_of_a_set() -> None:
    """Only where it is that of a projection from a set."""
    by_set = tree(threshold=0.15, neg_scale=3.0)
    by_edge = tree(threshold=0.15, neg_scale=3.0, negated_hops="edge")
    differ = set()
    for name, shape in SHAPES.items():
        found, other = (np.exp(scores_of(model, random_queries(shape, 9))) for model in (by_set, by_edge))
        if abs(found - other).max() > 1e-9:
            differ.add(name)
    assert differ == {"pni"}


def followed_sets(query: Query) -> list[Query]:
    """The sets that projections leave."""
    own = [query.query] if isinstance(query, Project) else []
    return own + [one for branch in branches(query) for one in followed_sets(branch)]


def has_clear_order(formula: Formula, query: Query) -> bool:
    """Whether rounding cannot change which entities of a set come first: those that are equal are so by definition."""
    truths = sorted(formula.truth(query, v) for v in range(ENTITIES))
    return all(high - low > 1e-9 or (low == high and high in (0, 0.9, 1)) for low, high in pairwise(truths))


@each_norm
@each_way
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), facts=st.integers(1, 20), beam=st.integers(1, 3), walks=st.sampled_from([0.0, 0.4]))
def test_a_beam_bounds_only_what_is_predicted(
    norm: NormName, way: Way, seed: int, facts: int, beam: int, walks: float
) -> None:
    """On any graph, what stored edges lead to counts from every entity; assignments say so, too."""
    generator = np.random.default_rng(seed)
    rows = generator.integers((ENTITIES, STORED_RELATIONS, ENTITIES), size=(facts, 3))
    rows[0, 0] = ENTITIES - 1  # which walks of the tests look for
    edges = Edges.of(*rows.T, entity_count=ENTITIES, relation_count=STORED_RELATIONS)
    model = tree(norm, edges=edges, beam=beam, walks=walks, several=way, seed=seed)
    stored = both_directions(rows)
    formula = formula_of(model, stored)
    for name in ("3p", "ip", "up", "pni"):
        (query,) = random_queries(SHAPES[name], 1, seed)
        assume(all(has_clear_order(formula, below) for below in followed_sets(query)))
        expected = [formula.truth(query, v) for v in range(ENTITIES)]
        np.testing.assert_allclose(np.exp(scores_of(model, [query])[0]), expected, atol=1e-9)
        if way == "best":
            check_assignments(formula, model, query)


def test_cut_sets_are_counted() -> None:
    """Two of three sets have more entities that count than the beam follows; asked without a bound, none has."""
    sets = torch.full((3, 1, ENTITIES), FALSE, dtype=torch.float64)
    sets[0, 0, :2], sets[1, 0, :3], sets[2, 0, :] = 0.0, -0.5, 0.0
    relations = torch.tensor([0, 1, 2])
    for beam, cut in ((2, 2), (ENTITIES, 0), ("auto", 0)):
        model = tree(beam=beam, least=0.3)
        with torch.no_grad():
            model.projected(sets, relations, ("best",))
            assert model.cut == cut
            model.projected(sets[1:], relations[1:], ("best",))
            assert model.cut == 2 * cut


def test_the_beam_by_itself_is_what_the_device_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree(beam=7).beam == 7
    assert tree(beam="auto").beam >= ENTITIES
    monkeypatch.setattr(tree_module, "_LINKS", {"cpu": 4 * ENTITIES})
    for fewest, beam in ((3, 4), (9, 9)):
        monkeypatch.setattr(tree_module, "_FEWEST", fewest)
        assert tree(beam="auto").beam == beam


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
BY_EDGE = tree(seed=3, threshold=0.1, neg_scale=3.0, negated_hops="edge")


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
    wrong |= {"walks": Settings(walks=1.0), "neg_scale": Settings(neg_scale=0.0)}
    wrong["threshold"] = Settings(threshold=0.99)
    for name, own in wrong.items():
        with pytest.raises(UsageError, match=name):
            Tree(ENTITIES, 2 * STORED_RELATIONS, own)


def test_links_by_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where products of float32 are put together from others."""
    model = tree(several="any").float()
    several = random_queries(SHAPES["pi"], 20)
    expected = scores_of(model, several)
    monkeypatch.setattr(products, "_SPLIT_ON", {"cpu"})
    monkeypatch.setattr(products, "_MANY_ROWS", 1)
    found = scores_of(model, several)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not np.array_equal(found, expected)


@each_norm
@each_way
@pytest.mark.parametrize("most", [1, 3, 7, 10**6])
def test_however_many_links_are_scored_at_once(
    norm: NormName, way: Way, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that follow more entities and less, each as if asked alone; one may take several blocks."""
    model = tree(norm, least=0.3, several=way)
    asked = random_queries(SHAPES["3p"], 30)
    alone = [scores_of(model, [query])[0] for query in asked]
    monkeypatch.setattr(Tree, "_links_at_once", lambda _: most)
    monkeypatch.setattr(tree_module, "_JOINED_NUMBERS", {"cpu": most})
    monkeypatch.setattr(stored_module, "_EDGES", {"cpu": most})
    np.testing.assert_allclose(scores_of(model, asked), alone, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_way
def test_a_gpu_finds_the_same(way: Way) -> None:
    """With so many queries that products are put together from those of float16."""
    model = tree(least=0.3, several=way).float()
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
