"""ConE (Zhang et al., NeurIPS 2021): a set of entities is d sector cones, each with an axis and an aperture.

    anchor        θ_ax = θ_v                        θ_ap = 0
    projection    (x, y) = MLP(θ_ax + r_ax, θ_ap + r_ap)
                  θ'_ax = π tanh x                  θ'_ap = π + π tanh 2y
    intersection  θ'_ax = Arg Σ_k a⁽ᵏ⁾ ⊙ exp(i θ⁽ᵏ⁾_ax)        a⁽ᵏ⁾ = exp MLP(p⁽ᵏ⁾) / Σ_j exp MLP(p⁽ʲ⁾), for each cone
                  θ'_ap = min_k θ⁽ᵏ⁾_ap ⊙ σ(DeepSets(p⁽¹⁾, …, p⁽ᴺ⁾))        DeepSets = W mean_k ReLU(V p⁽ᵏ⁾ + b) + b'
    complement    θ'_ax = θ_ax ± π                  θ'_ap = 2π − θ_ap
    score         φ(q, v) = γ − m (outside + λ inside)

where p = (θ_ax − θ_ap/2, θ_ax + θ_ap/2) are the bounds of a cone, and m is learned. Distances are half chords of the
unit circle. With δ, half the angle between θ_v and the axis, and h = θ_ap/4, a quarter of the aperture, an entity is
inside if δ ≤ h, and

    outside = Σ max(0, sin(δ − h))                  inside = Σ min(sin δ, sin h)

which are the paper's minima over the two bounds: the bound that is nearer lies at the angle 2 |δ − h|. As sin δ and
cos δ follow from the sines and cosines of halves of both angles, no pair of a query and an entity takes more than
products.

By default a relation turns the axis, and the MLP only corrects that (`residual`): θ'_ax = θ_ax + r_ax + π tanh x. There
is no union: unions are lifted to the root, or rewritten with complements, which are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.engine.pairs import pair_sums
from query2particles.errors import UsageError
from query2particles.methods.layers import Perceptron, rows_of
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query

__all__ = ["ConE", "Settings"]

_NO_DIRECTION = 1e-3
"""Axes whose mean is shorter than this cancel each other: it has no direction, and its angle no useful derivative."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sizes, and how a model starts."""

    dimension: int = 400
    """d: the number of cones, each of two numbers."""
    hidden: int = 1600
    """The width of the projection's MLP."""
    layers: int = 2
    """Its hidden layers."""
    residual: bool = True
    """A relation turns the axis, and the MLP is added to that; without, the MLP alone gives the axis, as printed."""
    dropout: float = 0.1
    """On what enters a projection."""
    margin: float = 20.0
    """γ"""
    inside: float = 0.02
    """λ: how much a way inside the cone counts; a way outside counts 1."""
    modulus: float = 3.0
    """m √d at the start: scores of random entities then differ by less than one."""
    aperture: float = 0.1
    """Of projections at the start, in radians. Cones that start wide hold so many entities that they learn slowly; the
    paper's start around π."""
    entity_scale: float = 0.1
    """Standard deviation of entities and relations at the start, in half turns."""


class ConE(nn.Module):
    """Cones (n, 2, d), axis and aperture, in the type of the tables; only the networks may run in less."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Complement))
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        if not 0 < settings.aperture < 2 * math.pi:
            raise UsageError(f"aperture is an angle above 0 and below 2π (6.28), not {settings.aperture}")
        d = settings.dimension
        self.entities = nn.Parameter(torch.randn(entities, d) * settings.entity_scale)
        self.relations = nn.Parameter(torch.randn(relations, 2 * d) * settings.entity_scale)
        self.dropout = nn.Dropout(settings.dropout)
        self.projection = Perceptron(2 * d, *[settings.hidden] * settings.layers, 2 * d)
        self.intersection = Intersection(d)
        self.nearness = Nearness(settings)

    def anchor(self, entities: Tensor) -> Tensor:
        axis = _half_turns(functional.embedding(entities, self.entities))
        return torch.stack([axis, torch.zeros_like(axis)], 1)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        moved = state + _half_turns(functional.embedding(relations, self.relations)).view_as(state)
        x, y = self.projection(self.dropout(moved.flatten(1))).view_as(state).unbind(1)
        axis = moved[:, 0] + _half_turns(x) if self.settings.residual else _half_turns(x)
        start = math.atanh(self.settings.aperture / math.pi - 1)
        return torch.stack([_wrapped(axis), math.pi + _half_turns(start + 2 * y)], 1)

    def intersect(self, branches: Sequence[Tensor]) -> Tensor:
        result: Tensor = self.intersection(torch.stack(list(branches), 1))
        return result

    def complement(self, state: Tensor) -> Tensor:
        axis, aperture = state.unbind(1)
        return torch.stack([_wrapped(axis + math.pi), 2 * math.pi - aperture], 1)

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        raw = rows_of(self.entities, entities)
        result: Tensor = self.nearness(state, _half_turns(raw))
        return result

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))


class Intersection(nn.Module):
    """SemanticAverage of the axes and CardMin of the apertures; nothing here knows an order of the branches."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.attention = Perceptron(2 * dimension, dimension, dimension)
        self.each = nn.Linear(2 * dimension, dimension)  # V
        self.together = nn.Linear(dimension, dimension)  # W

    def forward(self, cones: Tensor) -> Tensor:
        """Branches (n, N, 2, d)."""
        axis, aperture = cones.unbind(2)  # (n, N, d)
        p = torch.cat([axis - aperture / 2, axis + aperture / 2], -1)
        a = torch.softmax(self.attention(p), 1)
        x, y = (a * axis.cos()).sum(1), (a * axis.sin()).sum(1)
        x = torch.where(x.abs() + y.abs() < _NO_DIRECTION, _NO_DIRECTION, x)
        several = torch.relu(self.each(p.to(self.each.weight.dtype)))
        shrinking = torch.sigmoid(self.together(several.mean(1)).to(p.dtype))
        return torch.stack([torch.atan2(y, x), aperture.amin(1) * shrinking], 1)


class Nearness(nn.Module):
    """γ − m (outside + λ inside)"""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.margin, self.inside = settings.margin, settings.inside
        self.modulus = nn.Parameter(torch.tensor(settings.modulus / math.sqrt(settings.dimension)))  # m

    def forward(self, cones: Tensor, angles: Tensor) -> Tensor:
        """Of queries (n, 2, d) and entities (m, d), or (n, m, d) where every query has its own."""
        half_axis, h, half_angle = cones[:, 0] / 2, cones[:, 1] / 4, angles / 2
        left = [half_axis.cos(), half_axis.sin(), h.cos(), h.sin()]
        return self.margin - self.modulus * pair_sums(
            _distance(self.inside), left, [half_angle.cos(), half_angle.sin()]
        )


def _half_turns(x: Tensor) -> Tensor:
    """An angle between −π and π from any number, about x half turns where that is small."""
    return math.pi * torch.tanh(x)


def _wrapped(angle: Tensor) -> Tensor:
    """The same direction in [−π, π)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


@lru_cache
def _distance(inside: float) -> Callable[..., Tensor]:
    """What a coordinate adds to outside + λ inside, from cosines and sines: of half the axis, of a quarter of the
    aperture, of half the entity's angle. For the same λ it is the same function, which the engine compiles once.
    """

    def term(cos_axis: Tensor, sin_axis: Tensor, cos_h: Tensor, sin_h: Tensor, cos_v: Tensor, sin_v: Tensor) -> Tensor:
        sin_delta = (sin_v * cos_axis - cos_v * sin_axis).abs()
        cos_delta = (cos_v * cos_axis + sin_v * sin_axis).abs()
        return (sin_delta * cos_h - cos_delta * sin_h).relu() + inside * torch.minimum(sin_delta, sin_h)

    return term
