"""How long to train: sizes that follow from a graph, and sizes that fit into the minutes which somebody has.

`grown` gives a preset that is made for small graphs as many updates as a graph takes. `planned` does the reverse: from
how fast updates and validation queries were measured to be on this machine (`measured`) it takes the largest dimension
with which every edge is still seen often enough, and as many updates as fit. Both are fixed before training starts and
written into the run's settings, so a run that is resumed does not depend on how fast the machine is then.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from query2particles.config import Config, changed
from query2particles.evaluate import evaluate
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES
from query2particles.tables import settled
from query2particles.train import one_core_spared, prepare, validation_set

__all__ = ["Budget", "Plan", "Speed", "grown", "measured", "plan_part", "planned"]

_SMALL = "small"
"""The presets whose sizes follow from the graph."""

_PASSES = 20
"""How often a small preset sees every edge, at least."""

_MOST_UPDATES = 20_000
"""But it makes no more updates than this: it is meant to take minutes."""

_BY_ROWS: Mapping[str, Mapping[str, Any]] = {
    "links": {"batch": 1024, "rate": 0.1, "n3": 0.06, "relation_prediction": 0.3},
}
"""What suits small presets whose tables are trained by rows, each of which has a step size of its own (`engine/rows`):
rates that suit AdamW are too low there. Measured on 25,000 entities of NELL."""

_DIMENSIONS: Mapping[str, Sequence[int]] = {"q2p": (64, 32), "links": (200, 100, 50)}
"""What is tried for a time limit, the largest first; of other methods, the preset's alone."""

_ENOUGH_PASSES = 4
"""A dimension is taken if so many passes over the edges fit; the smallest one in any case."""

_FEW_PASSES = 2
"""With fewer passes, the time is short."""

_SAFE = 0.85
"""This share of the time is planned: other programs may slow the machine down after it was measured."""

_PROBABILITIES, _LEAST_PROBABILITIES, _MOST_PROBABILITIES = 0.15, 20.0, 1 / 3
"""What making probabilities may take: a share of the time; at least so many seconds; at most this share."""

_WEIGHING = 0.15
"""The share of the time in which the parts of a joined run are weighed."""

_VALIDATING = 0.15
"""The share of a part's training that its validations may take."""

_SHARES: Mapping[str, float] = {"q2p": 0.6, "links": 0.4}
"""How the parts of a joined run divide the time for training."""

_MOST_VALIDATIONS = 5
_FEWEST_UPDATES = 20
_WARM_UP = 0.05
_QUERIES_OF_A_PROBE = 10
_SECONDS_OF_A_PROBE, _PROBES = 1.5, 0.01
"""How long updates are measured: so many seconds, but no more than this share of the time."""

_UPDATES_BEFORE_A_PROBE = 3

_SECONDS_PER_QUERY_AND_ENTITY = 1.2e-6
"""What the weighing and the probabilities of a joined run take for a query, on two cores."""

_FEWEST_QUERIES = 10


@dataclass(frozen=True)
class Speed:
    """What was measured of a configuration on this machine, in seconds."""

    update: float
    validation_query: float


@dataclass(frozen=True)
class Budget:
    """The seconds that each step of a training may take."""

    training: float
    weighing: float
    probabilities: float

    @staticmethod
    def of(minutes: float, *, joined: bool, spent: float = 0.0) -> Budget:
        """Of so many minutes, of which some seconds are `spent` already; only parts that are joined are weighed."""
        whole = _SAFE * 60 * minutes
        probabilities = min(max(_PROBABILITIES * 60 * minutes, _LEAST_PROBABILITIES), _MOST_PROBABILITIES * whole)
        weighing = _WEIGHING * whole if joined else 0.0
        return Budget(max(whole - probabilities - weighing - spent, 1.0), weighing, probabilities)

    def left_for_weighing(self, seconds: float) -> float:
        """What of the seconds that are left weighing may take: its share, but less where training took longer."""
        return min(self.weighing, max(seconds - self.probabilities, self.weighing / 4))

    def queries(self, entities: int, most: int) -> int:
        """How many validation queries of each shape leave time for what is done with all of them."""
        fit = int(self.probabilities / (_SECONDS_PER_QUERY_AND_ENTITY * entities * len(SHAPES)))
        return min(max(fit, _FEWEST_QUERIES), most)


@dataclass(frozen=True)
class Plan:
    """The settings of a training that fits, and how often it sees every edge."""

    config: Config
    passes: float

    def minutes_that_suffice(self, minutes: float) -> int | None:
        """Where the edges are not even seen a few times in so many minutes: how many there should be."""
        return None if self.passes >= _FEW_PASSES else ceil(minutes * _FEW_PASSES / self.passes)

    def __str__(self) -> str:
        training = self.config.training
        return (
            f"{self.config.method} with dimension {self.config.model.dimension} and {training.updates:,} updates of "
            f"{training.batch:,} queries"
        )


def grown(config: Config, graph: Graph, device: torch.device | str, fixed: Collection[str] = ()) -> Config:
    """A small preset in the size that suits the graph: each edge is seen some twenty times. Others stay as they are.

    Settings that are `fixed`, by name, are not changed.
    """
    if config.preset != _SMALL:
        return config
    table = settled(config, len(graph.entities), torch.device(device))[0].training.table
    if table != "whole":
        config = changed(config, _but(fixed, _BY_ROWS.get(config.method, {})))
    training = config.training
    if "updates" in fixed:
        return config
    updates = max(training.updates, min(ceil(_PASSES * len(graph.at(training.split)) / training.batch), _MOST_UPDATES))
    factor = updates / training.updates
    follows = {"warm_up": round(training.warm_up * factor), "validate_every": ceil(training.validate_every * factor)}
    return changed(config, {"updates": updates, **_but(fixed, follows)})


def _but(fixed: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in fixed}


def planned(sizes: Sequence[tuple[Config, Speed]], seconds: float, *, edges: int) -> Plan:
    """Of configurations that differ in size, the largest first: the first that sees the edges often enough in time."""
    for number, (config, speed) in enumerate(sizes, 1):
        training = config.training
        validation = speed.validation_query * training.validation_queries * len(SHAPES)
        validations = min(max(int(_VALIDATING * seconds / max(validation, 1e-9)), 1), _MOST_VALIDATIONS)
        updates = max(int((seconds - validations * validation) / speed.update), _FEWEST_UPDATES)
        passes = updates * training.batch / edges
        if passes >= _ENOUGH_PASSES or number == len(sizes):
            break
    chosen = replace(
        training, updates=updates, warm_up=ceil(_WARM_UP * updates), validate_every=ceil(updates / validations)
    )
    return Plan(replace(config, training=chosen), passes)


def plan_part(
    config: Config,
    graph: Graph,
    device: torch.device | str,
    minutes: float,
    *,
    spent: float = 0.0,
    fixed: Collection[str] = (),
    joined: bool = False,
    later: Sequence[str] = (),
) -> Plan:
    """Settings with which a training, and what follows it, ends in so many minutes, as fast as this machine is now.

    Of the time some seconds are `spent` already. Settings that are `fixed`, by name, are not changed. A part that is to
    be `joined` leaves time for the weighing, and for parts of other methods that are trained `later`.
    """
    begin = time.perf_counter()
    if "validation_queries" not in fixed:
        queries = Budget.of(minutes, joined=joined).queries(len(graph.entities), config.training.validation_queries)
        config = replace(config, training=replace(config.training, validation_queries=queries))
    probe = min(_SECONDS_OF_A_PROBE, _PROBES * 60 * minutes)
    sizes = [config] if "dimension" in fixed else _sizes(config)
    speeds = [(one, measured(one, graph, device, probe)) for one in sizes]
    budget = Budget.of(minutes, joined=joined, spent=spent + time.perf_counter() - begin)
    own, others = _SHARES.get(config.method, 1.0), sum(_SHARES.get(method, 1.0) for method in later)
    return planned(speeds, budget.training * own / (own + others), edges=len(graph.at(config.training.split)))


def _sizes(config: Config) -> list[Config]:
    """The same configuration in several dimensions; presets for a GPU keep theirs."""
    if config.preset != _SMALL:
        return [config]
    dimensions = _DIMENSIONS.get(config.method, (config.model.dimension,))
    return [replace(config, model=replace(config.model, dimension=dimension)) for dimension in dimensions]


def measured(config: Config, graph: Graph, device: torch.device | str, seconds: float) -> Speed:
    """How fast updates and validation queries of a configuration are here; updates are measured for so many seconds."""
    device = torch.device(device)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        one_core_spared(device),
        TemporaryDirectory() as folder,
    ):
        torch.manual_seed(config.training.seed)
        prepared = prepare(config, graph, device, folder=Path(folder))
        update = prepared.update
        for _ in range(_UPDATES_BEFORE_A_PROBE):
            update(config.training.rate)
        update.mean_loss()  # which waits for the device
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            update(config.training.rate)
            update.mean_loss()
            count += 1
        took = (time.perf_counter() - begin) / count
        validation = validation_set(graph, replace(config.training, validation_queries=_QUERIES_OF_A_PROBE))
        if validation is None:
            return Speed(took, 0.0)
        begin = time.perf_counter()
        evaluate(prepared.model, *validation, unions=config.training.unions)
        return Speed(took, (time.perf_counter() - begin) / sum(map(len, validation[0].values())))
