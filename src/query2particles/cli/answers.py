"""`q2p demo` and `q2p answer`: questions and their answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import GraphName, Json, Seed, SplitName, app, split_of
from query2particles.errors import QueryError, SourceError, UsageError

if TYPE_CHECKING:
    from query2particles.query.syntax import Syntax

__all__ = ["answer", "demo"]


class SyntaxName(StrEnum):
    path = "path"
    logic = "logic"
    sparql = "sparql"
    json = "json"


class MethodName(StrEnum):
    exact = "exact"


@app.command()
def demo(
    count: Annotated[int, typer.Option(min=1, help="Queries to draw of each shape.")] = 20,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The main job, end to end, on the embedded graph."""
    from dataclasses import asdict

    from query2particles.demo import ask_all, draw_all
    from query2particles.graph.figures import graph_figures
    from query2particles.graph.folders import ATLAS, open_graph
    from query2particles.query.algebra import SHAPES
    from query2particles.show import print_answered, print_graph, print_json, print_table, progress_bar

    graph = open_graph(ATLAS)
    answered = list(ask_all(graph))
    with progress_bar("drawing queries", count * len(SHAPES)) as progress:
        drawn = list(draw_all(graph, count=count, seed=seed, progress=progress))
    if json:
        questions = [{"words": words, **found.as_json()} for words, _, found in answered]
        print_json({"graph": graph_figures(graph), "questions": questions, "samples": list(map(asdict, drawn))})
        return
    print_graph(graph)
    for words, text, found in answered:
        typer.echo(f"\n{words}\n{text}\n")
        print_answered(found)
    typer.echo()
    print_table(
        f"Fresh test queries, seed {seed}: easy answers follow from the known facts, hard ones need a missing fact",
        ("shape", "queries", "easy", "hard", "one of them"),
        [(row.shape, row.queries, row.easy, row.hard, row.example) for row in drawn],
        right=(1, 2, 3),
    )
    typer.echo("\nAsk one yourself:  q2p answer atlas 'Canada.^citizen_of & \"Turing Award\".^award_received'")


@app.command()
def answer(
    graph: GraphName,
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="A question in any of the syntaxes.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file of questions, one a line, `#` for remarks; `-` for stdin."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many answers to name.")] = 10,
    method: Annotated[MethodName, typer.Option(help="`exact`: what follows from stored facts.")] = MethodName.exact,
    syntax: Annotated[SyntaxName | None, typer.Option(help="By default, guessed from the text.")] = None,
    split: Annotated[
        SplitName, typer.Option(help="The facts to use: those of train, train + valid, or all.")
    ] = SplitName.test,
    json: Json = False,
) -> None:
    """Answer a question, or a file of them."""
    from query2particles.answer import ask
    from query2particles.graph.folders import open_graph
    from query2particles.show import print_answered, print_json

    del method  # there is one so far; the option is here so that scripts can name it
    if (query is None) == (file is None):
        raise UsageError("name either a QUERY or a --file of them")
    opened = open_graph(graph)
    written: Syntax | None = syntax.value if syntax else None
    if query is not None:
        found = ask(opened, query, k=k, syntax=written, split=split_of(split))
        print_json(found.as_json()) if json else print_answered(found)
        return
    results, failed = [], 0
    assert file is not None
    for number, line in _questions(file):
        try:
            found = ask(opened, line, k=k, syntax=written, split=split_of(split))
        except QueryError as error:
            failed += 1
            results.append({"line": number, "question": line, "error": str(error)})
            if not json:
                typer.echo(f"line {number}: {error}\n", err=True)
            continue
        results.append({"line": number, **found.as_json()})
        if not json:
            print_answered(found)
            typer.echo()
    if json:
        print_json(results)
    if failed:
        typer.echo(f"{failed} of {len(results)} questions could not be understood", err=True)
        raise typer.Exit(1)


def _questions(file: Path) -> Iterator[tuple[int, str]]:
    """The questions of a file with their line numbers; blank lines and remarks are passed over."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist") from None
    except UnicodeDecodeError as error:
        raise SourceError(file, None, f"is not UTF-8: {error.reason}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()
