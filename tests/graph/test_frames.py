"""Graphs from what people have in memory: the same graph by every way in, and errors that say which row is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
import rdflib

from query2particles.errors import SourceError, UsageError
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import SPLITS, Graph

FACTS = [(f"e{i % 7}", f"r{i % 3}", f"e{(3 * i + 1) % 11}") for i in range(40)]
DISTINCT = sorted(set(FACTS))


def facts_of(graph: Graph) -> list[tuple[str, str, str]]:
    edges = graph.at("test")
    heads, relations = edges.heads_and_relations()
    return sorted(
        (graph.entities.name(int(h)), graph.relations.name(int(r) // 2), graph.entities.name(int(t)))
        for h, r, t in zip(heads, relations, edges.tails, strict=True)
        if r % 2 == 0
    )


def networkx_graph() -> Any:
    graph = nx.MultiDiGraph()
    for head, relation, tail in FACTS:
        graph.add_edge(head, tail, relation=relation)
    return graph


def rdf_graph() -> rdflib.Graph:
    graph = rdflib.Graph()
    names = rdflib.Namespace("http://example.org/")
    graph.bind("ex", names)
    for head, relation, tail in FACTS:
        graph.add((names[head], names[relation], names[tail]))
    graph.add((names.e1, rdflib.RDFS.label, rdflib.Literal("the first")))
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_triples(FACTS),
        Graph.from_triples(iter(FACTS), splits=None),
        Graph.from_pandas(pd.DataFrame(FACTS, columns=["head", "relation", "tail"])),
        Graph.from_pandas(pd.DataFrame(FACTS, columns=["s", "p", "o"], dtype="category"), "s", "p", "o"),
        Graph.from_polars(pl.DataFrame(FACTS, schema=["head", "relation", "tail"], orient="row")),
        Graph.from_networkx(networkx_graph()),
    ],
    ids=["triples", "no splits", "pandas", "categories", "polars", "networkx"],
)
def test_every_way_in_gives_the_same_facts(graph: Graph) -> None:
    assert facts_of(graph) == DISTINCT


def test_rdf_keeps_prefixes_and_labels() -> None:
    graph = Graph.from_rdf(rdf_graph(), name="mine")
    assert [tuple(name.removeprefix("http://example.org/") for name in fact) for fact in facts_of(graph)] == DISTINCT
    assert graph.prefixes["ex"] == "http://example.org/"
    first = graph.entities.find("http://example.org/e1")
    assert first is not None
    assert graph.entities.label(first) == "the first"
    assert graph.name == "mine"


def test_a_file_is_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join("\t".join(fact) + "\n" for fact in FACTS))
    graph = open_graph(path)
    assert facts_of(graph) == DISTINCT
    assert graph.facts()["valid"] > 0
    assert open_graph(path, splits=None).facts() == {"train": len(DISTINCT), "valid": 0, "test": 0}
    with pytest.raises(UsageError, match="unknown format"):
        open_graph(path.rename(tmp_path / "facts.doc"))


def test_splits_follow_the_seed() -> None:
    first, again, other = (Graph.from_triples(FACTS, splits=(0.2, 0.1), seed=seed) for seed in (1, 1, 2))
    assert first.facts() == {"train": len(DISTINCT) - sum(list(first.facts().values())[1:]), **_held_out(first)}
    for split in SPLITS:
        assert np.array_equal(first.at(split).tails, again.at(split).tails)
    assert not np.array_equal(first.at("train").packed(), other.at("train").packed())


def _held_out(graph: Graph) -> dict[str, int]:
    return {split: count for split, count in graph.facts().items() if split != "train" and count > 0}


def test_whole_numbers_are_names_and_labels_are_shown() -> None:
    frame = pd.DataFrame({"head": [1, 2], "relation": ["knows", "knows"], "tail": [2, 3]})
    graph = Graph.from_pandas(frame, splits=None, labels={"1": "Ann", "knows": "is acquainted with"})
    assert facts_of(graph) == [("1", "knows", "2"), ("2", "knows", "3")]
    assert graph.entities.label(0) == "Ann"
    assert graph.relations.label(0) == "is acquainted with"


@pytest.mark.parametrize(
    ("make", "line", "words"),
    [
        (lambda: Graph.from_triples([("a", "r", "b"), ("a", "r")]), 2, "a head, a relation and a tail"),
        (lambda: Graph.from_triples([("a", "r", "b"), "arb"]), 2, "a head, a relation and a tail"),
        (lambda: Graph.from_triples([("a", "r", "b"), ("a", "r", None)]), 2, "the tail is missing"),
        (lambda: Graph.from_triples([("a", "r", "b"), ("", "r", "b")]), 2, "the head is empty"),
        (lambda: Graph.from_triples([("a", 0.5, "b")]), None, "names are strings or whole numbers"),
        (lambda: Graph.from_triples([("a", "r", "b"), (3, "r", "b")]), None, "mixes kinds"),
        (lambda: Graph.from_triples([]), None, "no facts"),
    ],
)
def test_what_is_wrong_is_said_with_its_row(make: Any, line: int | None, words: str) -> None:
    with pytest.raises(SourceError, match=words) as raised:
        make()
    assert raised.value.line == line


def test_columns_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="no column 'head'; there are 's', 'p', 'o'"):
        Graph.from_pandas(pd.DataFrame(FACTS, columns=["s", "p", "o"]))
    with pytest.raises(UsageError, match="no attribute 'kind'"):
        Graph.from_networkx(networkx_graph(), "kind")


def test_facts_come_back_as_a_frame() -> None:
    graph = Graph.from_triples(FACTS, seed=3)
    frame = graph.to_pandas()
    assert sorted(frame.itertuples(index=False, name=None)) == DISTINCT
    assert len(graph.to_pandas("train")) == graph.facts()["train"]
    assert facts_of(Graph.from_pandas(frame)) == DISTINCT


def test_a_graph_is_one_short_line() -> None:
    assert repr(Graph.from_triples([("a", "r", "b")], splits=None, name="x")) == (
        "Graph('x', 2 entities, 1 relation, 1 fact)"
    )
