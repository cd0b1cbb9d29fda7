"""Training, from a graph to a run folder:  edges ▶ drawn queries ▶ update ▶ validation ▶ weights.

A batch holds all shapes of the training mix in fixed numbers. Every few hundred updates the loss is read and reported;
every `validate_every` updates the model is validated (mean MRR over the shapes) and everything is saved, so that a
run that ends there, however it ends, can be resumed. On the CPU a resumed run ends with the same weights, bit for bit,
as one that was left alone.
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

import numpy as np
import torch

from query2particles.config import Training, build
from query2particles.engine.exact import Batch
from query2particles.engine.loss import LossTerms
from query2particles.engine.update import POOLED, Update
from query2particles.errors import TrainingError
from query2particles.evaluate import Evaluation, evaluate
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES, Complement, Query
from query2particles.run import Run, Saved
from query2particles.workload.benchmark import read_set
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.labels import Labels, label
from query2particles.workload.sample import sample_shape
from query2particles.workload.stream import FixedStream, Grounding, Part, Stream

__all__ = ["Progress", "Trained", "rate_at", "train", "training_parts", "validation_set"]

_REPORT_EVERY = 100
_CAP = 100
"""Of answers of a validation query that is drawn."""


@dataclass(frozen=True)
class Progress:
    """How far training is."""

    update: int
    updates: int
    loss: float
    queries_per_second: float
    mrr: float | None
    """Of the latest validation, in percent."""


@dataclass(frozen=True)
class Trained:
    """How training ended."""

    update: int
    best_update: int
    best_mrr: float | None
    seconds: float
    interrupted: bool
    gpu_memory: int
    """The most bytes that tensors took on the GPU."""


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
    with _own_random_numbers(training.seed, device), _stop_signals() as stopping, _out_of_memory(training):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        model = build(run.config, len(graph.entities), graph.at("train").relations).to(device)
        optimiser = _optimiser(model, training, device)
        generator = torch.Generator(device).manual_seed(training.seed)
        parts, terms = training_parts(training)
        stream = _stream(graph, training, parts, generator)
        if validation is None and not training.all_edges:
            validation = validation_set(graph, training)
        update = Update(
            model, optimiser, stream, [part.shape for part in parts], terms, clip=training.clip, generator=generator
        )
        state = _State()
        if (last := run.last()) is not None:
            state = _restore(run, last, model, optimiser, generator)
        batch = sum(part.count for part in parts)
        clock, since = time.perf_counter(), state.update
        with run.trace(after=state.update) as trace:
            while state.update < training.updates and not state.waited_enough(training.patience):
                update(rate_at(state.update, training))
                state.update += 1
                saves = state.update % training.validate_every == 0 or state.update == training.updates
                if not (saves or stopping.is_set() or state.update % _REPORT_EVERY == 0):
                    continue
                loss = update.mean_loss()
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"the loss is no number after {state.update:,} updates; {run.folder} keeps what was saved "
                        f"before. Lower the rate (--set rate={training.rate / 3:.1g}) or the clipping (--set clip=…)"
                    )
                speed = batch * (state.update - since) / (time.perf_counter() - clock)
                trace.write(update=state.update, loss=round(loss, 6), queries_per_second=round(speed))
                if saves:
                    better = True
                    if validation is not None:
                        found = _validate(model, validation, training)
                        better = state.note(found)
                        trace.write(update=state.update, validation=_percentages(found), best=better)
                    if better:
                        about = {"update": state.update, "mrr": state.best_mrr}
                        run.save_best(Saved(model.state_dict(), about))
                if saves or stopping.is_set():
                    run.save_last(_everything(model, optimiser, generator, state))
                on_progress(Progress(state.update, training.updates, loss, speed, state.mrr))
                clock, since = time.perf_counter(), state.update
                if stopping.is_set():
                    break
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Trained(
        state.update,
        state.best_update,
        state.best_mrr,
        time.perf_counter() - begin,
        stopping.is_set(),
        memory,
    )


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
    one_hop = counts.get("1p", 0)
    unions = round(one_hop * training.union_share)
    if unions:
        counts["1p"] -= unions
    parts = [Part(SHAPES[name], count) for name, count in counts.items() if count]
    every = [terms] * len(parts)
    if unions:
        parts.append(Part(SHAPES["2u"], unions, Grounding.ONE_HOP))
        every.append(terms)
    if one_hop and training.inverted_complements:
        parts.append(Part(Complement(SHAPES["1p"]), one_hop, Grounding.ONE_HOP))
        every.append(terms._replace(sign=-1.0))
    return parts, every


def validation_set(graph: Graph, training: Training) -> tuple[Batch, Mapping[Query, Labels]] | None:
    """Validation queries with their answers, from a folder or drawn; None where the graph has no validation facts."""
    most = training.validation_queries
    if training.validation:
        batch = {
            shape: ids[np.linspace(0, len(ids) - 1, min(most, len(ids))).astype(np.int64)]
            for shape, ids in read_set(Path(training.validation), "valid").items()
        }
        return batch, label(graph, "valid", batch)
    if not graph.facts()["valid"]:
        return None
    samples = [
        sample_shape(graph, shape, most, split="valid", cap=_CAP, seed=training.seed, allow_fewer=True)
        for shape in SHAPES.values()
    ]
    drawn = [sample for sample in samples if len(sample.ids)]
    return {sample.shape: sample.ids for sample in drawn}, {sample.shape: sample.labels for sample in drawn}


@dataclass
class _State:
    """What a run has to remember besides weights and random states."""

    update: int = 0
    best_update: int = 0
    best_mrr: float | None = None
    mrr: float | None = None
    waited: int = 0
    """Validations since the best."""

    def note(self, found: Evaluation) -> bool:
        """Take down a validation; whether it is the best so far."""
        self.mrr = round(100 * found.average("all")["mrr"], 4)
        better = self.best_mrr is None or self.mrr > self.best_mrr
        self.waited = 0 if better else self.waited + 1
        if better:
            self.best_update, self.best_mrr = self.update, self.mrr
        return better

    def waited_enough(self, patience: int) -> bool:
        return 0 < patience <= self.waited


def _optimiser(model: torch.nn.Module, training: Training, device: torch.device) -> torch.optim.AdamW:
    if device.type != "cuda":
        return torch.optim.AdamW(model.parameters(), lr=training.rate, weight_decay=training.decay)
    rate = torch.tensor(training.rate, device=device)  # a captured update reads it anew each time
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=training.decay, fused=True, capturable=True)


def _stream(
    graph: Graph, training: Training, parts: Sequence[Part], generator: torch.Generator
) -> Stream | FixedStream:
    if generator.device.type == "cuda":
        parts = [replace(part, count=part.count * POOLED) for part in parts]
    if training.workload:
        batch = read_set(Path(training.workload), "train")
        labels = label(graph, "train", batch)
        return FixedStream({shape: (ids, labels[shape].hard) for shape, ids in batch.items()}, parts, generator)
    edges = graph.at("test" if training.all_edges else "train")
    return Stream(DeviceEdges.of(edges, generator.device), parts, generator)


def _validate(model: Any, validation: tuple[Batch, Mapping[Query, Labels]], training: Training) -> Evaluation:
    model.eval()
    found = evaluate(model, *validation, unions=training.unions)
    model.train()
    return found


def _percentages(found: Evaluation) -> dict[str, float]:
    return {group: round(100 * found.average(group)["mrr"], 2) for group in ("epfo", "negation", "all")}


def _everything(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, state: _State
) -> Saved:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in moments.items()}
    tensors["random.stream"] = generator.get_state()
    tensors["random.torch"] = torch.get_rng_state()
    if generator.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(generator.device)
    return Saved(tensors, vars(state))


def _restore(
    run: Run, last: Saved, model: torch.nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator
) -> _State:
    run.load_into(model, last, "model.")
    document = optimiser.state_dict()
    for name, tensor in last.tensors.items():
        if name.startswith("optimiser."):
            _, number, moment = name.split(".")
            document["state"].setdefault(int(number), {})[moment] = tensor
    optimiser.load_state_dict(document)
    generator.set_state(last.tensors["random.stream"])
    torch.set_rng_state(last.tensors["random.torch"])
    if generator.device.type == "cuda":
        torch.cuda.set_rng_state(last.tensors["random.cuda"], generator.device)
    names = vars(_State())
    return _State(**{name: value for name, value in last.about.items() if name in names})


@contextlib.contextmanager
def _own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators, which dropout draws from, and leave them afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that training ends between two updates; a second Ctrl-C ends at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        stopping.set()
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
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise TrainingError(
            f"out of memory: lower the batch (--set batch={max(training.batch // 2, 1)}), then the size of the model "
            "(--set dimension=… or particles=…)"
        ) from error
