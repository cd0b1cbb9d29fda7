"""`q2p graph`: import a graph, or look at one."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from query2particles.cli.root import GraphName, Json, Seed
from query2particles.errors import UsageError, clipped

__all__ = ["columns_named", "graph_app", "size_named"]

graph_app = typer.Typer(help="Import a graph, or look at one.", no_args_is_help=True)


_UNITS = {
    f"{letter}{i}": base**power for power, letter in enumerate("kMGT", 1) for i, base in (("", 1000), ("i", 1024))
}


class FormatName(StrEnum):
    tsv = "tsv"
    csv = "csv"
    parquet = "parquet"
    nt = "nt"
    ttl = "ttl"


class Unseen(StrEnum):
    error = "error"
    drop = "drop"


@graph_app.command("import")
def graph_import(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE…", help="Files or folders of triples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The graph folder to write.")],
    format: Annotated[FormatName | None, typer.Option(help="By default, by each file's ending.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Of TSV and CSV; by default, detected.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Head, relation and tail as three names or numbers from 1, e.g. `2,1,3`.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="What separates cells; by default tab or comma.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A TSV file of names and labels.")] = None,
    literals: Annotated[bool, typer.Option(help="Keep RDF literals as entities.")] = False,
    valid: Annotated[list[Path] | None, typer.Option(help="File(s) of validation facts.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="File(s) of test facts.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Draw validation and test facts at random: two fractions, e.g. `0.1,0.1`.")
    ] = None,
    seed: Seed = 0,
    unseen: Annotated[
        Unseen, typer.Option(help="What to do with valid or test facts about what training never saw.")
    ] = Unseen.error,
    name: Annotated[str | None, typer.Option(help="The graph's name; by default, the source's.")] = None,
    attribution: Annotated[str | None, typer.Option(help="Whom the data come from; `graph info` shows it.")] = None,
    memory: Annotated[
        str, typer.Option(help="How much memory to take, about: sources that need more are imported in steps on disk.")
    ] = "4GiB",
    json: Json = False,
) -> None:
    """Files of triples (tsv, csv, nt, ttl, parquet; also .gz and .xz), or a benchmark folder, to a graph folder."""
    from dataclasses import replace

    from query2particles.files import check_replaceable
    from query2particles.graph.figures import graph_figures
    from query2particles.graph.folders import is_known_folder, open_graph
    from query2particles.graph.graph import is_graph_file
    from query2particles.graph.large import import_into
    from query2particles.graph.load import ImportOptions
    from query2particles.show import note, print_graph, print_json, progress_bytes

    check_replaceable(out, is_graph_file)
    there_before = out.exists()
    options = ImportOptions(
        format=format.value if format else None,
        header=header,
        columns=columns_named(columns),
        delimiter="\t" if delimiter == r"\t" else delimiter,
        literals=literals,
        labels=labels,
        valid=valid or (),
        test=test or (),
        fractions=_fractions(split),
        seed=seed,
        unseen=unseen.value,
        name=name,
        attribution=attribution,
    )
    if len(sources) == 1 and is_known_folder(sources[0]):
        if options != ImportOptions(name=name, attribution=attribution, seed=seed):
            raise UsageError(f"{sources[0]} is a graph already: only --name and --attribution can change")
        opened = open_graph(sources[0])
        changed = {"name": name, "attribution": attribution}
        about = {**opened.about, **{key: value for key, value in changed.items() if value is not None}}
        graph = replace(opened, about=about)
        graph.save(out)
    else:
        graph = import_into(sources, out, options=options, memory=size_named(memory), watch=progress_bytes)
    if json:
        print_json(graph_figures(graph))
    else:
        print_graph(graph)
        replaced = ", in place of the graph that was there" if there_before else ""
        note(f"\nSaved in {out}{replaced}. Next:  q2p answer {out} QUERY   or   q2p sample {out} --out QUERIES")


@graph_app.command("info")
def graph_info(
    graph: GraphName,
    relations: Annotated[int, typer.Option(min=0, help="How many relations to list.")] = 20,
    json: Json = False,
) -> None:
    """The figures of a graph."""
    from query2particles.graph.figures import graph_figures
    from query2particles.graph.folders import open_graph
    from query2particles.show import print_graph, print_json

    opened = open_graph(graph)
    if json:
        print_json(graph_figures(opened))
    else:
        print_graph(opened, relations)


def columns_named(text: str | None) -> tuple[int | str, int | str, int | str] | None:
    if text is None:
        return None
    parts = [int(part) if part.strip().isdecimal() else part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise UsageError(f"--columns takes three, for head, relation and tail, e.g. `2,1,3`; found {text!r}")
    return parts[0], parts[1], parts[2]


def size_named(text: str) -> int:
    """A number of bytes: `4GiB`, `500 MB`, `1000000`."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([kKMGT]i?)B?|B)?", text.strip())
    if parts is None:
        raise UsageError(f"{clipped(text)!r} is no amount of memory; say it like 4GiB or 500MB")
    number, unit = parts.groups()
    return int(float(number) * (_UNITS[unit.replace("K", "k")] if unit else 1))


def _fractions(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        valid, test = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--split takes two fractions, for valid and test, e.g. `0.1,0.1`; found {text!r}") from None
    return valid, test
