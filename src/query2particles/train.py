"""Training, from a graph to a run folder:  edges ▶ drawn queries ▶ update ▶ validation ▶ weights.

A batch holds all shapes of the training mix in fixed numbers. Every few updates the loss is read and reported; every
`validate_every` updates the model is validated (mean MRR over the shapes) and everything is saved, so that a run that
ends there, however it ends, can be resumed. On the CPU a resumed run ends with the same weights, bit for bit, as one
that was left alone.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from query2particles.config import Config, Training, build
from query2particles.engine.exact import Batch
from query2particles.engine.loss import LossTerms
from query2particles.engine.update import POOLED, Update
from query2particles.errors import TrainingError, UsageError, WorkloadError
from query2particles.evaluate import Evaluation, evaluate
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P
from query2particles.query.algebra import SHAPES, Complement, Query
from query2particles.run import Run, State
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.labels import Labels
from query2particles.workload.selection import drawn_queries, stored_queries
from query2particles.workload.stream import FixedStream, Grounding, Part, Stream

__all__ = ["Prepared", "Progress", "Trained", "prepare", "rate_at", "train", "training_parts", "validation_set"]

_REPORT_EVERY = {"cpu": 10, "cuda": 100}
"""Updates between two reports: a loss on CUDA has to be waited for."""


@dataclass(frozen=True)
class Progress:
    """How far training is. Validations are mean MRRs in percent, by group of shapes: epfo, negation, all."""

    update: int
    updates: int
    loss: float
    """The mean since the last report."""
    queries_per_second: float
    mrr: float | None
    """Over all shapes, of the latest validation."""
    validation: Mapping[str, float] | None
    """That of this very update; None where there was none."""


@dataclass(frozen=True)
class Trained:
    """How training ended."""

    update: int
    best_update: int
    best: Mapping[str, float] | None
    """The best validation: mean MRRs in percent, by group of shapes: epfo, negation, all."""
    seconds: float
    """From the start, those before a resumption included."""
    gpu_memory: int
    """The most bytes that tensors took on the GPU."""
    signal: int | None
    """What ended it early: SIGINT (Ctrl-C) or SIGTERM. Everything is saved then."""

    @property
    def best_mrr(self) -> float | None:
        return self.best["all"] if self.best else None

    @property
    def interrupted(self) -> bool:
        return self.signal is not None


def train(
    run: Run,
    graph: Graph,
    *,
    device: torch.device | str = "cpu",
    validation: tuple[Batch, Mapping[Query, Labels]] | None = None,
    on_progress: Callable[[Progress], object] = lambda _: None,
) -> Trained:
    """Train a run from its start, or from its last save, to its end."""
    training, device = run.config.training, torch.device(device)
    run.check(graph)
    begin = time.perf_counter()
    with (
        run.held(),
        _own_random_numbers(training.seed, device),
        _stop_signals() as stopping,
        _out_of_memory(training),
    ):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        prepared = prepare(run.config, graph, device)
        model, optimiser, generator, update = prepared.model, prepared.optimiser, prepared.generator, prepared.update
        if validation is None and not training.all_edges:
            validation = validation_set(graph, training)
        state = run.restore(model, optimiser, generator)
        begin -= state.seconds
        batch = sum(part.count for part in prepared.parts)
        clock, since = time.perf_counter(), state.update
        with run.trace(after=state.update) as trace:
            while state.update < training.updates and not state.waited_enough(training.patience):
                update(rate_at(state.update, training))
                state.update += 1
                validates = state.update % training.validate_every == 0 or state.update == training.updates
                stops = stopping.signal is not None  # asked once: it may change at any moment
                if not (validates or stops or state.update % _REPORT_EVERY[device.type] == 0):
                    continue
                loss = update.mean_loss()
                if not math.isfinite(loss) or ((validates or stops) and not _finite(model)):
                    raise _diverged(run, state)
                speed = batch * (state.update - since) / (time.perf_counter() - clock)
                report = {"loss": round(loss, 6), "queries_per_second": round(speed), **_spent(begin, device)}
                trace.write(update=state.update, **report)
                found = None
                if validates:
                    if validation is not None:
                        found = _percentages(evaluate(model, *validation, unions=training.unions))
                        better = state.note(found)
                        trace.write(update=state.update, validation=found, best=better, **_spent(begin, device))
                    else:
                        better, state.best_update = True, state.update
                    if better:
                        run.save_best(model, state)
                if validates or stops:
                    state.seconds = time.perf_counter() - begin
                    run.save_last(model, optimiser, generator, state)
                mrr = state.latest["all"] if state.latest else None
                on_progress(Progress(state.update, training.updates, loss, speed, mrr, found))
                clock, since = time.perf_counter(), state.update
                if stops:
                    break
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    unfinished = state.update < training.updates and not state.waited_enough(training.patience)
    ended_by = stopping.signal if unfinished else None
    return Trained(state.update, state.best_update, state.best, state.seconds, memory, ended_by)


@dataclass(frozen=True)
class Prepared:
    """What training moves: a new model, its optimiser, and the update that draws a batch of `parts` and steps."""

    model: Q2P
    optimiser: torch.optim.AdamW
    generator: torch.Generator
    parts: Sequence[Part]
    update: Update


def prepare(config: Config, graph: Graph, device: torch.device) -> Prepared:
    """All that the first update needs; the model draws its first weights from torch's own generator."""
    training = config.training
    model = build(config, len(graph.entities), graph.at("train").relations).to(device)
    optimiser = _optimiser(model, training, device)
    generator = torch.Generator(device).manual_seed(training.seed)
    parts, terms = training_parts(training)
    stream = _stream(graph, training, parts, generator)
    shapes = [part.shape for part in parts]
    update = Update(model, optimiser, stream, shapes, terms, clip=training.clip, generator=generator)
    return Prepared(model, optimiser, generator, parts, update)


def rate_at(update: int, training: Training) -> float:
    """The learning rate of an update: a rise over `warm_up`, then constant, or half a cosine down to zero."""
    if update < training.warm_up:
        return training.rate * (update + 1) / (training.warm_up + 1)
    if training.schedule == "constant":
        return training.rate
    rest = max(training.updates - training.warm_up, 1)
    return training.rate * (1 + math.cos(math.pi * (update - training.warm_up) / rest)) / 2


def training_parts(training: Training) -> tuple[list[Part], list[LossTerms]]:
    """How many queries of each shape make a batch, and how each is trained."""
    terms = LossTerms(training.smoothing, training.calibration)
    total = sum(training.mix.values())
    ends = [0.0, *accumulate(training.mix.values())]
    counts = {
        name: round(training.batch * end / total) - round(training.batch * start / total)
        for name, start, end in zip(training.mix, ends[:-1], ends[1:], strict=True)
    }
    if training.edge_share + training.union_share > 1:
        raise UsageError("edge_share and union_share are shares of the 1p queries: together at most 1")
    one_hop = counts.get("1p", 0)
    by_edge, unions = round(one_hop * training.edge_share), round(one_hop * training.union_share)
    if one_hop:
        counts["1p"] -= by_edge + unions
    parts = [Part(SHAPES[name], count) for name, count in counts.items() if count > 0]
    if by_edge:
        parts.append(Part(SHAPES["1p"], by_edge, Grounding.EDGE))
    if unions:
        parts.append(Part(SHAPES["2u"], unions, Grounding.ONE_HOP))
    every = [terms] * len(parts)
    if one_hop and training.inverted_complements:
        parts.append(Part(Complement(SHAPES["1p"]), one_hop, Grounding.ONE_HOP))
        every.append(terms._replace(sign=-1.0))
    return parts, every


def validation_set(graph: Graph, training: Training) -> tuple[Batch, Mapping[Query, Labels]] | None:
    """Validation queries with their answers, from a folder or drawn; None where the graph has no validation facts."""
    most = training.validation_queries
    if training.validation:
        batch, labels = stored_queries(graph, Path(training.validation), "valid", most=most)
        if not any(labels[shape].hard.sizes.any() for shape in SHAPES.values() if shape in labels):
            raise WorkloadError(f"no query of the fourteen shapes in {training.validation} has a hard answer")
        return batch, labels
    if not graph.facts()["valid"]:
        return None
    batch, labels = drawn_queries(graph, "valid", most=most, seed=training.seed)
    return (batch, labels) if batch else None


def _optimiser(model: torch.nn.Module, training: Training, device: torch.device) -> torch.optim.AdamW:
    if device.type != "cuda":
        return torch.optim.AdamW(model.parameters(), lr=training.rate, weight_decay=training.decay, fused=True)
    rate = torch.tensor(training.rate, device=device)  # a captured update reads it anew each time
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=training.decay, fused=True, capturable=True)


def _stream(
    graph: Graph, training: Training, parts: Sequence[Part], generator: torch.Generator
) -> Stream | FixedStream:
    if generator.device.type == "cuda":
        parts = [replace(part, count=part.count * POOLED) for part in parts]
    if training.workload:
        if training.all_edges:
            raise UsageError("a workload's answers follow from the training edges: leave out workload or all_edges")
        batch, labels = stored_queries(graph, Path(training.workload), "train")
        return FixedStream({shape: (ids, labels[shape].hard) for shape, ids in batch.items()}, parts, generator)
    edges = graph.at("test" if training.all_edges else "train")
    return Stream(DeviceEdges.of(edges, generator.device), parts, generator)


def _percentages(found: Evaluation) -> dict[str, float]:
    """Mean MRRs of the groups of which there were queries."""
    averages = {group: found.average(group) for group in ("epfo", "negation", "all")}
    return {group: round(100 * average["mrr"], 4) for group, average in averages.items() if average}


def _spent(begin: float, device: torch.device) -> dict[str, float]:
    spent = {"seconds": round(time.perf_counter() - begin, 2)}
    if device.type == "cuda":
        spent["gpu_memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return spent


def _finite(model: torch.nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def _diverged(run: Run, state: State) -> TrainingError:
    rate, clip, best = run.config.training.rate / 3, run.config.training.clip / 3, state.best_update
    kept = f"{run.folder} keeps the weights of update {best:,}" if best else "nothing was saved before"
    return TrainingError(
        f"the loss or a weight is no number after {state.update:,} updates; {kept}. "
        f"Train a new run at a lower rate (--set rate={rate:.1g}) or with smaller steps (--set clip={clip:.1g})"
    )


@contextlib.contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators, which dropout draws from, and leave them afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@dataclass
class _Stopping:
    signal: int | None = None


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stopping]:
    """Ctrl-C and SIGTERM are noted, so that training ends between two updates; a second one ends it at once."""
    stopping = _Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What runs in the background is deaf to Ctrl-C, and stays so; handlers that are not Python's cannot be put back.
    previous = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def stop(number: int, frame: Any) -> None:
        stopping.signal = number
        signal.signal(number, previous[number])

    for number in previous:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _out_of_memory(training: Training) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _MEMORY_WORDS):
            raise
        raise TrainingError(
            f"out of memory: lower the batch (--set batch={max(training.batch // 2, 1)}), then the size of the model "
            "(--set dimension=… or particles=…)"
        ) from error


_MEMORY_WORDS = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")
"""What torch says where memory is out, on CUDA and on the CPU; errors of memory access say other things."""
