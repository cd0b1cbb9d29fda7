"""Hard sets: only answers that lack a given number of edges are ranked; against all proofs, one by one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from query2particles.engine.exact import Exact
from query2particles.engine.sets import Sets
from query2particles.errors import SamplingError, UsageError
from query2particles.evaluate import evaluate
from query2particles.graph import edges as edges_module
from query2particles.graph.graph import Graph, Split
from query2particles.graph.vocabulary import Vocabulary
from query2particles.query.algebra import (
    EXTRA_SHAPES,
    SHAPES,
    Query,
    anchor_positions,
    ground,
    has_complement,
    nickname,
    query_ids,
    shape_named,
)
from query2particles.workload.benchmark import check_set, read_set, write_set
from query2particles.workload.hardness import most_missing
from query2particles.workload.sample import Lacking, Sample, draw_answers, draw_queries, joined_samples, sample_shape
from query2particles.workload.selection import stored_queries
from worlds import oracle, random_graph, successors

SPARSE = random_graph(5, entities=40, relations=3, facts=450)
DENSE = random_graph(5, entities=40, relations=3, facts=900)
"""For queries with complements: few answers that they have in common would all be excluded."""
EVERYTHING = frozenset(range(40))
ODD = ["i(p(e),u(p(p(e)),p(e)))", "p(p(i(p(e),p(e))))", "u(p(p(e)),p(i(p(e),n(p(e)))))"]
NAMED = SHAPES | EXTRA_SHAPES
CASES = [(name, missing) for name in [*NAMED, *ODD] for missing in range(1, most_missing(shape_named(name)) + 1)]
CAP = 40


def graph_for(shape: Query) -> Graph:
    return DENSE if has_complement(shape) else SPARSE


def draw(name: str, missing: int, **changes: Any) -> Sample:
    shape = shape_named(name)
    graph = changes.pop("graph", graph_for(shape))
    options: dict[str, Any] = {"split": "test", "cap": CAP, "seed": 1, "workers": 1, "allow_fewer": True} | changes
    return sample_shape(graph, shape, options.pop("count", 12), missing=missing, **options)


def expected_labels(graph: Graph, query: Query, missing: int, split: Split) -> tuple[set[int], set[int]]:
    """The answers that are ranked and those that are filtered out."""
    small = successors(graph, "valid" if split == "test" else "train")
    answers, before = (oracle(query, known, EVERYTHING) for known in (successors(graph, split), small))
    lacking = partial(worlds.lacking, stored=successors(graph, "train"), whole=successors(graph, split))
    hard = {v for v in answers - before if lacking(query, v) == missing}
    return hard, answers - hard


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize(("name", "missing"), CASES)
def test_all_answers_that_lack_so_many_edges_are_hard_and_no_others(name: str, missing: int, split: Split) -> None:
    graph = graph_for(shape_named(name))
    drawn = draw(name, missing, split=split)
    assert len(drawn.ids) >= 8
    assert len({tuple(ids) for ids in drawn.ids.tolist()}) == len(drawn.ids)
    for row, ids in enumerate(drawn.ids.tolist()):
        query = ground(drawn.shape, ids)
        hard, others = expected_labels(graph, query, missing, split)
        assert hard
        assert set(drawn.labels.hard[row].tolist()) == hard
        assert set(drawn.labels.easy[row].tolist()) == others
        before = oracle(query, successors(graph, "valid" if split == "test" else "train"), EVERYTHING)
        assert 0 < len((hard | others) - before) <= CAP
        if has_complement(drawn.shape):
            assert 0 < len(before - hard - others) <= CAP


@pytest.mark.parametrize(
    ("name", "most"),
    [("1p", 1), ("4p", 4), ("4i", 4), ("pi", 3), ("2u", 1), ("up", 2), ("3in", 2), ("inp", 2), ("pni", 1), (ODD[0], 3)],
)
def test_how_many_edges_can_be_missing(name: str, most: int) -> None:
    assert most_missing(shape_named(name)) == most
    with pytest.raises(SamplingError, match=f"lacks 1 to {most} links, never {most + 1}"):
        draw(name, most + 1)


@pytest.mark.parametrize("name", ["3p", "pi", "up", "2in"])
def test_the_seed_decides_and_the_number_of_cores_does_not(name: str) -> None:
    def ids(**options: Any) -> list[list[int]]:
        found: list[list[int]] = draw(name, 1, count=10, **options).ids.tolist()
        return found

    assert ids() == ids(workers=3)
    assert ids() != ids(seed=2)


def graph_of_two_relations() -> Graph:
    """All edges of relation 0 are stored, all of relation 1 are missing from training."""
    heads, tails = np.random.default_rng(0).integers(30, size=(2, 900))
    parts: dict[Split, slice] = {"train": slice(0, 300), "valid": slice(300, 600), "test": slice(600, 900)}
    return Graph.of(
        Vocabulary.of([f"e{i}" for i in range(30)]),
        Vocabulary.of(["stored", "missing"]),
        {
            split: (heads[part], np.full(300, split != "train", dtype=np.int64), tails[part])
            for split, part in parts.items()
        },
        {"name": "two relations"},
    )


@pytest.mark.parametrize(
    ("name", "missing", "patterns"),
    [
        ("3p", 1, ["100", "010", "001"]),
        ("3p", 2, ["110", "101", "011"]),
        ("3p", 3, ["111"]),
        ("pi", 1, ["100", "010", "001"]),
        ("ip", 2, ["110", "101", "011"]),
        ("4i", 2, ["1100", "1010", "1001", "0110", "0101", "0011"]),
        ("2u", 1, ["11"]),
        ("up", 1, ["110", "001"]),  # every branch of the union is a proof
        ("2in", 1, ["10", "11"]),  # what a complement excludes may be stored or missing
        (ODD[0], 2, ["1011", "0111", "1110"]),  # of a longer branch of a union, any hop
    ],
)
def test_any_hops_of_a_proof_are_missing_as_often(name: str, missing: int, patterns: list[str]) -> None:
    graph, shape = graph_of_two_relations(), shape_named(name)
    relations = [position for position in query_ids(shape) if position not in anchor_positions(shape)]
    lacking = Lacking.of(missing, graph.at("train"), graph.at("test"))
    answers = draw_answers(graph.at("train"))
    ids, _ = draw_queries(shape, 6000, graph.at("test"), np.random.default_rng(0), answers, lacking)
    found = Counter("".join(map(str, row)) for row in (ids[:, relations] // 2).tolist())
    assert found.keys() == set(patterns)
    assert min(found.values()) > 0.8 * len(ids) / len(patterns)


@pytest.mark.parametrize("name", [*NAMED, *ODD])
def test_few_draws_are_thrown_away(name: str) -> None:
    """Even where every hop is to be missing, which hardly any query of the benchmarks has."""
    drawn = draw(name, most_missing(shape_named(name)), count=10)
    assert len(drawn.ids) == 10
    assert drawn.attempts <= 10_000


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40), st.booleans())
def test_edges_without_those_of_a_smaller_level(seed: int, facts: int, large: bool) -> None:
    graph = random_graph(seed, entities=8, relations=2, facts=facts + 4)

    def listed(edges: Any) -> set[tuple[int, int, int]]:
        heads, relations = edges.heads_and_relations()
        return set(zip(heads.tolist(), relations.tolist(), edges.tails.tolist(), strict=True))

    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(edges_module, "_BLOCK", 3)
        found = graph.at("test").without(graph.at("train"))
    assert listed(found) == listed(graph.at("test")) - listed(graph.at("train"))
    assert len(found) == len(listed(found))
    assert (np.diff(found.keys) > 0).all()


def hard_set(folder: Path, pairs: Iterable[tuple[str, int]]) -> list[Sample]:
    samples = [draw(name, missing, graph=DENSE) for name, missing in pairs]
    batch, labels, missing = joined_samples(samples)
    write_set(folder, DENSE, "test", batch, labels, missing=missing)
    return samples


def test_a_set_goes_through_its_folder(tmp_path: Path) -> None:
    samples = hard_set(tmp_path / "set", [("3p", 3), ("3p", 1), ("4i", 4), ("inp", 2), ("1p", 1)])
    names = {"test-3p-missing1", "test-3p-missing3", "test-4i-missing4", "test-inp-missing2", "test-1p-missing1"}
    counts = json.loads((tmp_path / "set" / "counts.json").read_text())
    assert counts.keys() == names
    assert counts["test-3p-missing3"]["hard_total"] == samples[0].labels.hard.sizes.sum()
    checks = list(check_set(DENSE, tmp_path / "set"))
    assert {check.name for check in checks} == names
    assert all(check.checksum and check.problem is None for check in checks)
    assert len(read_set(tmp_path / "set", "test", ["3p"])[SHAPES["3p"]]) == 24
    batch, labels = stored_queries(DENSE, tmp_path / "set", "test")
    assert [nickname(shape) for shape in batch] == ["1p", "3p", "4i", "inp"]
    for name, wanted in (("3p", [1] * 12 + [3] * 12), ("4i", [4] * 12), ("inp", [2] * 12)):
        shape = NAMED[name]
        for row, (ids, missing) in enumerate(zip(batch[shape].tolist(), wanted, strict=True)):
            hard, others = expected_labels(DENSE, ground(shape, ids), missing, "test")
            assert set(labels[shape].hard[row].tolist()) == hard
            assert set(labels[shape].easy[row].tolist()) == others
    # Of fewer queries of a shape, every number still has its share.
    some, own = stored_queries(DENSE, tmp_path / "set", "test", shapes=[SHAPES["3p"]], most=4)
    assert some[SHAPES["3p"]].tolist() == batch[SHAPES["3p"]][[0, 7, 15, 23]].tolist()
    assert own[SHAPES["3p"]].hard[3].tolist() == labels[SHAPES["3p"]].hard[23].tolist()
    with pytest.raises(UsageError, match="has test-3p-missing1 already"):
        hard_set(tmp_path / "set", [("3p", 1), ("3p", 2)])
    hard_set(tmp_path / "set", [("3p", 2)])
    (tmp_path / "set" / "test-3p-missing2.jsonl.xz").rename(tmp_path / "set" / "test-3p.jsonl.xz")
    problems = {check.name: check.problem for check in check_set(DENSE, tmp_path / "set") if check.problem}
    assert problems.keys() == {"test-3p", "test-3p-missing2"}


@dataclass(frozen=True)
class Guess(Exact):
    """Exact sets whose scores differ for all entities, so that ranks are known."""

    def score(self, state: Sets, entities: Any = None) -> npt.NDArray[np.float32]:
        return super().score(state, entities) + np.sin(np.arange(40, dtype=np.float32))


@pytest.mark.parametrize(("name", "missing"), [("3p", 3), ("4p", 2), ("4i", 4), ("up", 2), ("3in", 2)])
def test_only_these_answers_are_ranked_and_all_others_filtered(name: str, missing: int, tmp_path: Path) -> None:
    hard_set(tmp_path / "set", [(name, missing)])
    batch, labels = stored_queries(DENSE, tmp_path / "set", "test")
    figures = evaluate(Guess(DENSE.at("train")), batch, labels).shapes[name]
    by_query = []
    for ids in batch[NAMED[name]].tolist():
        query = ground(NAMED[name], ids)
        hard, others = expected_labels(DENSE, query, missing, "test")
        found = oracle(query, successors(DENSE, "train"), EVERYTHING)
        scores = {v: (v in found) + np.sin(np.float32(v)) for v in EVERYTHING}
        rivals = [scores[v] for v in EVERYTHING - hard - others]
        by_query.append(mean(1 / (1 + sum(rival > scores[v] for rival in rivals)) for v in hard))
    assert figures.queries == len(by_query)
    assert figures.means["mrr"] == pytest.approx(mean(by_query))


def test_where_there_is_no_such_query_it_is_said() -> None:
    with pytest.raises(SamplingError, match="no link of a training query is missing"):
        draw("2p", 1, split="train")
    without_splits = Graph(DENSE.entities, DENSE.relations, dict.fromkeys(DENSE.levels, DENSE.at("train")))
    with pytest.raises(SamplingError, match="has no test facts"):
        sample_shape(without_splits, SHAPES["2p"], 5, split="test", cap=10, missing=2)
    few = random_graph(2, entities=6, relations=1, facts=9)
    with pytest.raises(SamplingError, match=r"only \d+ of 500 4i queries with 4 missing links could be grounded"):
        sample_shape(few, EXTRA_SHAPES["4i"], 500, split="test", cap=10, missing=4)
