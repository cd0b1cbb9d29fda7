"""Rankings of many queries from a search for the best entities, without the scores of all (`engine/table`).

What `ranking` says of a query from all scores, this says from a few: the best that are open are searched for with all
others excluded, known answers are scored one by one, and where a set lists what it does *not* have, what it has is
again searched for with the others excluded.

`search_for` says how a run is searched: by its index where it has one, by several processes where that is asked for, in
blocks where its weights are too many to be loaded, and otherwise not at all, as all scores of a small table are quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.calibration import weights_digest
from query2particles.cluster import Cluster, Degraded
from query2particles.engine.exact import Batch, exact_nodes, refuted_answers
from query2particles.engine.method import Method
from query2particles.engine.particles import particles_of
from query2particles.engine.plausible import Plausible
from query2particles.engine.ranks import finders
from query2particles.engine.sets import Sets, union
from query2particles.engine.table import Best, Search, Table
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph
from query2particles.index import FOLDER, is_indexed, open_index
from query2particles.joined import GUIDED, Joined
from query2particles.methods.guided import Guided
from query2particles.methods.registry import Model
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions
from query2particles.ranking import Candidates, Contexts
from query2particles.run import Run

__all__ = ["By", "SearchedRanking", "Searching", "model_for", "rank_by_search", "search_for"]

By: TypeAlias = Literal["auto", "index", "exact"]

_MANY = 1_000_000
"""Of so many entities, a joined run searches only what the index of its vectors proposes."""

_SPARE = 4
"""So many times as many entities as wanted are searched for where some may be of a wrong kind."""

_LARGE = 1 << 30
"""Weights of so many bytes are left in their file, and scored in blocks."""


@dataclass(frozen=True)
class Searching:
    """How the best entities are to be found."""

    by: By = "auto"
    """The index where there is one; the index; or every entity's own score."""
    shards: int = 0
    """If not 0, every entity's own score, by so many processes that share the table (`cluster`)."""
    degraded: Degraded = "refuse"
    """What happens when one of those is lost."""


def model_for(run: Run, graph: Graph, device: str, searching: Searching) -> Model:
    """The model of a run: where it is large, with its weights left in their file; of a joined run, one that is guided.

    What guides it is the index of its vectors, if that is asked for, or if there are many entities.
    """
    if device != "cpu":
        return run.model(graph, device)
    if isinstance(run, Joined):
        many = searching.by == "auto" and len(graph.entities) >= _MANY
        if not is_indexed(run.vectors.folder) or not (many or searching.by == "index"):
            return run.model(graph)
        guided = run.answered_by(GUIDED).model(graph)
        assert isinstance(guided, Guided)
        guided.search = search_for(run.vectors, guided.vectors, Searching("index"))
        return cast(Model, guided)
    large = sum(path.stat().st_size for path in run.weight_files if path.exists()) >= _LARGE
    return run.mapped_model(graph) if large else run.model(graph)


def search_for(run: Run, model: Model, searching: Searching, graph: str | None = None) -> Search | None:
    """What finds the best entities for a run's model; None where all are scored at once."""
    if searching.shards and searching.by == "index":
        raise UsageError("processes that share a table score all entities of it: choose --search index or --cluster")
    if searching.shards:
        return Cluster.start(run, Table.of(model), shards=searching.shards, graph=graph, degraded=searching.degraded)
    again = f"q2p index {run.folder}"
    on_host = all(one.device.type == "cpu" for one in model.parameters())
    if searching.by == "index" and not is_indexed(run.folder):
        raise UsageError(f"{run.folder} has no index: make one with {again}")
    if searching.by == "index" and not on_host:
        raise UsageError("an index is searched on the CPU; choose --device cpu, or --search exact")
    if searching.by == "index" or (searching.by == "auto" and is_indexed(run.folder) and on_host):
        return open_index(run.folder / FOLDER, Table.of(model), weights=weights_digest(run), again=again)
    large = sum(one.nbytes for one in model.parameters()) >= _LARGE
    return Table.of(model) if large and on_host and Table.fits(model) else None


@dataclass(frozen=True)
class SearchedRanking:
    """The n queries of one shape: what is known, what is ruled out, and the best of what is neither."""

    nodes: Sequence[Sets]
    """The exact answers of every part of the shape, in the order of its plan."""
    refuted: Sets
    contexts: Contexts
    best: Ints  # (n, k) entities that are open
    best_scores: npt.NDArray[np.float64]  # (n, k), −∞ where there are fewer
    particles: Tensor  # (n, w, d)
    search: Search

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
        return self._best_of(self.known, row, k)

    def best_refuted(self, row: int, k: int) -> Candidates:
        """The best of those that are ruled out."""
        return self._best_of(self.refuted, row, k)

    def particles_of(self, entities: Ints) -> Ints:
        """Which particle has the best inner product with each of entities (n, k): the first of those that tie."""
        vectors = self.search.table.vectors[torch.as_tensor(entities, dtype=torch.int64)].float()  # (n, k, d)
        return finders((self.particles @ vectors.transpose(1, 2)).numpy())

    def _best_of(self, sets: Sets, row: int, k: int) -> Candidates:
        best = _best_among(self.search, self.particles[row : row + 1], sets.rows(row, row + 1), k)
        there = np.isfinite(best.scores[0, :k])
        return Candidates(best.entities[0, :k][there], best.scores[0, :k][there])


def rank_by_search(
    method: Method[Any],
    search: Search,
    edges: Edges,
    batch: Batch,
    k: int,
    *,
    unions: Unions = "native",
    plausible: Plausible | None = None,
) -> dict[Query, SearchedRanking]:
    """Of every query what is known from stored edges, and the best of the rest; call it in `scoring`.

    Kinds are looked at only of what the search finds, which is asked for more than is wanted.
    """
    nodes = exact_nodes(edges, batch)
    refuted = refuted_answers(edges, batch, workers=1)
    echoes = {} if plausible is None else plausible.echoes(batch)
    found = {}
    for shape, particles in particles_of(method, batch, unions).items():
        known = nodes[shape][-1]
        closed = union([known, refuted[shape], *([echoes[shape]] if echoes else [])])
        wanted = k if plausible is None else min(_SPARE * k, edges.entities)
        best = _best_among(search, particles, closed.complement(), wanted)
        contexts = _contexts(search, particles, best, known)
        entities, scores = best.entities, best.scores
        if plausible is not None:
            entities, scores = _of_right_kind(plausible, shape, batch[shape], entities, scores, k)
        found[shape] = SearchedRanking(nodes[shape], refuted[shape], contexts, entities, scores, particles, search)
    return found


def _of_right_kind(
    plausible: Plausible, shape: Query, ids: Ints, entities: Ints, scores: npt.NDArray[np.float64], k: int
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """The first k entities of each row (n, m) that can answer its query."""
    fits = plausible.fits(shape, ids, np.maximum(entities, 0)) & np.isfinite(scores)
    order = np.argsort(~fits, axis=1, kind="stable")[:, :k]
    chosen = np.where(np.take_along_axis(fits, order, axis=1), np.take_along_axis(scores, order, axis=1), -np.inf)
    return np.take_along_axis(entities, order, axis=1), chosen


def _best_among(search: Search, particles: Tensor, sets: Sets, k: int) -> Best:
    """The best k members of a set for each query."""
    if sets.complemented:
        return search.best(particles, k, replace(sets, complemented=False))
    entities = np.full((len(sets), max(k, 1)), -1)
    scores = np.full(entities.shape, -np.inf)
    totals = np.full(len(sets), -np.inf)
    for row in range(len(sets)):
        members = sets[row]
        own = search.table.scores_of(particles[row], members.astype(np.int64))
        order = np.argsort(-own, kind="stable")[:k]
        entities[row, : len(order)], scores[row, : len(order)] = members[order], own[order]
        if len(own):
            totals[row] = np.logaddexp.reduce(own)
    return Best(entities, scores, totals)


def _contexts(search: Search, particles: Tensor, best: Best, known: Sets) -> Contexts:
    """As of `Contexts.of`: where nothing is open, of all entities."""
    totals, highest = best.log_totals.copy(), best.scores[:, 0].copy()
    nothing = np.isneginf(highest)
    if nothing.any():
        every = search.best(particles[torch.as_tensor(nothing)], 1)
        totals[nothing], highest[nothing] = every.log_totals, every.scores[:, 0]
    return Contexts(totals, highest, known.sizes.astype(np.float64))
