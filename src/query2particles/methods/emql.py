"""EmQL (Sun et al., NeurIPS 2020): a weighted set of entities is its centroid and a sketch of its weights.

    set v         a = Σₓ v(x) e_x        b = S_H(v), a count-min sketch (`methods/sketch`)
    anchor        v(x) = [x is the anchor]
    projection    v'(o) = Σ { w_t : t = (s, r, o) },  w = softmax over the k stored triples t with the largest
                  ⟨[a; λ r; 0], [e_s; λ r_t; e_o]⟩, without those whose subject s has CM(s, b) = 0
    intersection  a' = Σᵢ aᵢ             b' = minᵢ bᵢ
    union         a' = meanᵢ aᵢ          b' = meanᵢ bᵢ
    score         φ(v, x) = ⟨a, e_x⟩

The relation of a query is known, so here λ is as large as it takes for its own triples to come first: only they are
retrieved, what remains of their score is β ⟨a, e_s⟩, and no relation needs an embedding. All triples of a subject then
score the same, so it is the relation's subjects that are ranked, and their triples are listed from the best subject
down until there are k.

The sketch keeps a projection faithful: after it there are weights only for what stored triples lead to. Guesses come in
at two places. The score does not look at the sketch, so whatever lies near the known answers is ranked next to them;
and where no triple passes the sketch, which would leave nothing, it is not applied, and the subjects that lie nearest
lend their objects. Without sketches, they always do.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.errors import UsageError
from query2particles.graph.edges import Edges
from query2particles.methods.layers import rows_of
from query2particles.methods.sketch import CountMin
from query2particles.methods.stored import Kept
from query2particles.query.algebra import Anchor, Intersect, Project, Query, Union

__all__ = ["EmQL", "Settings", "WeightedSets"]

_FAR = 1e3
"""How far a triple that does not pass the sketch falls back: its weight is 0, unless all do so."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sizes, and what is done with the sketch."""

    dimension: int = 400
    """d: the length of a centroid."""
    triples: int = 1000
    """k: how many triples a projection retrieves."""
    sketch: bool = True
    """Whether sets carry a sketch. It has no weights, so a model can be trained with one and asked without."""
    depth: int = 8
    """How many hash functions a sketch has."""
    width: int = 2048
    """How many cells a sketch has for each; about twice k keep most members apart."""
    sharpness: float = 2.0
    """β: how much more the triples of near subjects weigh, which the paper leaves to the length of embeddings."""
    dropout: float = 0.5
    """The share of the retrieved triples that are left out in training, so that an answer is often to be found without
    the triple that states it; the paper has none."""
    length: float = 1.0
    """Of an embedding at the start, on average: independent of d, as the scores of triples are."""


class WeightedSets(NamedTuple):
    """n weighted sets."""

    centroid: Tensor  # a, (n, d)
    sketch: Tensor  # b, (n, depth, width); without sketches (n, 0, width)


class EmQL(nn.Module):
    """Centroids and sketches. `attach` hands over the triples before anything is projected; they are not saved."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Union))

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        self._directed = relations
        d = settings.dimension
        self.entities = nn.Parameter(torch.randn(entities, d) * settings.length / math.sqrt(d))
        self.sketches = CountMin(settings.depth if settings.sketch else 0, settings.width)
        self.triples: Triples | None = None

    def attach(self, edges: Edges) -> None:
        """The stored triples to follow relations by: those that the model is or was trained on."""
        edges.check_fit(len(self.entities), self._directed)
        self.triples = Triples(edges).to(self.entities.device)

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """All states have one form."""
        del operator, below
        return None

    def anchor(self, entities: Tensor) -> WeightedSets:
        ones = self.entities.new_ones(len(entities), 1)
        return WeightedSets(
            functional.embedding(entities, self.entities), self.sketches.encode(entities[:, None], ones)
        )

    def project(self, state: WeightedSets, relations: Tensor, *, hop: int = 0) -> WeightedSets:
        del hop
        if self.triples is None:
            raise UsageError("the model has no triples to follow relations by; call attach(edges) first")
        rows, there = self.triples.rows_of(relations)
        logits = self.settings.sharpness * (state.centroid @ self.entities.T).gather(1, self.triples.subjects[rows])
        logits, best = logits.masked_fill(~there, -torch.inf).topk(min(self.settings.triples, logits.shape[1]))
        rows = rows.gather(1, best)
        if self.settings.sketch:
            outside = self.sketches.weights(state.sketch, self.triples.subjects[rows]) == 0
            logits, best = (logits - _FAR * outside).sort(dim=1, descending=True)
            rows = rows.gather(1, best)
        objects, of, listed = self.triples.listed(rows, logits > -torch.inf, self.settings.triples)
        kept = functional.dropout(listed.to(logits.dtype), self.settings.dropout, self.training) > 0
        logits = logits.gather(1, of).masked_fill(~kept, -torch.finfo(logits.dtype).max)
        weights = logits.softmax(1) * kept  # w, (n, k); all 0 where nothing is left
        v = weights.new_zeros(len(weights), len(self.entities)).scatter_add(1, objects, weights)
        return WeightedSets(v @ self.entities, self.sketches.encode(objects, weights.detach()))

    def intersect(self, branches: Sequence[WeightedSets]) -> WeightedSets:
        centroids, sketches = zip(*branches, strict=True)
        return WeightedSets(torch.stack(centroids).sum(0), CountMin.intersection(sketches))

    def union(self, branches: Sequence[WeightedSets]) -> WeightedSets:
        centroids, sketches = zip(*branches, strict=True)
        return WeightedSets(torch.stack(centroids).mean(0), CountMin.union(sketches))

    def score(self, state: WeightedSets, entities: Tensor | None = None) -> Tensor:
        centroids, e, _ = self.factors(state, entities)
        return (centroids @ e.transpose(-1, -2))[:, 0]

    def factors(self, state: WeightedSets, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Centroids (n, 1, d), the entities (N, d) and no bias (N,): score(x) = ⟨a, e_x⟩."""
        e = rows_of(self.entities, entities)
        return state.centroid[:, None], e, e.new_zeros(e.shape[:-1])

    def stack(self, states: Sequence[WeightedSets]) -> WeightedSets:
        return WeightedSets(*map(torch.cat, zip(*states, strict=True)))

    def split(self, state: WeightedSets, sizes: Sequence[int]) -> Sequence[WeightedSets]:
        parts = (torch.split(tensor, list(sizes)) for tensor in state)
        return [WeightedSets(*part) for part in zip(*parts, strict=True)]


class Triples(Kept):
    """Stored triples on a device, in *rows*, one for each (relation, subject), those of a relation side by side."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        relations = edges.keys % edges.relations
        order = np.argsort(relations, kind="stable")
        counts = np.bincount(relations, minlength=edges.relations)
        self._most = int(counts.max())
        self.keep("subjects", edges.keys[order] // edges.relations)  # (rows,)
        self.keep("starts", edges.offsets[:-1][order])  # (rows,) of its objects
        self.keep("sizes", edges.row_lengths[:-1][order])  # (rows,) how many they are
        self.keep("objects", edges.tails)  # (triples,)
        self.keep("firsts", np.cumsum(counts) - counts)  # (relations,) their first rows
        self.keep("counts", counts)  # (relations,) how many they have

    subjects: Tensor
    starts: Tensor
    sizes: Tensor
    objects: Tensor
    firsts: Tensor
    counts: Tensor

    def rows_of(self, relations: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of each relation (n, most), as many as the largest has, and whether each is its own."""
        places = torch.arange(self._most, device=relations.device)
        rows = self.firsts[relations][:, None] + places
        return rows.clamp(max=len(self.subjects) - 1), places < self.counts[relations][:, None]

    def listed(self, rows: Tensor, valid: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
        """The objects of the first `limit` triples in valid rows (n, m): (n, limit), in which of the m rows each is,
        and whether it is there.
        """
        sizes = self.sizes[rows] * valid
        ends = sizes.cumsum(1)
        ending = ends.new_zeros(len(rows), limit + 1).scatter_add(1, ends.clamp(max=limit), torch.ones_like(ends))
        of = ending[:, :limit].cumsum(1)  # how many rows have ended by each place
        there = of < ends.shape[1]
        of = of.clamp(max=ends.shape[1] - 1)
        at = (self.starts[rows] + sizes - ends).gather(1, of) + torch.arange(limit, device=rows.device)
        return self.objects[at.clamp(max=len(self.objects) - 1)], of, there
