"""`q2p calibrate`, `q2p discover` and `q2p export`: what a trained run has to offer besides answers."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import Json, SplitName, app, split_of, writable
from query2particles.cli.training import Device, DeviceName, device_named
from query2particles.errors import UsageError

if TYPE_CHECKING:
    from query2particles.calibration import Calibration
    from query2particles.graph.graph import Graph
    from query2particles.run import Run

__all__ = ["calibrate", "calibrate_run", "discover", "export"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
MovedGraph = Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")]


class FormatName(StrEnum):
    safetensors = "safetensors"
    parquet = "parquet"
    tsv = "tsv"


def calibrate_run(run: Run, graph: Graph, device: str) -> Calibration:
    """Learn a run's probabilities from natural questions, and save them with their picture, where it can be drawn."""
    from query2particles.calibration import (
        RELIABILITY,
        plot_reliability,
        questions_for,
        save_calibration,
        weights_digest,
    )
    from query2particles.calibration import calibrate as fit
    from query2particles.methods.registry import attach_stored
    from query2particles.query.algebra import SHAPES
    from query2particles.show import progress_bar

    training = run.config.training
    if not training.holds_out:
        facts = "all facts, those of validation among them" if training.all_edges else "validation facts, too"
        raise UsageError(
            f"{run.folder} was trained on {facts}: nothing is left to learn from how sure it may be. Train a run "
            f"without {'--all-edges' if training.all_edges else 'valid_edges'}"
        )
    weights = weights_digest(run)  # taken first: should training save newer ones meanwhile, they have no calibration
    model, stored = run.model(graph, device), graph.without("valid")
    attach_stored(model, stored)
    asked = questions_for(len(graph.entities), device)
    with progress_bar("calibrating", asked["one_hop"] + asked["longer"] * (len(SHAPES) - 1)) as progress:
        fitted, judged = fit(model, stored, graph.at("test"), **asked, unions=training.unions, progress=progress)
    saved = save_calibration(run, replace(fitted, weights=weights))
    if find_spec("matplotlib") is not None:  # a machine that only trains needs none
        title = f"{run.folder.name}: what guesses claim and what comes true, on questions that no fit had seen"
        plot_reliability(judged, run.folder / RELIABILITY, title=title)
    return saved


@app.command()
def calibrate(run: RunFolder, graph: MovedGraph = None, device: Device = DeviceName.auto, json: Json = False) -> None:
    """Learn from natural questions how likely a run's guesses are true. Training ends with this by itself."""
    from query2particles.calibration import CALIBRATION
    from query2particles.files import check_writable
    from query2particles.joined import open_run
    from query2particles.show import note, print_calibration, print_json

    opened = open_run(run)
    check_writable(run / CALIBRATION)
    found = calibrate_run(opened, opened.graph(graph), device_named(device))
    if json:
        print_json({"run": str(run), "figures": found.as_json()["figures"]})
        return
    print_calibration(f"{run}: guesses on natural questions that no fit had seen", found)
    note(f"Saved in {run / CALIBRATION}.")


@app.command()
def discover(
    run: RunFolder,
    relation: Annotated[str | None, typer.Option(help="The relation whose missing facts to guess.")] = None,
    entity: Annotated[str | None, typer.Option(help="The entity whose missing facts to guess.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many facts to name.")] = 20,
    split: Annotated[
        SplitName, typer.Option(help="The facts that count as stored: those of train, train + valid, or all.")
    ] = SplitName.test,
    graph: MovedGraph = None,
    device: Device = DeviceName.auto,
    json: Json = False,
) -> None:
    """Guess the likeliest missing facts of a relation, of an entity, or of both."""
    from query2particles.answer import Reasoner
    from query2particles.show import note, print_discoveries, print_json, progress_bar

    reasoner = Reasoner.open(run, graph=graph, device=device_named(device), split=split_of(split))
    with progress_bar("asking", None) as progress:
        found = reasoner.discover(relation=relation, entity=entity, k=k, progress=progress)
    if json:
        print_json([one.as_json() for one in found])
        return
    print_discoveries(" of ".join(filter(None, (relation, entity))), found)
    if reasoner.calibration is None:
        note(f"note: these guesses carry no probabilities; q2p calibrate {run} gives them some")


@app.command()
def export(
    run: RunFolder,
    out: Annotated[
        Path, typer.Option("--out", "-o", callback=writable, help="The file to write; one that is there is replaced.")
    ],
    form: Annotated[
        FormatName | None, typer.Option("--format", help="By default, what the ending of the file says.")
    ] = None,
    graph: MovedGraph = None,
    json: Json = False,
) -> None:
    """Write the embeddings of a run, with their names, to a file."""
    from query2particles.export import export_embeddings, format_of
    from query2particles.run import Run
    from query2particles.show import print_json, say

    chosen = form.value if form is not None else format_of(out)
    opened = Run.open(run)
    if out.resolve().parent == run.resolve():
        raise UsageError(f"{run} holds the run's own files; name a file elsewhere")
    own = opened.graph(graph)
    count, dimension = export_embeddings(own, opened.model(own), out, chosen)
    if json:
        print_json({"run": str(run), "file": str(out), "format": chosen, "vectors": count, "dimension": dimension})
    else:
        say(f"{count:,} vectors of {dimension} numbers, with their names, in {out}")
