"""`q2p join`, and `q2p train --method best`: runs that answer together."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.root import Json, Stopped, app
from query2particles.cli.training import Device, DeviceName, device_named, listener, next_step
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.graph.graph import Graph
    from query2particles.joined import Joined
    from query2particles.joining import FamilyFit
    from query2particles.run import Run
    from query2particles.training.fit import Fit

__all__ = ["join", "train_best"]


@app.command()
def join(
    vectors: Annotated[Path, typer.Argument(metavar="RUN", help="A run of q2p, or of another method of vectors.")],
    links: Annotated[Path, typer.Argument(metavar="LINKS", help="A run of links on the same graph.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The joined run to make.")],
    queries: Annotated[
        Path | None,
        typer.Option(help="A folder of queries, whose valid ones weigh. By default those that RUN was validated by."),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--as",
            metavar="JOINED",
            help="A joined run whose search and weights to take, for parts that were trained again, on more facts: "
            "nothing is fitted.",
        ),
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The runs' graph, where it is no longer where it was.")] = None,
    device: Device = DeviceName.auto,
    json: Json = False,
) -> None:
    """Join a run of vectors and a run of links: both, and stored facts, weighed by validation queries."""
    from query2particles.run import Run
    from query2particles.train import validation_set
    from query2particles.training.fit import join_watched

    if like is not None and queries is not None:
        raise UsageError("--as takes the weights of a joined run, --queries says what to fit them to: leave out one")
    first, second = Run.open(vectors), Run.open(links, "links")
    opened = first.graph(graph)
    if like is not None:
        _join_as(out, first, second, opened, like, device_named(device), json)
        return
    training = first.config.training
    if queries is not None:
        training = replace(training, validation=str(queries))
    validation = validation_set(opened, training)
    again = "The same command begins anew."
    joined, fits = join_watched(
        out, first, second, opened, validation, device_named(device), listener(quiet=json), again
    )
    _print_joined(joined, fits, json)


def train_best(fit: Fit, json: bool) -> None:
    """Train the parts and join them; what an earlier call has finished is not done again."""
    from query2particles.show import note, print_json
    from query2particles.training.fit import InterruptedTrainingError, fit_best

    try:
        joined, fits = fit_best(fit, listener(quiet=json))
    except InterruptedTrainingError as stop:
        if json:
            print_json({"run": str(fit.folder), "interrupted": True})
        name = signal.Signals(stop.signal).name
        note(f"Stopped by {name}, in {stop.part}; everything is saved. The same command goes on.")
        raise Stopped(stop.signal) from stop
    _print_joined(joined, fits, json)


def _print_joined(joined: Joined, fits: Mapping[int, FamilyFit], json: bool) -> None:
    from query2particles.show import note, print_json

    if json:
        families = _families(joined, fits)
        print_json({"run": str(joined.folder), "search": joined.search._asdict(), "families": families})
        return
    _print_fits(joined, fits)
    note("Queries of other kinds take the weights that suit all of these together.")
    ways = {"any": "every way to an answer", "best": "the best way to an answer"}
    sharpness, several, walks, neg_scale = joined.search
    walked = f"walks have a share of {walks:g}" if walks else "without walks"
    excluded = f"; complements count {neg_scale:g} times" if neg_scale != 1 else ""
    note(f"The search: links of sharpness {sharpness:g}, {walked}; alone, {ways[several]} counts{excluded}.")
    note(f"Saved in {joined.folder}. Next:  q2p evaluate {joined.folder}")


def _join_as(out: Path, vectors: Run, links: Run, graph: Graph, like: Path, device: str, json: bool) -> None:
    from query2particles.joined import join_as, open_joined
    from query2particles.show import note, print_json
    from query2particles.training.fit import calibrate_where_possible

    joined = join_as(out, vectors, links, graph, open_joined(like))
    calibrate_where_possible(joined, graph, device, listener())
    if json:
        print_json({"run": str(out), "as": str(like), "search": joined.search._asdict()})
        return
    note(f"The search and the weights are those of {like}: nothing was fitted.")
    note(f"Saved in {out}.{next_step(joined, graph)}")


def _families(joined: Joined, fits: Mapping[int, FamilyFit]) -> list[dict[str, Any]]:
    from query2particles.methods.joint import FEATURES, family_name

    return [
        {
            "family": family_name(family),
            "queries": fit.queries,
            "mrr": round(fit.mrr, 2),
            "alone": {name: round(value, 2) for name, value in fit.alone.items()},
            "weights": dict(zip(FEATURES, (round(value, 4) for value in joined.weights[family]), strict=True)),
        }
        for family, fit in fits.items()
    ]


def _print_fits(joined: Joined, fits: Mapping[int, FamilyFit]) -> None:
    """How well each family is answered on validation queries, by its parts and together, and what they weigh."""
    from query2particles.show import print_table

    families = _families(joined, fits)
    answered = [
        (one["family"], one["queries"], *(f"{value:.1f}" for value in (*one["alone"].values(), one["mrr"])))
        for one in families
    ]
    weighed = [(one["family"], *(f"{value:.2f}" for value in one["weights"].values())) for one in families]
    for title, columns, rows in (
        (
            "MRR in percent on the validation queries that weighed the parts",
            ("number", *families[0]["alone"], "together"),
            answered,
        ),
        ("what the parts weigh", tuple(families[0]["weights"]), weighed),
    ):
        right = tuple(range(1, len(columns) + 1))
        print_table(f"{joined.folder}: {title}", ("queries with", *columns), rows, right=right)
