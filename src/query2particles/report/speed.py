"""The page of what `q2p bench` has measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from query2particles.errors import UsageError
from query2particles.report.markdown import table

__all__ = ["method_times", "speed_page", "time_tables"]

_KINDS = {
    "exact": (
        "Exact answers",
        "The engine against plain Python sets, both on all cores, both writing every answer to a file, the "
        "best of three runs each (`q2p bench exact`).",
    ),
    "sample": (
        "Drawing and labelling queries",
        "The sampler against one that draws and labels query by query with plain Python sets, both on all "
        "cores (`q2p bench sample`).",
    ),
    "import": (
        "Import",
        "Synthetic triples from a TSV file to a graph folder, in a process of its own, and opening the result "
        "(`q2p bench import`).",
    ),
    "import-large": (
        "Import beyond memory",
        "More synthetic triples than fit into the memory that is allowed, in steps on the disk (`q2p bench "
        "import --large`).",
    ),
    "train": (
        "Training",
        "Updates of training, against the matrix products of their own scores (forward, and both backward) in "
        "the same run (`q2p bench train`).",
    ),
    "train-methods": (
        "Training of all methods",
        "Updates of every method with its default preset, loss and training mix (`q2p bench train --all-methods`).",
    ),
    "softmax": (
        "Some entities against all",
        "The same model against all entities and against some, whole and by rows, after as many seconds (`q2p "
        "bench softmax`).",
    ),
    "evaluate": (
        "Evaluation",
        "A query set, against the same model one query at a time: by the package's own evaluator, and by one "
        "that sorts all entities for each query (`q2p bench evaluate`).",
    ),
    "answer": (
        "Answers",
        "From the ids of a query to its ten best answers, one query at a time and many together (`q2p bench "
        "answer`, for another graph with `--graph`).",
    ),
    "answer-run": (
        "Answers of a trained run",
        "The same for a trained run; of a joined one, by all of its parts (`q2p bench answer --run RUN`).",
    ),
    "answer-methods": (
        "Answers of all methods",
        "From the ids of a query to its ten best answers, by method and shape; empty where a method lacks an "
        "operator (`q2p bench answer --all-methods`).",
    ),
    "search": (
        "The ways of a joined run",
        "A joined run by all parts (`best`), by its vectors (`fast`), by full search (`tree`), and by search "
        "that the vectors guide, by the number of proposals m: what it finds of validation queries, and how "
        "fast (`q2p bench search --run RUN`). `best` was weighed by validation queries, too, by these very "
        "ones where as many are asked as the run was validated by: how good it is, only test queries tell.",
    ),
    "index": (
        "Answers from a large table on a CPU",
        "The ten best of a made-up table that lies on disk, in clusters, for two particles: by an index with "
        "exact scores of what it finds, and by looking at all entities (`q2p bench index`).",
    ),
    "growth": (
        "Growth",
        "Made-up graphs of more and more entities, with as many facts an entity as Freebase has: training, "
        "sampling, memory, import and answers (`q2p bench growth`).",
    ),
    "serve": (
        "The server under load",
        "A server of a model of FB15k-237's size and 32 connections that ask in turn, on the same cores, with "
        "micro-batching and without it in one run (`q2p bench serve`).",
    ),
    "soak": (
        "The server in the long run",
        "The same with good, bad and huge requests side by side: what is answered, what is lost, what memory "
        "does (`q2p bench soak`).",
    ),
    "trust": (
        "Trust",
        "What a run claims of natural questions, and what test facts say, with training and validation facts stored "
        "(`q2p bench trust --run RUN`). Ratios are against one curve for all relations, fitted to queries that miss an "
        "answer.",
    ),
}
"""What a bench is called on the page, and what it does, by the beginning of its file's name."""
_DEVICES = {"cuda": " on a GPU", "cpu": " on a CPU", "": ""}
_FILE = re.compile(rf"bench-({'|'.join(sorted(_KINDS, key=len, reverse=True))})(?:-(.+?))??(?:-(cuda|cpu))?\.json")


def speed_page(results: Path) -> str:
    """The page of the benches whose results are in the folder."""
    benches = _benches(results)
    if not benches:
        raise UsageError(f"{results} has no results of `q2p bench`: no file bench-NAME.json")
    lines = [
        "# Speed",
        "",
        "Machines differ and are noisy, so what counts are ratios measured side by side in one run. This page is made",
        "by `q2p report` from `benchmarks/results/bench-*.json`; `make bench` measures again.",
    ]
    for path, kind, subject, device in benches:
        try:
            result = json.loads(path.read_text("utf-8"))
            figures = _bench_table(result)
            about = result["about"]
            spelled = re.search(re.escape(subject), about, re.IGNORECASE)
            measured = f"{about}; {result['machine']}; version {result['version']}, seed {result['seed']}."
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no result of `q2p bench` ({error!r}); measure again") from error
        heading, words = _KINDS[kind]
        heading += _DEVICES[device] + (f": {spelled[0] if spelled else subject.replace('-', ' ')}" if subject else "")
        lines += ["", f"## {heading}", "", words, "", measured, "", *figures]
        if path.with_suffix(".png").is_file():
            lines += ["", f"![{heading}](../benchmarks/results/{path.stem}.png)"]
    return "\n".join(lines) + "\n"


def _benches(results: Path) -> list[tuple[Path, str, str, str]]:
    """The files of results: by kind, by what else their names tell (a graph, a size), a GPU's before a CPU's."""
    found = []
    for path in results.glob("bench-*.json"):
        if name := _FILE.fullmatch(path.name):
            kind, subject, device = (part or "" for part in name.groups())
            found.append((path, kind, subject, device))
    kinds, devices = list(_KINDS), list(_DEVICES)
    return sorted(found, key=lambda bench: (kinds.index(bench[1]), bench[2], devices.index(bench[3])))


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
        return table(("shape", "engine, queries/s", "plain, queries/s", "times as fast"), rows)
    if method_times(figures):
        tables = [[title, "", *table(columns, rows), ""] for title, columns, rows in time_tables(result)]
        return [line for lines in tables for line in lines][:-1]
    lines = table(("figure", "value"), list(figures.items()))
    if ratios:
        lines += ["", *table((result["compares"], "ratio"), list(ratios.items()))]
    return lines
