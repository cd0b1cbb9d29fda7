"""Import: every format, every rule about headers, columns, labels and splits, and every error with its line."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from query2particles.errors import SourceError, UsageError
from query2particles.graph import facts as facts_module
from query2particles.graph import tables
from query2particles.graph.facts import draw_splits
from query2particles.graph.graph import SPLITS, Graph, Split
from query2particles.graph.load import ImportOptions, import_graph
from query2particles.graph.readers import Meter
from query2particles.graph.tables import TableReader

Triple = tuple[str, str, str]
IRI = "http://example.org/"
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"

FACTS: list[Triple] = [
    (f"{IRI}{head}", f"{IRI}{relation}", f"{IRI}{tail}")
    for head, relation, tail in [
        ("Ann", "knows", "Bob"),
        ("Bob", "knows", "Zoé"),
        ("Ann", "born_in", "日本"),
        ("Zoé", "born_in", "日本"),
        ("Ann", "knows", "Ann"),
    ]
]


def packed(content: bytes) -> bytes:
    """Without the time of day: names of tests are made of such bytes, and all processes must agree on them."""
    return gzip.compress(content, mtime=0)


def facts_of(graph: Graph, split: Split = "train") -> set[Triple]:
    """Every fact of a level, by names."""
    edges = graph.at(split)
    found = set()
    for head in range(len(graph.entities)):
        for relation in range(0, edges.relations, 2):
            for tail in edges.tails_of(head, relation).tolist():
                found.add((graph.entities.name(head), graph.relation_name(relation), graph.entities.name(tail)))
                assert edges.has(tail, relation + 1, head)
    return found


def names_of(graph: Graph) -> list[str]:
    return graph.entities.names(range(len(graph.entities)))


def as_tsv(facts: Iterable[Sequence[str]]) -> bytes:
    return "".join("\t".join(fact) + "\n" for fact in facts).encode()


def as_csv(facts: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(facts)
    return text.getvalue().encode()


def as_parquet(facts: Iterable[Sequence[str]]) -> bytes:
    buffer = io.BytesIO()
    columns = zip(*facts, strict=True)
    parquet.write_table(pa.table({name: list(column) for name, column in zip("abc", columns, strict=True)}), buffer)
    return buffer.getvalue()


def as_ntriples(facts: Iterable[Sequence[str]]) -> bytes:
    return "".join(f"<{head}> <{relation}> <{tail}> .\n" for head, relation, tail in facts).encode()


def as_turtle(facts: Iterable[Sequence[str]]) -> bytes:
    lines = [f"@prefix ex: <{IRI}> .\n"]
    lines += [" ".join(f"ex:{name.removeprefix(IRI)}" for name in fact) + " .\n" for fact in facts]
    return "".join(lines).encode()


WRITERS: dict[str, Callable[[Iterable[Sequence[str]]], bytes]] = {
    "tsv": as_tsv,
    "txt": as_tsv,
    "csv": as_csv,
    "parquet": as_parquet,
    "nt": as_ntriples,
    "ttl": as_turtle,
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def imported(*sources: Path, **options: Any) -> Graph:
    return import_graph(sources, options=ImportOptions(**options))


# Formats


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_same_graph(tmp_path: Path, ending: str, compression: str) -> None:
    content = COMPRESSIONS[compression](WRITERS[ending](FACTS))
    graph = imported(written(tmp_path / f"people.v1.{ending}{compression}", content))
    assert facts_of(graph) == set(FACTS)
    assert names_of(graph) == [f"{IRI}{name}" for name in ("Ann", "Bob", "Zoé", "日本")]
    assert graph.relations.names(range(2)) == [f"{IRI}knows", f"{IRI}born_in"]
    assert graph.name == "people.v1"
    assert graph.about["sources"] == [f"people.v1.{ending}{compression}"]
    assert (graph.about["duplicates"], graph.about["literals_dropped"]) == (0, 0)


def test_a_saved_import_opens_again(tmp_path: Path) -> None:
    graph = imported(written(tmp_path / "a.tsv", as_tsv(FACTS)), attribution="me, CC0")
    graph.save(tmp_path / "graph")
    again = Graph.open(tmp_path / "graph")
    assert facts_of(again) == set(FACTS)
    assert again.about == graph.about
    assert again.about["attribution"] == "me, CC0"


def test_several_files_of_several_formats_are_one_graph(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"{number}.{ending}", WRITERS[ending]([fact]))
        for number, (fact, ending) in enumerate(zip(FACTS, ("ttl", "tsv", "parquet", "csv", "nt"), strict=True))
    ]
    graph = imported(*paths)
    assert facts_of(graph) == set(FACTS)
    assert graph.about["sources"] == ["0.ttl", "1.tsv", "2.parquet", "3.csv", "4.nt"]
    assert graph.name == "0"
    assert graph.prefixes == {"ex": IRI}


def test_a_format_can_be_said(tmp_path: Path) -> None:
    path = written(tmp_path / "edges.data", as_csv(FACTS))
    assert facts_of(imported(path, format="csv", name="mine")) == set(FACTS)
    assert imported(path, format="csv").name == "edges.data"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_blank_lines_and_byte_order_marks_are_no_matter(tmp_path: Path, end: str) -> None:
    for ending, separator in (("tsv", "\t"), ("csv", ",")):
        lines = ["", "", *(separator.join(fact) for fact in FACTS), "", ""]
        path = written(tmp_path / f"a.{ending}", b"\xef\xbb\xbf" + end.join(lines).encode())
        assert facts_of(imported(path)) == set(FACTS)
    if end != "\r":
        content = b"\xef\xbb\xbf" + as_ntriples(FACTS).replace(b"\n", end.encode())
        assert facts_of(imported(written(tmp_path / "a.nt", content))) == set(FACTS)
        assert facts_of(imported(written(tmp_path / "a.ttl", content))) == set(FACTS)


def test_names_are_opaque(tmp_path: Path) -> None:
    odd = [('"a', "b\0", " c "), ("NA", "null", "\x1b[1m"), ("a,b", "'", "🙂")]
    assert facts_of(imported(written(tmp_path / "a.tsv", as_tsv(odd)))) == set(odd)
    odd.append(("two\r\nlines", 'say ""hello""', "tab\tbed"))
    assert facts_of(imported(written(tmp_path / "a.csv", as_csv(odd)))) == set(odd)
    assert facts_of(imported(written(tmp_path / "a.parquet", as_parquet(odd)))) == set(odd)


def test_the_order_of_ids_does_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    facts = [tuple(f"{prefix}{generator.integers(40)}" for prefix in "ere") for _ in range(300)]
    expected = list(dict.fromkeys(name for head, _, tail in facts for name in (head, tail)))
    path = written(tmp_path / "a.tsv", as_tsv(facts))
    assert names_of(imported(path)) == expected
    monkeypatch.setattr(tables, "_BLOCK", 64)
    monkeypatch.setattr(facts_module, "_WAITING", 10)
    graph = imported(path)
    assert names_of(graph) == expected
    assert facts_of(graph) == set(facts)
    assert names_of(imported(written(tmp_path / "a.csv", as_csv(facts)))) == expected


def test_progress_counts_the_bytes_on_the_disk(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"a.{ending}{compression}", COMPRESSIONS[compression](WRITERS[ending](FACTS)))
        for ending in WRITERS
        for compression in COMPRESSIONS
    ]
    total = sum(path.stat().st_size for path in paths)
    told: list[tuple[int, int]] = []
    import_graph(paths, progress=lambda done, of: told.append((done, of)))
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_heavy_libraries_are_imported_late() -> None:
    code = "import sys, query2particles.graph.load; print({'pyarrow', 'pyoxigraph', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


# Headers and columns


@pytest.mark.parametrize(
    "header",
    [
        "head,relation,tail",
        "Subject,Predicate,Object",
        " source , type ,target",
        "from_id,edge,to_id",
        "h,r,t",
        "S,P,O",
        "head_entity,relationship,tail_entity",
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_first_line_that_names_the_columns_is_a_header(tmp_path: Path, header: str, ending: str) -> None:
    header = header if ending == "csv" else header.replace(",", "\t")
    path = written(tmp_path / f"a.{ending}", header.encode() + b"\n" + WRITERS[ending](FACTS))
    assert facts_of(imported(path)) == set(FACTS)
    assert len(imported(path, header=False).entities) == 6
    assert f"{IRI}日本" in names_of(imported(path))


@pytest.mark.parametrize("first", ["head,relation,Ann", "id,name,age", "p,s,o", "t,r,h", "from Ann,type,to"])
def test_any_other_first_line_is_a_fact(tmp_path: Path, first: str) -> None:
    path = written(tmp_path / "a.csv", first.encode() + b"\n" + as_csv(FACTS))
    assert facts_of(imported(path)) == {*FACTS, tuple(first.split(","))}
    assert facts_of(imported(path, header=True)) == set(FACTS)


def test_a_header_gives_the_order_of_the_columns(tmp_path: Path) -> None:
    rows = [("weight", "target", "source", "relation"), *(("1.0", tail, head, rel) for head, rel, tail in FACTS)]
    assert facts_of(imported(written(tmp_path / "a.csv", as_csv(rows)))) == set(FACTS)
    assert facts_of(imported(written(tmp_path / "a.tsv", as_tsv(rows)))) == set(FACTS)
    table = pa.table({name: list(column) for name, *column in zip(*rows, strict=True)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert facts_of(imported(tmp_path / "a.parquet")) == set(FACTS)


@pytest.mark.parametrize("columns", [("x", "y", "z"), (4, 2, 1), ("x", 2, "z")])
def test_columns_can_be_chosen_by_name_and_position(tmp_path: Path, columns: tuple[int | str, ...]) -> None:
    rows = [("z", "y", "skip", "x"), *((tail, relation, "", head) for head, relation, tail in FACTS)]
    header = True if columns == (4, 2, 1) else None
    for ending in ("csv", "tsv"):
        path = written(tmp_path / f"a.{ending}", WRITERS[ending](rows))
        assert facts_of(imported(path, columns=columns, header=header)) == set(FACTS)
    parquet.write_table(pa.table({name: list(column) for name, *column in zip(*rows, strict=True)}), tmp_path / "a.pq")
    assert facts_of(imported(tmp_path / "a.pq", columns=columns)) == set(FACTS)


def test_a_delimiter_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", as_csv(FACTS).replace(b'","', b'";"'))
    assert facts_of(imported(path, delimiter=";")) == set(FACTS)
    path = written(tmp_path / "a.txt", as_tsv(FACTS).replace(b"\t", b" "))
    assert facts_of(imported(path, delimiter=" ")) == set(FACTS)


def test_parquet_takes_numbers_and_dictionaries(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2], pa.int16()),
            "b": pa.array(["x", "y"]).dictionary_encode(),
            "c": pa.array([b"1", b"z"], pa.binary()),
            "d": pa.array([0.5, 1.5]),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert facts_of(imported(tmp_path / "a.parquet")) == {("1", "x", "1"), ("2", "y", "z")}


# RDF


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("http://a.org/people/Ann_B", "Ann_B"),
        ("http://a.org/terms#knows", "knows"),
        ("http://a.org/people/Ann%20B/", "Ann B"),
        ("http://", "http://"),
        ("/m/027rn", "/m/027rn"),
        ("concept:city", "concept:city"),
    ],
)
def test_an_iri_without_a_label_is_called_by_its_last_part(tmp_path: Path, name: str, label: str) -> None:
    graph = imported(written(tmp_path / "a.tsv", f"{name}\tr\tx\n"))
    assert graph.entities.label(0) == label


def test_rdf_labels_literals_blank_nodes_and_prefixes(tmp_path: Path) -> None:
    first = written(
        tmp_path / "first.ttl",
        f"""@prefix ex: <{IRI}> .
        @prefix : <{IRI}colon/> .
        ex:Ann ex:knows _:friend , [ ex:knows ex:Bob ] ; ex:age 30 ; ex:says "hello"@en .
        ex:Ann {LABEL} "Anne"@fr , "  "@en , "Ann of Example"@en-GB , "Other Ann" .
        ex:knows {LABEL} "is acquainted with" .
        ex:Nobody {LABEL} "no facts about them" .
        """,
    )
    second = written(tmp_path / "second.nt", f'_:friend <{IRI}knows> <{IRI}Ann> .\n<{IRI}Bob> {LABEL} "Robert"@de .\n')
    graph = imported(first, second)
    assert facts_of(graph) == {
        (f"{IRI}Ann", f"{IRI}knows", "_:friend"),
        (f"{IRI}Ann", f"{IRI}knows", "_:node"),
        ("_:node", f"{IRI}knows", f"{IRI}Bob"),
        ("_:friend-2", f"{IRI}knows", f"{IRI}Ann"),
    }
    assert graph.prefixes == {"ex": IRI, "": f"{IRI}colon/"}
    assert (graph.about["literals_dropped"], graph.about["labels_unknown"]) == (2, 1)
    assert graph.entities.find_label("Ann of Example") == [graph.entities.find(f"{IRI}Ann")]
    assert graph.entities.find_label("Robert") == [graph.entities.find(f"{IRI}Bob")]
    assert graph.relations.label(0) == "is acquainted with"
    assert names_of(graph) == names_of(imported(first, second))

    kept = imported(first, second, literals=True)
    assert kept.about["literals_dropped"] == 0
    assert facts_of(kept) - facts_of(graph) == {
        (f"{IRI}Ann", f"{IRI}age", '"30"^^<http://www.w3.org/2001/XMLSchema#integer>'),
        (f"{IRI}Ann", f"{IRI}says", '"hello"@en'),
    }


def test_a_literal_is_called_by_its_value(tmp_path: Path) -> None:
    integer = "http://www.w3.org/2001/XMLSchema#integer"
    path = written(
        tmp_path / "a.nt",
        f"""<{IRI}a> <{IRI}r> "42"^^<{integer}> .
        <{IRI}a> <{IRI}r> "say \\"hello\\"\\n"@en .
        <{IRI}a> <{IRI}r> "http://example.org/b" .
        <{IRI}a> <{IRI}r> ""^^<{integer}> .
        """,
    )
    graph = imported(path, literals=True)
    assert graph.entities.find_label("42") == [graph.entities.find(f'"42"^^<{integer}>')]
    assert [graph.entities.label(at) for at in range(5)] == [
        "a",
        "42",
        'say "hello"\n',
        "http://example.org/b",
        f'""^^<{integer}>',
    ]
    labels = written(tmp_path / "labels.tsv", f'"42"^^<{integer}>\tthe answer\n')
    assert imported(path, literals=True, labels=labels).entities.find_label("the answer") == [1]
    train = written(tmp_path / "train.nt", TRIPLE)
    assert imported(train, literals=True, test=[path], unseen="drop").about["labels_unknown"] == 0


def test_prefixes_that_two_files_declare_differently_are_told(tmp_path: Path) -> None:
    declared = [{"ex": IRI, "b": "x:b", "a": "x:a"}, {"ex": IRI, "b": "y:b", "a": "y:a"}, {"b": "x:b", "c": "x:c"}]
    paths = [
        written(
            tmp_path / f"{number}.ttl",
            "".join(f"@prefix {prefix}: <{iri}> .\n" for prefix, iri in prefixes.items()) + TRIPLE,
        )
        for number, prefixes in enumerate(declared)
    ]
    graph = imported(*paths)
    assert graph.about["prefix_clashes"] == ["a", "b"]
    assert graph.prefixes == {"ex": IRI, "b": "x:b", "a": "x:a", "c": "x:c"}
    assert "prefix_clashes" not in imported(paths[0], paths[0]).about


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_files_whose_names_are_not_utf8_can_be_saved(tmp_path: Path) -> None:
    path = written(tmp_path / os.fsdecode(b"caf\xe9.tsv"), GOOD)
    graph = imported(path, attribution=os.fsdecode(b"Andr\xe9"))
    graph.save(tmp_path / "graph")
    again = Graph.open(tmp_path / "graph").about
    assert (again["name"], again["sources"], again["attribution"]) == ("caf\\xe9", ["caf\\xe9.tsv"], "Andr\\xe9")
    assert imported(path, name=os.fsdecode(b"\xe9")).name == "\\xe9"


def test_blank_nodes_of_many_files_stay_apart(tmp_path: Path) -> None:
    content = f"_:a <{IRI}r> _:a-2 .\n_:a-2 <{IRI}r> _:b .\n"
    paths = [written(tmp_path / f"{number}.nt", content) for number in range(3)]
    assert len(imported(*paths).entities) == 9


def test_turtle_of_any_depth_neither_crashes_nor_hangs(tmp_path: Path) -> None:
    depth = 20_000
    path = written(tmp_path / "deep.ttl", f"<{IRI}a> <{IRI}r> {f'[ <{IRI}r> ' * depth} <{IRI}b> {']' * depth} .")
    assert imported(path).at("train").facts == depth + 1


# Labels


def test_a_label_file_names_entities_and_relations(tmp_path: Path) -> None:
    source = written(tmp_path / "a.nt", as_ntriples(FACTS) + f'<{IRI}Ann> {LABEL} "from RDF" .\n'.encode())
    labels = [(f"{IRI}Ann", "Ann A."), (f"{IRI}knows", "knows of"), ("nobody", "x"), (f"{IRI}Ann", "later")]
    path = written(tmp_path / "labels.tsv.gz", packed(as_tsv(labels)))
    graph = imported(source, labels=path)
    assert [graph.entities.label(at) for at in range(2)] == ["Ann A.", "Bob"]
    assert graph.relations.label(0) == "knows of"
    assert graph.about["labels_unknown"] == 1


# Splits


def test_split_files_become_nested_levels(tmp_path: Path) -> None:
    train = written(tmp_path / "people.tsv", as_tsv([*FACTS[:4], FACTS[0]]))
    valid = written(tmp_path / "v.nt", as_ntriples([FACTS[4], FACTS[1]]))
    new = (f"{IRI}Bob", f"{IRI}knows", f"{IRI}Ann")
    test = written(tmp_path / "t.csv", as_csv([FACTS[0], FACTS[4], new, new]))
    graph = imported(train, valid=[valid], test=[test])
    assert graph.facts() == {"train": 4, "valid": 1, "test": 1}
    assert facts_of(graph, "valid") == set(FACTS)
    assert facts_of(graph, "test") == {*FACTS, new}
    assert graph.about["duplicates"] == 5
    assert graph.about["sources"] == ["people.tsv", "v.nt", "t.csv"]


@pytest.mark.parametrize(
    "names",
    [("train.txt", "valid.txt", "test.txt"), ("Train.tsv.gz", "dev.csv", "test.nt"), ("train.nt", "val.ttl", "")],
)
def test_a_folder_with_a_training_file_brings_its_splits(tmp_path: Path, names: Sequence[str]) -> None:
    parts = dict(zip(names, (FACTS[:4], FACTS[4:], [(f"{IRI}Bob", f"{IRI}knows", f"{IRI}Ann")]), strict=True))
    for name, facts in parts.items():
        if name:
            stem, *compression = name.split(".gz")
            content = WRITERS[stem.rpartition(".")[2]](facts)
            written(tmp_path / "small-world" / name, packed(content) if compression else content)
    written(tmp_path / "small-world" / "entity2id.txt", "not\ta fact")
    written(tmp_path / "small-world" / "more.tsv", "not\ta fact")
    graph = imported(tmp_path / "small-world")
    assert graph.facts() == {"train": 4, "valid": 1, "test": int(bool(names[2]))}
    assert graph.name == "small-world"
    assert imported(tmp_path / "small-world" / names[0]).name == "small-world"


def test_any_other_folder_is_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    for number, fact in enumerate(FACTS):
        written(folder / f"part-{number}.tsv", as_tsv([fact]))
    written(folder / "README.txt", "not a fact")
    written(folder / ".hidden.tsv", "not a fact")
    written(folder / "below" / "more.tsv", "not a fact")
    labels = written(folder / "labels.tsv", f"{IRI}Ann\tAnn\n")
    graph = imported(folder, labels=labels)
    assert facts_of(graph) == set(FACTS)
    assert graph.entities.label(0) == "Ann"


def test_unseen_names_can_be_dropped(tmp_path: Path) -> None:
    train = written(tmp_path / "a.tsv", "a\tr\tb\n")
    valid = written(tmp_path / "v.tsv", "b\tr\ta\na\tr\tnew\nnew\tr\tnew\n")
    test = written(tmp_path / "t.tsv", "a\tnew\tb\na\tr\ta\n")
    graph = imported(train, valid=[valid], test=[test], unseen="drop")
    assert graph.facts() == {"train": 1, "valid": 1, "test": 1}
    assert (len(graph.entities), len(graph.relations)) == (2, 1)
    assert (graph.about["unseen_dropped"], graph.about["duplicates"]) == (3, 0)


columns = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=60)
fractions = st.sampled_from([(0.1, 0.1), (0.3, 0.0), (0.0, 0.3), (0.45, 0.45), (0.01, 0.01)])


@given(columns, fractions, st.integers(0, 3))
def test_drawn_splits_are_disjoint_complete_covering_and_repeatable(
    rows: list[tuple[int, int, int]], parts: tuple[float, float], seed: int
) -> None:
    entities = {name: at for at, name in enumerate(sorted({end for head, _, tail in rows for end in (head, tail)}))}
    relations = {name: at for at, name in enumerate(sorted({relation for _, relation, _ in rows}))}
    ids = np.array([(entities[head], relations[relation], entities[tail]) for head, relation, tail in rows], np.int32)
    facts = ids[:, 0], ids[:, 1], ids[:, 2]
    splits, kept = draw_splits(facts, len(entities), len(relations), parts, seed)
    found = {split: list(zip(*(column.tolist() for column in splits[split]), strict=True)) for split in SPLITS}
    together = [fact for split in SPLITS for fact in found[split]]
    assert sorted(together) == sorted(set(map(tuple, ids.tolist())))

    train = found["train"]
    assert {end for head, _, tail in train for end in (head, tail)} == set(entities.values())
    assert {relation for _, relation, _ in train} == set(relations.values())

    wanted = [round(part * len(together)) for part in parts]
    drawn = [len(found["valid"]), len(found["test"])]
    assert all(have <= want for have, want in zip(drawn, wanted, strict=True))
    assert drawn == wanted or kept == len(train)
    again, _ = draw_splits(facts, len(entities), len(relations), parts, seed)
    for split in SPLITS:
        for one, other in zip(splits[split], again[split], strict=True):
            np.testing.assert_array_equal(one, other)


def test_drawn_splits_of_an_import(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    facts = {
        tuple(f"{prefix}{generator.integers(size)}" for prefix, size in (("e", 50), ("r", 3), ("e", 50)))
        for _ in range(900)
    }
    path = written(tmp_path / "a.tsv", as_tsv([*sorted(facts), ("lonely", "once", "only")] * 2))
    graph = imported(path, fractions=(0.1, 0.2), seed=1)
    count = len(facts) + 1
    assert graph.facts() == {
        "train": count - round(count * 0.1) - round(count * 0.2),
        "valid": round(count * 0.1),
        "test": round(count * 0.2),
    }
    assert facts_of(graph, "train") < facts_of(graph, "valid") < facts_of(graph, "test")
    assert facts_of(graph, "test") == facts | {("lonely", "once", "only")}
    assert ("lonely", "once", "only") in facts_of(graph, "train")
    assert graph.about["duplicates"] == count
    assert graph.about["split"].keys() == {"fractions", "seed", "kept_in_train"}
    again = imported(path, fractions=(0.1, 0.2), seed=1)
    other = imported(path, fractions=(0.1, 0.2), seed=2)
    assert facts_of(again, "valid") == facts_of(graph, "valid")
    assert facts_of(other, "valid") != facts_of(graph, "valid")


# Errors


GOOD = "a\tr\tb\n"
TRIPLE = f"<{IRI}a> <{IRI}r> <{IRI}b> .\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "line", "reason"),
    [
        (
            "a.tsv",
            GOOD + "\n" + "a\tr\n",
            {},
            3,
            "2 columns (separator: tab; --delimiter changes it) where 3 are expected: head, relation, tail",
        ),
        (
            "a.tsv",
            GOOD + "a\tr\tb\tc\n",
            {},
            2,
            "4 columns (separator: tab; --delimiter changes it) where 3 are expected: head, relation, tail",
        ),
        ("a.tsv", "a b c\n", {}, 1, "1 column (separator: tab; --delimiter changes it) where 3 are expected"),
        (
            "a.tsv",
            "a\tr\tb\tc\n",
            {},
            1,
            "choose three of them with --columns, or name them head, relation, tail in a header",
        ),
        ("a.csv", "h,r,t,weight\na,r,b,1\n", {}, 1, "4 columns (separator: comma; --delimiter changes it) where 3"),
        ("a.tsv", GOOD + "  \n", {}, 2, "1 column (separator: tab; --delimiter changes it)"),
        (
            "a.csv",
            "a,r,b\n\r\na,r\r\n",
            {},
            3,
            "2 columns (separator: comma; --delimiter changes it) where 3 are expected",
        ),
        (
            "a.csv",
            '"a\nb",r,b\na,r\n',
            {},
            3,
            "2 columns (separator: comma; --delimiter changes it) where 3 are expected",
        ),
        (
            "a.csv",
            "\nhead,relation,tail,note\na,r,b\n",
            {},
            3,
            "3 columns (separator: comma; --delimiter changes it) where line 2 has 4",
        ),
        (
            "a.csv",
            "a;r;b;x\na;r;b\n",
            {"columns": (1, 2, 3), "delimiter": ";"},
            2,
            "separator: ';'; --delimiter changes it) where line 1 has 4",
        ),
        ("a.csv", 'a,r,b\na,r,"b\nc,r,d\n', {}, 2, "a quote is opened here and never closed"),
        ("a.csv", 'a,r,b\n"a,r,b\nc,r,d', {}, 2, "a quote is opened here and never closed"),
        ("a.csv", 'a,r,b\na,r,"b' + "\nc,r,d" * 40_000, {}, 2, "field larger than field limit (131072); is a quote"),
        ("a.tsv", GOOD + "a\t\tb\n", {}, 2, "the relation is empty"),
        ("a.tsv", GOOD + "\n\t\t\n", {}, 3, "the head is empty"),
        ("a.tsv", GOOD + "a\tr\t \u00a0\n", {}, 2, "the tail is empty"),
        ("a.csv", 'head,relation,tail\na,r,b\n"",r,b\n', {}, 3, "the head is empty"),
        ("a.tsv", GOOD + f"a\tr\t{'b' * 100_001}\n", {}, 2, "the tail is longer than 100,000 characters"),
        ("a.tsv", GOOD + f"a\tr\t{'b' * 9_000_000}\n", {}, 2, "longer than 4,194,304 characters"),
        ("a.tsv", b"a\tr\tb\na\tr\t\xff\n", {}, 2, "the tail is not valid UTF-8"),
        ("a.csv", b"a,r,b\n\xed\xa0\x80,r,b\n", {}, 2, "the head is not valid UTF-8"),
        ("a.tsv", b"\xff\xfea\0\t\0", {}, 1, "2 columns"),
        ("a.csv", "x,y,z\na,r,b\n", {"columns": ("x", "y", "w")}, 1, "no column w; the columns are: x, y, z"),
        ("a.csv", "x,\x1b[2J,z\na,r,b\n", {"columns": ("x", "y", "z")}, 1, "no column y; the columns are: x, ·[2J, z"),
        ("a.csv", "a,r,b\n", {"columns": (1, 2, 4)}, 1, "no column 4: there are 3"),
        ("a.parquet", as_parquet(FACTS), {"columns": ("a", "b", "w")}, None, "no column w; the columns are: a, b, c"),
        ("a.parquet", as_parquet(FACTS), {"columns": (4, 1, 2)}, None, "no column 4: there are 3"),
        ("a.parquet", as_parquet([*FACTS, ("a", "", "b")]), {}, 6, "the relation is empty"),
        ("a.parquet", b"PAR1 is not all of it", {}, None, "cannot be read as Parquet"),
        ("a.parquet", as_parquet(FACTS)[:-20] + bytes(16) + b"PAR1", {}, None, "cannot be read as Parquet"),
        ("a.parquet.gz", packed(bytes(200 << 20)), {}, None, "swells to more than 104,857,600 bytes"),
        ("a.nt", TRIPLE + "\n" + f"<{IRI}a> <{IRI}r> b .\n", {}, 3, "The object of a triple must be"),
        ("a.nt", TRIPLE + f'<{IRI}a> <{IRI}r> "b\n', {}, 2, "Unexpected end"),
        ("a.nt", TRIPLE.encode() + f'<{IRI}a> <{IRI}r> "\xff" .\n'.encode("latin-1"), {}, 2, "Invalid UTF-8"),
        ("a.ttl", TRIPLE + f"<{IRI}a>\n <{IRI}r>\n other:b .\n", {}, 4, "The prefix other: has not been declared"),
        ("a.ttl", TRIPLE + f"<{IRI}a> <{IRI}r> <b> .\n", {}, 2, "No scheme found"),
        ("a.tsv", "", {}, None, "no facts in it"),
        ("a.csv", "head,relation,tail\n", {}, None, "no facts in it"),
        ("a.csv", "\n\n\n", {}, None, "no facts in it"),
        ("a.nt", "# nothing\n", {}, None, "no facts in it"),
        ("a.ttl", f"<{IRI}a> <{IRI}age> 3 .", {}, None, "no facts in it"),
        ("a.parquet", as_parquet(FACTS[:1])[:0], {}, None, "cannot be read as Parquet"),
        ("a.tsv.gz", GOOD, {}, 1, "the gzip data are broken from about here on: Not a gzipped file"),
        ("a.tsv.xz", GOOD, {}, 1, "the xz data are broken from about here on"),
        ("a.tsv.gz", packed(as_tsv(FACTS * 3))[:-9], {}, 16, "the gzip data are broken from about here on"),
        ("a.nt.gz", packed(as_ntriples(FACTS * 3))[:-9], {}, 16, "the gzip data are broken from about here on"),
        ("a.csv.xz", lzma.compress(as_csv(FACTS * 3))[:-9], {}, 16, "the xz data are broken from about here on"),
        ("a.parquet.gz", packed(as_parquet(FACTS))[:-9], {}, None, "the gzip data are broken"),
    ],
)
def test_errors_name_file_line_and_reason(
    tmp_path: Path, name: str, content: str | bytes, options: dict[str, Any], line: int | None, reason: str
) -> None:
    path = written(tmp_path / name, content)
    with pytest.raises(SourceError) as caught:
        imported(path, **options)
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert caught.value.line == line
    assert len(str(caught.value)) < 1000


def test_errors_stand_in_the_right_one_of_several_files(tmp_path: Path) -> None:
    good = written(tmp_path / "good.tsv", GOOD * 3)
    empty = written(tmp_path / "empty.tsv", "")
    bad = written(tmp_path / "bad.csv", "x,y,z\n\n,y,z\n")
    with pytest.raises(SourceError, match=r"bad\.csv, line 3: the head is empty"):
        imported(good, empty, bad, empty, good)


@pytest.mark.parametrize(
    ("ending", "content", "line", "reason"),
    [
        ("tsv", "\nb\tr\ta\n\nnew\tr\ta\na\tother\tb\n", 4, "the entity 'new' is in no training fact"),
        ("csv", 'head,relation,tail\nb,r,"a"\nb,other,a\nb,r,new', 3, "the relation 'other' is in no training fact"),
        ("nt", "<x:b> <x:r> <x:a> .\n# no fact\n<x:b> <x:r> 'no' .\n<x:b> <x:r> <x:new> .\n", 4, "the entity 'x:new'"),
        ("ttl", '\ufeff<x:b> <x:r> <x:a> ;\n <x:r> 5,\n"""6\n""",\n <x:new>\n.\n', 5, "the entity 'x:new'"),
        ("parquet", as_parquet([("a", "r", "b"), ("a", "r", "c")]), 2, "the entity 'c' is in no training fact"),
    ],
)
@pytest.mark.parametrize("split", ["valid", "test"])
def test_names_without_a_training_fact_are_shown_where_they_first_stand(
    tmp_path: Path, split: str, ending: str, content: str | bytes, line: int, reason: str
) -> None:
    train = written(tmp_path / "train.tsv", GOOD + "x:a\tx:r\tx:b\n")
    if ending == "nt" and isinstance(content, str):
        content = content.replace("'", '"')
    path = written(tmp_path / f"later.{ending}", content)
    with pytest.raises(SourceError) as caught:
        imported(train, **{split: [path]})
    assert (caught.value.path, caught.value.line) == (path, line)
    assert reason in caught.value.reason


def test_parquet_columns_must_hold_text_once(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": ["x"], "b": [0.5], "c": ["y"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="column b holds double, not text or whole numbers"):
        imported(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"a": ["x"], "b": ["y"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="2 columns where 3 are expected: head, relation, tail"):
        imported(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"a": ["x", "x"], "b": ["y", "y"], "c": ["z", None]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="line 2: the tail is empty"):
        imported(tmp_path / "a.parquet")
    twice = pa.Table.from_arrays([pa.array(["x"])] * 3, names=["a", "b", "a"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="two columns are called a"):
        imported(tmp_path / "a.parquet")
    bad = pa.array([b"good", b"\xff"], pa.binary())
    text = pa.StringArray.from_buffers(2, bad.buffers()[1], bad.buffers()[2])
    for column in (bad, text):
        parquet.write_table(pa.table({"a": ["x", "x"], "b": ["y", "y"], "c": column}), tmp_path / "a.parquet")
        with pytest.raises(SourceError, match="line 2: the tail is not valid UTF-8"):
            imported(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.json", "a", "a.tsv.zip"])
def test_the_format_must_be_known(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, GOOD)
    with pytest.raises(UsageError) as caught:
        imported(path)
    assert f"{path}: unknown format; known endings are .tsv .txt .csv .parquet" in str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_chosen_by_name_and_by_number_is_chosen_twice(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / f"a.{ending}", WRITERS[ending]([("a", "b", "c"), *FACTS]))
    with pytest.raises(UsageError, match=rf"a\.{ending}.*the same column is chosen twice"):
        imported(path, columns=("a", 1, 2))


def test_files_must_be_there(tmp_path: Path) -> None:
    source = written(tmp_path / "a.tsv", GOOD)
    missing = tmp_path / "missing.tsv"
    with pytest.raises(UsageError, match="no such file"):
        imported(source, missing)
    with pytest.raises(UsageError, match="no such file"):
        imported(source, valid=[missing])
    with pytest.raises(UsageError, match="no such file"):
        imported(source, labels=missing)
    with pytest.raises(UsageError, match="not a plain file"):
        imported(source, test=[tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file of a known format in it"):
        imported(tmp_path / "empty")
    with pytest.raises(UsageError, match="no source"):
        import_graph([])


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a\tA\nb\n", 2, "1 column (separator: tab) where 2 are expected: name, label"),
        ("a\tA\n\nb\t \n", 3, "the label is empty"),
        ("a\tA\n\tB\n", 2, "the name is empty"),
        (b"a\tA\nb\t\xff\n", 2, "the label is not valid UTF-8"),
    ],
)
def test_errors_of_label_files(tmp_path: Path, content: str | bytes, line: int, reason: str) -> None:
    labels = written(tmp_path / "labels.tsv", content)
    with pytest.raises(SourceError) as caught:
        imported(written(tmp_path / "a.tsv", GOOD), labels=labels)
    assert (caught.value.path, caught.value.line, caught.value.reason) == (labels, line, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": "xml"}, "no format is called 'xml'; there are tsv, csv, parquet, nt, ttl"),
        ({"columns": (1, 2)}, "2 columns are chosen"),
        ({"columns": (0, 1, 2)}, "no column 0: they are counted from 1"),
        ({"columns": (1, 2, -3)}, "no column -3: they are counted from 1"),
        ({"columns": (1, 2, 2)}, "the same column is chosen twice"),
        ({"columns": ("x", "y", "x")}, "the same column is chosen twice"),
        ({"columns": ("x", 2, 3), "header": False}, "no header"),
        ({"delimiter": "::"}, "cannot separate cells"),
        ({"delimiter": '"'}, "cannot separate cells"),
        ({"delimiter": "→"}, "cannot separate cells"),
        ({"fractions": (0.5, 0.5)}, "do not leave a part"),
        ({"fractions": (-0.1, 0.5)}, "do not leave a part"),
        ({"fractions": (float("nan"), 0.1)}, "do not leave a part"),
        ({"fractions": (0.1, 0.1), "valid": [Path("x")]}, "not both"),
        ({"unseen": "keep"}, "not 'keep'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ImportOptions(**options)


def test_splits_are_not_drawn_from_a_folder_that_has_some(tmp_path: Path) -> None:
    written(tmp_path / "train.tsv", GOOD)
    written(tmp_path / "test.tsv", GOOD)
    with pytest.raises(UsageError, match="splits of its own"):
        imported(tmp_path, fractions=(0.1, 0.1))


# The quick and the slow reading of a table agree


def table_rows(path: Path, quoted: bool) -> list[tuple[str, ...]] | SourceError:
    """What the quick path reads, or the error that the slow one finds."""
    reader = TableReader(path, Meter(0), "," if quoted else "\t", quoted, header=False)
    rows: list[tuple[str, ...]] = []
    try:
        for batch in reader.batches():
            rows += zip(*(column.to_pylist() for column in batch), strict=True)
    except SourceError as error:
        return error
    for number, row in enumerate(rows):
        assert 1 <= reader.line_of(number) <= path.read_bytes().count(b"\n") + path.read_bytes().count(b"\r") + 1, row
    return rows


@settings(max_examples=500)
@given(st.booleans(), st.text(st.sampled_from('ab"\n\r, \té\0'), max_size=40))
@example(True, 'a,b,"')
@example(True, 'a,b,c\n"')
@example(True, 'a,b,"c"d"\n')
@example(True, '"a\r\n",b,c\r\r')
def test_quick_and_slow_reading_agree(tmp_path_factory: pytest.TempPathFactory, quoted: bool, text: str) -> None:
    path = written(tmp_path_factory.getbasetemp() / "agree.txt", text)
    quick = table_rows(path, quoted)
    reader = TableReader(path, Meter(0), "," if quoted else "\t", quoted, header=False)
    try:
        slow: list[tuple[str, ...]] | SourceError = [tuple(cells) for _, cells in reader._records()]
    except SourceError as error:
        slow = error
    if isinstance(quick, SourceError):
        assert quick.line is not None
        assert isinstance(slow, SourceError) or any(len(row) != 3 for row in slow)
    else:
        assert slow == quick
