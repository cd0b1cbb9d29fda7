"""The scripts of a comparison with other packages: a part of NELL, and the ranks that all are judged by."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from query2particles.graph.edges import Ints
from query2particles.graph.load import import_graph

SCRIPTS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def fact_ranks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("fact_ranks")


def run(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def lay_out_nell(folder: Path) -> set[tuple[str, str, str]]:
    """A benchmark folder of random facts, every edge followed by its inverse; all of its facts by their labels."""
    rng = np.random.default_rng(0)
    facts = np.stack([rng.integers(200, size=900), rng.integers(3, size=900), rng.integers(200, size=900)], axis=1)
    facts = np.unique(facts, axis=0)
    (folder / "NELL").mkdir(parents=True)
    parts = np.array_split(rng.permutation(facts), [600, 700])
    for split, own in zip(("train", "valid", "test"), parts, strict=True):
        lines = [f"{h}\t{2 * r}\t{t}\n{t}\t{2 * r + 1}\t{h}\n" for h, r, t in own.tolist()]
        (folder / "NELL" / f"{split}.txt").write_text("".join(lines))
    labels = ["twin" if number < 2 else f"thing {number}" for number in range(200)]
    (folder / "NELL" / "entities.tsv").write_text(
        "".join(f"{n}\tname_{n}\t{label}\n" for n, label in enumerate(labels))
    )
    ends = ("", "_reverse")
    names = [f"{n}\tc:r{n // 2}{ends[n % 2]}\trelation {n // 2}{ends[n % 2]}\n" for n in range(6)]
    (folder / "NELL" / "relations.tsv").write_text("".join(names))
    shown = [f"name_{number}" if number < 2 else label for number, label in enumerate(labels)]
    return {(shown[h], f"relation {r}", shown[t]) for h, r, t in facts.tolist()}


def test_a_part_of_nell(tmp_path: Path) -> None:
    everything = lay_out_nell(tmp_path)
    sizes = ("--data", tmp_path, "--entities", "120", "--facts", "250")
    for name, seed in (("one", "3"), ("again", "3"), ("other", "4")):
        done = run("nell_sample.py", "--out", tmp_path / f"{name}.tsv", *sizes, "--seed", seed)
        assert done.returncode == 0, done.stderr
    one, again, other = ((tmp_path / f"{name}.tsv").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other
    lines = [tuple(line.split("\t")) for line in one.decode().splitlines()]
    assert len(lines) == len(set(lines)) == 250
    assert set(lines) < everything
    assert len({end for head, _, tail in lines for end in (head, tail)}) == 120
    graph = import_graph([tmp_path / "one.tsv"])
    assert (len(graph.entities), graph.at("train").facts) == (120, 250)


def test_all_of_nell(tmp_path: Path) -> None:
    everything = lay_out_nell(tmp_path)
    sizes = ("--entities", "200", "--facts", str(len(everything)))
    done = run("nell_sample.py", "--out", tmp_path / "all.tsv", "--data", tmp_path, *sizes)
    assert done.returncode == 0, done.stderr
    assert {tuple(line.split("\t")) for line in (tmp_path / "all.tsv").read_text().splitlines()} == everything


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (("--entities", "201"), "error: there are 200 entities, 201 were asked for"),
        (("--entities", "120", "--facts", "30"), "error: 120 entities need from"),
        (("--entities", "120", "--facts", "3000"), "error: 120 entities need from"),
    ],
)
def test_a_part_of_nell_that_cannot_be(tmp_path: Path, sizes: tuple[str, ...], says: str) -> None:
    lay_out_nell(tmp_path)
    done = run("nell_sample.py", "--out", tmp_path / "none.tsv", "--data", tmp_path, *sizes)
    assert done.returncode == 1
    assert done.stderr.startswith(says)
    assert not (tmp_path / "none.tsv").exists()


def test_ranks_of_facts(fact_ranks: ModuleType) -> None:
    """Against one fact, one entity at a time; scores of few values, so that many tie, −∞ among them."""
    rng = np.random.default_rng(1)
    entities, relations = 15, 3
    known = np.unique(rng.integers(0, [entities, relations, entities], size=(120, 3)), axis=0)
    facts = rng.permutation(known)[:40]
    table = rng.choice([-np.inf, 0.0, 1.0, 2.0], size=(2, relations, entities, entities))

    def scores(some: Ints, inverse: int) -> torch.Tensor:
        return torch.as_tensor(table[inverse, some[:, 1], some[:, 2 if inverse else 0]])

    greater, equal = fact_ranks.count(scores, facts, known, chunk=7)
    stored = set(map(tuple, known.tolist()))
    ranks = []
    for number, (head, relation, tail) in enumerate(facts.tolist()):
        for inverse in (0, 1):
            asked, answer = (tail, head) if inverse else (head, tail)
            row = table[inverse, relation, asked]
            candidates = [
                row[other]
                for other in range(entities)
                if ((other, relation, tail) if inverse else (head, relation, other)) not in stored
            ]
            above, same = sum(value > row[answer] for value in candidates), candidates.count(row[answer])
            assert (greater[number, inverse], equal[number, inverse]) == (above, same)
            ranks.append(1 + above + same / 2)
    found = fact_ranks.figures(greater, equal)
    assert found["mrr"] == pytest.approx(100 * np.mean(1 / np.array(ranks)), abs=0.01)
    assert found["hits@3"] == pytest.approx(100 * np.mean(np.array(ranks) <= 3), abs=0.01)


def test_scores_that_are_no_numbers(fact_ranks: ModuleType) -> None:
    with pytest.raises(ValueError, match="no numbers"):
        fact_ranks.count(
            lambda some, _: torch.full((len(some), 2), torch.nan), np.zeros((1, 3), int), np.ones((1, 3), int)
        )


def test_our_part_of_a_comparison(tmp_path: Path) -> None:
    lay_out_nell(tmp_path)
    graph, ours = (
        tmp_path / "NELL",
        "train {graph} --method links --preset small --set updates=3 --set warm_up=1 --out {run}",
    )
    done = run("peers.py", graph, "--systems", "query2particles", "--ours", ours, "--out", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "results" / "peers-NELL.json").read_text())
    assert document["facts"]["train"] == 600
    assert 0 < document["systems"]["query2particles"]["mrr"] < 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--peers-python"),
        (("--systems", "others"), "no system others"),
        (("--systems", "query2particles", "--set", "pykeen.colour=1"), "no setting pykeen.colour"),
        (("--systems", "query2particles", "--set", "pykeen.lr=high"), "pykeen.lr is a number"),
    ],
)
def test_a_comparison_that_cannot_be(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = run("peers.py", "atlas", "--out", tmp_path, *words)
    assert done.returncode == 1
    assert says in done.stderr
