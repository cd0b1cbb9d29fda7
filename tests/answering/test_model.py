"""The Python face: fit, ask, explain, judge, measure, save and load, as a notebook does it."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import query2particles as q2p
from query2particles.errors import UnknownNameError, UsageError, WorkloadError
from query2particles.run import GRAPH

SMALL = {"dimension": 8, "updates": 30, "validate_every": 30, "validation_queries": 5, "warm_up": 2}
TINY = {f"{part}.{key}": value for part in ("vectors", "links") for key, value in SMALL.items()}


def towns(seed: int = 0) -> pd.DataFrame:
    """Towns in_regions in countries, and who lives where: facts that follow from each other."""
    generator = np.random.default_rng(seed)
    rows = [(f"town_{town}", "in_region", f"region_{town % 12}") for town in range(120)]
    rows += [(f"region_{region}", "in_country", f"country_{region % 4}") for region in range(12)]
    rows += [(f"town_{town}", "in_country", f"country_{town % 12 % 4}") for town in range(120)]
    rows += [(f"person_{one}", "lives_in", f"town_{generator.integers(120)}") for one in range(150)]
    return pd.DataFrame(rows, columns=["head", "relation", "tail"])


@pytest.fixture(scope="module")
def model() -> q2p.Model:
    return q2p.fit(q2p.Graph.from_pandas(towns(), name="towns"), "q2p", settings=SMALL, progress=False)


def test_a_model_of_a_frame_answers(model: q2p.Model) -> None:
    answers = model.ask("region_3.^in_region", k=5)
    assert len(answers) == 5
    assert answers.total == 10
    assert [one.label for one in answers] == [answers[number].label for number in range(5)]
    assert answers[1:3] == answers.answers[1:3]
    frame = answers.to_pandas()
    assert list(frame.columns) == ["name", "label", "status", "probability", "score"]
    assert list(frame["label"]) == [one.label for one in answers]
    assert "10 known" in repr(answers)
    assert "\n" not in repr(answers)
    assert '"total": 10' in answers.to_json()


def test_an_expression_asks_the_same(model: q2p.Model) -> None:
    region = model.graph["region_3"].inverse("in_region")
    assert model.ask(region & ~model.graph["town_3"]).canonical == "region_3.^in_region & !town_3"
    assert model.ask(region).answers == model.ask("region_3.^in_region").answers


def test_names_in_tables_are_text(model: q2p.Model) -> None:
    graph = q2p.Graph.from_triples([("<b>x</b>", "is", "a & b")], splits=None)
    html = q2p.ask(graph, '"a & b".^is')._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>" not in html
    assert model.ask("country_1.^in_country")._repr_html_().startswith("<table>")


def test_evidence_is_asked_for_by_answer_or_by_name(model: q2p.Model) -> None:
    answers = model.ask("country_1.^in_country", k=3)
    by_answer = model.explain(answers[0])
    by_name = model.explain("country_1.^in_country", answers[0].name)
    assert by_answer.as_json()["tree"] == by_name.as_json()["tree"]
    assert str(by_answer).startswith(f"{answers[0].label}: known")
    assert "in_country(" in str(by_answer)
    assert "\n" not in repr(by_answer)
    assert by_answer._repr_html_().startswith("<pre>")
    with pytest.raises(UnknownNameError):
        model.explain("country_1.^in_country", "nowhere")
    with pytest.raises(UsageError, match="explain takes an answer"):
        model.explain("country_1.^in_country")
    with pytest.raises(UsageError, match="explain takes an answer"):
        model.explain(answers[0], "town_1")


def test_facts_are_judged_and_discovered(model: q2p.Model) -> None:
    stored, other = model.probability([("town_3", "in_region", "region_3"), ("town_3", "in_region", "region_4")])
    assert stored == 1
    assert 0 <= other < 1
    found = model.discover(relation="lives_in", k=4)
    frame = found.to_pandas()
    assert len(found) == len(frame) == 4
    assert set(frame["relation"]) == {"lives_in"}
    assert list(frame["probability"]) == sorted(frame["probability"], reverse=True)


def test_a_model_is_measured_beside_baselines(model: q2p.Model) -> None:
    alone = model.evaluate(queries=10, progress=False)
    assert alone.verdict is None
    assert not alone.baselines
    measured = model.evaluate(queries=10, baselines=True, progress=False)
    assert measured.mrr == alone.mrr
    assert measured.verdict is not None
    frame = measured.to_pandas()
    assert list(frame.columns) == ["shape", "queries", "q2p", "frequent-tails", "relax-and-count"]
    assert frame["q2p"].between(0, 1).all()
    assert frame["q2p"].mean() == pytest.approx(measured.mrr)


def test_a_run_moves_with_its_graph(model: q2p.Model, tmp_path: Path) -> None:
    """Saved, moved as a folder, opened again: the same answers."""
    model = q2p.fit(model.graph, "q2p", settings=SMALL, progress=False)
    before, place = model.ask("region_3.^in_region", k=50).answers, model.folder
    model.save(tmp_path / "saved")
    assert model.folder == tmp_path / "saved"
    gc.collect()
    assert not place.exists(), "the temporary folder is gone"
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    again = q2p.load(tmp_path / "moved")
    assert (tmp_path / "moved" / GRAPH).is_dir()
    assert again.ask("region_3.^in_region", k=50).answers == before
    with pytest.raises(UsageError, match="is there already"):
        again.save(tmp_path / "moved")


def test_a_run_that_is_not_saved_goes_with_its_model() -> None:
    model = q2p.fit(q2p.Graph.from_pandas(towns()), "links", settings=SMALL, progress=False)
    folder = model.folder
    assert folder.is_dir()
    del model
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
def test_best_is_the_default_and_goes_on_where_it_was(tmp_path: Path) -> None:
    graph = q2p.Graph.from_pandas(towns())
    model = q2p.fit(graph, folder=tmp_path / "run", settings=TINY, progress=False)
    assert model.method == "best"
    assert model.ask("region_3.^in_region").expected_more is not None
    again = q2p.fit(graph, folder=tmp_path / "run", settings=TINY, progress=False)  # nothing is trained twice
    assert again.ask("region_3.^in_region").answers == model.ask("region_3.^in_region").answers
    assert str(tmp_path) in repr(again)
    with pytest.raises(UsageError, match="other settings"):
        q2p.fit(graph, folder=tmp_path / "run", settings={**TINY, "vectors.dimension": 4}, progress=False)


def test_the_same_seed_gives_the_same_model(model: q2p.Model) -> None:
    again = q2p.fit(model.graph, "q2p", settings=SMALL, progress=False)
    other = q2p.fit(model.graph, "q2p", settings=SMALL, seed=1, progress=False)
    asked: dict[str, Any] = {"question": "country_1.^in_country", "k": 20}
    assert again.ask(**asked).answers == model.ask(**asked).answers
    assert other.ask(**asked).answers != model.ask(**asked).answers


def test_minutes_choose_sizes() -> None:
    model = q2p.fit(q2p.Graph.from_pandas(towns()), "links", minutes=0.05, progress=False)
    assert model.run.config.training.updates >= 20
    with pytest.raises(UsageError, match="above 0"):
        q2p.fit(model.graph, minutes=0, progress=False)


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    graph = q2p.Graph.from_triples([("a", "r", "b"), ("b", "r", "c")], splits=None)
    with pytest.raises(WorkloadError, match="no validation facts"):
        q2p.fit(graph, progress=False)
    with pytest.raises(UsageError, match="there is no method 'nope'"):
        q2p.fit(graph, "nope", progress=False)
    with pytest.raises(UsageError, match="did you mean dimension"):
        q2p.fit(graph, "q2p", settings={"dimensoin": 3}, progress=False)
    with pytest.raises(UsageError, match="auto, cpu or cuda"):
        q2p.fit(graph, "q2p", device="tpu", progress=False)
    with pytest.raises(UsageError, match="is a graph, not a run"):
        q2p.load("atlas")
    with pytest.raises(UsageError, match="no run"):
        q2p.load(tmp_path / "nothing")
    with pytest.raises(UsageError, match="a question is a text"):
        q2p.ask(graph, 5)  # type: ignore[arg-type]


def test_every_public_object_is_one_short_line(model: q2p.Model) -> None:
    things = (model, model.graph, model.ask("region_3.^in_region"), model.evaluate(queries=5, progress=False))
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 160
