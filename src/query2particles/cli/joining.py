"""`q2p join`, and `q2p train --method best`: runs that answer together."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.root import Json, Stopped, app
from query2particles.cli.training import (
    Device,
    DeviceName,
    calibrate_where_possible,
    device_named,
    next_step,
    note_plan,
    stoppable,
    train_watched,
)
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.config import Config
    from query2particles.graph.graph import Graph
    from query2particles.joined import Joined
    from query2particles.joining import FamilyFit
    from query2particles.run import Run
    from query2particles.workload.labels import Labelled

__all__ = ["Parts", "join", "train_best"]


_SECONDS = 60.0
"""How long probabilities are made on a CPU where no time is given."""

_OF_VECTORS = 0.25
"""The share of that time for the vectors alone."""


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
    _join(out, first, second, opened, validation, device_named(device), again, json)


@dataclass(frozen=True)
class Parts:
    """What a joined run is trained from."""

    graph: str
    out: Path
    preset: str
    settings: Sequence[str]
    """Of both parts, or of one where its name and a dot come first: vectors.updates=1000."""


def train_best(parts: Parts, device: str, json: bool, minutes: float | None = None, begin: float = 0.0) -> None:
    """Train the parts, one after the other, and join them; what an earlier call has finished is not done again.

    With `minutes`, everything is to be done so many of them after `begin`, a time of `time.perf_counter`.
    """
    from query2particles.graph.folders import open_graph
    from query2particles.joined import PARTS, check_place, weighing
    from query2particles.planning import Budget
    from query2particles.show import note, print_json, print_trained
    from query2particles.train import validation_set

    graph = open_graph(parts.graph)
    configs = _configs(parts, graph, device)
    if not all(config.training.can_be_judged for config in configs.values()):
        raise UsageError(
            "best needs facts to weigh its parts by: leave out valid_edges, all_edges and leaked; of parts that are "
            "trained again, with more facts, q2p join --as makes one"
        )
    validation = weighing(validation_set(graph, configs["vectors"].training), graph)  # refused before all is trained
    check_place(parts.out, *(parts.out / part for part in PARTS))

    budget = None if minutes is None else Budget.of(minutes, joined=True)
    for_probabilities = _SECONDS if budget is None else budget.probabilities

    def run_of(part: str) -> Run:
        config = configs[part]
        if minutes is not None:
            config = _planned(parts, part, config, graph, device, minutes, time.perf_counter() - begin)
        return _run_of(parts.out / part, config, graph, parts.graph)

    # What fits into a time is only known when it comes to a part; otherwise wrong settings are refused at once.
    runs = {part: run_of(part) for part in PARTS} if minutes is None else {}
    for part in PARTS:
        run = runs[part] = runs.get(part) or run_of(part)
        saved = run.saved()
        if saved is not None and saved[1].finished(run.config.training):
            note(f"{run.folder} is finished.")
            continue
        trained = train_watched(run, graph, device)
        if not json:
            print_trained(f"{run.folder}: {run.config.method} on {graph.name}, validation", trained)
        if trained.signal is not None:
            if json:
                print_json({"run": str(parts.out), "interrupted": trained.interrupted})
            note(
                f"Stopped by {signal.Signals(trained.signal).name}, in {part}; everything is saved. "
                "The same command goes on."
            )
            raise Stopped(trained.signal)
        if part == "vectors":  # which answer alone, too (--method fast)
            calibrate_where_possible(run, graph, device, "  and then the same command", _OF_VECTORS * for_probabilities)
    again = "The parts are saved; the same command goes on."
    seconds = None
    if budget is not None and minutes is not None:
        seconds = budget.left_for_weighing(60 * minutes - (time.perf_counter() - begin))
        validation = weighing(validation_set(graph, runs["vectors"].config.training), graph)
    last = (1 - _OF_VECTORS) * for_probabilities
    _join(parts.out, runs["vectors"], runs["links"], graph, validation, device, again, json, seconds, last)


def _configs(parts: Parts, graph: Graph, device: str) -> dict[str, Config]:
    """The settings of each part, in sizes that suit the graph."""
    from query2particles.config import configured, key_of
    from query2particles.joined import PARTS, settings_of
    from query2particles.planning import grown
    from query2particles.presets import preset

    own = {part: settings_of(part, parts.settings) for part in PARTS}
    starts = {part: configured(preset(method, parts.preset), None, own[part]) for part, method in PARTS.items()}
    return {part: grown(start, graph, device, set(map(key_of, own[part]))) for part, start in starts.items()}


def _planned(
    parts: Parts, part: str, config: Config, graph: Graph, device: str, minutes: float, spent: float
) -> Config:
    """The settings of a part that fit into the time, of which some seconds are `spent`.

    What an earlier call has planned stays as it is: a training that goes on ends as if it had been left alone.
    """
    from query2particles.config import configured, key_of
    from query2particles.joined import PARTS, settings_of
    from query2particles.planning import plan_part
    from query2particles.run import Run, is_run_folder

    own = settings_of(part, parts.settings)
    if is_run_folder(parts.out / part):
        return configured(Run.open(parts.out / part).config, None, own)
    later = list(PARTS.values())[list(PARTS).index(part) + 1 :]
    fixed = set(map(key_of, own))
    plan = plan_part(config, graph, device, minutes, spent=spent, fixed=fixed, joined=True, later=later)
    note_plan(plan, minutes)
    return plan.config


def _run_of(folder: Path, config: Any, graph: Graph, graph_folder: str) -> Run:
    """A new run, or the one that is there already."""
    from query2particles.run import Run, is_run_folder

    if not is_run_folder(folder):
        return Run.create(folder, config, graph, graph_folder)
    run = Run.open(folder)
    run.check_facts(graph)
    if run.config != config.with_absolute_paths():
        raise UsageError(f"{folder} has other settings than these; name another folder (--out), or the same settings")
    return run


def _join(
    out: Path,
    vectors: Run,
    links: Run,
    graph: Graph,
    validation: Labelled | None,
    device: str,
    again: str,
    json: bool,
    seconds: float | None = None,
    for_probabilities: float | None = None,
) -> None:
    """`again` says how to go on from where the weighing is stopped; `seconds` how long it may take.

    Probabilities are then made in as many seconds.
    """
    from query2particles.joined import join as join_runs
    from query2particles.joining import Effort, queries_asked
    from query2particles.show import note, print_json, progress_bar

    count = None
    if validation is not None and seconds is None:
        count = queries_asked(validation[0], Effort.on(device, len(graph.entities)))
    with stoppable("the parts were weighed", again), progress_bar("weighing the parts", count) as progress:
        joined, fits = join_runs(
            out, vectors, links, graph, validation, device=device, seconds=seconds, progress=progress
        )
    calibrate_where_possible(joined, graph, device, seconds=for_probabilities)
    if json:
        print_json({"run": str(out), "search": joined.search._asdict(), "families": _families(joined, fits)})
        return
    _print_fits(joined, fits)
    note("Queries of other kinds take the weights that suit all of these together.")
    ways = {"any": "every way to an answer", "best": "the best way to an answer"}
    sharpness, several, walks = joined.search
    walked = f"walks have a share of {walks:g}" if walks else "nobody walks"
    note(f"The search: links of sharpness {sharpness:g}, {walked}; alone, {ways[several]} counts.")
    note(f"Saved in {out}. Next:  q2p evaluate {out}")


def _join_as(out: Path, vectors: Run, links: Run, graph: Graph, like: Path, device: str, json: bool) -> None:
    from query2particles.joined import join_as, open_joined
    from query2particles.show import note, print_json

    joined = join_as(out, vectors, links, graph, open_joined(like))
    calibrate_where_possible(joined, graph, device)
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
