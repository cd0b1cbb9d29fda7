"""Stored edges where a method computes, for methods that look at them; they come from the graph and are not saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from query2particles.graph.edges import Edges, Ints

__all__ = ["Kept", "Stored", "StoredEdges", "StoredTails", "blocks_of", "laid_out"]

_EDGES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""How many edges are scattered along at once."""


class Kept(nn.Module):
    """Arrays that go where the module goes."""

    def keep(self, name: str, values: Ints) -> None:
        self.register_buffer(name, torch.from_numpy(values.astype(np.int64)), persistent=False)


def laid_out(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For rows of these lengths, one after the other: in which row each place is, and which place of it."""
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return row, torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]


def blocks_of(sizes: Ints, most: int) -> Iterator[slice]:
    """Places of sizes in a row that are no more than `most` together, or one that is."""
    start = 0
    while start < len(sizes):
        stop = start + max(1, int(np.searchsorted(sizes[start:].cumsum(), most, side="right")))
        yield slice(start, stop)
        start = stop


class Stored(NamedTuple):
    """All tails of n pairs of a head and a relation."""

    pairs: Tensor  # (tails,) of which pair each is
    tails: Tensor  # (tails,)
    counts: Tensor  # (n,) how many every pair has


class StoredTails(Kept):
    """In rows, one for each (head, relation)."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        self._relations = edges.relations
        self.keep("keys", edges.keys)  # (rows,) ascending: head · relations + relation
        self.keep("offsets", edges.offsets)  # (rows + 1,) of their tails
        self.keep("tails", edges.tails)
        self.keep("loops", edges.loops.astype(np.int64))

    keys: Tensor
    offsets: Tensor
    tails: Tensor
    loops: Tensor  # (relations,) 1 where a relation leads some entity to itself

    def without_echo(self, scores: Tensor, heads: Tensor, relations: Tensor, false: float) -> Tensor:
        """Scores (n, N) of all tails of n pairs, in place: no entity leads to itself where its relation leads nobody
        to itself.
        """
        rows = (self.loops[relations] == 0).nonzero()[:, 0]
        scores[rows, heads[rows]] = false
        return scores

    def of(self, heads: Tensor, relations: Tensor, most: int | None = None) -> Stored:
        """Of n pairs (n,); those with more than `most` tails are passed over, as if they had none."""
        wanted = heads * self._relations + relations
        rows = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        counts = torch.where(self.keys[rows] == wanted, self.offsets[rows + 1] - self.offsets[rows], 0)
        if most is not None:
            counts = counts.masked_fill(counts > most, 0)
        pairs, within = laid_out(counts)
        return Stored(pairs, self.tails[self.offsets[rows][pairs] + within], counts)


class EdgeBlock(NamedTuple):
    """All edges of some of n relations, which are consecutive."""

    some: slice
    rows: Tensor  # (edges,) of which of them each is
    heads: Tensor  # (edges,)
    tails: Tensor  # (edges,)


class StoredEdges(Kept):
    """In the order of their relations: whatever n sets lead to by a relation each is a sparse product."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        heads, relations = edges.heads_and_relations()
        order = np.argsort(relations, kind="stable")
        self.keep("heads", heads[order])
        self.keep("tails", edges.tails[order])
        self.keep("starts", np.searchsorted(relations[order], np.arange(edges.relations + 1)))

    heads: Tensor
    tails: Tensor
    starts: Tensor  # (relations + 1,)

    def of(self, relations: Tensor) -> Iterator[EdgeBlock]:
        """The edges of relations (n,), so many at once that they fit into memory."""
        first = self.starts[relations]
        counts = self.starts[relations + 1] - first
        for some in blocks_of(counts.cpu().numpy(), _EDGES["cuda" if counts.is_cuda else "cpu"]):
            rows, within = laid_out(counts[some])
            edges = first[some][rows] + within
            yield EdgeBlock(some, rows, self.heads[edges], self.tails[edges])
