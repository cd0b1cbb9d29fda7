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

__all__ = ["FALSE", "NORMS", "LinkTruth", "Norm", "NormName", "highest_at", "link_truths", "negated"]

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
    any_at: Callable[[Tensor, Tensor, int], Tensor]
    """⊥ of those of some truths (m,) that have the same of so many places, (m,): one for every place, FALSE where there
    are none. Sums are taken in float64, where it hardly shows in which order a GPU adds."""


def negated(x: Tensor, scale: float = 1.0) -> Tensor:
    """The logarithm of max(0, 1 − s eˣ), s the scale.

    By whichever of two forms is exact: the one for certain truths, the other for unlikely ones.
    """
    if scale != 1:
        x = (x + math.log(scale)).clamp(max=0)
    certain = (-torch.expm1(x.clamp(_HALF, -torch.finfo(x.dtype).tiny))).log()
    return torch.where(x > _HALF, certain, torch.log1p(-x.clamp(max=_HALF).exp()))


def _lukasiewicz_both(x: Tensor, y: Tensor) -> Tensor:
    below_one = torch.expm1(x) + torch.expm1(y)  # a ⊤ b − 1, where that is above −1
    smallest = torch.finfo(below_one.dtype).eps - 1
    return torch.where(below_one > smallest, torch.log1p(below_one.clamp(min=smallest)), FALSE)


def highest_at(x: Tensor, places: Tensor, size: int) -> Tensor:
    """The highest of those of x (m,) that have the same of so many places (m,); FALSE where there are none."""
    return x.new_full((size,), FALSE).scatter_reduce(0, places, x, "amax")


def _product_either(x: Tensor, y: Tensor) -> Tensor:
    """With the truer one first: what is certain stays so, whatever is added to it."""
    high, low = torch.maximum(x, y), torch.minimum(x, y)
    return torch.logaddexp(high, low + negated(high)).clamp(max=0)


def _product_any_at(x: Tensor, places: Tensor, size: int) -> Tensor:
    """The logarithm of 1 − Π (1 − a); where all are so small that this is 0, of the highest."""
    rest = x.double().exp().neg_().log1p_()
    total = rest.new_zeros(size).index_add_(0, places, rest)
    return torch.where(total < 0, negated(total).to(x.dtype), highest_at(x, places, size))


def _lukasiewicz_any_at(x: Tensor, places: Tensor, size: int) -> Tensor:
    """The logarithm of min(1, Σ a), each a in relation to the highest."""
    highest = highest_at(x, places, size)
    each = (x - highest[places]).double().exp()
    total = each.new_zeros(size).index_add_(0, places, each)
    return (highest + total.clamp(min=1).log().to(x.dtype)).clamp(max=0)


NORMS: Mapping[NormName, Norm] = MappingProxyType(
    {
        "product": Norm(
            torch.add,
            _product_either,
            lambda x: negated(x.exp().neg_().log1p_().sum(0)),
            _product_any_at,
        ),
        "godel": Norm(torch.minimum, torch.maximum, lambda x: x.amax(0), highest_at),
        "lukasiewicz": Norm(
            _lukasiewicz_both,
            lambda x, y: torch.logaddexp(x, y).clamp(max=0),
            lambda x: x.logsumexp(0).clamp(max=0),
            _lukasiewicz_any_at,
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
