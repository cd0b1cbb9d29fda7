"""The layers that papers of this field are built from, on states of shape (n, w, d): n queries, w particles each."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = [
    "Activation",
    "Attention",
    "Block",
    "FeedForward",
    "Matrices",
    "Norm",
    "Perceptron",
    "activation_of",
    "attend",
    "attend_to_few",
    "norm_of",
    "rows_of",
]

Activation = Literal["relu", "gelu"]
Norm = Literal["none", "plain", "learned"]
Matrices = Literal["separate", "shared", "none"]

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
}

_FEW = 8
"""Up to this many keys, attention in training on CUDA, where it is compiled, is a handful of sums, which fuse with what
is around them, rather than thousands of tiny matrix products."""


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attn(Q, K, V) = Softmax(Q Kᵀ / √d) V, for each query of the batch."""
    if k.shape[-2] <= _FEW and q.is_cuda and torch.is_grad_enabled():
        return attend_to_few(q, k, v)
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def attend_to_few(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as sums over the keys."""
    keys = range(k.shape[-2])
    logits = torch.stack([(q * k[..., j : j + 1, :]).sum(-1) for j in keys], -1)  # (n, w, keys)
    weights = torch.softmax(logits / math.sqrt(q.shape[-1]), -1)
    mixed = weights[..., :1] * v[..., :1, :]
    for j in keys[1:]:
        mixed = mixed + weights[..., j : j + 1] * v[..., j : j + 1, :]
    return mixed


def activation_of(name: Activation) -> Callable[[Tensor], Tensor]:
    return _ACTIVATIONS[name]


def norm_of(dimension: int, norm: Norm) -> nn.Module:
    """A layer norm, with or without a learned scale and shift, or nothing."""
    return nn.Identity() if norm == "none" else nn.LayerNorm(dimension, elementwise_affine=norm == "learned")


class Attention(nn.Module):
    """Scaled dot-product self-attention, P' = Attn(W_q P, W_k P, W_v P), or P plus that (`residual`).

    The three matrices are `separate`, or one that is `shared`; with `none` there is no attention, and P' = P.
    """

    def __init__(self, dimension: int, matrices: Matrices, *, residual: bool = False) -> None:
        super().__init__()
        self.residual = residual
        self.packed = {"separate": 3, "shared": 1, "none": 0}[matrices]
        self.weights = nn.Linear(dimension, self.packed * dimension, bias=False) if self.packed else None

    def forward(self, p: Tensor) -> Tensor:
        if self.weights is None:
            return p
        weighted = self.weights(p)
        q, k, v = weighted.chunk(3, -1) if self.packed == 3 else (weighted,) * 3
        mixed = attend(q, k, v)
        return p + mixed if self.residual else mixed


class FeedForward(nn.Module):
    """Linear, activation, linear, all of width d."""

    def __init__(self, dimension: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.inner = nn.Linear(dimension, dimension)
        self.outer = nn.Linear(dimension, dimension)

    def forward(self, p: Tensor) -> Tensor:
        result: Tensor = self.outer(self.activation(self.inner(p)))
        return result


class Perceptron(nn.Module):
    """Linear layers from each size to the next, with ReLU between them, in whatever type their weights have."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.first, *others = (nn.Linear(*pair) for pair in pairwise(sizes))
        self.others = nn.Sequential(*(layer for linear in others for layer in (nn.ReLU(), linear)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.others(self.first(x.to(self.first.weight.dtype)))
        return result.to(x.dtype)


class Block(nn.Module):
    """Attention, then a feed-forward layer: A = Attn(P), P' = MLP(A), as a paper prints it.

    With `residual` attention adds to its input; with a norm each half ends in one, and the feed-forward layer adds to
    its input. Dropout falls on what comes in.
    """

    def __init__(
        self,
        dimension: int,
        *,
        attention: Matrices,
        residual: bool,
        norm: Norm,
        activation: Activation,
        dropout: float,
    ) -> None:
        super().__init__()
        self.normalised = norm != "none"
        self.dropout = nn.Dropout(dropout)
        self.attention = Attention(dimension, attention, residual=residual)
        self.feed_forward = FeedForward(dimension, activation)
        self.norms = nn.ModuleList(norm_of(dimension, norm) for _ in range(2))

    def forward(self, p: Tensor, norms: nn.ModuleList | None = None) -> Tensor:
        """`norms` in place of the block's own: a further pass through the same matrices."""
        norms = self.norms if norms is None else norms
        a: Tensor = norms[0](self.attention(self.dropout(p)))
        f: Tensor = self.feed_forward(a)
        result: Tensor = norms[1](a + f) if self.normalised else f
        return result


def rows_of(table: Tensor, entities: Tensor | None) -> Tensor:
    """What a table (N, d) or (N,) has of these entities, (…, d) or (…); None: of all."""
    if entities is None:
        return table
    # On CUDA the way back of an `embedding` sorts the entities first.
    return table.index_select(0, entities.flatten()).view(*entities.shape, *table.shape[1:])
