"""What people see: tables, progress bars, messages. JSON goes to stdout alone; bars and notes go to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from query2particles.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from query2particles.answer import Answered
    from query2particles.bench import Bench
    from query2particles.graph.graph import Graph

__all__ = [
    "note",
    "print_answered",
    "print_bench",
    "print_graph",
    "print_json",
    "print_table",
    "progress_bar",
    "progress_bytes",
    "say",
]


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)  # nobody wants wrapped tables in a file
    return console


def print_json(document: Any) -> None:
    """One document on stdout, in letters that it can carry, and out at once."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    sys.stdout.write(json.dumps(document, ensure_ascii=not unicode, indent=1) + "\n")
    sys.stdout.flush()


def say(message: str) -> None:
    """A line of the result."""
    _console().print(printable(message, keep="\n"), soft_wrap=True)


def note(message: str) -> None:
    """A line for the person, not for the pipe."""
    _console(stderr=True).print(printable(message, keep="\n"), soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()
) -> None:
    """A table; `right` are the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    if title:
        console.print(printable(title, keep="\n"), style="bold", soft_wrap=True)
    table = Table(header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else Text(printable(str(cell))) for cell in row))
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


def print_graph(graph: Graph, relations: int = 20) -> None:
    from query2particles.graph.figures import graph_figures

    figures = graph_figures(graph)
    about = figures["about"]
    split = " + ".join(f"{count:,} {name}" for name, count in figures["facts"].items() if count)
    say(f"{figures['name']}: {about.get('description', 'a knowledge graph')}")
    say(
        f"{_counted(figures['entities'], 'entity', 'entities')}, {_counted(figures['relations'], 'relation')}, "
        f"{_counted(figures['facts_total'], 'fact')} ({split}); "
        f"half of the entities have at most {figures['median_degree']:g}"
    )
    counts = figures["facts_by_relation"]
    rows = [
        (name, graph.relations.label(index), count)
        for name, count in list(counts.items())[:relations]
        if (index := graph.relations.find(name)) is not None
    ]
    if rows:
        fewer = f" (the largest {len(rows)} of {len(counts):,})" if len(rows) < len(counts) else ""
        print_table("Relations" + fewer, ("name", "label", "facts"), rows, right=(2,))
    busiest = [
        f"{graph.entities.label(index)} ({count:,})"
        for name, count in figures["busiest_entities"].items()
        if (index := graph.entities.find(name)) is not None
    ]
    say(f"Most facts: {', '.join(busiest)}")
    for key, words in _REMARKS.items():
        if about.get(key):
            say(f"{words}: {about[key]}")


_REMARKS = {
    "attribution": "Attribution",
    "duplicates": "Repeated facts, dropped",
    "literals_dropped": "Literals, dropped (--literals keeps them)",
    "unseen_dropped": "Facts about what training never saw, dropped",
    "labels_unknown": "Labels of names that no fact has, passed over",
    "prefix_clashes": "Prefixes that sources declare differently, the first counts",
}
"""What is said about a graph beyond its figures, and in which words."""


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def print_answered(answered: Answered) -> None:
    shown = len(answered.answers)
    more = f", the first {shown} by name" if shown < answered.total else ""
    title = f"{answered.canonical}\n{_counted(answered.total, 'answer')} from stored facts{more}"
    if answered.answers:
        plain = all(answer.name == answer.label for answer in answered.answers)
        rows = [(answer.label,) if plain else (answer.label, answer.name) for answer in answered.answers]
        print_table(title, ("answer",) if plain else ("answer", "name"), rows)
    else:
        say(title)
    if answered.warning:
        note(f"warning: {answered.warning}")


def print_bench(result: Bench) -> None:
    say(f"bench {result.bench}: {result.about}\n{result.machine}")
    print_table("", ("figure", "value"), [(name, f"{value:,}") for name, value in result.figures.items()], right=(1,))
    if result.ratios:
        rows = [(name, f"{value:.1f} ×") for name, value in result.ratios.items()]
        print_table("Times as fast as plain Python", ("what", "ratio"), rows, right=(1,))
