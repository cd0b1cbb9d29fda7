"""Every method of the registry through every verb: trained, resumed, evaluated, asked, explained, written out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from query2particles.answer import Answers, Question, Ranked, Reasoner
from query2particles.calibration import calibrate
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.method import lacking
from query2particles.engine.ranks import Factored
from query2particles.errors import UnsupportedError, UsageError
from query2particles.evaluate import evaluate
from query2particles.export import FORMATS, export_embeddings
from query2particles.methods.registry import METHODS, trainee_of
from query2particles.presets import PRESETS
from query2particles.query.algebra import SHAPES, Query, anchor_positions, ground, query_ids
from query2particles.query.syntax import format_query
from query2particles.run import Run
from query2particles.show import print_answered
from query2particles.train import Progress, prepare, train, validation_set
from trainings import contents, tiny
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)
each_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One of each method, trained when it is asked for."""
    folder = tmp_path_factory.mktemp("runs")
    GRAPH.save(folder / "graph")

    class Trained(dict[str, Run]):
        def __missing__(self, method: str) -> Run:
            torch.set_num_threads(1)
            run = Run.create(folder / method, tiny(method), GRAPH, str(folder / "graph"))
            train(run, GRAPH)
            self[method] = run
            return run

    return Trained()


def question(shape: Query, seed: int = 0) -> Query:
    """A query of this shape, whatever it asks."""
    limits = np.full(len(tuple(query_ids(shape))), GRAPH.at("train").relations)
    limits[anchor_positions(shape)] = len(GRAPH.entities)
    return ground(shape, np.random.default_rng(seed).integers(limits).tolist())


def answerable(run: Run, *, yes: bool = True) -> list[str]:
    """The shapes that the method of a run can answer, or those that it cannot."""
    operators = METHODS[run.config.method].operators
    ways = {name: Disjuncts.of(shape, run.config.training.unions).shapes for name, shape in SHAPES.items()}
    return [name for name, parts in ways.items() if bool(lacking(operators, *parts)) != yes]


@each_method
def test_training_moves_all_weights_and_ends_with_numbers(method: str, runs: dict[str, Run]) -> None:
    """Of what the method is trained on; it is saved, and the rest of the method is not."""
    run = runs[method]
    before = trainee_of(prepare(run.config, GRAPH, torch.device("cpu")).model).state_dict()
    weights = load_file(run.folder / "last.safetensors")
    own = {name.removeprefix("model."): one for name, one in weights.items() if name.startswith("model.")}
    assert own.keys() == before.keys()
    assert all(one.isfinite().all() for one in own.values())
    lines = run.read_trace()
    assert [line["update"] for line in lines if "validation" in line] == [4, 8, 12]
    assert all(line["validation"]["all"] > 0 for line in lines if "validation" in line)
    moments = {name for name in weights if name.startswith("optimiser.") and name.endswith("exp_avg_sq")}
    assert len(moments) == len(own), "every weight has a part in some query"
    assert all(weights[name].any() for name in moments)


@each_method
def test_a_trained_run_is_evaluated_on_what_it_can_answer(method: str, runs: dict[str, Run]) -> None:
    run = runs[method]
    validation = validation_set(GRAPH, run.config.training)
    assert validation is not None
    found = evaluate(run.model(GRAPH), *validation, unions=run.config.training.unions)
    assert list(found.shapes) == answerable(run)
    assert found.percentages(4)["all"] == max(
        line["validation"]["all"] for line in run.read_trace() if "validation" in line
    )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("gqe", ()),
        ("gqe", ("score=distance", "projection=translation", "loss=margin", "negatives=7", "subsampling=true")),
        ("q2b", ("negatives=5",)),
        ("betae", ("loss=margin", "negatives=5")),
        ("cone", ("negatives=5",)),
        ("links", ("model=rotate", "negatives=5")),
        ("cqd-beam", ()),
        ("cqd-co", ()),
        ("tree", ()),
        ("emql", ()),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else one,
)
def test_a_resumed_training_ends_as_if_left_alone(method: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    """Dropout and negatives come from torch's own generator, which is brought back too; every bit is the same."""
    config = tiny(method, *settings)
    alone, resumed = (Run.create(tmp_path / name, config, GRAPH, "atlas") for name in ("alone", "resumed"))
    train(alone, GRAPH)

    class Fallen(Exception):  # noqa: N818
        pass

    def fall(progress: Progress) -> None:
        if progress.update == 10:  # after the save of update 8
            raise Fallen

    with pytest.raises(Fallen):
        train(resumed, GRAPH, on_progress=fall)
    assert resumed.saved() is not None
    with torch.random.fork_rng():
        torch.manual_seed(99)
        how = train(Run.open(resumed.folder), GRAPH)
    assert how.update == 12
    assert contents(resumed.folder) == contents(alone.folder)


def test_two_seeds_are_two_trainings(tmp_path: Path, runs: dict[str, Run]) -> None:
    other = Run.create(tmp_path / "other", tiny("q2b", "seed=1"), GRAPH, "atlas")
    train(other, GRAPH)
    assert contents(other.folder)["best.safetensors"] != contents(runs["q2b"].folder)["best.safetensors"]


@each_method
def test_every_preset_makes_an_update(method: str) -> None:
    """Cut down in size alone: losses, negatives and mixes as they are."""
    for name in PRESETS[method]:
        prepared = prepare(tiny(method, "batch=40", name=name), GRAPH, torch.device("cpu"))
        before = [one.detach().clone() for one in prepared.saved.model.parameters()]
        prepared.update(1e-3)
        assert np.isfinite(prepared.update.mean_loss())
        moved = [not torch.equal(*pair) for pair in zip(before, prepared.saved.model.parameters(), strict=True)]
        assert any(moved)


@each_method
def test_only_tables_decay(method: str) -> None:
    config = tiny(method, "decay=0.7")
    prepared = prepare(config, GRAPH, torch.device("cpu"))
    model, optimiser = prepared.saved.model, prepared.optimiser
    decays = {id(one): group["weight_decay"] for group in optimiser.param_groups for one in group["params"]}
    tables = {id(one) for one in model.parameters(recurse=False)}
    assert decays == {id(one): 0.7 if id(one) in tables else 0.0 for one in model.parameters()}
    assert tables


@each_method
def test_answers_come_through_the_reasoner(method: str, runs: dict[str, Run]) -> None:
    """By name, ranked as the model scores them, alone as in company."""
    run = runs[method]
    reasoner = Reasoner.open(run.folder)
    queries = [question(SHAPES[name]) for name in answerable(run)]
    texts = [format_query(query, reasoner.lexicon) for query in queries]
    together = reasoner.answer_many([Question(text, k=40, method="neural") for text in texts])
    for text, query, found in zip(texts, queries, together, strict=True):
        assert isinstance(found, Answers)
        assert found.query == query
        scores = [one.score for one in found.answers if isinstance(one, Ranked)]
        assert len(scores) == len({one.entity_id for one in found.answers}) == len(GRAPH.entities)
        assert np.isfinite(scores).all()
        assert scores == sorted(scores, reverse=True)
        alone = reasoner.answer(Question(text, k=3, method="neural"))
        assert [one.score for one in alone.answers if isinstance(one, Ranked)] == pytest.approx(scores[:3], rel=1e-4)


@each_method
def test_what_a_method_lacks_is_refused_with_advice(method: str, runs: dict[str, Run]) -> None:
    """And only that: questions in its company are answered."""
    run = runs[method]
    reasoner = Reasoner.open(run.folder)
    fine = format_query(question(SHAPES["1p"]), reasoner.lexicon)
    for name in answerable(run, yes=False):
        text = format_query(question(SHAPES[name]), reasoner.lexicon)
        with pytest.raises(
            UnsupportedError, match=r"has no .*: ask without, .*or ask another method \(q2p methods says"
        ):
            reasoner.answer(text)
        before, refused, after = reasoner.answer_many([Question(fine), Question(text), Question(fine)])
        assert isinstance(refused, UnsupportedError)
        alone = [one.entity_id for one in reasoner.answer(fine).answers]
        for found in (before, after):
            assert isinstance(found, Answers)
            assert [one.entity_id for one in found.answers] == alone
        assert reasoner.answer(Question(text, method="exact")).method == "exact"


@each_method
def test_answers_are_explained_calibrated_and_discovered(method: str, runs: dict[str, Run]) -> None:
    run = runs[method]
    model = run.model(GRAPH)
    unions = run.config.training.unions
    calibration, _ = calibrate(model, GRAPH.at("train"), GRAPH.at("test"), one_hop=200, longer=10, unions=unions)
    reasoner = Reasoner(GRAPH, model=model, calibration=calibration, unions=unions, split="train")
    for name in answerable(run):
        text = format_query(question(SHAPES[name]), reasoner.lexicon)
        first = reasoner.answer(Question(text, k=1, guesses="always")).answers[0]
        assert isinstance(first, Ranked)
        assert first.probability is not None
        evidence = reasoner.explain(text, first.entity_id)
        assert evidence.answer.id == first.entity_id
        assert evidence.probability == pytest.approx(first.probability, abs=1e-3)
    found = reasoner.discover(relation="r1", k=5)
    assert len(found) == 5


@each_method
def test_embeddings_are_exported(method: str, runs: dict[str, Run], tmp_path: Path) -> None:
    """Those that were trained, in every format, as many as there are entities and, if they have vectors, relations."""
    model = runs[method].model(GRAPH)
    tables = dict(trainee_of(model).named_parameters(recurse=False))
    counted = [len(tables[name]) for name in ("entities", "relations") if name in tables]
    for form in FORMATS:
        target = tmp_path / f"out.{form}"
        assert export_embeddings(GRAPH, model, target, form) == (sum(counted), tables["entities"][0].numel())
        if form == "safetensors":
            written = load_file(target)
            assert written.keys() == tables.keys()
            assert all(torch.equal(written[name], tables[name]) for name in tables)
        elif form == "tsv":
            lines = target.read_text("utf-8").splitlines()
            assert len(lines) == 1 + sum(counted)
            first = [float(cell) for cell in lines[1].split("\t")[4:] if cell]
            assert first == pytest.approx(tables["entities"][0].flatten().tolist(), rel=1e-6)


def test_only_those_with_particles_show_them(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    for method in METHODS:
        reasoner = Reasoner.open(runs[method].folder)
        print_answered(reasoner.answer(format_query(question(SHAPES["1p"]), reasoner.lexicon)))
        assert ("particle" in capsys.readouterr().out) == isinstance(reasoner.model, Factored), method


def test_assignments_of_those_that_search_for_them(runs: dict[str, Run]) -> None:
    for method in METHODS:
        reasoner = Reasoner.open(runs[method].folder)
        text = format_query(question(SHAPES["2p"]), reasoner.lexicon)
        if not hasattr(reasoner.model, "assignments"):
            with pytest.raises(UsageError, match=re.escape("(cqd-beam, cqd-co, tree)")):
                reasoner.assignment(text, 3)
            continue
        assert method in ("cqd-beam", "cqd-co", "tree")
        found = reasoner.assignment(text, 3)
        assert (found.op, found.entity.id) == ("project", 3)
        assert [len(branch.branches) for branch in found.branches] == [1]
        assert 0 <= found.truth <= 1


def test_a_method_that_lacks_all_shapes_of_a_validation(tmp_path: Path) -> None:
    """Nothing can be said of it, which is said, rather than that it had an error."""
    config = tiny("links")
    drawn = validation_set(GRAPH, config.training)
    assert drawn is not None
    batch, labels = drawn
    negated: Any = {SHAPES["2in"]: batch[SHAPES["2in"]]}, {SHAPES["2in"]: labels[SHAPES["2in"]]}
    run = Run.create(tmp_path / "run", config, GRAPH, "atlas")
    notes: list[str] = []
    how = train(run, GRAPH, validation=negated, on_note=notes.append)
    assert how.best is None
    assert how.update == how.best_update == 12
    assert any("nothing is validated" in words for words in notes)
