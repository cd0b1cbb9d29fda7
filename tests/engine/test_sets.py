"""Batches of sets against Python's own sets, complements included."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from query2particles.engine.sets import Sets, intersection, union

N = 9
ROWS = st.lists(st.lists(st.integers(0, N - 1), max_size=N), min_size=4, max_size=4)
BATCHES = st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=4)


def batch(rows: list[list[int]], complemented: bool) -> Sets:
    sets = Sets.of(rows, N)
    return sets.complement() if complemented else sets


def plain(rows: list[list[int]], complemented: bool) -> list[set[int]]:
    return [set(range(N)) - set(row) if complemented else set(row) for row in rows]


def members(sets: Sets) -> list[set[int]]:
    for row in range(len(sets)):
        assert sets[row].tolist() == sorted(set(sets[row].tolist()))
        assert sets.sizes[row] == len(sets[row])
    return [set(sets[row].tolist()) for row in range(len(sets))]


@given(BATCHES)
def test_intersection_union_difference(batches: list[tuple[list[list[int]], bool]]) -> None:
    sets, expected = [batch(*one) for one in batches], [plain(*one) for one in batches]
    assert members(intersection(sets)) == [set.intersection(*rows) for rows in zip(*expected, strict=True)]
    assert members(union(sets)) == [set.union(*rows) for rows in zip(*expected, strict=True)]
    differences = [one - other for one, other in zip(expected[0], expected[-1], strict=True)]
    assert members(sets[0] - sets[-1]) == differences


@given(ROWS, st.booleans(), st.lists(st.integers(0, 3), max_size=6))
def test_rows_take_stack_listed(rows: list[list[int]], complemented: bool, chosen: list[int]) -> None:
    sets, expected = batch(rows, complemented), plain(rows, complemented)
    assert members(sets.rows(1, 3)) == expected[1:3]
    assert members(sets.take(np.array(chosen, dtype=np.int64))) == [expected[row] for row in chosen]
    assert members(Sets.stack([sets.rows(0, 1), sets.rows(1, 1), sets.rows(1, 4)])) == expected
    assert members(sets.listed()) == expected
    assert not sets.listed().complemented
    assert sets.matrix().toarray().tolist() == [[value in row for value in range(N)] for row in map(set, rows)]


@given(ROWS)
def test_rows_are_sorted_late(rows: list[list[int]]) -> None:
    sets = Sets.of(rows, N)
    backwards = np.concatenate([sets[row][::-1] for row in range(4)]).astype(np.int32)
    late = Sets(N, sets.offsets, backwards, ordered=False)
    assert members(late) == [set(row) for row in rows]
    assert late.in_order().values.tolist() == sets.values.tolist()
    many = Sets.stack([late] * 40)
    assert many.values.tolist() == sets.values.tolist() * 40
    long = Sets(N, np.append(0, np.cumsum(np.tile(np.diff(sets.offsets), 40))), np.tile(backwards, 40), ordered=False)
    assert long.in_order().values.tolist() == sets.values.tolist() * 40


@given(ROWS, st.booleans(), ROWS)
def test_which_entities_are_members(rows: list[list[int]], complemented: bool, asked: list[list[int]]) -> None:
    entities = np.array([(row + [0] * N)[:N] for row in asked])
    found = batch(rows, complemented).contain(entities)
    expected = plain(rows, complemented)
    assert found.tolist() == [[one in expected[row] for one in own] for row, own in enumerate(entities.tolist())]
