"""`q2p tune`: settings by search."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.root import GraphName, Json, Stopped, app
from query2particles.cli.training import Device, DeviceName, device_named
from query2particles.errors import Query2ParticlesError, UsageError

if TYPE_CHECKING:
    from query2particles.tune import Outcome, Plan, Tuned

__all__ = ["tune"]


@app.command()
def tune(
    graph: GraphName,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the search: a new one, or one to go on with.")
    ],
    method: Annotated[str, typer.Option(help="What to train.")] = "q2p",
    preset: Annotated[str, typer.Option(help="The settings to start from, as of `q2p train`.")] = "default",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of all trials; not searched then.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=V1,V2,...",
            help="Values to search for a setting. By default: rate, batch, smoothing, decay, dropout, n3, as far as "
            "the method has them.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Every point of the paper's grid (batch, dropout, rate, smoothing), to its end."),
    ] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Random points to begin with.", show_default="18")] = None,
    eta: Annotated[
        int | None,
        typer.Option(
            min=2, help="Of so many trials the best goes on, for so many times the updates.", show_default="3"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes to work at it on this machine.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random.", show_default="0")] = None,
    device: Device = DeviceName.auto,
    json: Json = False,
) -> None:
    """Search settings on validation: many short trainings, the better ones longer. The same command goes on."""
    from query2particles.graph.folders import open_graph
    from query2particles.presets import preset as preset_named
    from query2particles.show import note, print_json, progress_training
    from query2particles.tune import BEST, ETA, RUNS, TRIALS, planned
    from query2particles.tune import tune as work

    if full and (trials or eta):
        raise UsageError("--full trains every point to its end: leave out --trials and --eta")
    own = [*(settings or ()), *([] if seed is None else [f"seed={seed}"])]
    opened, where = open_graph(graph), device_named(device)
    plan = planned(
        preset_named(method, preset),
        opened,
        settings=own,
        search=search or (),
        full=full,
        trials=trials or TRIALS,
        eta=eta or ETA,
    )
    rungs = ", then ".join(f"{count:,} × {updates:,}" for count, updates in plan.rungs)
    note(f"{method} on {opened.name}: trials × updates {rungs}, by {', '.join(plan.space)}")
    with _helpers(workers - 1, out, plan, graph, where):
        tuned = work(out, plan, opened, graph, device=where, say=note, watch=progress_training)
    if json:
        print_json(_tuned_json(out, plan, tuned))
    else:
        _print_tuned(f"{out}: {method} on {opened.name}, validation", plan, tuned)
    if tuned.signal is not None:
        note(
            f"Stopped by {signal.Signals(tuned.signal).name}; everything is saved. The same command goes on, and so do "
            "others of its kind."
        )
        raise Stopped(tuned.signal)
    if tuned.best is not None and not json:
        note(
            f"Saved in {out / BEST}; its run is {out / RUNS / tuned.best.name}. "
            f"Next:  q2p train {graph} --method {method} --config {out / BEST} --out RUN"
        )


def _print_tuned(title: str, plan: Plan, tuned: Tuned) -> None:
    """A line for each trial, how far it got, the best first."""
    from query2particles.show import print_table

    furthest: dict[int, Outcome] = {}
    seconds: dict[int, float] = {}
    for one in sorted(tuned.outcomes, key=lambda one: one.updates):
        furthest[one.trial] = one
        seconds[one.trial] = seconds.get(one.trial, 0.0) + one.seconds
    rows = [
        (
            "best" if one == tuned.best else "",
            one.trial,
            *map(str, one.settings.values()),
            one.updates,
            "lost" if one.mrr is None else f"{one.mrr:.2f}",
            f"{seconds[one.trial]:,.1f}",
        )
        for one in sorted(furthest.values(), key=lambda one: (-one.updates, -one.score, one.trial))
    ]
    columns = ("", "trial", *plan.space, "updates", "MRR", "seconds")
    print_table(title, columns, rows, right=range(1, len(columns)))


def _tuned_json(out: Path, plan: Plan, tuned: Tuned) -> dict[str, Any]:
    from dataclasses import asdict

    from query2particles.tune import BEST, RUNS

    best = tuned.best
    finished = best is not None and tuned.signal is None
    return {
        "folder": str(out),
        **plan.as_json(),
        "trials": [asdict(one) for one in tuned.outcomes],
        "best": {**asdict(best), "run": str(out / RUNS / best.name)} if best is not None else None,
        "config": str(out / BEST) if finished else None,
        "interrupted": tuned.signal is not None,
    }


@contextlib.contextmanager
def _helpers(count: int, out: Path, plan: Plan, graph: str, device: str) -> Iterator[None]:
    """Processes that work at the same search as long as this one does, each with its share of the cores."""
    import torch

    before = torch.get_num_threads()
    share = max(before // (count + 1), 1)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_help, args=(out, plan, graph, device, share)) for _ in range(count)]
    for process in processes:
        process.start()
    torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        for process in processes:
            process.terminate()  # it saves, where there is something to save
        for process in processes:
            process.join()


def _help(out: Path, plan: Plan, graph: str, device: str, threads: int) -> None:
    """Work quietly; an error leaves its trial to the process that started this one, which meets and says it."""
    import torch

    from query2particles.graph.folders import open_graph
    from query2particles.tune import tune as work

    os.setpgrp()  # Ctrl-C is for the process that started this one: it passes on one signal, two would not save
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with contextlib.suppress(Query2ParticlesError):
        work(out, plan, open_graph(graph), graph, device=device)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
