"""`q2p train` and `q2p evaluate`: from a graph to a model, and from a model to figures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.queries import shapes_named
from query2particles.cli.root import Json, Seed, Stopped, app
from query2particles.errors import UsageError, WorkloadError

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.engine.method import Method
    from query2particles.graph.graph import Graph
    from query2particles.query.algebra import Query
    from query2particles.query.rewrite import Unions
    from query2particles.run import Run
    from query2particles.train import Progress, Trained
    from query2particles.workload.labels import Labels

__all__ = ["DeviceName", "device_named", "evaluate", "train"]

_DRAWN = 300
"""Queries of each shape where they are drawn, unless --limit says another number."""


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class UnionsName(StrEnum):
    native = "native"
    dnf = "dnf"
    de_morgan = "de-morgan"


class EvaluatedSplit(StrEnum):
    valid = "valid"
    test = "test"


class EvaluatedMethod(StrEnum):
    q2p = "q2p"
    frequent_tails = "frequent-tails"
    relax_and_count = "relax-and-count"


def device_named(name: DeviceName) -> str:
    """The device that is meant: `auto` takes the GPU where there is one."""
    import torch

    found = torch.cuda.is_available()
    if name is DeviceName.cuda and not found:
        raise UsageError("this machine has no CUDA device that torch can use; leave out --device, or say --device cpu")
    return "cuda" if found and name is not DeviceName.cpu else "cpu"


_Device = Annotated[DeviceName, typer.Option(help="`auto`: the GPU where there is one.")]


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
    method: Annotated[str | None, typer.Option(help="What to train.", show_default="q2p")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="The settings to start from: default, small (for a CPU), paper or released.", show_default="default"
        ),
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
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that ended early, or with more updates.")
    ] = None,
    device: _Device = DeviceName.auto,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard into the run folder, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on a graph, or resume a training. Ctrl-C and SIGTERM save, and say how to go on."""
    from query2particles.config import configured, extended
    from query2particles.config import preset as preset_named
    from query2particles.graph.folders import open_graph
    from query2particles.run import Run
    from query2particles.show import note, print_json, print_trained, progress_training
    from query2particles.train import train as train_run

    writer = _tensorboard_writer() if tensorboard else None
    chosen = {
        "--out": out,
        "--method": method,
        "--preset": preset,
        "--config": config,
        "--seed": seed,
        "--unions": unions,
        "--all-edges": all_edges or None,
    }
    if resume is not None:
        if given := [name for name, value in chosen.items() if value is not None]:
            raise UsageError(f"--resume takes everything from the run itself; leave out {', '.join(given)}")
        run = Run.open(resume)
        opened = run.graph(graph)
        where = device_named(device if device is not DeviceName.auto else DeviceName(run.device() or device))
        if (longer := extended(run.config, settings or ())) != run.config:
            run = run.with_config(longer)
    else:
        if graph is None or out is None:
            raise UsageError("name a GRAPH and the run folder to make (--out RUN), or a run to go on with (--resume)")
        options = {"seed": seed, "unions": unions, "all_edges": all_edges or None}
        spelled = [f"{key}={value}" for key, value in options.items() if value is not None]
        start = preset_named(method or "q2p", preset or "default")
        configuration = configured(start, config, [*(settings or ()), *spelled])
        opened, where = open_graph(graph), device_named(device)
        run = Run.create(out, configuration, opened, graph)
    updates = run.config.training.updates
    with progress_training(updates) as show:
        reports = [show, writer(run.folder)] if writer else [show]
        trained = train_run(
            run, opened, device=where, on_progress=lambda progress: [report(progress) for report in reports]
        )
    if json:
        print_json(_trained_json(run, trained))
    else:
        print_trained(f"{run.folder}: {run.config.method} on {opened.name}, validation", trained)
    if trained.signal is not None:
        note(
            f"Stopped by {signal.Signals(trained.signal).name} after update {trained.update:,} of {updates:,}; "
            f"everything is saved. Go on with:  q2p train --resume {run.folder}"
        )
        raise Stopped(trained.signal)
    if not json:
        note(f"Saved in {run.folder}." + ("" if all_edges else f" Next:  q2p evaluate {run.folder}"))


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


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder; a graph, where --method needs no training.")],
    queries: Annotated[
        Path | None,
        typer.Option(help="A folder of queries. By default the benchmark folder's own; where it has none, drawn ones."),
    ] = None,
    split: Annotated[EvaluatedSplit, typer.Option(help="Tune on valid; test is for the end.")] = EvaluatedSplit.test,
    shapes: Annotated[str, typer.Option(help="Shapes by nickname or spelled, e.g. `2i,pi`.")] = "all",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Queries of each shape, at most; evenly spaced ones. By default {_DRAWN} drawn ones."
        ),
    ] = None,
    seed: Seed = 0,
    unions: Annotated[
        UnionsName | None, typer.Option(help="How unions are answered; by default as the run was validated.")
    ] = None,
    method: Annotated[
        EvaluatedMethod, typer.Option(help="q2p, or one that learns nothing: frequent-tails, relax-and-count.")
    ] = EvaluatedMethod.q2p,
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    device: _Device = DeviceName.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A result file to write.")] = None,
    json: Json = False,
) -> None:
    """Rank the hard answers of queries, and show the figures by shape."""
    from query2particles.evaluate import evaluate as evaluate_method
    from query2particles.evaluate import result
    from query2particles.files import write_json
    from query2particles.provenance import commit, machine
    from query2particles.show import note, print_json, print_result, progress_bar

    tested = _tested(run, method, graph, unions, device)
    batch, labels, name = _queries(tested, queries, split, shapes, limit, seed)
    with progress_bar("ranking", sum(map(len, batch.values()))) as progress:
        found = evaluate_method(tested.method, batch, labels, unions=tested.unions, progress=progress)
    document = result(
        [found],
        name=f"{tested.graph.name}-{name.partition('/')[0]}-{method.value}".lower(),
        method=method.value,
        graph=tested.graph.name,
        queries=name,
        seeds=[tested.seed],
        config=tested.config,
        commit=commit(),
        machine=machine(tested.device),
        train_seconds=tested.train_seconds,
        gpu_memory_gib=tested.gpu_memory_gib,
    )
    if out is not None:
        write_json(out, document)
    if json:
        print_json(document)
    else:
        print_result(document)
        if out is not None:
            note(f"Saved in {out}.")


@dataclass(frozen=True)
class _Tested:
    """What is evaluated, and what its result says about it."""

    graph: Graph
    graph_folder: str
    method: Method[Any]
    unions: Unions
    config: Mapping[str, Any]
    device: str = "cpu"
    seed: int = 0
    train_seconds: float = 0.0
    gpu_memory_gib: float = 0.0


def _tested(
    source: str, method: EvaluatedMethod, graph: str | None, unions: UnionsName | None, device: DeviceName
) -> _Tested:
    """The trained model of a run folder, or a baseline on the graph of a run folder or on a graph itself."""
    from query2particles.graph.folders import open_graph
    from query2particles.methods import baselines
    from query2particles.run import Run, is_run_folder
    from query2particles.show import note

    run = Run.open(Path(source)) if is_run_folder(Path(source)) else None
    if method is not EvaluatedMethod.q2p:
        opened = run.graph(graph) if run is not None else open_graph(source)
        folder = graph or (run.graph_folder if run is not None else source)
        kind = baselines.FrequentTails if method is EvaluatedMethod.frequent_tails else baselines.RelaxAndCount
        how: Unions = (unions or UnionsName.native).value
        return _Tested(opened, folder, kind(opened.at("train")), how, {"unions": how})
    if run is None:
        others = " or ".join(f"--method {name.value}" for name in EvaluatedMethod if name is not EvaluatedMethod.q2p)
        raise UsageError(
            f"{source} is no run folder: train one (q2p train GRAPH --out RUN) and evaluate that; "
            f"on a graph itself, only what learns nothing can be evaluated ({others})"
        )
    opened = run.graph(graph)
    training = run.config.training
    how = unions.value if unions is not None else training.unions
    if training.all_edges:
        note(f"warning: {source} was trained on all facts, those that these queries ask for among them")
    where = device_named(device)
    return _Tested(
        opened,
        graph or run.graph_folder,
        run.model(opened, where),
        how,
        replace(run.config, training=replace(training, unions=how)).as_json(),
        where,
        training.seed,
        *run.cost(),
    )


def _queries(
    tested: _Tested, folder: Path | None, split: EvaluatedSplit, shapes: str, limit: int | None, seed: int
) -> tuple[Batch, Mapping[Query, Labels], str]:
    """The queries to evaluate with their answers, and what a result calls them."""
    from query2particles.query.algebra import SHAPES
    from query2particles.show import progress_bar
    from query2particles.workload.selection import drawn_queries, stored_queries, stored_set

    graph = tested.graph
    wanted = None if shapes == "all" else shapes_named(shapes)
    folder = folder or stored_set(Path(tested.graph_folder), split.value)
    if folder is not None:
        with progress_bar("finding the answers", None) as progress:
            batch, labels = stored_queries(graph, folder, split.value, shapes=wanted, most=limit, progress=progress)
        return batch, labels, f"{folder.resolve().name}/{split.value}"
    most = limit or _DRAWN
    with progress_bar("drawing queries", most * len(wanted or SHAPES)) as progress:
        batch, labels = drawn_queries(graph, split.value, shapes=wanted, most=most, seed=seed, progress=progress)
    if not batch:
        raise WorkloadError(
            f"no {split.value} query of these shapes could be drawn from {graph.name}; name others (--shapes), or a "
            "folder of queries (--queries)"
        )
    return batch, labels, f"drawn/{split.value}, {most} a shape, seed {seed}"
