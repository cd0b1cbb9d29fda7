"""What the benches of a model share: an untrained model, a clock that waits for the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from query2particles.config import Config, build
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P

__all__ = ["finish", "median_seconds", "seconds_of", "untrained"]


def untrained(config: Config, graph: Graph, device: torch.device) -> Q2P:
    """A model with its first weights; what they are does not matter for speed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.training.seed)
        return build(config, len(graph.entities), graph.at("train").relations).eval().to(device)


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
