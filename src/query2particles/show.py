"""What people see: tables, progress bars, messages. JSON goes to stdout alone; bars and notes go to stderr."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from query2particles.errors import printable
from query2particles.query.algebra import GROUP_NAMES
from query2particles.wording import expectation, percentage

if TYPE_CHECKING:
    from rich.console import Console

    from query2particles.answer import Answers
    from query2particles.bench import Bench
    from query2particles.calibration import Calibration
    from query2particles.demo import Guessed
    from query2particles.discover import Discovery
    from query2particles.evaluate import Evaluation
    from query2particles.evidence import Evidence
    from query2particles.graph.graph import Graph
    from query2particles.run import Run
    from query2particles.score import Scored
    from query2particles.train import Progress, Trained
    from query2particles.training.fit import Listener

__all__ = [
    "listed",
    "listener",
    "note",
    "percent",
    "print_answered",
    "print_bench",
    "print_calibration",
    "print_comparison",
    "print_discoveries",
    "print_evidence",
    "print_graph",
    "print_guessed",
    "print_hardness",
    "print_json",
    "print_result",
    "print_scored",
    "print_table",
    "print_times",
    "print_trained",
    "print_verdict",
    "progress_bar",
    "progress_bytes",
    "progress_training",
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


_SECONDS_BETWEEN_LINES = 30
"""Of training, where stderr is no terminal."""


@contextlib.contextmanager
def progress_training(updates: int) -> Iterator[Callable[[Progress], None]]:
    """A bar of training on stderr, called with how far it is; a line now and then where stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = _console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Bar(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=120
    ) as bar:
        task = bar.add_task("preparing", total=updates, figures="")
        first: int | None = None
        began = said = time.monotonic()

        def report(progress: Progress) -> None:
            nonlocal first, began, said
            figures = f"loss {progress.loss:.3f} · {progress.queries_per_second:,.0f} queries/s"
            if progress.mrr is not None:
                figures += f" · validation MRR {progress.mrr:.1f}"
            now = time.monotonic()
            if first is None:  # a resumed run has a head start, which is no speed
                first, began = progress.update, now
                bar.reset(task, total=updates, completed=progress.update, description="training", figures=figures)
            bar.update(task, completed=progress.update, figures=figures)
            if console.is_terminal or (now - said < _SECONDS_BETWEEN_LINES and progress.update < updates):
                return
            said = now
            if first < progress.update < updates:
                left = (updates - progress.update) * (now - began) / (progress.update - first)
                figures += f" · {left:,.0f} s left"
            note(f"update {progress.update:,} of {updates:,} · {figures}")

        yield report


def listener(*, tables: bool = False) -> Listener:
    """What shows a person how a fit goes, by notes and bars; with `tables`, also how each part did in validation."""
    from query2particles.training.fit import Listener

    def trained(run: Run, graph: Graph, found: Trained) -> None:
        if tables:
            print_trained(f"{run.folder}: {run.config.method} on {graph.name}, validation", found)

    return Listener(note, progress_bar, progress_training, trained)


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
            value = about[key]
            say(f"{words}: {f'{value:,}' if isinstance(value, int) else value}")


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


def print_answered(answered: Answers, unfold: str = "--guesses") -> None:
    """A question's answers as a table: exact ones by name, ranked ones with how sure they are.

    `unfold` is what a person says to see guesses that are folded away.
    """
    from query2particles.answer import Ranked

    shown = len(answered.answers)
    ranked = [answer for answer in answered.answers if isinstance(answer, Ranked)]
    more = f", the first {shown} by name" if 0 < shown < answered.total and not ranked else ""
    if answered.expected_more is None:
        title = f"{answered.canonical}\n{_counted(answered.total, 'answer')} from stored facts{more}"
    else:
        expected = expectation(answered.total, answered.expected_more, complete=bool(answered.complete))
        title = f"{answered.canonical}\n{expected}"
    if not answered.answers:
        nothing = answered.folded or (answered.method == "exact" and not answered.total)
        say(title if nothing else f"{title}\nnothing to show: no answer passes the filters")
    elif not ranked:
        plain = all(answer.name == answer.label for answer in answered.answers)
        rows = [(answer.label,) if plain else (answer.label, answer.name) for answer in answered.answers]
        print_table(title, ("answer",) if plain else ("answer", "name"), rows)
    else:
        particles = any(answer.particle is not None for answer in ranked)
        judged = [
            (
                rank,
                _percentage(answer.probability, certain=answer.status == "known"),
                answer.status,
                answer.label if answer.label == answer.name else f"{answer.label} ({answer.name})",
                *(["–" if answer.particle is None else answer.particle + 1] if particles else []),
                f"{answer.score:.2f}",
            )
            for rank, answer in enumerate(ranked, start=1)
        ]
        columns = ("", "probability", "status", "answer", *(["particle"] if particles else []), "score")
        print_table(title, columns, judged, right=(0, 1, *range(4, len(columns))))
    if answered.folded:
        count, likeliest = len(answered.folded), _percentage(answered.folded[0].probability)
        some, of, them = f"{count:,} guesses are", "the likeliest", "them"
        if count == 1:
            some, of, them = "1 guess is", "of", "it"
        say(f"{some} folded away, {of} {likeliest}; {unfold} shows {them}.")
    if answered.search and "recall" in answered.search:
        recall, k = answered.search["recall"], answered.search["recall_at"]
        whose = "The vectors' own answers were" if answered.search.get("guides") else "These were"
        note(
            f"{whose} found by an index, which finds {percent(recall)} % of the best {k}; --search exact looks at all."
        )
    if answered.warning:
        note(f"warning: {answered.warning}")


def percent(share: float) -> str:
    """With one digit behind the point; rounded down, so that no 100 stands for less."""
    return f"{math.floor(1000 * share) / 10:.1f}"


def _percentage(probability: float | None, *, certain: bool = False) -> str:
    return "–" if probability is None else percentage(probability, certain=certain)


def print_evidence(evidence: Evidence) -> None:
    """Why an answer is one, as a tree of facts."""
    say(str(evidence))


def print_calibration(title: str, calibration: Calibration) -> None:
    """How far what guesses claim is from what came true: of the top guess of each question, and of all guesses."""
    rows = [
        (
            name,
            one.questions,
            f"{100 * one.top_ece:.1f}",
            f"{100 * one.ece:.2f}",
            one.likely,
            f"{100 * one.likely_claimed:.0f}" if one.likely else "–",
            f"{100 * one.likely_true:.0f}" if one.likely else "–",
        )
        for name, one in calibration.figures.items()
    ]
    of_likely = ("guesses of 50 % or more", "they claim, %", "came true, %")
    columns = ("questions with", "number", "error of top guesses, %", "of all guesses, %", *of_likely)
    print_table(title, columns, rows, right=range(1, len(columns)))


def print_discoveries(what: str, found: Sequence[Discovery]) -> None:
    rows = [
        (
            rank,
            _percentage(one.probability),
            one.head.label,
            one.relation.label,
            one.tail.label,
        )
        for rank, one in enumerate(found, start=1)
    ]
    title = f"Missing facts of {what}, the likeliest first"
    print_table(title, ("", "probability", "head", "relation", "tail"), rows, right=(0, 1))


def print_scored(shown: Sequence[Scored], count: int) -> None:
    """Facts and how likely they are true, in the order in which they came; the first of `count`."""
    rows = [
        (percentage(one.probability, certain=one.stored), "stored" if one.stored else "predicted", *one.fact)
        for one in shown
    ]
    if rows:
        print_table("", ("probability", "status", "head", "relation", "tail"), rows, right=(0,))
    if len(shown) < count:
        note(f"These are the first {len(shown):,} of {count:,}; --out FILE.tsv writes them all.")


def print_bench(result: Bench) -> None:
    say(f"bench {result.bench}: {result.about}\n{result.machine}")
    print_table("", ("figure", "value"), [(name, f"{value:,}") for name, value in result.figures.items()], right=(1,))
    if result.ratios:
        rows = [(name, f"{value:.1f} ×" if value >= 2 else f"{value:.3f} ×") for name, value in result.ratios.items()]
        print_table(result.compares.capitalize(), ("what", "ratio"), rows, right=(1,))


def print_times(result: Bench) -> None:
    """What every method takes for a query of each shape, and how two of them compare."""
    from query2particles.report import time_tables

    say(f"bench {result.bench}: {result.about}\n{result.machine}")
    for title, columns, rows in time_tables(result.as_json()):
        print_table(title, columns, rows, right=range(1, len(columns)))


def print_trained(title: str, trained: Trained) -> None:
    best = trained.best or {}
    figures = [f"{best[group]:.2f}" if group in best else "–" for group in GROUP_NAMES]
    print_table(
        title,
        ("updates", "seconds", "best at", *(f"MRR {name}" for name in GROUP_NAMES.values())),
        [(trained.update, f"{trained.seconds:,.0f}", trained.best_update, *figures)],
        right=range(6),
    )


def print_result(result: Mapping[str, Any]) -> None:
    """The figures of a result file: by shape, then the averages."""
    measures = ("mrr", "hits@1", "hits@3", "hits@10")

    def cells(figures: Mapping[str, Any]) -> list[str]:
        return [f"{figures[key]:.2f}" if key in figures else "" for key in measures]

    rows: list[tuple[object, ...]] = [
        (shape, figures["queries"], *cells(figures), *cells(figures.get("divr", {}))[:1])
        for shape, figures in result["shapes"].items()
    ]
    rows += [
        (f"{name} (mean)", "", *cells(result["averages"][group]), "")
        for group, name in GROUP_NAMES.items()
        if result["averages"][group]
    ]
    print_table(
        f"{result['method']} on {result['queries']} of {result['graph']}",
        ("shape", "queries", "MRR", "Hits@1", "Hits@3", "Hits@10", "MRR of DIVR"),
        rows,
        right=range(1, 7),
    )


def print_hardness(result: Mapping[str, Any]) -> None:
    """The same by how many edges of an answer's best proof are missing from the training graph."""
    levels = sorted({int(hard) for figures in result["shapes"].values() for hard in figures.get("hardness", ())})

    def cells(by_hardness: Mapping[str, Any]) -> list[str]:
        answers = sum(own["answers"] for own in by_hardness.values())
        found = [by_hardness.get(str(hard)) for hard in levels]
        shares = [f"{100 * own['answers'] / answers:.1f}" if own else "" for own in found]
        return [*shares, *(f"{own['mrr']:.2f}" if own else "" for own in found)]

    rows: list[tuple[object, ...]] = [
        (shape, *cells(figures.get("hardness", {}))) for shape, figures in result["shapes"].items()
    ]
    for group, name in GROUP_NAMES.items():
        means = result["averages"][group].get("hardness", {})
        figures = [f"{means[str(hard)]:.2f}" if str(hard) in means else "" for hard in levels]
        rows += [(f"{name} (mean)", *[""] * len(levels), *figures)] if means else []
    print_table(
        "Hard answers by how many edges of their best proof are missing from the training graph",
        ("shape", *(f"% with {hard}" for hard in levels), *(f"MRR with {hard}" for hard in levels)),
        rows,
        right=range(1, 2 * len(levels) + 1),
    )


def print_verdict(result: Mapping[str, Any]) -> None:
    """The MRR of a model beside that of the baselines, and what follows from it."""
    groups = {group: name for group, name in GROUP_NAMES.items() if result["averages"][group]}
    if groups:
        means = {result["method"]: result["averages"], **result["baselines"]}
        rows = [(name, *(f"{own[group]['mrr']:.2f}" for group in groups)) for name, own in means.items()]
        title = "MRR on the same queries, beside baselines that learn nothing"
        print_table(title, ("method", *groups.values()), rows, right=range(1, len(groups) + 1))
    say(result["verdict"]["sentence"])


def print_comparison(title: str, found: Mapping[str, Evaluation]) -> None:
    """The MRR of several methods on the same queries, in percent: by shape, then the averages."""
    first, *_ = found.values()
    rows: list[tuple[object, ...]] = [
        (shape, *(f"{100 * one.shapes[shape].means['mrr']:.2f}" for one in found.values()))
        for shape in first.averaged("all")
    ]
    rows += [
        (f"{name} (mean)", *(f"{100 * one.average(group)['mrr']:.2f}" for one in found.values()))
        for group, name in GROUP_NAMES.items()
    ]
    print_table(title, ("shape", *found), rows, right=range(1, len(found) + 1))


def print_guessed(guessed: Guessed) -> None:
    """A question of the demo: what is known, and what is guessed, best first."""
    taken_back = f"take back {guessed.taken_back:,} of them" if guessed.taken_back else ""
    rows = [("known", listed(guessed.known), taken_back)]
    rows += [
        (f"guess {number}", guess.label, "confirm it" if confirmed else "")
        for number, (guess, confirmed) in enumerate(guessed.guesses, start=1)
    ]
    missing = f"{_counted(guessed.missing, 'more answer')} {'needs' if guessed.missing == 1 else 'need'} held-out facts"
    title = f"{guessed.words}\nThe training facts know {guessed.known.total:,}; {missing}"
    print_table(title, ("", "answer", "held-out facts"), rows)


def listed(answered: Answers) -> str:
    """The first answers in one line, and how many more there are."""
    if not answered.answers:
        return "none"
    more = answered.total - len(answered.answers)
    return ", ".join(answer.label for answer in answered.answers) + (f" and {more:,} more" if more else "")
