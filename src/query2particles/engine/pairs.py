"""Sums over dimensions for every pair of a query and an entity, where they are no inner products.

    S_iv = Σ_j f(a_ij, …, b_vj, …)

Distances of many papers are such sums. The backward pass computes the terms again, so that nothing of size queries ×
entities × dimensions is kept, or even made: on a CPU entities are taken in blocks, on CUDA terms never leave the
registers (`engine/pair_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["l1_distances", "pair_sums"]

Term = Callable[..., Tensor]

_BLOCK = 1 << 18
"""So many terms at a time are what the caches of a CPU hold."""


def pair_sums(term: Term, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """(n, m): Σ_j term(*left_ij, *right_vj), for `left` tensors (n, d) and `right` ones (m, d).

    With `right` tensors (n, m, d) every query has entities of its own. `term` is a function of elementwise operations,
    and the same one every time: it is translated once for CUDA.
    """
    if right[0].dim() == 3:  # what is given is as large as all terms
        return _plain_sums(term, left, right)
    result: Tensor = _PairSums.apply(term, len(left), *left, *right)  # type: ignore[no-untyped-call]
    return result


def l1_distances(left: Tensor, right: Tensor) -> Tensor:
    """(n, m): Σ_j |left_ij − right_vj|."""
    if right.dim() == 2 and not left.is_cuda:
        return torch.cdist(left, right.to(left.dtype), p=1)
    return pair_sums(_absolute_difference, [left], [right])


def _absolute_difference(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs()


def _plain_sums(term: Term, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return term(*(one[:, None] for one in left), *right).sum(-1)


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, term: Term, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.term, ctx.count = term, count
        left, right = tensors[:count], tensors[count:]
        if left[0].is_cuda:
            from query2particles.engine.pair_kernels import sums

            return sums(term, left, right)
        return torch.cat([_plain_sums(term, left, [one[block] for one in right]) for block in _blocks(left, right)], 1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if not slope.is_cuda:
            return None, None, *_slopes_in_blocks(ctx.term, left, right, slope)
        from query2particles.engine.pair_kernels import left_slopes, right_slopes

        needed = ctx.needs_input_grad[2:]
        return (
            *(None, None),
            *(left_slopes(ctx.term, left, right, slope) if any(needed[: ctx.count]) else [None] * len(left)),
            *(right_slopes(ctx.term, left, right, slope) if any(needed[ctx.count :]) else [None] * len(right)),
        )


def _slopes_in_blocks(term: Term, left: Sequence[Tensor], right: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
    of_left = [torch.zeros_like(one) for one in left]
    of_right = []
    for block in _blocks(left, right):
        some = [one.detach().requires_grad_() for one in (*left, *(one[block] for one in right))]
        with torch.enable_grad():
            sums = _plain_sums(term, some[: len(left)], some[len(left) :])
        found = torch.autograd.grad(sums, some, slope[:, block], materialize_grads=True)
        of_left = [total + one for total, one in zip(of_left, found[: len(left)], strict=True)]
        of_right.append(found[len(left) :])
    return [*of_left, *(torch.cat(parts) for parts in zip(*of_right, strict=True))]


def _blocks(left: Sequence[Tensor], right: Sequence[Tensor]) -> Iterator[slice]:
    size = max(1, _BLOCK // max(left[0].numel(), 1))
    for start in range(0, max(len(right[0]), 1), size):
        yield slice(start, start + size)
