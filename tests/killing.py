"""A training that is killed again and again: `python killing.py FOLDER PRESET SEED KEY=VALUE…`

FOLDER/alone is trained undisturbed. FOLDER/killed is trained by one process after another, each of which dies by
SIGKILL: at a step of its writing (half of a file is on the disk, or all of it but not yet under its name, …), or in the
midst of an update. The last one is left alone. Prints how many were killed, and after which updates others took over.
Moments are counted, not timed, so that the same processes die at the same points on a machine that is busy.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

from query2particles import checkpoint
from query2particles.config import configured
from query2particles.errors import RunError, UsageError
from query2particles.presets import preset
from query2particles.query.algebra import SHAPES
from query2particles.run import Run
from query2particles.train import train, validation_set
from worlds import random_graph

KILLS = 6


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_some(file: BinaryIO, *_: object) -> None:
    file.flush()
    die()


def count_moments(last: Mapping[str, int]) -> Counter[str]:
    """Counts this process's steps of writing ("write") and updates ("update"), and dies at the last one named."""
    counts = Counter[str]()

    def counted(kind: str, place: Any, name: str, dying: Callable[..., object] = die) -> None:
        work = getattr(place, name)

        def wrapped(*arguments: Any) -> Any:
            counts[kind] += 1
            if counts[kind] == last.get(kind):
                dying(*arguments)
            return work(*arguments)

        setattr(place, name, wrapped)

    counted("write", os, "fsync")
    counted("write", Path, "replace")
    counted("write", checkpoint, "write_blocks", write_some)
    counted("update", torch.autograd, "backward")
    return counts


def main(folder: Path, name: str, seed: int, settings: list[str]) -> None:
    torch.set_num_threads(1)
    generator = random.Random(seed)
    graph = random_graph(3, entities=40, relations=3, facts=400)
    config = configured(preset("q2p", name), None, settings)
    drawn = validation_set(graph, config.training)
    assert drawn is not None
    some = [SHAPES[shape] for shape in ("1p", "2u", "2in")]
    validation = {shape: drawn[0][shape] for shape in some}, {shape: drawn[1][shape] for shape in some}
    graph.save(folder / "graph")

    def work(place: Path) -> None:
        try:
            run = Run.open(place)
        except (RunError, UsageError):  # killed before there was one
            run = Run.create(place, config, graph, str(folder / "graph"))
        train(run, graph, validation=validation)

    def child(place: Path, last: Mapping[str, int] = MappingProxyType({})) -> int:
        """The status of a process of its own that trains, and dies at a moment, if it gets there."""
        if process := os.fork():
            return os.waitpid(process, 0)[1]
        try:
            counts = count_moments(last)
            work(place)
            (folder / "moments").write_text(json.dumps(counts))
        finally:
            os._exit(0)

    child(folder / "alone")
    moments = json.loads((folder / "moments").read_text())
    kills, resumed_after = 0, []
    for attempt in range(KILLS):
        kind = "update" if attempt % 2 else "write"
        if not os.WIFSIGNALED(child(folder / "killed", {kind: generator.randint(1, moments[kind] // 3)})):
            break
        kills += 1
        trace = Run.open(folder / "killed").read_trace() if (folder / "killed" / "config.json").exists() else []
        resumed_after.append(max((line["update"] for line in trace), default=0))
    child(folder / "killed")
    print(json.dumps({"kills": kills, "moments": moments, "resumed_after": resumed_after}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
