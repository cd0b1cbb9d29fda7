"""`q2p demo` and `q2p answer`: questions and their answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from query2particles.cli.indexing import ClusterSize, DegradedName, SearchBy, SearchName, WhenDegraded, searching
from query2particles.cli.root import Json, Seed, SplitName, Stopped, app, split_of
from query2particles.errors import QueryError, SourceError, UsageError

if TYPE_CHECKING:
    from query2particles.demo import Drawn, Guessed
    from query2particles.evaluate import Evaluation
    from query2particles.graph.graph import Graph

__all__ = ["answer", "demo"]


class SyntaxName(StrEnum):
    path = "path"
    logic = "logic"
    sparql = "sparql"
    json = "json"


class MethodName(StrEnum):
    exact = "exact"
    neural = "neural"
    both = "both"
    best = "best"
    fast = "fast"


class OnlyName(StrEnum):
    known = "known"
    predicted = "predicted"


@app.command()
def demo(
    count: Annotated[int, typer.Option(min=1, help="Test queries to draw of each shape.")] = 100,
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
    from query2particles.cli.training import listener, stoppable
    from query2particles.evaluate import compare
    from query2particles.graph.figures import graph_figures
    from query2particles.graph.folders import ATLAS, open_graph
    from query2particles.methods.baselines import baselines
    from query2particles.query.algebra import SHAPES
    from query2particles.show import note, print_json, progress_bar
    from query2particles.training.fit import calibrate_where_possible, train_watched

    graph = open_graph(ATLAS)
    parts = demo.new_parts(out, graph, [*(settings or ()), f"seed={seed}"])
    with progress_bar("drawing queries", count * len(SHAPES)) as progress:
        queries = demo.draw_all(graph, count=count, seed=seed, progress=progress)
    drawn = list(demo.describe(graph, *queries))
    if not json:
        _print_start(graph, drawn)
    for part in parts.values():
        trained = train_watched(part, graph, "cpu", listener())
        if trained.signal is not None:
            note(f"Stopped after update {trained.update:,} of {part.folder}. The same command begins anew.")
            raise Stopped(trained.signal)
    with (
        stoppable("the parts were weighed", "The same command begins anew."),
        progress_bar("weighing the parts", None) as progress,
    ):
        run = demo.join_and_plot(out, parts, graph, progress=progress)
    calibrate_where_possible(run, graph, "cpu", listener())
    methods, unions = {**baselines(graph.at("train")), demo.NAME: run.model(graph)}, run.config.training.unions
    with progress_bar("ranking", sum(row.queries for row in drawn) * len(methods)) as progress:
        compared = compare(methods, *queries, unions=unions, progress=progress)
    guessed = list(demo.guess_all(graph, methods[demo.NAME], k=5, unions=unions))
    seconds = run.cost()[0]
    if not json:
        _print_end(compared, guessed)
        typer.echo(f"\nTrained in {seconds:,.0f} s; the run is in {out}, its curve in {out / demo.PLOT}")
        typer.echo(f"Ask for yourself:  q2p answer {out} 'French.^speaks' --only predicted --explain")
        typer.echo("In the browser:    make serve")
        return
    print_json(
        {
            "graph": graph_figures(graph),
            "samples": list(map(asdict, drawn)),
            "run": str(out),
            "plot": str(out / demo.PLOT),
            "train_seconds": round(seconds, 2),
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
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|GRAPH", help="A run folder; or a graph folder, a benchmark folder, or `atlas`."),
    ],
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY…", help="Questions in any of the syntaxes.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file of questions, one a line, `#` for remarks; `-` for stdin."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many answers to name.")] = 10,
    method: Annotated[
        MethodName | None,
        typer.Option(
            help="`exact`: what follows from stored facts; `neural`: the model's ranking alone; `both`: its ranking "
            "beside what follows. By default `both`, of a graph `exact`. `best` and `fast`: `both`, by all parts of a "
            "joined run, or by its vectors alone.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[OnlyName | None, typer.Option(help="Leave out the others.")] = None,
    min_probability: Annotated[
        float, typer.Option("--min-probability", min=0, max=1, help="Leave out what is less likely an answer.")
    ] = 0.0,
    guesses: Annotated[
        bool, typer.Option("--guesses", help="Show guesses where the known answers look complete, too.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the facts behind each answer.")] = False,
    assignments: Annotated[
        bool,
        typer.Option(
            "--assignments",
            help="Show what the variables are to the model, if it searches for that (cqd-beam, cqd-co, tree).",
        ),
    ] = False,
    syntax: Annotated[SyntaxName | None, typer.Option(help="By default, guessed from the text.")] = None,
    split: Annotated[
        SplitName, typer.Option(help="The facts to use: those of train, train + valid, or all.")
    ] = SplitName.test,
    graph: Annotated[str | None, typer.Option(help="The run's graph, where it is no longer where it was.")] = None,
    search: SearchBy = SearchName.auto,
    cluster: ClusterSize = 0,
    degraded: WhenDegraded = DegradedName.refuse,
    json: Json = False,
) -> None:
    """Answer questions, or a file of them: from stored facts, and with a trained run beyond them."""
    from query2particles.answer import Question, Reasoner
    from query2particles.errors import Query2ParticlesError
    from query2particles.show import note, print_answered, print_evidence, print_json, say

    if bool(queries) == (file is not None):
        raise UsageError("name either a QUERY or a --file of them")
    reasoner = Reasoner.open(source, graph=graph, split=split_of(split), searching=searching(search, cluster, degraded))
    asked = list(enumerate(queries, start=1)) if queries else list(_questions(file))
    question = Question(
        "",
        syntax.value if syntax else None,
        k,
        method.value if method else "both",
        only.value if only else None,
        min_probability,
        "always" if guesses else "auto",
    )
    found = reasoner.answer_many([replace(question, text=text) for _, text in asked])
    results: list[dict[str, Any]] = []
    failed = 0
    for (number, text), one in zip(asked, found, strict=True):
        place = {"line": number} if file is not None else {}
        if isinstance(one, Query2ParticlesError):
            if file is None or not isinstance(one, QueryError):
                raise one
            failed += 1
            results.append({**place, "question": text, "error": str(one)})
            if not json:
                note(f"line {number}: {one}\n")
            continue
        evidence = [reasoner.explain(one.query, answer.entity_id) for answer in one.answers] if explain else []
        assigned = [reasoner.assignment(one.query, answer.entity_id) for answer in one.answers] if assignments else []
        proofs = {"evidence": [each.as_json() for each in evidence]} if explain else {}
        proofs |= {"assignments": [each.as_json() for each in assigned]} if assignments else {}
        results.append({**place, **one.as_json(), **proofs})
        if not json:
            print_answered(one)
            for each in evidence:
                typer.echo()
                print_evidence(each)
            for each_assigned in assigned:
                typer.echo()
                for line in each_assigned.lines():
                    say(line)
            if assigned and (left_out := getattr(reasoner.model, "left_out", "")):
                note(f"note: {left_out}")
            if len(asked) > 1 or file is not None:
                typer.echo()
    if json:
        print_json(results[0] if file is None and len(results) == 1 else results)
    if failed:
        typer.echo(f"{failed} of {len(results)} questions could not be understood", err=True)
        raise typer.Exit(1)


def _questions(file: Path | None) -> Iterator[tuple[int, str]]:
    """The questions of a file with their line numbers; blank lines and remarks are passed over."""
    assert file is not None, "without a file there are questions"
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist") from None
    except UnicodeDecodeError as error:
        raise SourceError(file, None, f"is not UTF-8: {error.reason}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()
