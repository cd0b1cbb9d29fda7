"""Pages made from committed results: no figure is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from query2particles.errors import UsageError
from query2particles.files import new_file

__all__ = ["speed_page", "write_report"]

_HEADINGS = {
    "exact": "Exact answers",
    "sample": "Drawing and labelling queries",
    "import": "Import",
}
_WORDS = {
    "exact": "The engine against plain Python sets, both on all cores, both writing every answer to a file, the best "
    "of three runs each (`q2p bench exact`).",
    "sample": "The sampler against one that draws and labels query by query with plain Python sets, both on all cores "
    "(`q2p bench sample`).",
    "import": "Synthetic triples from a TSV file to a graph folder, in a process of its own, and opening the result "
    "(`q2p bench import`).",
}


def write_report(results: Path, docs: Path) -> list[Path]:
    """Write every generated page; return their paths."""
    page = docs / "speed.md"
    with new_file(page) as partial:
        partial.write_text(speed_page(results), "utf-8")
    return [page]


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
            table = _table(result)
            measured = f"{result['about']}; {result['machine']}; version {result['version']}, seed {result['seed']}."
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no result of `q2p bench` ({error!r}); measure again") from error
        lines += ["", f"## {_HEADINGS[name]}", "", _WORDS[name], "", measured, "", *table]
    return "\n".join(lines) + "\n"


def _table(result: dict[str, Any]) -> list[str]:
    figures, ratios = result["figures"], result["ratios"]
    if not ratios:
        return ["| figure | value |", "| --- | ---: |", *(f"| {name} | {value:,} |" for name, value in figures.items())]
    rows = ["| shape | engine, queries/s | plain, queries/s | times as fast |", "| --- | ---: | ---: | ---: |"]
    for name, ratio in ratios.items():
        engine, plain = figures[f"{name} engine queries/s"], figures[f"{name} plain queries/s"]
        rows.append(f"| {name} | {engine:,} | {plain:,} | {ratio:.1f} |")
    return rows
