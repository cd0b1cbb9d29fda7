"""Figures against their definitions, query by query in plain Python; unions in three ways; the result file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from query2particles.engine.exact import Batch, Exact, exact_answers
from query2particles.engine.ranks import TiePolicy
from query2particles.engine.sets import Sets
from query2particles.errors import Query2ParticlesError, UsageError
from query2particles.evaluate import AsHard, Evaluation, Figures, compare, evaluate, result
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P, Settings
from query2particles.query.algebra import EPFO, NEGATION, SHAPES, Query, Union, abstract, query_ids, shape_named
from query2particles.query.rewrite import Unions
from query2particles.workload.benchmark import read_set
from query2particles.workload.labels import Labels, label
from worlds import queries, random_graph

SHARE = {TiePolicy.OPTIMISTIC: 0.0, TiePolicy.REALISTIC: 0.5, TiePolicy.PESSIMISTIC: 1.0}
GRAPH = random_graph(3, entities=25, relations=3, facts=400)
EDGES = GRAPH.at("test")


def random_batch(
    count: int, seed: int = 0, shapes: Sequence[str] = tuple(SHAPES)
) -> dict[Query, npt.NDArray[np.int64]]:
    """Queries of random ids: relations and entities are both below the number of directed relations."""
    generator = np.random.default_rng(seed)
    return {
        SHAPES[name]: generator.integers(EDGES.relations, size=(count, len(list(query_ids(SHAPES[name])))))
        for name in shapes
    }


@dataclass(frozen=True)
class Weighing(Exact):
    """Exact sets whose scores are small whole numbers, so that many tie."""

    def score(self, state: Sets, entities: Any = None) -> npt.NDArray[np.float32]:
        members = super().score(state, entities)
        return members + (np.arange(self.edges.entities) % 3).astype(np.float32)


@dataclass(frozen=True)
class Constant(Exact):
    def score(self, state: Sets, entities: Any = None) -> npt.NDArray[np.float32]:
        return 0 * super().score(state, entities)


@dataclass(frozen=True)
class NoUnion(Exact):
    operators: ClassVar[frozenset[type[Query]]] = Exact.operators - {Union}


def small_q2p() -> Q2P:
    torch.manual_seed(0)
    return Q2P(EDGES.entities, EDGES.relations, Settings(dimension=8, entity_scale=1.0))


def figures_by_definition(scores: Sequence[Sequence[float]], labels: Labels) -> dict[str, float]:
    """Every figure of one shape, one query, answer and candidate at a time."""
    by_query: list[dict[str, float]] = []
    for row, values in enumerate(scores):
        hard, easy = set(labels.hard[row].tolist()), set(labels.easy[row].tolist())
        if not hard:
            continue
        ranks: dict[TiePolicy, list[float]] = {policy: [] for policy in TiePolicy}
        for answer in sorted(hard):
            others = [value for entity, value in enumerate(values) if entity not in hard | easy]
            greater, equal = (sum(v > values[answer] for v in others), sum(v == values[answer] for v in others))
            for policy, share in SHARE.items():
                ranks[policy].append(1 + greater + share * equal)
        realistic = ranks[TiePolicy.REALISTIC]
        by_query.append(
            {
                "answers": len(hard | easy),
                "mrr": mean(1 / rank for rank in realistic),
                "mrr_optimistic": mean(1 / rank for rank in ranks[TiePolicy.OPTIMISTIC]),
                "mrr_pessimistic": mean(1 / rank for rank in ranks[TiePolicy.PESSIMISTIC]),
                **{f"hits@{k}": mean(rank <= k for rank in realistic) for k in (1, 3, 10)},
                "best_hits@3": min(realistic) <= 3,
            }
        )
    diverse = sorted(by_query, key=lambda query: -query["answers"])[: max(1, len(by_query) // 10)]
    keys = [key for key in by_query[0] if key != "answers"]
    return {
        **{key: mean(query[key] for query in by_query) for key in keys},
        "queries": len(by_query),
        "divr_queries": len(diverse),
        "divr_mrr": mean(query["mrr"] for query in diverse),
    }


def flat(found: Figures) -> dict[str, float]:
    return {
        **found.means,
        "queries": found.queries,
        "divr_queries": found.divr_queries,
        "divr_mrr": found.divr_mrr,
    }


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_figures_are_what_their_definitions_say(chunk: int | None) -> None:
    batch = random_batch(60)
    labels = label(GRAPH, "test", batch)
    method = Weighing(GRAPH.at("valid"))
    found = evaluate(method, batch, labels, chunk=chunk)
    assert list(found.shapes) == list(SHAPES)
    for name, shape in SHAPES.items():
        members = exact_answers(GRAPH.at("valid"), {shape: batch[shape]})[shape]
        scores = members.listed().matrix().toarray() + np.arange(EDGES.entities) % 3
        assert flat(found.shapes[name]) == pytest.approx(figures_by_definition(scores.tolist(), labels[shape]))
        without = int((labels[shape].hard.sizes == 0).sum())
        assert found.shapes[name].without_hard_answer == without
        assert found.shapes[name].queries + without == 60


def test_figures_by_hardness_are_means_of_the_answers_that_are_equally_hard() -> None:
    batch = random_batch(60)
    labels = label(GRAPH, "test", batch)
    generator = np.random.default_rng(1)
    hardness = {shape: generator.integers(1, 4, size=int(labels[shape].hard.sizes.sum())) for shape in batch}
    found = evaluate(Weighing(GRAPH.at("valid")), batch, labels, hardness=hardness)
    for name, shape in SHAPES.items():
        members = exact_answers(GRAPH.at("valid"), {shape: batch[shape]})[shape]
        scores = members.listed().matrix().toarray() + np.arange(EDGES.entities) % 3
        by_query: dict[int, dict[int, list[float]]] = {}
        left = iter(hardness[shape].tolist())
        for row, values in enumerate(scores.tolist()):
            hard, easy = labels[shape].hard[row].tolist(), labels[shape].easy[row].tolist()
            others = [value for entity, value in enumerate(values) if entity not in {*hard, *easy}]
            for answer in hard:
                greater, equal = sum(v > values[answer] for v in others), sum(v == values[answer] for v in others)
                by_query.setdefault(next(left), {}).setdefault(row, []).append(1 / (1 + greater + equal / 2))
        expected = {
            hard: AsHard(len(own), sum(map(len, own.values())), mean(map(mean, own.values())))
            for hard, own in by_query.items()
        }
        own = found.shapes[name].by_hardness
        assert own.keys() == expected.keys()
        for hard, figures in expected.items():
            assert own[hard] == pytest.approx(figures)
    means = [found.shapes[name].by_hardness[2].mrr for name in NEGATION]
    assert found.average_by_hardness("negation")[2] == pytest.approx(mean(means))
    document = written_of([found, found])
    assert document["shapes"]["2in"]["hardness"]["2"]["mrr"] == round(100 * found.shapes["2in"].by_hardness[2].mrr, 2)
    assert document["averages"]["negation"]["hardness"]["2"] == round(100 * mean(means), 2)
    plain = evaluate(Weighing(GRAPH.at("valid")), batch, labels)
    assert "hardness" not in json.dumps(written_of([plain]))


@given(
    st.lists(queries(EDGES.entities, 3, max_leaves=4), min_size=1, max_size=4), st.sampled_from(["dnf", "de-morgan"])
)
def test_exact_answers_are_perfect_however_unions_are_answered(asked: list[Query], unions: Unions) -> None:
    """Where the method knows the larger level, hard answers score 1 and candidates 0."""
    batch: dict[Query, Any] = {}
    for query in asked:
        shape, ids = abstract(query)
        batch[shape] = np.array([*batch.get(shape, []), ids])
    labels = label(GRAPH, "test", batch)
    native = evaluate(Exact(EDGES), batch, labels)
    assert evaluate(Exact(EDGES), batch, labels, unions=unions) == native
    for found in native.shapes.values():
        assert all(value == 1 for value in found.means.values())


def test_a_constant_scorer_does_not_look_good() -> None:
    batch = random_batch(40)
    labels = label(GRAPH, "test", batch)
    found = evaluate(Constant(EDGES), batch, labels)
    for name, shape in SHAPES.items():
        means = found.shapes[name].means
        ranked = labels[shape].hard.sizes > 0
        candidates = EDGES.entities - (labels[shape].hard.sizes + labels[shape].easy.sizes)[ranked]
        assert means["mrr_optimistic"] == 1
        assert means["mrr"] == pytest.approx(np.mean(1 / (1 + candidates / 2)))
        assert means["mrr_pessimistic"] == pytest.approx(np.mean(1 / (1 + candidates)))


def test_batched_is_one_at_a_time_for_a_trained_method() -> None:
    """Dropout is off, and a query's figures do not depend on its neighbours."""
    batch, method = random_batch(30), small_q2p().train()
    labels = label(GRAPH, "test", batch)
    together, apart = (evaluate(method, batch, labels, chunk=chunk) for chunk in (None, 1))
    assert method.training
    assert [flat(found) for found in together.shapes.values()] == [
        pytest.approx(flat(found)) for found in apart.shapes.values()
    ]


def test_lifted_unions_score_the_best_disjunct() -> None:
    """A disjunct is executed by itself, on the ids that are its own: the maximum over the three is the definition."""
    name = "u(i(p(e),p(e)),p(e))"
    shape, method = shape_named(name), small_q2p().eval()
    generator = np.random.default_rng(1)
    ids = generator.integers(6, size=(20, 6))
    labels = label(GRAPH, "test", {shape: ids})
    with torch.no_grad():
        e = [method.project(method.anchor(torch.tensor(ids[:, at])), torch.tensor(ids[:, at + 1])) for at in (0, 2, 4)]
        scores = torch.maximum(method.score(method.intersect(e[:2])), method.score(e[2]))
    found = evaluate(method, {shape: ids}, labels, unions="dnf").shapes[name]
    assert flat(found) == pytest.approx(figures_by_definition(scores.tolist(), labels[shape]))


@dataclass(frozen=True)
class Disjoining(NoUnion):
    """A method with its own way of joining disjuncts: no entity is any better than another."""

    def disjoin(self, scores: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(scores)).sum(0) * 0


def test_a_method_may_join_disjuncts_itself() -> None:
    batch = random_batch(20, shapes=["2u", "2i"])
    labels = label(GRAPH, "test", batch)
    found = evaluate(Disjoining(EDGES), batch, labels, unions="dnf")
    constant = evaluate(Constant(EDGES), batch, labels)
    assert found.shapes["2u"] == constant.shapes["2u"]
    assert found.shapes["2i"].means["mrr"] == 1


def test_shapes_that_a_method_lacks_are_left_out() -> None:
    """Of averages, too; unions are lacking only where they are to be answered natively."""
    batch = random_batch(20, shapes=["2u", "2i", "up"])
    labels = label(GRAPH, "test", batch)
    seen: list[int] = []
    native = evaluate(NoUnion(EDGES), batch, labels, progress=seen.append)
    assert sum(seen) == sum(map(len, batch.values()))  # a bar fills all the same
    assert list(native.shapes) == native.averaged("all") == ["2i"]
    assert native.average("epfo") == native.average("all")
    assert evaluate(NoUnion(EDGES), {SHAPES["up"]: batch[SHAPES["up"]]}, labels).percentages(2) == {}
    lifted = evaluate(NoUnion(EDGES), batch, labels, unions="dnf")
    assert lifted.shapes.keys() == {"2u", "2i", "up"}
    assert lifted.shapes["2u"].means["mrr"] == 1
    with pytest.raises(UsageError, match="de-morgan"):
        evaluate(Exact(EDGES), batch, labels, unions="other")  # type: ignore[arg-type]


def test_methods_are_compared_on_the_same_queries_with_the_same_unions() -> None:
    batch, seen = random_batch(20, shapes=["2u", "2i"]), list[int]()
    labels = label(GRAPH, "test", batch)
    methods = {"tied": Weighing(EDGES), "lacking": NoUnion(EDGES)}
    for unions in ("native", "dnf"):
        found = compare(methods, batch, labels, unions=unions, progress=seen.append)
        assert found == {name: evaluate(one, batch, labels, unions=unions) for name, one in methods.items()}
        assert ("2u" in found["lacking"].shapes) == (unions == "dnf")
    assert sum(seen) == 2 * 2 * 40


def test_scores_that_are_no_numbers_are_refused() -> None:
    batch, method = random_batch(5, shapes=["1p"]), small_q2p()
    labels = label(GRAPH, "test", batch)
    with torch.no_grad():
        method.relations.fill_(torch.nan)
    with pytest.raises(Query2ParticlesError, match="NaN"):
        evaluate(method, batch, labels)


def test_the_diverse_tenth_has_most_answers_and_ties_go_to_the_earlier() -> None:
    """Twenty queries, so two are diverse: 3, which has most answers, and 0, the first of many with as many."""
    shape, entities = SHAPES["1p"], EDGES.entities
    hard = Sets.of([[20 + row % 5] for row in range(20)], entities)
    easy = Sets.of([[0, 1] if row == 3 else [0] for row in range(20)], entities)
    labels = {shape: Labels(easy, hard, Sets.empty(entities, 20))}
    ids = np.stack([np.arange(20), np.zeros(20, dtype=np.int64)], axis=1)

    class First(Constant):
        """The hard answers of queries 3 and 0 are entities 23 and 20, which alone score high."""

        def score(self, state: Sets, entities: Any = None) -> npt.NDArray[np.float32]:
            scores = super().score(state, entities)
            scores[:, [20, 23]] = 1
            return scores

    found = evaluate(First(EDGES), {shape: ids}, labels).shapes["1p"]
    # One other entity ties with the answer; the means over all twenty are lower.
    assert (found.divr_queries, found.divr_mrr) == (2, 1 / 1.5)
    assert found.means["mrr"] < 1 / 1.5


def test_queries_without_hard_answers_are_left_out_and_counted() -> None:
    shape, heard = SHAPES["1p"], list[int]()
    nothing = Sets.empty(EDGES.entities, 3)
    hard = Sets.of([[], [4], []], EDGES.entities)
    ids = np.zeros((3, 2), dtype=np.int64)
    found = evaluate(Constant(EDGES), {shape: ids}, {shape: Labels(nothing, hard, nothing)}, progress=heard.append)
    assert (found.shapes["1p"].queries, found.shapes["1p"].without_hard_answer) == (1, 2)
    assert sum(heard) == 3
    empty = evaluate(Constant(EDGES), {shape: ids}, {shape: Labels(hard, nothing, nothing)})
    assert (empty.shapes["1p"].queries, empty.shapes["1p"].without_hard_answer) == (0, 3)
    assert empty.average("epfo") == {}
    written = written_of([empty])
    assert written["shapes"] == {"1p": {"queries": 0, "without_hard_answer": 3}}
    assert written["averages"] == {"epfo": {}, "negation": {}, "all": {}}


def an_evaluation(mrr: dict[str, float]) -> Evaluation:
    others = dict.fromkeys(("mrr_optimistic", "mrr_pessimistic", "hits@1", "hits@3", "hits@10", "best_hits@3"), 0.25)
    return Evaluation({name: Figures(10, 0, {"mrr": value, **others}, 1, value / 2) for name, value in mrr.items()})


def written_of(evaluations: Sequence[Evaluation], **changes: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": "nell-betae-q2p",
        "method": "q2p",
        "graph": "NELL",
        "queries": "betae/test",
        "seeds": range(len(evaluations)),
        "config": {"dimension": 8},
        "commit": "0" * 40,
        "machine": "a machine",
        "train_seconds": 12.3456,
        "gpu_memory_gib": 1.0,
    }
    written = result(evaluations, **{**said, **changes})
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    return written


def test_the_result_file_has_one_form() -> None:
    written = written_of([an_evaluation(dict.fromkeys(SHAPES, 1 / 3))])
    assert list(written) == [
        *("name", "method", "graph", "queries", "seeds", "config", "commit", "machine"),
        *("train_seconds", "gpu_memory_gib", "shapes", "averages", "per_seed"),
    ]
    assert written["train_seconds"] == 12.35
    assert list(written["shapes"]) == [*EPFO, *NEGATION]
    assert written["shapes"]["2in"] == {
        "queries": 10,
        "mrr": 33.33,
        "mrr_std": 0.0,
        "mrr_optimistic": 25.0,
        "mrr_pessimistic": 25.0,
        "hits@1": 25.0,
        "hits@3": 25.0,
        "hits@10": 25.0,
        "best_hits@3": 25.0,
        "divr": {"queries": 1, "mrr": 16.67},
    }
    average = {"mrr": 33.33, "hits@3": 25.0, "hits@10": 25.0}
    assert written["averages"] == {"epfo": average, "negation": average, "all": average}


def test_seeds_are_averaged_before_rounding() -> None:
    written = written_of([an_evaluation({"1p": 0.10004, "2p": 0.2}), an_evaluation({"1p": 0.10008, "2p": 0.4})])
    assert written["shapes"]["1p"]["mrr"] == 10.01
    assert written["shapes"]["2p"]["mrr"] == 30.0
    assert written["shapes"]["2p"]["mrr_std"] == 14.14  # 20 / √2, the spread of a sample
    assert written["averages"]["epfo"] == {"mrr": 20.0, "hits@3": 25.0, "hits@10": 25.0, "shapes": ["1p", "2p"]}
    assert [seed["seed"] for seed in written["per_seed"]] == [0, 1]
    assert written["per_seed"][1]["mrr"] == {"1p": 10.01, "2p": 40.0}
    assert written["per_seed"][1]["averages"]["all"]["mrr"] == 25.0


def test_shapes_outside_the_fourteen_are_reported_but_not_averaged() -> None:
    spelled = "n(i(n(p(e)),n(p(e))))"
    found = an_evaluation({"1p": 0.5, "2in": 0.1, spelled: 1.0})
    written = written_of([found])
    assert written["shapes"][spelled]["mrr"] == 100.0
    assert written["averages"]["all"] == {"mrr": 30.0, "hits@3": 25.0, "hits@10": 25.0, "shapes": ["1p", "2in"]}
    assert written["averages"]["negation"]["shapes"] == ["2in"]


def test_a_result_needs_one_evaluation_a_seed_on_the_same_queries() -> None:
    one = an_evaluation({"1p": 0.5})
    with pytest.raises(UsageError, match="seeds"):
        written_of([one], seeds=[0, 1])
    with pytest.raises(UsageError, match="seeds"):
        written_of([])
    with pytest.raises(UsageError, match="same"):
        written_of([one, an_evaluation({"1p": 0.5, "2p": 0.5})])


@pytest.mark.benchmark
def test_exact_is_perfect_on_a_published_set(data: Path) -> None:
    graph: Graph = open_graph(data / "NELL")
    batch: Batch = {
        shape: ids[:20] for shape, ids in read_set(data / "NELL" / "betae", "test", ("1p", "up", "pni")).items()
    }
    found = evaluate(Exact(graph.at("test")), batch, label(graph, "test", batch))
    assert {figures.queries for figures in found.shapes.values()} == {20}
    assert found.average("all")["mrr"] == 1
    known = evaluate(Exact(graph.at("valid")), batch, label(graph, "test", batch))
    assert known.average("all")["mrr"] < 0.01  # hard answers are what the smaller level does not know
