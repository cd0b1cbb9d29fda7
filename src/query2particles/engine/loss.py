"""The loss of training: cross-entropy of a softmax over all entities.

    L = Σ_i w_i [ log Z_i − (1 − ε) s_i(v_i) − ε/N Σ_v s_i(v) + ζ (log Z_i − log n_i)² ]      Z_i = Σ_v exp s_i(v)

with one positive v_i a query, label smoothing ε uniform over all entities, and, where the number n_i of answers is
known, a pull ζ of Z towards it. A softmax alone does not care about a constant that is added to all scores of a query;
the pull makes exp s(v) the probability that v is an answer, so that scores of different queries compare, and a union
may take the best of its branches.

`max_softmax` is the same for methods whose score is a maximum of inner products, s(v) = max_k ⟨p_k, e_v⟩ + b_v. The
derivatives of a softmax are known as soon as its scores are, so its forward pass takes them at once, block of queries
by block: nothing of size queries × particles × entities outlives a block, and nothing is computed twice. On CUDA the
products run in bfloat16 over an axis padded to whole tiles, and what lies between them is one kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["DEPTH_TILE", "ENTITY_TILE", "PLAIN", "LossTerms", "max_softmax", "rounded_up", "softmax_loss"]

ENTITY_TILE = 64
DEPTH_TILE = 8
_BLOCK_BYTES = 1 << 30
_NEVER = -1e30
"""The score of the entities that only fill up the last tile: below any other, and finite in bfloat16."""


class LossTerms(NamedTuple):
    """What shapes the loss besides the scores."""

    smoothing: float = 0.0
    """ε"""
    calibration: float = 0.0
    """ζ"""
    sign: float = 1.0
    """−1 trains negated scores: the positive is to be the *worst* entity."""


PLAIN = LossTerms()


def softmax_loss(scores: Tensor, positives: Tensor, weights: Tensor, sizes: Tensor, terms: LossTerms = PLAIN) -> Tensor:
    """The loss from scores (n, N), for positives, weights and numbers of answers (n,); any method, nothing fused."""
    s = terms.sign * scores.to(torch.promote_types(scores.dtype, torch.float32))
    log_z = torch.logsumexp(s, 1)
    target = (1 - terms.smoothing) * s.gather(1, positives[:, None])[:, 0] + terms.smoothing * s.mean(1)
    return (weights * (log_z - target + terms.calibration * _excess(log_z, sizes) ** 2)).sum()


def max_softmax(
    particles: Tensor,
    table: Tensor,
    bias: Tensor,
    positives: Tensor,
    weights: Tensor,
    sizes: Tensor,
    terms: LossTerms = PLAIN,
) -> Tensor:
    """The loss of particles (n, w, d) against a table (N, d) with bias (N,); equal to `softmax_loss` of the scores."""
    result: Tensor = _MaxSoftmax.apply(particles, table, bias, positives, weights, sizes, terms)  # type: ignore[no-untyped-call]
    return result


class _MaxSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        particles: Tensor,
        table: Tensor,
        bias: Tensor,
        positives: Tensor,
        weights: Tensor,
        sizes: Tensor,
        terms: LossTerms,
    ) -> Tensor:
        n, w, d = particles.shape
        entities = len(table)
        depth = rounded_up(d + 1, DEPTH_TILE)
        dtype = torch.bfloat16 if particles.is_cuda else table.dtype
        # The bias rides along as one more coordinate: ⟨[p, 1], [e, b]⟩ = ⟨p, e⟩ + b.
        p = particles.new_zeros((n, w, depth), dtype=dtype)
        p[..., :d] = particles
        p[..., d] = 1
        e = table.new_zeros((rounded_up(entities, ENTITY_TILE), depth), dtype=dtype)
        e[:entities, :d] = table
        e[:entities, d] = bias
        e[entities:, d] = _NEVER * terms.sign
        rows = _rows_on_cuda if particles.is_cuda else _rows
        losses, d_p, d_e = [], torch.empty_like(p), None
        block = max(1, _BLOCK_BYTES // (w * len(e) * e.element_size()))
        block = -(-n // -(-n // block))  # blocks of equal size
        for start in range(0, n, block):
            here = slice(start, start + block)
            flat = p[here].flatten(0, 1)
            scores = flat @ e.T  # (block · w, N)
            queries = positives[here], weights[here], sizes[here]
            loss, slopes = rows(scores.view(-1, w, len(e)), *queries, entities, terms)
            losses.append(loss.sum())
            slopes = slopes.flatten(0, 1)
            torch.mm(slopes, e, out=d_p[here].flatten(0, 1))
            more = slopes.T @ flat
            d_e = more if d_e is None else d_e.to(torch.promote_types(dtype, torch.float32)) + more
        assert d_e is not None
        ctx.save_for_backward(d_p[..., :d], d_e[:entities, :d], d_e[:entities, d])
        ctx.dtypes = particles.dtype, table.dtype, bias.dtype
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        slopes = (one.to(dtype) * slope for one, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
        return *slopes, None, None, None, None


def _rows(
    scores: Tensor, positives: Tensor, weights: Tensor, sizes: Tensor, entities: int, terms: LossTerms
) -> tuple[Tensor, Tensor]:
    """The losses of a block of queries (n,), from scores (n, w, N'), which become the derivatives by each of them."""
    epsilon, zeta, sign = terms
    best = scores.amax(1)
    *others, last = scores.unbind(1)
    for one in others:
        torch.eq(one, best, out=one)  # 1 where a particle has the best score
    s = best.mul_(sign)  # (n, N')
    rows, w = torch.arange(len(s), device=s.device), weights[:, None]
    target = (1 - epsilon) * s[rows, positives] + epsilon * s[:, :entities].mean(1)
    highest = s.amax(1, keepdim=True)
    slope = s.sub_(highest).exp_()
    z = slope.sum(1, keepdim=True)
    log_z = highest + z.log()
    excess = _excess(log_z, sizes[:, None])
    losses = w * (log_z + zeta * excess**2 - target[:, None])
    slope *= sign * w * (1 + 2 * zeta * excess) / z
    slope[:, :entities] -= sign * epsilon / entities * w
    slope[rows, positives] -= sign * (1 - epsilon) * weights
    for one in others:  # the slope goes to the particle that won, the first one where several did
        slope -= one.mul_(slope)
    last.copy_(slope)
    return losses[:, 0], scores


def _rows_on_cuda(
    scores: Tensor, positives: Tensor, weights: Tensor, sizes: Tensor, entities: int, terms: LossTerms
) -> tuple[Tensor, Tensor]:
    from query2particles.engine.kernels import rows_in_place

    return rows_in_place(scores, positives, weights, sizes, entities, **terms._asdict()), scores


def _excess(log_z: Tensor, sizes: Tensor) -> Tensor:
    """By how much log Z lies above log n; nothing where n is not known."""
    return torch.where(sizes > 0, log_z - sizes.clamp(min=1).log(), 0.0)


def rounded_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
