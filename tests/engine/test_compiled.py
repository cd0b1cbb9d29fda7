"""Compiled operators: one compilation whatever the number of queries, the same results, the rest untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from query2particles.engine.compiled import Compiled
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.methods import betae, cone, emql, gqe, links, q2b
from query2particles.methods.q2p import PRESETS, Q2P
from query2particles.methods.registry import Model, make
from query2particles.query.algebra import SHAPES, Query, anchor_positions, query_ids
from worlds import random_graph

# The compiler looks at the gradient of everything that it is given, and warns itself of that.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """What was compiled; a compiler that leaves its graph as it is, in place of one that takes a minute."""
    found: list[torch.fx.GraphModule] = []
    compiler = torch.compile

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    def compiled(operator: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return compiler(operator, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def model_of(preset: str = "default") -> Q2P:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Q2P(20, 6, replace(PRESETS[preset], dimension=8, dropout=0.0)).eval()


def test_operators_are_compiled_once_for_any_number_of_queries(graphs: list[torch.fx.GraphModule]) -> None:
    method = model_of()
    compiled = Compiled(method)
    calls: list[Callable[[Any, Tensor], Tensor]] = [
        lambda method, ids: method.anchor(ids),
        lambda method, ids: method.project(method.anchor(ids), ids % 6, hop=0),
        lambda method, ids: method.complement(method.anchor(ids)),
        lambda method, ids: method.intersect([method.anchor(ids), method.anchor(ids + 1)]),
    ]
    for number, call in enumerate(calls):
        for queries in (3, 5, 11):
            ids = torch.arange(queries)
            torch.testing.assert_close(call(compiled, ids), call(method, ids))
        assert len(graphs) == number + 1


def test_further_widths_and_numbers_of_branches_compile_anew(graphs: list[torch.fx.GraphModule]) -> None:
    compiled = Compiled(model_of())
    states = [torch.randn(queries, 2, 8, generator=torch.Generator().manual_seed(0)) for queries in (4, 4, 4)]
    for several, compilations in ((2, 1), (2, 1), (3, 2)):
        compiled.intersect(states[:several])
        assert len(graphs) == compilations


@pytest.mark.parametrize("preset", PRESETS)
def test_plans_run_the_same(preset: str, graphs: list[torch.fx.GraphModule]) -> None:
    """Results and gradients, later hops and options by name among them."""
    method = model_of(preset)
    shapes = tuple(SHAPES[name] for name in ("2p", "pi", "inp", "up"))
    compare(Compiled(method), method, shapes, 3)
    assert graphs


def compare(compiled: Compiled, method: Any, shapes: tuple[Query, ...], queries: int) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = []
    for shape in shapes:
        limits = torch.full((len(tuple(query_ids(shape))),), 6)
        limits[anchor_positions(shape)] = 20
        ids.append((torch.rand(queries, len(limits), generator=generator) * limits).long())
    plan = compile_shapes(shapes, method.kind)

    def run(chosen: Any) -> tuple[Tensor, ...]:
        scores = torch.cat([chosen.score(state) for state in execute(plan, chosen, ids)])
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)) % 20)
        return scores, *torch.autograd.grad(loss, list(method.parameters()))

    for found, expected in zip(run(compiled), run(method), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


OTHERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "gqe": (gqe.Settings(dimension=8, dropout=0.0), ("2p", "pi")),
    "q2b": (q2b.Settings(dimension=8), ("2p", "pi")),
    "betae": (betae.Settings(dimension=8, hidden=12, dropout=0.0), ("2p", "pi", "inp")),
    "cone": (cone.Settings(dimension=8, hidden=12, dropout=0.0), ("2p", "pi", "inp")),
    "links": (links.Settings(dimension=8), ("2p", "3p")),
    "emql": (emql.Settings(dimension=8, triples=9, width=16), ("2p", "pi", "up")),
}
"""Settings, and shapes that a method can answer. Where a method lacks operators, others are compiled all the same."""


@pytest.mark.parametrize("name", OTHERS)
def test_methods_with_fewer_operators_and_states_of_several_tensors(
    name: str, graphs: list[torch.fx.GraphModule]
) -> None:
    settings, shapes = OTHERS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        edges = random_graph(2, entities=20, relations=3, facts=150).at("train")
        method: Model = make(name, edges, settings).eval()
    compiled = Compiled(method)
    for operator in ("anchor", "project", "intersect", "union", "complement"):
        assert hasattr(compiled, operator) == hasattr(method, operator)
    chosen = tuple(SHAPES[shape] for shape in shapes)
    compare(compiled, method, chosen, 3)
    before = len(graphs)
    assert before
    for queries in (5, 8):  # none is compiled anew for another number of queries
        compare(compiled, method, chosen, queries)
    assert len(graphs) == before


def test_what_is_not_compiled_is_the_methods_own(graphs: list[torch.fx.GraphModule]) -> None:
    method = model_of()
    compiled = Compiled(method)
    assert compiled.kind is method.kind
    assert compiled.operators is method.operators
    assert compiled.entities is method.entities
    state = method.anchor(torch.arange(4))
    assert torch.equal(compiled.score(state), method.score(state))
    assert torch.equal(compiled.union([state, state]), method.union([state, state]))
    assert not graphs
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        compiled.nothing_of_that_name  # noqa: B018
