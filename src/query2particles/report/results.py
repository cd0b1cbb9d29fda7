"""The page of accuracy, and the table of averages in the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.experiments.published import (
    FIGURE_OF,
    GROUPS,
    METHOD_NAMES,
    columns_of,
    figure_printed,
    figures_of,
    knows_validation,
    leaked_into,
    printed,
    published,
)
from query2particles.experiments.recipes import experiments
from query2particles.query.algebra import GROUP_NAMES
from query2particles.report.costs import costs
from query2particles.report.documents import Document, asked_of, label_of, made_otherwise, read_result, read_results
from query2particles.report.markdown import table
from query2particles.report.spreads import spreads
from query2particles.report.studies import in_a_study, studies

__all__ = ["has_results", "results_page", "with_results"]

_SETS = {
    "betae": "MRR in percent on BetaE's queries, and below it Hits@10. Published rows are for the original sets; "
    "where ours are `betae-resampled`, they measure the same thing on other queries, and a few tenths say "
    "nothing.",
    "q2b": "Hit@3 in percent on Query2Box's official test sets, trained on the training graph alone. Each result has "
    "two rows: the mean over a query's hard answers, as CQD counts, and its best hard answer, as EmQL does. The Q2P "
    "row of the paper cannot be taken for a clean result ([evaluation](evaluation.md)).",
}
_FIGURES_IN_WORDS = {"betae": "MRR", "q2b": "Hit@3"}
_README = ("<!-- The results: made by `q2p report`, not by hand. -->", "<!-- The end of the results. -->")

_SEARCHES = ("tree", "best")
"""Methods of our own, which search."""

_KNOWING = {
    **{f"{method}-known": f"{METHOD_NAMES[method]}, validation facts stored" for method in _SEARCHES},
    "best-retrained": f"{METHOD_NAMES['best']}, validation facts stored and trained on",
}
"""Variants that have a row of their own among the averages."""

_MORE_FIGURES = {"betae": ("hits@10",), "q2b": ("best_hits@3",)}
"""Figures that have a row of their own below a result's first."""


def results_page(results: Path) -> str:
    """The page of the results of `q2p reproduce`, beside what was published; what is missing is named."""
    found = read_results(results)
    lines = [
        "# Results",
        "",
        "Every row of ours is made by `q2p reproduce NAME`, which trains, selects on validation queries, evaluates all",
        "test queries and writes `benchmarks/results/NAME.json`; this page is made from those files by `q2p report`.",
        "[Evaluation](evaluation.md) says what the figures mean and what compares with what. Cells are empty where",
        "nothing was published or measured. First come all methods on each graph and set, then",
        "[what was varied of Query2Particles](#studies-of-query2particles), then [what it cost](#cost).",
    ]
    for (graph, kind), queries in _sets().items():
        members = [one for one in experiments() if asked_of(one) == (graph, kind) and not in_a_study(label_of(one))]
        documents = [found[name] for name in members if name in found]
        lines += ["", f"## {graph}, {queries}", "", _SETS[kind], ""]
        lines += _results_table(graph, kind, documents)
        lines += made_otherwise(documents)
        lines += _hardness_table(documents)
        if missing := [label_of(name) for name in members if name not in found]:
            names = f"`q2p reproduce {graph.lower()}-{kind}-NAME`"
            lines += ["", f"Not measured yet ({names}): {', '.join(missing)}."]
    lines += ["", "## Studies of Query2Particles", *studies(found), *spreads(results)]
    if found:
        words = (
            "Seconds are those of one training, the mean over its seeds; memory is the most that was in use at once. "
            "Methods that are asked of another one's training share its row, so do query sets."
        )
        lines += ["", "## Cost", "", words, "", *costs(found)]
    return "\n".join(lines) + "\n"


def has_results(readme: str) -> bool:
    """Whether there is a place for the table of averages."""
    return _README[0] in readme


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
            document = read_result(results, f"{graph.lower()}-{kind}-{method}")
            ours = _average(figures_of(document, figure_printed(kind, method))) if document is not None else ""
            paper = printed(method, graph, kind)
            cells.append(" ".join(filter(None, [ours, f"({_average(paper)})" if paper else ""])))
        if any(cells):
            rows.append((name, *cells))
    return table(("", *(f"{graph}, {_FIGURES_IN_WORDS[kind]}" for graph, kind in columns)), rows)


def _sets() -> dict[tuple[str, str], str]:
    """The folder of the test queries of each graph and kind of set that there are experiments on."""
    return {asked_of(name): one.queries for name, one in experiments().items()}


def _average(values: Mapping[str, float]) -> str:
    """EPFO, and negation where there is such."""
    return " / ".join(f"{values[group]:.1f}" for group in GROUPS if group in values)


def _results_table(graph: str, kind: str, documents: Sequence[Document]) -> list[str]:
    """Ours first, the best of each column in bold, then what was published, with its source by number."""
    figures = FIGURE_OF[kind], *_MORE_FIGURES.get(kind, ())
    equal = [one for one in documents if not knows_validation(one) and not leaked_into(one)]
    leaders = {figure: _leaders(equal, figure) for figure in figures}
    rows: list[tuple[str, Mapping[str, str]]] = []
    for document in documents:
        name, leaks = document["name"], ", *trained on these very queries*" if leaked_into(document) else ""
        for figure in figures:
            cells = {
                column: f"**{value:.2f}**" if name in leaders[figure].get(column, ()) else f"{value:.2f}"
                for column, value in figures_of(document, figure).items()
            }
            rows.append((f"`{name}`{leaks}" if figure == figures[0] else f"… {figure}", cells))
    sources: dict[str, int] = {}
    for row in published():
        if (row.graph, row.set) == (graph, kind):
            number = sources.setdefault(row.source, len(sources) + 1)
            name = f"{row.method} [{number}]" if row.figure == figures[0] else f"{row.method} [{number}], {row.figure}"
            rows.append((name, {column: f"{value:.1f}" for column, value in row.values.items()}))
    columns = columns_of({column: 0.0 for _, cells in rows for column in cells})
    lines = table(("", *columns), [(name, *(cells.get(column, "") for column in columns)) for name, cells in rows])
    lines += ["", *(f"- [{number}] {source}." for source, number in sources.items())]
    return [*lines, *_who_leads(equal, figures[0])]


def _leaders(documents: Sequence[Document], figure: str) -> dict[str, tuple[str, ...]]:
    """By column, the names of the best; none where there is nobody to lead."""
    rows = {document["name"]: figures_of(document, figure) for document in documents}
    leaders = {}
    for column in columns_of({column: 0.0 for own in rows.values() for column in own}):
        values = {name: round(own[column], 2) for name, own in rows.items() if column in own}
        if len(values) > 1:
            leaders[column] = tuple(name for name, value in values.items() if value == max(values.values()))
    return leaders


def _who_leads(documents: Sequence[Document], figure: str) -> list[str]:
    """Who has which column: of all, and without our own searches, which most papers do not compare with."""
    others = [document for document in documents if document["method"] not in _SEARCHES]
    of_all, of_others = _in_words(_leaders(documents, figure)), _in_words(_leaders(others, figure))
    if not of_all:
        return []
    words = (
        "Bold is the best of ours in a column, of those that know the training facts alone, whatever their "
        f"[cost](#cost): {of_all}."
    )
    if of_others and len(others) < len(documents):
        words += f" Without our own searches ({', '.join(f'`{method}`' for method in _SEARCHES)}): {of_others}."
    return ["", words]


def _in_words(leaders: Mapping[str, tuple[str, ...]]) -> str:
    columns: dict[tuple[str, ...], list[str]] = {}
    for column, names in leaders.items():
        columns.setdefault(names, []).append(column)
    return "; ".join(
        f"{' and '.join(f'`{label_of(name)}`' for name in names)} in {', '.join(own)}" for names, own in columns.items()
    )


def _hardness_table(documents: Sequence[Document]) -> list[str]:
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
    return ["", words, "", *table(("", *order), cells)]
