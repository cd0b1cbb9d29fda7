"""The joint reasoner against its parts: what each of them says alone, weighed by the family of the query."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formulas
from formulas import state_of
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import scoring
from query2particles.engine.scored import score_all
from query2particles.errors import UnsupportedError
from query2particles.graph.edges import Edges
from query2particles.methods import gqe, q2p, tree
from query2particles.methods.baselines import RelaxAndCount
from query2particles.methods.joint import FAMILIES, FEATURES, Conditions, Joint, JointState, family_name
from query2particles.methods.registry import make
from query2particles.methods.stored import StoredEdges
from query2particles.methods.tree import Tree, Way
from query2particles.query.algebra import (
    EPFO,
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    numbered,
    query_ids,
    replace_branches,
)
from scoring import operators_of, scattered, scores_of
from worlds import by_shape, oracle, queries, random_graph, successors

ENTITIES, STORED_RELATIONS, BEAM = 14, 3, 5
GRAPHS = [
    random_graph(seed, entities=ENTITIES, relations=STORED_RELATIONS, facts=facts)
    for seed, facts in ((11, 60), (2, 15), (5, 200))
]
GRAPH = GRAPHS[0]
EDGES = GRAPH.at("train")

assert_close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-5)
"""What vectors say of all entities comes in float32, whatever they are."""

each_shape = pytest.mark.parametrize("name", SHAPES)
some_query = queries(ENTITIES, STORED_RELATIONS)
several_queries = st.lists(some_query, min_size=1, max_size=4)


def joint(vectors: str = "q2p", edges: Edges = EDGES, seed: int = 0) -> Joint:
    """All its numbers are random, the weights too."""
    own: Any = gqe.Settings(dimension=8) if vectors == "gqe" else q2p.Settings(dimension=8, dropout=0.0)
    search = make("tree", edges, tree.Settings(dimension=6, beam=BEAM))
    assert isinstance(search, Tree)
    weights = torch.randn(FAMILIES, len(FEATURES), generator=torch.Generator().manual_seed(seed))
    parts = scattered(make(vectors, edges, own), scale=0.5, seed=seed), scattered(search, scale=0.7, seed=seed)
    return Joint(*parts, edges, weights).double().eval()


JOINTS = [joint(edges=graph.at("train")) for graph in GRAPHS]
JOINT = JOINTS[0]


def random_queries(name: str, count: int = 4, seed: int = 0) -> list[Query]:
    return formulas.random_queries(SHAPES[name], count, seed, entities=ENTITIES, stored_relations=STORED_RELATIONS)


def family_of(query: Query) -> int:
    """By the tree: 1, 2, 4 and 8 for several hops in a row, an intersection, a union, a complement."""

    def hops(query: Query) -> int:
        return isinstance(query, Project) + max(map(hops, branches(query)), default=0)

    operators = operators_of(query)
    has = (hops(query) > 1, *(one in operators for one in (Intersect, Union, Complement)))
    return sum(one << place for place, one in enumerate(has))


@settings(max_examples=100)
@given(number=st.integers(0, len(GRAPHS) - 1), several=several_queries)
def test_conditions_are_those_of_relax_and_count(number: int, several: list[Query]) -> None:
    """Of all operators, several shapes in one plan; and none is missing just where traversal finds an answer."""
    graph, model = GRAPHS[number], JOINTS[number]
    batch, places = by_shape(several)
    ids = [np.array(rows) for rows in batch.values()]
    relaxed = RelaxAndCount(graph.at("train"))
    expected = dict(zip(batch, execute(compile_shapes(tuple(batch), relaxed.kind), relaxed, ids), strict=True))
    with torch.no_grad():
        states = execute(compile_shapes(tuple(batch), model.kind), model, [torch.from_numpy(one) for one in ids])
    found: dict[Query, JointState] = dict(zip(batch, states, strict=True))
    known = successors(graph, "train")
    for query, (shape, row) in zip(several, places, strict=True):
        missing, conditions = found[shape].missing[row], found[shape].conditions[row]
        assert missing.tolist() == expected[shape].missing[row].tolist()
        assert conditions.tolist() == expected[shape].conditions[row].item()
        answers = oracle(query, known, frozenset(range(ENTITIES)))
        assert {v for v, number in enumerate(missing.tolist()) if number == 0} == answers


def test_conditions_of_relations_without_edges() -> None:
    """The first, one in the middle and the last among them; all rows of a call may be such."""
    heads, relations, tails = np.array([(0, 1, 1), (2, 1, 1), (2, 1, 3), (0, 3, 3)]).T
    graph = Edges.of(heads, relations, tails, entity_count=4, relation_count=5)
    conditions = Conditions(StoredEdges(graph), graph.entities)
    missing, counts = torch.tensor([[0, 2, 1, 2], [1, 0, 0, 1]], dtype=torch.int32), torch.tensor([2, 1]).int()
    for first, second in product(range(10), repeat=2):
        found, more = conditions.project(missing, counts, torch.tensor([first, second]))
        assert more.tolist() == [3, 2]
        for row, relation in enumerate((first, second)):
            edges = [(h, 2 * r, t) for h, r, t in zip(heads, relations, tails, strict=True)]
            edges += [(t, r + 1, h) for h, r, t in edges]
            expected = [
                min((int(missing[row, h]) for h, r, t in edges if (r, t) == (relation, v)), default=int(more[row]))
                for v in range(4)
            ]
            assert found[row].tolist() == expected


def test_the_families_of_the_fourteen_shapes() -> None:
    families: dict[str, list[str]] = {}
    for name in SHAPES:
        found = set(state_of(JOINT, random_queries(name)).family.tolist())
        (family,) = found
        families.setdefault(family_name(family), []).append(name)
    assert families == {
        "one hop": ["1p"],
        "several hops": ["2p", "3p"],
        "intersection": ["2i", "3i"],
        "several hops, intersection": ["pi", "ip"],
        "union": ["2u"],
        "several hops, union": ["up"],
        "intersection, complement": ["2in", "3in"],
        "several hops, intersection, complement": ["inp", "pin", "pni"],
    }
    assert len({family_name(family) for family in range(FAMILIES)}) == FAMILIES


def searching(way: Way) -> Tree:
    """The search of the joint reasoner by itself, as it joins what leads to an entity in this way."""
    found = copy.copy(JOINT.tree)
    found.settings = replace(JOINT.tree.settings, several=way)
    return found


@settings(max_examples=100)
@given(query=some_query)
def test_a_score_is_the_weighted_sum_of_what_the_parts_say(query: Query) -> None:
    """Each asked alone; stored facts by traversal and by the baseline that counts."""
    (relaxed,) = execute(
        compile_shapes((numbered(query),), RelaxAndCount.kind),
        RelaxAndCount(EDGES),
        [np.array([tuple(query_ids(query))])],
    )
    answers = oracle(query, successors(GRAPH, "train"), frozenset(range(ENTITIES)))
    vectors = scores_of(JOINT.vectors, [query])[0].numpy()
    features = [
        vectors - np.log(np.exp(vectors - vectors.max()).sum()) - vectors.max(),
        *(np.maximum(scores_of(searching(way), [query])[0].numpy(), -30.0) for way in ("any", "best")),
        np.array([float(v in answers) for v in range(ENTITIES)]),
        -relaxed.missing[0].astype(np.float64),
    ]
    weights = JOINT.weights[family_of(query)].tolist()
    expected = sum(w * x for w, x in zip(weights, features, strict=True))
    assert_close(scores_of(JOINT, [query])[0], torch.from_numpy(np.asarray(expected)))


def test_what_the_search_excludes_for_certain_is_a_finite_number() -> None:
    """A complement of what is stored has no truth at all: its logarithm is −30, not −∞."""
    head, relation, tail = (int(one[0]) for one in (*np.divmod(EDGES.keys, EDGES.relations), EDGES.tails))
    _, by_any, by_best, _, _ = JOINT.features(state_of(JOINT, [Complement(Project(Anchor(head), relation))]))
    for search in (by_any, by_best):
        assert search[0, tail] == search.min() == -30
    assert scores_of(JOINT, [Complement(Project(Anchor(head), relation))]).isfinite().all()


@settings(max_examples=40)
@given(several=several_queries)
def test_batched_is_alone(several: list[Query]) -> None:
    """Queries of any shapes in one plan: states of one kind are stacked and split."""
    together = scores_of(JOINT, several)
    for query, scores in zip(several, together, strict=True):
        assert_close(scores_of(JOINT, [query])[0], scores)


def test_all_shapes_together_are_each_alone() -> None:
    batch = {
        SHAPES[name]: np.array([tuple(query_ids(query)) for query in random_queries(name, count=1 + number % 3)])
        for number, name in enumerate(SHAPES)
    }
    with scoring(JOINT):
        together = score_all(JOINT, batch, ENTITIES)
        for shape, ids in batch.items():
            alone = score_all(JOINT, {shape: ids}, ENTITIES)[shape]
            assert alone.scores.shape == (len(ids), ENTITIES)
            assert alone.factors is None
            assert_close(alone.scores, together[shape].scores)


@each_shape
def test_scores_of_chosen_entities_are_those_of_all(name: str) -> None:
    state = state_of(JOINT, random_queries(name, count=3))
    with torch.no_grad():
        scores = JOINT.score(state)
        common, own = torch.tensor([3, 0, 13, 3]), torch.tensor([[5, 1], [0, 0], [13, 2]])
        assert torch.equal(JOINT.score(state, common), scores[:, common])
        assert torch.equal(JOINT.score(state, own), scores.gather(1, own))


def orders(query: Query) -> Iterator[Query]:
    """The query with the branches of all its intersections and unions in every order."""
    for below in product(*(orders(branch) for branch in branches(query))):
        for several in permutations(below) if isinstance(query, Intersect | Union) else (below,):
            yield replace_branches(query, several)


@pytest.mark.parametrize("name", ["2i", "3i", "pi", "ip", "2u", "up", "2in", "3in", "inp", "pin", "pni"])
def test_the_order_of_branches_does_not_matter(name: str) -> None:
    for query in random_queries(name, count=2):
        expected, *others = (scores_of(JOINT, [one])[0] for one in orders(query))
        assert others
        for scores in others:
            assert_close(scores, expected)


@each_shape
def test_assignments_are_those_of_the_search(name: str) -> None:
    (query,) = random_queries(name, count=1)
    for entity in range(ENTITIES):
        assert JOINT.assignments(query, entity) == JOINT.tree.assignments(query, entity)


def test_plans_serve_all_joints_over_one_kind_of_vectors() -> None:
    shape = (SHAPES["up"],)
    assert compile_shapes(shape, joint(seed=1).kind) is compile_shapes(shape, JOINT.kind)


def test_it_has_the_operators_that_both_parts_have() -> None:
    """So over vectors without unions and complements, those are refused, and the rest is answered."""
    model = joint("gqe")
    assert model.operators == {Anchor, Project, Intersect}
    for name in SHAPES:
        several = random_queries(name, count=1)
        if name in EPFO and "u" not in name:
            assert scores_of(model, several).isfinite().all()
        else:
            with pytest.raises(UnsupportedError, match=r"Joint has no (union|complement)"):
                scores_of(model, several)
