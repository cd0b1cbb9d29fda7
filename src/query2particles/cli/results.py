"""`q2p reproduce` and `q2p report`: make results, and pages of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from query2particles.cli.benches import Settings
from query2particles.cli.root import Json, Stopped, app
from query2particles.cli.training import Device, DeviceName, device_named
from query2particles.errors import UsageError, clipped

__all__ = ["report", "reproduce"]


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
    from query2particles.files import check_writable
    from query2particles.reproduce import Watch, compared
    from query2particles.reproduce import reproduce as make
    from query2particles.show import note, print_json, print_table, progress_bar, progress_training, say

    for name in names:
        check_writable(out / f"{name}.json")
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
