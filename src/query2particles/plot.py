"""Pictures of what runs and benches have written down. matplotlib draws them; training and measuring need none."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from query2particles.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_times", "plot_training"]

_GROUPS = {"epfo": ("EPFO", "tab:blue"), "negation": ("negation", "tab:orange")}
"""The averages that are drawn, what people call them, and their colours."""


def plot_training(
    trace: Iterable[Mapping[str, Any]],
    target: Path,
    *,
    title: str,
    references: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> None:
    """The loss and the validation MRR over the updates of a run's trace, as a picture of the target's suffix.

    `references` are what others reach on the same validation queries: by name, the percentages of each average.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    lines = list(trace)
    losses = [(line["update"], line["loss"]) for line in lines if "loss" in line]
    validations = [(line["update"], line["validation"]) for line in lines if "validation" in line]
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharex=True)
    left.plot(*zip(*losses, strict=True) if losses else ((), ()), color="tab:gray")
    left.set(title="Training loss", ylabel="cross-entropy (nats a query)")
    for group, (name, colour) in _GROUPS.items():
        points = [(update, found[group]) for update, found in validations if group in found]
        right.plot(*zip(*points, strict=True) if points else ((), ()), color=colour, marker="o", label=name)
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


_MARKERS = "osD^vP*X<>"


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


def _save(figure: Figure, target: Path) -> None:
    with new_file(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=150)
