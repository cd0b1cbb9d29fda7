"""Plans: equal nodes of all shapes share one call, kinds are kept apart, a plan prints itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.engine.exact import Exact
from query2particles.engine.execute import execute
from query2particles.engine.method import lacking, width
from query2particles.engine.plan import compile_shapes
from query2particles.errors import UnsupportedError
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    branches,
    ground,
    size,
)
from worlds import queries

EVERY = frozenset((Anchor, Project, Intersect, Union, Complement))


def hops(query: Query) -> int:
    """The most projections on a way from the query to an anchor."""
    return isinstance(query, Project) + max(map(hops, branches(query)), default=0)


class Spelling:
    """A method whose states are the queries themselves, so that executing a plan must give them back."""

    operators = EVERY

    def __init__(self) -> None:
        self.calls: list[str] = []

    def anchor(self, entities: Any) -> list[Query]:
        self.calls.append("anchor")
        return [Anchor(int(entity)) for entity in entities]

    def project(self, state: list[Query], relations: Any, *, hop: int) -> list[Query]:
        self.calls.append(f"project {hop}")
        assert all((hops(query) > 0) == hop for query in state)
        return [Project(query, int(relation)) for query, relation in zip(state, relations, strict=True)]

    def intersect(self, branches: Sequence[list[Query]]) -> list[Query]:
        self.calls.append("intersect")
        return [Intersect(several) for several in zip(*branches, strict=True)]

    def union(self, branches: Sequence[list[Query]]) -> list[Query]:
        self.calls.append("union")
        return [Union(several) for several in zip(*branches, strict=True)]

    def complement(self, state: list[Query]) -> list[Query]:
        self.calls.append("complement")
        return [Complement(query) for query in state]

    def score(self, state: list[Query], entities: Any = None) -> Any:
        raise NotImplementedError

    def stack(self, states: Sequence[list[Query]]) -> list[Query]:
        return [query for state in states for query in state]

    def split(self, state: list[Query], sizes: Sequence[int]) -> list[list[Query]]:
        return [state[stop - size : stop] for size, stop in zip(sizes, accumulate(sizes), strict=True)]

    kind = staticmethod(width)


def test_equal_nodes_share_a_call() -> None:
    shapes = tuple(SHAPES.values())
    method = Spelling()
    execute(compile_shapes(shapes), method, [np.zeros((1, 7), dtype=int)] * len(shapes))
    assert method.calls.count("anchor") == 1
    assert method.calls.count("project 0") == 1
    assert len(method.calls) < sum(map(size, shapes)) / 3


def test_calls_wait_for_others_to_join_them() -> None:
    """Three projections in a row need three calls; all else of the training shapes fits between them."""
    names = ("1p", "2p", "3p", "2i", "3i", "2in", "3in", "inp", "pin", "pni")
    steps = compile_shapes(tuple(SHAPES[name] for name in names)).steps
    calls = Counter((step.operator, step.arity) for step in steps)
    assert calls == {(Anchor, 0): 1, (Project, 1): 3, (Complement, 1): 1, (Intersect, 2): 1, (Intersect, 3): 1}


def test_a_long_chain_is_compiled_at_once() -> None:
    query: Query = Anchor(0)
    for number in range(300):
        query = Project(query, number + 1)
    start = time.perf_counter()
    assert len(compile_shapes((query,)).steps) == 301
    assert time.perf_counter() - start < 5


@given(st.lists(queries(9, 3), min_size=1, max_size=8), st.integers(1, 3), st.booleans())
def test_any_batch_gives_its_queries_back(several: list[Query], copies: int, polar: bool) -> None:
    batch: dict[Query, list[tuple[int, ...]]] = {}
    for query in several:
        shape, ids = abstract(query)
        batch.setdefault(shape, []).extend([ids] * copies)
    plan = compile_shapes(tuple(batch), Exact.kind if polar else width)
    rows = [np.array(ids) for ids in batch.values()]
    found = execute(plan, Spelling(), rows)
    for (shape, grounded), states in zip(batch.items(), found, strict=True):
        assert states == [ground(shape, row) for row in grounded]
    kept = execute(plan, Spelling(), rows, keep=True)
    assert len(kept) == len(plan.nodes)
    for node, states in zip(plan.nodes, kept, strict=True):
        assert all(type(state) is node.operator for state in states)
        assert [branches(state) for state in states] == list(
            zip(*(kept[below] for below in node.below), strict=True)
        ) or not node.below


def test_kinds_are_kept_apart() -> None:
    """(A | B) & C has operands of two widths and one; A & B has one and one: two calls."""
    wide, _ = abstract(Intersect((Union((Anchor(0), Anchor(1))), Anchor(2))))
    narrow, _ = abstract(Intersect((Intersect((Anchor(0), Anchor(1))), Anchor(2))))
    steps = [step for step in compile_shapes((wide, narrow)).steps if step.operator is Intersect]
    assert [len(step.nodes) for step in steps] == [1, 1, 1]
    assert compile_shapes((wide,)).nodes[-1].kind == 1
    lone, _ = abstract(Union((Union((Anchor(0), Anchor(1))), Anchor(2))))
    assert compile_shapes((lone,)).nodes[-1].kind == 3


def test_a_plan_prints_itself() -> None:
    plan = compile_shapes((SHAPES["2i"], SHAPES["2in"]))
    printed = str(plan)
    assert printed.startswith("2i, 2in: 11 nodes in ")
    assert "intersect/2" in printed
    assert "hop 0" in printed


def test_what_a_method_lacks_is_refused() -> None:
    class NoUnion(Spelling):
        operators = EVERY - {Union}

    class ChainsOnly(Spelling):
        operators = frozenset((Anchor, Project))

    with pytest.raises(UnsupportedError, match=r"^NoUnion has no union: .*lift unions to the root.*q2p methods says"):
        execute(compile_shapes((SHAPES["2u"],)), NoUnion(), [np.zeros((1, 4), dtype=int)])
    with pytest.raises(UnsupportedError, match=r"^ChainsOnly has no intersection and no complement: "):
        execute(compile_shapes((SHAPES["1p"], SHAPES["2in"])), ChainsOnly(), [np.zeros((1, 4), dtype=int)] * 2)


def test_what_queries_need_that_is_not_there() -> None:
    for name, shape in SHAPES.items():
        assert lacking(EVERY, shape) == []
        assert lacking(EVERY - {Union}, shape) == (["union"] if "u" in name else [])
        assert lacking(EVERY - {Complement}, shape) == (["complement"] if "n" in name else [])
    assert lacking(frozenset((Anchor,)), *SHAPES.values()) == ["projection", "intersection", "union", "complement"]
