"""Embeddings on disk are those of the model, under their names, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from query2particles.errors import UsageError
from query2particles.export import FORMATS, Format, export_embeddings, format_of
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.methods.q2p import Q2P, Settings

NAMES = ["plain", "tab\there", "line\nbreak", "back\\slash\\t", 'quo"te', "Zürich"]


@pytest.fixture(scope="module")
def graph() -> Graph:
    import numpy as np

    columns = np.array([0, 1, 2, 3]), np.array([0, 1, 0, 1]), np.array([4, 5, 4, 5])
    labels = [name.upper() for name in NAMES]
    return Graph.of(Vocabulary.of(NAMES, labels), Vocabulary.of(["in", "near to"]), {"train": columns}, {"name": "odd"})


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def model(request: pytest.FixtureRequest, graph: Graph) -> Q2P:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = Q2P(len(graph.entities), 4, Settings(dimension=3, particles=2, bias=request.param))
        if model.bias is not None:
            torch.nn.init.normal_(model.bias)
        return model


def test_safetensors(graph: Graph, model: Q2P, tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    assert export_embeddings(graph, model, target, "safetensors") == (10, 3)
    with safe_open(target, framework="pt") as file:
        about = file.metadata()
        names = set(file.keys())
        assert names == {"entities", "relations", "offsets", *(["bias"] if model.bias is not None else [])}
        for name in names:
            assert torch.equal(file.get_tensor(name), getattr(model, name))
    assert json.loads(about["entities"]) == NAMES
    assert json.loads(about["relations"]) == ["in", "^in", "near to", "^near to"]
    assert about["fingerprint"] == graph.fingerprint


def test_parquet(graph: Graph, model: Q2P, tmp_path: Path) -> None:
    from pyarrow import parquet

    target = tmp_path / "out.parquet"
    assert export_embeddings(graph, model, target, "parquet") == (10, 3)
    rows = parquet.read_table(target).to_pylist()
    assert [row["kind"] for row in rows] == ["entity"] * 6 + ["relation"] * 4
    assert [row["name"] for row in rows] == [*NAMES, "in", "^in", "near to", "^near to"]
    assert [row["label"] for row in rows[:6]] == [name.upper() for name in NAMES]
    vectors = torch.tensor([row["embedding"] for row in rows])
    assert torch.equal(vectors, torch.cat([model.entities, model.relations]))
    biases = [None] * 6 if model.bias is None else model.bias.tolist()
    assert [row["bias"] for row in rows] == [*biases, None, None, None, None]


def test_tsv(graph: Graph, model: Q2P, tmp_path: Path) -> None:
    target = tmp_path / "out.tsv"
    assert export_embeddings(graph, model, target, "tsv") == (10, 3)
    header, *lines = target.read_bytes().decode().removesuffix("\n").split("\n")
    assert header == "kind\tname\tlabel\tbias\tx0\tx1\tx2"
    rows = [line.split("\t") for line in lines]
    assert [unescaped(row[1]) for row in rows] == [*NAMES, "in", "^in", "near to", "^near to"]
    vectors = torch.tensor([[float(cell) for cell in row[4:]] for row in rows])
    assert torch.equal(vectors, torch.cat([model.entities, model.relations]))
    assert (rows[0][3] == "") == (model.bias is None)
    assert rows[-1][3] == ""


def unescaped(cell: str) -> str:
    for escape, character in (("\\\\", "\0"), ("\\t", "\t"), ("\\n", "\n"), ("\0", "\\")):
        cell = cell.replace(escape, character)
    return cell


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_there_stays_until_all_is_written(
    form: Format, graph: Graph, model: Q2P, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / f"out.{form}"
    target.write_text("before")
    monkeypatch.setattr(Vocabulary, "name", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_embeddings(graph, model, target, form)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "before"


def test_the_ending_names_the_format(tmp_path: Path) -> None:
    assert [format_of(tmp_path / f"x.{form}") for form in FORMATS] == list(FORMATS)
    for name in ("x.csv", "x", "tsv"):
        with pytest.raises(UsageError, match=r"--format safetensors\|parquet\|tsv"):
            format_of(tmp_path / name)
