"""`q2p evaluate` and `q2p particles`: from a model to figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.queries import shapes_named
from query2particles.cli.root import Json, Seed, app, writable
from query2particles.cli.training import Device, DeviceName, UnionsName, device_named
from query2particles.errors import RunError, UsageError, WorkloadError, clipped

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.engine.method import Method
    from query2particles.graph.graph import Graph, Split
    from query2particles.query.algebra import Query
    from query2particles.query.rewrite import Unions
    from query2particles.workload.labels import Labels

__all__ = ["evaluate", "particles"]

_DRAWN = 300
"""Queries of each shape where they are drawn, unless --limit says another number."""

_MANY_ENTITIES = 200_000
"""With more, baselines, which count for every entity, are asked only where they are wanted."""


class EvaluatedSplit(StrEnum):
    valid = "valid"
    test = "test"


Queries = Annotated[
    Path | None,
    typer.Option(help="A folder of queries. By default the benchmark folder's own; where it has none, drawn ones."),
]
QuerySplit = Annotated[EvaluatedSplit, typer.Option(help="Tune on valid; test is for the end.")]
ShapeNames = Annotated[str, typer.Option(help="Shapes by nickname or spelled, e.g. `2i,pi`.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help=f"Queries of each shape, at most; evenly spaced ones. By default {_DRAWN} drawn ones."),
]
UnionsAnswered = Annotated[
    UnionsName | None, typer.Option(help="How unions are answered; by default as the run was validated.")
]
MovedGraph = Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")]
ResultFile = Annotated[Path | None, typer.Option("--out", "-o", callback=writable, help="A result file to write.")]


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder; a graph, where --method needs no training.")],
    queries: Queries = None,
    split: QuerySplit = EvaluatedSplit.test,
    shapes: ShapeNames = "all",
    limit: Limit = None,
    seed: Seed = 0,
    unions: UnionsAnswered = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What answers: by default what was trained; one on top of it, as `cqd-beam` is of `links`; of a "
            "joined run, `best`, `fast` (its vectors alone), `guided`, or a part; or one that learns nothing: "
            "frequent-tails, relax-and-count."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting that changes how it answers.")
    ] = None,
    hardness: Annotated[
        bool, typer.Option("--hardness", help="Also by how many edges of an answer's best proof training lacks.")
    ] = False,
    baselines: Annotated[
        bool | None,
        typer.Option(
            "--baselines/--no-baselines",
            help="Ask frequent-tails and relax-and-count the same queries, and say whether the run is any good. By "
            f"default with up to {_MANY_ENTITIES:,} entities.",
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Measure the method alone: entities of wrong kinds and a question's own entity compete, too, which "
            "are no guesses otherwise.",
        ),
    ] = False,
    graph: MovedGraph = None,
    device: Device = DeviceName.auto,
    out: ResultFile = None,
    json: Json = False,
) -> None:
    """Rank the hard answers of queries, show the figures by shape, and say whether the run is any good."""
    from query2particles.engine.plausible import Plausible
    from query2particles.evaluate import averages, compare, result
    from query2particles.evaluate import evaluate as evaluate_method
    from query2particles.files import write_json
    from query2particles.provenance import commit, machine
    from query2particles.query.algebra import nickname
    from query2particles.show import note, print_hardness, print_json, print_result, print_verdict, progress_bar
    from query2particles.verdict import verdict
    from query2particles.workload.hardness import hardness as hardness_of

    if method is not None:
        _check_method(Path(run), method)
    tested = _tested(run, split, method, settings or (), graph, unions, device)
    if tested.config.get("training", {}).get("stored") == split.value:
        raise UsageError(f"with stored={split.value} what these queries ask for is stored: evaluate another --split")
    batch, labels, name = _queries(tested, queries, split, shapes, limit, seed)
    total = sum(map(len, batch.values()))
    how_hard = None
    if hardness:
        with progress_bar("looking for proofs", total) as progress:
            edges = tested.graph.at("train"), tested.graph.at(split.value)
            how_hard = hardness_of(*edges, batch, labels, progress=progress)
    plausible = None if alone else Plausible(tested.graph.at(tested.known or "train"))
    with progress_bar("ranking", total) as progress:
        found = evaluate_method(
            tested.method,
            batch,
            labels,
            unions=tested.unions,
            hardness=how_hard,
            plausible=plausible,
            progress=progress,
        )
    _say_what_is_left_out(tested, batch, found.shapes)
    if left_out := getattr(tested.method, "left_out", ""):
        note(f"note: {left_out}")
    document = result(
        [found],
        name=f"{tested.graph.name}-{name.partition('/')[0]}-{tested.name}".lower(),
        method=tested.name,
        graph=tested.graph.name,
        queries=name,
        seeds=[tested.seed],
        config={**tested.config, "alone": alone},
        commit=commit(),
        machine=machine(tested.device),
        train_seconds=tested.train_seconds,
        gpu_memory_gib=tested.gpu_memory_gib,
    )
    if yardsticks := _yardsticks(tested, baselines):
        answered = {shape: ids for shape, ids in batch.items() if nickname(shape) in found.shapes}
        with progress_bar("asking the baselines", len(yardsticks) * sum(map(len, answered.values()))) as progress:
            others = compare(yardsticks, answered, labels, plausible=plausible, progress=progress)
        document["baselines"] = {name: averages([other]) for name, other in others.items()}
        document["verdict"] = verdict(found, others).as_json()
    if out is not None:
        write_json(out, document)
    if json:
        print_json(document)
    else:
        print_result(document)
        if hardness:
            print_hardness(document)
        if yardsticks:
            print_verdict(document)
        if out is not None:
            note(f"Saved in {out}.")


def _yardsticks(tested: _Tested, wanted: bool | None) -> Mapping[str, Method[Any]]:
    """The baselines to compare with, on the facts that the model knows; none where nothing would follow from it."""
    from query2particles.methods.baselines import BASELINES, baselines
    from query2particles.show import note

    if wanted is False or tested.name in BASELINES:
        return {}
    if tested.known is None:
        note("note: no verdict: what these queries ask for was trained on, or may have been")
        return {}
    if wanted is None and (entities := len(tested.graph.entities)) > _MANY_ENTITIES:
        note(f"note: no verdict: with {entities:,} entities baselines take long; --baselines asks them all the same")
        return {}
    return baselines(tested.graph.at(tested.known))


def _check_method(source: Path, method: str) -> None:
    """Refuse a name that there is not, and one that only a joined run answers by, of anything else."""
    from query2particles.joined import BEST, FAST, GUIDED
    from query2particles.methods.baselines import BASELINES
    from query2particles.methods.registry import METHODS
    from query2particles.run import JOINED

    joint = (BEST, FAST, GUIDED)
    if method in joint and not (source / JOINED).is_file():
        raise UsageError(
            f"{method} asks the parts of a joined run, which {source} is not: train one (q2p train GRAPH --method "
            f"{BEST} --out RUN), or join two (q2p join)"
        )
    if method not in (*METHODS, *joint, *BASELINES):
        raise UsageError(
            f"there is no method {clipped(repr(method))} to evaluate; there are {', '.join(METHODS)}; of a joined run "
            f"{', '.join(joint)}; without training {', '.join(BASELINES)}"
        )


_PICTURES = (".png", ".svg", ".pdf")


@app.command()
def particles(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder of a method that has particles: q2p.")],
    queries: Queries = None,
    split: QuerySplit = EvaluatedSplit.test,
    shapes: ShapeNames = "all",
    limit: Limit = None,
    seed: Seed = 0,
    unions: UnionsAnswered = None,
    graph: MovedGraph = None,
    device: Device = DeviceName.auto,
    plot: Annotated[Path | None, typer.Option(callback=writable, help="A picture to draw: .png, .svg or .pdf.")] = None,
    out: ResultFile = None,
    json: Json = False,
) -> None:
    """How far apart the particles of a run are, and whether each of them finds answers."""
    from query2particles.files import write_json
    from query2particles.plot import plot_spread
    from query2particles.provenance import commit, machine
    from query2particles.run import is_run_folder
    from query2particles.show import note, print_json, progress_bar
    from query2particles.spread import spread

    if not is_run_folder(Path(run)):
        raise UsageError(f"{run} is no run folder, and only what was trained has particles: q2p train GRAPH --out RUN")
    if plot is not None:
        _check_drawable(plot)
    tested = _tested(run, split, None, (), graph, unions, device)
    batch, labels, name = _queries(tested, queries, split, shapes, limit, seed)
    with progress_bar("measuring", sum(map(len, batch.values()))) as progress:
        found = spread(tested.method, batch, labels, unions=tested.unions, progress=progress)
    _say_what_is_left_out(tested, batch, found.shapes)
    document = {
        "method": tested.name,
        "graph": tested.graph.name,
        "queries": name,
        "seed": tested.seed,
        "config": tested.config,
        "commit": commit(),
        "machine": machine(tested.device),
        **found.as_json(),
    }
    if out is not None:
        write_json(out, document)
    if plot is not None:
        several = tested.config["model"].get("particles", 1)
        title = f"{Path(run).resolve().name}: {tested.name} on {name} of {tested.graph.name}, K = {several}"
        plot_spread(document, plot, title=title)
    if json:
        print_json(document)
        return
    _print_spread(document)
    if saved := [str(path) for path in (out, plot) if path is not None]:
        note(f"Saved in {' and '.join(saved)}.")


def _check_drawable(picture: Path) -> None:
    """Refuse before the work what would fail after it."""
    if picture.suffix not in _PICTURES:
        raise UsageError(f"a picture is one of {', '.join(_PICTURES)}; {picture} is none of them: name another --plot")
    if find_spec("matplotlib") is None:
        raise UsageError("there is no matplotlib here to draw with: install it, or leave out --plot")


def _print_spread(document: Mapping[str, Any]) -> None:
    from query2particles.query.algebra import GROUP_NAMES
    from query2particles.show import print_table, say

    def cells(figures: Mapping[str, Any]) -> list[str]:
        patterns = {"cosine": "{:.3f}", "margin": "{:.3f}", "effective": "{:.2f}", "at_most": "{:.2f}"}
        numbers = [pattern.format(figures[key]) if key in figures else "" for key, pattern in patterns.items()]
        return numbers + [" ".join(map("{:.0f}".format, figures.get(key, ()))) for key in ("by_rank", "by_number")]

    rows: list[tuple[object, ...]] = [
        (shape, figures["queries"], figures.get("particles", ""), *cells(figures))
        for shape, figures in document["shapes"].items()
    ]
    rows += [
        (f"{name} (mean)", "", "", *cells(document["averages"][group]))
        for group, name in GROUP_NAMES.items()
        if document["averages"][group]
    ]
    print_table(
        f"Particles of {document['method']} on {document['queries']} of {document['graph']}",
        ("shape", "queries", "particles", "cosine", "margin", "effective", "at most", "% by rank", "% by number"),
        rows,
        right=range(1, 7),
    )
    say(
        "cosine: of pairs of a query's particles; margin: what the score of a hard answer owes to the particle that "
        "finds it; % by rank: of hard answers, found by the particle that finds most, second most, … (queries with "
        "several); effective: how many particles these shares amount to, and at most can; % by number: found by "
        "particle 1, 2, …"
    )


def _say_what_is_left_out(tested: _Tested, batch: Batch, measured: Collection[str]) -> None:
    """Of the shapes, those that the method lacks an operator of; an error where nothing is left."""
    from query2particles.query.algebra import nickname
    from query2particles.show import note

    if left_out := [one for one in map(nickname, batch) if one not in measured]:
        words = f"{tested.name} lacks an operator of {', '.join(left_out)} (q2p methods says what each method has)"
        if not measured:
            raise UsageError(f"{words}; name other --shapes")
        note(f"note: {words}: left out")


@dataclass(frozen=True)
class _Tested:
    """What is evaluated, and what its result says about it."""

    name: str
    graph: Graph
    graph_folder: str
    method: Method[Any]
    unions: Unions
    config: Mapping[str, Any]
    known: Split | None = None
    """The facts that a run knows when it is asked; none where what is asked for is, or may be, among them."""
    device: str = "cpu"
    seed: int = 0
    train_seconds: float = 0.0
    gpu_memory_gib: float = 0.0


def _tested(
    source: str,
    split: EvaluatedSplit,
    method: str | None,
    settings: Sequence[str],
    graph: str | None,
    unions: UnionsName | None,
    device: DeviceName,
) -> _Tested:
    """The trained model of a run folder, or a baseline on the graph of a run folder or on a graph itself.

    `split` is what it will be asked for.
    """
    from query2particles.graph.folders import open_graph
    from query2particles.joined import open_run
    from query2particles.methods.baselines import BASELINES
    from query2particles.run import was_begun
    from query2particles.show import note

    run = open_run(Path(source)) if was_begun(Path(source)) else None
    if method is not None and method in BASELINES:
        if settings:
            raise UsageError(f"{method} learns nothing and has no settings: leave out --set")
        opened = run.graph(graph) if run is not None else open_graph(source)
        folder = graph or (run.graph_folder if run is not None else source)
        how: Unions = (unions or UnionsName.native).value
        return _Tested(method, opened, folder, BASELINES[method](opened.at("train")), how, {"unions": how})
    if run is None:
        others = " or ".join(f"--method {name}" for name in BASELINES)
        raise UsageError(
            f"{source} is no run folder: train one (q2p train GRAPH --out RUN) and evaluate that; "
            f"on a graph itself, only what learns nothing can be evaluated ({others})"
        )
    opened = run.graph(graph)
    same_facts = True
    try:
        run.check_facts(opened)
    except RunError as error:
        same_facts = False
        note(f"warning: what these queries ask for may have been trained on: {error}")
    run = run.answered_by(method or run.config.method, settings)
    training = run.config.training
    if training.known == "valid":
        note("note: validation facts are known; how hard an answer is still counts what training facts lack")
    how = unions.value if unions is not None else training.unions
    learned = training.split in ("test", split.value)
    if learned:
        note(f"warning: {source} was trained on {training.facts}, those that these queries ask for among them")
    where = device_named(device)
    return _Tested(
        run.config.method,
        opened,
        graph or run.graph_folder,
        run.model(opened, where),
        how,
        replace(run.config, training=replace(training, unions=how)).with_bare_names().as_json(),
        training.known if same_facts and not learned and not training.leaked else None,
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
