"""Query sets as folders: written, read, checked; official checksums."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from pathlib import Path

import numpy as np
import pytest

from query2particles.engine.exact import exact_answers, fits
from query2particles.errors import QueryError, SourceError, UsageError, WorkloadError
from query2particles.graph.edges import Ints
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES, Query, abstract, shape_named
from query2particles.workload.benchmark import check_set, query_files, read_queries, read_set, write_set
from query2particles.workload.folders import check_folder
from query2particles.workload.labels import label
from query2particles.workload.sample import sample_shape
from worlds import random_graph, random_query


def some_queries(graph: Graph, count: int = 200) -> dict[Query, Ints]:
    generator = random.Random(3)
    batch: dict[Query, list[tuple[int, ...]]] = {}
    for _ in range(count):
        shape, ids = abstract(random_query(generator, len(graph.entities), len(graph.relations)))
        batch.setdefault(shape, []).append(ids)
    return {shape: np.array(ids) for shape, ids in batch.items()}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Graph, Path, dict[Query, Ints]]:
    """A set of test queries of several shapes, each with hard answers."""
    graph = random_graph(9, entities=40, relations=4, facts=300)
    samples = [
        sample_shape(graph, SHAPES[name], 12, split="test", cap=40, allow_fewer=True)
        for name in ("1p", "2p", "pi", "2in", "pni", "up")
    ]
    batch = {one.shape: one.ids for one in samples}
    write_set(tmp_path / "set", graph, "test", batch, {one.shape: one.labels for one in samples})
    return graph, tmp_path / "set", batch


def test_written_queries_read_back(written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    _, folder, batch = written
    again = read_set(folder, "test")
    assert again.keys() == batch.keys()
    for shape, ids in batch.items():
        assert np.array_equal(again[shape], ids)
    assert read_set(folder, "test", ["2p"]).keys() == {SHAPES["2p"]}
    with pytest.raises(WorkloadError, match="no valid queries"):
        read_set(folder, "valid")
    with pytest.raises(WorkloadError, match="of 3i"):
        read_set(folder, "test", ["3i"])


def test_any_shape_is_written_and_read(tmp_path: Path) -> None:
    graph = random_graph(9)
    batch = some_queries(graph)
    write_set(tmp_path / "set", graph, "train", batch, label(graph, "train", batch))
    again = read_set(tmp_path / "set", "train")
    assert {shape: ids.tolist() for shape, ids in again.items()} == {
        shape: ids.tolist() for shape, ids in batch.items()
    }


def test_writing_adds_and_replaces(written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    graph, folder, _ = written
    one = sample_shape(graph, SHAPES["2p"], 5, split="test", cap=40, seed=5)
    drawn = {one.shape: one.ids}, {one.shape: one.labels}
    with pytest.raises(UsageError, match=r"has test-2p already.*--replace"):
        write_set(folder, graph, "test", *drawn)
    with pytest.raises(UsageError, match="another graph"):
        write_set(folder, random_graph(1, entities=39), "valid", *drawn)
    assert len(read_set(folder, "test", ["2p"])[SHAPES["2p"]]) == 12
    write_set(folder, graph, "test", *drawn, about={"source": "second draw"}, replace=True)
    assert len(read_set(folder, "test")) == 6
    counts = json.loads((folder / "counts.json").read_text())
    assert counts["test-2p"]["queries"] == 5
    assert counts["test-2p"]["source"] == "second draw"
    assert not any(check.problem for check in check_set(graph, folder))


def test_a_good_set_checks(written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    graph, folder, batch = written
    checks = list(check_set(graph, folder))
    assert len(checks) == 6
    assert all(check.checksum and check.problem is None for check in checks)
    assert sum(check.queries for check in checks) == sum(map(len, batch.values()))


def test_every_kind_of_damage_is_found(written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    graph, folder, batch = written
    counts = json.loads((folder / "counts.json").read_text())

    def problems() -> list[str]:
        return [check.problem for check in check_set(graph, folder) if check.problem]

    def store(name: str, **changes: object) -> None:
        (folder / "counts.json").write_text(json.dumps(counts | {name: counts[name] | changes}))

    store("test-2p", hard_sha256="0" * 64)
    assert len(problems()) == 1
    assert "hard_sha256 is " in problems()[0]
    store("test-pi", hard_total=1)
    assert "hard_total is " in problems()[0]
    store("test-pi", queries=1)
    assert "queries is " in problems()[0]
    (folder / "counts.json").write_text(json.dumps({k: v for k, v in counts.items() if k != "test-up"}))
    assert problems() == ["counts.json does not list it"]
    (folder / "counts.json").write_text(json.dumps(counts | {"test-9p": {"queries": 1}}))
    assert problems() == ["counts.json lists it, but its file is missing"]
    store("test-2p")
    (folder / "test-2p.jsonl.xz").write_bytes(lzma.compress(b"[999,[0,0]]\n"))
    assert "ids that the graph does not have" in problems()[0]
    lines = [b"[%d,[%d,%d]]" % tuple(row) for row in batch[SHAPES["2p"]].tolist()]
    (folder / "test-2p.jsonl.xz").write_bytes(lzma.compress(b"\n".join(reversed(lines)) + b"\n"))
    assert problems() == []  # the order of lines does not count
    (folder / "counts.json").write_text(json.dumps(counts | {"test-pi": counts["test-pi"] | {"graph": "other"}}))
    assert "it was drawn from another graph" in problems()
    for broken, words in (
        ("nothing", "no readable"),
        ("[1]", "not of the form"),
        ('{"test-2p": 5}', "not of the form"),
    ):
        (folder / "counts.json").write_text(broken)
        with pytest.raises(WorkloadError, match=words):
            problems()


def test_stored_branch_order_is_kept_for_the_checksum(written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    """A file may store branches in another order than the shape's; ids still land in their places."""
    _, folder, batch = written
    rows = batch[SHAPES["pi"]].tolist()
    swapped = b"".join(b"[[%d,[%d]],[%d,[%d,%d]]]\n" % (e, f, a, b, c) for a, b, c, e, f in rows)
    (folder / "test-pi.jsonl.xz").unlink()
    (folder / "test-pi.jsonl").write_bytes(swapped)
    assert read_queries(folder / "test-pi.jsonl")[SHAPES["pi"]].tolist() == rows


def test_forms_of_files(tmp_path: Path) -> None:
    expected = {SHAPES["2p"]: [[3, 0, 1], [4, 1, 0]]}
    forms = {
        "a.jsonl": b"[3,[0,1]]\n[4,[1,0]]\n",
        "b.jsonl": b"[3,[0,1]]\r\n[4,[1,0]]",
        "c.jsonl": b"[3, [0, 1]]\n[4,[1,0]]\n",
        "d.jsonl.gz": gzip.compress(b"[3,[0,1]]\n[4,[1,0]]\n"),
        "e.jsonl.xz": lzma.compress(b"[3,[0,1]]\n[4,[1,0]]\n"),
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        assert {shape: ids.tolist() for shape, ids in read_queries(tmp_path / name).items()} == expected
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf[3,[0,1]]\n[4,[1,0]]\n")
    assert read_queries(tmp_path / "marked.jsonl")[SHAPES["2p"]].tolist() == expected[SHAPES["2p"]]
    (tmp_path / "mixed.jsonl").write_bytes(b"[3,[0]]\n[3,[0,-2]]\n[4,[1]]\n")
    mixed = read_queries(tmp_path / "mixed.jsonl")
    assert mixed[SHAPES["1p"]].tolist() == [[3, 0], [4, 1]]
    assert len(mixed) == 2
    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert read_queries(tmp_path / "empty.jsonl") == {}


@pytest.mark.parametrize(
    "line", [b"[3,[0]", b"[3]", b"3", b"[3,[0,-5]]", b"[3,[0,-12]]", b"\xff", b"[" * 9000, b"[%d,[0]]" % 10**30]
)
def test_wrong_lines(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"[3,[0]]\n" + line + b"\n")
    with pytest.raises(SourceError) as caught:
        read_queries(tmp_path / "bad.jsonl")
    assert caught.value.line == 2


def test_ids_must_exist() -> None:
    graph = random_graph(1, entities=10, relations=2)
    edges = graph.at("test")
    assert fits(edges, SHAPES["1p"], np.array([[9, 3]]))
    for wrong in ([10, 3], [9, 4], [-1, 0]):
        assert not fits(edges, SHAPES["1p"], np.array([wrong]))
        with pytest.raises(QueryError, match="1p queries name entities or relations that the graph does not have"):
            exact_answers(edges, {SHAPES["1p"]: np.array([wrong] * 5000)})


def test_checking_a_folder_needs_a_graph(tmp_path: Path, written: tuple[Graph, Path, dict[Query, Ints]]) -> None:
    graph, folder, _ = written
    graph.save(tmp_path / "graph")
    assert len(list(check_folder(folder, tmp_path / "graph"))) == 6
    with pytest.raises(UsageError):
        list(check_folder(folder))
    with pytest.raises(UsageError, match="no set of queries"):
        list(check_folder(tmp_path / "graph"))
    with pytest.raises(UsageError, match="is no folder"):
        list(check_folder(tmp_path / "nowhere"))


def test_foreign_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"me")
    graph = random_graph(1)
    one = sample_shape(graph, SHAPES["2p"], 3, split="test", cap=40)
    with pytest.raises(UsageError, match=r"photo\.jpg"):
        write_set(tmp_path, graph, "test", {one.shape: one.ids}, {one.shape: one.labels})
    assert (tmp_path / "photo.jpg").read_bytes() == b"me"


@pytest.mark.benchmark
@pytest.mark.parametrize("name", ["NELL", "FB15k-237", "FB15k"])
def test_official_checksums(data: Path, name: str) -> None:
    """Every stored hard-answer set of the published benchmarks, recomputed."""
    checks = [check for _, check in check_folder(data / name)]
    assert [check for check in checks if check.problem] == []
    verified = {"NELL": 235_892, "FB15k-237": 295_811, "FB15k": 588_181}
    assert sum(check.queries for check in checks if check.checksum) == verified[name]


@pytest.mark.benchmark
def test_every_shape_of_a_set_is_found(data: Path) -> None:
    folder = data / "FB15k-237" / "betae-resampled"
    assert len(query_files(folder)) == 28
    assert read_set(folder, "test").keys() == set(SHAPES.values())
    assert len(open_graph(data / "FB15k-237").entities) == 14505


def test_the_order_of_equal_branches_is_kept_whatever_stands_beside_them(tmp_path: Path) -> None:
    (tmp_path / "alone.jsonl").write_bytes(b"[[5,[3]],[1,[3]]]\n")
    (tmp_path / "mixed.jsonl").write_bytes(b"[[5,[3]],[1,[3]]]\n[1,[3]]\n")
    for name in ("alone.jsonl", "mixed.jsonl"):
        assert read_queries(tmp_path / name)[SHAPES["2i"]].tolist() == [[5, 3, 1, 3]]


def test_shapes_with_long_names_get_files_too(tmp_path: Path) -> None:
    graph = random_graph(9)
    shape = shape_named("u(" + ",".join(["p(e)"] * 60) + ")")
    batch = {shape: np.random.default_rng(0).integers((30, 8) * 60, size=(3, 120))}
    write_set(tmp_path / "set", graph, "train", batch, label(graph, "train", batch))
    assert np.array_equal(read_set(tmp_path / "set", "train")[shape], batch[shape])
    assert not any(check.problem for check in check_set(graph, tmp_path / "set"))
