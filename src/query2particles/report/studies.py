"""What was varied of Query2Particles, study by study: each a table of its own beside the paper's.

The big tables compare methods and have one row for each; variants of a method stand here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from query2particles.experiments.published import FIGURE_OF, GROUPS, figures_of, printed, set_of, study
from query2particles.experiments.recipes import experiment, experiments
from query2particles.query.algebra import GROUP_NAMES, SHAPES
from query2particles.report.costs import size_of
from query2particles.report.documents import Document, Documents, asked_of, commands, label_of, made_otherwise
from query2particles.report.markdown import table

__all__ = ["PARTICLES_FIGURE", "in_a_study", "particle_curves", "studies"]

PARTICLES_FIGURE = "figures/particles.png"
"""The picture of the first study, from the folder of the pages."""

_DEFAULT, _PAPER_PRESET, _PAPER = "our default", "our runs of the preset paper", "the paper"
_OPERATORS = "gqe-operators"


def in_a_study(label: str) -> bool:
    """Whether a method's variant, named as in `label_of`, stands in one of the tables below."""
    return label.startswith("q2p-") or label == _OPERATORS


def studies(found: Documents) -> list[str]:
    """The sections of all studies that are made of results."""
    parts = {
        "How many particles": _particles(found),
        "Ablation": _ablation(found),
        "Presets": _presets(found),
        "Unions": _unions(found),
        "Trained on the test queries": _leak(found),
    }
    return [line for heading, lines in parts.items() for line in ("", f"### {heading}", "", *lines)]


def particle_curves(found: Documents) -> dict[str, Mapping[int, Mapping[str, float]]]:
    """What is measured of each K, and what the paper prints: by whose it is, K and column; nothing without ours."""
    paper = study("particles")
    ours: dict[str, Mapping[int, Mapping[str, float]]] = {
        whose: {_k(found, name): _full_and_diverse(found[name]) for name in names}
        for whose, label in ((_DEFAULT, "q2p"), (_PAPER_PRESET, "q2p-paper"))
        if (names := [name for name in _family(f"fb15k-betae-{label}") if name in found])
    }
    return {**ours, _PAPER: {int(k): values for k, values in paper.rows.items()}} if ours else {}


def _family(name: str) -> list[str]:
    """The experiments on the same queries that differ in their number of particles alone, by that number."""
    wanted = experiment(name)
    found = {
        one.config.model.particles: other
        for other, one in experiments().items()
        if (one.recipe.graph, one.queries, one.config.method) == (wanted.recipe.graph, wanted.queries, "q2p")
        and not one.recipe.parts  # a joint reasoner has the settings of its vectors
        and replace(one.config, model=replace(one.config.model, particles=wanted.config.model.particles))
        == wanted.config
    }
    return [found[k] for k in sorted(found)]


def _k(found: Documents, name: str) -> int:
    """The number of particles: of the result, or of the experiment where there is none yet."""
    config = found[name]["config"]["model"] if name in found else experiment(name).config.as_json()["model"]
    return int(config["particles"])


def _studied() -> list[str]:
    """The shapes of the paper's study of particles."""
    columns = [column.partition(" ")[0] for row in study("particles").rows.values() for column in row]
    return [shape for shape in dict.fromkeys(columns) if shape in SHAPES]


def _full_and_diverse(document: Document) -> dict[str, float]:
    """MRR of all queries and of the diverse ones: by shape of the study, their mean, and the mean of all shapes."""
    shapes, found = document["shapes"], dict[str, float]()
    full = {shape: float(own["mrr"]) for shape, own in shapes.items() if "mrr" in own}
    diverse = {shape: float(own["divr"]["mrr"]) for shape, own in shapes.items() if "divr" in own}
    for shape in _studied():
        found |= {f"{shape} {kind}": own[shape] for kind, own in (("FULL", full), ("DIVR", diverse)) if shape in own}
    for name, wanted in (("mean", _studied()), ("all", SHAPES)):
        for kind, own in (("FULL", full), ("DIVR", diverse)):
            if all(shape in own for shape in wanted):
                found[f"{name} {kind}"] = fmean(own[shape] for shape in wanted)
    return found


def _particles(found: Documents) -> list[str]:
    curves, paper = particle_curves(found), study("particles")
    names = [*_family("fb15k-betae-q2p"), *_family("fb15k-betae-q2p-paper")]
    columns = [f"{shape} {kind}" for shape in (*_studied(), "mean", "all") for kind in ("FULL", "DIVR")]
    rows = [
        _row(
            f"`{name}`, K = {_k(found, name)}",
            _full_and_diverse(found[name]) if name in found else {},
            columns,
            words=(_seeds(found, name),),
        )
        for name in names
    ]
    rows += [_row(f"{_PAPER}, K = {k}", values, columns, 1, words=("",)) for k, values in paper.rows.items()]
    lines = [
        f"MRR in percent on {paper.graph} of all queries of a shape (FULL) and of the tenth with most answers (DIVR). "
        "`mean` is over the paper's four shapes, `all` over all fourteen. The rows of our default differ in K alone, "
        "and so do those of the preset `paper`, which has the paper's settings ([methods](methods.md)).",
        "",
        *table(("", "seeds", *columns), rows),
        "",
        f"{_PAPER.capitalize()}: {paper.source}.",
    ]
    if gains := _gains_in_words(curves):
        words = "What the best K adds to K = 1, in points of the mean over the four shapes:"
        lines += ["", words, "", *gains, *_seed_noise(found, names)]
    if curves:
        lines += ["", f"![MRR by the number of particles]({PARTICLES_FIGURE})"]
    return [*lines, *_otherwise(found, names), *_missing(name for name in names if name not in found)]


def _gains(curve: Mapping[int, Mapping[str, float]]) -> dict[str, tuple[int, float]]:
    """The best K > 1 and what it adds to K = 1, on all queries and on diverse ones, as far as there are such pairs."""
    gains = {}
    for kind in ("FULL", "DIVR"):
        means = {k: values[f"mean {kind}"] for k, values in curve.items() if f"mean {kind}" in values}
        if 1 in means and len(means) > 1:
            best = max((k for k in means if k > 1), key=lambda k: means[k])
            gains[kind] = best, means[best] - means[1]
    return gains


def _gains_in_words(curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> list[str]:
    """A line for each curve that has a gain; on diverse queries beside the paper's, which its claim is about."""
    lines = []
    _, claimed = _gains({int(k): values for k, values in study("particles").rows.items()})["DIVR"]
    for whose, curve in curves.items():
        if gains := _gains(curve):
            words = ", ".join(f"{_signed(points)} {kind} (K = {k})" for kind, (k, points) in gains.items())
            if whose != _PAPER and "DIVR" in gains:
                words += f", which is {100 * gains['DIVR'][1] / claimed:.0f} % of the paper's gain on diverse queries"
            lines.append(f"- {whose}: {words}.")
    return lines


def _seed_noise(found: Documents, names: Sequence[str]) -> list[str]:
    """How much such a mean differs from seed to seed, as far as any K was trained by several."""
    noise = {}
    for name in names:
        seeds = [own["mrr"] for own in found[name]["per_seed"]] if name in found else []
        if len(seeds) > 1:
            noise[name] = f"{stdev(fmean(own[shape] for shape in _studied()) for own in seeds):.2f} (`{name}`)"
    if not noise:
        return []
    return ["", f"From seed to seed, mean FULL has a standard deviation of {', '.join(noise.values())}."]


def _ablation(found: Documents) -> list[str]:
    paper = study("ablation")
    columns = list(dict.fromkeys(column for values in paper.rows.values() for column in values))
    several = [name for name in _family("fb15k-betae-q2p") if experiment(name).config.model.particles > 1]
    shown = {
        "fb15k-betae-q2p": "our default",
        "fb15k-betae-q2p-k1": "one particle",
        "fb15k-betae-q2p-paper-k1": "the paper's settings, one particle",
        "fb15k-betae-q2p-paper-k1-no-attention": "… without self-attention",
        f"fb15k-betae-{_OPERATORS}": "no networks, GQE's operators",
    }
    figures = {name: figures_of(found[name], "mrr") for name in (*shown, *several) if name in found}
    highest = {
        column: max(values)
        for column in columns
        if (values := [figures[name][column] for name in several if column in figures.get(name, ())])
    }
    numbers = [str(_k(found, name)) for name in several if name in found]
    rows = [_row(f"the highest of K = {', '.join(numbers) or '2 …'}, each column by itself", highest, columns)]
    rows += [_row(f"`{name}`: {words}", figures.get(name, {}), columns) for name, words in shown.items()]
    said = {
        "Q2P-Kp": "the highest of K = 2 … 6",
        "Q2P-1p": "one particle",
        "no-attention": "… without self-attention",
        "gqe-operators": "no networks, GQE's operators",
    }
    rows += [_row(f"{_PAPER}: {said[name]}", values, columns, 1) for name, values in paper.rows.items()]
    lines = [
        f"MRR in percent on {paper.graph}.",
        "",
        *table(("", *columns), rows),
        "",
        f"{_PAPER.capitalize()}: {paper.source}.",
    ]
    with_attention, without = (figures.get(f"fb15k-betae-q2p-paper-k1{end}", {}) for end in ("", "-no-attention"))
    if with_attention and without:
        printed_rows = paper.rows["Q2P-1p"], paper.rows["no-attention"]
        lines += [
            "",
            f"Without self-attention: {_differences(with_attention, without, columns)}; in the paper "
            f"{_differences(*printed_rows, columns)}.",
        ]
    return [*lines, *_otherwise(found, shown), *_missing(name for name in shown if name not in found)]


def _differences(before: Mapping[str, float], after: Mapping[str, float], columns: Sequence[str]) -> str:
    return ", ".join(f"{one} {_signed(after[one] - before[one])}" for one in columns if one in before and one in after)


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _variants(found: Documents, labels: Sequence[str]) -> list[str]:
    """A table of the first of these variants and of the others that were measured beside it.

    It has every graph and set on which any of the others was measured; what is missing is named for BetaE's sets alone,
    where the paper has all its studies.
    """
    shown, missing = [], []
    for graph, kind in dict.fromkeys(map(asked_of, experiments())):
        names = [f"{graph.lower()}-{kind}-{label}" for label in labels]
        if any(name in found for name in names[1:]):
            shown += [found[name] for name in names if name in found]
        missing += [name for name in names if kind == "betae" and name not in found]
    rows = [
        _row(
            f"`{one['name']}`",
            figures_of(one, FIGURE_OF[set_of(one)]),
            ("2u", "up", *GROUPS),
            words=(size_of(one), str(len(one["seeds"]))),
        )
        for one in shown
    ]
    return [*(["", *table(_VARIANT_COLUMNS, rows)] if rows else []), *made_otherwise(shown), *_missing(missing)]


_VARIANT_COLUMNS = ("", "updates × batch", "seeds", "2u", "up", *(GROUP_NAMES[group] for group in GROUPS))


def _presets(found: Documents) -> list[str]:
    words = (
        "Our default; `unions`, the same but for training on unions as the released code does; and the published "
        "models as the paper's appendix and the released script have them ([methods](methods.md)), all for as many "
        "updates as stand here, which are far fewer than the authors'. MRR in percent on BetaE's queries, Hit@3 on "
        "Query2Box's."
    )
    return [words, *_variants(found, ("q2p", "q2p-unions", "q2p-paper", "q2p-released"))]


def _unions(found: Documents) -> list[str]:
    words = (
        "The same weights, asked in three ways ([unions](evaluation.md#unions)): particles side by side (the first row "
        "of each set), unions lifted to the root (`dnf`), complements instead of unions (`de-morgan`). MRR in percent "
        "on BetaE's queries, Hit@3 on Query2Box's."
    )
    return [words, *_variants(found, ("q2p", "q2p-dnf", "q2p-de-morgan"))]


_DEFINITIONS = {"hits@3": "mean over a query's hard answers", "best_hits@3": "a query's best hard answer"}


def _leak(found: Documents) -> list[str]:
    """What training on the test queries is worth, and how much of the way to the paper's figures that is."""
    names = [name for name in experiments() if label_of(name) == "q2p-leaking"]
    rows, told, missing = [], [], []
    for name in names:
        graph, kind = asked_of(name)
        clean = name.removesuffix("-leaking")
        paper = printed("q2p", graph, kind)["epfo"]
        averages = {
            one: {
                figure: values["epfo"]
                for figure in _DEFINITIONS
                if "epfo" in (values := figures_of(found[one], figure))
            }
            for one in (clean, name)
            if one in found
        }
        for one, values in averages.items():
            words = ", *trained on these very queries*" if one == name else ""
            rows.append(_row(f"`{one}`{words}", values, tuple(_DEFINITIONS), words=(_seeds(found, one),)))
        rows.append((f"{_PAPER}, {graph}, definition unknown", "", f"{paper:.1f}", f"{paper:.1f}"))
        for figure, words in _DEFINITIONS.items():
            before, after = (averages.get(one, {}).get(figure) for one in (clean, name))
            told.append(f"- {graph}, {words}: {_explained(paper, before, after)}.")
        missing += [one for one in (clean, name) if one not in found]
    lines = [
        "Hit@3 in percent on Query2Box's test queries, means over the nine shapes. The released script for these sets "
        "trains on their validation and test queries of five shapes and counts by the best hard answer; whether the "
        "printed figures came from it cannot be known ([evaluation](evaluation.md#what-compares-with-what)). So both "
        "are measured, by both definitions:",
        "",
        *table(("", "seeds", *(f"Hit@3, {words}" for words in _DEFINITIONS.values())), rows),
        "",
        *told,
    ]
    return [*lines, *_otherwise(found, names), *_missing(missing)]


def _explained(paper: float, clean: float | None, leaking: float | None) -> str:
    """How far a clean training is below the paper, and which share of that the leak makes up for."""
    if clean is None:
        return f"nothing measured to compare with the paper's {paper:.1f}"
    if clean >= paper:
        words = f"{clean - paper:.1f} points above the paper without any leak, so that there is nothing to explain"
        return words + (f"; the leak adds {leaking - clean:.1f}" if leaking is not None else "")
    words = f"{paper - clean:.1f} points below the paper"
    if leaking is None:
        return f"{words}; what a leak is worth is not measured yet"
    share = 100 * (leaking - clean) / (paper - clean)
    return f"{words}; the leak adds {leaking - clean:.1f}, which is {share:.0f} % of the difference"


def _row(
    name: str, figures: Mapping[str, float], columns: Iterable[str], decimals: int = 2, words: Sequence[str] = ()
) -> tuple[str, ...]:
    """A name, words, and a cell for each column; nothing where there is no figure."""
    cells = (f"{figures[column]:.{decimals}f}" if column in figures else "" for column in columns)
    return name, *words, *cells


def _seeds(found: Documents, name: str) -> str:
    return str(len(found[name]["seeds"])) if name in found else ""


def _otherwise(found: Documents, names: Iterable[str]) -> list[str]:
    return made_otherwise(found[name] for name in names if name in found)


def _missing(names: Iterable[str]) -> list[str]:
    words = commands(names)
    return ["", f"Not measured yet: {words}."] if words else []
