"""An index finds what it says it does, belongs to its weights, and is refused where it would miss too much."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from query2particles.engine.sets import Sets
from query2particles.engine.table import Table
from query2particles.errors import RunError, UsageError, WorkloadError
from query2particles.index import Index, build_index, open_index

ENTITIES, DIMENSION, CLUSTERS = 3000, 16, 60


def clustered(count: int, seed: int) -> torch.Tensor:
    """Rows of the same clusters, whatever the seed."""
    centres = torch.randn(CLUSTERS, DIMENSION, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    own = centres[torch.randint(CLUSTERS, (count,), generator=generator)]
    return own + 0.5 * torch.randn(count, DIMENSION, generator=generator)


TABLE = Table(clustered(ENTITIES, 1), 0.3 * torch.randn(ENTITIES, generator=torch.Generator().manual_seed(2)))
QUERIES = clustered(400, 3).view(200, 2, DIMENSION)
OTHERS = clustered(400, 4).view(200, 2, DIMENSION)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("indexed") / "index"
    return build_index(TABLE, [QUERIES[:50], QUERIES[50:]], folder, weights="these", recall=0.95)


def share(found: np.ndarray, best: np.ndarray) -> float:
    """Of the ids in a row of the one, those in the same row of the other."""
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found, best, strict=True)]))


def test_it_finds_what_it_says(index: Index) -> None:
    figures = index.figures
    assert figures.queries == 200
    assert 0.95 <= figures.recall <= 1
    assert figures.probes < figures.lists // 4
    assert share(index.best(QUERIES, 10).entities, TABLE.best(QUERIES, 10).entities) == pytest.approx(
        figures.recall, abs=1e-3
    )
    assert share(index.best(OTHERS, 10).entities, TABLE.best(OTHERS, 10).entities) > 0.9  # which it never saw


def test_no_fewer_lists_would_do(index: Index) -> None:
    fewer = replace(index, figures=replace(index.figures, probes=index.figures.probes - 1))
    assert index.figures.probes > 1
    assert share(fewer.found(QUERIES, 10).entities, TABLE.best(QUERIES, 10).entities) < 0.95


def test_what_it_finds_is_scored_as_by_the_table(index: Index) -> None:
    found = index.best(OTHERS, 10)
    for row, (entities, scores) in enumerate(zip(found.entities, found.scores, strict=True)):
        np.testing.assert_array_equal(scores, TABLE.scores_of(OTHERS[row], entities))
        assert list(zip(-scores, entities, strict=True)) == sorted(zip(-scores, entities, strict=True))


def test_a_look_into_all_lists_is_the_table(index: Index) -> None:
    everywhere = replace(index, figures=replace(index.figures, probes=index.figures.lists))
    found, best = everywhere.best(OTHERS, 10), TABLE.best(OTHERS, 10)
    np.testing.assert_array_equal(found.entities, best.entities)
    np.testing.assert_array_equal(found.scores, best.scores)


def test_what_is_excluded_is_passed_over(index: Index) -> None:
    everywhere = replace(index, figures=replace(index.figures, probes=index.figures.lists))
    closed = [row.tolist() for row in TABLE.best(OTHERS[:20], 30).entities]
    closed[3] = []
    excluded = Sets.of(closed, ENTITIES)
    found, best = everywhere.best(OTHERS[:20], 10, excluded), TABLE.best(OTHERS[:20], 10, excluded)
    np.testing.assert_array_equal(found.entities, best.entities)
    near = index.best(OTHERS[:20], 10, excluded)
    assert not any(set(own) & set(row) for own, row in zip(near.entities.tolist(), closed, strict=True))
    np.testing.assert_allclose(near.log_totals, best.log_totals, atol=0.1)


def test_totals_are_estimated_well(index: Index) -> None:
    off = np.abs(index.best(QUERIES, 10).log_totals - TABLE.best(QUERIES, 10).log_totals)
    assert off.mean() == pytest.approx(index.figures.log_total_error, abs=1e-3)
    assert off.max() < 1e-3  # the sample is the whole table, as there are few entities


def test_a_sample_stands_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query2particles.index._SAMPLE", 300)
    sampled = build_index(TABLE, [QUERIES], tmp_path / "index", weights="these")
    off = np.abs(sampled.best(OTHERS, 10).log_totals - TABLE.best(OTHERS, 10).log_totals)
    assert 0.01 < off.mean() < 0.3


def test_where_lists_hold_too_few_the_table_is_asked(index: Index) -> None:
    narrow = replace(index, figures=replace(index.figures, probes=1))
    found, best = narrow.best(OTHERS[:3], 500), TABLE.best(OTHERS[:3], 500)
    np.testing.assert_array_equal(found.entities, best.entities)
    assert (narrow.best(OTHERS[:1], ENTITIES + 5).entities >= 0).sum() == ENTITIES


def test_added_in_many_parts_it_is_the_same(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query2particles.index._HELD_AT_ONCE", 700)
    monkeypatch.setattr("query2particles.index._ADDED_AT_ONCE", 300)
    added: list[int] = []
    again = build_index(TABLE, [QUERIES], tmp_path / "index", weights="these", progress=added.append)
    assert sum(added) == ENTITIES
    assert again.figures == index.figures
    np.testing.assert_array_equal(again.best(OTHERS, 10).entities, index.best(OTHERS, 10).entities)
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "centres.faiss",
        "index.json",
        "lists.bin",
        "sizes.npy",
    ]


def test_a_recall_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "index"
    noise = torch.randn(300, 1, DIMENSION, generator=torch.Generator().manual_seed(5))
    with pytest.raises(RunError, match=r"0\.999 cannot be reached .*--most-probes"):
        build_index(TABLE, [noise], target, weights="these", recall=0.999, most_probes=2)
    assert list(tmp_path.iterdir()) == []
    assert build_index(TABLE, [noise], target, weights="these", recall=0.999, most_probes=55).figures.recall >= 0.999


def test_an_index_that_is_there_stays_where_the_new_one_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "index"
    build_index(TABLE, [QUERIES], target, weights="old")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(RunError):
        build_index(TABLE, [QUERIES], target, weights="new", recall=1.0, most_probes=1)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_it_opens_again(tmp_path: Path) -> None:
    built = build_index(TABLE, [QUERIES], tmp_path / "index", weights="these", lists=40)
    opened = open_index(tmp_path / "index", TABLE, weights="these", again="q2p index RUN")
    assert opened.figures == built.figures
    assert opened.figures.lists == 40
    np.testing.assert_array_equal(opened.best(OTHERS, 10).entities, built.best(OTHERS, 10).entities)


def test_another_table_or_broken_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build_index(TABLE, [QUERIES], folder, weights="these")

    def refused(words: str, table: Table = TABLE, weights: str = "these") -> None:
        with pytest.raises(RunError, match=words) as raised:
            open_index(folder, table, weights=weights, again="q2p index RUN")
        assert "q2p index RUN" in str(raised.value)

    refused("other weights", weights="those")
    refused("not of this table", table=TABLE.part(0, 100))
    lists, about = folder / "lists.bin", folder / "index.json"
    whole = lists.read_bytes()
    lists.write_bytes(whole[:-8])
    refused("cannot be read")
    lists.write_bytes(whole)
    document = json.loads(about.read_text("utf-8"))
    about.write_text(json.dumps({**document, "format": 2}), "utf-8")
    refused("another version")
    figures = document["figures"]
    wrong = [{**figures, "probes": 2.5}, {**figures, "probes": "2"}, {**figures, "recall": None}, {}]
    without = {key: value for key, value in document.items() if key != "weights"}
    documents: list[object] = [[], {}, without, *({**document, "figures": one} for one in wrong)]
    for broken in documents:
        about.write_text(json.dumps(broken), "utf-8")
        refused("cannot be read")
    about.write_text("nothing", "utf-8")
    refused("cannot be read")
    about.write_text(json.dumps(document), "utf-8")
    sizes = (folder / "sizes.npy").read_bytes()
    (folder / "sizes.npy").write_bytes(b"")
    refused("cannot be read")
    (folder / "sizes.npy").write_bytes(sizes)
    lists.write_bytes(b"\x7f" * len(whole))
    damaged = open_index(folder, TABLE, weights="these", again="")
    with pytest.raises(RunError, match="names entities that are not there"):
        damaged.best(OTHERS, 10)
    lists.write_bytes(whole)
    (folder / "centres.faiss").write_bytes(b"IwFl")
    about.write_text(json.dumps(document), "utf-8")
    refused("cannot be read")


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recall"):
        build_index(TABLE, [QUERIES], tmp_path / "index", weights="", recall=1.5)
    with pytest.raises(UsageError, match="lists"):
        build_index(TABLE, [QUERIES], tmp_path / "index", weights="", lists=ENTITIES + 1)
    with pytest.raises(UsageError, match="at most a quarter"):
        build_index(TABLE, [QUERIES], tmp_path / "index", weights="", k=ENTITIES // 4 + 1)
    with pytest.raises(WorkloadError, match="no queries"):
        build_index(TABLE, [], tmp_path / "index", weights="")
    assert list(tmp_path.iterdir()) == []
