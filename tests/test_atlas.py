"""The embedded graph: built from its inputs, large enough, sourced, and right where a person can judge."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from query2particles import ask
from query2particles.graph import folders
from query2particles.graph.graph import Graph

ROOT = Path(__file__).parent.parent
BUILT = Path(folders.__file__).parent / "atlas"


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "atlas" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def labels(graph: Graph, question: str) -> set[str]:
    return {answer.label for answer in ask(graph, question, k=1000).answers}


def test_the_committed_build_is_a_fresh_build() -> None:
    done = subprocess.run([sys.executable, ROOT / "atlas" / "build.py", "--check"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_it_is_as_large_as_promised(atlas: Graph) -> None:
    assert len(atlas.entities) >= 2000
    assert len(atlas.relations) >= 12
    assert atlas.at("test").facts >= 12_000
    assert all(count > 1000 for count in atlas.facts().values())
    assert sum(path.stat().st_size for path in BUILT.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", ["laureates.tsv", "organisations.tsv", "languages.tsv"])
def test_every_hand_written_fact_has_its_source(name: str) -> None:
    assert len(rows(name)) > 100
    assert all(row["source"].strip() for row in rows(name))


def test_it_says_whom_the_data_come_from(atlas: Graph) -> None:
    for word in ("GeoNames", "CC BY 4.0", "capitals and borders as GeoNames has them"):
        assert word in atlas.about["attribution"]
    assert "GeoNames" in (ROOT / "NOTICE").read_text("utf-8")


def test_what_everybody_knows(atlas: Graph) -> None:
    assert labels(atlas, "France.^capital_of") == {"Paris"}
    assert labels(atlas, "Portugal.borders") == {"Spain"}
    assert labels(atlas, "Switzerland.speaks") == {"German", "French", "Italian", "Romansh"}
    assert labels(atlas, '"Turing Award".^award_received & 1974.^award_year') == {"Donald Knuth"}
    assert {"Geoffrey Hinton", "Yoshua Bengio", "Yann LeCun"} == labels(atlas, "2018.^award_year")
    assert labels(atlas, '"Barbara Liskov".graduated_from') == {
        "University of California, Berkeley",
        "Stanford University",
    }


def test_everything_is_in_training(atlas: Graph) -> None:
    """Nothing is asked of a model that it never saw."""
    train = atlas.at("train")
    assert all(len(train.relations_of(entity)) > 0 for entity in range(len(atlas.entities)))
    assert (train.edges_by_relation > 0).all()


def test_laureates_are_complete(atlas: Graph) -> None:
    laureates = labels(atlas, '"Turing Award".^award_received')
    assert len(laureates) == 81
    for question in ("award_year", "field", "employed_by"):
        assert all(labels(atlas, f'"{name}".{question}') for name in laureates)
