"""`q2p bench softmax`: what it costs to train against some entities in place of all, in accuracy at equal time.

The same model is trained in several ways, each for as many seconds: with the softmax over all entities, whose table
moves as a whole; and against random entities, by rows. They take turns, a moment each, so that whatever else the
machine does hits all alike. Rates follow the share of the time that is over.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from query2particles.bench.data import bench_graph
from query2particles.bench.models import finish
from query2particles.bench.record import Bench, Say
from query2particles.config import Training, configured
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.presets import preset
from query2particles.provenance import machine
from query2particles.train import Prepared, prepare, validation_set

__all__ = ["WAYS", "bench_softmax"]

WAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all entities": ("negatives=0", "table=whole"),
        "rows": ("negatives=4096", "table=device"),
        "rows by degree": ("negatives=4096", "table=device", "negatives_by=degree"),
        "rows in bf16": ("negatives=4096", "table=bf16"),
    }
)
"""In which a model is trained; the first one is what the others are compared with."""

_GRAPHS = {"cpu": ("FB15k-237",), "cuda": ("FB15k-237", "NELL")}
_SECONDS = {"cpu": 300.0, "cuda": 120.0}
_PRESETS = {"cpu": "small", "cuda": "default"}
_TURN = 1.0
"""Seconds of a turn."""
_WARM_UP = 0.05
"""The share of the time in which rates rise."""
_TOGETHER = {"cpu": 1, "cuda": 50}
"""Updates between two looks at the clock, for which a GPU has to be waited for."""


@dataclass
class _Trainee:
    """A model on its way."""

    prepared: Prepared
    seconds: float = 0.0
    updates: int = 0

    def warm_up(self, device: torch.device) -> None:
        """Whatever the first updates do besides: compile, capture. At rate zero nothing is learned."""
        for _ in range(_TOGETHER[device.type]):
            self.prepared.update(0.0)
        finish(device)
        self.prepared.update.mean_loss()  # the next one starts from here

    def train(self, until: float, whole: float, device: torch.device) -> None:
        """For a turn, up to so many seconds, of the whole time that there is."""
        training = self.prepared.config.training
        while self.seconds < until:
            begin = time.perf_counter()
            for _ in range(_TOGETHER[device.type]):
                self.prepared.update(_rate(self.seconds / whole, training))
                self.updates += 1
            finish(device)
            self.seconds += time.perf_counter() - begin


def bench_softmax(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    seconds: float | None = None,
    settings: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Mean MRRs on validation queries after as many seconds of training each way."""
    where = torch.device(device)
    whole = seconds or _SECONDS[where.type]
    name = _PRESETS[where.type]
    about = ", ".join([f"{where.type}, preset {name}", *settings])
    result = Bench(
        "softmax",
        machine(where.type),
        f"{about}; each way {whole:g} s of training, by turns; MRR in percent over drawn validation queries",
        compares="MRR / that of the softmax over all entities",
    )
    for graph_name in _GRAPHS[where.type][: None if data else 1]:
        _measure(result, bench_graph(data, graph_name, say), where, whole, (name, *settings), say)
    return result


def _measure(result: Bench, graph: Graph, device: torch.device, whole: float, chosen: Sequence[str], say: Say) -> None:
    name, *settings = chosen
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        trainees = {}
        for way, own in WAYS.items():
            config = configured(preset("q2p", name), None, [*settings, *own])
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            torch.manual_seed(config.training.seed)
            trainees[way] = _Trainee(prepare(config, graph, device, folder=folder))
            trainees[way].warm_up(device)
        turns = math.ceil(whole / _TURN)
        for turn in range(1, turns + 1):
            for trainee in trainees.values():
                trainee.train(min(turn * _TURN, whole), whole, device)
            if turn % max(1, turns // 5) == 0:
                losses = (f"{way} {one.prepared.update.mean_loss():.3f}" for way, one in trainees.items())
                say(f"{graph.name}: {turn} of {turns} turns; losses: {', '.join(losses)}")
        found = {}
        for way, trainee in trainees.items():
            training = trainee.prepared.config.training
            queries = validation_set(graph, training)
            assert queries is not None, "graphs of benches have validation facts"
            found[way] = evaluate(trainee.prepared.model, *queries, unions=training.unions).percentages(2)["all"]
            batch = sum(part.count for part in trainee.prepared.parts)
            result.figures |= {
                f"{graph.name} {way} MRR": found[way],
                f"{graph.name} {way} queries/s": round(trainee.updates * batch / trainee.seconds),
            }
    first, *others = found
    result.ratios |= {f"{graph.name} {way}": round(found[way] / found[first], 3) for way in others}


def _rate(share: float, training: Training) -> float:
    """A rise, then half a cosine down to zero at the end of the time."""
    rise = min(1.0, (share + 1e-3) / _WARM_UP)
    return training.rate * rise * (1 + math.cos(math.pi * min(share, 1.0))) / 2
