"""`q2p calibrate`, `q2p discover`, `q2p score` and `q2p export`: what a trained run has to offer besides answers."""

from __future__ import annotations

import contextlib
import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from query2particles.cli.graphs import columns_named
from query2particles.cli.root import Json, SplitName, app, split_of, writable
from query2particles.cli.training import Device, DeviceName, device_named, listener
from query2particles.errors import QueryError, SourceError, UsageError

if TYPE_CHECKING:
    from query2particles.graph.readers import Meter
    from query2particles.graph.tables import TableReader
    from query2particles.score import Scored, Scorer, Triple

__all__ = ["calibrate", "discover", "export", "score"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
MovedGraph = Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")]


StoredSplit = Annotated[
    SplitName, typer.Option(help="The facts that count as stored: those of train, train + valid, or all.")
]

_TOGETHER = 4096
"""Facts that are judged in one go."""

_LISTED = 1000
"""Facts that a table shows, at most."""

_TOLD = 100
"""Lines that could not be understood that are told one by one, at most."""


class FormatName(StrEnum):
    safetensors = "safetensors"
    parquet = "parquet"
    tsv = "tsv"


class TableName(StrEnum):
    tsv = "tsv"
    csv = "csv"


@app.command()
def calibrate(run: RunFolder, graph: MovedGraph = None, device: Device = DeviceName.auto, json: Json = False) -> None:
    """Learn from natural questions how likely a run's guesses are true. Training ends with this by itself."""
    from query2particles.calibration import CALIBRATION
    from query2particles.files import check_writable
    from query2particles.joined import open_run
    from query2particles.show import note, print_calibration, print_json
    from query2particles.training.fit import calibrate_run

    opened = open_run(run)
    check_writable(run / CALIBRATION)
    found = calibrate_run(opened, opened.graph(graph), device_named(device), listener=listener())
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
    split: StoredSplit = SplitName.test,
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
def score(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="[FACTS] RUN",
            help="A file of facts (TSV or CSV of head, relation, tail; also .gz and .xz; `-` for stdin), unless --fact "
            "names one; then a run folder.",
        ),
    ],
    fact: Annotated[
        tuple[str, str, str] | None,
        typer.Option("--fact", metavar="HEAD RELATION TAIL", help="The only fact to judge, in place of a file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", callback=writable, help="A TSV or CSV file to write the facts and their probabilities to."
        ),
    ] = None,
    form: Annotated[
        TableName | None, typer.Option("--format", help="Of FACTS; by default what its ending says, else tsv.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Head, relation and tail as three names or numbers from 1, e.g. `2,1,3`.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="What separates cells; by default tab or comma.")] = None,
    split: StoredSplit = SplitName.test,
    graph: MovedGraph = None,
    device: Device = DeviceName.auto,
    json: Json = False,
) -> None:
    """Say how likely facts are true: those of a file, or a single one."""
    from query2particles.answer import Reasoner
    from query2particles.score import Scorer
    from query2particles.show import note, print_json, print_scored, say

    *files, run = sources
    if len(files) != (0 if fact else 1):
        raise UsageError("name a file of FACTS and then a RUN; or a RUN alone and --fact HEAD RELATION TAIL")
    if out is not None and out.suffix not in (".tsv", ".csv"):
        raise UsageError(f"{out}: the probabilities are written as .tsv or .csv")
    scorer = Scorer(Reasoner.open(run, graph=graph, device=device_named(device), split=split_of(split)))
    results: list[dict[str, Any]] = []
    shown: list[Scored] = []
    count = stored = failed = 0
    with contextlib.ExitStack() as stack:
        if fact:
            rows: Iterable[_Row] = [(1, fact)]
        else:
            rows = stack.enter_context(_facts_of(files[0], form, columns_named(columns), delimiter))
        write = None if out is None else stack.enter_context(_table_to(out))
        for line, named, one in _judged(scorer, rows):
            place = {} if fact else {"line": line}
            count += 1
            if isinstance(one, QueryError):
                if fact:
                    raise one
                failed += 1
                told = {**place, **dict(zip(("head", "relation", "tail"), named, strict=True)), "error": str(one)}
                if not json and failed <= _TOLD:
                    note(f"line {line}: {one}")
            else:
                stored += one.stored
                told = {**place, **one.as_json()}
                if out is None and len(shown) < _LISTED:
                    shown.append(one)
            if json:
                results.append(told)
            if write is not None:
                write(line, named, told)
    if json:
        print_json(results)
    elif out is not None:
        say(f"{out}: {stored:,} stored, {count - failed - stored:,} predicted, {failed:,} not understood")
    else:
        print_scored(shown, count - failed)
    if failed:
        more = f"; the first {_TOLD} are named above" if failed > _TOLD and not json else ""
        typer.echo(f"{failed} of {count} facts could not be understood{more}", err=True)
        raise typer.Exit(1)


_Row: TypeAlias = "tuple[int, Triple]"
"""A line and the fact on it."""


@contextlib.contextmanager
def _facts_of(
    source: str, form: TableName | None, columns: tuple[int | str, ...] | None, delimiter: str | None
) -> Iterator[Iterator[_Row]]:
    """The facts of a file, or of stdin, with a bar that follows the reading."""
    from query2particles.graph.readers import Meter, format_of
    from query2particles.graph.tables import TableReader
    from query2particles.show import progress_bytes

    with contextlib.ExitStack() as stack:
        path = Path(source)
        if source == "-":  # which can be read only once
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stdin"
            with path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        kind = form.value if form is not None else format_of(path) or "tsv"
        if kind not in ("tsv", "csv"):
            raise UsageError(f"{source}: facts to judge are read from TSV or CSV (--format says which), not {kind}")
        if not path.exists():
            raise UsageError(f"{source} does not exist")
        meter = Meter(path.stat().st_size, stack.enter_context(progress_bytes("judging")))
        separator = "\t" if delimiter == r"\t" else delimiter or ("," if kind == "csv" else "\t")
        yield _read(TableReader(path, meter, separator, kind == "csv", columns=columns), meter)


def _read(reader: TableReader, meter: Meter) -> Iterator[_Row]:
    for number, (line, (head, relation, tail)) in enumerate(reader.rows()):
        if number % _TOGETHER == 0:
            meter.tell()
        yield line, (head, relation, tail)


def _judged(scorer: Scorer, rows: Iterable[_Row]) -> Iterator[tuple[int, Triple, Scored | QueryError]]:
    """Each fact with its line and what it is worth, some thousands at a time."""
    waiting = iter(rows)
    while some := list(islice(waiting, _TOGETHER)):
        found = scorer([named for _, named in some])
        yield from ((line, named, one) for (line, named), one in zip(some, found, strict=True))


@contextlib.contextmanager
def _table_to(target: Path) -> Iterator[Callable[[int, Triple, Mapping[str, Any]], None]]:
    """What writes facts to a file: without a probability where there is none. It takes its place when all are there."""
    from query2particles.files import new_file

    comma = target.suffix == ".csv"
    with new_file(target) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        written = csv.writer(file, lineterminator="\n")

        def write(line: int, named: Triple, told: Mapping[str, Any]) -> None:
            stored = {True: "true", False: "false", None: ""}[told.get("stored")]
            cells = (*named, f"{told['probability']:.6f}" if "probability" in told else "", stored)
            if comma:
                written.writerow(cells)
                return
            if any(map(_BREAKS.search, cells)):
                raise SourceError(target, None, f"a name of line {line} has a tab or a line end: name a .csv file")
            file.write("\t".join(cells) + "\n")

        header = ("head", "relation", "tail", "probability", "stored")
        file.write(("," if comma else "\t").join(header) + "\n")
        yield write


_BREAKS = re.compile(r"[\t\r\n]")


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
