"""`q2p bench search`: what the ways of a joined run find, and how fast: all parts, vectors, search, guided search.

Guided search is measured for several numbers of proposals m; what counts is how much of full search's MRR it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import torch

from query2particles.bench.answering import BEST_ANSWERS, best_answers
from query2particles.bench.models import median_seconds
from query2particles.bench.record import Bench, Say, significant
from query2particles.engine.ranks import rows_at_once
from query2particles.errors import WorkloadError
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.joined import BEST, FAST, GUIDED, open_joined
from query2particles.provenance import machine
from query2particles.query.algebra import GROUP_NAMES
from query2particles.run import Run
from query2particles.train import validation_set
from query2particles.workload.labels import Labelled

__all__ = ["PROPOSALS", "bench_search", "guided_curve"]

PROPOSALS = (4, 8, 16, 32, 64, 128, 256)
_COUNT = {"cpu": 10, "cuda": 500}
"""Validation queries of each shape."""

_TOGETHER = 256
_FULL = "tree"


def bench_search(
    folder: Path,
    device: torch.device | str = "cpu",
    *,
    graph: str | None = None,
    count: int | None = None,
    proposals: tuple[int, ...] = PROPOSALS,
    say: Say = print,
) -> Bench:
    """MRR on validation queries, and queries a second from ids to the best ten, of every way to answer."""
    where = torch.device(device)
    run = open_joined(folder)
    opened = run.graph(graph)
    most = count or _COUNT[where.type]
    validation = validation_set(opened, replace(run.config.training, validation_queries=most))
    if validation is None:
        raise WorkloadError(f"{opened.name} has no validation facts to ask for that {folder} was not trained on")
    result = Bench(
        "search",
        machine(where.type),
        f"{where.type}, {opened.name}, {len(opened.entities):,} entities, {sum(map(len, validation[0].values())):,} "
        f"validation queries of {len(validation[0])} shapes; from ids to the best {BEST_ANSWERS}, at most {_TOGETHER} "
        f"queries at a time; {BEST} was weighed by validation queries, too; m: proposals of each particle, four times "
        "as many for the answers",
        compares="share of full search's MRR",
    )
    full: dict[str, float] = {}
    for method in (_FULL, FAST, BEST):
        say(method)
        found = _measure(result, method, run.answered_by(method), opened, where, validation)
        full = full or found
    kept: dict[int, float] = {}
    for m in proposals:
        say(f"{GUIDED}, m = {m}")
        guided = run.answered_by(GUIDED, [f"proposals={m}", f"answers={4 * m}"])
        found = _measure(result, f"m={m}", guided, opened, where, validation)
        for group in full:
            result.ratios[f"m={m} {group}"] = significant(found[group] / max(full[group], 1e-9))
        kept[m] = result.ratios[f"m={m} {GROUP_NAMES['all']}"]
    if enough := _enough(kept):
        result.figures["smallest m that keeps 99 %"] = min(enough)
    return result


def _enough(kept: Mapping[int, float]) -> list[int]:
    """Every m that keeps 99 %, and so does every larger one: one that does by chance is left out."""
    return list(takewhile(lambda m: kept[m] >= 0.99, sorted(kept, reverse=True)))


def guided_curve(figures: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """By m, what was measured of it: from figures such as `m=16 EPFO MRR`."""
    found: dict[int, dict[str, float]] = {}
    for name, value in figures.items():
        first, _, what = name.partition(" ")
        if first.startswith("m="):
            found.setdefault(int(first.removeprefix("m=")), {})[what] = value
    return found


def _measure(
    result: Bench, name: str, run: Run, graph: Graph, device: torch.device, validation: Labelled
) -> dict[str, float]:
    """Take down the MRR of each group of shapes, which is returned, and the speed."""
    batch, labels = validation
    model, unions, entities = run.model(graph, device), run.config.training.unions, len(graph.entities)
    percentages = evaluate(model, batch, labels, unions=unions).percentages(4)
    found = {GROUP_NAMES[group]: value for group, value in percentages.items()}
    together = min(_TOGETHER, rows_at_once(model, entities))

    def answer_all() -> None:
        for shape, ids in batch.items():
            for start in range(0, len(ids), together):
                best_answers(model, {shape: ids[start : start + together]}, entities, unions)

    if device.type == "cuda":
        answer_all()  # what is captured or planned at first is no part of answering
    seconds = median_seconds(answer_all, device, 3 if device.type == "cuda" else 1)
    queries = sum(map(len, batch.values()))
    result.figures |= {f"{name} {group} MRR": round(value, 2) for group, value in found.items()}
    result.figures[f"{name} queries/s"] = significant(queries / seconds)
    return found
