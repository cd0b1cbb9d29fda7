"""Benchmark folders open as graphs, in both published forms; wrong ones say file, line and reason."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
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
        ({"train.txt": "0\t0\t1\t1\n0\t2\n"}, 1, "expected head"),
        ({"train.txt": "0\t0\n0\t1\t0\t1\n"}, 1, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t1\t"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n\t0\t1\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n\n0\t0\t1\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t1\r0\t0\t1\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t1 2\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t+1\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t99999999999999999999999\n"}, 2, "does not exist: there are 3"),
        ({"train.txt": "0\t0\t1\n0\t0\t٣\n"}, 2, "expected head"),
        ({"train.txt": "0\t0\t1\n0\tx\t1\n"}, 2, "found '0.*x"),
        ({"train.txt": "0 0 1\n"}, 1, "expected head"),
        ({"train.txt": "0\t0\t1\n0\t0\t-1\n"}, 2, "expected head|does not exist"),
        ({"train.txt": "0\t0\t1\n0\t0\t3\n"}, 2, "entity 3 does not exist: there are 3"),
        ({"test.txt": "0\t2\t1\n"}, 1, "relation 2 does not exist: there are 2"),
        ({"entities.tsv": "0\ta\ta\n2\tb\tb\n"}, 2, "expected 1<TAB>name"),
        ({"relations.tsv": "0\tr\tr\n1\n"}, 2, "expected 1<TAB>name"),
        ({"entities.tsv": "0\ta\ta\n\n1\tb\tb\n"}, 2, "expected 1<TAB>name"),
        ({"entities.tsv": "0\ta\ta\n1\t\tb\n2\tc\tc\n"}, 2, "the name is empty"),
        ({"entities.tsv": "0\ta\ta\n1\t \tb\n2\tc\tc\n"}, 2, "the name is empty"),
        ({"entities.tsv": "0\ta\ta\n1\tb\tb\n2\ta\tc\n"}, 3, "the name 'a' stands for two ids, 0 and 2"),
        ({"relations.tsv": "0\tr\tr\n1\tr\ts\n"}, 2, "the name 'r' stands for two ids, 0 and 1"),
        ({"about.json": "{"}, 1, "is not JSON"),
        ({"about.json": '{"name": "x"\n,}'}, 2, "is not JSON"),
        ({"about.json": '["name"]'}, None, "expected an object"),
        ({"about.json": '{"prefixes": {"ex": 3}}'}, None, "prefixes"),
        ({"about.json": '{"name": "\\ud800"}'}, None, "surrogates not allowed"),
        ({"about.json": "[" * 100_000}, None, "is not JSON"),
    ],
)
def test_wrong_files(tmp_path: Path, files: dict[str, str], line: int | None, reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        open_graph(write(tmp_path / "wrong", **files))
    assert caught.value.line == line
    assert caught.value.path.name in files


@pytest.mark.parametrize(
    ("edges", "line", "lonely"),
    [
        ("0\t0\t1\n1\t1\t0\n0\t0\t2\n0\t1\t1\n", 3, "2\t1\t0"),
        ("0\t0\t1\n1\t1\t0\n2\t1\t0\n", 3, "0\t0\t2"),
        ("0\t0\t1\n1\t1\t0\n0\t0\t2\n2\t3\t0\n", 3, "2\t1\t0"),
        ("0\t0\t1\n1\t3\t0\n", 1, "1\t1\t0"),
        ("0\t0\t1\n", 1, "1\t1\t0"),
    ],
)
def test_every_edge_needs_its_inverse_where_relations_come_in_pairs(
    tmp_path: Path, edges: str, line: int, lonely: str
) -> None:
    relations = "0\tr\tr\n1\tr_reverse\tr\n2\ts\ts\n3\ts_reverse\ts\n"
    good = "0\t0\t1\n1\t1\t0\n"
    folder = write(
        tmp_path / "lonely",
        **{"relations.tsv": relations, "train.txt": good, "valid.txt": edges, "test.txt": good},
    )
    with pytest.raises(SourceError) as caught:
        open_graph(folder)
    assert (caught.value.path.name, caught.value.line) == ("valid.txt", line)
    assert repr(lonely) in caught.value.reason


def test_inverses_may_stand_anywhere_in_the_file_and_repeat(tmp_path: Path) -> None:
    edges = "0\t0\t1\n2\t0\t2\n0\t0\t1\n2\t1\t2\n1\t1\t0\n"
    relations = "0\tr\tr\n1\tr_reverse\tr\n"
    folder = write(
        tmp_path / "both", **{"relations.tsv": relations, "train.txt": edges, "valid.txt": "", "test.txt": edges}
    )
    assert open_graph(folder).facts() == {"train": 2, "valid": 0, "test": 0}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_are_no_matter(tmp_path: Path, end: str, last: bool) -> None:
    folder = write(tmp_path / "ends")
    whole = open_graph(folder)
    for path in folder.iterdir():
        text = path.read_text("utf-8").replace("\n", end)
        path.write_bytes((text if last else text.removesuffix(end)).encode())
    graph = open_graph(folder)
    assert graph.facts() == whole.facts()
    assert graph.fingerprint == whole.fingerprint
    assert [graph.entities.label(at) for at in range(3)] == ["Letter A", "Letter B", "Letter C"]


def test_names_may_hold_any_other_separator_of_lines(tmp_path: Path) -> None:
    odd = ["a\u2028b", "c\u0085d", "e\x0bf\x0c\x1c\x1d\x1eg\u2029h"]
    lines = "".join(f"{number}\t{name}\t{name}!\n" for number, name in enumerate(odd))
    graph = open_graph(write(tmp_path / "odd", **{"entities.tsv": lines}))
    assert graph.entities.names(range(3)) == odd
    assert graph.entities.label(1) == "c\u0085d!"


def test_a_label_may_be_left_out_or_empty(tmp_path: Path) -> None:
    graph = open_graph(write(tmp_path / "bare", **{"entities.tsv": "0\ta\n1\tb\t\n2\tc\t \n"}))
    assert [graph.entities.label(at) for at in range(3)] == ["a", "b", "c"]


def test_about_is_kept(tmp_path: Path) -> None:
    about = '{"name": "Letters", "prefixes": {"ex": "http://example.org/"}}'
    graph = open_graph(write(tmp_path / "small", **{"about.json": about}))
    assert (graph.name, graph.prefixes) == ("Letters", {"ex": "http://example.org/"})
    (tmp_path / "small" / "about.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(SourceError, match=r"about\.json: is not JSON"):
        open_graph(tmp_path / "small")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_whose_name_is_not_utf8_can_be_saved(tmp_path: Path) -> None:
    graph = open_graph(write(tmp_path / os.fsdecode(b"caf\xe9")))
    graph.save(tmp_path / "graph")
    assert open_graph(tmp_path / "graph").name == "caf\\xe9"


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
