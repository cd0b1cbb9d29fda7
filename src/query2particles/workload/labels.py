"""Easy and hard answers of queries, by exact traversal of two nested levels of a graph.

    easy = small ∩ large          hard = large − small          lost = small − large

with the answers on the smaller and on the larger level. Only queries with a complement lose answers: a fact that the
smaller level lacks takes them back. A lost answer is no answer, so it is not among the easy ones either; the published
benchmark counts the same way. Training queries have one level only: all their answers are hard, none easy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from query2particles.engine.exact import Batch, exact_answers
from query2particles.engine.sets import Sets
from query2particles.graph.edges import Ints
from query2particles.graph.graph import Graph, Split, smaller
from query2particles.query.algebra import Query

__all__ = ["Labelled", "Labels", "label", "labels_between"]


@dataclass(frozen=True)
class Labels:
    """The answers of n queries of one shape."""

    easy: Sets
    hard: Sets
    lost: Sets

    @staticmethod
    def stack(several: Sequence[Labels]) -> Labels:
        """Those of several batches as one."""
        easy, hard, lost = (Sets.stack([getattr(one, kind) for one in several]) for kind in ("easy", "hard", "lost"))
        return Labels(easy, hard, lost)

    def take(self, rows: Ints) -> Labels:
        """Those of some queries."""
        return Labels(self.easy.take(rows), self.hard.take(rows), self.lost.take(rows))


Labelled: TypeAlias = tuple[Batch, Mapping[Query, Labels]]
"""Queries with their answers."""


def label(
    graph: Graph,
    split: Split,
    batch: Batch,
    *,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[Query, Labels]:
    """The labels of every query of a batch; `progress` hears of each query twice, once a level (once for train)."""
    large = exact_answers(graph.at(split), batch, workers=workers, progress=progress)
    if split == "train":
        return {shape: labels_between(None, found) for shape, found in large.items()}
    small = exact_answers(graph.at(smaller(split)), batch, workers=workers, progress=progress)
    return {shape: labels_between(small[shape], found) for shape, found in large.items()}


def labels_between(small: Sets | None, large: Sets) -> Labels:
    """The labels that follow from the answers on two levels; None for the smaller one of training queries."""
    if small is None:
        nothing = Sets.empty(large.entities, len(large))
        return Labels(nothing, large, nothing)
    lost = small - large
    return Labels(small - lost, large - small, lost)
