"""What a search for the best entities answers is what the scores of all say; an index says that it is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from query2particles.answer import Answers, Question, Ranked, Reasoner
from query2particles.engine.table import Table
from query2particles.errors import RunError, UsageError
from query2particles.graph.graph import Graph
from query2particles.index import build_index
from query2particles.query.algebra import ground
from query2particles.query.syntax import format_query
from query2particles.run import Run
from query2particles.searched import Searching
from query2particles.train import train
from query2particles.workload.selection import drawn_queries
from reasoners import random_reasoner
from trainings import tiny
from worlds import random_graph

GRAPH = random_graph(8, entities=80, relations=3, facts=600)
DENSE = random_reasoner(GRAPH)
assert DENSE.model is not None
BLOCKS = Reasoner(GRAPH, model=DENSE.model, calibration=DENSE.calibration, split="train", search=Table.of(DENSE.model))


def questions() -> Iterator[str]:
    batch, _ = drawn_queries(GRAPH, "valid", most=2, seed=0)
    assert len(batch) == 14
    for shape, ids in batch.items():
        for row in ids.tolist():
            yield format_query(ground(shape, row), DENSE.lexicon)
    yield from ("!e1.r0", "!(e1.r0 | e2.r1)", "!!e1", "e1.r0 & !e1.r0", "!e3")


QUESTIONS = list(questions())


def same(one: Answers, other: Answers) -> None:
    assert (one.query, one.shape, one.method, one.total) == (other.query, other.shape, other.method, other.total)
    assert [(a.entity_id, a.name) for a in one.answers] == [(a.entity_id, a.name) for a in other.answers]
    for a, b in zip(one.answers, other.answers, strict=True):
        assert isinstance(a, Ranked)
        assert isinstance(b, Ranked)
        assert (a.status, a.particle) == (b.status, b.particle)
        assert a.score == pytest.approx(b.score, abs=1e-5)
        assert a.probability == pytest.approx(b.probability, abs=1e-5)


@pytest.mark.parametrize("only", [None, "known", "predicted"])
@pytest.mark.parametrize("method", ["both", "neural"])
@pytest.mark.parametrize("k", [3, 200])
def test_blocks_answer_as_all_scores_do(method: str, only: str | None, k: int) -> None:
    asked = [Question(text, k=k, method=method, only=only) for text in QUESTIONS]  # type: ignore[arg-type]
    for one, other in zip(BLOCKS.answer_many(asked), DENSE.answer_many(asked), strict=True):
        assert isinstance(one, Answers)
        assert isinstance(other, Answers)
        same(one, other)
        assert one.as_json()["search"] == {"by": "blocks", "exact": True}
        assert "search" not in other.as_json()


def test_an_index_of_all_lists_answers_as_all_scores_do(tmp_path: Path) -> None:
    table = BLOCKS.search
    assert isinstance(table, Table)
    index = build_index(table, [torch.ones(3, 1, 8)], tmp_path / "index", weights="", lists=5, most_probes=5)
    everywhere = replace(index, figures=replace(index.figures, probes=5))
    assert DENSE.model is not None
    own = Reasoner(GRAPH, model=DENSE.model, calibration=DENSE.calibration, split="train", search=everywhere)
    asked = [Question(text, k=7) for text in QUESTIONS]
    for one, other in zip(own.answer_many(asked), DENSE.answer_many(asked), strict=True):
        assert isinstance(one, Answers)
        assert isinstance(other, Answers)
        same(one, other)
        assert one.search == {"by": "index", "exact": False, "recall": index.figures.recall, "recall_at": 10}


def test_a_map_needs_no_scores_of_all() -> None:
    one, other = (reasoner.map("e1.r0.r2") for reasoner in (BLOCKS, DENSE))
    assert [point.answer.entity_id for point in one.points] == [point.answer.entity_id for point in other.points]
    np.testing.assert_allclose(one.particles, other.particles, atol=1e-5)


def test_facts_alone_need_no_search() -> None:
    assert BLOCKS.answer(Question("e1.r0", method="exact")).search is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("run")
    GRAPH.save(place / "graph")
    own = Run.create(place / "run", tiny("q2p"), GRAPH, str(place / "graph"))
    train(own, GRAPH)
    return own


def test_a_large_run_is_answered_in_blocks_from_its_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Reasoner.open(run.folder)
    assert dense.search is None
    monkeypatch.setattr("query2particles.searched._LARGE", 1)
    blocks = Reasoner.open(run.folder)
    assert isinstance(blocks.search, Table)
    same(blocks.answer("e1.r0.r1"), dense.answer("e1.r0.r1"))


def test_an_index_is_used_where_there_is_one_of_these_weights(run: Run, tmp_path: Path) -> None:
    from query2particles.cli import app

    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    with pytest.raises(UsageError, match="q2p index"):
        Reasoner.open(folder, searching=Searching("index"))
    app(["index", str(folder), "--lists", "4", "--most-probes", "4", "--recall", "1", "--json"], standalone_mode=False)
    exact = Reasoner.open(folder, searching=Searching("exact"))
    assert exact.search is None
    for by in ("auto", "index"):
        indexed = Reasoner.open(folder, searching=Searching(by))
        found = indexed.answer("e1.r0.r1")
        same(found, exact.answer("e1.r0.r1"))
        assert found.search is not None
        assert found.search["by"] == "index"
        assert found.search["recall"] == 1
    again = Run.open(folder)
    other = Run.create(tmp_path / "other", tiny("q2p", "seed=5"), GRAPH, again.graph_folder)
    train(other, GRAPH)
    shutil.copy(other.folder / "best.safetensors", folder / "best.safetensors")
    with pytest.raises(RunError, match=r"other weights .*q2p index"):
        Reasoner.open(folder)
    assert Reasoner.open(folder, searching=Searching("exact")).answer("e1.r0.r1").search is None


def test_an_index_measures_by_queries_of_a_folder_too(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from calls import Call

    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    call = Call(capsys)
    call("sample", run.graph_folder, "--shapes", "2p,2i", "--count", "5", "--split", "valid", "--out", tmp_path / "set")
    told = call.json("index", folder, "--queries", tmp_path / "set", "--lists", "4", "--most-probes", "4")
    assert told["queries"] == 10
    assert told["entities"] == 80
    call("answer", folder, "e1.r0.r1")
    assert f"which finds {100 * told['recall']:.1f} % of the best 10; --search exact looks at all." in call.stderr
    call("answer", folder, "e1.r0.r1", "--search", "exact")
    assert "index" not in call.stderr
    for option in (("--search", "index"), ("--cluster", "2")):
        with pytest.raises(UsageError, match="only a run is searched"):
            call("answer", run.graph_folder, "e1.r0.r1", *option)
    with pytest.raises(UsageError, match="inner products"):
        call("index", _boxes(tmp_path, run.graph_folder, GRAPH))


def test_a_joined_run_is_guided_by_the_index_of_its_vectors(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from query2particles.cli import app
    from query2particles.joined import join
    from query2particles.methods.guided import Guided
    from query2particles.methods.joint import Joint
    from query2particles.train import validation_set

    links = Run.create(tmp_path / "links", tiny("links"), GRAPH, run.graph_folder)
    train(links, GRAPH)
    joined, _ = join(tmp_path / "joined", run, links, GRAPH, validation_set(GRAPH, run.config.training))
    app(["index", str(joined.folder), "--lists", "4", "--most-probes", "4", "--json"], standalone_mode=False)
    assert (joined.folder / "vectors" / "index" / "index.json").is_file()
    few = Reasoner.open(joined.folder)
    assert isinstance(few.model, Joint)  # which scores all entities, as there are few
    assert few.answer(Question("e1.r0", method="best")).search is None
    fast = few.answer(Question("e1.r0", method="fast")).search
    monkeypatch.setattr("query2particles.searched._LARGE", 1)  # a joined run is loaded, whatever its size
    assert isinstance(Reasoner.open(joined.folder).model, Joint)
    monkeypatch.setattr("query2particles.searched._MANY", 80)
    for reasoner in (Reasoner.open(joined.folder), Reasoner.open(joined.folder, searching=Searching("index"))):
        assert isinstance(reasoner.model, Guided)
        for method in ("best", "fast"):
            found = reasoner.answer(Question("e1.r0", method=method)).search
            assert found is not None
            assert found["by"] == "index"
            assert found == (fast if method == "fast" else {**(fast or {}), "guides": True})
        reasoner.model.guide = replace(reasoner.model.guide, proposals=3, answers=5)  # fewer than the index looks at
        assert len(reasoner.answer(Question("e1.r0.r1", method="best", k=7)).answers) == 7
    exact = Reasoner.open(joined.folder, searching=Searching("exact"))
    assert isinstance(exact.model, Joint)
    assert exact.answer(Question("e1.r0", method="fast")).search == {"by": "blocks", "exact": True}


def _boxes(place: Path, graph_folder: str, graph: Graph) -> Path:
    """A run without a table: distances are no inner products."""
    own = Run.create(place / "boxes", tiny("q2b", "updates=1"), graph, graph_folder)
    train(own, graph)
    return own.folder
