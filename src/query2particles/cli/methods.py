"""`q2p methods`: what there is to choose from, and what each can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from query2particles.cli.root import Json, app

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from query2particles.query.algebra import Query

__all__ = ["methods"]

_SIGNS = {"project": ".", "intersect": "&", "union": "|", "complement": "!"}
"""Operators as the path syntax writes them; an anchor is just its name."""


@app.command()
def methods(json: Json = False) -> None:
    """What every method is, and what it can do."""
    from query2particles.show import print_json, print_table, say

    trained, joined, untrained = _trained(), _joined(), _untrained()
    if json:
        print_json({"trained": trained, "joined": joined, "untrained": untrained})
        return
    columns = ("method", "paper", "state", "operators", "unions", "complement", "numbers per entity", "presets")
    rows = [
        (*_cells(name, one), one["parameters_per_entity"], " ".join(one["presets"])) for name, one in trained.items()
    ]
    print_table("Trained: q2p train GRAPH --method NAME --preset PRESET", columns, rows, right=(6,))
    print_table(
        "Of a joined run (q2p train GRAPH --method best): q2p evaluate RUN --method NAME",
        ("method", "what it does", *columns[2:6]),
        [_cells(name, one) for name, one in joined.items()],
    )
    print_table(
        "Nothing to train: q2p evaluate GRAPH --method NAME; exact: q2p answer GRAPH QUERY",
        ("method", "what it does", *columns[2:6]),
        [_cells(name, one) for name, one in untrained.items()],
    )
    say(
        "operators: . projection, & intersection, | union, ! complement; unions: its own operator, lifted to the root "
        "(dnf), by complements (de-morgan); numbers per entity: parameters of the preset default"
    )


def _cells(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    signs = " ".join(sign for operator, sign in _SIGNS.items() if operator in one["operators"])
    return name, one["title"], one["state"], signs, " ".join(one["unions"]), one["complement"] or "–"


def _trained() -> dict[str, dict[str, Any]]:
    from query2particles.methods.registry import METHODS
    from query2particles.presets import PRESETS

    return {
        name: {
            "title": entry.title,
            "state": entry.state,
            "operators": _names(entry.operators),
            "unions": list(entry.unions),
            "complement": entry.complement,
            "parameters_per_entity": entry.numbers_per_entity(PRESETS[name]["default"].model),
            "presets": list(PRESETS[name]),
        }
        for name, entry in METHODS.items()
    }


def _joined() -> dict[str, dict[str, Any]]:
    """Of particles and links, which is what `q2p train --method best` joins."""
    from query2particles.joined import BEST, FAST, GUIDED
    from query2particles.methods.registry import METHODS

    vectors, tree = METHODS["q2p"], METHODS["tree"]
    both = _names(vectors.operators & tree.operators)
    return {
        BEST: {
            "title": "particles, tree search and stored facts, weighed by validation queries",
            "state": "those of q2p and tree, and counts",
            "operators": both,
            "unions": list(vectors.unions),
            "complement": "of each part",
        },
        FAST: {
            "title": "its vectors alone",
            "state": vectors.state,
            "operators": _names(vectors.operators),
            "unions": list(vectors.unions),
            "complement": vectors.complement,
        },
        GUIDED: {
            "title": "tree search between what particles propose",
            "state": "that of q2p, and what it proposed",
            "operators": both,
            "unions": list(vectors.unions),
            "complement": tree.complement,
        },
    }


def _untrained() -> dict[str, dict[str, Any]]:
    from query2particles.engine.exact import Exact
    from query2particles.methods.baselines import FrequentTails, RelaxAndCount

    ways = ["native", "dnf", "de-morgan"]
    return {
        "frequent-tails": {
            "title": "tails of the last relations, the most frequent first",
            "state": "a likelihood of each entity",
            "operators": _names(FrequentTails.operators),
            "unions": ways,
            "complement": "by rule",
        },
        "relax-and-count": {
            "title": "most conditions that stored facts satisfy first",
            "state": "a count for each entity",
            "operators": _names(RelaxAndCount.operators),
            "unions": ways,
            "complement": "by rule",
        },
        "exact": {
            "title": "what stored facts say, no more",
            "state": "a set of entities",
            "operators": _names(Exact.operators),
            "unions": ways[:1],
            "complement": "exact",
        },
    }


def _names(operators: Set[type[Query]]) -> list[str]:
    from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Union

    return [one.__name__.lower() for one in (Anchor, Project, Intersect, Union, Complement) if one in operators]
