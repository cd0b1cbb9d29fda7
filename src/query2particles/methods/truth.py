"""Fuzzy logic: truths between 0 and 1, and what `and`, `or` and `not` do to them.

    t-norm       a ⊤ b (and)         a ⊥ b = 1 − (1 − a) ⊤ (1 − b) (or)
    product      a b                 a + b − a b
    Gödel        min(a, b)           max(a, b)
    Łukasiewicz  max(0, a + b − 1)   min(1, a + b)            not a = 1 − a

Truths are kept as logarithms x = log a ≤ 0: two that are both almost certain, or both almost impossible, would be equal
in float32, but their logarithms are not. Nothing is −∞, so that what is computed from truths are always numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["FALSE", "NORMS", "LinkTruth", "Norm", "NormName", "link_truths", "negated"]

NormName: TypeAlias = Literal["product", "godel", "lukasiewicz"]
LinkTruth: TypeAlias = Literal["sigmoid", "softmax", "min-max"]

FALSE = -1e30
"""In place of log 0. A few can be added up."""

_HALF = -math.log(2)


class Norm(NamedTuple):
    """A t-norm and its co-norm, of logarithms of truths."""

    both: Callable[[Tensor, Tensor], Tensor]
    """⊤"""
    either: Callable[[Tensor, Tensor], Tensor]
    """⊥"""
    any_of: Callable[[Tensor], Tensor]
    """⊥ of all rows (k, …): (…). That of the product takes few steps, since rows may be many; truths that float32 could
    not tell from certain ones are certain to it."""


def negated(x: Tensor) -> Tensor:
    """log(1 − eˣ), by whichever of two forms is exact: the one for certain truths, the other for unlikely ones."""
    certain = (-torch.expm1(x.clamp(_HALF, -torch.finfo(x.dtype).tiny))).log()
    return torch.where(x > _HALF, certain, torch.log1p(-x.clamp(max=_HALF).exp()))


def _lukasiewicz_both(x: Tensor, y: Tensor) -> Tensor:
    below_one = torch.expm1(x) + torch.expm1(y)  # a ⊤ b − 1, where that is above −1
    smallest = torch.finfo(below_one.dtype).eps - 1
    return torch.where(below_one > smallest, torch.log1p(below_one.clamp(min=smallest)), FALSE)


NORMS: Mapping[NormName, Norm] = MappingProxyType(
    {
        "product": Norm(
            torch.add,
            lambda x, y: torch.logaddexp(x, y + negated(x)).clamp(max=0),
            lambda x: negated(x.exp().neg_().log1p_().sum(0)),
        ),
        "godel": Norm(torch.minimum, torch.maximum, lambda x: x.amax(0)),
        "lukasiewicz": Norm(
            _lukasiewicz_both,
            lambda x, y: torch.logaddexp(x, y).clamp(max=0),
            lambda x: x.logsumexp(0).clamp(max=0),
        ),
    }
)


def link_truths(scores: Tensor, how: LinkTruth = "sigmoid", threshold: float = 0.0) -> Tensor:
    """How true links are, from the scores (…, N) that a link predictor gives their tails, all N entities.

    sigmoid   1 / (1 + exp(θ − s)): a score at the threshold θ is as likely right as wrong
    softmax   exp s / Σ exp s: how likely a tail that is drawn from all is this one
    min-max   (s − min s) / (max s − min s)

    Only the first looks at each tail by itself.
    """
    match how:
        case "sigmoid":
            return functional.logsigmoid(scores - threshold)
        case "softmax":
            return scores.log_softmax(-1)
        case "min-max":
            tiny = torch.finfo(scores.dtype).tiny
            low, high = scores.aminmax(dim=-1, keepdim=True)
            return ((scores - low) / (high - low).clamp(min=tiny)).clamp(min=tiny).log()
