"""The weights of a joint reasoner: what they are fitted to, what they minimise, and that no part alone is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles import joining
from query2particles.engine.sets import Sets
from query2particles.evaluate import evaluate
from query2particles.joining import (
    Effort,
    FamilyFit,
    Search,
    _Candidates,
    _compared,
    _fitted,
    _loss,
    _mrr,
    _of_least_loss,
    fit_search,
    fit_weights,
    queries_asked,
    seconds_per_search,
)
from query2particles.methods import q2p, tree
from query2particles.methods.joint import ALONE, FAMILIES, FEATURES, Joint
from query2particles.methods.registry import make
from query2particles.query.algebra import SHAPES
from query2particles.workload.labels import Labels
from query2particles.workload.selection import drawn_queries
from scoring import scattered
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)
EDGES = GRAPH.at("train")
VECTORS, SEARCH, BEST_WAY, KNOWN, MISSING = range(len(FEATURES))

ALL = Effort(100, 300, 1000)

seeds = st.integers(0, 2**32 - 1)


def joint() -> Joint:
    search: Any = make("tree", EDGES, tree.Settings(dimension=6, beam=40))
    vectors = make("q2p", EDGES, q2p.Settings(dimension=8, dropout=0.0))
    scattered(vectors, scale=0.5, seed=1)
    scattered(search, scale=0.7, seed=2)
    return Joint(vectors, search, EDGES, torch.zeros(FAMILIES, len(FEATURES))).double().eval()


def random_candidates(
    seed: int, queries: int = 8, change: Callable[[Tensor, Tensor], object] = lambda _features, _hard: None
) -> _Candidates:
    """Queries of one to three hard answers and up to twelve others, some of which stand for several entities.

    `change` may write to the features (c, features) before they are compared, knowing which are of hard answers (c,).
    """
    generator = np.random.default_rng(seed)
    sizes = generator.integers((1, 0), (4, 13), size=(queries, 2))
    query = torch.from_numpy(np.repeat(np.arange(queries), sizes.sum(1)))
    hard = torch.from_numpy(np.concatenate([np.arange(both.sum()) < both[0] for both in sizes]))
    features = torch.from_numpy(generator.normal(size=(len(query), len(FEATURES))))
    change(features, hard)
    stands_for = torch.from_numpy(np.where(generator.random(len(query)) < 0.5, 1.0, 2.5))
    return _Candidates(features, query, hard, stands_for)


def by_query(some: _Candidates, weights: Sequence[float]) -> list[tuple[list[float], list[tuple[float, float]]]]:
    """Of each query the scores of its hard answers; of the others, the scores and how many they stand for."""
    found: dict[int, tuple[list[float], list[tuple[float, float]]]] = {}
    columns = (some.features.tolist(), some.query.tolist(), some.hard.tolist(), some.stands_for.tolist())
    for features, query, hard, stands_for in zip(*columns, strict=True):
        answers, others = found.setdefault(query, ([], []))
        score = sum(w * x for w, x in zip(weights, features, strict=True))
        if hard:
            answers.append(score)
        else:
            others.append((score, stands_for))
    return list(found.values())


def literal_loss(some: _Candidates, weights: Sequence[float]) -> float:
    losses = [
        [math.log(math.exp(a) + sum(c * math.exp(v) for v, c in others)) - a for a in answers]
        for answers, others in by_query(some, weights)
    ]
    return float(np.mean([np.mean(one) for one in losses]))


def literal_mrr(some: _Candidates, weights: Sequence[float]) -> float:
    ranks = [
        [1 + sum(c * (v > a) + c / 2 * (v == a) for v, c in others) for a in answers]
        for answers, others in by_query(some, weights)
    ]
    return float(100 * np.mean([np.mean([1 / rank for rank in one]) for one in ranks]))


@given(seed=seeds, weights=st.lists(st.floats(-5, 5), min_size=len(FEATURES), max_size=len(FEATURES)))
def test_the_loss_is_as_defined(seed: int, weights: list[float]) -> None:
    some = random_candidates(seed)
    assert float(_loss(some, torch.tensor(weights, dtype=torch.float64))) == pytest.approx(literal_loss(some, weights))


def test_the_loss_of_large_scores_is_a_number() -> None:
    """It depends on differences alone: all scores of a query may be far from 0."""
    some = random_candidates(5)
    weights = torch.tensor([1.0, -2.0, 0.5, 0.7, -0.3], dtype=torch.float64)
    before = float(_loss(some, weights))
    some.features[:, VECTORS] += torch.tensor([3000.0, -3000.0] * 4)[some.query]
    assert float(_loss(some, weights)) == pytest.approx(before)


@given(seed=seeds, weights=st.lists(st.integers(-2, 2), min_size=len(FEATURES), max_size=len(FEATURES)))
def test_the_mean_reciprocal_rank_is_as_defined(seed: int, weights: list[int]) -> None:
    """Small whole numbers tie often, and some entities stand for several."""
    some = random_candidates(seed, change=lambda features, _: features.round_().clamp_(-1, 1))
    found = _mrr(some, torch.tensor(weights, dtype=torch.float64))
    assert found == pytest.approx(literal_mrr(some, list(map(float, weights))))


def test_a_tie_counts_half_for_all_that_it_stands_for() -> None:
    features = torch.zeros(4, len(FEATURES), dtype=torch.float64)
    features[:, VECTORS] = torch.tensor([1.0, 1.0, 2.0, 0.0])
    some = _Candidates(
        features, torch.zeros(4).long(), torch.tensor([True, False, False, False]), torch.tensor([1.0, 3.0, 2.0, 9.0])
    )
    assert _mrr(some, torch.eye(len(FEATURES), dtype=torch.float64)[VECTORS]) == pytest.approx(100 / (1 + 3 / 2 + 2))


@pytest.mark.parametrize("feature", range(len(FEATURES)), ids=FEATURES)
def test_the_feature_that_tells_answers_is_found(feature: int) -> None:
    """Whichever it is, and though nothing else says anything."""

    def only_one_tells(features: Tensor, hard: Tensor) -> None:
        features[:, feature] = hard.double()

    fit = _fitted(random_candidates(1, queries=60, change=only_one_tells))
    assert fit.mrr > 99.9
    assert fit.queries == 60
    assert fit.weights[feature] == max(map(abs, fit.weights))
    assert tuple(fit.alone) == ALONE == ("vectors", "all ways", "best way")


def test_what_is_known_and_yet_no_answer_is_taken_back() -> None:
    """Where it marks entities that are none, among what the vectors say with some noise."""

    def marked(features: Tensor, hard: Tensor) -> None:
        features[:, VECTORS] += hard.double()
        features[:, KNOWN] = (~hard & (features[:, KNOWN] > 0)).double()

    fit = _fitted(random_candidates(2, queries=60, change=marked))
    assert fit.weights[KNOWN] < -1
    assert fit.weights[VECTORS] > 0.5
    assert fit.mrr > max(fit.alone.values()) + 5


def test_a_feature_that_says_nothing_weighs_nothing() -> None:
    def constant(features: Tensor, hard: Tensor) -> None:
        features[:, SEARCH] += 2 * hard.double()
        features[:, [VECTORS, BEST_WAY]] = -3.0
        features[:, MISSING] = 7.0

    fit = _fitted(random_candidates(3, queries=60, change=constant))
    assert fit.weights[SEARCH] > 0.5
    assert [fit.weights[one] for one in (VECTORS, BEST_WAY, MISSING)] == pytest.approx([0] * 3, abs=1e-9)


def test_the_weights_minimise_the_loss() -> None:
    """With a small penalty of their squares; it is convex, so no other weights nearby are better."""

    def both_tell(features: Tensor, hard: Tensor) -> None:
        features[:, [VECTORS, SEARCH]] += hard.double()[:, None]

    def objective(weights: Sequence[float]) -> float:
        return literal_loss(some, weights) + 1e-3 * sum(w * w for w in weights)

    some = random_candidates(4, queries=60, change=both_tell)
    fit = _fitted(some)
    assert fit.mrr > max(fit.alone.values())
    weights = _of_least_loss(some, torch.eye(len(FEATURES), dtype=torch.float64)[VECTORS]).tolist()
    least = objective(weights)
    generator = np.random.default_rng(0)
    for size in (0.001, 0.01, 0.1, 1.0):
        for step in generator.normal(size=(20, len(FEATURES))):
            assert objective((np.array(weights) + size * step).tolist()) > least


def test_what_few_queries_say_by_chance_is_not_believed() -> None:
    """Where one part tells and the rest is noise, other queries are ranked better than by the weights of least loss."""

    def vectors_tell(features: Tensor, hard: Tensor) -> None:
        features[:, VECTORS] += 1.5 * hard.double()

    part = torch.eye(len(FEATURES), dtype=torch.float64)[VECTORS]
    found, least, alone = [], [], []
    for seed in range(30):
        some, others = (random_candidates(seed + more, queries=12, change=vectors_tell) for more in (0, 1000))
        found.append(_mrr(others, torch.tensor(_fitted(some).weights, dtype=torch.float64)))
        least.append(_mrr(others, _of_least_loss(some, part)))
        alone.append(_mrr(others, part))
    assert np.mean(found) > np.mean(least) + 1
    assert np.mean(found) > np.mean(alone) - 1


@settings(max_examples=60)
@given(seed=seeds, queries=st.integers(1, 10))
def test_no_part_alone_is_better(seed: int, queries: int) -> None:
    """Of whatever it was fitted to; noise has weights, too, that make it worse."""
    some = random_candidates(seed, queries)
    fit = _fitted(some)
    unit = np.eye(len(FEATURES))
    assert fit.alone == pytest.approx(
        {name: literal_mrr(some, unit[place].tolist()) for place, name in enumerate(ALONE)}
    )
    assert fit.mrr == pytest.approx(literal_mrr(some, fit.weights))
    assert fit.mrr >= max(fit.alone.values())


def test_a_part_that_is_better_alone_stays_alone() -> None:
    """One far outlier drags the loss where ranks get worse."""

    def misled(features: Tensor, hard: Tensor) -> None:
        features[:] = 0.0
        features[:, VECTORS] = hard.double()
        features[int(hard.nonzero()[0]), VECTORS] = -60.0

    fit = _fitted(random_candidates(6, queries=20, change=misled))
    assert fit.weights == (1.0, 0.0, 0.0, 0.0, 0.0)
    assert fit.mrr == fit.alone["vectors"] > 90


def test_hard_answers_compete_with_the_best_and_with_some_that_stand_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several queries at once; those without a hard answer are left out, and the others numbered in turn."""
    monkeypatch.setattr(joining, "_TOP", 5)
    monkeypatch.setattr(joining, "_RANDOM", 4)
    generator = torch.Generator().manual_seed(0)
    easy = [[], [2, 9, 28], [1], [2, 9, 28], list(range(9))]
    hard = [[3, 7], [3, 7], [], [3, 7, *range(10, 27)], list(range(9, 30))]
    features = torch.randn(len(FEATURES), len(hard), 30, generator=generator)
    found = _compared(features, Sets.of(easy, 30), Sets.of(hard, 30), generator)
    for number, row in enumerate((0, 1, 3, 4)):
        own = found.query == number
        entities = [int((one == features[:, row].T).all(1).nonzero()) for one in found.features[own]]
        assert len(set(entities)) == len(entities)
        assert found.hard[own].tolist() == [one in hard[row] for one in entities]
        assert set(hard[row]) <= set(entities)
        others = [v for v in range(30) if v not in (*easy[row], *hard[row])]
        parts = (VECTORS, SEARCH, BEST_WAY)
        best = {v for part in parts for v in sorted(others, key=lambda v: -float(features[part, row, v]))[:5]}
        some = set(entities) - set(hard[row]) - best
        assert best <= set(entities)
        assert some <= set(others)
        assert len(some) == min(len(others) - len(best), 4)
        each = (len(others) - len(best)) / max(len(some), 1)
        stands_for = [each if one in some else 1.0 for one in entities]
        assert found.stands_for[own].tolist() == pytest.approx(stands_for)
    assert int(found.query.max()) == 3


def test_all_others_are_as_likely_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_TOP", 1)
    monkeypatch.setattr(joining, "_RANDOM", 5)
    generator, count = torch.Generator().manual_seed(0), 4000
    features = torch.arange(20.0).expand(len(FEATURES), count, 20)
    found = _compared(features, Sets.of([[1]] * count, 20), Sets.of([[0]] * count, 20), generator)
    times = torch.bincount(found.features[:, 0].long(), minlength=20).tolist()
    assert [times[0], times[1], times[19]] == [count, 0, count]
    assert times[2:19] == pytest.approx([count * 5 / 17] * 17, rel=0.1)


def test_queries_without_hard_answers_or_without_others() -> None:
    features = torch.randn(len(FEATURES), 1, 6, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    nothing, everything = Sets.empty(6, 1), Sets.of([range(6)], 6)
    assert not len(_compared(features, everything, nothing, generator).query)
    alone = _compared(features, nothing, everything, generator)
    assert alone.hard.all()
    assert _mrr(alone, torch.ones(len(FEATURES))) == 100
    assert _compared(features, nothing.complement(), nothing, generator).query.tolist() == []
    assert _compared(features, nothing, nothing.complement(), generator).hard.tolist() == [True] * 6


def test_what_a_fit_says_is_what_an_evaluation_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a graph so small that all entities compete: the ranks are those of the joint reasoner with these weights."""
    monkeypatch.setattr(joining, "_CHUNK", 5)
    model = joint()
    batch, labels = drawn_queries(GRAPH, "valid", most=12, seed=0)
    assert len(batch) == len(SHAPES)
    told: list[int] = []
    weights, fits = fit_weights(model, batch, labels, ALL, progress=told.append)
    assert sum(told) == sum(map(len, batch.values()))
    assert weights.shape == (FAMILIES, len(FEATURES))
    families = {0: ["1p"], 1: ["2p", "3p"], 2: ["2i", "3i"], 3: ["pi", "ip"], 4: ["2u"], 5: ["up"]}
    families |= {10: ["2in", "3in"], 11: ["inp", "pin", "pni"]}
    assert list(fits) == list(families)

    def mrrs(weights: Tensor) -> dict[int, float]:
        found = evaluate(Joint(model.vectors, model.tree, EDGES, weights.double()), batch, labels).shapes
        return {
            family: 100
            * sum(found[name].means["mrr"] * found[name].queries for name in names)
            / sum(found[name].queries for name in names)
            for family, names in families.items()
        }

    unit = torch.eye(len(FEATURES))
    assert {family: fit.mrr for family, fit in fits.items()} == pytest.approx(mrrs(weights))
    for place, name in enumerate(ALONE):
        alone = {family: fit.alone[name] for family, fit in fits.items()}
        assert alone == pytest.approx(mrrs(unit[place].expand(FAMILIES, -1)))
    assert all(weights[family].tolist() == pytest.approx(fit.weights) for family, fit in fits.items())


@pytest.mark.parametrize("most", [3, 8, 12])
def test_the_search_is_the_best_of_those_that_are_compared(most: int) -> None:
    """By plain evaluations of the first queries of each shape, then, of what is left, of more; the tree has it."""
    effort = Effort(5, 9, 7)
    batch, labels = drawn_queries(GRAPH, "valid", most=most, seed=0)
    tree = joint().tree
    told: list[int] = []
    chosen, compared = fit_search(tree, batch, labels, effort, progress=told.append)
    assert sum(told) == queries_asked(batch, effort) - sum(min(len(ids), 7) for ids in batch.values())
    own = tree.settings
    assert (own.sharpness, own.several, own.walks, own.neg_scale) == chosen

    def mrr(search: Search, first: int) -> float:
        tree.settings = replace(tree.settings, **search._asdict())
        some = {shape: ids[:first] for shape, ids in batch.items()}
        theirs = {shape: labels[shape].take(np.arange(len(ids))) for shape, ids in some.items()}
        return evaluate(tree, some, theirs).average("all")["mrr"]

    tried = {sharpness: mrr(Search(sharpness, "any"), 5) for sharpness in (0.5, 0.65, 0.8, 1.0, 1.4, 2.0)}
    left = sorted(tried, key=lambda sharpness: -tried[sharpness])[:3]
    searches = [Search(sharpness, "any") for sharpness in left] + [Search(sharpness, "best") for sharpness in left]
    expected = {search: mrr(search, 9) for search in searches}
    best = max(expected, key=lambda search: expected[search])
    expected |= {search: mrr(search, 9) for search in (best._replace(walks=share) for share in (0.03, 0.1, 0.25, 0.5))}
    best = max(expected, key=lambda search: expected[search])
    expected[best._replace(neg_scale=3.0)] = mrr(best._replace(neg_scale=3.0), 9)
    assert compared == expected
    assert compared[chosen] == max(compared.values())
    assert len(set(compared.values())) > 1


def test_the_weights_are_fitted_to_the_first_queries() -> None:
    batch, labels = drawn_queries(GRAPH, "valid", shapes=[SHAPES["1p"], SHAPES["2i"]], most=9, seed=0)
    told: list[int] = []
    some, fits = fit_weights(joint(), batch, labels, Effort(1, 1, 4), progress=told.append)
    assert sum(told) == 8
    assert all(fit.queries <= 4 for fit in fits.values())
    few = {shape: ids[:4] for shape, ids in batch.items()}
    alone, _ = fit_weights(joint(), few, {shape: labels[shape].take(np.arange(4)) for shape in few}, ALL)
    assert torch.equal(some, alone)


def test_how_many_queries_weigh_the_parts() -> None:
    """A GPU asks as many as ever; a CPU the fewer the larger the graph, so that it takes as long."""
    assert Effort.on("cuda", 10**8)[:2] == Effort.on("cuda", 100)[:2] == (100, 300)
    assert Effort.on("cpu", 1000) == Effort.on("cuda", 1000)._replace(weighed=Effort.on("cpu", 1000).weighed)
    large, larger, huge = (Effort.on("cpu", entities) for entities in (25_000, 50_000, 10**8))
    assert all(one > other for one, other in zip(large, larger, strict=True))
    assert min(huge) == huge.tried == 3
    asked = 6 * large.tried + 10 * large.deciding + 1.5 * large.weighed
    assert 250 < asked <= 350, "searches for a query of each shape, in a minute"


def test_how_long_a_search_takes_is_measured() -> None:
    batch, labels = drawn_queries(GRAPH, "valid", most=4, seed=0)
    assert 0 < seconds_per_search(joint().tree, batch, labels) < 60


def test_families_without_queries_take_the_weights_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the weights say how many queries they were fitted to; one has no hard answer, and does not count."""
    sizes: list[int] = []

    def count(some: _Candidates) -> FamilyFit:
        sizes.append(int(some.query[-1]) + 1)
        return FamilyFit((float(sizes[-1]), 0.0, 0.0, 0.0, 0.0), sizes[-1], 0.0, {})

    monkeypatch.setattr(joining, "_fitted", count)
    monkeypatch.setattr(joining, "_CHUNK", 3)
    shapes = [SHAPES[name] for name in ("2p", "3p", "2i")]
    batch, labels = drawn_queries(GRAPH, "valid", shapes=shapes, most=7, seed=0)
    assert [len(batch[shape]) for shape in shapes] == [7, 7, 7]
    one = labels[SHAPES["2i"]]
    hard = Sets.of([one.hard[row].tolist() if row else [] for row in range(7)], len(GRAPH.entities))
    labels[SHAPES["2i"]] = Labels(one.easy, hard, one.lost)
    weights, fits = fit_weights(joint(), batch, labels, ALL)
    assert {family: fit.queries for family, fit in fits.items()} == {1: 14, 2: 6}
    assert weights[:, 0].tolist() == [{1: 14, 2: 6}.get(family, 20) for family in range(FAMILIES)]


def test_the_same_seed_gives_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides which of the others stand for the rest, so another one gives others."""
    monkeypatch.setattr(joining, "_TOP", 2)
    monkeypatch.setattr(joining, "_RANDOM", 2)
    batch, labels = drawn_queries(GRAPH, "valid", shapes=[SHAPES["1p"], SHAPES["2in"]], most=10, seed=0)
    first, again, other = (fit_weights(joint(), batch, labels, ALL, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert not torch.equal(first[0], other[0])
