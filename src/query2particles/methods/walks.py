"""Walks along stored edges, as a second opinion about links: which relations, one after the other, mean another one.

Whoever follows a path π from h, an edge of the relation r₁ and then one of r₂, each of those there as likely, ends at
t with probability π(t | h) (such walks: Lao, Mitchell and Cohen, EMNLP 2011). A tail that is drawn from all tails of h
under r was come to by some path, or by none:

    w(t | h, r) = Σ_π a_rπ π(t | h)          π: one or two relations          Σ_π a_rπ ≤ 1

The shares a are those that make stored edges likeliest (expectation maximisation), each edge left out of the walks that
are to find it, where an edge that no path explains is any of the relation's tails. This knows nothing of vectors, so it
errs elsewhere than a link predictor does; and what it says is seen in the graph.

Where a step leads to very many entities, what a walk comes to is next to nothing, and is not looked at.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from query2particles.graph.edges import Edges, Ints
from query2particles.methods.stored import StoredTails

__all__ = ["Walked", "Walks", "fit_walks"]

Floats: TypeAlias = npt.NDArray[np.float64]

_PATHS = 16
"""So many of each relation, those that come to most."""

_EXAMPLES = 100
"""So many edges of each relation say which."""

_FIRST, _SECOND = 64, 256
"""Steps that lead to more entities are not looked at."""

_AT_ONCE = 4096
"""Examples."""

_WALKERS = 4096
"""Pairs of a head and a relation that are walked from at once."""

_ROUNDS = 50
_LEAST_SHARE = 1e-3


class Walked(NamedTuple):
    """Where walks from n pairs of a head and a relation end, each end of a pair once; logarithms of chances."""

    pairs: Tensor  # (ends,) of which pair each is
    tails: Tensor  # (ends,)
    chances: Tensor  # (ends,) log ω w(t | h, r)
    rest: Tensor  # (n,) log (1 − ω Σ_t w(t | h, r)): what is left for others to say

    def beside(self, log_totals: Tensor) -> tuple[Tensor, Tensor]:
        """For scores φ whose softmax has the rest, of log Σ_t exp φ (n,): what takes its place, and the scores that the
        ends (ends,) have by walks alone, to be added to their own: log (exp φ + exp of these).
        """
        totals = log_totals - self.rest
        return totals, self.chances + totals[self.pairs]


class Walks(nn.Module):
    """The paths of every relation."""

    def __init__(self, first: Tensor, second: Tensor, shares: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", first, persistent=False)  # (relations, paths); −1: there is no such path
        self.register_buffer("second", second, persistent=False)  # −1: the path has one step
        self.register_buffer("shares", shares, persistent=False)

    first: Tensor
    second: Tensor
    shares: Tensor

    def of(self, stored: StoredTails, heads: Tensor, relations: Tensor, share: float) -> Walked:
        """Of n pairs (n,), if a share ω of what is said is said by walks."""
        blocks = zip(torch.split(heads, _WALKERS), torch.split(relations, _WALKERS), strict=True)
        pairs, tails, chances = zip(*(self._ends(stored, *block) for block in blocks), strict=True)
        of_all = torch.cat([own + number * _WALKERS for number, own in enumerate(pairs)])
        each = share * torch.cat(chances)
        arrived = each.new_zeros(len(heads)).index_add(0, of_all, each)
        return Walked(of_all, torch.cat(tails), each.log(), torch.log1p(-arrived))

    def _ends(self, stored: StoredTails, heads: Tensor, relations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of which pair each end is, where it is, and w(t | h, r)."""
        pair, path = (self.first[relations] >= 0).nonzero(as_tuple=True)
        relation = relations[pair]
        chance, second = self.shares[relation, path], self.second[relation, path]
        step, z, chance = _stepped(stored, heads[pair], self.first[relation, path], chance, _FIRST)
        pair, second = pair[step], second[step]
        on = (second >= 0) & (z != heads[pair])
        step, tails, chances = _stepped(stored, z[on], second[on], chance[on], _SECOND)
        ends = second < 0
        pairs = torch.cat([pair[ends], pair[on][step]])
        return _once(pairs, torch.cat([z[ends], tails]), torch.cat([chance[ends], chances]))


def _stepped(
    stored: StoredTails, heads: Tensor, relations: Tensor, chances: Tensor, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """From n entities along a relation each: from which each step is, where it leads and how likely it is taken."""
    found = stored.of(heads, relations, most=most)
    return found.pairs, found.tails, chances[found.pairs] / found.counts[found.pairs]


def _once(pairs: Tensor, tails: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ends that are come to by several walks, once. In float64, where it hardly shows in which order a GPU adds."""
    order = torch.argsort((pairs << 32) + tails, stable=True)
    pairs, tails, chances = pairs[order], tails[order], chances[order].double()
    last = torch.ones_like(pairs, dtype=torch.bool)
    last[:-1] = (pairs[1:] != pairs[:-1]) | (tails[1:] != tails[:-1])
    sums = chances.cumsum(0)[last].diff(prepend=chances.new_zeros(1))
    return pairs[last], tails[last], sums


def fit_walks(edges: Edges, *, seed: int = 0) -> Walks:
    """The paths that explain these edges, as a few edges of every relation show them."""
    listed = _Listed.of(edges)
    at = listed.some_of_each_relation(np.random.default_rng(seed))
    relation = listed.relations[at]
    seen = listed.seen(at)
    column, of_relation, path = _most_walked(relation, seen, listed.paths)
    shares = _likeliest(relation, seen, column, of_relation, edges)
    order = np.lexsort((-shares, of_relation))
    order = order[shares[order] >= _LEAST_SHARE]
    row = of_relation[order]
    place = _places(row)
    first, second = np.full((2, edges.relations, _PATHS), -1)
    first[row, place], second[row, place] = np.divmod(path[order], edges.relations + 1)
    second[row, place] -= 1
    of_each = np.zeros(first.shape)
    of_each[row, place] = shares[order]
    return Walks(*map(torch.from_numpy, (first, second, of_each)))


class _Seen(NamedTuple):
    """By which paths examples are found without themselves, each path of an example once, and how likely.

    The number of a path is its first relation times the number of relations and one, plus its second relation and one,
    or nothing where it has none.
    """

    example: Ints
    path: Ints
    chance: Floats


class _Listed(NamedTuple):
    """Every edge, by its head, then its relation; and all of them by head and tail."""

    heads: Ints  # (edges,) ascending
    relations: Ints
    tails: Ints
    lengths: Ints  # (edges,) how many have the same head and relation
    between: Ints  # (edges,) ascending: head · entities + tail
    order: Ints  # (edges,) which edge each of these is
    edges: Edges

    @staticmethod
    def of(edges: Edges) -> _Listed:
        rows = edges.row_lengths[:-1].astype(np.int64)
        heads, relations = edges.heads_and_relations()
        tails = edges.tails.astype(np.int64)
        between = heads * edges.entities + tails
        order = np.argsort(between, kind="stable")
        return _Listed(heads, relations, tails, np.repeat(rows, rows), between[order], order, edges)

    @property
    def paths(self) -> int:
        """One more than the greatest number of a path."""
        return self.edges.relations * (self.edges.relations + 1)

    def some_of_each_relation(self, generator: np.random.Generator) -> Ints:
        shuffled = generator.permutation(len(self.relations))
        shuffled = shuffled[np.argsort(self.relations[shuffled], kind="stable")]
        return shuffled[_places(self.relations[shuffled]) < _EXAMPLES]

    def seen(self, at: Ints) -> _Seen:
        """A block of examples at a time."""
        blocks = [self._seen(at[start : start + _AT_ONCE]) for start in range(0, len(at), _AT_ONCE)]
        return _Seen(
            np.concatenate([block.example + number * _AT_ONCE for number, block in enumerate(blocks)]),
            np.concatenate([block.path for block in blocks]),
            np.concatenate([block.chance for block in blocks]),
        )

    def _seen(self, at: Ints) -> _Seen:
        """An example's edge counts neither as a step nor among those that could be taken."""
        x, r, y = self.heads[at], self.relations[at], self.tails[at]
        example, row = _ranges(*self.edges.row_range(x))
        few = self.edges.lengths_at(row) <= _FIRST  # a hub has long rows, which are never listed
        example, row = example[few], row[few]
        which, edge = _ranges(*(self.edges.offsets[one].astype(np.int64) for one in (row, row + 1)))
        example, z = example[which], self.tails[edge]
        same = self.relations[edge] == r[example]
        is_step = ~(same & (z == y[example])) & (z != x[example])
        example, edge, z, taken = (one[is_step] for one in (example, edge, z, self.lengths[edge] - same))
        first = self.relations[edge] * (self.edges.relations + 1)
        there = z == y[example]
        between = z * self.edges.entities + y[example]
        starts, stops = (np.searchsorted(self.between, between, side) for side in ("left", "right"))
        step, place = _ranges(starts, np.where(there, starts, stops))
        last = self.order[place]
        counts = self.lengths[last] <= _SECOND
        step, last = step[counts], last[counts]
        path = np.concatenate([first[there], first[step] + self.relations[last] + 1])
        both = np.concatenate([example[there], example[step]]) * self.paths + path
        once, which = np.unique(both, return_inverse=True)  # several entities may lie on the way
        chance = 1 / np.concatenate([taken[there], taken[step] * self.lengths[last]])
        sums = np.bincount(which, chance, minlength=len(once)).astype(np.float64)
        return _Seen(once // self.paths, once % self.paths, sums)


def _places(groups: Ints) -> Ints:
    """Of numbers that ascend: how many of the same came before."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _ranges(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """For ranges of numbers, one after the other: in which range each number is, and the number."""
    lengths = stops - starts
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) + (starts - (np.cumsum(lengths) - lengths))[which]


def _most_walked(relation: Ints, seen: _Seen, paths: int) -> tuple[Ints, Ints, Ints]:
    """Of each relation the paths that come to most: which of them is seen each time, or −1; and of which relation each
    of them is, and its number.
    """
    keys, place = np.unique(relation[seen.example] * paths + seen.path, return_inverse=True)
    total = np.bincount(place, seen.chance, minlength=len(keys))
    of_relation = keys // paths
    order = np.lexsort((-total, of_relation))
    kept = np.sort(order[_places(of_relation[order]) < _PATHS])
    places = np.full(len(keys), -1)
    places[kept] = np.arange(len(kept))
    return places[place], of_relation[kept], keys[kept] % paths


def _likeliest(relation: Ints, seen: _Seen, column: Ints, of_relation: Ints, edges: Edges) -> Floats:
    """The shares of paths (columns,) that make the examples likeliest."""
    examples = np.bincount(relation, minlength=edges.relations).clip(min=1)
    heads = np.bincount(edges.keys % edges.relations, minlength=edges.relations).clip(min=1)
    tails = heads[np.arange(edges.relations) ^ 1]  # which are the heads of its inverse
    kept = column >= 0
    column, example, chance = column[kept], seen.example[kept], seen.chance[kept]
    shares = np.full(len(of_relation), 1 / (_PATHS + 1))
    unexplained = np.full(edges.relations, 1 / (_PATHS + 1))
    for _ in range(_ROUNDS):
        by_path = shares[column] * chance
        by_none = (unexplained / tails)[relation]
        whole = np.bincount(example, by_path, minlength=len(relation)) + by_none
        shares = np.bincount(column, by_path / whole[example], minlength=len(shares)) / examples[of_relation]
        unexplained = np.bincount(relation, by_none / whole, minlength=edges.relations) / examples
    return shares
