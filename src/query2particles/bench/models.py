"""What the benches of a model share: an untrained model with queries, a clock that waits for the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from query2particles.bench.data import bench_data
from query2particles.bench.record import Say
from query2particles.config import Config, build, configured
from query2particles.engine.exact import Batch
from query2particles.graph.graph import Graph
from query2particles.methods.registry import Model
from query2particles.presets import preset

__all__ = ["Subject", "finish", "in_words", "median_seconds", "seconds_of", "untrained"]


@dataclass(frozen=True)
class Subject:
    """What is measured: a model with its first weights, which do not matter for speed, and test queries for it."""

    device: torch.device
    graph: Graph
    batch: Batch
    model: Model

    @staticmethod
    def of(
        data: Path | None,
        device: torch.device | str,
        count: int | None,
        usual: Mapping[str, int | None],
        settings: Sequence[str],
        say: Say,
        *,
        name: str = "FB15k-237",
        queries: str = "betae-resampled",
    ) -> Subject:
        """With `count` queries of each shape; without it, as many as are `usual` on such a device (None: all)."""
        where = torch.device(device)
        graph, batch, _ = bench_data(data, count or usual[where.type], say, name=name, queries=queries)
        return Subject(where, graph, batch, untrained(configured(preset(), None, settings), graph, where))

    @property
    def queries(self) -> int:
        return sum(map(len, self.batch.values()))


def untrained(config: Config, graph: Graph, device: torch.device) -> Model:
    """The model with its first weights."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.training.seed)
        return build(config, graph).eval().to(device)


def in_words(settings: Sequence[str]) -> str:
    """What a model of the default preset with these settings is called."""
    return ", ".join(["default preset", *settings])


def finish(device: torch.device) -> None:
    """Wait for what the device was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    finish(device)
    started = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - started


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median of several runs: what the work usually takes, whatever else the machine does once in a while."""
    return statistics.median(seconds_of(work, device) for _ in range(repeats))
