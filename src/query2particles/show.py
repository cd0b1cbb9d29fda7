"""What people see: tables, progress bars, messages. JSON goes to stdout alone; bars and notes go to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query2particles.files import new_file

if TYPE_CHECKING:
    from rich.console import Console

    from query2particles.answer import Answered
    from query2particles.bench import Bench
    from query2particles.graph.graph import Graph

__all__ = [
    "describe_graph",
    "note",
    "print_answered",
    "print_bench",
    "print_graph",
    "print_json",
    "print_table",
    "progress_bar",
    "progress_bytes",
    "save_json",
]


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)  # nobody wants wrapped tables in a file
    return console


def print_json(document: Any) -> None:
    json.dump(document, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")


def save_json(path: Path, document: Any) -> None:
    with new_file(path) as partial:
        partial.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")


def note(message: str) -> None:
    """A line for the person, not for the pipe."""
    _console(stderr=True).print(message, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()
) -> None:
    """A table; `right` are the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    if title:
        console.print(title, style="bold", soft_wrap=True)
    table = Table(header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else Text(str(cell)) for cell in row))
    console.print(table)


@contextlib.contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on stderr that moves on by n when called with n; nothing where stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def progress_bytes(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, called with the bytes done and the bytes in all."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = _console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def describe_graph(graph: Graph) -> dict[str, Any]:
    """The figures of a graph."""
    import numpy as np

    edges = graph.at("test")
    by_relation = edges.edges_by_relation[::2]
    degrees = np.zeros(edges.entities, dtype=np.int64)
    np.add.at(degrees, edges.keys // edges.relations, edges.row_lengths[:-1])
    busiest = np.argsort(-degrees, kind="stable")[:5]
    return {
        "name": graph.name,
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "facts": graph.facts(),
        "facts_total": edges.facts,
        "facts_by_relation": {
            graph.relations.name(relation): int(by_relation[relation])
            for relation in np.argsort(-by_relation, kind="stable").tolist()
        },
        "median_degree": float(np.median(degrees)) if len(degrees) else 0.0,
        "busiest_entities": {graph.entities.name(entity): int(degrees[entity]) for entity in busiest.tolist()},
        "fingerprint": graph.fingerprint,
        "about": dict(graph.about),
    }


def print_graph(graph: Graph, relations: int = 20) -> None:
    figures = describe_graph(graph)
    facts = figures["facts"]
    about = figures["about"]
    split = " + ".join(f"{count:,} {name}" for name, count in facts.items() if count)
    console = _console()
    console.print(f"{figures['name']}: {about.get('description', 'a knowledge graph')}", soft_wrap=True)
    console.print(
        f"{figures['entities']:,} entities, {figures['relations']:,} relations, "
        f"{figures['facts_total']:,} facts ({split}); "
        f"half of the entities have {figures['median_degree']:g} facts or fewer",
        soft_wrap=True,
    )
    counts = figures["facts_by_relation"]
    rows = [
        (name, graph.relations.label(index), count)
        for name, count in list(counts.items())[:relations]
        if (index := graph.relations.find(name)) is not None
    ]
    more = len(counts) - len(rows)
    print_table(
        "Relations" + (f" (the {len(rows)} largest of {len(counts):,})" if more else ""),
        ("name", "label", "facts"),
        rows,
        right=(2,),
    )
    busiest = ", ".join(f"{name} ({count:,})" for name, count in figures["busiest_entities"].items())
    console.print(f"Most facts: {busiest}", soft_wrap=True)
    for key in ("attribution", "duplicates", "literals_dropped"):
        if about.get(key):
            console.print(f"{key.replace('_', ' ').capitalize()}: {about[key]}", soft_wrap=True)


def print_answered(answered: Answered) -> None:
    shown = len(answered.answers)
    more = f", the first {shown} by name" if shown < answered.total else ""
    title = f"{answered.canonical}\n{answered.total:,} answer{'s' * (answered.total != 1)} from stored facts{more}"
    if not answered.total:
        _console().print(title, soft_wrap=True)
    else:
        plain = all(answer.name == answer.label for answer in answered.answers)
        rows = [(answer.label,) if plain else (answer.label, answer.name) for answer in answered.answers]
        print_table(title, ("answer",) if plain else ("answer", "name"), rows)
    if answered.warning:
        note(f"warning: {answered.warning}")


def print_bench(result: Bench) -> None:
    console = _console()
    console.print(f"bench {result.bench}: {result.about}", soft_wrap=True)
    console.print(result.machine, soft_wrap=True)
    print_table("", ("figure", "value"), [(name, f"{value:,}") for name, value in result.figures.items()], right=(1,))
    if result.ratios:
        rows = [(name, f"{value:.1f} ×") for name, value in result.ratios.items()]
        print_table("Times as fast as plain Python", ("what", "ratio"), rows, right=(1,))
