"""Many queries at once, of any shapes: how all entities score, what is known of them, and the best of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.calibration import Contexts, masked
from query2particles.engine.exact import Batch, exact_answers, refuted_answers
from query2particles.engine.method import Method
from query2particles.engine.ranks import best_of, finders
from query2particles.engine.scored import score_all
from query2particles.engine.sets import Sets, union
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions

__all__ = ["Candidates", "Ranking", "rank"]

Floats = npt.NDArray[np.float64]

_CHOSEN_NUMBERS = 1 << 23
"""Of the embeddings of answers, as many are compared with particles at a time."""


@dataclass(frozen=True)
class Candidates:
    """Some entities of one query with their scores, best first; of equal ones the smaller id first."""

    entities: Ints
    scores: Floats


@dataclass(frozen=True)
class Ranking:
    """The queries of one shape: what is known of each, the scores of all entities, and the best of the open ones."""

    known: Sets
    refuted: Sets
    """What stored facts rule out for good; all else that is not known is open."""
    scores: Tensor  # (n, entities)
    contexts: Contexts
    best: Ints  # (n, k) entities that are open
    best_scores: Floats  # (n, k), −∞ where there are fewer
    factors: tuple[Tensor, Tensor, Tensor] | None  # as of `Scored`

    def best_open(self, row: int, k: int) -> Candidates:
        """The best of those that may be answers or not; `k` is at most what was asked for."""
        there = np.isfinite(self.best_scores[row, :k])
        return Candidates(self.best[row, :k][there], self.best_scores[row, :k][there])

    def best_known(self, row: int, k: int) -> Candidates:
        """The best of the known ones."""
        return self._best_of(self.known[row], row, k)

    def best_refuted(self, row: int, k: int) -> Candidates:
        """The best of those that are ruled out."""
        return self._best_of(self.refuted[row], row, k)

    def _best_of(self, entities: Ints, row: int, k: int) -> Candidates:
        scores = self.scores[row, torch.as_tensor(entities, dtype=torch.int64)].cpu().numpy().astype(np.float64)
        order = np.argsort(-scores, kind="stable")[:k]
        return Candidates(entities[order], scores[order])

    def particles_of(self, entities: Ints) -> Ints | None:
        """Which particle has the best inner product with each of entities (n, k): the first of those that tie."""
        if self.factors is None:
            return None
        particles, table, _ = self.factors
        places = torch.as_tensor(entities, dtype=torch.int64, device=table.device)
        together = max(1, _CHOSEN_NUMBERS // max(1, places.shape[1] * table.shape[1]))
        found = np.empty(entities.shape, dtype=np.int64)
        for start in range(0, len(places), together):
            rows = slice(start, start + together)
            products = (particles[rows] @ table[places[rows]].transpose(1, 2)).cpu().numpy()  # (rows, w, k)
            found[rows] = finders(products)
        return found


def rank(method: Method[Any], edges: Edges, batch: Batch, k: int, *, unions: Unions = "native") -> dict[Query, Ranking]:
    """Of every query what is known from stored edges, and how a method scores all entities; call it in `scoring`.

    One plan runs all shapes; roots of one kind are scored together.
    """
    known = exact_answers(edges, batch, workers=1)
    refuted = refuted_answers(edges, batch, workers=1)
    scored = score_all(method, batch, edges.entities, unions)
    open_to = {shape: masked(one.scores, union([known[shape], refuted[shape]])) for shape, one in scored.items()}
    entities, values = best_of([(0, torch.cat(list(open_to.values())))], k)
    sizes = list(map(len, open_to.values()))
    best = np.split(entities.cpu().numpy(), np.cumsum(sizes[:-1]))
    best_scores = np.split(values.double().cpu().numpy(), np.cumsum(sizes[:-1]))
    return {
        shape: Ranking(
            known[shape],
            refuted[shape],
            one.scores,
            Contexts.of(one.scores, open_to[shape], known[shape]),
            best[number],
            best_scores[number],
            one.factors,
        )
        for number, (shape, one) in enumerate(scored.items())
    }
