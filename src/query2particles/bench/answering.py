"""`q2p bench answer`: from the ids of queries to their ten best answers, one query at a time and many together.

For one method in detail; or, with --all-methods, for every method, which is the paper's figure of inference times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from query2particles.bench.data import bench_data
from query2particles.bench.models import Subject, in_words, median_seconds, untrained
from query2particles.bench.record import Bench, Say, significant
from query2particles.config import configured
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.nearest import fitting
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import Factored, scoring
from query2particles.engine.scored import best_of_all
from query2particles.errors import UsageError
from query2particles.graph.edges import Ints
from query2particles.graph.graph import Graph
from query2particles.methods.registry import METHODS, Model
from query2particles.presets import preset
from query2particles.provenance import machine
from query2particles.query.algebra import SHAPES, Project, Query, nickname
from query2particles.query.rewrite import Unions
from query2particles.workload.selection import drawn_queries, stored_set

__all__ = ["BEST_ANSWERS", "Calls", "bench_answer", "bench_answer_methods", "best_answers"]

_COUNT = {"cpu": 100, "cuda": 500}
"""Queries of each shape that are answered one at a time."""

_TOGETHER = {"cpu": 32, "cuda": 2048}
"""Queries of each shape that are answered together, all shapes in one call; where there are fewer, they come again."""

_STATES = 8
"""Of methods that score all entities on the way: for how many matrices of scores there must be room …"""

_STATE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 33}
"""… in so much memory."""

_WARM_UP = 5
_REPEATS = 5
BEST_ANSWERS = 10
"""So many are found of each query."""

_SIZES = (1, 128)
"""How many queries of a shape are answered together where methods are compared."""

_OF_METHODS = 256
"""Queries of each shape there: calls go round them."""


_USUAL_GRAPH = "FB15k-237"


@dataclass(frozen=True)
class Calls:
    """How often something is done to time it: some calls that do not count, then as many as begin in the seconds."""

    uncounted: int
    most: int
    seconds: float

    def median_seconds(self, work: Callable[[Ints], object], ids: Ints, size: int) -> float:
        """Of `work` on `size` rows of ids, which is done when it returns; every call has the next ones."""
        taken: list[float] = []
        for number in range(self.uncounted + self.most):
            rows = ids[np.arange(number * size, (number + 1) * size) % len(ids)]
            started = time.perf_counter()
            work(rows)
            if number >= self.uncounted:
                taken.append(time.perf_counter() - started)
            if sum(taken) >= self.seconds:
                break
        return statistics.median(taken)


_CALLS = {"cpu": Calls(uncounted=0, most=20, seconds=1.0), "cuda": Calls(uncounted=2, most=20, seconds=0.5)}
"""On a GPU the first calls of a size compile."""


def bench_answer(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    graph: str | None = None,
    run: Path | None = None,
    count: int | None = None,
    settings: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Answers of an untrained model of the default preset, of a benchmark graph's size; or of a run, on its graph.

    `graph` is a folder of the benchmark graphs, or where the graph of the run is now, if not where it was.
    Another graph than the usual one, and a run, have a name of their own: one result does not replace the other.
    """
    subject, unions, model_in_words = _subject(data, device, graph, run, count, settings, say)
    where, batch, model, entities = subject.device, subject.batch, subject.model, len(subject.graph.entities)
    mixed = {shape: np.resize(ids, (_fitting(subject), ids.shape[1])) for shape, ids in batch.items()}
    answered = sum(map(len, mixed.values()))
    name = f"answer-run-{subject.graph.name.lower()}" if run else "answer"
    if not run and graph and graph != _USUAL_GRAPH:
        name += f"-{graph.lower()}"
    result = Bench(
        name,
        machine(where.type),
        f"{where.type}, {subject.graph.name}, {entities:,} entities, {subject.queries:,} test queries of {len(batch)} "
        f"shapes, {model_in_words}; from ids to the best {BEST_ANSWERS} and their scores, one query at a time, and "
        f"{answered:,} of all shapes together, median of {_REPEATS}",
        compares="times as many answers a second together as one query at a time",
    )
    every: list[float] = []
    for shape, ids in batch.items():
        say(f"{nickname(shape)}: {len(ids):,} queries")
        milliseconds = []
        for row in np.concatenate([ids[:_WARM_UP], ids]):
            started = time.perf_counter()
            best_answers(model, {shape: row[None]}, entities, unions)
            milliseconds.append(1000 * (time.perf_counter() - started))
        own = milliseconds[len(ids[:_WARM_UP]) :]
        every += own
        _note(result, nickname(shape), own)
    _note(result, "all", every)
    say(f"{answered:,} together")
    best_answers(model, mixed, entities, unions)
    seconds = median_seconds(lambda: best_answers(model, mixed, entities, unions), where, _REPEATS)
    result.figures["together answers/s"] = round(answered / seconds)
    result.ratios["together"] = round(statistics.mean(every) / 1000 * answered / seconds, 2)
    return result


def _subject(
    data: Path | None,
    device: torch.device | str,
    graph: str | None,
    run: Path | None,
    count: int | None,
    settings: Sequence[str],
    say: Say,
) -> tuple[Subject, Unions, str]:
    """What is measured, how it answers unions, and what it is in words."""
    if run is None:
        name = graph or _USUAL_GRAPH
        own_queries = stored_set(data / name, "test") if data else None
        queries = own_queries.name if own_queries else "betae"
        subject = Subject.of(data, device, count, _COUNT, settings, say, name=name, queries=queries)
        return subject, "native", f"untrained {in_words(settings)}"
    if settings:
        raise UsageError("a run is measured as it is: leave out --set")
    from query2particles.joined import open_run  # reads weights; without a run nothing does

    where, opened = torch.device(device), open_run(run)
    own = opened.graph(graph)
    batch, _ = drawn_queries(own, "test", most=count or _COUNT[where.type], seed=0)
    subject = Subject(where, own, batch, opened.model(own, where))
    return subject, opened.config.training.unions, f"a run of {opened.config.method}"


def _fitting(subject: Subject) -> int:
    """How many queries of each shape are answered together."""
    most = _TOGETHER[subject.device.type]
    if isinstance(subject.model, Factored):
        return most
    room = fitting(_STATE_BYTES, subject.device, _STATES * len(subject.graph.entities))
    return min(most, max(1, room // len(subject.batch)))


def bench_answer_methods(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    count: int | None = None,
    settings: Sequence[str] = (),
    calls: Calls | None = None,
    say: Say = print,
) -> Bench:
    """The time a query takes, for every method in its default preset and every shape that it can answer, on FB15k."""
    where = torch.device(device)
    calls = calls or _CALLS[where.type]
    configs = {name: configured(preset(name), None, settings) for name in METHODS}
    graph, batch = _queries(data, count or _OF_METHODS, say)
    entities = len(graph.entities)
    result = Bench(
        "answer-methods",
        machine(where.type),
        f"{where.type}, {graph.name}, {entities:,} entities, test queries of {len(batch)} shapes, every method in its "
        f"{in_words(settings)}, untrained (of weights only depends how many entities tree follows); from ids to the "
        f"best {BEST_ANSWERS}; "
        f"medians of {calls.most} calls, or of those that begin within {calls.seconds:g} s",
        compares="times as long for cqd-beam as for q2p, where there are two hops or more",
    )
    for number, (method, config) in enumerate(configs.items(), start=1):
        say(f"{method}, {number} of {len(configs)}")
        model, unions = untrained(config, graph, where), config.training.unions
        for shape, ids in batch.items():
            if Disjuncts.of(shape, unions).lacking(model):
                continue
            answer = partial(_answer_shape, model, shape, entities, unions)
            answer(ids[:1])  # what is imported and planned at first is no part of answering
            for size in _SIZES:
                seconds = calls.median_seconds(answer, ids, size)
                result.figures[_name(method, shape, size)] = significant(1000 * seconds / size)
    for size in _SIZES:
        for shape in filter(_many_hops, batch):
            slow, fast = (result.figures[_name(method, shape, size)] for method in ("cqd-beam", "q2p"))
            result.ratios[f"{nickname(shape)} batch {size}"] = significant(slow / fast)
    return result


def best_answers(
    model: Model, batch: Batch, entities: int, unions: Unions = "native"
) -> dict[Query, tuple[Ints, npt.NDArray[np.float32]]]:
    """The ten best entities of every query and their scores, on the host: all work is done when they are there."""
    with scoring(model):
        found = best_of_all(model, batch, BEST_ANSWERS, entities, unions)
        return {shape: (best.entities.cpu().numpy(), best.scores.cpu().numpy()) for shape, best in found.items()}


def _answer_shape(model: Model, shape: Query, entities: int, unions: Unions, ids: Ints) -> None:
    best_answers(model, {shape: ids}, entities, unions)


def _queries(data: Path | None, count: int, say: Say) -> tuple[Graph, Batch]:
    """FB15k with test queries of each shape, in the usual order; without data, atlas."""
    graph, batch, _ = bench_data(data, count, say, name="FB15k")
    return graph, {shape: batch[shape] for shape in SHAPES.values() if len(batch.get(shape, ()))}


def _name(method: str, shape: Query, size: int) -> str:
    """What a time is called among the figures; `report.method_times` reads it."""
    return f"{method} {nickname(shape)} batch {size} ms"


def _many_hops(shape: Query) -> bool:
    """Whether a relation is followed from where another one led."""
    return any(step.operator is Project and step.hop for step in compile_shapes((shape,)).steps)


def _note(result: Bench, name: str, milliseconds: Sequence[float]) -> None:
    result.figures[f"{name} median ms"] = round(float(np.median(milliseconds)), 3)
    result.figures[f"{name} 95th percentile ms"] = round(float(np.percentile(milliseconds, 95)), 3)
