"""Query2Box (Ren et al., ICLR 2020): a set of entities is a box, with a centre c and an offset o ≥ 0.

    anchor        c = e_v                     o = 0
    projection    c' = c + c_l                o' = o + |o_l|
    intersection  c' = Σ_i a⁽ⁱ⁾ ⊙ c⁽ⁱ⁾        a⁽ⁱ⁾ = exp MLP(p⁽ⁱ⁾) / Σ_j exp MLP(p⁽ʲ⁾), for each coordinate
                  o' = min_i o⁽ⁱ⁾ ⊙ σ(DeepSets(p⁽¹⁾, …, p⁽ᴺ⁾))        DeepSets = W mean_i ReLU(V p⁽ⁱ⁾ + b) + b'
    distance      outside = Σ max(|e_v − c| − o, 0)      inside = Σ min(|e_v − c|, o)
    score         φ(q, e_v) = γ − outside − α inside

A branch p⁽ⁱ⁾ = (c⁽ⁱ⁾, o⁽ⁱ⁾) is seen as a whole by the networks of an intersection, as the paper prints it, or only by
its centre where a centre is made and by its offset where an offset is, as in the authors' code (`context`). Either way
the new box is no larger than the smallest branch along any axis, and its centre lies between theirs; it need not lie
inside every branch. Entities are points. There is neither union nor complement: unions are lifted to the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.engine.pairs import pair_sums
from query2particles.methods.layers import rows_of
from query2particles.query.algebra import Anchor, Intersect, Project, Query

__all__ = ["Q2B", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sizes, and what the paper and the authors' code differ in."""

    dimension: int = 400
    """d: the length of a centre, and of an offset."""
    margin: float = 24.0
    """γ"""
    inside: float = 0.02
    """α: how much a way inside the box counts; a way outside counts 1."""
    context: Literal["box", "part"] = "box"
    """What the networks of an intersection see of a branch: all of it; or its centre for the centre, its offset for the
    offset, as in the authors' code."""
    bias: bool = False
    """A learned bias for each entity, which the paper leaves out."""
    entity_scale: float = 0.04
    """Standard deviation of entities and of relations at the start."""


class Q2B(nn.Module):
    """Boxes (n, 2, d), centre and offset, in the tables' type; only the networks of an intersection may run in less."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect))
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        d, scale = settings.dimension, settings.entity_scale
        self.entities = nn.Parameter(torch.randn(entities, d) * scale)
        self.centres = nn.Parameter(torch.randn(relations, d) * scale)  # c_l
        self.offsets = nn.Parameter(torch.randn(relations, d) * scale)  # o_l
        self.bias = nn.Parameter(torch.zeros(entities)) if settings.bias else None
        self.intersection = Intersection(settings)

    def anchor(self, entities: Tensor) -> Tensor:
        c = functional.embedding(entities, self.entities)
        return torch.stack([c, torch.zeros_like(c)], 1)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        c, o = (functional.embedding(relations, table) for table in (self.centres, self.offsets))
        return state + torch.stack([c, o.abs()], 1)

    def intersect(self, branches: Sequence[Tensor]) -> Tensor:
        result: Tensor = self.intersection(torch.stack(list(branches), 1))
        return result

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        c, o = state.unbind(1)
        points = rows_of(self.entities, entities)
        scores = self.settings.margin - pair_sums(_distance(self.settings.inside), [c, o], [points])
        if self.bias is None:
            return scores
        return scores + rows_of(self.bias, entities)

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))


class Intersection(nn.Module):
    """A weighted mean of the centres, and an offset below the smallest; nothing here knows an order of the branches."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.whole = settings.context == "box"
        d = settings.dimension
        seen = 2 * d if self.whole else d
        self.attention = nn.Sequential(nn.Linear(seen, d), nn.ReLU(), nn.Linear(d, d))
        self.each, self.together = nn.Sequential(nn.Linear(seen, d), nn.ReLU()), nn.Linear(d, d)  # of DeepSets

    def forward(self, p: Tensor) -> Tensor:
        """Branches (n, N, 2, d)."""
        c, o = p.unbind(2)  # (n, N, d)
        working = p.to(self.together.weight.dtype)
        for_centre, for_offset = (working.flatten(2),) * 2 if self.whole else working.unbind(2)
        a = torch.softmax(self.attention(for_centre).to(p.dtype), 1)
        shrinking = torch.sigmoid(self.together(self.each(for_offset).mean(1)).to(p.dtype))
        return torch.stack([(a * c).sum(1), o.amin(1) * shrinking], 1)


@lru_cache
def _distance(alpha: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What a coordinate adds to outside + α inside, where inside = |e − c| − outside: no minimum has to be taken.

    For the same α it is the same function, by which the engine knows what it has compiled.
    """

    def term(c: Tensor, o: Tensor, e: Tensor) -> Tensor:
        way = (e - c).abs()
        return (1 - alpha) * (way - o).relu() + alpha * way

    return term
