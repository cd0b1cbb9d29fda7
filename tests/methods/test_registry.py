"""What is said of a method before it is built is true of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.methods.registry import METHODS, make, trainee_of
from query2particles.query.algebra import SHAPES, Anchor, Complement, Intersect, Project, Union
from query2particles.query.rewrite import de_morgan
from worlds import random_graph

EDGES = random_graph(5, entities=9, relations=2, facts=40).at("train")
each_method = pytest.mark.parametrize("name", METHODS)


def small(name: str) -> Any:
    settings = METHODS[name].settings()
    sizes = {"dimension": 8, "hidden": 8, "beam": 4, "steps": 2, "triples": 8, "width": 16}
    return replace(settings, **{key: size for key, size in sizes.items() if hasattr(settings, key)})


@each_method
def test_complements_are_announced_by_those_that_have_them(name: str) -> None:
    entry = METHODS[name]
    assert bool(entry.complement) == (Complement in entry.operators)
    assert entry.title
    assert entry.state


@each_method
def test_unions_can_be_answered_in_the_ways_that_are_named(name: str) -> None:
    entry = METHODS[name]
    assert ("native" in entry.unions) == (Union in entry.operators)
    assert ("de-morgan" in entry.unions) == ({Intersect, Complement} <= entry.operators)
    assert "dnf" in entry.unions
    assert entry.unions[0] == ("native" if Union in entry.operators else "dnf")
    model = make(name, EDGES, small(name)).eval()
    ids = torch.tensor([[0, 1, 2, 3]])
    shapes = {"native": [SHAPES["2u"]], "dnf": [SHAPES["1p"]], "de-morgan": [de_morgan(SHAPES["2u"])]}
    for unions in entry.unions:
        for shape in shapes[unions]:
            states = execute(compile_shapes((shape,), model.kind), model, [ids])
            assert model.score(states[0]).isfinite().all()


@each_method
def test_the_class_fits_the_entry(name: str) -> None:
    entry, model = METHODS[name], make(name, EDGES, small(name))
    assert isinstance(model, nn.Module)
    assert model.operators == entry.operators >= {Anchor, Project}
    for operator, function in ((Intersect, "intersect"), (Union, "union"), (Complement, "complement")):
        assert hasattr(model, function) == (operator in entry.operators)


@each_method
def test_settings_are_numbers_flags_and_choices(name: str) -> None:
    """Which text and JSON can hold."""
    settings = METHODS[name].settings()
    assert all(type(getattr(settings, field.name)) in (int, float, bool, str) for field in fields(settings))


@each_method
def test_numbers_of_one_more_entity(name: str) -> None:
    settings = small(name)
    counts = [
        sum(one.numel() for one in METHODS[name].method(entities, 6, settings).parameters()) for entities in (5, 12)
    ]
    assert 7 * METHODS[name].numbers_per_entity(settings) == counts[1] - counts[0] > 0


@each_method
def test_what_is_trained_is_a_part_of_the_method_or_all_of_it(name: str) -> None:
    model = make(name, EDGES, small(name))
    trained = trainee_of(model)
    assert any(part is trained for part in model.modules())
    assert trainee_of(trained) is trained
    assert {id(one) for one in trained.parameters()} == {id(one) for one in model.parameters()}


def test_a_method_that_asks_for_edges_gets_them() -> None:
    model: Any = make("emql", EDGES, small("emql"))
    assert len(model.triples.objects) == len(EDGES.tails)
