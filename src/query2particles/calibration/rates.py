"""How many tails are missing: what a head that has n tails under a relation is short of, on average.

    rate(r, n) = (missing(r, n) + κ rate(class, n)) / (pairs(r, n) + κ)

counts the pairs of a head and a directed relation r with n tails on the smaller level, and what the larger level adds
to them. Numbers of tails are taken together (0, 1, 2, 3–4, 5–8, …), and a relation with few pairs is drawn to its
class, relations of which as large a share of the heads has one tail alone: of a functional relation, whoever has its
tail is short of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.graph.edges import Edges, Ints

__all__ = ["Rates", "functional"]

Floats: TypeAlias = npt.NDArray[np.float64]

_FROM = np.array([1, 2, 3, 5, 9, 17, 33])
"""The least number of tails of each class of numbers but the first, which is none."""

_SINGLE = (0.7, 0.9, 0.97, 0.99)
"""Shares of heads with one tail that part the classes of relations."""

_PAIRS = 20.0
"""κ: as many pairs of its class count beside those of a relation."""


def functional(edges: Edges) -> Floats:
    """(relations,): the share of each directed relation's heads that have one tail alone; ½ where nobody has it."""
    heads, single = (np.zeros(edges.relations) for _ in range(2))
    for keys, lengths in edges.row_blocks():
        np.add.at(heads, keys % edges.relations, 1)
        np.add.at(single, keys[lengths == 1] % edges.relations, 1)
    found: Floats = (single + 1) / (heads + 2)
    return found


@dataclass(frozen=True)
class Rates:
    """By directed relation and class of numbers of tails."""

    table: Floats  # (relations, classes)

    def __call__(self, relations: Ints, tails: Ints) -> Floats:
        """How many tails are missing where there are so many, elementwise."""
        found: Floats = self.table[relations, np.searchsorted(_FROM, tails, side="right")]
        return found

    @staticmethod
    def constant(relations: int, rate: float = 0.1) -> Rates:
        """The same for all."""
        return Rates(np.full((relations, len(_FROM) + 1), rate))

    @staticmethod
    def fit(small: Edges, large: Edges) -> Rates:
        """From what a larger level adds to a smaller one."""
        missing, pairs = (np.zeros((small.relations, len(_FROM) + 1)) for _ in range(2))
        pairs[:, 0] = small.entities
        for keys, lengths in small.row_blocks():
            place = keys % small.relations, np.searchsorted(_FROM, lengths, side="right")
            np.add.at(pairs, place, 1)
            np.add.at(pairs[:, 0], place[0], -1)
            np.add.at(missing, place, large.lengths_of(*np.divmod(keys, small.relations)) - lengths)
        for keys, lengths in large.row_blocks():
            new = small.lengths_of(*np.divmod(keys, small.relations)) == 0
            np.add.at(missing[:, 0], keys[new] % small.relations, lengths[new])
        classes = np.digitize(functional(small), _SINGLE)
        table = np.zeros_like(missing)
        for one in np.unique(classes):
            own = classes == one
            of_class = (missing[own].sum(0) + 0.02) / (pairs[own].sum(0) + 1)
            table[own] = (missing[own] + _PAIRS * of_class) / (pairs[own] + _PAIRS)
        return Rates(table)

    def as_json(self) -> dict[str, Any]:
        return {
            "tails_from": [0, *_FROM.tolist()],
            "missing": [[float(f"{one:.5g}") for one in row] for row in self.table.tolist()],
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Rates:
        table = np.array([[float(one) for one in row] for row in document["missing"]])
        if document["tails_from"] != [0, *_FROM.tolist()] or table.ndim != 2 or table.shape[1] != len(_FROM) + 1:
            raise ValueError("rates of missing tails for other numbers of tails than these")
        if not (np.isfinite(table).all() and table.min(initial=math.inf) > 0):
            raise ValueError("rates of missing tails that are no positive numbers")
        return Rates(table)
