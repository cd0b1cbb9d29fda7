"""Execution hands states on as they are: no copies where a call takes all of an earlier result."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from query2particles.engine.execute import execute
from query2particles.engine.method import width
from query2particles.engine.plan import compile_shapes
from query2particles.query.algebra import SHAPES, Anchor, Complement, Intersect, Project, Query, Union, query_ids

Rows = npt.NDArray[np.int64]


class Recording:
    """States are arrays of row numbers; every operand, result, stack and split is noted."""

    operators = frozenset((Anchor, Project, Intersect, Union, Complement))
    kind = staticmethod(width)

    def __init__(self) -> None:
        self.operands: list[Rows] = []
        self.results: list[Rows] = []
        self.stacked: list[int] = []
        self.apart: list[list[int]] = []
        self.ids: list[Any] = []

    def anchor(self, entities: Any) -> Rows:
        self.ids.append(entities)
        return self._result(len(entities))

    def project(self, state: Rows, relations: Any, *, hop: int) -> Rows:
        del hop
        self.ids.append(relations)
        return self._result(len(relations), state)

    def intersect(self, branches: Sequence[Rows]) -> Rows:
        return self._result(len(branches[0]), *branches)

    def union(self, branches: Sequence[Rows]) -> Rows:
        return self._result(len(branches[0]), *branches)

    def complement(self, state: Rows) -> Rows:
        return self._result(len(state), state)

    def score(self, state: Rows, entities: Any = None) -> Any:
        raise NotImplementedError

    def stack(self, states: Sequence[Rows]) -> Rows:
        self.stacked.append(len(states))
        return np.concatenate(states)

    def split(self, state: Rows, sizes: Sequence[int]) -> list[Rows]:
        self.apart.append(list(sizes))
        assert sum(sizes) == len(state)
        return np.split(state, np.cumsum(sizes)[:-1])

    def _result(self, rows: int, *operands: Rows) -> Rows:
        assert all(len(operand) == rows for operand in operands)
        self.operands.extend(operands)
        self.results.append(np.arange(rows) + 100 * len(self.results))
        return self.results[-1]


def run(names: Sequence[str], rows: Sequence[int], *, keep: bool = False) -> tuple[Recording, list[Rows]]:
    shapes = [SHAPES[name] for name in names]
    ids = [np.zeros((n, len(tuple(query_ids(shape)))), dtype=int) for n, shape in zip(rows, shapes, strict=True)]
    method = Recording()
    return method, execute(compile_shapes(tuple(shapes)), method, ids, keep=keep)


@pytest.mark.parametrize("name", ["1p", "2p", "3p"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_chain_hands_on_the_very_results(name: str, keep: bool) -> None:
    method, found = run([name], [4], keep=keep)
    assert [id(operand) for operand in method.operands] == [id(result) for result in method.results[:-1]]
    assert not method.stacked
    assert np.array_equal(found[-1], method.results[-1])


@pytest.mark.parametrize("keep", [False, True])
def test_shapes_that_go_together_stay_together(keep: bool) -> None:
    """All rows of an earlier call in its order are passed on whole, whatever the shapes they belong to."""
    shapes = (Complement(SHAPES["1p"]), Complement(Complement(SHAPES["1p"])))
    plan = compile_shapes(shapes)
    method = Recording()
    execute(plan, method, [np.zeros((2, 2), dtype=int), np.zeros((3, 2), dtype=int)], keep=keep)
    assert [len(result) for result in method.results] == [5, 5, 5, 3]
    assert [id(operand) for operand in method.operands[:2]] == [id(result) for result in method.results[:2]]


def test_only_what_comes_from_several_calls_is_stacked() -> None:
    """2i takes its branches out of one projection: a split, but no stack."""
    method, _ = run(["2i"], [4])
    assert method.apart[0] == [4, 4]
    assert not method.stacked
    mixed, _ = run(["1p", "2i", "pi"], [2, 3, 4])
    assert all(count > 1 for count in mixed.stacked)


def test_ids_reach_the_nodes_that_they_belong_to() -> None:
    shapes = (SHAPES["1p"], SHAPES["2p"])
    method = Recording()
    ids = [np.array([[10, 11], [20, 21]]), np.array([[30, 31, 32]])]
    execute(compile_shapes(shapes), method, ids)
    assert [one.tolist() for one in method.ids] == [[10, 20, 30], [11, 21, 31], [32]]


def test_ids_may_be_torch_tensors() -> None:
    method = Recording()
    execute(compile_shapes((SHAPES["1p"], SHAPES["2p"])), method, [torch.zeros(2, 2), torch.ones(1, 3)])
    assert all(isinstance(one, torch.Tensor) for one in method.ids)
    assert [one.tolist() for one in method.ids] == [[0, 0, 1], [0, 0, 1], [1]]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (list(SHAPES), [1 + number % 4 for number in range(len(SHAPES))]),
        (["3in"], [2]),
        (["up", "2u", "1p"], [3, 1, 2]),
    ],
    ids=["all shapes", "one shape", "unions"],
)
def test_every_node_is_kept_where_asked(names: list[str], rows: list[int]) -> None:
    plan = compile_shapes(tuple(SHAPES[name] for name in names))
    _, roots = run(names, rows)
    method, kept = run(names, rows, keep=True)
    assert len(kept) == len(plan.nodes)
    assert [len(state) for state in kept] == [rows[node.shape] for node in plan.nodes]
    # Each row of each result belongs to one node, and what is a root there is what comes out otherwise.
    assert sorted(np.concatenate(kept).tolist()) == sorted(np.concatenate(method.results).tolist())
    for number, root in zip(plan.roots, roots, strict=True):
        assert np.array_equal(kept[number], root)


def test_states_are_dropped_as_soon_as_they_are_not_needed() -> None:
    """Memory of a long chain is that of its last two states."""

    class Watching(Recording):
        made: ClassVar[list[weakref.ref[Rows]]] = []
        most = 0

        def _result(self, rows: int, *operands: Rows) -> Rows:
            result = np.arange(rows)
            self.made.append(weakref.ref(result))
            self.most = max(self.most, sum(made() is not None for made in self.made))
            return result

    query: Query = Anchor(0)
    for position in range(20):
        query = Project(query, position + 1)
    method = Watching()
    execute(compile_shapes((query,)), method, [np.zeros((3, 21), dtype=int)])
    assert len(method.made) == 21
    assert method.most <= 3
