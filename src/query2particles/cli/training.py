"""`q2p train`: from a graph to a model."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.root import Json, Stopped, app
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.config import Config
    from query2particles.distributed import Group
    from query2particles.graph.graph import Graph
    from query2particles.run import Run
    from query2particles.train import Progress, Trained
    from query2particles.training.fit import Listener

__all__ = [
    "Device",
    "DeviceName",
    "UnionsName",
    "device_named",
    "listener",
    "next_step",
    "stoppable",
    "train",
]


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class UnionsName(StrEnum):
    native = "native"
    dnf = "dnf"
    de_morgan = "de-morgan"


def device_named(name: DeviceName) -> str:
    """The device that is meant: `auto` takes the GPU where there is one."""
    from query2particles.training.device import device_named as named

    return named(name.value)


def listener(*, quiet: bool = False) -> Listener:
    """What shows a person how a fit goes, and how to go on after Ctrl-C; `quiet` where JSON is to follow."""
    from query2particles.show import listener as shown

    return replace(shown(tables=not quiet), stoppable=stoppable)


Device = Annotated[DeviceName, typer.Option(help="`auto`: the GPU where there is one.")]


@app.command()
def train(
    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="GRAPH",
            help="A graph folder, a benchmark folder, or `atlas`; with --resume only where the run's graph has moved.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder to make.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="What to train (`q2p methods`); `best`: two that answer together.", show_default="best"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="The settings to start from: default, small (for a CPU), paper or released; of tree also qto.",
            show_default="default on a GPU, small on a CPU",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Choose dimension and updates so that everything is done in so many minutes here."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, after those of --config.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random.", show_default="0")] = None,
    unions: Annotated[UnionsName | None, typer.Option(help="How unions are answered in validation.")] = None,
    all_edges: Annotated[
        bool, typer.Option("--all-edges", help="Train on the facts of all splits: for use, not for measuring.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with a run that ended early, or, where its schedule is constant, with more updates.",
        ),
    ] = None,
    device: Device = DeviceName.auto,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard into the run folder, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on a graph, or resume a training. Ctrl-C and SIGTERM save, and say how to go on."""
    from query2particles.config import configured, key_of
    from query2particles.distributed import processes, processes_in_all
    from query2particles.graph.folders import open_graph
    from query2particles.planning import Budget, grown
    from query2particles.presets import preset as preset_named
    from query2particles.run import Run
    from query2particles.show import note, print_json, print_trained
    from query2particles.training.fit import Fit, calibrate_where_possible, check_minutes, planned, train_watched

    begin = time.perf_counter()
    check_minutes(minutes, settings or ())
    why_one = _why_one_method(
        {"--config": config, "--unions": unions, "--all-edges": all_edges, "--tensorboard": tensorboard},
        preset,
        settings or (),
        processes_in_all(),
    )
    to_train = method or ("q2p" if why_one else "best")
    to_resume = resume is not None and method is None
    if method is None and not to_resume and (graph is None or out is None):
        raise UsageError("name a GRAPH and the run folder to make (--out RUN), or a run to go on with (--resume)")
    small = config is None and device_named(device) == "cpu"  # a file of settings says what differs from the default
    start_from = preset or ("small" if small else "default")
    if to_train == "best" and not to_resume:
        from query2particles.cli.joining import train_best

        if graph is None or out is None or resume is not None or config is not None:
            raise UsageError(
                "of best, name a GRAPH and the run folder (--out RUN), and --set settings; the same command goes on "
                "with what an earlier one has left"
            )
        if unions is not None or all_edges or tensorboard:
            raise UsageError(
                "best answers unions its own way, needs facts to weigh its parts by, and has several losses: leave out "
                "--unions, --all-edges and --tensorboard, or train one method alone (--method q2p)"
            )
        if processes_in_all() > 1:
            raise UsageError("best is several trainings: start it as one process, without torchrun")
        own = [*(settings or ()), *([] if seed is None else [f"seed={seed}"])]
        if preset is None:
            _note_preset(start_from)
        fit = Fit(open_graph(graph), graph, out, start_from, own, device_named(device), minutes, begin)
        train_best(fit, json)
        return
    writer = _tensorboard_writer() if tensorboard else None
    chosen = {
        "--out": out,
        "--method": method,
        "--preset": preset,
        "--config": config,
        "--seed": seed,
        "--unions": unions,
        "--all-edges": all_edges or None,
        "--minutes": minutes,
    }
    if resume is not None:
        if given := [name for name, value in chosen.items() if value is not None]:
            raise UsageError(f"--resume takes everything from the run itself; leave out {', '.join(given)}")
    elif graph is None or out is None:
        raise UsageError("name a GRAPH and the run folder to make (--out RUN), or a run to go on with (--resume)")
    with processes(device_named(device)) as (group, own_device):
        leads = group is None or group.leads
        if resume is None:
            assert graph is not None
            assert out is not None
            options = {"seed": seed, "unions": unions, "all_edges": all_edges or None}
            spelled = [f"{key}={value}" for key, value in options.items() if value is not None]
            opened, where = open_graph(graph), own_device
            if leads and method is None:
                note(f"note: {why_one}: this trains q2p alone (--method says otherwise)")
            if leads and preset is None:
                _note_preset(start_from)
            start = preset_named(to_train, start_from)
            configuration = configured(start, config, [*(settings or ()), *spelled])
            if config is None:  # a file says how large it is to be
                configuration = grown(configuration, opened, where, set(map(key_of, settings or ())))
            if minutes is not None:
                if group is not None:
                    raise UsageError("--minutes measures one process: leave it out, or start without torchrun")
                spent, fixed = time.perf_counter() - begin, set(map(key_of, settings or ()))
                configuration = planned(configuration, opened, where, minutes, spent, fixed, listener())
            if _led(group, partial(_goes_on, out, configuration, opened, graph)):
                resume, settings = out, None
            else:
                run = Run.open(out)
            as_large = configuration.model.dimension == start.model.dimension and start.preset != "small"
            if leads and where == "cpu" and as_large and configuration.training.updates >= start.training.updates:
                note(
                    f"note: the preset {start.preset} is made for a GPU; on a CPU, --preset small takes minutes, "
                    "not hours"
                )
        if resume is not None:
            run, opened, where = _resumed(resume, graph, settings or (), device, leads=leads)
        if group is not None:
            where = own_device
        reports = () if writer is None or not leads else (writer(run.folder),)
        trained = train_watched(run, opened, where, listener(), reports, group)
    if not leads:
        if trained.signal is not None:
            raise Stopped(trained.signal)
        return
    if json:
        print_json(_trained_json(run, trained))
    else:
        print_trained(f"{run.folder}: {run.config.method} on {opened.name}, validation", trained)
    if trained.signal is not None:
        note(
            f"Stopped by {signal.Signals(trained.signal).name} after update {trained.update:,} of "
            f"{run.config.training.updates:,}; "
            f"everything is saved. Go on with:  q2p train --resume {run.folder}"
            f"{'' if group is None else ', by one process or by torchrun'}"
        )
        raise Stopped(trained.signal)
    seconds = None if minutes is None else Budget.of(minutes, joined=False).probabilities
    calibrate_where_possible(run, opened, where, listener(), seconds=seconds)
    if not json:
        note(f"Saved in {run.folder}.{next_step(run, opened)}")


_OF_ONE_METHOD = {"all_edges": "true", "valid_edges": "true", "leaked": None}
"""Settings that best cannot have, since nothing is left to weigh its parts by: with this value, or with any."""


def _why_one_method(options: Mapping[str, Any], preset: str | None, settings: Sequence[str], count: int) -> str | None:
    """Why these options cannot be meant for best, where no method is named."""
    from query2particles.config import key_of

    for name, value in options.items():
        if value:
            return f"{name} is for one method"
    if preset not in (None, "default", "small"):
        return f"--preset {preset} is for one method"
    for setting in settings:
        key, value = key_of(setting), setting.partition("=")[2].strip()
        if key in _OF_ONE_METHOD and _OF_ONE_METHOD[key] in (None, value):
            return f"{setting} is for one method, since it leaves nothing to weigh several by"
    return "torchrun is for one method" if count > 1 else None


def _note_preset(preset: str) -> None:
    from query2particles.show import note

    if preset == "small":
        note("note: on a CPU, this takes --preset small; --preset default has the sizes for a GPU")


@contextmanager
def stoppable(doing: str, advice: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is done inside, and say how to go on."""
    from query2particles.endings import hearing_signals
    from query2particles.show import note

    def stop(number: int) -> None:
        note(f"Stopped by {signal.Signals(number).name} while {doing}. {advice}")
        raise Stopped(number)

    with hearing_signals(stop):
        yield


def _led(group: Group | None, work: Callable[[], bool]) -> bool:
    """What the leading process finds, for all of them. Where it fails it says why, and the others just end."""
    if group is None:
        return work()
    found: bool | None = None
    try:
        if group.leads:
            found = work()
    finally:
        found = group.told(found)
    if found is None:
        raise typer.Exit(2)
    return found


def _goes_on(out: Path, config: Config, graph: Graph, graph_folder: str) -> bool:
    """Whether there is a run that this very command has begun; otherwise it is made now.

    torchrun gives the same command again in place of a process that died; without it, a run is resumed by name.
    """
    from torch.distributed import is_torchelastic_launched

    from query2particles.run import Run, is_run_folder

    if (
        is_torchelastic_launched()
        and is_run_folder(out)
        and (there := Run.open(out)).config == config.with_absolute_paths()
    ):
        there.check(graph)
        return True
    Run.create(out, config, graph, graph_folder)
    return False


def _resumed(
    folder: Path, graph: str | None, settings: Sequence[str], device: DeviceName, *, leads: bool
) -> tuple[Run, Graph, str]:
    """A run to go on with, its graph, and the device; one of several processes speaks, and writes new settings down."""
    from query2particles.config import extended
    from query2particles.run import Run
    from query2particles.show import note

    run = Run.open(folder)
    opened = run.graph(graph)
    config = extended(run.config, settings)
    if (saved := run.saved()) is None:
        where = device_named(device)
    elif saved[1].finished(config.training):
        if leads:
            note(f"{folder} was finished after update {saved[1].update:,}: there is nothing left to do.")
        where = "cpu"
    else:
        if leads:
            note(f"{folder} goes on after update {saved[1].update:,}.")
        where = _device_to_resume_on(folder, saved[0], device)
    if config != run.config:
        run = run.with_config(config, written=leads)
    return run, opened, where


def _device_to_resume_on(folder: Path, before: str, device: DeviceName) -> str:
    """That of the last save, which alone continues it exactly, unless another is asked for."""
    from query2particles.show import note

    where = device_named(device)
    if device is DeviceName.auto:
        if before == "cuda" and where == "cpu":
            raise UsageError(
                f"{folder} was saved on a CUDA device, and this machine has none that torch can use: resume it where "
                "there is one, or here with --device cpu, which goes on with other random numbers"
            )
        return before
    if where != before:
        note(
            f"note: {folder} was saved on {before}; on {where} it goes on with other random numbers, so that it will "
            "not end exactly as it would have there"
        )
    return where


def next_step(run: Run, graph: Graph) -> str:
    """What can be measured: nothing that was trained on, and nothing without facts to ask for."""
    facts, training = graph.facts(), run.config.training
    if facts["test"] and not training.all_edges:
        return f" Next:  q2p evaluate {run.folder}"
    return f" Next:  q2p evaluate {run.folder} --split valid" if facts["valid"] and training.holds_out else ""


def _trained_json(run: Run, trained: Trained) -> dict[str, Any]:
    return {
        "run": str(run.folder),
        "update": trained.update,
        "updates": run.config.training.updates,
        "best_update": trained.best_update,
        "validation": trained.best,
        "seconds": round(trained.seconds, 2),
        "gpu_memory_gib": round(trained.gpu_memory / 2**30, 2),
        "interrupted": trained.interrupted,
    }


def _tensorboard_writer() -> Callable[[Path], Callable[[Progress], None]]:
    """From a run folder to what writes down how far training is."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "TensorBoard is not installed: pip install 'query2particles[tensorboard]', or leave out --tensorboard"
        ) from error

    def of(folder: Path) -> Callable[[Progress], None]:
        writers: list[Any] = []

        def write(progress: Progress) -> None:
            if not writers:  # what a crash left of this update and later ones is outdated
                writers.append(SummaryWriter(str(folder / "tensorboard"), purge_step=progress.update))
            figures = {"loss": progress.loss, "queries per second": progress.queries_per_second}
            figures |= {f"validation/{group}": mrr for group, mrr in (progress.validation or {}).items()}
            for name, value in figures.items():
                writers[0].add_scalar(name, value, progress.update)
            writers[0].flush()

        return write

    return of
