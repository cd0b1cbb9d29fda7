"""`q2p bench`: speed, as ratios in one run."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.graphs import size_named
from query2particles.cli.root import Json, writable
from query2particles.cli.training import Device, DeviceName, device_named
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.bench import Bench

__all__ = ["Settings", "bench_app"]

bench_app = typer.Typer(help="Speed, as ratios in one run.", no_args_is_help=True)

_COUNT = 5000

Data = Annotated[
    Path | None,
    typer.Option(envvar="Q2P_DATA", help="Folder of benchmark graphs: FB15k, NELL … Without it, bench uses atlas."),
]
Count = Annotated[int, typer.Option(min=10, help="Queries of each shape.")]
UsualCount = Annotated[
    int | None, typer.Option(min=10, help="Queries of each shape; without it, what the bench usually takes.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for a setting; may be repeated.")
]


def _writable(folder: Path | None) -> Path | None:
    writable(folder and folder / "bench-NAME.json")
    return folder


Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", callback=_writable, help="A folder for bench-NAME.json, which `q2p report` reads."),
]


@bench_app.command()
def exact(data: Data = None, count: Count = _COUNT, out: Out = None, json: Json = False) -> None:
    """Answers of the fourteen shapes by the engine, against plain Python sets."""
    from query2particles.bench import bench_data, bench_exact
    from query2particles.show import note

    graph, batch, _ = bench_data(data, count, note)
    _finish(bench_exact(graph, batch, note), out, json)


@bench_app.command()
def sample(data: Data = None, count: Count = _COUNT, out: Out = None, json: Json = False) -> None:
    """Drawing and labelling queries, against a plain Python sampler."""
    from query2particles.bench import bench_data, bench_sample
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note

    graph, _, cap = bench_data(data, count, note)
    _finish(bench_sample(graph, count=count, cap=cap, shapes=list(SHAPES.values()), say=note), out, json)


@bench_app.command("import")
def import_(
    triples: Annotated[
        int | None, typer.Option(min=1000, help="How many.", show_default="10 million, --large 100 million")
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="More than fits into memory, in steps.")] = False,
    memory: Annotated[str, typer.Option(help="Of --large: how much it may take.")] = "4GiB",
    out: Out = None,
    json: Json = False,
) -> None:
    """Synthetic triples from TSV to a graph folder, and opening it."""
    from query2particles.bench import bench_import, bench_import_large
    from query2particles.show import note

    result = (
        bench_import_large(triples, size_named(memory), note) if large else bench_import(triples or 10_000_000, note)
    )
    _finish(result, out, json)


@bench_app.command()
def train(
    data: Data = None,
    device: Device = DeviceName.auto,
    settings: Settings = None,
    all_methods: Annotated[bool, typer.Option("--all-methods", help="Every method that is trained.")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Updates of training, sampling included, against the matrix products of their own scores."""
    where = device_named(device)
    if all_methods and settings:
        raise UsageError("with --all-methods every method trains with its own preset: leave out --set")
    from query2particles.bench.training import bench_train, bench_train_methods
    from query2particles.show import note

    if all_methods:
        result = bench_train_methods(data, where, say=note)
    else:
        result = bench_train(data, where, settings=settings or [], say=note)
    _finish(result, out, json, where)


@bench_app.command()
def softmax(
    data: Data = None,
    device: Device = DeviceName.auto,
    seconds: Annotated[float | None, typer.Option(min=1, help="Each way.", show_default="300")] = None,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Accuracy of training against some entities, against that of training against all, after as many seconds."""
    where = device_named(device)
    from query2particles.bench.softmax import bench_softmax
    from query2particles.show import note

    _finish(bench_softmax(data, where, seconds=seconds, settings=settings or [], say=note), out, json, where)


@bench_app.command()
def evaluate(
    data: Data = None,
    device: Device = DeviceName.auto,
    count: UsualCount = None,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Evaluation of a query set, against the same model one query at a time."""
    where = device_named(device)
    from query2particles.bench.evaluating import bench_evaluate
    from query2particles.show import note

    _finish(bench_evaluate(data, where, count=count, settings=settings or [], say=note), out, json, where)


@bench_app.command()
def answer(
    data: Data = None,
    device: Device = DeviceName.auto,
    count: UsualCount = None,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="GRAPH",
            help="A graph in --data; of a run, its own, where it is no longer where it was.",
            show_default="FB15k-237",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", metavar="RUN", help="A run instead, on its own graph.")] = None,
    settings: Settings = None,
    all_methods: Annotated[bool, typer.Option("--all-methods", help="Every method, by shape; with a picture.")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """One query from ids to its ten best answers, and many together."""
    where = device_named(device)
    if all_methods and (run is not None or graph is not None):
        raise UsageError("--all-methods compares methods on one graph of its own: leave out --run and --graph")
    if graph is not None and run is None and data is None:
        raise UsageError("--graph names a folder in that of --data, or the graph of a run (--run)")
    from query2particles.bench.answering import bench_answer, bench_answer_methods
    from query2particles.show import note, print_times

    if not all_methods:
        result = bench_answer(data, where, graph=graph, run=run, count=count, settings=settings or [], say=note)
        _finish(result, out, json, where)
        return
    result = bench_answer_methods(data, where, count=count, settings=settings or [], say=note)
    _finish(result, out, json, where, draw=_draw_times, show=print_times)


@bench_app.command()
def search(
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="The joined run.")],
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    device: Device = DeviceName.auto,
    count: UsualCount = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """What the ways of a joined run find and how fast, with the curve of guided search."""
    where = device_named(device)
    from query2particles.bench.searching import bench_search
    from query2particles.show import note

    _finish(bench_search(run, where, graph=graph, count=count, say=note), out, json, where, draw=_draw_search)


@bench_app.command()
def trust(
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="A calibrated run.")],
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    one_hop: Annotated[int, typer.Option(min=1, help="Natural one-hop questions.")] = 4000,
    longer: Annotated[int, typer.Option(min=1, help="Natural questions of each other shape.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the questions.")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Whether guesses deserve trust: what a run claims of natural questions, beside what test facts say."""
    from query2particles.bench.trust import bench_trust
    from query2particles.query.algebra import SHAPES
    from query2particles.show import progress_bar

    with progress_bar("asking", one_hop + longer * (len(SHAPES) - 1)) as progress:
        result = bench_trust(run, graph=graph, one_hop=one_hop, longer=longer, seed=seed, progress=progress)
    _finish(result, out, json)


@bench_app.command()
def growth(
    device: Device = DeviceName.auto,
    largest: Annotated[
        int | None,
        typer.Option(min=20_000, help="Entities of the largest graph.", show_default="a million, 86 on CUDA"),
    ] = None,
    dimension: Annotated[int, typer.Option(min=2, help="Numbers of an entity.")] = 400,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Training, sampling, import and answers as a graph grows; with a picture."""
    where = device_named(device)
    from query2particles.bench.growth import bench_growth
    from query2particles.files import write_json
    from query2particles.show import note

    partial = None if out is None else out / f"partial-bench-growth-{where}.json"

    def keep(so_far: Bench) -> None:
        if partial is not None:
            write_json(partial, so_far.as_json())

    result = bench_growth(where, largest=largest, dimension=dimension, settings=settings or [], say=note, keep=keep)
    _finish(result, out, json, where, draw=_draw_growth)
    if partial is not None:
        partial.unlink()


@bench_app.command()
def index(
    entities: Annotated[int, typer.Option(min=1000, help="Rows of the table.")] = 10_000_000,
    dimension: Annotated[int, typer.Option(min=2, help="Numbers of a row.")] = 400,
    out: Out = None,
    json: Json = False,
) -> None:
    """The ten best of a large table on disk, by an index and exactly."""
    from query2particles.bench.indexing import bench_index
    from query2particles.show import note

    _finish(bench_index(entities, dimension, say=note), out, json)


@bench_app.command()
def serve(
    data: Data = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Each way.", show_default="60")] = None,
    count: UsualCount = None,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """A server and 32 connections, with micro-batching and without it."""
    from query2particles.bench.serving import bench_serve
    from query2particles.show import note

    _finish(bench_serve(data, seconds=seconds, count=count, settings=settings or [], say=note), out, json)


@bench_app.command()
def soak(
    data: Data = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="In all.", show_default="600")] = None,
    count: UsualCount = None,
    settings: Settings = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """The same with good, bad and huge requests side by side: what is lost, and what memory does."""
    from query2particles.bench.serving import bench_soak
    from query2particles.show import note

    _finish(bench_soak(data, seconds=seconds, count=count, settings=settings or [], say=note), out, json)


def _finish(
    result: Bench,
    out: Path | None,
    json: bool,
    device: str | None = None,
    *,
    draw: Callable[[Bench, Path], None] | None = None,
    show: Callable[[Bench], None] | None = None,
) -> None:
    """Save, with a picture where there is one to draw, and print."""
    from query2particles.files import write_json
    from query2particles.show import note, print_bench, print_json

    if out is not None:
        target = out / f"bench-{result.bench}{'' if device is None else f'-{device}'}.json"
        write_json(target, result.as_json())
        if draw is not None and find_spec("matplotlib") is None:
            note("note: there is no matplotlib here, so no picture")
        elif draw is not None:
            draw(result, target.with_suffix(".png"))
    if json:
        print_json(result.as_json())
    else:
        (show or print_bench)(result)


def _draw_times(result: Bench, target: Path) -> None:
    from query2particles.plot import plot_times
    from query2particles.report import method_times

    plot_times(method_times(result.figures), target, caption=f"{result.about}; {result.machine}")


def _draw_growth(result: Bench, target: Path) -> None:
    from query2particles.plot import growth_curves, plot_growth

    plot_growth({"": growth_curves(result.figures)}, target, caption=f"{result.about}; {result.machine}")


def _draw_search(result: Bench, target: Path) -> None:
    from query2particles.bench.searching import guided_curve
    from query2particles.plot import plot_search

    caption = f"{result.about}; {result.machine}"
    plot_search(guided_curve(result.figures), result.figures, target, caption=caption)
