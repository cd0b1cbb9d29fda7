"""Many queries at once, of any shapes: how all entities score, what is known of them, and the best of the others.

Of the entities that stored facts neither name nor rule out, those are open that are plausible (`engine/plausible`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.engine.exact import Batch, exact_nodes, refuted_answers
from query2particles.engine.method import Method
from query2particles.engine.plausible import Plausible
from query2particles.engine.ranks import best_of, finders
from query2particles.engine.scored import score_all
from query2particles.engine.sets import Sets, union
from query2particles.graph.edges import Edges, Ints
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions

__all__ = ["Candidates", "Contexts", "Ranking", "masked", "rank"]

Floats = npt.NDArray[np.float64]

_CHOSEN_NUMBERS = 1 << 23
"""Of the embeddings of answers, as many are compared with particles at a time."""


def masked(scores: Tensor, known: Sets) -> Tensor:
    """A copy of scores (n, entities), −∞ for what is known."""
    members = known.row_of_each(), known.values
    places = tuple(torch.as_tensor(ids, dtype=torch.int64, device=scores.device) for ids in members)
    if not known.complemented:
        return scores.index_put(places, scores.new_tensor(-torch.inf))
    return torch.full_like(scores, -torch.inf).index_put(places, scores[places])


@dataclass(frozen=True)
class Contexts:
    """What the scores of n queries are measured by."""

    log_total: Floats  # (n,) log Z over the open entities
    best: Floats  # (n,) max s, of the open ones
    known: Floats  # (n,) how many are known

    @staticmethod
    def of(scores: Tensor, unknown: Tensor, known: Sets) -> Contexts:
        """Of scores (n, entities), and of the same with −∞ for all that is not open; where nothing is, of all."""
        nothing = torch.isneginf(unknown.amax(1))
        if bool(nothing.any()):
            unknown = torch.where(nothing[:, None], scores, unknown)
        return Contexts(
            unknown.logsumexp(1).cpu().numpy().astype(np.float64),
            unknown.amax(1).cpu().numpy().astype(np.float64),
            known.sizes.astype(np.float64),
        )

    def __getitem__(self, rows: Any) -> Contexts:
        return Contexts(self.log_total[rows], self.best[rows], self.known[rows])

    def features(self, scores: Floats) -> Floats:
        """(…, 3) of scores (n, …), or of any shape where these are numbers of one query."""
        shape = (*np.shape(self.log_total), *([1] * (scores.ndim - np.ndim(self.log_total))))
        total, best, known = (np.reshape(part, shape) for part in (self.log_total, self.best, self.known))
        features = np.empty((*scores.shape, 3))
        features[..., 0], features[..., 1], features[..., 2] = scores - total, best - total, np.log1p(known)
        return features

    def softmax(self, scores: Floats) -> Floats:
        """What the scores claim as they are: exp(s − log Z), at most 1."""
        found: Floats = np.exp(np.minimum(self.features(scores)[..., 0], 0))
        return found


@dataclass(frozen=True)
class Candidates:
    """Some entities of one query with their scores, best first; of equal ones the smaller id first."""

    entities: Ints
    scores: Floats


@dataclass(frozen=True)
class Ranking:
    """The queries of one shape: what is known of each, the scores of all entities, and the best of the open ones."""

    nodes: Sequence[Sets]
    """The exact answers of every part of the shape, in the order of its plan."""
    refuted: Sets
    """What stored facts rule out for good."""
    scores: Tensor  # (n, entities)
    contexts: Contexts
    best: Ints  # (n, k) entities that are open: neither known, nor ruled out, and plausible
    best_scores: Floats  # (n, k), −∞ where there are fewer
    factors: tuple[Tensor, Tensor, Tensor] | None  # as of `Scored`

    @property
    def known(self) -> Sets:
        """The exact answers."""
        return self.nodes[-1]

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


def rank(
    method: Method[Any],
    edges: Edges,
    batch: Batch,
    k: int,
    *,
    unions: Unions = "native",
    plausible: Plausible | None = None,
) -> dict[Query, Ranking]:
    """Of every query what is known from stored edges, and how a method scores all entities; call it in `scoring`.

    One plan runs all shapes; roots of one kind are scored together. Without `plausible`, whatever is neither known nor
    ruled out for good is open.
    """
    nodes = exact_nodes(edges, batch)
    refuted = refuted_answers(edges, batch, workers=1)
    echoes = {} if plausible is None else plausible.echoes(batch)
    scored = score_all(method, batch, edges.entities, unions)
    contexts, candidates = {}, []
    for shape, one in scored.items():
        known = nodes[shape][-1]
        unknown = masked(one.scores, union([known, refuted[shape], *([echoes[shape]] if echoes else [])]))
        contexts[shape] = Contexts.of(one.scores, unknown, known)
        if plausible is not None and (allowed := plausible.allowed(shape, batch[shape])) is not None:
            unknown = unknown.masked_fill(torch.from_numpy(~allowed).to(unknown.device), -torch.inf)
        candidates.append(unknown)
    entities, values = best_of([(0, torch.cat(candidates))], k)
    sizes = list(map(len, candidates))
    best = np.split(entities.cpu().numpy(), np.cumsum(sizes[:-1]))
    best_scores = np.split(values.double().cpu().numpy(), np.cumsum(sizes[:-1]))
    return {
        shape: Ranking(
            nodes[shape], refuted[shape], one.scores, contexts[shape], best[number], best_scores[number], one.factors
        )
        for number, (shape, one) in enumerate(scored.items())
    }
