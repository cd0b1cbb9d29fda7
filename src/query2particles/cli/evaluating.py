"""`q2p evaluate`: from a model to figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.queries import shapes_named
from query2particles.cli.root import Json, Seed, app
from query2particles.cli.training import Device, DeviceName, UnionsName, device_named
from query2particles.errors import UsageError, WorkloadError

if TYPE_CHECKING:
    from query2particles.engine.exact import Batch
    from query2particles.engine.method import Method
    from query2particles.graph.graph import Graph
    from query2particles.query.algebra import Query
    from query2particles.query.rewrite import Unions
    from query2particles.workload.labels import Labels

__all__ = ["evaluate"]

_DRAWN = 300
"""Queries of each shape where they are drawn, unless --limit says another number."""


class EvaluatedSplit(StrEnum):
    valid = "valid"
    test = "test"


_LEARN_NOTHING = ("frequent-tails", "relax-and-count")


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
        str | None,
        typer.Option(
            help="What answers: by default what was trained; one on top of it, as `cqd-beam` is of `links`; or one "
            "that learns nothing: frequent-tails, relax-and-count."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting that changes how it answers.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    device: Device = DeviceName.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A result file to write.")] = None,
    json: Json = False,
) -> None:
    """Rank the hard answers of queries, and show the figures by shape."""
    from query2particles.evaluate import evaluate as evaluate_method
    from query2particles.evaluate import result
    from query2particles.files import write_json
    from query2particles.provenance import commit, machine
    from query2particles.query.algebra import nickname
    from query2particles.show import note, print_json, print_result, progress_bar

    tested = _tested(run, method, settings or (), graph, unions, device)
    batch, labels, name = _queries(tested, queries, split, shapes, limit, seed)
    with progress_bar("ranking", sum(map(len, batch.values()))) as progress:
        found = evaluate_method(tested.method, batch, labels, unions=tested.unions, progress=progress)
    if left_out := [one for one in map(nickname, batch) if one not in found.shapes]:
        words = f"{tested.name} lacks an operator of {', '.join(left_out)} (q2p methods says what each method has)"
        if not found.shapes:
            raise UsageError(f"{words}; name other --shapes")
        note(f"note: {words}: left out")
    document = result(
        [found],
        name=f"{tested.graph.name}-{name.partition('/')[0]}-{tested.name}".lower(),
        method=tested.name,
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

    name: str
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
    source: str,
    method: str | None,
    settings: Sequence[str],
    graph: str | None,
    unions: UnionsName | None,
    device: DeviceName,
) -> _Tested:
    """The trained model of a run folder, or a baseline on the graph of a run folder or on a graph itself."""
    from query2particles.graph.folders import open_graph
    from query2particles.methods import baselines
    from query2particles.run import Run, is_run_folder
    from query2particles.show import note

    run = Run.open(Path(source)) if is_run_folder(Path(source)) else None
    if method in _LEARN_NOTHING:
        if settings:
            raise UsageError(f"{method} learns nothing and has no settings: leave out --set")
        opened = run.graph(graph) if run is not None else open_graph(source)
        folder = graph or (run.graph_folder if run is not None else source)
        kind = baselines.FrequentTails if method == "frequent-tails" else baselines.RelaxAndCount
        how: Unions = (unions or UnionsName.native).value
        return _Tested(method, opened, folder, kind(opened.at("train")), how, {"unions": how})
    if run is None:
        others = " or ".join(f"--method {name}" for name in _LEARN_NOTHING)
        raise UsageError(
            f"{source} is no run folder: train one (q2p train GRAPH --out RUN) and evaluate that; "
            f"on a graph itself, only what learns nothing can be evaluated ({others})"
        )
    opened = run.graph(graph)
    run = run.answered_by(method or run.config.method, settings)
    training = run.config.training
    how = unions.value if unions is not None else training.unions
    if training.all_edges:
        note(f"warning: {source} was trained on all facts, those that these queries ask for among them")
    where = device_named(device)
    return _Tested(
        run.config.method,
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
