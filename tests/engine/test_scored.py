"""Scores for those who ask: the same whether they are replayed or not, and replayed only where that is safe."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from query2particles.config import configured
from query2particles.engine import nearest, scored
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.nearest import Best, best_of
from query2particles.engine.ranks import scoring
from query2particles.engine.scored import Scored, best_of_all, score_all
from query2particles.errors import TrainingError
from query2particles.methods.registry import METHODS, Model, make
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.query.rewrite import Unions
from query2particles.workload.selection import drawn_queries
from unattended import Unattended
from worlds import random_graph

GRAPH = random_graph(5, entities=70, relations=3, facts=500)
BATCH, _ = drawn_queries(GRAPH, "test", most=8, seed=0)
ENTITIES = len(GRAPH.entities)

each_method = pytest.mark.parametrize("name", METHODS)


def model_of(name: str) -> tuple[Model, Unions]:
    config = configured(preset(name, "small"), None, ["dimension=8"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(name, GRAPH.at("train"), config.model).eval(), config.training.unions


def answerable(model: Model, unions: Unions) -> list[Any]:
    return [shape for shape in BATCH if not Disjuncts.of(shape, unions).lacking(model)]


class Again:
    """In place of a captured graph: does the work each time. The first results stay where they are, and are rewritten,
    as those of a graph are.
    """

    made = 0

    def __init__(self, work: Callable[[], object], generator: None = None, pool: Any = None) -> None:
        assert pool == "a pool"
        self._work = work
        Again.made += 1

    def __call__(self) -> None:
        self._work()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Again.made = 0
    monkeypatch.setattr(scored, "Captured", Again)
    monkeypatch.setattr(scored, "_REPLAYED_ON", {"cpu"})
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    yield
    gc.collect()
    assert len(scored._REPLAYS) == 0, "a model that nobody needs is held"


def ask(model: Model, batch: Batch, unions: Unions) -> dict[Any, Scored]:
    with scoring(model):
        return score_all(model, batch, ENTITIES, unions)


def expected(model: Model, batch: Batch, unions: Unions) -> dict[Any, Scored]:
    with scoring(model):
        return scored._scored(model, {shape: torch.as_tensor(ids) for shape, ids in batch.items()}, ENTITIES, unions)


@each_method
@pytest.mark.usefixtures("replays")
def test_replays_score_as_the_method_does(name: str) -> None:
    model, unions = model_of(name)
    asked = [
        {shape: BATCH[shape][start : start + count]}
        for shape, (start, count) in product(answerable(model, unions), [(0, 1), (1, 1), (2, 3), (3, 3), (0, 1)])
    ]
    found = [ask(model, batch, unions) for batch in asked]  # only then compared: none writes over another
    for batch, ours in zip(asked, found, strict=True):
        (shape,) = batch
        theirs = expected(model, batch, unions)[shape]
        assert torch.equal(ours[shape].scores, theirs.scores)
        assert (ours[shape].factors is None) == (theirs.factors is None)
        for one, other in zip(ours[shape].factors or (), theirs.factors or (), strict=True):
            assert torch.equal(one, other)
    assert Again.made == (2 * len(answerable(model, unions)) if getattr(model, "replayed", True) else 0)


def assert_best(found: Best, scores: torch.Tensor, k: int) -> None:
    """As far as scores that are computed in another batch tell entities apart."""
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5 * float(scores.clamp(min=-1e3).abs().max()))
    right = best_of([(0, scores)], k).scores
    close(found.scores, right)
    close(scores.gather(1, found.entities), right)
    assert all(len(set(row)) == len(row) for row in found.entities.tolist())


@each_method
def test_the_best_of_all_shapes_are_those_of_their_scores(name: str) -> None:
    """More of them than entities, too."""
    model, unions = model_of(name)
    batch = {shape: BATCH[shape] for shape in answerable(model, unions)}
    for k in (10, ENTITIES + 1):
        with scoring(model):
            found = best_of_all(model, batch, k, ENTITIES, unions)
        assert list(found) == list(batch)
        for shape, one in ask(model, batch, unions).items():
            assert_best(found[shape], one.scores, k)


@pytest.mark.parametrize("unions", ["native", "dnf", "de-morgan"])
def test_the_best_by_rounded_products(unions: Unions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes whose states are of different widths, and unions whose parts are put side by side."""
    monkeypatch.setattr(nearest, "_ROUNDED_ON", {"cpu"})
    monkeypatch.setattr(nearest, "_MANY_ROWS", 1)
    monkeypatch.setattr(nearest, "_COARSE_GROUP", 1)
    model, _ = model_of("q2p")
    with scoring(model):
        found = best_of_all(model, BATCH, 2, ENTITIES, unions)
    for shape, one in ask(model, BATCH, unions).items():
        assert_best(found[shape], one.scores, 2)


@each_method
@pytest.mark.usefixtures("replays")
def test_replays_find_the_best(name: str) -> None:
    model, unions = model_of(name)
    shapes = answerable(model, unions)
    asked = [(shape, BATCH[shape][start : start + 2], k) for shape in shapes for start in (0, 3) for k in (3, 5)]
    with scoring(model):
        found = [best_of_all(model, {shape: ids}, k, ENTITIES, unions)[shape] for shape, ids, k in asked]
    for (shape, ids, k), best in zip(asked, found, strict=True):
        right = best_of([(0, expected(model, {shape: ids}, unions)[shape].scores)], k)
        assert torch.equal(best.entities, right.entities)
        assert torch.equal(best.scores, right.scores)
    assert Again.made == (2 * len(shapes) if getattr(model, "replayed", True) else 0)


@pytest.mark.usefixtures("replays")
def test_replays_refuse_what_is_no_number() -> None:
    model, _ = model_of("q2p")
    with torch.no_grad():
        model.get_parameter("entities")[7] = torch.nan
    with scoring(model), pytest.raises(TrainingError, match="NaN"):
        best_of_all(model, {SHAPES["1p"]: BATCH[SHAPES["1p"]][:2]}, 3, ENTITIES)


@pytest.mark.usefixtures("replays")
def test_results_are_the_askers_own() -> None:
    model, _ = model_of("q2p")
    shape = SHAPES["2p"]
    first = ask(model, {shape: BATCH[shape][:2]}, "native")[shape]
    kept = first.scores.clone()
    assert first.factors is not None
    with torch.inference_mode():
        first.scores.fill_(-1.0)
        first.factors[0].fill_(-1.0)
    assert torch.equal(ask(model, {shape: BATCH[shape][:2]}, "native")[shape].scores, kept)


@pytest.mark.parametrize("name", ["q2p", "betae"])
@pytest.mark.usefixtures("replays")
def test_weights_that_change_are_seen(name: str) -> None:
    """Also what a method has remembered of them."""
    model, unions = model_of(name)
    batch = {SHAPES["2p"]: BATCH[SHAPES["2p"]][:2]}
    before = ask(model, batch, unions)[SHAPES["2p"]].scores
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = ask(model, batch, unions)[SHAPES["2p"]].scores
    assert not torch.allclose(before, after)
    assert torch.equal(after, expected(model, batch, unions)[SHAPES["2p"]].scores)
    assert Again.made == 2


@pytest.mark.usefixtures("replays")
def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "_MOST_REPLAYS", 3)
    model, _ = model_of("q2p")

    def made_for(*names: str) -> int:
        before = Again.made
        for name in names:
            ask(model, {SHAPES[name]: BATCH[SHAPES[name]][:1]}, "native")
        return Again.made - before

    assert made_for("1p", "2p", "3p") == 3
    assert made_for("1p", "2p", "3p") == 0
    assert made_for("1p", "2i") == 1  # in place of 2p, which was not asked for longest
    assert made_for("1p", "3p", "2i") == 0
    assert made_for("2p") == 1


@pytest.mark.usefixtures("replays")
def test_only_a_few_queries_of_one_shape_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = model_of("q2p")
    two = {shape: BATCH[shape][:1] for shape in (SHAPES["1p"], SHAPES["2p"])}
    for shape, one in ask(model, two, "native").items():
        torch.testing.assert_close(one.scores, expected(model, two, "native")[shape].scores)
    monkeypatch.setattr(scored, "_MOST_SCORES", 3 * ENTITIES)
    ask(model, {SHAPES["1p"]: BATCH[SHAPES["1p"]][:4]}, "native")
    assert Again.made == 0
    ask(model, {SHAPES["1p"]: BATCH[SHAPES["1p"]][:3]}, "native")
    assert Again.made == 1


@each_method
def test_what_is_replayed_needs_no_host(name: str) -> None:
    model, unions = model_of(name)
    shapes = answerable(model, unions)
    assert shapes
    if not getattr(model, "replayed", True):
        return
    for shape in shapes:
        ids = {shape: torch.as_tensor(BATCH[shape][:3])}
        with scoring(model):
            scored._scored(model, ids, ENTITIES, unions)  # what is remembered from the first time on
            with Unattended():
                found = scored._scored(model, ids, ENTITIES, unions)
                nearest.select_best([(0, found[shape].scores)], 5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_method
def test_captured_scores_are_those_of_the_cpu(name: str) -> None:
    model, unions = model_of(name)
    there: Any = model_of(name)[0].cuda()
    for shape in answerable(model, unions):
        for number in range(6):
            some = {shape: np.roll(BATCH[shape], number, axis=0)[:2]}
            ours, theirs = ask(there, some, unions)[shape], ask(model, some, unions)[shape]
            torch.testing.assert_close(ours.scores.cpu(), theirs.scores, rtol=1e-3, atol=1e-3)
            with scoring(there):
                best = best_of_all(there, some, 5, ENTITIES, unions)[shape]
            torch.testing.assert_close(best.scores.cpu(), best_of([(0, theirs.scores)], 5).scores, rtol=1e-3, atol=1e-3)
    held = scored._REPLAYS.get(there)
    assert (held is not None) == getattr(there, "replayed", True)
    assert isinstance(there, nn.Module)
