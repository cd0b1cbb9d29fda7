"""Pictures of what runs and benches have written down. matplotlib draws them; training and measuring need none."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from query2particles.files import new_file
from query2particles.query.algebra import GROUP_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "growth_curves",
    "plot_growth",
    "plot_particles",
    "plot_search",
    "plot_spread",
    "plot_times",
    "plot_training",
]

_GROUPS = {"epfo": ("EPFO", "tab:blue"), "negation": ("negation", "tab:orange")}
"""The averages that are drawn, what people call them, and their colours."""

_GRAYS = ("tab:gray", "black")
_MARKERS = "osD^vP*X<>"


def plot_training(
    traces: Mapping[str, Iterable[Mapping[str, Any]]],
    target: Path,
    *,
    title: str,
    references: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> None:
    """The loss and the validation MRR over the updates of runs' traces, by name, as a picture of the target's suffix.

    `references` are what others reach on the same validation queries: by name, the percentages of each average.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharex=True)
    for number, (run, trace) in enumerate(traces.items()):
        lines = list(trace)
        losses = [(line["update"], line["loss"]) for line in lines if "loss" in line]
        left.plot(*_columns(losses), color=_GRAYS[number % len(_GRAYS)], label=run)
        for group, (name, colour) in _GROUPS.items():
            points = [
                (line["update"], line["validation"][group]) for line in lines if group in line.get("validation", ())
            ]
            if points or len(traces) == 1:  # what has no complement has no average of such queries
                right.plot(*_columns(points), color=colour, marker=_MARKERS[number], label=f"{name}, {run}")
    left.set(title="Training loss", ylabel="cross-entropy (nats a query)")
    if len(traces) > 1:
        left.legend(fontsize="small", frameon=False)
    for group, (name, colour) in _GROUPS.items():
        for (other, reached), dashes in zip(references.items(), cycle(("--", ":")), strict=False):
            right.axhline(reached[group], color=colour, linestyle=dashes, linewidth=1, label=f"{name}, {other}")
    right.set(title="Validation", ylabel="mean reciprocal rank (%)", ylim=(0, None))
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", fontsize="small", frameon=False)
    for axes in (left, right):
        axes.set(xlabel="updates", xlim=(0, None))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, target)


def _columns(points: list[tuple[int, float]]) -> tuple[Sequence[float], Sequence[float]]:
    """The x and the y of points, of which there may be none."""
    return ([x for x, _ in points], [y for _, y in points])


def plot_times(times: Mapping[int, Mapping[str, Mapping[str, float]]], target: Path, *, caption: str) -> None:
    """Milliseconds a query takes, by batch size, method and shape: a panel for each size, a line for each method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    figure.supxlabel(textwrap.fill(caption, 200), fontsize="x-small")
    panels = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
    for axes, (size, methods) in zip(panels, times.items(), strict=True):
        shapes = list(dict.fromkeys(shape for own in methods.values() for shape in own))
        for (method, own), marker in zip(methods.items(), cycle(_MARKERS), strict=False):
            heights = [own.get(shape, math.nan) for shape in shapes]  # what a method cannot answer is a gap
            axes.plot(shapes, heights, marker=marker, markersize=5, linewidth=0.4, label=method)
        axes.set(title=f"Batches of {size}" if size > 1 else "One query at a time", yscale="log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("milliseconds a query")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small", frameon=False)
    _save(figure, target)


_WAYS = {"tree": "--", "best": "-.", "fast": ":"}
"""The ways of a joined run that guided search is drawn beside, and their dashes."""


def plot_search(
    curve: Mapping[int, Mapping[str, float]], figures: Mapping[str, float], target: Path, *, caption: str
) -> None:
    """What guided search finds and how fast, by the number of proposals, beside the other ways to answer."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    figure.supxlabel(textwrap.fill(caption, 200), fontsize="x-small")
    found, speed = panels = figure.subplots(1, 2, sharex=True)
    for name, colour in _GROUPS.values():
        points = [own.get(f"{name} MRR", math.nan) for own in curve.values()]
        found.plot(list(curve), points, color=colour, marker="o", label=f"{name}, guided")
        for other, dashes in _WAYS.items():
            if f"{other} {name} MRR" in figures:
                found.axhline(figures[f"{other} {name} MRR"], color=colour, linestyle=dashes, label=f"{name}, {other}")
    speed.plot(list(curve), [own["queries/s"] for own in curve.values()], color="tab:gray", marker="o", label="guided")
    for other, dashes in _WAYS.items():
        speed.axhline(figures[f"{other} queries/s"], color="tab:gray", linestyle=dashes, label=other)
    found.set(title="Validation", ylabel="mean reciprocal rank (%)", ylim=(0, None))
    speed.set(title="Speed", ylabel="queries a second", yscale="log")
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set(xlabel="proposals of each particle, m")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    speed.legend(fontsize="small", frameon=False)
    figure.legend(*found.get_legend_handles_labels(), loc="outside right center", fontsize="small", frameon=False)
    _save(figure, target)


_GROWTH = {
    "queries a second": ("training queries/s", "sampling queries/s"),
    "GiB": ("tables GiB", "edges GiB", "peak GPU memory GiB", "import, peak memory GiB"),
    "seconds": ("making edges s", "import s"),
    "milliseconds an answer": ("answer exactly ms", "answer by index ms"),
}
"""What is drawn together, by its unit."""


def growth_curves(figures: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """By the number of entities, what was measured there: from figures such as `10,000 entities, import s`."""
    curves: dict[int, dict[str, float]] = {}
    for name, value in figures.items():
        if found := re.fullmatch(r"([\d,]+) entities, (.+)", name):
            curves.setdefault(int(found[1].replace(",", "")), {})[found[2]] = value
    return curves


def plot_growth(curves: Mapping[str, Mapping[int, Mapping[str, float]]], target: Path, *, caption: str) -> None:
    """What was measured at each number of entities, by where that was, both axes by powers of ten.

    Like that of particles, a PNG describes itself by the numbers that are drawn.
    """
    from matplotlib.figure import Figure

    everything = {name for own in curves.values() for values in own.values() for name in values}
    drawn = {unit: [name for name in names if name in everything] for unit, names in _GROWTH.items()}
    drawn = {unit: names for unit, names in drawn.items() if names}
    figure = Figure(figsize=(4.6 * len(drawn), 4.8), layout="constrained")
    figure.supxlabel(textwrap.fill(caption, 60 * len(drawn)), fontsize="x-small")
    panels = figure.subplots(1, len(drawn), sharex=True, squeeze=False)[0]
    for axes, (unit, names) in zip(panels, drawn.items(), strict=True):
        for number, (name, marker) in enumerate(zip(names, _MARKERS, strict=False)):
            for (where, own), dashes in zip(curves.items(), ("-", "--"), strict=False):
                points = [(size, values[name]) for size, values in sorted(own.items()) if name in values]
                if points:
                    label = ", ".join([_without_unit(name), *([where] if len(curves) > 1 else [])])
                    axes.plot(
                        *zip(*points, strict=True), color=f"C{number}", linestyle=dashes, marker=marker, label=label
                    )
        axes.set(xscale="log", yscale="log", xlabel="entities", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize="small", frameon=False)
    _save(figure, target, {"Description": json.dumps(curves), "Software": None})


def _without_unit(name: str) -> str:
    return name.rsplit(" ", 1)[0]


def plot_particles(curves: Mapping[str, Mapping[int, Mapping[str, float]]], target: Path) -> None:
    """MRR by the number of particles: by whose it is, K, and columns such as `2i FULL` and `2i DIVR`.

    Names of columns before the last word have a panel each. A PNG describes itself by the numbers that are drawn, so
    that they can be compared with results whatever version of matplotlib has drawn them.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = dict.fromkeys(column for own in curves.values() for values in own.values() for column in values)
    names = list(dict.fromkeys(column.rpartition(" ")[0] for column in columns))
    figure = Figure(figsize=(2.2 * len(names), 3.4), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for number, (whose, own) in enumerate(curves.items()):
            for kind, dashes, marker in (("FULL", "-", "o"), ("DIVR", "--", "s")):
                points = [(k, values[f"{name} {kind}"]) for k, values in own.items() if f"{name} {kind}" in values]
                places = zip(*points, strict=True) if points else ((), ())
                axes.plot(
                    *places, color=f"C{number}", linestyle=dashes, marker=marker, markersize=4, label=f"{kind}, {whose}"
                )
        axes.set(title=name, xlabel="particles, K", ylim=(0, 100))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean reciprocal rank (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(curves), fontsize="small", frameon=False)
    _save(figure, target, {"Description": json.dumps(curves), "Software": None})


_FINDS = ("most", "second most", "third most", "fourth most", "fifth most", "sixth most")


def plot_spread(spread: Mapping[str, Any], target: Path, *, title: str) -> None:
    """How alike the particles of a query are, what they add to scores, and how hard answers fall to them.

    `spread` is what `Spread.as_json` gives: a column for each shape, and one for each average.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    averages = {f"{name}\n(mean)": own for group, name in GROUP_NAMES.items() if (own := spread["averages"][group])}
    columns = {**spread["shapes"], **averages}
    places = [*range(len(spread["shapes"])), *(len(spread["shapes"]) + 0.4 + 1.2 * at for at in range(len(averages)))]
    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title)
    alike, gained, found = panels = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 3))

    for axes, key, colour in ((alike, "cosine", "tab:blue"), (gained, "margin", "tab:orange")):
        heights = [own.get(key, math.nan) for own in columns.values()]  # a single particle has none: a gap
        bars = axes.bar(places, heights, width=0.7, color=colour)
        axes.bar_label(bars, ["" if math.isnan(one) else f"{one:.2f}" for one in heights], padding=2, fontsize="small")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.margins(y=0.2)
    alike.set_ylim(bottom=min(0, alike.get_ylim()[0]), top=1.2)
    alike.set(title="How alike a query's particles are", ylabel="mean pairwise cosine")
    alike.set_yticks([tick for tick in alike.get_yticks() if tick <= 1])
    gained.set(title="What a hard answer's score owes to its best particle", ylabel="best − second best product")

    widest = max((len(own.get("by_rank", ())) for own in columns.values()), default=0)
    below = [0.0] * len(columns)
    for rank in range(widest):
        shares = [own["by_rank"][rank] if rank < len(own.get("by_rank", ())) else 0.0 for own in columns.values()]
        found.bar(
            places,
            shares,
            bottom=below,
            width=0.7,
            color=colormaps["viridis"](0.2 + 0.75 * rank / max(1, widest - 1)),
            label=_FINDS[rank] if rank < len(_FINDS) else f"{rank + 1}th most",
        )
        below = [height + share for height, share in zip(below, shares, strict=True)]
    for place, own in zip(places, columns.values(), strict=True):
        if "effective" in own:
            words = f"{own['effective']:.2f}\nof {own['at_most']:.2f}"
            found.text(place, 101, words, horizontalalignment="center", verticalalignment="bottom", fontsize="small")
    found.set(
        title="Who finds the hard answers; above: the effective number of particles, of how many at most",
        ylabel="% of a query's hard answers",
        ylim=(0, 118),
        yticks=range(0, 101, 20),
    )
    found.set_xticks(places, list(columns), rotation=90 if any(len(name) > 16 for name in columns) else 0)
    found.legend(
        *(reversed(part) for part in found.get_legend_handles_labels()),
        title="the particle that finds",
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        fontsize="small",
        frameon=False,
    )
    for axes in panels:
        axes.margins(x=0.01)
        axes.set_axisbelow(True)
        axes.grid(alpha=0.3, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, target)


def _save(figure: Figure, target: Path, metadata: Mapping[str, str | None] = MappingProxyType({})) -> None:
    with new_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=150, metadata=dict(metadata))
