"""A table that several processes share, on one machine or many: each asks its own rows, the caller merges answers.

Ray starts and connects the processes (`pip install 'query2particles[cluster]'`). Each maps the run's weights from their
file, which every machine must see at the same path, and looks at its part of the rows. The caller encodes questions,
sends particles and what is excluded, and merges what comes back: the same entities in the same order as from one
process (`engine/table`).

A process that is lost, with its machine or alone, stays lost. Unless degraded answers are allowed, that is an error
which says so; where they are, what is left is asked, and every answer says which share of the entities was not.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from query2particles.engine.sets import Sets
from query2particles.engine.table import Best, Table, merged
from query2particles.errors import RunError, ShardsLostError, UsageError
from query2particles.run import Run

__all__ = ["Cluster", "Degraded", "Part", "keep_ray_off_output"]

_LOG = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")

Degraded: TypeAlias = Literal["refuse", "allow"]

_SECONDS = 120.0
"""A part that has not answered by then counts as lost."""

_SECONDS_TO_REACH = 5.0
_LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""By which Ray, wherever it runs, stays on the loopback address; it is read when Ray is loaded."""
_ALWAYS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}  # what is held back is printed at the very end


class Part:
    """Some rows of a run's table, in a process of their own."""

    def __init__(self, run: Run, graph: str | None, start: int, stop: int) -> None:
        torch.set_num_threads(1)
        self._table = Table.of(run.mapped_model(run.graph(graph))).part(start, stop)

    def best(self, particles: Any, k: int, excluded: Sets | None) -> Best:
        return self._table.best(torch.from_numpy(np.array(particles)), k, excluded)

    def ready(self) -> int:
        """How many entities it has."""
        return len(self._table)


@dataclass(frozen=True)
class Cluster:
    """A `Search` that asks parts of a table."""

    table: Table
    parts: Sequence[Any]  # actors of Ray
    sizes: Sequence[int]
    degraded: Degraded = "refuse"
    lost: set[int] = field(default_factory=set)
    """Numbers of parts, which only grow."""

    @staticmethod
    def start(
        run: Run,
        table: Table,
        *,
        shards: int,
        graph: str | None = None,
        degraded: Degraded = "refuse",
        address: str | None = None,
    ) -> Cluster:
        """As many processes as shards, each with its rows and a core, spread over the machines of a Ray cluster.

        That is the one this process is connected to, or at the address (or RAY_ADDRESS); otherwise Ray is started on
        this machine alone. The processes end with the last reference to them.
        """
        if shards < 1:
            raise UsageError(f"a table is shared by at least one process, not {shards}")
        address = address or os.environ.get("RAY_ADDRESS")
        if not address:
            _set_in_environment(_LOCAL)
        ray = _ray()
        _connect(ray, address)
        cores = ray.cluster_resources().get("CPU", 0)
        if cores < shards:
            raise UsageError(f"{shards} processes need a core each, and the Ray cluster has {cores:g}; ask for fewer")
        run = replace(run, folder=run.folder.resolve())  # processes run elsewhere
        graph = str(Path(graph).resolve()) if graph and Path(graph).exists() else graph
        cut = table.parts(shards)
        actor = ray.remote(Part).options(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0)
        parts = [actor.remote(run, graph, part.first, part.first + len(part)) for part in cut]
        try:
            sizes = ray.get([part.ready.remote() for part in parts], timeout=_SECONDS)
        except ray.exceptions.RayError as error:
            raise RunError(
                f"{len(parts)} processes could not be started ({_last_line(error)}): Ray needs a free core for each, "
                f"and {run.folder} and its graph at the same place on every machine"
            ) from error
        return Cluster(table, parts, sizes, degraded)

    def best(self, particles: Tensor, k: int, excluded: Sets | None = None) -> Best:
        """Of the parts that are there."""
        ray = _ray()
        asked = ray.put(particles.float().numpy()), k, ray.put(excluded)
        calls = {number: part.best.remote(*asked) for number, part in enumerate(self.parts) if number not in self.lost}
        found = []
        for number, call in calls.items():
            try:
                found.append(ray.get(call, timeout=_SECONDS))
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                self.lost.add(number)
        self.check()
        return merged(found, k)

    def check(self) -> None:
        """Refuse to answer where so much is known to be lost."""
        if self.lost and (self.degraded == "refuse" or len(self.lost) == len(self.parts)):
            raise ShardsLostError(
                f"{len(self.lost)} of {len(self.parts)} processes that share the table are lost, with "
                f"{100 * self.unasked:.0f} % of the entities; start again, or allow answers from the others "
                "(--degraded allow)"
            )

    @property
    def unasked(self) -> float:
        """The share of the entities that nobody answers for."""
        return sum(self.sizes[number] for number in self.lost) / len(self.table)

    def as_json(self) -> dict[str, Any]:
        share: Mapping[str, float] = {"unasked": round(self.unasked, 4)} if self.lost else {}
        return {"by": "cluster", "exact": not self.lost, "shards": len(self.parts), **share}

    def stop(self) -> None:
        """End all processes; those of others stay."""
        ray = _ray()
        for part in self.parts:
            with suppress(ValueError):  # it ended by itself
                ray.kill(part)


def _ray() -> Any:
    _set_in_environment(_ALWAYS)
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("a cluster needs Ray: pip install 'query2particles[cluster]'") from None
    return ray


def _set_in_environment(settings: Mapping[str, str]) -> None:
    """What the user has set stays."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _connect(ray: Any, address: str | None) -> None:
    if ray.is_initialized():
        return
    local: dict[str, Any] = {}
    if not address:
        cores = os.cpu_count() or 1
        local = {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        if address:
            _check_reachable(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    except OSError as error:  # which a ConnectionError is
        reason = _last_line(error)
        if not address:
            raise RunError(f"Ray could not be started on this machine ({reason})") from error
        raise UsageError(f"there is no Ray cluster at {address} ({reason}): ray start --head") from error


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes. An address may also be a word, such as `auto`."""
    if found := re.fullmatch(r"(?:ray://)?\[?([^/\]]+)\]?:(\d{1,5})", address):
        with socket.create_connection((found[1], int(found[2])), timeout=_SECONDS_TO_REACH):
            pass


def keep_ray_off_output() -> None:
    """Of a command, whose standard output is for answers: what Ray would print there, of parts that died, is logged."""
    if not isinstance(sys.stdout, _Answers):
        sys.stdout = cast(TextIO, _Answers(sys.stdout))


class _Answers:
    """A standard output for answers alone: what a thread of Ray would print there is logged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not threading.current_thread().name.startswith("ray_"):
            return self._stream.write(text)
        if words := _COLOURS.sub("", text).strip():
            _LOG.warning("Ray says: %s", words)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _last_line(error: Exception) -> str:
    """What it comes down to: traces of other processes stand above."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
