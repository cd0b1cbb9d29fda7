"""`q2p methods` names every method, and says of each what its class can do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from processes import q2p, q2p_json
from query2particles.engine.exact import Exact
from query2particles.methods.baselines import FrequentTails, RelaxAndCount
from query2particles.methods.guided import Guided
from query2particles.methods.joint import Joint
from query2particles.methods.q2p import Q2P
from query2particles.methods.registry import METHODS, make
from query2particles.presets import PRESETS
from worlds import random_graph

ENTITIES = 37  # as large as no other part of any default preset
JOINED: dict[str, type] = {"best": Joint, "fast": Q2P, "guided": Guided}
UNTRAINED: dict[str, type] = {"frequent-tails": FrequentTails, "relax-and-count": RelaxAndCount, "exact": Exact}


@pytest.fixture(scope="module")
def told() -> Any:
    return q2p_json("methods")


def test_every_method_is_there(told: Any) -> None:
    assert list(told) == ["trained", "joined", "untrained"]
    assert list(told["trained"]) == list(METHODS)
    assert list(told["joined"]) == list(JOINED)
    assert list(told["untrained"]) == list(UNTRAINED)


def test_operators_are_what_classes_have(told: Any) -> None:
    classes = {name: entry.method for name, entry in METHODS.items()} | JOINED | UNTRAINED
    operators = ("anchor", "project", "intersect", "union", "complement")
    for name, one in (told["trained"] | told["joined"] | told["untrained"]).items():
        assert one["operators"] == [operator for operator in operators if hasattr(classes[name], operator)], name
        assert bool(one["complement"]) == hasattr(classes[name], "complement")


def test_unions_are_answered_by_operators_that_are_there(told: Any) -> None:
    for name, one in told["trained"].items():
        method = METHODS[name].method
        assert ("native" in one["unions"]) == hasattr(method, "union")
        assert ("de-morgan" in one["unions"]) == (hasattr(method, "complement") and hasattr(method, "intersect"))
        assert "dnf" in one["unions"]


@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_an_entity_and_presets(told: Any, name: str) -> None:
    one = told["trained"][name]
    assert one["presets"] == list(PRESETS[name])
    model = METHODS[name].method(ENTITIES, 4, PRESETS[name]["default"].model)
    sizes = [parameter.shape for parameter in model.parameters()]
    assert one["parameters_per_entity"] == sum(size[1:].numel() for size in sizes if size[:1] == (ENTITIES,))


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.complement])
def test_a_complement_that_is_exact_can_be_taken_back(told: Any, name: str) -> None:
    """A learned one cannot."""
    torch.manual_seed(0)
    edges = random_graph(3, entities=30, relations=3, facts=200).at("train")
    model: Any = make(name, edges, PRESETS[name]["small"].model).eval()
    with torch.no_grad():
        state = model.project(model.anchor(torch.arange(8)), torch.arange(8) % edges.relations, hop=0)
        once, twice = (model.score(one).clamp(min=-50) for one in (state, model.complement(model.complement(state))))
    same = torch.allclose(once, twice, rtol=1e-3, atol=1e-3)
    assert same == (told["trained"][name]["complement"] != "learned")


def test_people_see_a_table() -> None:
    lines = q2p("methods").stdout.splitlines()
    rows = {cells[1].strip(): cells for line in lines if len(cells := line.split("│")) > 5}
    assert {*METHODS, *JOINED, *UNTRAINED} == rows.keys() - {""}
    assert rows["gqe"][4].split() == [".", "&"]
    assert rows["betae"][5].split() == ["dnf", "de-morgan"]
    assert rows["emql"][6].strip() == "–"
    assert rows["links"][7].strip() == "2,000"


def test_a_call_that_is_wrong() -> None:
    assert "nothing" in q2p("methods", "nothing", code=2).stderr
