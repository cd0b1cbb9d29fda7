"""BetaE (Ren & Leskovec, NeurIPS 2020): a set of entities is d Beta distributions, with parameters α > 0 and β > 0.

    anchor        S = (α_v, β_v)
    projection    S' = MLP(S, r_l), made positive
    intersection  S' = Σ_i w⁽ⁱ⁾ ⊙ S⁽ⁱ⁾            w⁽ⁱ⁾ = exp MLP(S⁽ⁱ⁾) / Σ_j exp MLP(S⁽ʲ⁾), for each distribution
    complement    S' = (1/α, 1/β)
    score         φ(q, v) = γ − Σ KL(Beta(α_v, β_v) ‖ Beta(α, β))

An intersection's density is the product of its branches' to the powers w⁽ⁱ⁾. A divergence is, for x as v has it,

    −KL = entropy of v + E ln p_q(x)              ln p_q(x) = (α − 1) ln x + (β − 1) ln(1 − x) − ln B(α, β)

so that the score is linear in E ln x = ψ(α_v) − ψ(α_v + β_v) and E ln(1 − x) = ψ(β_v) − ψ(α_v + β_v), and those of all
entities are one matrix product.

What is learned is free to be any number; `positive` says how it becomes a parameter. By default that is by logarithms:
the complement then turns their sign, a relation shifts them, and the MLP only corrects that (`residual`):
ln S' = ln S + r_l + MLP(ln S, r_l). There is no union: unions are lifted to the root, or rewritten with complements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.errors import UsageError
from query2particles.methods.layers import Perceptron, rows_of
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query

__all__ = ["BetaE", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sizes, and how parameters are kept positive."""

    dimension: int = 400
    """d: the number of distributions, each of two numbers."""
    hidden: int = 1600
    """The width of the projection's MLP."""
    layers: int = 2
    """Its hidden layers."""
    positive: Literal["bounded", "clamp"] = "bounded"
    """Parameters from free numbers x: exp(L tanh(x / L)), which lies between `minimum` = exp(−L) and its reciprocal,
    like its complement; or max(1 + x, `minimum`), as in the authors' code. Either way 0 stands for 1."""
    minimum: float = 0.05
    """The smallest parameter."""
    residual: bool = True
    """A projection adds to what it projects, in free numbers; without, the MLP alone gives the result, as printed."""
    dropout: float = 0.1
    """On what enters a projection's MLP."""
    margin: float = 60.0
    """γ"""
    entity_scale: float = 0.15
    """Standard deviation of entities' and relations' free numbers at the start."""


class BetaE(nn.Module):
    """Parameters (n, 2, d), α and β, in the type of the tables; only the networks may run in less."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Complement))
    precise: ClassVar[bool] = True
    """Scores are small differences of large sums."""
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        if not 0 < settings.minimum < 1:
            raise UsageError(f"minimum lies between 0 and 1, which parameters start at, and is not {settings.minimum}")
        d = settings.dimension
        self.entities = nn.Parameter(torch.randn(entities, 2 * d) * settings.entity_scale)
        self.relations = nn.Parameter(torch.randn(relations, 2 * d) * settings.entity_scale)
        self.dropout = nn.Dropout(settings.dropout)
        self.projection = Perceptron(4 * d, *[settings.hidden] * settings.layers, 2 * d)
        self.attention = Perceptron(2 * d, 2 * d, d)
        self._remembered: tuple[tuple[int, int], tuple[Tensor, Tensor]] | None = None

    def anchor(self, entities: Tensor) -> Tensor:
        return self._positive(functional.embedding(entities, self.entities))

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        s, r = self._free(state).flatten(1), functional.embedding(relations, self.relations)
        moved: Tensor = self.projection(self.dropout(torch.cat([s, r], 1)))
        return self._positive(s + r + moved if self.settings.residual else moved)

    def intersect(self, branches: Sequence[Tensor]) -> Tensor:
        s = torch.stack(list(branches), 1)  # (n, N, 2, d)
        w = torch.softmax(self.attention(self._free(s).flatten(2)), 1)
        return (w[:, :, None] * s).sum(1)

    def complement(self, state: Tensor) -> Tensor:
        return 1 / state

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        density, table, bias = self.factors(state, entities)
        return (density @ table.transpose(-1, -2))[:, 0] + bias

    def factors(self, state: Tensor, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """One particle (n, 1, 2d + 1), table (N, 2d + 1) and bias (N,) with score(v) = ⟨p, e_v⟩ + b_v."""
        if entities is None:
            return self._density(state), *self._statistics_of_all()
        return self._density(state), *self._statistics(rows_of(self.entities, entities))

    def train(self, mode: bool = True) -> Self:
        """What is remembered goes: fused optimisers and CUDA graphs move weights without a new version of them."""
        if mode:
            self._remembered = None
        return super().train(mode)

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))

    def _positive(self, x: Tensor) -> Tensor:
        """Parameters (…, 2, d) from free numbers (…, 2d)."""
        x = x.view(*x.shape[:-1], 2, -1)
        if self.settings.positive == "clamp":
            return (1 + x).clamp(min=self.settings.minimum)
        bound = -math.log(self.settings.minimum)
        return torch.exp(bound * torch.tanh(x / bound))

    def _free(self, state: Tensor) -> Tensor:
        """What the networks see of parameters: the free numbers that stand for them, up to the bound."""
        return state - 1 if self.settings.positive == "clamp" else state.log()

    def _density(self, state: Tensor) -> Tensor:
        """Of queries (n, 1, 2d + 1): what ln p takes of ln x and of ln(1 − x), and what it and γ add to that."""
        constant = self.settings.margin - _log_beta(state)
        return torch.cat([(state - 1).flatten(1), constant[:, None]], 1)[:, None]

    def _statistics_of_all(self) -> tuple[Tensor, Tensor]:
        """Those of all entities, remembered while nothing trains: of many they take longer than all the rest."""
        if self.training or torch.is_grad_enabled():
            return self._statistics(self.entities)
        weights = self.entities._version, self.entities.data_ptr()
        if self._remembered is None or self._remembered[0] != weights:
            self._remembered = weights, self._statistics(self.entities)
        return self._remembered[1]

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of entities (…, 2d): E ln x, E ln(1 − x) and 1, together (…, 2d + 1); and the entropy (…)."""
        own = self._positive(x)
        logarithms = own.digamma() - own.sum(-2, keepdim=True).digamma()
        entropy = _log_beta(own) - ((own - 1) * logarithms).sum((-2, -1))
        return torch.cat([logarithms.flatten(-2), torch.ones_like(x[..., :1])], -1), entropy


def _log_beta(parameters: Tensor) -> Tensor:
    """Σ ln B(α, β) of parameters (…, 2, d)."""
    return (parameters.lgamma().sum(-2) - parameters.sum(-2).lgamma()).sum(-1)
