from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query

__all__ = ["ConE", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    dimension: int = 400
    hidden: int = 1600
    layers: int = 2
    margin: float = 20.0
    inside: float = 0.02
    dropout: float = 0.1
    reads: Literal["angles", "circle"] = "angles"
    residual: bool = True
    tanh: bool = True
    entity_scale: float = 0.1
    modulus: float = 1.0
    start: float = -1.0
    sharp: float = 2.0
    last: float = 1.0
    wrap: str = "none"


def term(ca, sa, ch, sh, inside, cv, sv):
    s = (sv * ca - cv * sa).abs()
    c = (cv * ca + sv * sa).abs()
    return torch.relu(s * ch - c * sh) + inside * torch.minimum(s, sh)


def pair_sums(term, left, right):
    return term(*[l[:, None] for l in left], *[r if r.dim() == 3 else r[None] for r in right]).sum(-1)


class ConE(nn.Module):
    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Complement))
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = s = settings or Settings()
        d = s.dimension
        self.entities = nn.Parameter(torch.randn(entities, d) * s.entity_scale)
        self.relations = nn.Parameter(torch.randn(relations, 2 * d) * s.entity_scale)
        self.modulus = nn.Parameter(torch.tensor(s.modulus))
        read = 3 * d if s.reads == "circle" else 2 * d
        widths = [read, *[s.hidden] * s.layers, 2 * d]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:]))
        with torch.no_grad():
            self.linears[-1].weight *= s.last
            self.linears[-1].bias *= s.last
            self.linears[-1].bias[d:] += s.start
        self.att = nn.Sequential(nn.Linear(read, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.inner = nn.Sequential(nn.Linear(read, 2 * d), nn.ReLU(), nn.Linear(2 * d, d), nn.ReLU())
        self.outer = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.drop = nn.Dropout(s.dropout)

    def _angle(self, x):
        return math.pi * torch.tanh(x) if self.settings.tanh else x

    def _w(self, axis):
        if self.settings.wrap == "none":
            return axis
        low = -math.pi if self.settings.wrap == "pi" else -math.pi / 2
        return torch.remainder(axis - low, 2 * math.pi) + low

    def _read(self, axis, ap):
        if self.settings.reads == "angles":
            return torch.cat([axis, ap], -1)
        return torch.cat([axis.cos(), axis.sin(), ap], -1)

    def anchor(self, entities):
        axis = self._angle(functional.embedding(entities, self.entities))
        return torch.cat([axis, torch.zeros_like(axis)], -1)

    def project(self, state, relations, *, hop=0):
        s = self.settings
        rax, rap = functional.embedding(relations, self.relations).chunk(2, -1)
        axis, ap = state.chunk(2, -1)
        rax = self._angle(rax)
        axis, ap = axis + rax, ap + rap
        x = self.drop(self._read(axis, ap))
        for lin in self.linears[:-1]:
            x = torch.relu(lin(x))
        x, y = self.linears[-1](x).chunk(2, -1)
        x = math.pi * torch.tanh(x)
        if s.residual:
            x = x + axis
        y = math.pi * torch.tanh(s.sharp * y) + math.pi
        return torch.cat([self._w(x), y], -1)

    def intersect(self, branches):
        axis, ap = torch.stack(list(branches)).chunk(2, -1)
        read = self._read(axis, ap)
        w = torch.softmax(self.att(read), 0)
        x, y = (w * axis.cos()).sum(0), (w * axis.sin()).sum(0)
        x = torch.where(x.abs() + y.abs() < 1e-3, 1e-3, x)
        ax = torch.atan2(y, x)
        g = torch.sigmoid(self.outer(self.inner(read).mean(0)))
        return torch.cat([self._w(ax), ap.amin(0) * g], -1)

    def complement(self, state):
        axis, ap = state.chunk(2, -1)
        return torch.cat([self._w(axis + math.pi), 2 * math.pi - ap], -1)

    def score(self, state, entities=None):
        axis, ap = state.chunk(2, -1)
        v = self._angle(self.entities if entities is None else functional.embedding(entities, self.entities)) / 2
        left = [
            (axis / 2).cos(),
            (axis / 2).sin(),
            (ap / 4).cos(),
            (ap / 4).sin(),
            torch.full_like(ap, self.settings.inside),
        ]
        right = [v.cos(), v.sin()]
        if len(state) * len(v) * axis.shape[1] > 3e7 and v.dim() == 2:
            dist = torch.cat([pair_sums(term, [l[i : i + 16] for l in left], right) for i in range(0, len(axis), 16)])
        else:
            dist = pair_sums(term, left, right)
        return self.settings.margin - self.modulus * dist

    def stack(self, states):
        return torch.cat(list(states))

    def split(self, state, sizes):
        return torch.split(state, list(sizes))
