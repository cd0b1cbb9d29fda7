from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query

__all__ = ["BetaE", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    dimension: int = 400
    hidden: int = 1600
    layers: int = 2
    margin: float = 60.0
    dropout: float = 0.1
    positive: Literal["clamp", "softplus", "bounded"] = "bounded"
    reads: Literal["parameters", "logarithms"] = "logarithms"
    minimum: float = 0.05
    entity_scale: float = 0.15
    norm: bool = False
    residual: bool = False
    bias: bool = False
    gate: bool = False
    last: float = 1.0


class BetaE(nn.Module):
    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Complement))
    precise: ClassVar[bool] = True
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = s = settings or Settings()
        d = s.dimension
        self.entities = nn.Parameter(torch.randn(entities, 2 * d) * s.entity_scale)
        self.relations = nn.Parameter(torch.randn(relations, d if not s.residual else 2 * d) * s.entity_scale)
        widths = [2 * d + self.relations.shape[1], *[s.hidden] * s.layers, (4 if s.gate else 2) * d]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:]))
        with torch.no_grad():
            self.linears[-1].weight *= s.last
            self.linears[-1].bias *= s.last
        self.norms = nn.ModuleList(nn.LayerNorm(w) if s.norm else nn.Identity() for w in widths[1:-1])
        self.att1 = nn.Linear(2 * d, 2 * d)
        self.att2 = nn.Linear(2 * d, d)
        self.drop = nn.Dropout(s.dropout)
        self.bias = nn.Parameter(torch.zeros(entities)) if s.bias else None

    def _pos(self, x):
        s = self.settings
        if s.positive == "clamp":
            return (x + 1).clamp(s.minimum, 1e9)
        if s.positive == "softplus":
            return functional.softplus(x + math.log(math.expm1(1))) + s.minimum
        L = math.log(1 / s.minimum)
        return torch.exp(L * torch.tanh(x / L))

    def _read(self, state):
        return state.log() if self.settings.reads == "logarithms" else state

    def anchor(self, entities):
        return self._pos(functional.embedding(entities, self.entities))

    def project(self, state, relations, *, hop=0):
        r = functional.embedding(relations, self.relations)
        x0 = self._read(state)
        x = torch.cat([x0, r], -1)
        x = self.drop(x)
        for lin, norm in zip(self.linears[:-1], self.norms):
            x = norm(torch.relu(lin(x)))
        x = self.linears[-1](x)
        if self.settings.gate:
            x, g = x.chunk(2, -1)
            x = x + torch.sigmoid(g + 1) * (x0 + r)
        elif self.settings.residual:
            x = x + x0 + r
        return self._pos(x)

    def intersect(self, branches):
        stacked = torch.stack(list(branches))
        w = torch.softmax(self.att2(torch.relu(self.att1(self._read(stacked)))), 0)
        return (torch.cat([w, w], -1) * stacked).sum(0)

    def complement(self, state):
        return 1 / state

    def factors(self, state):
        a, b = state.chunk(2, -1)
        A, B = self._pos(self.entities).chunk(2, -1)
        pa, pb, ps = A.digamma(), B.digamma(), (A + B).digamma()
        ta, tb = pa - ps, pb - ps
        lnB = A.lgamma() + B.lgamma() - (A + B).lgamma()
        own = (lnB - A * ta - B * tb).sum(1)
        c = (a.lgamma() + b.lgamma() - (a + b).lgamma()).sum(1)
        p = torch.cat([a, b, (self.settings.margin - c)[:, None]], 1)[:, None]
        t = torch.cat([ta, tb, torch.ones_like(own)[:, None]], 1)
        if self.bias is not None:
            own = own + self.bias
        return p, t, own

    def score(self, state, entities=None):
        p, t, b = self.factors(state)
        return p[:, 0] @ t.T + b

    def stack(self, states):
        return torch.cat(list(states))

    def split(self, state, sizes):
        return torch.split(state, list(sizes))
