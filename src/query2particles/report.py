"""Pages made from committed results: no figure is typed by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from query2particles.errors import UsageError
from query2particles.experiments.published import (
    FIGURE_OF,
    GROUPS,
    METHOD_NAMES,
    columns_of,
    figure_printed,
    figures_of,
    leaked_into,
    printed,
    published,
    set_of,
)
from query2particles.experiments.recipes import experiment, experiments
from query2particles.files import new_file
from query2particles.query.algebra import GROUP_NAMES

__all__ = ["method_times", "results_page", "speed_page", "time_tables", "trials_page", "with_results", "write_report"]

_HEADINGS = {
    "exact": "Exact answers",
    "sample": "Drawing and labelling queries",
    "import": "Import",
    "import-large": "Import beyond memory",
    "train-cuda": "Training on a GPU",
    "train-methods-cuda": "Training of all methods on a GPU",
    "train-methods-cpu": "Training of all methods on a CPU",
    "train-cpu": "Training on a CPU",
    "softmax-cuda": "Some entities against all, on a GPU",
    "softmax-cpu": "Some entities against all, on a CPU",
    "evaluate-cuda": "Evaluation on a GPU",
    "evaluate-cpu": "Evaluation on a CPU",
    "answer-cuda": "Answers on a GPU",
    "answer-cpu": "Answers on a CPU",
    "answer-nell-cuda": "Answers on a GPU, on NELL",
    "answer-run-nell-cuda": "Answers of a joined run on a GPU",
    "answer-run-nell-cpu": "Answers of a joined run on a CPU",
    "answer-methods-cuda": "Answers of all methods on a GPU",
    "answer-methods-cpu": "Answers of all methods on a CPU",
    "search-cuda": "The ways of a joined run on a GPU",
    "search-cpu": "The ways of a joined run on a CPU",
    "index": "Answers from a large table on a CPU",
    "growth-cuda": "Growth on a GPU",
    "growth-cpu": "Growth on a CPU",
    "serve": "The server under load",
    "soak": "The server in the long run",
}
_WORDS = {
    "exact": "The engine against plain Python sets, both on all cores, both writing every answer to a file, the best "
    "of three runs each (`q2p bench exact`).",
    "sample": "The sampler against one that draws and labels query by query with plain Python sets, both on all cores "
    "(`q2p bench sample`).",
    "import-large": "More synthetic triples than fit into the memory that is allowed, in steps on the disk "
    "(`q2p bench import --large`).",
    "softmax": "The same model against all entities and against some, whole and by rows, after as many seconds "
    "(`q2p bench softmax`).",
    "import": "Synthetic triples from a TSV file to a graph folder, in a process of its own, and opening the result "
    "(`q2p bench import`).",
    "train": "Updates of training, against the matrix products of their own scores (forward, and both backward) in the "
    "same run (`q2p bench train`).",
    "train-methods": "Updates of every method with its default preset, loss and training mix "
    "(`q2p bench train --all-methods`).",
    "evaluate": "A query set, against the same model one query at a time: by the package's own evaluator, and by one "
    "that sorts all entities for each query (`q2p bench evaluate`).",
    "answer": "From the ids of a query to its ten best answers, one query at a time and many together "
    "(`q2p bench answer`).",
    "answer-nell": "The same for NELL (`q2p bench answer --graph NELL`).",
    "answer-run-nell": "The same for a trained run, by all of its parts (`q2p bench answer --run RUN`).",
    "answer-methods": "From the ids of a query to its ten best answers, by method and shape; empty where a method "
    "lacks an operator (`q2p bench answer --all-methods`).",
    "search": "A joined run by all parts (`best`), by its vectors (`fast`), by full search (`tree`), and by search "
    "that the vectors guide, by the number of proposals m: what it finds of validation queries, and how fast "
    "(`q2p bench search --run RUN`).",
    "index": "The ten best of a made-up table that lies on disk, in clusters, for two particles: by an index "
    "with exact scores of what it finds, and by looking at all entities (`q2p bench index`).",
    "growth": "Made-up graphs of more and more entities, with as many facts an entity as Freebase has: training, "
    "sampling, memory, import and answers (`q2p bench growth`).",
    "serve": "A server of a model of FB15k-237's size and 32 connections that ask in turn, on the same cores, with "
    "micro-batching and without it in one run (`q2p bench serve`).",
    "soak": "The same with good, bad and huge requests side by side: what is answered, what is lost, what memory does "
    "(`q2p bench soak`).",
}
_SETS = {
    "betae": "MRR in percent on BetaE's queries. Published rows are for the original sets; where ours are "
    "`betae-resampled`, they measure the same thing on other queries, and a few tenths say nothing.",
    "q2b": "Hit@3 in percent on Query2Box's official test sets, trained on the training graph alone. Each result has "
    "two rows: the mean over a query's hard answers, as CQD counts, and its best hard answer, as EmQL does. The Q2P "
    "row of the paper cannot be taken for a clean result ([evaluation](evaluation.md)).",
}
_FIGURES_IN_WORDS = {"betae": "MRR", "q2b": "Hit@3"}
_README = ("<!-- The results: made by `q2p report`, not by hand. -->", "<!-- The end of the results. -->")

_KNOWING = {f"{method}-known": f"{METHOD_NAMES[method]}, validation facts stored" for method in ("tree", "best")}
"""Variants that have a row of their own among the averages."""

_MORE_FIGURES = {"q2b": ("best_hits@3",)}
"""Figures that have a row of their own below a result's first."""


def write_report(results: Path, docs: Path) -> list[Path]:
    """Write every generated page; return their paths."""
    pages: dict[str, Callable[[Path], str]] = {"speed.md": speed_page, "results.md": results_page}
    texts = {docs / name: page(results) for name, page in pages.items()}
    trials = results.parent / "trials"
    if trials.is_dir():
        texts[docs / "trials.md"] = trials_page(trials)
    readme = docs.parent / "README.md"
    if readme.is_file() and _README[0] in (text := readme.read_text("utf-8")):
        texts[readme] = with_results(text, results)
    for path, text in texts.items():
        with new_file(path) as partial:
            partial.write_text(text, "utf-8")
    return list(texts)


def speed_page(results: Path) -> str:
    """The page of the benches whose results are in the folder."""
    benches = {name: path for name in _HEADINGS if (path := results / f"bench-{name}.json").is_file()}
    if not benches:
        raise UsageError(f"{results} has no results of `q2p bench`: no file bench-NAME.json")
    lines = [
        "# Speed",
        "",
        "Machines differ and are noisy, so what counts are ratios measured side by side in one run. This page is made",
        "by `q2p report` from `benchmarks/results/bench-*.json`; `make bench` measures again.",
    ]
    for name, path in benches.items():
        try:
            result = json.loads(path.read_text("utf-8"))
            table = _bench_table(result)
            measured = f"{result['about']}; {result['machine']}; version {result['version']}, seed {result['seed']}."
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no result of `q2p bench` ({error!r}); measure again") from error
        words = _WORDS[name.removesuffix("-cpu").removesuffix("-cuda")]
        lines += ["", f"## {_HEADINGS[name]}", "", words, "", measured, "", *table]
        if path.with_suffix(".png").is_file():
            lines += ["", f"![{_HEADINGS[name]}](../benchmarks/results/{path.stem}.png)"]
    return "\n".join(lines) + "\n"


def method_times(figures: Mapping[str, float]) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds by batch size, method and shape, from figures such as `q2p 2i batch 128 ms`."""
    times: dict[int, dict[str, dict[str, float]]] = {}
    for name, value in figures.items():
        if found := re.fullmatch(r"(\S+) (\S+) batch (\d+) ms", name):
            method, shape, size = found.groups()
            times.setdefault(int(size), {}).setdefault(method, {})[shape] = value
    return times


def time_tables(result: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """The result of `q2p bench answer --all-methods` as tables, of times and of ratios: title, columns, rows."""
    rows = {f"Milliseconds a query, batch {size}:": times for size, times in method_times(result["figures"]).items()}
    ratios = rows.setdefault(f"{result['compares'].capitalize()}:", {})
    for name, value in result["ratios"].items():
        shape, _, size = name.partition(" ")
        ratios.setdefault(size, {})[shape] = value
    return [(title, *_grid(values)) for title, values in rows.items()]


def _grid(rows: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns by name, and cells of three digits; nothing where there is no value."""
    columns = tuple(dict.fromkeys(column for values in rows.values() for column in values))

    def cell(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    cells = [
        (name, *(cell(values[column]) if column in values else "" for column in columns))
        for name, values in rows.items()
    ]
    return ("", *columns), cells


def _bench_table(result: Mapping[str, Any]) -> list[str]:
    figures, ratios = result["figures"], result["ratios"]
    if ratios and all(f"{name} engine queries/s" in figures for name in ratios):
        rows = [
            (name, figures[f"{name} engine queries/s"], figures[f"{name} plain queries/s"], f"{ratio:.1f}")
            for name, ratio in ratios.items()
        ]
        return _table(("shape", "engine, queries/s", "plain, queries/s", "times as fast"), rows)
    if method_times(figures):
        tables = [[title, "", *_table(columns, rows), ""] for title, columns, rows in time_tables(result)]
        return [line for table in tables for line in table][:-1]
    table = _table(("figure", "value"), list(figures.items()))
    if ratios:
        table += ["", *_table((result["compares"], "ratio"), list(ratios.items()))]
    return table


def results_page(results: Path) -> str:
    """The page of the results of `q2p reproduce`, beside what was published; what is missing is named."""
    found = {name: document for name in experiments() if (document := _read(results / f"{name}.json")) is not None}
    lines = [
        "# Results",
        "",
        "Every row of ours is made by `q2p reproduce NAME`, which trains, selects on validation queries, evaluates all",
        "test queries and writes `benchmarks/results/NAME.json`; this page is made from those files by `q2p report`.",
        "[Evaluation](evaluation.md) says what the figures mean and what compares with what. Cells are empty where",
        "nothing was published.",
    ]
    for (graph, kind), queries in _sets().items():
        members = [name for name, one in experiments().items() if (one.recipe.graph, one.queries) == (graph, queries)]
        lines += ["", f"## {graph}, {queries}", "", _SETS[kind], ""]
        lines += _results_table(graph, kind, [found[name] for name in members if name in found])
        lines += _hardness_table([found[name] for name in members if name in found])
        if missing := [name for name in members if name not in found]:
            lines += ["", f"Not measured yet: {', '.join(map(_command, missing))}."]
    if found:
        lines += ["", "## Where the numbers come from", ""]
        lines += [_origin(name, document) for name, document in found.items()]
    return "\n".join(lines) + "\n"


def with_results(readme: str, results: Path) -> str:
    """The README with its table of averages as they are now, between two marks."""
    before, _, rest = readme.partition(_README[0])
    _, mark, after = rest.partition(_README[1])
    if not mark:
        raise UsageError(f"the README has no line {_README[1]} after the table of results")
    return "\n".join([before + _README[0], "", *_averages(results), "", _README[1] + after])


def _averages(results: Path) -> list[str]:
    """By method, mostly of its default variant, on every graph and set: here, and in brackets as published."""
    columns = sorted(_sets(), key=lambda column: column[1])  # one set after the other
    rows = []
    for method, name in (METHOD_NAMES | _KNOWING).items():
        cells = []
        for graph, kind in columns:
            document = _read(results / f"{graph.lower()}-{kind}-{method}.json")
            ours = _average(figures_of(document, figure_printed(kind, method))) if document is not None else ""
            paper = printed(method, graph, kind)
            cells.append(" ".join(filter(None, [ours, f"({_average(paper)})" if paper else ""])))
        if any(cells):
            rows.append((name, *cells))
    return _table(("", *(f"{graph}, {_FIGURES_IN_WORDS[kind]}" for graph, kind in columns)), rows)


def _sets() -> dict[tuple[str, str], str]:
    """The folder of the test queries of each graph and kind of set that there are experiments on."""
    return {(one.recipe.graph, set_of({"queries": one.queries})): one.queries for one in experiments().values()}


def _average(values: Mapping[str, float]) -> str:
    """EPFO, and negation where there is such."""
    return " / ".join(f"{values[group]:.1f}" for group in GROUPS if group in values)


def _command(name: str) -> str:
    """What makes a result."""
    return f"`q2p reproduce {name}{' --leaking' if experiment(name).recipe.config.training.leaked else ''}`"


def trials_page(trials: Path) -> str:
    """The page of the trials of settings, one file for each method."""
    lines = ["# Trials", "", "Made by `q2p report` from `benchmarks/trials/`; [what they say](tried.md)."]
    for path in sorted(trials.glob("*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            seeds = ", ".join(map(str, document["seeds"]))
            origin = f"{document['machine']}; commit {document['commit']}; seeds {seeds}."
            rows = [_trial(number, trial) for number, trial in enumerate(document["trials"], start=1)]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no file of trials ({error!r})") from error
        columns = ("", "graph", "changed", "network", "decays", "validation", "test", "2p", "3i", "ip", "2u", "inp")
        lines += ["", f"## {path.stem}", "", document["about"], "", origin, "", *_table(columns, rows)]
    return "\n".join(lines) + "\n"


def _trial(number: int, trial: Mapping[str, Any]) -> tuple[str, ...]:
    """EPFO / negation on both, and some shapes of the test set."""
    test = trial.get("test", {})
    validation = "{epfo:.1f} / {negation:.1f}".format(**trial["validation"])
    figures = "{epfo:.1f} / {negation:.1f}".format(**test) if test else ""
    shapes = (str(test["shapes"][shape]) if test else "" for shape in ("2p", "3i", "ip", "2u", "inp"))
    about = trial["graph"], ", ".join(trial["changes"]) or "–", trial["network"], trial["decays"]
    return str(number), *about, validation, figures, *shapes


def _results_table(graph: str, kind: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ours first, then what was published, with its source by number."""
    rows: list[tuple[str, Mapping[str, float], int]] = []  # with the number of decimals
    for document in documents:
        leaks = ", *trained on these very queries*" if leaked_into(document) else ""
        rows.append((f"`{document['name']}`{leaks}", figures_of(document, FIGURE_OF[kind]), 2))
        rows += [(f"… {figure}", figures_of(document, figure), 2) for figure in _MORE_FIGURES.get(kind, ())]
    sources: dict[str, int] = {}
    for row in published():
        if (row.graph, row.set) == (graph, kind):
            number = sources.setdefault(row.source, len(sources) + 1)
            rows.append((f"{row.method} [{number}]", row.values, 1))
    columns = columns_of({column: 0.0 for _, values, _ in rows for column in values})
    cells = [
        (name, *(f"{values[column]:.{decimals}f}" if column in values else "" for column in columns))
        for name, values, decimals in rows
    ]
    return [*_table(("", *columns), cells), "", *(f"- [{number}] {source}." for source, number in sources.items())]


def _hardness_table(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """MRR by how many edges of an answer's best proof are missing, of the results that have it."""
    rows = []
    for document in documents:
        averages = document["averages"]
        found = {
            f"{GROUP_NAMES[group]}, {count}": float(value)
            for group in GROUPS
            for count, value in averages.get(group, {}).get("hardness", {}).items()
        }
        if found:
            rows.append((f"`{document['name']}`", found))
    if not rows:
        return []
    order = sorted({column for _, found in rows for column in found})
    cells = [(name, *(f"{found[one]:.2f}" if one in found else "" for one in order)) for name, found in rows]
    hardness = "[hardness](evaluation.md#hardness)"
    words = f"MRR in percent by how many edges of an answer's best proof training lacks ({hardness}):"
    return ["", words, "", *_table(("", *order), cells)]


def _origin(name: str, document: Mapping[str, Any]) -> str:
    """The seeds, costs, commit and machine of a result, and its file."""
    memory = f", {document['gpu_memory_gib']:.2f} GiB on the GPU" if document["gpu_memory_gib"] else ""
    commits = " and ".join(map(_short, (document["commit"] or "unknown").split("; ")))
    if evaluating := document.get("evaluation_commit"):
        commits += f", evaluated at {_short(evaluating)}"
    return (
        f"- [`{name}`](../benchmarks/results/{name}.json): seeds {', '.join(map(str, document['seeds']))}; "
        f"{document['train_seconds']:,.0f} s of training a seed{memory}; {document['machine']}; "
        f"commit {commits}"
    )


def _short(commit: str) -> str:
    name, dirty, _ = commit.partition("-dirty")
    return name[:12] + dirty


def _read(path: Path) -> Mapping[str, Any] | None:
    """A result file, if it is there; a UsageError where it is none."""
    if not path.is_file():
        return None
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        figures_of(document, FIGURE_OF[set_of(document)])
        _origin(path.stem, document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no result of `q2p reproduce` ({error!r}); make it again") from error
    return document


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Names to the left, numbers to the right."""
    return [
        f"| {' | '.join(columns)} |",
        f"| --- |{' ---: |' * (len(columns) - 1)}",
        *(f"| {' | '.join(cell if isinstance(cell, str) else f'{cell:,}' for cell in row)} |" for row in rows),
    ]
