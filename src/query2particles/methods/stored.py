"""Stored edges where a method computes, for methods that look at them; they come from the graph and are not saved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from query2particles.graph.edges import Edges, Ints

__all__ = ["Kept", "Stored", "StoredTails", "laid_out"]


class Kept(nn.Module):
    """Arrays that go where the module goes."""

    def keep(self, name: str, values: Ints) -> None:
        self.register_buffer(name, torch.from_numpy(values.astype(np.int64)), persistent=False)


def laid_out(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For rows of these lengths, one after the other: in which row each place is, and which place of it."""
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return row, torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]


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
