"""`q2p bench answer`: one query at a time, from ids to its ten best answers, and many together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from query2particles.bench.models import Subject, in_words, median_seconds
from query2particles.bench.record import Bench, Say
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import ids_for, rows_at_once, scoring, top_k
from query2particles.graph.edges import Ints
from query2particles.methods.q2p import Q2P
from query2particles.provenance import machine
from query2particles.query.algebra import Query, nickname

__all__ = ["bench_answer", "best_answers"]

_COUNT = {"cpu": 100, "cuda": 500}
"""Queries of each shape."""

_WARM_UP = 5
_BEST = 10


def bench_answer(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    count: int | None = None,
    settings: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Answers of an untrained model of the default preset, of FB15k-237's size."""
    subject = Subject.of(data, device, count, _COUNT, settings, say)
    where, batch, model, entities = subject.device, subject.batch, subject.model, len(subject.graph.entities)
    result = Bench(
        "answer",
        machine(where.type),
        f"{where.type}, {subject.graph.name}, {entities:,} entities, {subject.queries:,} test queries of {len(batch)} "
        f"shapes, untrained {in_words(settings)}; from ids to the best {_BEST}",
        compares="times as many answers a second together as one query at a time",
    )
    every: list[float] = []
    for shape, ids in batch.items():
        say(f"{nickname(shape)}: {len(ids):,} queries")
        milliseconds = []
        for row in np.concatenate([ids[:_WARM_UP], ids]):
            started = time.perf_counter()
            best_answers(model, shape, row[None], entities)
            milliseconds.append(1000 * (time.perf_counter() - started))
        own = milliseconds[len(ids[:_WARM_UP]) :]
        every += own
        _note(result, nickname(shape), own)
    _note(result, "all", every)
    say("all together")
    together = rows_at_once(model, entities)

    def answer_all() -> None:
        for shape, ids in batch.items():
            for start in range(0, len(ids), together):
                best_answers(model, shape, ids[start : start + together], entities)

    answer_all()
    seconds = median_seconds(answer_all, where, 3)
    result.figures["together answers/s"] = round(subject.queries / seconds)
    result.ratios["together"] = round(sum(every) / 1000 / seconds, 2)
    return result


def best_answers(model: Q2P, shape: Query, ids: Ints, entities: int) -> list[list[int]]:
    """The ten best entities for each row of ids, as numbers: all work is done when they are there."""
    with scoring(model):
        (state,) = execute(compile_shapes((shape,), model.kind), model, [ids_for(model, ids)])
        best: list[list[int]] = top_k(model, state, _BEST, entities=entities)[0].tolist()
        return best


def _note(result: Bench, name: str, milliseconds: Sequence[float]) -> None:
    result.figures[f"{name} median ms"] = round(float(np.median(milliseconds)), 3)
    result.figures[f"{name} 95th percentile ms"] = round(float(np.percentile(milliseconds, 95)), 3)
