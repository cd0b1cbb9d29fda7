"""Graphs: nested levels, inverses, folders."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query2particles.errors import GraphError, UsageError
from query2particles.graph import edges as edges_module
from query2particles.graph.edges import Edges
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import SPLITS, Graph, smaller
from query2particles.graph.vocabulary import Vocabulary
from worlds import named_graph, random_graph

TRIPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=40)


def edges_of(triples: list[tuple[int, int, int]]) -> Edges:
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return Edges.of(columns[0], columns[1], columns[2], entity_count=7, relation_count=3)


@given(TRIPLES)
def test_edges_hold_each_fact_once_in_both_directions(triples: list[tuple[int, int, int]]) -> None:
    edges = edges_of(triples)
    assert edges.facts == len(set(triples))
    for head in range(7):
        for relation in range(3):
            forward = sorted({t for h, r, t in triples if (h, r) == (head, relation)})
            backward = sorted({h for h, r, t in triples if (t, r) == (head, relation)})
            assert edges.tails_of(head, 2 * relation).tolist() == forward
            assert edges.tails_of(head, 2 * relation + 1).tolist() == backward
            assert all(edges.has(head, 2 * relation, tail) == (tail in forward) for tail in range(7))
        leaving = {2 * r for h, r, _ in triples if h == head} | {2 * r + 1 for _, r, t in triples if t == head}
        assert edges.relations_of(head).tolist() == sorted(leaving)


@given(TRIPLES)
def test_bulk_look_ups_agree_by_table_and_by_bisection(triples: list[tuple[int, int, int]]) -> None:
    by_bisection, by_table = edges_of(triples), edges_of(triples)
    entities, relations = (grid.ravel() for grid in np.meshgrid(np.arange(7), np.arange(6)))
    slow = by_bisection.rows_of(entities, relations)
    by_table.prepare(edges_module._BULK)
    assert "_row_table" in by_table.__dict__
    assert by_table.rows_of(entities.astype(np.int32), relations.astype(np.int32)).tolist() == slow.tolist()
    lengths = [len(by_bisection.tails_of(e, r)) for e, r in zip(entities.tolist(), relations.tolist(), strict=True)]
    assert by_bisection.lengths_of(entities, relations).tolist() == lengths


@given(TRIPLES)
def test_wide_ids_sort_the_same(triples: list[tuple[int, int, int]]) -> None:
    """Where head, relation and tail do not fit one 64-bit number, they are sorted as three."""
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    wide = Edges.of(columns[0], columns[1], columns[2], entity_count=2**31, relation_count=3)
    narrow = edges_of(triples)
    assert wide.tails.tolist() == narrow.tails.tolist()
    assert wide.offsets.tolist() == narrow.offsets.tolist()
    assert wide.keys.tolist() == narrow.keys.tolist()


def test_narrow_columns_make_wide_keys() -> None:
    """The import hands out 4-byte ids, and head · R + relation needs more."""
    heads, tails = np.array([2**30 + 1], np.int32), np.array([2**30], np.int32)
    edges = Edges.of(heads, np.array([5], np.int32), tails, entity_count=2**31 - 1, relation_count=2**20)
    assert edges.keys.dtype == np.int64
    assert edges.keys.tolist() == [2**30 * 2**21 + 11, (2**30 + 1) * 2**21 + 10]
    assert edges.tails.tolist() == [2**30 + 1, 2**30]


def test_levels_nest() -> None:
    graph = random_graph(3)
    for large in SPLITS[1:]:
        less, more = graph.at(smaller(large)), graph.at(large)
        for row, key in enumerate(less.keys.tolist()):
            tails = less.tails[less.offsets[row] : less.offsets[row + 1]]
            assert set(tails.tolist()) <= set(more.tails_of(*divmod(key, less.relations)).tolist())
    with pytest.raises(GraphError):
        smaller("train")
    assert sum(graph.facts().values()) == graph.at("test").facts


def test_a_graph_without_splits_is_the_same_on_every_level() -> None:
    graph = named_graph()
    assert graph.at("train") is graph.at("valid") is graph.at("test")
    assert graph.facts() == {"train": 9, "valid": 0, "test": 0}


def test_no_facts_is_an_error() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    with pytest.raises(GraphError, match="no facts"):
        Graph.of(Vocabulary.of(["a"]), Vocabulary.of(["r"]), {"train": (nothing, nothing, nothing)})


@pytest.mark.parametrize("graph", [named_graph(), random_graph(1)], ids=lambda graph: graph.name)
def test_saved_and_opened_it_is_the_same(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "graph")
    again = open_graph(tmp_path / "graph")
    assert again.fingerprint == graph.fingerprint
    assert again.about == graph.about
    for split in SPLITS:
        for part in ("keys", "offsets", "tails"):
            assert np.array_equal(getattr(again.at(split), part), getattr(graph.at(split), part))
    assert isinstance(again.at("train").tails, np.memmap)
    assert not again.at("train").tails.flags.writeable


def test_broken_graph_folders_say_so(tmp_path: Path) -> None:
    named_graph().save(tmp_path / "graph")
    manifest = tmp_path / "graph" / "graph.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "format": 99}))
    with pytest.raises(GraphError, match="format 99"):
        open_graph(tmp_path / "graph")
    manifest.write_text("{")
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")
    manifest.write_text(json.dumps(told))
    (tmp_path / "graph" / "train-tails.npy").write_bytes(b"")
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


@pytest.mark.parametrize(
    "told",
    [
        [],
        "graph",
        {"format": [1]},
        {"entities": 12},
        {"entities": "11"},
        {"entities": True},
        {"relations": 3},
        {"relations": 0},
        {"levels": []},
        {"levels": ["valid", "test"]},
        {"levels": ["train", "all"]},
        {"levels": 5},
        {"facts": {"train": 8, "valid": 0, "test": 0}},
        {"about": []},
        {"about": None},
        {"about": {"prefixes": ["ex"]}},
        {"about": {"prefixes": {"ex": 5}}},
        {"about": {"name": "\ud800"}},
    ],
    ids=repr,
)
def test_damaged_manifests_are_graph_errors(tmp_path: Path, told: Any) -> None:
    named_graph().save(tmp_path / "graph")
    manifest = tmp_path / "graph" / "graph.json"
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**whole, **told} if isinstance(told, dict) else told))
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


def test_a_manifest_that_lacks_something_is_a_graph_error(tmp_path: Path) -> None:
    named_graph().save(tmp_path / "graph")
    manifest = tmp_path / "graph" / "graph.json"
    whole = json.loads(manifest.read_text())
    for key in ("format", "entities", "relations", "levels", "facts", "about"):
        manifest.write_text(json.dumps({other: value for other, value in whole.items() if other != key}))
        with pytest.raises(GraphError, match="import it again"):
            open_graph(tmp_path / "graph")
    for text in ("[" * 100_000, "\ud800", "[1]"):
        manifest.write_bytes(text.encode(errors="surrogatepass"))
        with pytest.raises(GraphError, match="import it again"):
            open_graph(tmp_path / "graph")


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.append(array, array[-1:]),
    "empty": lambda array: array[:0],
    "square": lambda array: array.reshape(1, -1),
    "a number": lambda array: array[0],
    "fractions": lambda array: array.astype(np.float64),
    "wide": lambda array: array.astype(np.int16),
    "swapped bytes": lambda array: array.astype(array.dtype.newbyteorder()) if array.itemsize > 1 else array[:-1],
}
PARTS = [
    *(f"train-{part}" for part in ("keys", "offsets", "tails")),
    *(f"entities-{what}{part}" for what in ("names", "labels") for part in ("", "-offsets", "-order")),
    *(f"relations-names{part}" for part in ("", "-offsets", "-order")),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
def test_arrays_of_another_shape_or_kind_are_graph_errors(tmp_path: Path, part: str, damage: str) -> None:
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / f"{part}.npy"
    np.save(path, DAMAGES[damage](np.load(path)))
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


@pytest.mark.parametrize("part", PARTS)
def test_files_that_are_lost_or_hold_something_else_are_graph_errors(tmp_path: Path, part: str) -> None:
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / f"{part}.npy"
    whole = path.read_bytes()
    with (tmp_path / "several.npz").open("wb") as file:
        np.savez(file, array=np.load(path))
    for content in (
        (tmp_path / "several.npz").read_bytes(),
        whole[:40],
        whole[:-1],
        whole.replace(b"False", b"((((("),
        whole.replace(b"False", b"-0x1L"),
        whole.replace(b"(", b"-", 1),
        b"",
    ):
        path.write_bytes(content)
        with pytest.raises(GraphError, match="import it again"):
            open_graph(tmp_path / "graph")
    path.unlink()
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


def changed(array: Any, **values: int) -> Any:
    """A copy with other values at some places, `_1` being the last."""
    array = array.copy()
    for place, value in values.items():
        array[int(place.removeprefix("at").replace("_", "-"))] = value
    return array


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("keys", {"at0": -1}),
        ("keys", {"at_1": 11 * 8}),
        ("offsets", {"at0": 1}),
        ("offsets", {"at_1": 17}),
        ("offsets", {"at_1": 19}),
    ],
)
def test_bounds_are_checked_when_a_graph_is_opened(tmp_path: Path, part: str, damage: dict[str, int]) -> None:
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / f"train-{part}.npy"
    np.save(path, changed(np.load(path), **damage))
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph")


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("tails", {"at0": -1}),
        ("tails", {"at3": 11}),
        ("tails", {"at5": 2**31 - 1}),
        ("offsets", {"at2": 10}),
        ("offsets", {"at2": -5}),
        ("offsets", {"at2": 2**31 - 1}),
        ("keys", {"at2": 0}),
        ("keys", {"at2": 11 * 8}),
    ],
)
def test_contents_are_checked_before_they_are_multiplied(tmp_path: Path, part: str, damage: dict[str, int]) -> None:
    """A product trusts its arrays: a tail that does not exist is a write beyond the end of another."""
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / f"train-{part}.npy"
    np.save(path, changed(np.load(path), **damage))
    edges = open_graph(tmp_path / "graph").at("train")
    for _ in range(2):
        with pytest.raises(GraphError, match=r"graph.*import it again"):
            _ = edges.matrix
        with pytest.raises(GraphError, match="import it again"):
            edges.rows_of(np.zeros(edges_module._BULK, np.int64), np.zeros(edges_module._BULK, np.int64))


def test_tails_out_of_order_are_damage_too(tmp_path: Path) -> None:
    graph = random_graph(1)
    graph.save(tmp_path / "graph")
    path = tmp_path / "graph" / "train-tails.npy"
    row = int(np.argmax(graph.at("train").row_lengths))
    start = int(graph.at("train").offsets[row])
    tails = np.load(path)
    tails[[start, start + 1]] = tails[[start + 1, start]]
    np.save(path, tails)
    with pytest.raises(GraphError, match="import it again"):
        _ = open_graph(tmp_path / "graph").at("train").matrix


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("names-order", {"at5": 11}),
        ("names-order", {"at5": -1}),
        ("labels-order", {"at5": 2**40}),
        ("names-offsets", {"at5": 2**40}),
        ("labels-offsets", {"at5": -7}),
    ],
)
def test_damaged_vocabularies_are_graph_errors(tmp_path: Path, part: str, damage: dict[str, int]) -> None:
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / f"entities-{part}.npy"
    np.save(path, changed(np.load(path), **damage))
    entities = open_graph(tmp_path / "graph").entities
    with pytest.raises(GraphError, match="import it again"):
        _ = entities.find("Ann"), entities.find_label("Ann")


def test_damaged_names_are_graph_errors(tmp_path: Path) -> None:
    named_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / "entities-names.npy"
    np.save(path, changed(np.load(path), at0=0xFF))
    with pytest.raises(GraphError, match="import it again"):
        open_graph(tmp_path / "graph").entities.name(0)


def test_damaged_bytes_raise_nothing_else(tmp_path: Path) -> None:
    """A byte changed anywhere in any file: a graph that can be asked, or the one error."""
    generator = np.random.default_rng(0)
    random_graph(1).save(tmp_path / "graph")
    paths = sorted((tmp_path / "graph").iterdir())
    for _ in range(600):
        path = paths[generator.integers(len(paths))]
        whole = path.read_bytes()
        content = bytearray(whole)
        reach = len(whole) if generator.integers(2) else min(len(whole), 128)
        content[generator.integers(reach)] = generator.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(GraphError):
            graph = open_graph(tmp_path / "graph")
            for split in SPLITS:
                edges = graph.at(split)
                edges.prepare(edges_module._BULK)
                assert len(edges.matrix @ np.ones(edges.entities)) == edges.no_row + 1
                assert len(edges.heads_by_relation) == edges.relations
            for vocabulary in (graph.entities, graph.relations):
                names = vocabulary.names(range(len(vocabulary)))
                assert len(list(map(vocabulary.find, names))) == len(names)
            _ = graph.name, graph.prefixes
        path.write_bytes(whole)


def test_what_is_no_graph_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "triples.doc").write_text("a\tb\tc\n")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "triples.doc"):
        with pytest.raises(UsageError, match="q2p graph import"):
            open_graph(place)


def test_foreign_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"letters\.txt"):
        named_graph().save(tmp_path)
    assert (tmp_path / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize("seed", range(4))
def test_without_one_split_all_other_facts_are_left(seed: int) -> None:
    graph = random_graph(seed, entities=9, relations=2, facts=60)

    def facts_of(edges: Edges) -> set[tuple[int, int, int]]:
        heads, relations = edges.heads_and_relations()
        return set(zip(heads.tolist(), relations.tolist(), edges.tails.tolist(), strict=True))

    train, valid, test = (facts_of(graph.at(split)) for split in SPLITS)
    assert facts_of(graph.without("valid")) == test - (valid - train)
    assert valid - train
    assert facts_of(graph.without("test")) == valid


def test_without_validation_facts_nothing_is_left_out() -> None:
    named = named_graph()
    assert named.without("valid").facts == named.at("test").facts
