"""The vectors of all entities as a table that is read in blocks, so that it may lie in a file: the best k of a query.

    s(v) = max_k ⟨p_k, e_v⟩ + b_v

A query is its particles p. Nothing here holds the scores of all entities, nor more of the table than a block: rows of
a memory-mapped file are read where they are needed. Blocks say which entities are candidates; the scores of those are
then computed again in float64 and rounded to float32, so that neither the size of a block nor where a table was cut
decides an order: one table and two halves of it give the same answers.

What finds the best entities is a `Search`: a table asks every row, an index (`index`) few, a cluster (`cluster`) asks
several processes that each hold a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.engine.method import Method
from query2particles.engine.ranks import Factored, best_of, ids_for
from query2particles.engine.sets import Sets
from query2particles.errors import UsageError
from query2particles.graph.edges import Ints

__all__ = ["Best", "Search", "Table", "best_rows", "merged"]

Floats = npt.NDArray[np.float64]

_BLOCK = 8192
"""Rows that are read at once: a block and its scores fit a cache."""

_SPARE = 16
"""Candidates beyond k: float32 may have put the k-th behind as many others that score the same but for rounding."""

_SCORED_ROWS = 1 << 16
"""Of single entities, as many rows are read at once."""


class Best(NamedTuple):
    """The best k entities of each of n queries, best first; of equal ones the smaller id first."""

    entities: Ints  # (n, k), −1 where there are fewer
    scores: Floats  # (n, k), −∞ there
    log_totals: Floats  # (n,) log Σ exp s(v) over all that were not excluded

    def rows(self, rows: slice) -> Best:
        return Best(self.entities[rows], self.scores[rows], self.log_totals[rows])


class Search(Protocol):
    """What finds the best entities of queries that are particles."""

    @property
    def table(self) -> Table:
        """Every entity's own score is at hand whoever searches."""
        ...

    def best(self, particles: Tensor, k: int, excluded: Sets | None = None) -> Best:
        """Of particles (n, w, d), the best k entities that a query's row of listed ids does not exclude."""
        ...

    def as_json(self) -> dict[str, Any]:
        """What an answer says about how it was found."""
        ...


@dataclass(frozen=True)
class Table:
    """Some entities, those of the ids `first` and on, by row: all of them, or what one process holds."""

    vectors: Tensor  # (N, d), of any floating type, often a file's own memory; to be searched, on the CPU
    bias: Tensor  # (N,)
    first: int = 0

    @staticmethod
    def fits(method: Method[Any]) -> bool:
        """Whether a method's scores are inner products, and those of disjuncts the best of each."""
        return isinstance(method, Factored) and not hasattr(method, "disjoin")

    @staticmethod
    def of(method: Method[Any]) -> Table:
        """That of a method whose scores are inner products with one."""
        if not Table.fits(method) or not isinstance(method, Factored):
            raise UsageError(
                f"{type(method).__name__} does not score by inner products with a table, and nothing else can be "
                "searched; q2p, gqe, betae and emql do"
            )
        with torch.inference_mode():
            _, vectors, bias = method.factors(method.anchor(ids_for(method, np.zeros(1, dtype=np.int64))))
        return Table(vectors.detach(), bias.detach())

    @property
    def table(self) -> Table:
        return self

    def __len__(self) -> int:
        return len(self.vectors)

    def part(self, start: int, stop: int) -> Table:
        """The rows from `start` up to `stop`, which know their ids."""
        return Table(self.vectors[start:stop], self.bias[start:stop], self.first + start)

    def parts(self, count: int) -> list[Table]:
        """The table cut into as many parts, nearly equal ones; fewer where there are fewer rows."""
        bounds = [len(self) * number // count for number in range(count + 1)]
        return [self.part(start, stop) for start, stop in pairwise(bounds) if start < stop]

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Vectors and bias in float32; no copy where they are."""
        return self.vectors[start:stop].float(), self.bias[start:stop].float()

    def best(self, particles: Tensor, k: int, excluded: Sets | None = None) -> Best:
        """By looking at every row."""
        with torch.inference_mode():
            particles = particles.float()
            totals = torch.full((len(particles),), -torch.inf, dtype=torch.float64)
            candidates = _Candidates(len(particles), min(k + _SPARE, len(self)))
            closed = _Closed.of(excluded, self.first)
            for start in range(0, len(self), _BLOCK):
                scores = self.block(particles, start)
                closed.take_out(scores, start)
                totals = torch.logaddexp(totals, scores.logsumexp(1).double())
                candidates.see(scores, self.first + start)
            return self.judged(particles, candidates.entities.numpy(), k, totals.numpy())

    def block(self, particles: Tensor, start: int) -> Tensor:
        """The scores (n, m) of a block of m entities, from the row `start` on, in float32."""
        n, w, d = particles.shape
        e, b = self.rows(start, start + _BLOCK)
        products = e @ particles.transpose(0, 1).reshape(w * n, d).T  # (m, w·n): the table stays where it is
        return products.view(len(e), w, n).amax(1).T.contiguous() + b

    def judged(self, particles: Tensor, candidates: Ints, k: int, log_totals: Floats) -> Best:
        """The best k of some candidates (n, m), −1 where there is none; one that is there twice counts once."""
        entities = np.sort(candidates, axis=1)
        entities[:, 1:][entities[:, 1:] == entities[:, :-1]] = -1
        scores = np.full(entities.shape, -np.inf)
        for row, own in enumerate(entities):
            there = own >= 0
            scores[row, there] = self.scores_of(particles[row], own[there])
        return _first(entities, scores, k, log_totals)

    def scores_of(self, particles: Tensor, entities: Ints) -> Floats:
        """Of one query's particles (w, d), the scores of entities (m,), as exact as float32 can say them."""
        found = np.empty(len(entities))
        with torch.inference_mode():
            p = particles.double()
            for start in range(0, len(entities), _SCORED_ROWS):
                rows = torch.as_tensor(entities[start : start + _SCORED_ROWS], dtype=torch.int64) - self.first
                scores = (self.vectors[rows].double() @ p.T).amax(1) + self.bias[rows].double()
                found[start : start + _SCORED_ROWS] = scores.float().double().numpy()
        return found

    def as_json(self) -> dict[str, Any]:
        return {"by": "blocks", "exact": True}


def best_rows(several: Sequence[Best], k: int) -> Best:
    """The results for some queries and for others as one; what has fewer than k is filled up."""

    def filled(values: npt.NDArray[Any], filler: float) -> npt.NDArray[Any]:
        return np.pad(values, ((0, 0), (0, k - values.shape[1])), constant_values=filler)

    return Best(
        np.concatenate([filled(one.entities, -1) for one in several]),
        np.concatenate([filled(one.scores, -np.inf) for one in several]),
        np.concatenate([one.log_totals for one in several]),
    )


def merged(several: Sequence[Best], k: int) -> Best:
    """The results of the same queries over different entities as one."""
    entities = np.concatenate([one.entities for one in several], axis=1)
    scores = np.concatenate([one.scores for one in several], axis=1)
    return _first(entities, scores, k, np.logaddexp.reduce([one.log_totals for one in several], axis=0))


def _first(entities: Ints, scores: Floats, k: int, log_totals: Floats) -> Best:
    order = np.lexsort((entities, -scores))[:, :k]
    return Best(np.take_along_axis(entities, order, 1), np.take_along_axis(scores, order, 1), log_totals)


class _Candidates:
    """The best of all blocks that were seen, in ascending order of their ids; of equal ones the first stay first."""

    def __init__(self, rows: int, count: int) -> None:
        self.entities = torch.full((rows, count), -1)
        self._scores = torch.full((rows, count), -torch.inf)

    def see(self, scores: Tensor, first: int) -> None:
        """Take in the scores (n, m) of a block, whose ids begin at `first`."""
        # Most blocks have nothing for most queries. What is no number is let through, and refused by `best_of`.
        rows = torch.nonzero(~(scores.amax(1) <= self._scores[:, -1])).flatten()
        if not len(rows):
            return
        count = self.entities.shape[1]
        new, new_scores = best_of([(first, scores[rows])], count)
        entities = torch.cat([self.entities[rows], new.masked_fill(torch.isneginf(new_scores), -1)], 1)
        best = torch.cat([self._scores[rows], new_scores], 1).sort(dim=1, descending=True, stable=True)
        self.entities[rows] = entities.gather(1, best.indices[:, :count])
        self._scores[rows] = best.values[:, :count]


@dataclass(frozen=True)
class _Closed:
    """Places (row, column) in ascending order of the column."""

    rows: Ints
    columns: Ints

    @staticmethod
    def of(excluded: Sets | None, first: int) -> _Closed:
        if excluded is None:
            return _Closed(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        assert not excluded.complemented, "what is excluded is listed"
        order = np.argsort(excluded.values, kind="stable")
        return _Closed(excluded.row_of_each()[order], excluded.values[order].astype(np.int64) - first)

    def take_out(self, scores: Tensor, start: int) -> None:
        """Write −∞ to what is closed of a block that begins at this column."""
        low, high = np.searchsorted(self.columns, (start, start + scores.shape[1]))
        if low < high:
            places = torch.as_tensor(self.rows[low:high]), torch.as_tensor(self.columns[low:high] - start)
            scores[places] = -torch.inf
