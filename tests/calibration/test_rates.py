"""How many tails are missing, counted by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from query2particles.calibration import Rates
from query2particles.calibration.rates import functional
from query2particles.graph.edges import Edges
from query2particles.graph.graph import Graph
from worlds import random_graph, successors

SINGLE = (0.7, 0.9, 0.97, 0.99)


def place_of(tails: int) -> int:
    """0, 1, 2, 3–4, 5–8, 9–16, 17–32, 33 and more."""
    return next((number for number, most in enumerate((0, 1, 2, 4, 8, 16, 32)) if tails <= most), 7)


def counted(graph: Graph) -> dict[tuple[int, int], float]:
    """By relation and class of numbers of tails, as the formula says."""
    small, large = successors(graph, "train"), successors(graph, "test")
    relations, entities = graph.at("train").relations, len(graph.entities)
    pairs: defaultdict[tuple[int, int], int] = defaultdict(int)
    missing: defaultdict[tuple[int, int], int] = defaultdict(int)
    classes: defaultdict[int, list[int]] = defaultdict(list)
    for relation in range(relations):
        sizes = [len(small.get((one, relation), ())) for one in range(entities)]
        for one, size in enumerate(sizes):
            pairs[relation, place_of(size)] += 1
            missing[relation, place_of(size)] += len(large.get((one, relation), ())) - size
        heads = [size for size in sizes if size]
        share = (heads.count(1) + 1) / (len(heads) + 2)
        classes[sum(share >= least for least in SINGLE)].append(relation)
    found = {}
    for own in classes.values():
        for place in range(8):
            total = sum(missing[one, place] for one in own) + 0.02, sum(pairs[one, place] for one in own) + 1
            for one in own:
                found[one, place] = (missing[one, place] + 20 * total[0] / total[1]) / (pairs[one, place] + 20)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_rates_are_what_counting_gives(seed: int) -> None:
    graph = random_graph(seed, entities=40, relations=3, facts=400)
    rates = Rates.fit(graph.at("train"), graph.at("test"))
    for (relation, place), expected in counted(graph).items():
        assert rates.table[relation, place] == pytest.approx(expected)
    for tails in (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 1000):
        assert rates(np.array([2]), np.array([tails]))[0] == rates.table[2, place_of(tails)]


def test_rows_that_are_read_in_blocks_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(1, entities=40, relations=3, facts=400)
    whole = Rates.fit(graph.at("train"), graph.at("test"))
    monkeypatch.setattr("query2particles.graph.edges._BLOCK", 11)
    np.testing.assert_array_equal(Rates.fit(graph.at("train"), graph.at("test")).table, whole.table)


def one_and_many() -> tuple[Edges, Edges]:
    """Relation 0 gives each of 400 heads one tail, relation 1 several; a quarter of both is missing."""
    generator = np.random.default_rng(0)
    single = np.stack([np.arange(400), np.zeros(400, dtype=np.int64), generator.integers(400, 420, 400)], axis=1)
    several = np.stack(
        [np.repeat(np.arange(400), 3), np.ones(1200, dtype=np.int64), generator.integers(400, 420, 1200)]
    )
    facts = np.concatenate([single, several.T])
    kept = facts[generator.random(len(facts)) < 0.75]
    small, large = (Edges.of(*some.T, entity_count=420, relation_count=2) for some in (kept, facts))
    return small, large


def test_who_has_the_tail_of_a_functional_relation_is_short_of_nothing() -> None:
    small, large = one_and_many()
    assert functional(small)[0] > 0.99
    assert functional(small)[2] < 0.7
    rates = Rates.fit(small, large)
    one = np.array([1])
    assert rates(np.array([0]), one)[0] < 0.001
    assert rates(np.array([0]), 0 * one)[0] > 0.8, "most that have none miss one"
    assert rates(np.array([2]), one)[0] > 0.5


def test_the_share_of_heads_with_one_tail_where_nobody_has_a_relation() -> None:
    edges = Edges.of(*np.array([(0, 0, 1)]).T, entity_count=2, relation_count=2)
    assert functional(edges).tolist() == pytest.approx([2 / 3, 2 / 3, 0.5, 0.5])


def test_what_is_written_is_read_again() -> None:
    graph = random_graph(1)
    rates = Rates.fit(graph.at("train"), graph.at("test"))
    again = Rates.from_json(json.loads(json.dumps(rates.as_json())))
    np.testing.assert_allclose(again.table, rates.table, rtol=1e-4)


@pytest.mark.parametrize(
    "damage",
    [{"missing": [[0.1] * 7]}, {"missing": [[0.0] * 8]}, {"missing": [[float("nan")] * 8]}, {"tails_from": [0, 1, 2]}],
)
def test_a_damaged_document_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rates"):
        Rates.from_json({**Rates.constant(4).as_json(), **damage})
