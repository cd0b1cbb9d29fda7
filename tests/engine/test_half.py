"""Operators in bfloat16 beside float32 parameters: rounded once, trained as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.half import HalfOperators
from query2particles.engine.plan import compile_shapes
from query2particles.methods import emql, links
from query2particles.methods.q2p import PRESETS, Q2P
from query2particles.methods.registry import Model, make
from query2particles.query.algebra import SHAPES, anchor_positions, query_ids
from worlds import random_graph

TABLES = {"entities", "relations", "offsets", "bias"}
each_preset = pytest.mark.parametrize("preset", PRESETS)


def model_of(preset: str) -> Q2P:
    """Without anything random in it, so that two runs compare; of entities that differ enough to have gradients."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Q2P(40, 6, replace(PRESETS[preset], dimension=16, dropout=0.0, entity_scale=0.5)).eval()


def scores(method: Q2P, *names: str) -> Tensor:
    """Of a few queries of each of these shapes."""
    generator = torch.Generator().manual_seed(1)
    ids = []
    for name in names:
        limits = torch.full((len(tuple(query_ids(SHAPES[name]))),), 6)
        limits[anchor_positions(SHAPES[name])] = 40
        ids.append((torch.rand(8, len(limits), generator=generator) * limits).long())
    states = execute(compile_shapes(tuple(SHAPES[name] for name in names), method.kind), method, ids)
    return torch.cat([method.score(state.float()) for state in states])


def backward(method: Q2P, *names: str) -> None:
    found = scores(method, *names)
    torch.autograd.backward(torch.nn.functional.cross_entropy(found, torch.arange(len(found)) % 40))


@each_preset
def test_tables_are_shared_and_operators_are_rounded(preset: str) -> None:
    original = model_of(preset)
    half = HalfOperators(original)
    own = dict(half.method.named_parameters())
    for name, parameter in original.named_parameters():
        assert parameter.dtype == torch.float32
        if name in TABLES:
            assert own[name] is parameter
        else:
            assert own[name] is not parameter
            assert own[name].dtype == torch.bfloat16
            assert torch.equal(own[name], parameter.bfloat16())
    assert own.keys() == dict(original.named_parameters()).keys()


def test_what_the_optimiser_moves_is_rounded_anew() -> None:
    original = model_of("default")
    half = HalfOperators(original)
    places = [(parameter, parameter.data_ptr()) for parameter in half.method.parameters()]
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.1)
    half.refresh()
    for name, parameter in half.method.named_parameters():
        assert torch.equal(parameter.float(), dict(original.named_parameters())[name].to(parameter.dtype).float())
    # A captured update reads the same memory every time.
    assert all(parameter.data_ptr() == place for parameter, place in places)


@each_preset
def test_results_are_near_those_of_float32(preset: str) -> None:
    original = model_of(preset)
    half = HalfOperators(original)
    with torch.no_grad():
        expected, found = scores(original, *SHAPES), scores(half.method, *SHAPES)
    assert float((found - expected).norm() / expected.norm()) < 0.05


@each_preset
def test_gradients_are_handed_over_in_float32(preset: str) -> None:
    """They are those of the rounded operators, and near those that the original would have had."""
    original, reference = model_of(preset), model_of(preset)
    half = HalfOperators(original)
    half.refresh()
    backward(half.method, *SHAPES)
    halves = {name: one.grad for name, one in half.method.named_parameters() if one.grad is not None}
    half.hand_over()
    backward(reference, *SHAPES)
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, parameter in original.named_parameters():
        found, expected = parameter.grad, wanted[name]
        assert found is not None, name
        assert expected is not None, name
        assert found.dtype == torch.float32
        assert torch.equal(found, halves[name].float())
        # What moves the weights of all particles alike cancels out but for the activation: little is left but rounding.
        bound = 0.3 if name in ("intersection.seeds", "intersection.context.weight") else 0.1
        assert float((found - expected).norm()) < bound * float(expected.norm()), name


def test_what_an_update_does_not_use_has_no_gradient() -> None:
    """As in float32: an optimiser leaves it alone, moments too."""
    original, reference = model_of("default"), model_of("default")
    half = HalfOperators(original)
    half.refresh()
    backward(half.method, "1p", "2p")
    half.hand_over()
    backward(reference, "1p", "2p")
    unused = {name for name, parameter in reference.named_parameters() if parameter.grad is None}
    assert {name.split(".")[0] for name in unused} == {"intersection", "complementation"}
    assert {name for name, parameter in original.named_parameters() if parameter.grad is None} == unused


def test_gradients_of_one_update_do_not_stay_for_the_next() -> None:
    original = model_of("default")
    half = HalfOperators(original)
    gradients = []
    for _ in range(2):
        for parameter in original.parameters():
            parameter.grad = None
        half.refresh()
        backward(half.method, *SHAPES)
        half.hand_over()
        gradients.append([parameter.grad.clone() for parameter in original.parameters() if parameter.grad is not None])
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["links", "emql"])
def test_a_method_of_tables_alone(name: str) -> None:
    """Nothing is rounded, and the gradients are where they belong from the start."""
    graph = random_graph(1, entities=12, relations=2, facts=40)
    settings = {"links": links.Settings(dimension=4), "emql": emql.Settings(dimension=4, triples=6, width=8)}
    original: Model = make(name, graph.at("train"), settings[name]).eval()
    half = HalfOperators(original)
    assert half.method is not original
    assert [id(one) for one in half.method.parameters()] == [id(one) for one in original.parameters()]
    ids = torch.tensor([[0, 1], [5, 2]])
    expected: Tensor
    for _ in range(2):
        half.refresh()
        found, expected = (
            one.score(execute(compile_shapes((SHAPES["1p"],), one.kind), one, [ids])[0])
            for one in (half.method, original)
        )
        assert torch.equal(found, expected)
        torch.autograd.backward(found.sum())
        gradients = [one.grad for one in original.parameters()]
        half.hand_over()
        assert all(one.grad is before for one, before in zip(original.parameters(), gradients, strict=True))
    assert any(one is not None and one.any() for one in gradients)
