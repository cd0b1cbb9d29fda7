"""The folder of a joined run: made of two runs, opened again, used whole or in parts, refused where it is broken."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from query2particles import joined as joined_module
from query2particles.answer import Answers, Question, Ranked, Reasoner
from query2particles.calibration import read_calibration, weights_digest
from query2particles.errors import RunError, UsageError, WorkloadError
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary
from query2particles.joined import PARTS, Joined, join_as, open_run
from query2particles.joining import Effort, FamilyFit, queries_asked
from query2particles.methods.cqd import CQDBeam
from query2particles.methods.guided import Guided
from query2particles.methods.joint import FAMILIES, Joint
from query2particles.methods.q2p import Q2P
from query2particles.methods.registry import Model, attach_stored
from query2particles.methods.tree import Tree
from query2particles.query.algebra import SHAPES, Query, anchor_positions, ground, query_ids
from query2particles.run import JOINED, Run, is_run_folder
from query2particles.train import train, validation_set
from query2particles.training.fit import calibrate_run
from query2particles.workload.hardness import hardness
from query2particles.workload.selection import drawn_queries
from scoring import scores_of
from trainings import contents, tiny
from worlds import random_graph

GRAPH = random_graph(3, entities=40, relations=3, facts=400)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained(folder: Path, method: str, *settings: str, graph: Graph = GRAPH) -> Run:
    torch.set_num_threads(1)
    run = Run.create(folder, tiny(method, *settings), graph, str(folder.parent / "graph"))
    train(run, graph)
    return run


def join(
    folder: Path, vectors: Run, links: Run, graph: Graph = GRAPH, **how: Any
) -> tuple[Joined, dict[int, FamilyFit]]:
    """Weighed by the validation queries of the vectors, as the command does it."""
    return joined_module.join(folder, vectors, links, graph, validation_set(graph, vectors.config.training), **how)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One of vectors and one of links; not to be written to."""
    folder = tmp_path_factory.mktemp("runs")
    GRAPH.save(folder / "graph")
    return {method: trained(folder / method, method) for method in PARTS.values()}


@pytest.fixture(scope="module")
def whole(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Joined:
    """They joined; not to be written to."""
    torch.set_num_threads(1)
    return join(tmp_path_factory.mktemp("joined") / "run", runs["q2p"], runs["links"])[0]


@pytest.fixture
def own(whole: Joined, tmp_path: Path) -> Joined:
    """A copy for one test."""
    found = open_run(shutil.copytree(whole.folder, tmp_path / "joined"))
    assert isinstance(found, Joined)
    return found


def questions() -> list[Query]:
    """Two of every shape, whatever they ask."""
    generator = np.random.default_rng(0)
    found = []
    for shape in SHAPES.values():
        limits = np.full(len(tuple(query_ids(shape))), GRAPH.at("train").relations)
        limits[anchor_positions(shape)] = len(GRAPH.entities)
        found += [ground(shape, row) for row in generator.integers(limits, size=(2, len(limits))).tolist()]
    return found


def scores(run: Run) -> Tensor:
    return scores_of(run.model(GRAPH), questions())


def test_what_is_opened_scores_as_what_was_joined(whole: Joined, runs: dict[str, Run]) -> None:
    """And as the parts do with these weights."""
    opened = open_run(whole.folder)
    assert opened == whole
    assert (opened.config.method, opened.graph_name) == ("best", GRAPH.name)
    assert torch.equal(scores(opened), scores(whole))
    tree: Any = runs["links"].answered_by("tree", whole.search.settings).model(GRAPH)
    model = Joint(runs["q2p"].model(GRAPH), tree, GRAPH.at("train"), torch.tensor(whole.weights))
    assert torch.equal(scores(opened), scores_of(model, questions()))
    assert torch.tensor(whole.weights).any(1).all(), "every family has weights"
    assert open_run(runs["q2p"].folder) == runs["q2p"], "an ordinary run is opened as one"


def test_it_stands_alone_wherever_it_is(own: Joined, runs: dict[str, Run], tmp_path: Path) -> None:
    """Parts are copies, in the folder: it may move, and what it was joined from may go. Nothing of a training stays."""
    moved = own.folder.rename(tmp_path / "elsewhere")
    found = open_run(moved)
    assert isinstance(found, Joined)
    assert torch.equal(scores(found), scores(replace(found, vectors=runs["q2p"], links=runs["links"])))
    assert {path.name for path in moved.iterdir()} == {JOINED, *PARTS}
    for part in PARTS:
        assert {path.name for path in (moved / part).iterdir()} == {"config.json", "trace.jsonl", "best.safetensors"}


def test_joining_leaves_the_parts_as_they_are_and_says_the_same_again(runs: dict[str, Run], tmp_path: Path) -> None:
    before = {method: contents(run.folder) for method, run in runs.items()}
    told: list[int] = []
    first, fits = join(tmp_path / "first", runs["q2p"], runs["links"], progress=told.append)
    assert {method: contents(run.folder) for method, run in runs.items()} == before
    validation = validation_set(GRAPH, runs["q2p"].config.training)
    assert validation is not None
    assert sum(told) == queries_asked(validation[0], Effort.on("cpu", len(GRAPH.entities)))
    assert {family: first.weights[family] for family in fits} == {
        family: tuple(torch.tensor(fit.weights).tolist()) for family, fit in fits.items()
    }
    again, _ = join(first.folder, first.vectors, first.links)
    assert again == first, "parts that are in their place already stay there"


def test_it_is_better_than_its_parts_on_what_weighed_them(whole: Joined) -> None:
    validation = validation_set(GRAPH, whole.config.training)
    assert validation is not None
    mrrs = [
        evaluate(run.model(GRAPH), *validation).percentages(4)["all"]
        for run in (whole, whole.answered_by("fast"), whole.answered_by("tree"))
    ]
    assert mrrs[0] > max(mrrs[1:])


def test_parts_are_used_alone(whole: Joined, runs: dict[str, Run]) -> None:
    assert whole.answered_by("best") is whole
    for name in ("fast", "q2p"):
        assert whole.answered_by(name) == whole.vectors
        assert torch.equal(scores(whole.answered_by(name)), scores(runs["q2p"]))
    for name, settings in (("tree", whole.search.settings), ("cqd-beam", [])):
        part = whole.answered_by(name)
        assert part.config.method == name
        assert torch.equal(scores(part), scores(runs["links"].answered_by(name, settings)))
    assert whole.answered_by("tree", ["sharpness=0.3"]).config.model.sharpness == 0.3
    assert whole.answered_by("links") == whole.links
    narrow = whole.answered_by("cqd-beam", ["beam=2"]).model(GRAPH)
    assert isinstance(narrow, CQDBeam)
    assert narrow.settings.beam == 2


@pytest.mark.parametrize("method", ["best", "tree"])
def test_validation_facts_are_stored_where_it_is_said(whole: Joined, method: str) -> None:
    """A fact of validation is certain to the search then, and only then; of training facts nothing changes."""
    train, valid = GRAPH.at("train"), GRAPH.at("valid")
    heads, relations = np.divmod(valid.keys, valid.relations)
    sizes = np.diff(valid.offsets)
    new = [row for row in range(len(heads)) if sizes[row] > len(train.tails_of(int(heads[row]), int(relations[row])))]
    assert new
    truths = {}
    for stored in ("train", "valid"):
        model = whole.answered_by(method, [f"stored={stored}"]).model(GRAPH)
        tree = model.tree if isinstance(model, Joint) else model
        assert isinstance(tree, Tree)
        truths[stored] = [
            tree._links_from(torch.tensor([heads[row]]), torch.tensor([relations[row]]))[
                0, torch.from_numpy(valid.tails[valid.offsets[row] : valid.offsets[row + 1]].astype(np.int64))
            ]
            for row in new
        ]
    assert all((one == 0).all() for one in truths["valid"])
    assert all((one < 0).any() for one in truths["train"])
    assert whole.answered_by(method).config.training.stored == "train"


def test_other_methods_and_settings_are_refused(whole: Joined) -> None:
    with pytest.raises(UsageError, match="of best only stored can be set: --set changes a part, named by --method"):
        whole.answered_by("best", ["beam=2"])
    with pytest.raises(UsageError, match="gqe cannot answer with what links has learned"):
        whole.answered_by("gqe")
    with pytest.raises(UsageError, match="method is one of q2p, "):
        whole.answered_by("fastest")


def test_it_costs_what_both_parts_cost(own: Joined) -> None:
    alone = own.vectors.cost()[0], own.links.cost()[0]
    assert own.cost() == (sum(alone), 0.0)
    assert min(alone) > 0
    for part, seconds, memory in ((own.vectors, 50.0, 3.5), (own.links, 7.0, 2.0)):
        line = {"update": 99, "seconds": seconds, "gpu_memory_gib": memory}
        (part.folder / "trace.jsonl").write_text(json.dumps(line) + "\n")
    assert own.cost() == (57.0, 3.5)


def answering(model: Model) -> Model:
    """As a reasoner asks it: with all facts stored, not only those that it was trained on."""
    attach_stored(model, GRAPH.at("test"))
    return model


def test_a_reasoner_answers_by_all_of_it_or_by_the_vectors_alone(own: Joined, runs: dict[str, Run]) -> None:
    calibrate_run(own.vectors, GRAPH, "cpu")
    best = Reasoner.open(own.folder)
    fast = best.fast
    assert fast is not None
    assert isinstance(best.model, Joint)
    assert best.run == own
    assert best.calibration is None, "that of a part is not its own"
    assert isinstance(fast.model, Q2P)
    assert fast.run == own.vectors
    saved = read_calibration(own.vectors)
    assert saved is not None
    assert fast.calibration is not None
    assert fast.calibration.as_json() == saved.as_json()
    assert Reasoner.open(runs["q2p"].folder).fast is None
    query = best.parse("e1.r0.r1 & !e2.r1")
    text = "e1.r0.r1 & !e2.r1"
    asked = [Question(text, k=40, method=method, guesses="always") for method in ("neural", "both", "best", "fast")]
    for question, found in zip(asked, best.answer_many(asked), strict=True):
        assert isinstance(found, Answers)
        assert found.method == question.method
        told = {one.entity_id: one.score for one in found.answers if isinstance(one, Ranked)}
        run = own.vectors if question.method == "fast" else own
        expected = scores_of(answering(run.model(GRAPH)), [query])[0].tolist()
        assert len(told) > 20, "all that stored facts do not exclude"
        assert told == pytest.approx({entity: expected[entity] for entity in told}, rel=1e-5, abs=1e-5)
        assert all(
            (one.probability is not None) == (run is own.vectors) for one in found.answers if isinstance(one, Ranked)
        )
    tree = Reasoner(GRAPH, model=answering(own.answered_by("tree").model(GRAPH)))
    assert best.assignment(query, 3).as_json() == tree.assignment(query, 3).as_json()


def test_only_a_joined_run_has_parts_to_ask(runs: dict[str, Run]) -> None:
    """A run of one training is its own vectors."""
    for reasoner in (Reasoner.open(runs["q2p"].folder), Reasoner(GRAPH)):
        with pytest.raises(
            UsageError, match=r"best asks the parts of a joined run: train one .*, or join two \(q2p join\)"
        ):
            reasoner.answer(Question("e1.r0", method="best"))
        fast, both = (reasoner.answer(Question("e1.r0", method=method)).answers for method in ("fast", "both"))
        assert fast == both


def test_probabilities_are_bound_to_all_that_answers(own: Joined) -> None:
    """Other weights of either part, or of the families, need another calibration."""
    assert read_calibration(own) is None
    calibrate_run(own, GRAPH, "cpu")
    saved = read_calibration(own)
    assert saved is not None
    first = Reasoner.open(own.folder).answer(Question("e1.r0", guesses="always")).answers[0]
    assert isinstance(first, Ranked)
    assert first.probability is not None
    digest = weights_digest(own)
    for path in (own.folder / JOINED, *(run.folder / "best.safetensors" for run in (own.vectors, own.links))):
        before = path.read_bytes()
        path.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
        assert weights_digest(own) != digest
        assert read_calibration(own) is None
        path.write_bytes(before)
        assert weights_digest(own) == digest
    again = read_calibration(own)
    assert again is not None
    assert again.as_json() == saved.as_json()


SETTLED = {"sharpness": 1.0, "several": "any", "walks": 0.0}

DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "nothing": (lambda _: "", "cannot be read"),
    "no JSON": (lambda _: "weights: 1", "cannot be read"),
    "truncated": (lambda text: text[: len(text) // 2], "cannot be read"),
    "another document": (lambda _: "[1, 2]", "cannot be read"),
    "too deep": (lambda _: "[" * 100_000, "cannot be read"),
    "another format": (lambda text: changed(text, format=99), "is in format 99, this version reads 3; join anew"),
    "no weights": (lambda text: changed(text, weights=None), "cannot be read"),
    "words": (lambda text: changed(text, weights=[["much"] * 5] * FAMILIES), "cannot be read"),
    "too large": (lambda text: changed(text, weights=[[10**400] * 5] * FAMILIES), "cannot be read"),
    "too few": (
        lambda text: changed(text, weights=[[1.0] * 4] * FAMILIES),
        "does not have 16 rows of 5 finite weights",
    ),
    "no search": (lambda text: changed(text, search=None), "cannot be read"),
    "a sharpness below 0": (lambda text: changed(text, search={**SETTLED, "sharpness": -3.0}), "sharpness"),
    "a strange way": (lambda text: changed(text, search={**SETTLED, "several": "none"}), "several"),
    "walks alone": (lambda text: changed(text, search={**SETTLED, "walks": 1.0}), "walks"),
    "no rows": (lambda text: changed(text, weights=[]), "does not have 16 rows of 5 finite weights"),
    "a row more": (lambda text: changed(text, weights=[[1.0] * 5] * 17), "does not have 16 rows of 5 finite weights"),
    "no number": (
        lambda text: changed(text, weights=[[float("nan")] * 5] * FAMILIES),
        "does not have 16 rows of 5 finite weights",
    ),
}


def changed(text: str, **entries: object) -> str:
    return json.dumps({**json.loads(text), **entries})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_clear_message(own: Joined, damage: str) -> None:
    path = own.folder / JOINED
    change, message = DAMAGES[damage]
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=f"^{re.escape(str(path))} .*{re.escape(message)}") as caught:
        open_run(own.folder)
    assert "join" in str(caught.value).rpartition(";")[2], "it says what to do"
    assert is_run_folder(own.folder)


def test_a_file_that_is_no_text(own: Joined) -> None:
    (own.folder / JOINED).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match=r"joined\.json cannot be read"):
        open_run(own.folder)


def test_parts_that_are_gone_or_of_another_graph(own: Joined, tmp_path: Path) -> None:
    other = random_graph(4, entities=30, relations=3, facts=300)
    shutil.rmtree(own.folder / "links")
    with pytest.raises(RunError, match=r"joined run without its part links: .*q2p train GRAPH --method links"):
        open_run(own.folder)
    shutil.copytree(own.folder / "vectors", own.folder / "links")
    with pytest.raises(UsageError, match="links is no run of links, but of q2p"):
        open_run(own.folder)
    shutil.rmtree(own.folder / "links")
    trained(tmp_path / "other", "links", graph=other).folder.rename(own.folder / "links")
    with pytest.raises(RunError, match="links was trained on another graph"):
        open_run(own.folder).model(GRAPH)


def test_what_needs_one_training_says_which_parts_there_are(whole: Joined) -> None:
    with pytest.raises(UsageError, match=r"is a joined run: name the part that is meant, .*/vectors or .*/links"):
        Run.open(whole.folder)


def test_runs_that_cannot_be_joined(runs: dict[str, Run], tmp_path: Path) -> None:
    """Nothing is written."""
    vectors, links = runs["q2p"], runs["links"]
    with pytest.raises(UsageError, match=r"links has no vectors of queries, .*; name the other one first"):
        join(tmp_path / "new", links, vectors)
    with pytest.raises(UsageError, match=r"is no run of links, but of q2p: .*q2p train GRAPH --method links"):
        join(tmp_path / "new", vectors, vectors)
    other = random_graph(4, entities=30, relations=3, facts=300)
    elsewhere = Run.create(tmp_path / "elsewhere", tiny("links"), other, "atlas")
    with pytest.raises(RunError, match="elsewhere was trained on another graph"):
        join(tmp_path / "new", vectors, elsewhere)
    with pytest.raises(RunError, match="q2p was trained on another graph"):
        join(tmp_path / "new", vectors, elsewhere, other)
    untrained = Run.create(tmp_path / "untrained", tiny("links"), GRAPH, "atlas")
    with pytest.raises(RunError, match=r"best\.safetensors"):
        join(tmp_path / "new", vectors, untrained)
    changes: dict[str, dict[str, Any]] = {
        "all facts": {"all_edges": True},
        "validation facts, too": {"valid_edges": True},
        "validation queries with their answers": {"leaked": "somewhere"},
    }
    for facts, setting in changes.items():
        for method, run in runs.items():
            config = replace(run.config, training=replace(run.config.training, **setting))
            parts = {**runs, method: replace(run, config=config)}
            message = rf"{method} was trained on {facts}: nothing is left to weigh it by; .*\(q2p join --as\)"
            with pytest.raises(UsageError, match=message):
                join(tmp_path / "new", parts["q2p"], parts["links"])
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module", params=["valid", "test"])
def retrained(request: pytest.FixtureRequest, whole: Joined, tmp_path_factory: pytest.TempPathFactory) -> Joined:
    """Parts that were trained on more facts, joined as the others; not to be written to."""
    folder = tmp_path_factory.mktemp("retrained")
    GRAPH.save(folder / "graph")
    setting = {"valid": "valid_edges=true", "test": "all_edges=true"}[request.param]
    vectors, links = (trained(folder / method, method, setting) for method in PARTS.values())
    return join_as(folder / "joined", vectors, links, GRAPH, whole)


def test_parts_that_were_trained_again_are_joined_as_before(whole: Joined, retrained: Joined) -> None:
    """With the same search and weights, in a file of the same format, which says whose they are."""
    opened = open_run(retrained.folder)
    assert opened == retrained
    assert (retrained.weights, retrained.search) == (whole.weights, whole.search)
    documents = [json.loads((run.folder / JOINED).read_text()) for run in (whole, retrained)]
    assert documents[1] == {**documents[0], "as": str(whole.folder.resolve())}
    assert not torch.equal(scores(opened), scores(whole))
    assert all(weights_digest(run) != weights_digest(before) for run, before in parts_of(retrained, whole))


def parts_of(*runs: Joined) -> list[tuple[Run, ...]]:
    return [tuple(getattr(run, part) for run in runs) for part in PARTS]


def test_what_the_parts_were_trained_on_is_stored(whole: Joined, retrained: Joined) -> None:
    """Without being told: to the search, to the conditions, and to what is guided."""
    split = retrained.config.training.split
    edges = GRAPH.at(split)
    assert len(edges.tails) > len(GRAPH.at("train").tails)
    model = retrained.model(GRAPH)
    assert isinstance(model, Joint)
    tree = retrained.answered_by("tree").model(GRAPH)
    guided = retrained.answered_by("guided").model(GRAPH)
    assert isinstance(tree, Tree)
    assert isinstance(guided, Guided)
    for stored in (model.tree.stored, tree.stored, guided._stored):
        assert stored is not None
        assert stored.tails.tolist() == edges.tails.tolist()
    assert model.conditions.edges.tails.sort().values.tolist() == sorted(edges.tails.tolist())
    parts: Any = retrained.vectors.model(GRAPH), retrained.links.answered_by("tree", whole.search.settings).model(GRAPH)
    by_hand = Joint(parts[0], parts[1], edges, torch.tensor(whole.weights))
    assert torch.equal(scores(retrained), scores_of(by_hand, questions()))
    for told in ("train", "valid"):
        assert torch.equal(scores(retrained.answered_by("best", [f"stored={told}"])), scores(retrained))


def test_test_questions_with_validation_facts_stored(retrained: Joined) -> None:
    """Easy answers, which validation facts give, take part in no ranking, and all of them are certain to the search."""
    batch, labels = drawn_queries(GRAPH, "test", shapes=[SHAPES["1p"]], most=20, seed=0)
    easy = labels[SHAPES["1p"]].easy
    assert easy.sizes.any()
    tree: Any = retrained.answered_by("tree").model(GRAPH)
    for number, (head, relation) in enumerate(batch[SHAPES["1p"]].tolist()):
        truths = tree._links_from(torch.tensor([head]), torch.tensor([relation]))[0]
        assert (truths[torch.from_numpy(easy[number].astype(np.int64))] == 0).all()
    found = evaluate(
        retrained.model(GRAPH), batch, labels, hardness=hardness(GRAPH.at("train"), GRAPH.at("test"), batch, labels)
    )
    assert found.average("all")["mrr"] > 0


def test_runs_that_cannot_be_joined_as_others(whole: Joined, runs: dict[str, Run], tmp_path: Path) -> None:
    """Nothing is written."""
    new, (vectors, links) = tmp_path / "new", (runs["q2p"], runs["links"])
    other = random_graph(4, entities=30, relations=3, facts=300)
    elsewhere = [Run.create(tmp_path / f"other-{method}", tiny(method), other, "atlas") for method in PARTS.values()]
    with pytest.raises(RunError, match="was trained on another graph"):
        join_as(new, elsewhere[0], elsewhere[1], other, whole)
    with pytest.raises(RunError, match="other-links was trained on another graph"):
        join_as(new, vectors, elsewhere[1], GRAPH, whole)
    gqe = trained(tmp_path / "gqe", "gqe")
    with pytest.raises(UsageError, match=r"gqe is a run of gqe, and .* was weighed with one of q2p; .*leave out --as"):
        join_as(new, gqe, links, GRAPH, whole)
    with pytest.raises(UsageError, match="name the other one first"):
        join_as(new, links, vectors, GRAPH, whole)
    again = trained(tmp_path / "again", "links", "valid_edges=true")
    with pytest.raises(
        UsageError, match=r"trained on the facts of train, .*again on those of valid; train both on the same"
    ):
        join_as(new, vectors, again, GRAPH, whole)
    untrained = Run.create(tmp_path / "untrained", tiny("links"), GRAPH, "atlas")
    with pytest.raises(RunError, match=r"untrained has no best\.safetensors"):
        join_as(new, vectors, untrained, GRAPH, whole)
    assert not new.exists()
    before = contents(whole.vectors.folder), (whole.folder / JOINED).read_bytes()
    with pytest.raises(UsageError, match=r"is where the weights come from: name a new folder \(--out\)"):
        join_as(whole.folder, vectors, links, GRAPH, whole)
    assert (contents(whole.vectors.folder), (whole.folder / JOINED).read_bytes()) == before


def test_a_graph_without_validation_facts(tmp_path: Path) -> None:
    facts = np.arange(20), np.zeros(20, dtype=np.int64), (np.arange(20) + 1) % 20
    names = Vocabulary.of([f"e{number}" for number in range(20)]), Vocabulary.of(["next"])
    graph = Graph.of(*names, {"train": facts}, {"name": "ring"})
    parts = [trained(tmp_path / method, method, "mix=1p:1", "updates=2", graph=graph) for method in PARTS.values()]
    with pytest.raises(WorkloadError, match=r"ring has no validation facts .*q2p graph import --split"):
        join(tmp_path / "new", parts[0], parts[1], graph)
    assert not (tmp_path / "new").exists()


def test_vectors_that_lack_operators_are_joined(runs: dict[str, Run], tmp_path: Path) -> None:
    """What they cannot answer does not weigh the parts; unions are lifted to the root, as they do alone."""
    vectors = trained(tmp_path / "gqe", "gqe")
    told: list[int] = []
    whole, fits = join(tmp_path / "joined", vectors, runs["links"], progress=told.append)
    assert list(fits) == [0, 1, 2, 3]
    validation = validation_set(GRAPH, vectors.config.training)
    assert validation is not None
    assert sum(told) == queries_asked(validation[0], Effort.on("cpu", len(GRAPH.entities)))
    found = evaluate(whole.model(GRAPH), *validation, unions=whole.config.training.unions)
    assert list(found.shapes) == ["1p", "2p", "3p", "2i", "3i", "pi", "ip", "2u", "up"]


class Killed(Exception):  # noqa: N818
    pass


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("moment", ["write_json", "_placed", "fit_weights"])
def test_a_killed_join_leaves_no_joined_run(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """And can be done again."""
    folder = tmp_path / "joined"
    with monkeypatch.context() as patched:
        patched.setattr(joined_module, moment, lambda *_, **__: killed())
        with pytest.raises(Killed):
            join(folder, runs["q2p"], runs["links"])
    assert not is_run_folder(folder)
    done, _ = join(folder, runs["q2p"], runs["links"])
    assert open_run(folder) == done
    assert not list(folder.rglob(".*.partial-*"))


def test_a_killed_join_of_other_parts_leaves_no_weights_of_the_old_ones(
    own: Joined, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = trained(tmp_path / "other", "q2p", "seed=7")
    with monkeypatch.context() as patched:
        patched.setattr(joined_module, "write_json", killed)
        with pytest.raises(Killed):
            join(own.folder, other, runs["links"])
    assert not is_run_folder(own.folder)
    done, _ = join(own.folder, other, runs["links"])
    assert done.weights != own.weights
    assert torch.equal(scores(done.vectors), scores(other))
