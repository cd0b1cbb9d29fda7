"""A training that is killed again and again: `python killing.py FOLDER PRESET SEED KEY=VALUE…`

FOLDER/alone is trained undisturbed. FOLDER/killed is trained by one process after another, each of which dies by
SIGKILL: at a step of its writing (half of a file is on the disk, or all of it but not yet under its name, …), or at a
random moment. The last one is left alone. Prints how many were killed, and after which updates others took over.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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


def die_at(step: int) -> Callable[[], int]:
    """Count the steps of writing in this process, and die at this one; what counts them so far."""
    steps = 0

    def counted(place: Any, name: str, dying: Callable[..., object]) -> None:
        work = getattr(place, name)

        def wrapped(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step:
                dying(*arguments)
            return work(*arguments)

        setattr(place, name, wrapped)

    def write_half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        die()

    counted(os, "fsync", die)
    counted(Path, "replace", die)
    counted(Path, "write_bytes", write_half)
    return lambda: steps


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

    def child(step: int) -> int:
        """A process of its own that trains, and dies at a step, if it gets there."""
        if process := os.fork():
            return process
        try:
            steps = die_at(step)
            work(folder / "killed" if step else folder / "alone")
            (folder / "steps").write_text(str(steps()))
        finally:
            os._exit(0)

    begin = time.monotonic()
    os.waitpid(child(0), 0)
    seconds = time.monotonic() - begin
    steps = int((folder / "steps").read_text())
    kills, resumed_after = 0, []
    for attempt in range(KILLS):
        at_random = attempt % 2
        process = child(10**9 if at_random else generator.randint(1, steps // 3))
        if at_random:
            time.sleep(generator.uniform(0.2, 0.9) * seconds)
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            break
        kills += 1
        trace = Run.open(folder / "killed").read_trace() if (folder / "killed" / "config.json").exists() else []
        resumed_after.append(max((line["update"] for line in trace), default=0))
    os.waitpid(child(10**9), 0)
    print(json.dumps({"kills": kills, "steps": steps, "resumed_after": resumed_after}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
