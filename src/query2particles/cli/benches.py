"""`q2p bench`, `q2p reproduce` and `q2p report`: measure, and make pages of what was measured."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import Json, Stopped, app
from query2particles.cli.training import DeviceName, device_named
from query2particles.errors import UsageError, clipped

if TYPE_CHECKING:
    from query2particles.bench import Bench

__all__ = ["bench", "report", "reproduce"]


class BenchName(StrEnum):
    exact = "exact"
    sample = "sample"
    # `import` is a keyword of Python, not of the command line
    import_ = "import"
    train = "train"
    softmax = "softmax"
    evaluate = "evaluate"
    answer = "answer"
    search = "search"
    serve = "serve"
    soak = "soak"


_ON_A_DEVICE = (BenchName.train, BenchName.softmax, BenchName.evaluate, BenchName.answer, BenchName.search)
_OF_ALL_METHODS = (BenchName.train, BenchName.answer)
_OF_A_SERVER = (BenchName.serve, BenchName.soak)
_COUNT = 5000

Data = Annotated[
    Path | None,
    typer.Option(envvar="Q2P_DATA", help="Folder of benchmark graphs: FB15k, NELL … Without it, bench uses atlas."),
]
Device = Annotated[DeviceName, typer.Option(help="`auto`: the GPU where there is one.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for a setting; may be repeated.")
]


@app.command()
def bench(
    name: Annotated[
        BenchName,
        typer.Argument(
            metavar="NAME", help="exact, sample, import, train, softmax, evaluate, answer, search, serve, soak."
        ),
    ],
    data: Data = None,
    device: Device = DeviceName.auto,
    count: Annotated[
        int | None, typer.Option(min=10, help="Queries of each shape; without it, what the bench usually takes.")
    ] = None,
    triples: Annotated[int, typer.Option(min=1000, help="Of `bench import`.")] = 10_000_000,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Of `bench serve` and `bench softmax`, each way, and of `bench soak`.",
            show_default="60, 300, 600",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Of `bench search`: the joined run that is measured.")
    ] = None,
    settings: Settings = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Of `bench answer`, by shape, and `bench train`: all methods.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder for bench-NAME.json, which `q2p report` reads."),
    ] = None,
    json: Json = False,
) -> None:
    """Speed, as ratios in one run."""
    from query2particles.files import write_json
    from query2particles.show import print_bench, print_json, print_times

    if all_methods and name not in _OF_ALL_METHODS:
        raise UsageError(f"bench answer and bench train compare all methods; leave out --all-methods for {name.value}")
    if (run is not None) != (name is BenchName.search):
        raise UsageError("bench search, and no other, measures a joined run, which --run names")
    ending = ""
    if name in _ON_A_DEVICE:
        where = device_named(device)
        if run is not None:
            result = _bench_of_a_run(run, where, count, settings)
        elif name is BenchName.softmax:
            result = _bench_of_the_softmax(data, where, seconds, settings or [])
        else:
            result = _bench_of_a_model(name, data, where, count, settings or [], all_methods)
        ending = f"-{where}"
    elif name in _OF_A_SERVER:
        result = _bench_of_a_server(name, data, seconds, count, settings or [])
    else:
        result = _bench_without_a_model(name, data, count or _COUNT, triples)
    if out is not None:
        target = out / f"bench-{result.bench}{ending}.json"
        write_json(target, result.as_json())
        if all_methods and name is BenchName.answer:
            _draw_times(result, target.with_suffix(".png"))
        elif name is BenchName.search:
            _draw_search(result, target.with_suffix(".png"))
    if json:
        print_json(result.as_json())
    elif all_methods and name is BenchName.answer:
        print_times(result)
    else:
        print_bench(result)


def _draw_times(result: Bench, target: Path) -> None:
    from query2particles.plot import plot_times
    from query2particles.report import method_times

    if _can_draw():
        plot_times(method_times(result.figures), target, caption=f"{result.about}; {result.machine}")


def _draw_search(result: Bench, target: Path) -> None:
    from query2particles.bench.searching import guided_curve
    from query2particles.plot import plot_search

    if _can_draw():
        caption = f"{result.about}; {result.machine}"
        plot_search(guided_curve(result.figures), result.figures, target, caption=caption)


def _can_draw() -> bool:
    from query2particles.show import note

    if find_spec("matplotlib") is None:
        note("note: there is no matplotlib here, so no picture")
        return False
    return True


def _bench_of_a_run(run: Path, device: str, count: int | None, settings: list[str] | None) -> Bench:
    from query2particles.bench.searching import bench_search
    from query2particles.show import note

    if settings:
        raise UsageError("bench search measures a run as it is: leave out --set")
    return bench_search(run, device, count=count, say=note)


def _bench_of_the_softmax(data: Path | None, device: str, seconds: float | None, settings: list[str]) -> Bench:
    from query2particles.bench.softmax import bench_softmax
    from query2particles.show import note

    return bench_softmax(data, device, seconds=seconds, settings=settings, say=note)


def _bench_without_a_model(name: BenchName, data: Path | None, count: int, triples: int) -> Bench:
    from query2particles.bench import bench_data, bench_exact, bench_import, bench_sample
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note

    if name is BenchName.import_:
        return bench_import(triples, note)
    graph, batch, cap = bench_data(data, count, note)
    if name is BenchName.exact:
        return bench_exact(graph, batch, note)
    return bench_sample(graph, count=count, cap=cap, shapes=list(SHAPES.values()), say=note)


def _bench_of_a_model(
    name: BenchName, data: Path | None, device: str, count: int | None, settings: list[str], all_methods: bool
) -> Bench:
    from query2particles.show import note

    if name is BenchName.train:
        from query2particles.bench.training import bench_train, bench_train_methods

        if all_methods and settings:
            raise UsageError("with --all-methods every method trains with its own preset: leave out --set")
        return (
            bench_train_methods(data, device, say=note)
            if all_methods
            else bench_train(data, device, settings=settings, say=note)
        )
    if name is BenchName.evaluate:
        from query2particles.bench.evaluating import bench_evaluate as measure
    elif all_methods:
        from query2particles.bench.answering import bench_answer_methods as measure
    else:
        from query2particles.bench.answering import bench_answer as measure
    return measure(data, device, count=count, settings=settings, say=note)


def _bench_of_a_server(
    name: BenchName, data: Path | None, seconds: float | None, count: int | None, settings: list[str]
) -> Bench:
    from query2particles.bench.serving import bench_serve, bench_soak
    from query2particles.show import note

    measure = bench_serve if name is BenchName.serve else bench_soak
    return measure(data, seconds=seconds, count=count, settings=settings, say=note)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Results, such as nell-betae-q2p.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(envvar="Q2P_DATA", help="Folder of benchmark graphs: FB15k, FB15k-237, NELL.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where NAME.json goes.")] = Path("benchmarks/results"),
    runs: Annotated[Path, typer.Option(help="Where the run folders go, and are found again.")] = Path("runs"),
    seeds: Annotated[str, typer.Option(help="Of the trainings, one each.")] = "0,1,2",
    device: Device = DeviceName.auto,
    settings: Settings = None,
    leaking: Annotated[
        bool, typer.Option("--leaking", help="Also what trains on test queries, to measure what that is worth.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Name what can be reproduced, and leave.")] = False,
    json: Json = False,
) -> None:
    """Results of the paper and of ours, from data to JSON."""
    if listed:
        _list_experiments(json)
        return
    if not names:
        raise UsageError("name at least one result; q2p reproduce --list names them all")
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers, such as 0,1,2, not {clipped(repr(seeds))}") from None
    from query2particles.reproduce import Watch, compared
    from query2particles.reproduce import reproduce as make
    from query2particles.show import note, print_json, print_table, progress_bar, progress_training, say

    made = make(
        names,
        data=data,
        out=out,
        runs=runs,
        seeds=numbers,
        device=device_named(device),
        settings=settings or [],
        leaking=leaking,
        watch=Watch(note, progress_training, progress_bar),
    )
    if json:
        print_json(made.documents[0] if len(names) == len(made.documents) == 1 else list(made.documents))
    else:
        for document in made.documents:
            found = compared(document)
            print_table(found.title, found.columns, found.rows, right=range(1, len(found.columns)))
            say(found.words)
            note(f"Saved in {out / document['name']}.json.")
    if made.signal is not None:
        note("Stopped; everything is saved. The same command goes on.")
        raise Stopped(made.signal)


def _list_experiments(json: bool) -> None:
    from query2particles.experiments.recipes import experiments
    from query2particles.show import print_json, print_table

    if json:
        print_json(list(experiments()))
        return
    rows = []
    for one in experiments().values():
        preset, training = one.recipe.config.preset, one.recipe.config.training
        size = f"{training.updates:,} × {training.batch:,}"
        rows.append((one.name, one.recipe.graph, f"{one.queries}/test", preset, size))
    print_table("", ("name", "graph", "queries", "preset", "updates × batch"), rows, right=(4,))


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="The folder of result files.")] = Path("benchmarks/results"),
    docs: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("docs"),
    json: Json = False,
) -> None:
    """Tables from benchmarks/results, as pages of the documentation."""
    from query2particles.report import write_report
    from query2particles.show import note, print_json

    pages = write_report(results, docs)
    if json:
        print_json({"pages": list(map(str, pages))})
    else:
        note(f"Saved in {', '.join(map(str, pages))}.")
