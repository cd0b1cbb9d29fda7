"""Training, from a graph to a run folder:  edges ▶ drawn queries ▶ update ▶ validation ▶ weights.

A batch holds all shapes of the training mix in fixed numbers. Every few updates the loss is read and reported; every
`validate_every` updates the model is validated (mean MRR over the shapes) and everything is saved, so that a run that
ends there, however it ends, can be resumed. On the CPU a resumed run ends with the same weights, bit for bit, as one
that was left alone.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from query2particles.checkpoint import Saved
from query2particles.config import Config, TableName, Training
from query2particles.curriculum import doubts, rate_at, training_parts, training_proposal, training_stream
from query2particles.distributed import Group
from query2particles.endings import diverged, out_of_memory, stop_signals
from query2particles.engine.batches import Stream
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.loss import Objective
from query2particles.engine.negatives import Proposal
from query2particles.engine.shards import ShardedUpdate
from query2particles.engine.update import POOLED, Update
from query2particles.errors import WorkloadError
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.methods.registry import Model
from query2particles.query.algebra import SHAPES
from query2particles.query.rewrite import Unions
from query2particles.run import Run
from query2particles.tables import Subject, prepared_subject, settled
from query2particles.workload.labels import Labelled
from query2particles.workload.selection import drawn_queries, stored_queries
from query2particles.workload.stream import Part

__all__ = ["Prepared", "Progress", "Trained", "assembled", "one_core_spared", "prepare", "train", "validation_set"]

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
    validation: Labelled | None = None,
    group: Group | None = None,
    on_progress: Callable[[Progress], object] = lambda _: None,
    on_note: Callable[[str], object] = lambda _: None,
) -> Trained:
    """Train a run from its start, or from its last save, to its end; `on_note` hears what a person should know.

    All processes of a `group` call it, and the leading one writes; what hears of it is best given to that one alone.
    """
    leads = group is None or group.leads
    training, device = run.config.training, torch.device(device)
    run.check_facts(graph)
    begin = time.perf_counter()
    in_validation = partial(
        out_of_memory, "validation", validation_queries=training.validation_queries, batch=training.batch
    )
    with (
        run.held() if leads else contextlib.nullcontext(),
        _own_random_numbers(training.seed, device),
        one_core_spared(device),
        stop_signals() as stopping,
        out_of_memory("training", **_by_size(training)),
    ):
        if device.type == "cuda":
            # The update of an earlier training holds its CUDA graphs, and so their memory, in a cycle of references:
            # until that is collected, it would count as memory of this one.
            gc.collect()
            torch.cuda.reset_peak_memory_stats(device)
        prepared = prepare(run.config, graph, device, folder=run.folder, table=run.saved_table(), group=group)
        update, saved = prepared.update, prepared.saved
        state = run.restore(saved, group)
        if not state.finished(training):
            if validation is None:
                with in_validation():
                    validation = validation_set(graph, training)
            validation = _answerable(prepared.model, validation, training.unions)
            for words in [
                *prepared.notes,
                *doubts(training),
                *_doubts_of_validation(graph, training, validated=validation is not None),
            ]:
                on_note(words)
        begin -= state.seconds
        batch = sum(part.count for part in prepared.parts)
        clock, since = time.perf_counter(), state.update
        with run.trace(after=state.update, written=leads) as trace:
            while not state.finished(training):
                update(rate_at(state.update, training))
                state.update += 1
                validates = state.update % training.validate_every == 0 or state.update == training.updates
                stops = _any(group, stopping.signal is not None)  # asked once: it may change at any moment
                saves = validates or stops or _is_due(state.update, training.checkpoint_every)
                if not (saves or state.update % _REPORT_EVERY[device.type] == 0):
                    continue
                loss = update.mean_loss()
                if not math.isfinite(loss) or (saves and _any(group, not saved.finite())):
                    raise diverged(run, state)
                speed = batch * (state.update - since) / (time.perf_counter() - clock)
                report = {"loss": round(loss, 6), "queries_per_second": round(speed), **_spent(begin, device)}
                trace.write(update=state.update, **report)
                found = None
                if validates:
                    if validation is not None:
                        with in_validation():
                            found = evaluate(prepared.model, *validation, unions=training.unions).percentages(4)
                        better = state.note(found)
                        trace.write(update=state.update, validation=found, best=better, **_spent(begin, device))
                    else:
                        better, state.best_update = True, state.update
                    if better:
                        run.save_best(saved.model, state, group)
                if saves:
                    state.seconds = time.perf_counter() - begin
                    update.rewind()
                    run.save_last(saved, state, group)
                mrr = state.latest["all"] if state.latest else None
                on_progress(Progress(state.update, training.updates, loss, speed, mrr, found))
                clock, since = time.perf_counter(), state.update
                if stops:
                    break
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    # Where only another process was told to stop, all do.
    ended_by = None if state.finished(training) else stopping.signal or signal.SIGTERM
    return Trained(state.update, state.best_update, state.best, state.seconds, memory, ended_by)


@dataclass(frozen=True)
class Prepared:
    """What training moves: a new model, its optimiser, and the update that draws a batch of `parts` and steps."""

    config: Config
    """With nothing left to `auto`."""
    notes: Sequence[str]
    """What was chosen, and why."""
    subject: Subject
    optimiser: torch.optim.AdamW
    generator: torch.Generator
    parts: Sequence[Part]
    update: Update

    @property
    def model(self) -> Model:
        """What is validated."""
        return self.subject.model

    @property
    def saved(self) -> Saved:
        """What a checkpoint keeps."""
        subject, table = self.subject, self.config.training.table
        entities = 0 if subject.shards is None else subject.shards.entities
        return Saved(subject.trained, self.optimiser, self.generator, subject.rows, table, subject.scored, entities)


def prepare(
    config: Config,
    graph: Graph,
    device: torch.device,
    *,
    folder: Path | None = None,
    table: TableName | None = None,
    group: Group | None = None,
) -> Prepared:
    """All that the first update needs; the model draws its first weights from torch's own generator.

    `table` is what a save was made with, if there is one, and `folder` where rows of the host are. Each process of a
    `group` has a shard of the entities, and a share of every batch.
    """
    if group is None:
        config, notes = settled(config, len(graph.entities), device, table)
    else:
        config, notes = group.told(settled(config, len(graph.entities), device, table, processes=group.size))
    training = config.training
    generator = torch.Generator(device).manual_seed(training.seed)
    parts, _ = training_parts(training)
    subject = prepared_subject(config, graph, device, parts, generator, folder, fresh=table is None, group=group)
    stream = training_stream(graph, training, parts, generator, batches=POOLED if device.type == "cuda" else 1)
    proposal = training_proposal(graph, training, generator, alone=group is None)
    return assembled(config, subject, stream, proposal, generator, notes)


def assembled(
    config: Config,
    subject: Subject,
    stream: Stream,
    proposal: Proposal,
    generator: torch.Generator,
    notes: Sequence[str] = (),
) -> Prepared:
    """The same from its parts: what is trained, where queries come from, what their answers are set against."""
    training = config.training
    parts, terms = training_parts(training)
    optimiser = _optimiser(subject, training, generator.device)
    what = subject.moved, optimiser, stream, [part.shape for part in parts], terms
    how: dict[str, Any] = {
        "objective": Objective(training.loss, proposal.count),
        "proposal": proposal,
        "clip": training.clip,
        "generator": generator,
        "working": subject.working,
    }
    update = (
        Update(*what, **how, table=subject.rows, ahead=training.table == "host")
        if subject.shards is None
        else ShardedUpdate(*what, **how, shards=subject.shards, scored=subject.scored)
    )
    return Prepared(config, notes, subject, optimiser, generator, parts, update)


def validation_set(graph: Graph, training: Training) -> Labelled | None:
    """Validation queries with their answers, from a folder or drawn.

    None where the graph has no validation facts, or they are trained on.
    """
    if not training.holds_out:
        return None
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


def _answerable(model: Model, validation: Labelled | None, unions: Unions) -> Labelled | None:
    """Nothing where the model can answer none of the queries."""
    shapes = validation[0] if validation else ()
    return None if all(Disjuncts.of(shape, unions).lacking(model) for shape in shapes) else validation


def _doubts_of_validation(graph: Graph, training: Training, *, validated: bool) -> Iterator[str]:
    """What to say where nothing is validated."""
    if validated:
        return
    if training.holds_out:
        why = "no validation query that the method can answer" if graph.facts()["valid"] else "no validation facts"
        yield f"{graph.name}: {why}; nothing is validated, and the latest weights are kept as the best"
    if training.patience:
        yield "patience has no effect: it counts validations, and there are none"


def _optimiser(subject: Subject, training: Training, device: torch.device) -> torch.optim.AdamW:
    """AdamW; the tables of a method (its own parameters) decay, its operators (the parameters of its parts) do not."""
    own = {id(one) for one in (*subject.moved.parameters(recurse=False), *(subject.scored or {}).values())}
    moved = subject.dense()
    tables, operators = ([one for one in moved if (id(one) in own) == of_its_own] for of_its_own in (True, False))
    groups = [{"params": tables, "weight_decay": training.decay}, {"params": operators, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=training.rate, fused=True)
    rate = torch.tensor(training.rate, device=device)  # a captured update reads it anew each time
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)


def _is_due(update: int, every: int) -> bool:
    return every > 0 and update % every == 0


def _any(group: Group | None, here: bool) -> bool:
    """Whether it is so here, or with any process of the group."""
    return here if group is None else bool(group.largest(torch.tensor(float(here))))


def _spent(begin: float, device: torch.device) -> dict[str, float]:
    spent = {"seconds": round(time.perf_counter() - begin, 2)}
    if device.type == "cuda":
        spent["gpu_memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return spent


def _by_size(training: Training) -> dict[str, int]:
    """What an update takes memory for, the most first."""
    numbers = {"batch": training.batch}
    if training.negatives != "auto" and training.negatives:
        numbers["negatives"] = training.negatives
    return dict(sorted(numbers.items(), key=lambda one: -one[1]))


@contextlib.contextmanager
def one_core_spared(device: torch.device) -> Iterator[None]:
    """On a CPU, work with one thread less than usual, unless the user says how many (OMP_NUM_THREADS).

    The threads of an update wait for each other at every operation. Where another program has one of the cores, all
    wait for it: on two cores, updates of two threads were then seen to take ten to a hundred times as long as those of
    one thread, which are otherwise slower by a third.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and before > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(before - 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators, which dropout draws from, and leave them afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
