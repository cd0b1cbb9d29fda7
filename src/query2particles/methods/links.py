"""Link predictors: how likely an entity t is a tail of a head h under a relation r.

    ComplEx   φ(h, r, t) = Re Σ_j h_j r_j t̄_j           complex h, r, t      (Trouillon et al., ICML 2016)
    DistMult  φ(h, r, t) = Σ_j h_j r_j t_j              real                 (Yang et al., ICLR 2015)
    TransE    φ(h, r, t) = γ − ‖h + r − t‖              real, ℓ1 or ℓ2       (Bordes et al., NeurIPS 2013)
    RotatE    φ(h, r, t) = γ − Σ_j |h_j r_j − t_j|      complex, |r_j| = 1   (Sun et al., ICLR 2019)

Each first turns h and r into one vector in the space of entities, h ∘ r or h + r, and then compares that with t. The
vector is the state, so chains of relations compose, though nothing here was made for them. A complex vector is kept as
its real parts followed by its imaginary parts: Re Σ a_j t̄_j is then the plain inner product of two such vectors.

As 2k is a relation and 2k + 1 its inverse, with an embedding each, heads are predicted as tails of inverse relations
(Lacroix et al., ICML 2018). Trained on one-hop queries, edge by edge, with a softmax over all entities, the loss is
theirs, and `penalty` adds two terms for every edge (h, r, t):

    N3                    λ Σ_j |h_j|³ + |r_j|³ + |t_j|³                      (Lacroix et al.)
    relation prediction   −μ log softmax_r φ(h, r, t), over all relations     (Chen et al., AKBC 2021)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.pairs import l1_distances, pair_sums
from query2particles.methods.layers import rows_of
from query2particles.query.algebra import Anchor, Project, Query

__all__ = ["Links", "Settings"]

_SMALLEST_SQUARE = 1e-24
"""Roots are taken of no less: at zero they have no slope."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The model, its size, and what its training is held to."""

    model: Literal["complex", "distmult", "transe", "rotate"] = "complex"
    """φ."""
    dimension: int = 1000
    """d: the coordinates of an entity, complex numbers for ComplEx and RotatE, real numbers for the others."""
    margin: float = 9.0
    """γ, of distances."""
    distance: Literal["l1", "l2"] = "l1"
    """The norm of TransE."""
    n3: float = 0.05
    """λ: how much the cubes of all coordinates of an edge count."""
    relation_prediction: float = 1.0
    """μ: how much it counts that the relation can be told from head and tail."""
    entity_scale: float = 0.05
    """Standard deviation of embeddings at the start; the angles of RotatE's relations are uniform."""


class Links(nn.Module):
    """Vectors (n, d), or (n, 2d) of complex numbers, in the type of the tables."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project))
    factors: Callable[..., tuple[Tensor, Tensor, Tensor]]
    """Only of inner products, whose scores the engine then computes as matrix products."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        self._complex = settings.model in ("complex", "rotate")
        width = settings.dimension * (2 if self._complex else 1)
        self.entities = nn.Parameter(torch.randn(entities, width) * settings.entity_scale)
        if settings.model == "rotate":
            self.relations = nn.Parameter((torch.rand(relations, settings.dimension) * 2 - 1) * math.pi)  # angles
        else:
            self.relations = nn.Parameter(torch.randn(relations, width) * settings.entity_scale)
        if settings.model in ("complex", "distmult"):
            self.factors = self._factors

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """Every state is one vector, so any two can be stacked."""
        del operator, below
        return None

    def anchor(self, entities: Tensor) -> Tensor:
        return functional.embedding(entities, self.entities)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        del hop
        r = self._turned(functional.embedding(relations, self.relations))
        match self.settings.model:
            case "transe":
                return state + r
            case "distmult":
                return state * r
            case _:
                return _product(state, r)

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        return self.compare(state, rows_of(self.entities, entities))

    def compare(self, state: Tensor, tails: Tensor) -> Tensor:
        """φ (n, m) of states and the vectors of tails, (m, ·) for all states or (n, m, ·) for each its own."""
        match self.settings.model:
            case "transe":
                return self.settings.margin - self._length(state, tails)
            case "rotate":
                return self.settings.margin - pair_sums(_modulus, state.chunk(2, -1), tails.chunk(2, -1))
            case _:
                return (state[:, None] @ tails.mT)[:, 0]

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))

    def penalty(self, shape: Query, ids: Tensor, positives: Tensor) -> Tensor:
        """N3 of a chain's head, relations and tail; of one hop also how well its relation is predicted; summed."""
        del shape  # a chain: a head, then its relations
        h, t = functional.embedding(torch.stack((ids[:, 0], positives)), self.entities).unbind()
        penalty = h.new_zeros(())
        if self.settings.n3:
            r = self._turned(functional.embedding(ids[:, 1:], self.relations))
            penalty = penalty + self.settings.n3 * sum(self.cubes(one) for one in (h, r, t))
        if self.settings.relation_prediction and ids.shape[1] == 2:
            surprise = functional.cross_entropy(self._relation_scores(h, t), ids[:, 1], reduction="sum")
            penalty = penalty + self.settings.relation_prediction * surprise
        return penalty

    def cubes(self, vectors: Tensor) -> Tensor:
        """Σ_j |v_j|³ over the coordinates of all vectors."""
        parts = vectors.chunk(2 if self._complex else 1, -1)
        return torch.stack(parts).square().sum(0).pow(1.5).sum()

    def _relation_scores(self, h: Tensor, t: Tensor) -> Tensor:
        """φ(h, r, t) of n heads and tails with every relation r, (n, relations)."""
        r = self._turned(self.relations)
        match self.settings.model:
            case "transe":
                return self.settings.margin - self._length(t - h, r)
            case "rotate":
                return self.settings.margin - pair_sums(
                    _modulus_after_turn, (*h.chunk(2, -1), *t.chunk(2, -1)), r.chunk(2, -1)
                )
            case "distmult":
                return (h * t) @ r.T
            case "complex":
                real, imaginary = h.chunk(2, -1)
                return _product(torch.cat((real, -imaginary), -1), t) @ r.T  # Re Σ h r t̄ = Re Σ r conj(h̄ t)

    def _factors(self, state: Tensor, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """One particle (n, 1, ·), the table (N, ·) and no bias (N,): score(v) = ⟨p, e_v⟩."""
        e = rows_of(self.entities, entities)
        return state[:, None], e, e.new_zeros(e.shape[:-1])

    def _turned(self, relations: Tensor) -> Tensor:
        """Relations as vectors of the entities' space: of RotatE's angles, the complex numbers on the unit circle."""
        if self.settings.model != "rotate":
            return relations
        return torch.cat((relations.cos(), relations.sin()), -1)

    def _length(self, left: Tensor, right: Tensor) -> Tensor:
        if self.settings.distance == "l1":
            return l1_distances(left, right)
        return pair_sums(_squared_difference, (left,), (right,)).clamp(min=_SMALLEST_SQUARE).sqrt()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The product of each pair of complex numbers."""
    a, b = left.chunk(2, -1)
    c, d = right.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def _squared_difference(left: Tensor, right: Tensor) -> Tensor:
    return (left - right).square()


def _modulus(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """|(a + ib) − (c + id)|"""
    return ((a - c).square() + (b - d).square()).clamp(min=_SMALLEST_SQUARE).sqrt()


def _modulus_after_turn(a: Tensor, b: Tensor, c: Tensor, d: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """|(a + ib) (cosine + i sine) − (c + id)|"""
    return _modulus(a * cosine - b * sine, a * sine + b * cosine, c, d)
