"""`q2p bench evaluate`: a whole query set, against the same model one query at a time, in two ways.

evaluate(chunk=1)   the package's own evaluator, which knows the fast order of a product with one row
plain               as one writes it first: execute a query, score all entities, sort them, take the answers' places
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from query2particles.bench.models import Subject, finish, in_words, median_seconds, seconds_of
from query2particles.bench.record import Bench, Say
from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import ids_for, scoring
from query2particles.evaluate import evaluate
from query2particles.graph.edges import Ints
from query2particles.methods.registry import Model
from query2particles.provenance import machine
from query2particles.query.algebra import Query, nickname
from query2particles.workload.labels import Labels, label

__all__ = ["bench_evaluate", "plain_mrr"]

_COUNT = {"cpu": 200, "cuda": None}
"""Queries of each shape; None: all."""

_ALONE = {"cpu": 20, "cuda": 50}
"""Queries of each shape that are evaluated one at a time."""

_REPEATS = 3


def bench_evaluate(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    count: int | None = None,
    settings: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Evaluation of BetaE's official NELL test set; on a CPU of a part of it."""
    subject = Subject.of(data, device, count, _COUNT, settings, say, name="NELL", queries="betae")
    where, graph, batch, model, queries = subject.device, subject.graph, subject.batch, subject.model, subject.queries
    alone = {shape: ids[: _ALONE[where.type]] for shape, ids in batch.items()}
    result = Bench(
        "evaluate",
        machine(where.type),
        f"{where.type}, {graph.name}, {queries:,} test queries of {len(batch)} shapes, untrained "
        f"{in_words(settings)}; median of {_REPEATS} runs; one at a time: "
        f"{sum(map(len, alone.values())):,} of them, scaled shape by shape",
        compares="times as fast as the same model one query at a time",
    )
    say(f"labelling {queries:,} queries")
    found: dict[Query, Labels] = {}
    label_seconds = seconds_of(lambda: found.update(label(graph, "test", batch)), where)
    alone_labels = label(graph, "test", alone)
    evaluate(model, alone, alone_labels)  # so that everything has run once
    shape, ids = next(iter(alone.items()))
    plain_mrr(model, shape, ids, alone_labels[shape])
    say("evaluating them together")
    seconds = median_seconds(lambda: evaluate(model, batch, found), where, _REPEATS)
    result.figures |= {
        "seconds": round(seconds, 3),
        "queries/s": round(queries / seconds),
        "seconds of labelling": round(label_seconds, 3),
    }
    say("evaluating some one at a time")
    for way, slow in _one_at_a_time(model, alone, alone_labels, batch, where).items():
        result.figures[f"{way} queries/s"] = round(queries / slow, 1)
        result.ratios[f"against {way}"] = round(slow / seconds, 2)
    return result


def _one_at_a_time(
    model: Model, alone: Batch, labels: Mapping[Query, Labels], batch: Batch, device: torch.device
) -> dict[str, float]:
    """For each way, the seconds that the whole batch would take it: of every shape as many times as it has queries."""
    ways: dict[str, Callable[[Query, Ints], float]] = {
        "evaluate(chunk=1)": lambda shape, ids: _own_mrr(model, shape, ids, labels),
        "a plain evaluator": lambda shape, ids: plain_mrr(model, shape, ids, labels[shape]),
    }
    totals = dict.fromkeys(ways, 0.0)
    for shape, ids in alone.items():
        found = []
        for way, work in ways.items():
            finish(device)
            started = time.perf_counter()
            found.append(work(shape, ids))
            finish(device)
            totals[way] += (time.perf_counter() - started) / len(ids) * len(batch[shape])
        if not math.isclose(*found, rel_tol=0.01):
            raise RuntimeError(f"the evaluators disagree on {nickname(shape)}: an MRR of {found[0]} or {found[1]}")
    return totals


def _own_mrr(model: Model, shape: Query, ids: Ints, labels: Mapping[Query, Labels]) -> float:
    (found,) = evaluate(model, {shape: ids}, labels, chunk=1).shapes.values()
    return found.means["mrr"]


def plain_mrr(model: Model, shape: Query, ids: Ints, labels: Labels) -> float:
    """The filtered MRR of queries that have hard answers: one query at a time, by sorting all entities."""
    plan = compile_shapes((shape,), model.kind)
    reciprocal: list[float] = []
    with scoring(model):
        for row in range(len(ids)):
            if len(hard := labels.hard[row]):
                (state,) = execute(plan, model, [ids_for(model, ids[row : row + 1])])
                reciprocal.append(_reciprocal_rank(model.score(state)[0], labels.easy[row], hard))
    return float(np.mean(reciprocal))


def _reciprocal_rank(scores: torch.Tensor, easy: Any, hard: Any) -> float:
    """The mean over the hard answers, whose ranks pass over all answers that stand before them."""
    order = torch.argsort(scores, descending=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    answers = torch.as_tensor(np.concatenate([hard, easy]), dtype=torch.int64, device=order.device)
    of_answers = places[answers]
    before = of_answers.argsort().argsort()  # how many other answers stand before each
    ranks = (1 + of_answers - before)[: len(hard)]
    return float((1 / ranks).mean())
