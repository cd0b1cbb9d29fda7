"""`q2p sample --missing`: hard sets from the command line, from drawing to figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from calls import Call
from query2particles.cli.queries import shapes_named
from query2particles.errors import SamplingError, UsageError
from query2particles.evaluate import evaluate
from query2particles.graph.folders import open_graph
from query2particles.methods.baselines import BASELINES
from query2particles.query.algebra import EXTRA_SHAPES, SHAPES
from query2particles.workload.selection import stored_queries

DRAW = ("--cap", "40", "--count", "6")


def test_shapes_by_name() -> None:
    assert shapes_named("4p,all,2p") == [EXTRA_SHAPES["4p"], *SHAPES.values()]
    assert EXTRA_SHAPES["4i"] not in shapes_named("all")


def test_a_hard_set_is_drawn_checked_and_evaluated(call: Call, graph: Path, tmp_path: Path) -> None:
    drawn = call.json("sample", graph, "--missing", "all", "--shapes", "2p,4i,2u,inp", *DRAW, "--out", tmp_path / "set")
    rows = [(row["shape"], row["missing"], row["queries"]) for row in drawn["shapes"]]
    assert rows == [("2p", 2, 6), ("4i", 4, 6), ("2u", 1, 6), ("inp", 2, 6)]
    checked = call.json("data", "check", tmp_path / "set", "--graph", graph)
    assert (checked["verified_queries"], checked["problems"]) == (24, 0)
    assert {one["name"]: one["hard"] for one in checked["files"]} == {
        f"test-{row['shape']}-missing{row['missing']}": row["hard"] for row in drawn["shapes"]
    }
    words = ("evaluate", graph, "--method", "relax-and-count", "--alone", "--queries", tmp_path / "set")
    found = call.json(*words, "--hardness")
    opened = open_graph(graph)
    labelled = stored_queries(opened, tmp_path / "set", "test")
    expected = evaluate(BASELINES["relax-and-count"](opened.at("train")), *labelled)
    assert list(found["shapes"]) == ["2p", "2u", "inp", "4i"]
    for row in drawn["shapes"]:
        figures = found["shapes"][row["shape"]]
        assert figures["mrr"] == round(100 * expected.shapes[row["shape"]].means["mrr"], 2)
        assert {hard: own["answers"] for hard, own in figures["hardness"].items()} == {str(row["missing"]): row["hard"]}
    assert found["averages"]["all"]["shapes"] == ["2p", "2u", "inp"]
    assert list(call.json(*words, "--shapes", "4i")["shapes"]) == ["4i"]


def test_as_many_queries_of_each_number(call: Call, graph: Path, tmp_path: Path) -> None:
    draw = ("sample", graph, "--missing", "1, 2,3", "--shapes", "2p,3i", *DRAW, "--out", tmp_path / "set")
    call(*draw)
    assert "note: no answer lacks so many links: 3 of 2p: left out" in call.stderr
    assert "missing" in call.stdout
    drawn = call.json(*draw, "--replace")["shapes"]
    assert [(row["shape"], row["missing"], row["queries"]) for row in drawn] == [
        ("2p", 1, 6),
        ("2p", 2, 6),
        ("3i", 1, 6),
        ("3i", 2, 6),
        ("3i", 3, 6),
    ]
    with pytest.raises(UsageError, match="has test-3i-missing2 already"):
        call("sample", graph, "--missing", "2", "--shapes", "3i", *DRAW, "--out", tmp_path / "set")
    # Queries of any hardness lie beside them, and keep all their hard answers.
    ordinary = call.json("sample", graph, "--shapes", "2p", *DRAW, "--out", tmp_path / "set")["shapes"][0]
    assert "missing" not in ordinary
    checked = call.json("data", "check", tmp_path / "set", "--graph", graph)
    assert (checked["verified_queries"], checked["problems"]) == (36, 0)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("none", "--missing none is neither `all` nor numbers of links"),
        ("0", "neither"),
        ("1,", "neither"),
        ("-1", "neither"),
        ("5", "no answer lacks so many links: 5 of 2p, 5 of 4i; name other --shapes"),
    ],
)
def test_numbers_that_there_are_not(call: Call, graph: Path, tmp_path: Path, missing: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call("sample", graph, "--missing", missing, "--shapes", "2p,4i", "--out", tmp_path / "set")


def test_what_has_no_hop_to_miss_is_left_out(call: Call, graph: Path, tmp_path: Path) -> None:
    """That nothing is there takes no edge. All of a shape's hops and their number are the same."""
    words = ("--missing", "all,2", "--shapes", "n(p(e)),2p", *DRAW, "--out", tmp_path / "set")
    drawn = call.json("sample", graph, *words)["shapes"]
    assert [(row["shape"], row["missing"]) for row in drawn] == [("2p", 2)]
    assert "no answer lacks so many links: all of n(p(e)), 2 of n(p(e)): left out" in call.stderr


def test_training_queries_miss_nothing(call: Call, graph: Path, tmp_path: Path) -> None:
    with pytest.raises(SamplingError, match="no link of a training query is missing"):
        call("sample", graph, "--missing", "1", "--split", "train", "--out", tmp_path / "set")
    assert not (tmp_path / "set").exists()
