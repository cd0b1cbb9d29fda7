"""How far apart particles are and what each finds: against plain Python, and where the answer is known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations
from statistics import mean
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from query2particles.engine.exact import Batch, Exact
from query2particles.engine.sets import Sets
from query2particles.errors import TrainingError, UsageError
from query2particles.methods.q2p import Q2P, Settings
from query2particles.methods.registry import make
from query2particles.presets import preset
from query2particles.query.algebra import EPFO, NEGATION, SHAPES, Anchor, Project, Query, Union, query_ids
from query2particles.ranking import Ranking
from query2particles.spread import Particles, Spread, spread
from query2particles.workload.labels import Labels, label
from worlds import random_graph

GRAPH = random_graph(3, entities=25, relations=3, facts=400)
EDGES = GRAPH.at("test")


def random_batch(count: int, shapes: Sequence[str] = tuple(SHAPES)) -> Batch:
    """Queries of random ids: relations and entities are both below the number of directed relations."""
    generator = np.random.default_rng(0)
    return {
        SHAPES[name]: generator.integers(EDGES.relations, size=(count, len(list(query_ids(SHAPES[name])))))
        for name in shapes
    }


def small_q2p(particles: int = 3) -> Q2P:
    torch.manual_seed(0)
    return Q2P(
        EDGES.entities, EDGES.relations, Settings(dimension=8, particles=particles, entity_scale=1.0, offset_scale=1.0)
    )


class Fixed:
    """A method whose query of an entity has the particles that were written down for it."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Union))

    def __init__(self, particles: Sequence[Sequence[Sequence[float]]], table: Sequence[Sequence[float]]) -> None:
        self.particles, self.table = torch.tensor(particles), torch.tensor(table)

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Any]) -> Any:
        return operator, tuple(below)

    def anchor(self, entities: Any) -> torch.Tensor:
        return self.particles[entities]

    def project(self, state: torch.Tensor, relations: Any, *, hop: int = 0) -> torch.Tensor:
        return state

    def union(self, branches: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(branches), 1)

    def stack(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(states))

    def split(self, state: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        return torch.split(state, list(sizes))

    def score(self, state: torch.Tensor, entities: Any = None) -> torch.Tensor:
        raise AssertionError("no scores of all entities are needed")

    def factors(
        self, state: torch.Tensor, entities: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        assert entities is None
        return state, self.table, torch.zeros(len(self.table))


def fixed_spread(
    particles: Sequence[Sequence[Sequence[float]]], table: Sequence[Sequence[float]], hard: Sequence[Sequence[int]]
) -> Particles:
    """One 1p query from each entity that has particles, with these hard answers."""
    nothing = Sets.empty(len(table), len(hard))
    ids = np.stack([np.arange(len(hard)), np.zeros(len(hard), dtype=np.int64)], axis=1)
    shape = SHAPES["1p"]
    labels = {shape: Labels(nothing, Sets.of(hard, len(table)), nothing)}
    return spread(Fixed(particles, table), {shape: ids}, labels).shapes["1p"]


def by_definition(sets: Sequence[Any], table: Any, hard: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The figures of one shape, one pair of particles and one answer at a time; `sets` are the queries' particles."""

    def dot(one: Sequence[float], other: Sequence[float]) -> float:
        return sum(x * y for x, y in zip(one, other, strict=True))

    cosines, margins, effective, at_most, by_rank, by_number = [], [], [], [], [], []
    for particles, answers in zip(sets, hard, strict=True):
        if not len(answers):
            continue
        cosines.append(mean(dot(p, q) / math.sqrt(dot(p, p) * dot(q, q)) for p, q in combinations(particles, 2)))
        found, own_margins = [0] * len(particles), []
        for answer in answers:
            products = [dot(particle, table[answer]) for particle in particles]
            found[products.index(max(products))] += 1
            best, second, *_ = sorted(products, reverse=True)
            own_margins.append(best - second)
        shares = [count / len(answers) for count in found]
        margins.append(mean(own_margins))
        by_number.append(shares)
        if len(answers) > 1:
            effective.append(math.exp(-sum(share * math.log(share) for share in shares if share)))
            at_most.append(min(len(particles), len(answers)))
            by_rank.append(sorted(shares, reverse=True))
    return {
        "queries": len(cosines),
        "several": len(effective),
        "cosine": mean(cosines),
        "margin": mean(margins),
        "effective": mean(effective),
        "at_most": mean(at_most),
        "by_rank": [mean(column) for column in zip(*by_rank, strict=True)],
        "by_number": [mean(column) for column in zip(*by_number, strict=True)],
    }


def flat(found: Particles) -> dict[str, Any]:
    shares = {"by_rank": list(found.by_rank), "by_number": list(found.by_number)}
    return {"queries": found.queries, "several": found.several, **found.means, **shares}


def approximately(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: pytest.approx(value, abs=1e-5) for key, value in figures.items()}


@pytest.mark.parametrize("particles", [2, 3])
def test_figures_are_what_their_definitions_say(particles: int) -> None:
    """For one hop, an intersection, and a union in two ways; its sets are twice as large, branch beside branch."""
    batch = random_batch(60, ["1p", "2i", "2u"])
    labels, method = label(GRAPH, "test", batch), small_q2p(particles).train()
    native = spread(method, batch, labels)
    assert method.training
    lifted = spread(method, batch, labels, unions="dnf")
    assert flat(lifted.shapes["2u"]) == approximately(flat(native.shapes["2u"]))
    method.eval()
    last_operators: dict[str, Any] = {"1p": lambda hops: hops[0], "2i": method.intersect, "2u": method.union}
    for name, last_operator in last_operators.items():
        shape = SHAPES[name]
        ids = torch.tensor(batch[shape])
        with torch.no_grad():
            hops = [method.project(method.anchor(ids[:, at]), ids[:, at + 1]) for at in range(0, ids.shape[1], 2)]
            expected = by_definition(
                last_operator(hops).double().tolist(),
                method.entities.double().tolist(),
                [labels[shape].hard[row].tolist() for row in range(60)],
            )
        assert flat(native.shapes[name]) == approximately(expected)
        assert native.shapes[name].particles == particles * (2 if name == "2u" else 1)
        assert native.shapes[name].queries + native.shapes[name].without_hard_answer == 60
        assert 0 < native.shapes[name].several < native.shapes[name].queries


def test_how_many_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither queries nor answers."""
    batch, method, heard = random_batch(40), small_q2p(), list[int]()
    labels = label(GRAPH, "test", batch)
    together = spread(method, batch, labels, progress=heard.append)
    assert sum(heard) == 40 * len(SHAPES)
    assert together.shapes.keys() == SHAPES.keys()
    monkeypatch.setattr("query2particles.spread._NUMBERS", 1)
    apart = spread(method, batch, labels, chunk=1)
    for name, found in together.shapes.items():
        assert flat(apart.shapes[name]) == approximately(flat(found))


def test_a_copy_of_a_particle_finds_nothing() -> None:
    found = fixed_spread([[[0.3, 0.7], [0.3, 0.7]]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2]])
    assert found.means == pytest.approx({"cosine": 1, "margin": 0, "effective": 1, "at_most": 2})
    assert (found.by_rank, found.by_number) == ([1, 0], [1, 0])


def test_what_all_but_ties_goes_to_the_first() -> None:
    """As where answers name their particles: what rounding would decide is decided by place."""
    found = fixed_spread([[[1.0, 1.0], [1.00001, 1.00001]]], [[1.0, 0.0], [0.0, 1.0]], [[0, 1]])
    assert found.by_number == [1, 0]
    apart = fixed_spread([[[1.0, 1.0], [1.001, 1.001]]], [[1.0, 0.0], [0.0, 1.0]], [[0, 1]])
    assert apart.by_number == [0, 1]


def test_particles_that_own_half_of_the_answers_each_are_two() -> None:
    """The larger part has the first place in one query and the second in the other: by rank, that is no equality."""
    table = [[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 2.0]]
    orthogonal = [[5.0, 0.0], [0.0, 1.0]]
    found = fixed_spread([orthogonal], [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]], [[0, 1, 2, 3]])
    assert found.means == pytest.approx({"cosine": 0, "margin": (5 + 10 + 1 + 2) / 4, "effective": 2, "at_most": 2})
    assert found.by_rank == [0.5, 0.5]
    uneven = fixed_spread([[[1.0, 0.0], [0.0, 1.0]]] * 2, table, [[0, 1, 2], [1, 2, 3]])
    assert uneven.by_rank == pytest.approx([2 / 3, 1 / 3])
    assert uneven.by_number == pytest.approx([1 / 2, 1 / 2])
    entropy = -(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)
    assert uneven.means["effective"] == pytest.approx(math.exp(entropy))


def test_opposite_particles_and_one_that_is_nothing() -> None:
    """A vector of length zero has no direction, so it is like no other."""
    assert fixed_spread([[[1.0, 0.0], [-2.0, 0.0]]], [[1.0, 0.0]], [[0]]).means["cosine"] == pytest.approx(-1)
    assert fixed_spread([[[0.0, 0.0], [0.0, 0.0]]], [[1.0, 0.0]], [[0]]).means["cosine"] == 0


def test_one_particle_has_no_pairs_and_one_answer_no_shares() -> None:
    single = fixed_spread([[[1.0, 0.0]]], [[1.0, 0.0], [0.0, 1.0]], [[0, 1]])
    assert single.means == {"effective": 1, "at_most": 1}
    one_answer = fixed_spread([[[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0], [0.0, 1.0]], [[1]])
    assert one_answer.means == {"cosine": 0, "margin": 1}
    assert (one_answer.several, one_answer.by_rank, one_answer.by_number) == (0, (), [0, 1])
    nothing = fixed_spread([[[1.0, 0.0]]], [[1.0, 0.0]], [[]])
    assert nothing == Particles(0, 1, 0, 0, {}, (), ())
    assert nothing.as_json() == {"queries": 0, "without_hard_answer": 1}


def test_who_finds_an_answer_is_who_answers_say_found_it() -> None:
    """`Ranking.particles_of` treats ties the same way."""
    generator = torch.Generator().manual_seed(0)
    particles = torch.randn(6, 4, 5, generator=generator)
    particles[:, 2] = particles[:, 1] * (1 + 1e-7)
    table = torch.randn(30, 5, generator=generator)
    empty: Any = None
    ranking = Ranking(empty, empty, empty, empty, empty, empty, (particles, table, torch.zeros(30)))
    answers = np.tile(np.arange(30), (6, 1))
    finders = ranking.particles_of(answers)
    assert finders is not None
    counts = np.stack([np.bincount(row, minlength=4) for row in finders])
    found = fixed_spread(particles.tolist(), table.tolist(), answers.tolist())
    assert found.by_number == pytest.approx((counts / 30).mean(0).tolist())
    assert found.by_number[2] == 0


def some_particles(by_rank: Sequence[float], **means: float) -> Particles:
    return Particles(10, 0, 5 if by_rank else 0, len(by_rank), means, by_rank, by_rank)


def test_averages_are_over_the_shapes_that_have_a_figure() -> None:
    found = Spread(
        {
            "1p": some_particles([0.5, 0.5], cosine=0.1, effective=2.0),
            "2u": some_particles([0.4, 0.3, 0.2, 0.1], cosine=0.3, effective=3.0),
            "2in": some_particles([], cosine=0.8),
            "3in": Particles(0, 7, 0, 0, {}, (), ()),
            "n(p(e))": some_particles([1.0], cosine=1.0, effective=1.0),
        }
    )
    assert found.average("epfo") == pytest.approx({"cosine": 0.2, "effective": 2.5})
    assert found.average_by_rank("epfo") == pytest.approx([0.45, 0.4, 0.1, 0.05])
    assert found.average("negation") == {"cosine": 0.8}
    assert found.average("all") == pytest.approx({"cosine": 0.4, "effective": 2.5})
    written = found.as_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert written["averages"]["negation"] == {"cosine": 0.8, "shapes": ["2in"]}
    assert written["averages"]["epfo"]["by_rank"] == [45, 40, 10, 5]
    assert written["shapes"]["2u"]["by_number"] == [40, 30, 20, 10]
    assert written["shapes"]["3in"] == {"queries": 0, "without_hard_answer": 7}
    whole = Spread({name: some_particles([1.0, 0.0], cosine=0.5) for name in EPFO + NEGATION}).as_json()
    assert all("shapes" not in average for average in whole["averages"].values())


def test_a_method_without_particles_is_refused() -> None:
    batch = random_batch(3, ["1p"])
    with pytest.raises(UsageError, match=r"no particles to measure.* q2p"):
        spread(Exact(EDGES), batch, label(GRAPH, "test", batch))


@pytest.mark.parametrize("name", ["q2p", "betae", "emql", "gqe", "links"])
def test_methods_that_the_refusal_names_have_particles(name: str) -> None:
    torch.manual_seed(0)
    method: Any = make(name, GRAPH.at("train"), preset(name, "small").model)
    batch = random_batch(10, ["1p"])
    found = spread(method, batch, label(GRAPH, "test", batch)).shapes["1p"]
    assert (found.particles > 1) == ("cosine" in found.means) == (name == "q2p")


def test_shapes_that_a_method_lacks_are_left_out() -> None:
    batch, heard = random_batch(3, ["2i", "1p"]), list[int]()
    labels = label(GRAPH, "test", batch)
    method = Fixed(torch.ones(EDGES.entities, 2, 2).tolist(), torch.ones(EDGES.entities, 2).tolist())
    assert list(spread(method, batch, labels, progress=heard.append).shapes) == ["1p"]
    assert sum(heard) == 6


def test_particles_that_are_no_numbers_are_refused() -> None:
    batch, method = random_batch(5, ["1p"]), small_q2p()
    with torch.no_grad():
        method.relations.fill_(torch.nan)
    with pytest.raises(TrainingError, match="NaN"):
        spread(method, batch, label(GRAPH, "test", batch))
