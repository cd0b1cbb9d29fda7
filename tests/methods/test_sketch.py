"""Count-min sketches against dictionaries of weights: they may say too much, never too little."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from query2particles.methods.sketch import CountMin

PRIME = 2**31 - 1
MOST = 40
SLACK = 1e-12
"""Sums of the same weights in another order."""

members_and_weights = st.lists(
    st.tuples(st.integers(0, MOST - 1), st.floats(0, 1, allow_subnormal=False)), min_size=1, max_size=30
)
sizes = st.tuples(st.integers(1, 5), st.integers(1, 40))


def encoded(sketches: CountMin, several: list[list[tuple[int, float]]]) -> Tensor:
    """One sketch a set; shorter sets are filled up with members of weight 0."""
    longest = max(map(len, several))
    padded = [[*one, *[(0, 0.0)] * (longest - len(one))] for one in several]
    members = torch.tensor([[member for member, _ in one] for one in padded])
    weights = torch.tensor([[weight for _, weight in one] for one in padded], dtype=torch.float64)
    return sketches.encode(members, weights)


def said(sketches: CountMin, sketch: Tensor) -> Tensor:
    """What each sketch says about every entity."""
    return sketches.weights(sketch, torch.arange(MOST).repeat(len(sketch), 1))


def true_weights(several: list[list[tuple[int, float]]]) -> Tensor:
    rows = []
    for one in several:
        weights: Counter[int] = Counter()
        for member, weight in one:
            weights[member] += weight  # type: ignore[assignment]
        rows.append([float(weights[entity]) for entity in range(MOST)])
    return torch.tensor(rows, dtype=torch.float64)


@given(members_and_weights, sizes, st.integers(0, 9))
def test_cells_are_sums_and_the_smallest_one_counts(
    one: list[tuple[int, float]], size: tuple[int, int], seed: int
) -> None:
    depth, width = size
    sketches = CountMin(depth, width, seed)
    table = [[0.0] * width for _ in range(depth)]
    functions = list(zip(sketches._factors[:, 0].tolist(), sketches._shifts[:, 0].tolist(), strict=True))
    for member, weight in one:
        for row, (factor, shift) in zip(table, functions, strict=True):
            row[(factor * member + shift) % PRIME % width] += weight
    sketch = encoded(sketches, [one])
    np.testing.assert_allclose(sketch[0], table, atol=SLACK)
    expected = [
        min(row[(a * x + c) % PRIME % width] for row, (a, c) in zip(table, functions, strict=True)) for x in range(MOST)
    ]
    np.testing.assert_allclose(said(sketches, sketch)[0], expected, atol=SLACK)


@given(st.lists(members_and_weights, min_size=1, max_size=3), sizes)
def test_never_too_little(several: list[list[tuple[int, float]]], size: tuple[int, int]) -> None:
    sketches = CountMin(*size)
    assert (said(sketches, encoded(sketches, several)) >= true_weights(several) - SLACK).all()


@given(st.lists(members_and_weights, min_size=1, max_size=4), sizes)
def test_unions_and_intersections_never_say_too_little(
    several: list[list[tuple[int, float]]], size: tuple[int, int]
) -> None:
    sketches = CountMin(*size)
    parts = [encoded(sketches, [one]) for one in several]
    true = true_weights(several)
    assert (said(sketches, CountMin.union(parts))[0] >= true.mean(0) - SLACK).all()
    assert (said(sketches, CountMin.intersection(parts))[0] >= true.amin(0) - SLACK).all()


def test_wide_sketches_are_exact() -> None:
    several = [[(3, 0.25), (7, 0.5), (3, 0.125)], [(39, 1.0)]]
    sketches = CountMin(3, 100_003)
    assert torch.equal(said(sketches, encoded(sketches, several)), true_weights(several))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_hash_function_sorts_out_others(depth: int) -> None:
    """Of m members, a stranger passes for one with probability (1 − (1 − 1/width)^m)^depth."""
    width, members, strangers = 512, 200, 100_000
    sketches = CountMin(depth, width)
    ids = torch.randperm(members + strangers, generator=torch.Generator().manual_seed(0))[None]
    sketch = sketches.encode(ids[:, :members], torch.ones(1, members))
    share = (sketches.weights(sketch, ids[:, members:]) > 0).double().mean().item()
    expected = (1 - (1 - 1 / width) ** members) ** depth
    assert math.isclose(share, expected, rel_tol=0.25)


def test_large_ids_do_not_overflow() -> None:
    sketches = CountMin(8, 7)
    ids = torch.tensor([[PRIME - 1, PRIME - 2]])
    cells = sketches._cells(ids)
    expected = [
        [(a * x + c) % PRIME % 7 for x in ids[0].tolist()]
        for a, c in zip(sketches._factors[:, 0].tolist(), sketches._shifts[:, 0].tolist(), strict=True)
    ]
    assert cells[0].tolist() == expected


def test_functions_follow_from_the_seed_alone() -> None:
    ids = torch.arange(1000)[None]
    torch.manual_seed(1)
    first = CountMin(4, 64)
    torch.manual_seed(2)
    second, other = CountMin(4, 64).double(), CountMin(4, 64, seed=1)
    assert torch.equal(first._cells(ids), second._cells(ids))
    assert not torch.equal(first._cells(ids), other._cells(ids))
    assert not first.state_dict()
