"""Probabilities: what they are by definition, that they hold on queries they have not seen, how they are stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from query2particles.answer import Question, Ranked, Reasoner
from query2particles.calibration import (
    CALIBRATION,
    RELIABILITY,
    Calibration,
    Contexts,
    Curve,
    Floats,
    calibrate,
    expected_calibration_error,
    family_of,
    masked,
    plot_reliability,
    read_calibration,
    save_calibration,
)
from query2particles.cli.reasoning import calibrate_run
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.sets import Sets
from query2particles.errors import RunError, WorkloadError
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P, Settings
from query2particles.methods.registry import Model
from query2particles.query.algebra import SHAPES, ground, has_complement, shape_named
from query2particles.query.syntax import format_query
from query2particles.run import Run
from query2particles.workload.selection import drawn_queries
from worlds import random_graph


def test_every_shape_has_a_family() -> None:
    families: dict[str, list[str]] = {}
    for name, shape in SHAPES.items():
        families.setdefault(family_of(shape), []).append(name)
    assert families == {
        "one hop": ["1p"],
        "chain": ["2p", "3p"],
        "intersection": ["2i", "3i", "pi", "ip"],
        "union": ["2u", "up"],
        "negation": ["2in", "3in", "inp", "pin", "pni"],
    }
    spelled = {"e": "one hop", "p(p(p(p(e))))": "chain", "u(e,i(e,e))": "union", "i(e,n(u(e,e)))": "negation"}
    assert {text: family_of(shape_named(text)) for text in spelled} == spelled


@pytest.mark.parametrize("complemented", [False, True])
def test_what_scores_are_measured_by(complemented: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 6, generator=generator)
    known = Sets.of([[1, 4], [], [0, 1, 2, 3, 4, 5]], 6)
    known = known.complement() if complemented else known
    unknown = masked(scores, known)
    contexts = Contexts.of(scores, unknown, known)
    for row in range(3):
        members = set(known[row].tolist())
        others = [entity for entity in range(6) if entity not in members]
        assert [entity for entity in range(6) if unknown[row, entity] > -torch.inf] == others
        counted = scores[row, others or list(range(6))].double().numpy()
        assert contexts.log_total[row] == pytest.approx(np.log(np.exp(counted).sum()), abs=1e-5)
        assert contexts.best[row] == pytest.approx(counted.max(), abs=1e-6)
        assert contexts.known[row] == len(members)
        features = contexts[row].features(np.array([0.5]))[0]
        expected = [0.5 - contexts.log_total[row], contexts.best[row] - contexts.log_total[row]]
        assert features.tolist() == pytest.approx([*expected, np.log(1 + len(members))])
    assert torch.isfinite(scores).all(), "the scores themselves stay"


def samples(seed: int, count: int) -> tuple[Floats, Floats]:
    """Features, and probabilities that are no logistic function of them."""
    generator = np.random.default_rng(seed)
    features = np.stack(
        [generator.uniform(-12, 0, count), generator.uniform(-4, 0, count), generator.uniform(0, 5, count)], axis=1
    )
    x = 0.5 * features[:, 0] + 0.2 * features[:, 1] + 0.3 * features[:, 2]
    return features, 0.6 / (1 + np.exp(-3 * (x + 1)))


def test_a_curve_finds_probabilities() -> None:
    features, true = samples(0, 40_000)
    curve = Curve.fit(features, np.random.default_rng(1).random(len(true)) < true)
    fresh, expected = samples(2, 10_000)
    found = curve(fresh)
    assert np.abs(found - expected).mean() < 0.02
    labels = np.random.default_rng(3).random(len(expected)) < expected
    assert expected_calibration_error(found, labels) < 0.015 < expected_calibration_error(np.exp(fresh[:, 0]), labels)


@given(
    seed=st.integers(0, 5),
    flipped=st.booleans(),
    context=st.tuples(st.floats(-10, 0), st.floats(0, 8)),
)
def test_curves_rise_with_the_score_whatever_they_were_fitted_to(
    seed: int, flipped: bool, context: tuple[float, float]
) -> None:
    features, true = samples(seed, 500)
    labels = np.random.default_rng(seed).random(len(true)) < (1 - true if flipped else true)
    curve = Curve.fit(features, labels)
    scores = np.linspace(-30, 5, 200)
    rising = np.stack([scores, np.full(200, context[0]), np.full(200, context[1])], axis=1)
    found = curve(rising)
    assert (np.diff(found) >= 0).all()
    assert (found > 0).all()
    assert (found < 1).all()


def test_a_feature_that_never_varied_decides_nothing_elsewhere() -> None:
    features, true = samples(0, 2000)
    features[:, 2] = np.log1p(7)
    curve = Curve.fit(features, np.random.default_rng(1).random(len(true)) < true)
    fewer = features.copy()
    fewer[:, 2] = np.log1p(6)
    assert curve(fewer) == pytest.approx(curve(features), abs=0.01)


def test_the_expected_calibration_error_by_hand() -> None:
    probabilities = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    labels = np.array([False, True, True, True, False])
    # Two in the lowest bin, claimed 0.05, true 1/2; three in the highest, claimed 2.9/3, true 2/3.
    by_hand = 2 / 5 * abs(0.05 - 0.5) + 3 / 5 * abs(2.9 / 3 - 2 / 3)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(by_hand)


def test_a_run_is_calibrated_on_queries_that_no_fit_has_seen(atlas_run: Path) -> None:
    run = Run.open(atlas_run)
    found = read_calibration(run)
    assert found is not None
    assert set(found.figures) == set(found.curves)
    assert set(found.figures) == {"one hop", "chain", "intersection", "union", "negation", "supported", "all"}
    assert found.figures["all"].after < found.figures["all"].before / 2
    assert found.figures["all"].queries == sum(
        figures.queries for name, figures in found.figures.items() if name not in ("all", "supported")
    )
    assert (atlas_run / RELIABILITY).read_bytes().startswith(b"\x89PNG")


def test_probabilities_hold_on_the_test_level(atlas_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """End to end: fresh test queries, the best 100 entities that train + valid do not name, judged by all facts."""
    reasoner = Reasoner.open(atlas_run, split="valid")
    assert isinstance(reasoner.model, Q2P)
    batch, labels = drawn_queries(reasoner.graph, "test", most=40, seed=9)
    claimed, softmax, true = [], [], []
    stays: list[tuple[float, bool]] = []
    for shape, ids in batch.items():
        texts = [format_query(ground(shape, row), reasoner.lexicon) for row in ids.tolist()]
        answered = reasoner.answer_many([Question(text, k=100, only="predicted") for text in texts])
        with torch.no_grad():
            (states,) = execute(compile_shapes((shape,), Q2P.kind), reasoner.model, [torch.as_tensor(ids)])
            scores = reasoner.model.score(states).double().numpy()
        supported = reasoner.answer_many([Question(text, k=100, only="known") for text in texts])
        for row, (one, known) in enumerate(zip(answered, supported, strict=True)):
            hard, easy, lost = (
                sets[row].tolist() for sets in (labels[shape].hard, labels[shape].easy, labels[shape].lost)
            )
            log_total = float(np.logaddexp.reduce(np.delete(scores[row], easy + lost)))
            for answer in ranked(one):
                assert answer.probability is not None
                claimed.append(answer.probability)
                softmax.append(float(np.exp(answer.score - log_total)))
                true.append(answer.entity in hard)
            if has_complement(shape):
                stays += [(a.probability or 0.0, a.entity in easy) for a in ranked(known)]
    truth = np.array(true)
    before, after = (expected_calibration_error(np.array(some), truth) for some in (softmax, claimed))
    kept = expected_calibration_error(np.array([one for one, _ in stays]), np.array([one for _, one in stays]))
    with capsys.disabled():
        print(
            f"\ntest level, {len(truth):,} entities: ECE {before:.2%} before, {after:.2%} after; supported {kept:.2%}"
        )
    assert after < before / 2
    assert kept < 0.08


def ranked(answered: Any) -> list[Ranked]:
    return [answer for answer in answered.answers if isinstance(answer, Ranked)]


@pytest.fixture
def run(atlas_run: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(atlas_run, tmp_path / "run"))


def test_what_is_stored_is_read_back(run: Run) -> None:
    found = read_calibration(run)
    assert found is not None
    assert save_calibration(run, found) == found == read_calibration(run)
    assert not list(run.folder.glob(".*.partial-*"))


def test_without_a_file_there_is_no_calibration(run: Run) -> None:
    (run.folder / CALIBRATION).unlink()
    assert read_calibration(run) is None
    assert Reasoner.open(run.folder).calibration is None


def test_weights_that_come_while_it_is_fitted_have_no_calibration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training may go on beside it."""
    load = Run.model

    def loaded_before_newer_ones_came(self: Run, *arguments: Any) -> Model:
        model = load(self, *arguments)
        with (run.folder / "best.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"!")
        return model

    monkeypatch.setattr(Run, "model", loaded_before_newer_ones_came)
    calibrate_run(run, run.graph(), "cpu")
    assert read_calibration(run) is None


def test_other_weights_need_another_calibration(run: Run) -> None:
    weights = run.folder / "best.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert read_calibration(run) is None
    warning = Reasoner.open(run.folder).answer("Canada.^citizen_of").warning
    assert warning is not None
    assert "q2p calibrate RUN" in warning


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: "",
        lambda document: "[]",
        lambda document: "[" * 100_000,
        lambda document: json.dumps({**document, "format": 99}),
        lambda document: json.dumps({**document, "curves": {}}),
        lambda document: json.dumps({**document, "curves": {"all": {"weights": [1, 2], "bias": 0, "knots": [[0, 0]]}}}),
        lambda document: json.dumps(
            {**document, "curves": {"all": {"weights": [-1, 0, 0], "bias": 0, "knots": [[0, 0]]}}}
        ),
        lambda document: json.dumps({**document, "curves": {"all": {"weights": [1, 0, 0], "bias": 0, "knots": []}}}),
        lambda document: json.dumps(
            {**document, "curves": {"all": {"weights": [1, 0, 0], "bias": 0, "knots": [[0, 1], [1, 0]]}}}
        ),
        lambda document: json.dumps(
            {**document, "curves": {"all": {"weights": [1, 0, 0], "bias": 0, "knots": [[0, 0], [1, 7]]}}}
        ),
        lambda document: json.dumps(document).replace('"bias": ', '"bias": NaN, "was": '),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(run: Run, damage: Any) -> None:
    path = run.folder / CALIBRATION
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(RunError, match=f"cannot be read.*q2p calibrate {run.folder}"):
        read_calibration(run)


def test_too_few_queries_tell_nothing() -> None:
    graph = random_graph(3)
    model = Q2P(len(graph.entities), graph.at("train").relations, Settings(dimension=8))
    batch, labels = drawn_queries(graph, "valid", shapes=[SHAPES["1p"]], most=2, seed=0)
    with pytest.raises(WorkloadError, match="too few"):
        calibrate(model, graph.at("train"), batch, labels)
    with pytest.raises(WorkloadError, match="too few"):
        calibrate(model, graph.at("train"), {}, {})


def test_a_family_without_queries_takes_the_curve_of_all(atlas: Graph, atlas_run: Path, tmp_path: Path) -> None:
    model = Run.open(atlas_run).model(atlas)
    shapes = [SHAPES[name] for name in ("2p", "2i")]
    heard: list[int] = []
    batch, labels = drawn_queries(atlas, "valid", shapes=shapes, most=30, seed=0)
    found, judged = calibrate(model, atlas.at("train"), batch, labels, progress=heard.append)
    assert set(found.curves) == {"chain", "intersection", "all"}
    assert sum(heard) == sum(map(len, batch.values()))
    features = np.array([[-2.0, -1.0, 1.0]])
    assert found.predicted("union", features) == found.curves["all"](features)
    assert found.predicted("chain", features) == found.curves["chain"](features)
    assert found.supported(features) == found.curves["all"](features)
    assert Calibration.from_json(json.loads(json.dumps(found.as_json()))).curves == found.curves
    plot_reliability(judged, tmp_path / "two.svg", title="two families")
    drawn = (tmp_path / "two.svg").read_text()
    assert [f'id="axes_{number}"' in drawn for number in (1, 2, 3, 4)] == [True, True, True, False]


def test_no_guess_is_certain() -> None:
    """Not even where a line separates the true from the rest."""
    score = np.concatenate([np.full(500, -30.0), np.full(500, 30.0)])
    curve = Curve.fit(np.c_[score, np.zeros(1000), np.zeros(1000)], score > 0)
    lowest, highest = curve(np.array([[-1000.0, 0, 0], [1000.0, 0, 0]]))
    assert 0 < lowest < 0.01
    assert 0.99 < highest < 1
