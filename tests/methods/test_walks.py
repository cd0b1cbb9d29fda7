"""Walks along stored edges, against walks that are taken one by one in plain Python."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch

from query2particles.graph.edges import Edges
from query2particles.methods import walks as walks_module
from query2particles.methods.stored import StoredTails
from query2particles.methods.walks import Walks, fit_walks

Floats = npt.NDArray[np.float64]
Edge = tuple[int, int, int]
Path = tuple[int, ...]


def paths_of(found: Walks) -> list[dict[Path, float]]:
    """The paths of each relation, with their shares."""
    tables = zip(found.first.tolist(), found.second.tolist(), found.shares.tolist(), strict=True)
    return [
        {(r, then) if then >= 0 else (r,): share for r, then, share in zip(*rows, strict=True) if r >= 0}
        for rows in tables
    ]


def tails_of(stored: Collection[Edge], head: int, relation: int) -> list[int]:
    return [t for h, r, t in stored if (h, r) == (head, relation)]


def ends(path: Path, stored: Collection[Edge], start: int, most: tuple[int, int]) -> dict[int, float]:
    """Where a walk ends, and how likely; the second step does not leave from where the first did."""
    found = {start: 1.0}
    for number, relation in enumerate(path):
        further: dict[int, float] = {}
        for z, chance in found.items():
            tails = tails_of(stored, z, relation)
            if len(tails) <= most[number] and not (number and z == start):
                for t in tails:
                    further[t] = further.get(t, 0.0) + chance / len(tails)
        found = further
    return found


def walked(
    paths: Mapping[Path, float], stored: Collection[Edge], start: int, most: tuple[int, int] = (64, 256)
) -> Floats:
    """w(t | h, r) of every entity t."""
    found = np.zeros(1 + max(max(h, t) for h, _, t in stored))
    for path, share in paths.items():
        for end, chance in ends(path, stored, start, most).items():
            found[end] += share * chance
    return found


def world(seed: int, entities: int = 12, relations: int = 3, facts: int = 40) -> tuple[Edges, set[Edge]]:
    generator = np.random.default_rng(seed)
    h, r, t = (generator.integers(most, size=facts) for most in (entities, relations, entities))
    edges = Edges.of(h, r, t, entity_count=entities, relation_count=relations)
    both = {(int(a), 2 * int(b), int(c)) for a, b, c in zip(h, r, t, strict=True)}
    return edges, both | {(c, b + 1, a) for a, b, c in both} | {(entities - 1, -1, entities - 1)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [(64, 256), (2, 3)])
@pytest.mark.parametrize("walkers", [7, 4096])
def test_where_walks_end(seed: int, most: tuple[int, int], walkers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From every head by every relation's paths, each end once; steps that lead to many are not taken."""
    monkeypatch.setattr(walks_module, "_WALKERS", walkers)
    monkeypatch.setattr(walks_module, "_FIRST", most[0])
    monkeypatch.setattr(walks_module, "_SECOND", most[1])
    edges, stored = world(seed)
    found = fit_walks(edges)
    paths = paths_of(found)
    assert any(len(path) == 1 for own in paths for path in own)
    assert any(len(path) == 2 for own in paths for path in own)
    heads, relations = (one.flatten() for one in torch.meshgrid(torch.arange(12), torch.arange(6), indexing="ij"))
    pairs, tails, chances, rest = found.of(StoredTails(edges), heads, relations, 0.5)
    assert len({*zip(pairs.tolist(), tails.tolist(), strict=True)}) == len(pairs)
    table = torch.zeros(len(heads), 12, dtype=torch.float64)
    table[pairs, tails] = chances.exp()
    for row, left, head, relation in zip(table, rest.exp().tolist(), heads.tolist(), relations.tolist(), strict=True):
        expected = 0.5 * walked(paths[relation], stored, head, most)
        np.testing.assert_allclose(row, expected, atol=1e-12)
        assert left == pytest.approx(1 - expected.sum())


@pytest.mark.parametrize("at_once", [7, 4096])
@pytest.mark.parametrize("seed", range(3))
def test_examples_are_found_without_themselves(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path to every edge, by walks along all edges but that one; however many are looked at together."""
    monkeypatch.setattr(walks_module, "_AT_ONCE", at_once)
    edges, stored = world(seed, facts=30)
    listed = walks_module._Listed.of(edges)
    at = np.arange(len(edges))
    seen = listed.seen(at)
    found = {(e, p): c for e, p, c in zip(*(column.tolist() for column in seen), strict=True)}
    expected = {}
    columns = listed.heads.tolist(), listed.relations.tolist(), listed.tails.tolist()
    for example, (x, r, y) in enumerate(zip(*columns, strict=True)):
        for first in range(6):
            steps = [t for t in tails_of(stored, x, first) if (first, t) != (r, y)]
            if y in steps and x != y:
                expected[example, 7 * first] = 1 / len(steps)
            for second in range(6):
                further = [tails_of(stored, z, second) for z in steps if z not in (x, y)]
                if chance := sum(1 / len(steps) / len(tails) for tails in further if y in tails):
                    expected[example, 7 * first + second + 1] = chance
    assert found == pytest.approx(expected)


def test_what_a_relation_means_is_found() -> None:
    """Grandparents are parents of parents, names of a relation say the same, and chance says nothing."""
    generator = np.random.default_rng(0)
    parent = np.array([(child, 0, (child - 1) // 2) for child in range(1, 200)])
    parent_of = {child: up for child, _, up in parent.tolist()}
    grand = np.array([(child, 1, parent_of[up]) for child, up in parent_of.items() if up in parent_of])
    also = parent * [1, 0, 1] + [0, 2, 0]
    noise = np.stack([generator.integers(200, size=150), np.full(150, 3), generator.integers(200, size=150)], 1)
    facts = np.concatenate([parent, grand, also, noise])
    paths = paths_of(fit_walks(Edges.of(*facts.T, entity_count=200, relation_count=4)))
    best = [max(own, key=lambda path: own[path], default=None) for own in paths]
    assert best[0] == (4,)
    assert best[4] == (0,)
    assert sum(share for path, share in paths[2].items() if set(path) <= {0, 4} and len(path) == 2) > 0.9
    assert sum(paths[6].values()) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_shares_make_the_examples_likeliest(seed: int) -> None:
    """No other shares of the same paths do better, where an edge that no path explains is any of the tails."""
    edges, stored = world(seed, facts=60)
    listed = walks_module._Listed.of(edges)
    at = np.arange(len(edges))
    seen = listed.seen(at)
    paths = paths_of(fit_walks(edges))
    generator = np.random.default_rng(seed)
    for relation in range(6):
        own = list(paths[relation])
        numbers = [7 * path[0] + (path[1] + 1 if len(path) > 1 else 0) for path in own]
        examples = at[listed.relations == relation]
        tails = len({t for _, r, t in stored if r == relation})
        chances = np.zeros((len(examples), len(own) + 1))
        chances[:, -1] = 1 / tails
        for example, path, chance in zip(*seen, strict=True):
            if example in examples and path in numbers:
                chances[list(examples).index(example), numbers.index(path)] = chance
        shares = np.append([paths[relation][path] for path in own], 1 - sum(paths[relation].values()))
        assert shares.min() >= 0
        reached = np.log(chances @ shares).sum()
        for _ in range(200):
            other = 0.8 * shares + 0.2 * generator.dirichlet(np.full(len(shares), 0.3))
            with np.errstate(divide="ignore"):
                assert np.log(chances @ other).sum() <= reached + 0.02 * len(examples)


def test_a_fit_is_the_same_every_time_and_small_graphs_may_have_none() -> None:
    edges, _ = world(1, entities=40, facts=300)
    for one, other in zip(fit_walks(edges).buffers(), fit_walks(edges).buffers(), strict=True):
        assert torch.equal(one, other)
    alone = fit_walks(Edges.of(*np.array([[0], [0], [1]]), entity_count=2, relation_count=1))
    assert not bool((alone.first >= 0).any())
    found = alone.of(StoredTails(edges), torch.tensor([0, 1]), torch.tensor([0, 1]), 0.5)
    assert not len(found.pairs)
    assert found.rest.tolist() == [0, 0]


def test_a_hub_takes_no_more_memory_than_its_edges() -> None:
    """A hundred examples of each of twelve directed relations begin at it or lead there."""
    leaves = np.arange(1, 5001)
    facts = np.concatenate([np.stack([np.zeros_like(leaves), np.full_like(leaves, r), leaves]) for r in range(6)], 1)
    edges = Edges.of(*facts, entity_count=5001, relation_count=6)
    tracemalloc.start()
    try:
        paths = paths_of(fit_walks(edges))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6, "12 relations × 100 examples × 60,000 edges would be 72 million numbers"
    assert all((relation ^ 2,) in paths[relation] for relation in (1, 3)), "a leaf has the same hub under all"
