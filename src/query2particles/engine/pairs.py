"""Sums over dimensions for every pair of a query and an entity, where they are no inner products.

    S_iv = Σ_j f(a_ij, …, b_vj, …)

Distances of many papers are such sums. Entities are taken in blocks, of which the backward pass computes the terms
again, so that nothing of size queries × entities × dimensions is kept. On CUDA the terms of a block and their sum are
compiled to one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["l1_distances", "pair_sums"]

Term = Callable[..., Tensor]

_TERMS = {"cpu": 1 << 18, "cuda": 1 << 30}
"""So many terms at a time: on a CPU, what its caches hold."""


def pair_sums(term: Term, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """(n, m): Σ_j term(*left_ij, *right_vj), for `left` tensors (n, d) and `right` ones (m, d).

    With `right` tensors (n, m, d) every query has entities of its own. `term` is a function of a module, of elementwise
    operations.
    """
    result: Tensor = _PairSums.apply(term, len(left), *left, *right)  # type: ignore[no-untyped-call]
    return result


def l1_distances(left: Tensor, right: Tensor) -> Tensor:
    """(n, m): Σ_j |left_ij − right_vj|."""
    if right.dim() == 2 and not left.is_cuda:
        return torch.cdist(left, right.to(left.dtype), p=1)
    return pair_sums(_absolute_difference, [left], [right])


def _absolute_difference(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs()


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, term: Term, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.term, ctx.count = term, count
        sums = _summed(term, count, tensors[0].device.type)
        return torch.cat([sums(*_of(block, count, tensors)) for block in _blocks(count, tensors)], 1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tensors, count = ctx.saved_tensors, ctx.count
        sums = _summed(ctx.term, count, slope.device.type)
        left: list[Tensor] = []
        right: list[tuple[Tensor, ...]] = []
        for block in _blocks(count, tensors):
            some = [one.detach().requires_grad_() for one in _of(block, count, tensors)]
            with torch.enable_grad():
                found = torch.autograd.grad(sums(*some), some, slope[:, block])
            left = [a + b for a, b in zip(left, found[:count], strict=True)] if left else list(found[:count])
            right.append(found[count:])
        joined = [torch.cat(parts, 0 if parts[0].dim() == 2 else 1) for parts in zip(*right, strict=True)]
        return None, None, *left, *joined


def _blocks(count: int, tensors: Sequence[Tensor]) -> Iterator[slice]:
    queries, dimensions = tensors[0].shape
    entities = tensors[count].shape[-2]
    block = max(1, _TERMS[tensors[0].device.type] // max(queries * dimensions, 1))
    for start in range(0, max(entities, 1), block):
        yield slice(start, start + block)


def _of(block: slice, count: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The left tensors, and a block of the right ones."""
    return [*tensors[:count], *(one[block] if one.dim() == 2 else one[:, block] for one in tensors[count:])]


@lru_cache(maxsize=64)
def _summed(term: Term, count: int, device: str) -> Callable[..., Tensor]:
    def sums(*tensors: Tensor) -> Tensor:
        terms = term(*(one[:, None] for one in tensors[:count]), *tensors[count:])
        return terms.sum(-1)

    return torch.compile(sums, dynamic=True) if device == "cuda" else sums
