"""GQE (Hamilton et al., NeurIPS 2018; as compared by Ren & Leskovec, NeurIPS 2020): a set of entities is one vector.

    anchor        q = e_v
    projection    q' = R_l q                            bilinear: a matrix for each relation
                  q' = q + r_l                          translation
    intersection  q' = W Ψ(NN(q⁽¹⁾), …, NN(q⁽ᴺ⁾))       DeepSets: NN = MLP; Ψ = mean or minimum of each coordinate
    score         φ(q, e_v) = ⟨q, e_v⟩                  dot
                            = κ cos(q, e_v)             cosine
                            = γ − ‖q − e_v‖₁            distance

with a bias b_v on top, if wanted. There is neither union nor complement: unions are lifted to the root.

The matrices R_l are block-diagonal, with blocks of `block` × `block` numbers: 1 leaves a diagonal, as in DistMult; 2
allows, among others, the complex factors of ComplEx and the rotations of RotatE; d is the paper's full matrix, and at
d 800 a relation then takes as much memory as 800 entities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.engine.pairs import l1_distances
from query2particles.errors import UsageError
from query2particles.methods.layers import Activation, FeedForward, rows_of
from query2particles.query.algebra import Anchor, Intersect, Project, Query

__all__ = ["GQE", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The paper's variants, and the sizes."""

    dimension: int = 800
    """d: the length of a query's vector."""
    projection: Literal["bilinear", "translation"] = "bilinear"
    """A relation is a matrix, or a vector that is added."""
    block: int = 2
    """The side of the blocks of a relation's matrix; it divides `dimension`. 1: diagonal; `dimension`: full."""
    pooling: Literal["mean", "min"] = "mean"
    """Ψ: how the branches of an intersection become one."""
    activation: Activation = "relu"
    """Inside NN."""
    residual: bool = True
    """What NN and Ψ make is added to the mean of the branches, which the paper leaves out."""
    dropout: float = 0.1
    """On what enters a projection and an intersection."""
    score: Literal["dot", "cosine", "distance"] = "dot"
    """How near an entity is to a query."""
    margin: float = 24.0
    """γ, of a distance."""
    sharpness: float = 20.0
    """κ, of a cosine."""
    bias: bool = True
    """A learned bias for each entity, which the paper leaves out."""
    entity_scale: float = 0.05
    """Standard deviation of entities at the start, and of what relations differ by from doing nothing."""


class GQE(nn.Module):
    """Vectors (n, d), in the type of the tables; only the intersection's network may run in less."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect))
    kind = staticmethod(width)
    factors: Callable[..., tuple[Tensor, Tensor, Tensor]]
    """Only of inner products, whose scores the engine then computes as matrix products."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        d, b = settings.dimension, settings.block
        self.entities = nn.Parameter(torch.randn(entities, d) * settings.entity_scale)
        if settings.projection == "translation":
            self.relations = nn.Parameter(torch.randn(relations, d) * settings.entity_scale)  # r_l
        else:
            if d % b:
                raise UsageError(f"the blocks of a matrix fill it: block ({b}) has to divide dimension ({d})")
            identity = torch.eye(b).flatten().repeat(d // b)
            self.relations = nn.Parameter(identity + torch.randn(relations, d * b) * settings.entity_scale)  # R_l
        self.bias = nn.Parameter(torch.zeros(entities)) if settings.bias else None
        self.dropout = nn.Dropout(settings.dropout)
        self.intersection = DeepSets(settings)
        if settings.score != "distance":
            self.factors = self._factors

    def anchor(self, entities: Tensor) -> Tensor:
        return functional.embedding(entities, self.entities)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        q: Tensor = self.dropout(state)
        r = functional.embedding(relations, self.relations)
        if self.settings.projection == "translation":
            return q + r
        d, b = self.settings.dimension, self.settings.block
        return (r.view(-1, d // b, b, b) * q.view(-1, d // b, 1, b)).sum(-1).flatten(1)

    def intersect(self, branches: Sequence[Tensor]) -> Tensor:
        q: Tensor = self.dropout(torch.stack(list(branches), 1))  # (n, N, d)
        pooled: Tensor = self.intersection(q.to(self.intersection.outer.weight.dtype)).to(q.dtype)
        return q.mean(1) + pooled if self.settings.residual else pooled

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        if self.settings.score == "distance":
            distances = l1_distances(state, rows_of(self.entities, entities))
            return self.settings.margin - distances + rows_of(self._bias(), entities)
        particles, table, bias = self._factors(state, entities)
        return (particles @ table.transpose(-1, -2))[:, 0] + bias

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))

    def _factors(self, state: Tensor, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """One particle (n, 1, d), table (N, d) and bias (N,) with score(v) = ⟨p, e_v⟩ + b_v."""
        return self._query(state), self._direction(rows_of(self.entities, entities)), rows_of(self._bias(), entities)

    def _query(self, state: Tensor) -> Tensor:
        scale = self.settings.sharpness if self.settings.score == "cosine" else 1.0
        return scale * self._direction(state)[:, None]

    def _direction(self, vectors: Tensor) -> Tensor:
        """What an inner product sees of entities and queries: for a cosine, vectors of length one."""
        return functional.normalize(vectors, dim=-1) if self.settings.score == "cosine" else vectors

    def _bias(self) -> Tensor:
        return self.entities.new_zeros(len(self.entities)) if self.bias is None else self.bias


class DeepSets(nn.Module):
    """W Ψ(NN(q⁽¹⁾), …, NN(q⁽ᴺ⁾)): nothing here knows an order of the branches."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.pooling = settings.pooling
        self.inner = FeedForward(settings.dimension, settings.activation)  # NN
        self.outer = nn.Linear(settings.dimension, settings.dimension, bias=False)  # W

    def forward(self, q: Tensor) -> Tensor:
        """Branches (n, N, d)."""
        several = self.inner(q)
        result: Tensor = self.outer(several.mean(1) if self.pooling == "mean" else several.amin(1))
        return result
