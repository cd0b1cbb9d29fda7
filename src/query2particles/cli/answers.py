"""`q2p demo` and `q2p answer`: questions and their answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles.cli.root import GraphName, Json, Seed, SplitName, Stopped, app, split_of
from query2particles.errors import QueryError, SourceError, UsageError

if TYPE_CHECKING:
    from query2particles.demo import Drawn, Guessed
    from query2particles.evaluate import Evaluation
    from query2particles.graph.graph import Graph
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
    count: Annotated[int, typer.Option(min=1, help="Test queries to draw of each shape.")] = 300,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The run folder to make; an earlier demo in it is replaced.")
    ] = Path("runs/demo"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the training.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The main job, end to end, on the embedded graph: train, compare, answer, guess. Takes about two minutes."""
    from dataclasses import asdict

    from query2particles import demo
    from query2particles.graph.figures import graph_figures
    from query2particles.graph.folders import ATLAS, open_graph
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note, print_json, progress_bar, progress_training

    graph = open_graph(ATLAS)
    run = demo.new_run(out, graph, [*(settings or ()), f"seed={seed}"])
    with progress_bar("drawing queries", count * len(SHAPES)) as progress:
        queries = demo.draw_all(graph, count=count, seed=seed, progress=progress)
    drawn = list(demo.describe(graph, *queries))
    if not json:
        _print_start(graph, drawn)
    with progress_training(run.config.training.updates) as show:
        trained = demo.train_and_plot(run, graph, on_progress=show)
    if trained.signal is not None:
        note(f"Stopped after update {trained.update:,}. Go on with:  q2p train --resume {out}")
        raise Stopped(trained.signal)
    methods, unions = {**demo.baselines(graph), "Query2Particles": run.model(graph)}, run.config.training.unions
    with progress_bar("ranking", sum(row.queries for row in drawn) * len(methods)) as progress:
        compared = demo.compare(methods, *queries, unions=unions, progress=progress)
    guessed = list(demo.guess_all(graph, methods["Query2Particles"], k=5, unions=unions))
    if not json:
        _print_end(compared, guessed)
        typer.echo(f"\nTrained in {trained.seconds:,.0f} s; the run is in {out}, its curve in {out / demo.PLOT}")
        typer.echo("Ask for yourself:  q2p answer atlas 'Canada.^citizen_of & \"Turing Award\".^award_received'")
        return
    print_json(
        {
            "graph": graph_figures(graph),
            "samples": list(map(asdict, drawn)),
            "run": str(out),
            "plot": str(out / demo.PLOT),
            "train_seconds": round(trained.seconds, 2),
            "mrr": {name: found.percentages(2) for name, found in compared.items()},
            "questions": [one.as_json() for one in guessed],
        }
    )


def _print_start(graph: Graph, drawn: Sequence[Drawn]) -> None:
    """The graph, the questions with what is known, and the queries to come."""
    from query2particles.demo import ask_all
    from query2particles.show import listed, print_graph, print_table, say

    print_graph(graph, relations=5)
    for words, text, found in ask_all(graph, k=3):
        say(f"\n{words}\n{text}\nThe training facts answer: {listed(found)}")
    print_table(
        "\nFresh test queries: easy answers follow from known facts, hard ones need a held-out one",
        ("shape", "queries", "easy", "hard", "one of them"),
        [(row.shape, row.queries, row.easy, row.hard, row.example) for row in drawn],
        right=(1, 2, 3),
    )


def _print_end(compared: Mapping[str, Evaluation], guessed: Sequence[Guessed]) -> None:
    """How well the hard answers are found, and the questions with guesses."""
    from query2particles.show import print_comparison, print_guessed

    print_comparison("\nMean reciprocal rank of the hard answers, in percent", compared)
    for one in guessed:
        typer.echo()
        print_guessed(one)


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
    from query2particles.show import print_answered, print_json

    del method  # there is one so far; the option is here so that scripts can name it
    if (query is None) == (file is None):
        raise UsageError("name either a QUERY or a --file of them")
    opened = _opened(graph)
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


def _opened(source: str) -> Graph:
    """The graph to ask; a run folder, which holds none, is told from a folder of something else."""
    from query2particles.graph.folders import open_graph

    try:
        return open_graph(source)
    except UsageError:
        from query2particles.run import Run, is_run_folder  # heavy, so not before it is needed

        if not is_run_folder(Path(source)):
            raise
        raise UsageError(
            f"{source} is a run: its model cannot be asked by this command yet. Ask the graph that it was trained on:  "
            f"q2p answer {Run.open(Path(source)).graph_folder} QUERY"
        ) from None


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
