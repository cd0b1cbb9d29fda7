"""Benchmark folders open as graphs, in both published forms; wrong ones say file, line and reason."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from query2particles.errors import GraphError, SourceError
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    defaults = {
        "entities.tsv": "0\ta\tLetter A\n1\tb\tLetter B\n2\tc\tLetter C\n",
        "relations.tsv": "0\tr\tis r of\n1\ts\tis s of\n",
        "train.txt": "0\t0\t1\n1\t1\t2\n",
        "valid.txt": "0\t0\t2\n",
        "test.txt": "2\t1\t0\n",
    }
    for name, text in (defaults | files).items():
        (folder / name).write_text(text, "utf-8")
    return folder


def test_forward_edges_only(tmp_path: Path) -> None:
    graph = open_graph(write(tmp_path / "small"))
    assert graph.name == "small"
    assert graph.facts() == {"train": 2, "valid": 1, "test": 1}
    assert graph.at("train").tails_of(0, 0).tolist() == [1]
    assert graph.at("valid").tails_of(0, 0).tolist() == [1, 2]
    assert graph.at("test").tails_of(0, 3).tolist() == [2]
    assert graph.entities.label(1) == "Letter B"


def test_every_edge_followed_by_its_inverse(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "both",
        **{
            "relations.tsv": "0\tr\tr\n1\tr_reverse\tr inverse\n",
            "train.txt": "0\t0\t1\n1\t1\t0\n",
            "valid.txt": "0\t0\t2\n2\t1\t0\n",
            "test.txt": "2\t0\t1\n1\t1\t2\n",
        },
    )
    graph = open_graph(folder)
    assert len(graph.relations) == 1
    assert graph.facts() == {"train": 1, "valid": 1, "test": 1}
    assert graph.at("test").tails_of(1, 1).tolist() == [0, 2]


@pytest.mark.parametrize("ending", ["xz", "gz"])
def test_compressed(tmp_path: Path, ending: str) -> None:
    folder = write(tmp_path / "packed")
    for path in list(folder.iterdir()):
        packed = (lzma if ending == "xz" else gzip).compress(path.read_bytes())
        path.with_name(f"{path.name}.{ending}").write_bytes(packed)
        path.unlink()
    assert open_graph(folder).facts() == {"train": 2, "valid": 1, "test": 1}


@pytest.mark.parametrize(
    ("files", "line", "reason"),
    [
        ({"train.txt": "0\t0\t1\n0\t0\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\tx\t1\n"}, 2, "found '0.*x"),
        ({"train.txt": "0 0 1\n"}, 1, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t-1\n"}, 2, "expected head|does not exist"),
        ({"train.txt": "0\t0\t1\n0\t0\t3\n"}, 2, "entity 3 does not exist: there are 3"),
        ({"test.txt": "0\t2\t1\n"}, 1, "relation 2 does not exist: there are 2"),
        ({"entities.tsv": "0\ta\ta\n2\tb\tb\n"}, 2, "expected 1<TAB>name"),
        ({"relations.tsv": "0\tr\tr\n1\n"}, 2, "expected 1<TAB>name"),
    ],
)
def test_wrong_files(tmp_path: Path, files: dict[str, str], line: int, reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        open_graph(write(tmp_path / "wrong", **files))
    assert caught.value.line == line
    assert caught.value.path.name in files


def test_broken_compression_and_encoding(tmp_path: Path) -> None:
    folder = write(tmp_path / "broken")
    (folder / "train.txt").unlink()
    (folder / "train.txt.xz").write_bytes(b"not xz at all")
    with pytest.raises(SourceError, match=r"train\.txt\.xz: cannot be read"):
        open_graph(folder)
    folder = write(tmp_path / "latin")
    (folder / "entities.tsv").write_bytes(b"0\t\xe9\n")
    with pytest.raises(SourceError, match="UTF-8"):
        open_graph(folder)


def test_missing_relations(tmp_path: Path) -> None:
    folder = write(tmp_path / "lacking")
    (folder / "relations.tsv").unlink()
    with pytest.raises(GraphError, match=r"no relations\.tsv"):
        open_graph(folder)


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("name", "entities", "relations", "facts"),
    [
        ("FB15k", 14951, 1345, (483142, 50000, 59071)),
        ("FB15k-237", 14505, 237, (272115, 17526, 20438)),
        ("NELL", 63361, 200, (114213, 14324, 14267)),
        ("UMLS", 135, 46, (5216, 652, 661)),
    ],
)
def test_published_graphs(data: Path, name: str, entities: int, relations: int, facts: tuple[int, ...]) -> None:
    graph: Graph = open_graph(data / name)
    assert (len(graph.entities), len(graph.relations)) == (entities, relations)
    assert tuple(graph.facts().values()) == facts
