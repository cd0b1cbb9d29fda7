"""The softmaxes of `engine/loss` for methods whose score is a maximum of inner products, s(v) = max_k ⟨p_k, e_v⟩ + b_v.

The derivatives of a softmax are known as soon as its scores are, so the forward pass takes them at once, block of
queries by block: nothing of size queries × particles × entities outlives a block, and nothing is computed twice. On
CUDA the products run in bfloat16 over axes padded to whole tiles, and what lies between them is one kernel.

`max_softmax` has all entities as columns, `max_sampled_softmax` a few that stand for all. There the positive is none of
the columns: with R_i = Σ_{v ≠ v_i} exp s_i(v) / (m q(v)), what the other entities have of Z_i,

    log Z_i − s_i(v_i) = log(1 + R_i / exp s_i(v_i))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from query2particles.engine.loss import NEVER, PLAIN, LossTerms
from query2particles.engine.negatives import Negatives

__all__ = ["DEPTH_TILE", "ENTITY_TILE", "max_sampled_softmax", "max_softmax", "rounded_up"]

ENTITY_TILE = 64
DEPTH_TILE = 8
_BLOCK_BYTES = 1 << 30


def max_softmax(
    particles: Tensor,
    table: Tensor,
    bias: Tensor,
    positives: Tensor,
    excluded: Tensor,
    weights: Tensor,
    terms: LossTerms = PLAIN,
    *,
    precise: bool = False,
) -> Tensor:
    """The loss of particles (n, w, d) against a table (N, d) with bias (N,); equal to `softmax_loss` of the scores.

    `precise`: the products are taken in float32 on CUDA, too.
    """
    rows = _rows
    if particles.is_cuda:
        from query2particles.engine.kernels import rows_in_place

        rows = rows_in_place
    losses = []

    def derive(here: slice, scores: Tensor) -> None:
        losses.append(rows(scores, positives[here], excluded[here], weights[here], len(table), terms).sum())

    slopes = _slopes(particles, table, bias, terms.sign, derive, precise=precise)
    return _sum_with(slopes, losses, particles, table, bias)


def max_sampled_softmax(
    particles: Tensor,
    table: Tensor,
    bias: Tensor,
    scores: Tensor,
    positives: Tensor,
    excluded: Tensor,
    weights: Tensor,
    negatives: Negatives,
    entities: int,
    terms: LossTerms = PLAIN,
    *,
    precise: bool = False,
) -> Tensor:
    """The loss of particles (n, w, d) against the negatives' table (m, d) and bias (m,), which stand for all entities;
    equal to `negatives_loss` of their scores. `scores` (n, 2) are those of positives and excluded entities.
    """
    rows = _other_rows
    if particles.is_cuda:
        from query2particles.engine.kernels import other_rows_in_place

        rows = other_rows_in_place
    found, barred = (terms.sign * scores.to(torch.promote_types(scores.dtype, torch.float32))).unbind(1)
    columns = rounded_up(len(table), ENTITY_TILE)
    others = negatives.entities.new_full((columns,), -1)
    others[: len(table)] = negatives.entities
    shares = negatives.stands_for.new_zeros(columns)
    shares[: len(table)] = negatives.stands_for
    losses, by_found = [], torch.empty_like(found)

    def derive(here: slice, scores: Tensor) -> None:
        own = found[here], positives[here], weights[here]
        loss, by_found[here] = rows(scores, *own, others, shares, entities, terms.smoothing, terms.sign)
        losses.append(loss.sum())

    slopes = _slopes(particles, table, bias, terms.sign, derive, precise=precise)
    against_others = _sum_with((*slopes, by_found), losses, particles, table, bias, found)
    kept_apart = terms.exclusion * (excluded != positives) * functional.softplus(barred - found)
    return against_others + (weights * (terms.smoothing * found + kept_apart)).sum()


def rounded_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


class _Sum(torch.autograd.Function):
    """Of losses, whose derivatives by the factors are known already."""

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], losses: Sequence[Tensor], *factors: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes)
        ctx.dtypes = [factor.dtype for factor in factors]
        return torch.stack(list(losses)).sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        # A factor with a dimension decides on the type of the product: one pass, not two, where that is a wider one.
        slopes = (
            (one * (slope if one.dtype == dtype else slope.to(dtype).view(1))).to(dtype)
            for one, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return None, None, *slopes


def _sum_with(slopes: Sequence[Tensor], losses: Sequence[Tensor], *factors: Tensor) -> Tensor:
    """The sum of the losses, with these derivatives by the factors."""
    result: Tensor = _Sum.apply(slopes, losses, *factors)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def _slopes(
    particles: Tensor,
    table: Tensor,
    bias: Tensor,
    sign: float,
    derive: Callable[[slice, Tensor], None],
    *,
    precise: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives by particles, table and bias, where `derive` turns the scores (block, w, N') of some queries, in
    place, into the derivatives by each of them. Columns beyond the table have the worst score.
    """
    n, w, d = particles.shape
    entities = len(table)
    dtype = torch.bfloat16 if particles.is_cuda and not precise else table.dtype
    depth = rounded_up(d + 1, DEPTH_TILE)
    # The bias rides along as one more coordinate: ⟨[p, 1], [e, b]⟩ = ⟨p, e⟩ + b.
    p = particles.new_zeros((n, w, depth), dtype=dtype)
    p[..., :d] = particles
    p[..., d] = 1
    e = table.new_zeros((rounded_up(entities, ENTITY_TILE), depth), dtype=dtype)
    e[:entities, :d] = table
    e[:entities, d] = bias
    e[entities:, d] = NEVER * sign
    d_p, d_e = torch.empty_like(p), None
    block = max(1, _BLOCK_BYTES // (w * len(e) * e.element_size()))
    block = -(-n // -(-n // block))  # blocks of equal size
    for start in range(0, n, block):
        here = slice(start, start + block)
        flat = p[here].flatten(0, 1)
        scores = flat @ e.T  # (block · w, N')
        derive(here, scores.view(-1, w, len(e)))
        torch.mm(scores, e, out=d_p[here].flatten(0, 1))
        more = scores.T @ flat
        d_e = more if d_e is None else d_e.to(torch.promote_types(dtype, torch.float32)) + more
    assert d_e is not None
    return d_p[..., :d], d_e[:entities, :d], d_e[:entities, d]


def _rows(
    scores: Tensor, positives: Tensor, excluded: Tensor, weights: Tensor, entities: int, terms: LossTerms
) -> Tensor:
    """The losses of a block of queries (n,), from scores (n, w, N'), which become the derivatives by each of them."""
    epsilon, kappa, sign = terms
    s = _best(scores).mul_(sign)  # (n, N')
    rows, w = torch.arange(len(s), device=s.device), weights[:, None]
    found, gap = s[rows, positives], s[rows, excluded] - s[rows, positives]
    target = (1 - epsilon) * found + epsilon * s[:, :entities].mean(1)
    kept_apart = kappa * weights * (excluded != positives)
    highest = s.amax(1, keepdim=True)
    slope = s.sub_(highest).exp_()
    z = slope.sum(1, keepdim=True)
    log_z = highest + z.log()
    losses = weights * (log_z[:, 0] - target) + kept_apart * functional.softplus(gap)
    slope *= sign * w / z
    slope[:, :entities] -= sign * epsilon / entities * w
    push = sign * kept_apart * gap.sigmoid()
    slope[rows, positives] -= sign * (1 - epsilon) * weights + push
    slope[rows, excluded] += push
    _to_the_best(scores, slope)
    return losses


def _other_rows(
    scores: Tensor,
    found: Tensor,
    positives: Tensor,
    weights: Tensor,
    others: Tensor,
    shares: Tensor,
    entities: int,
    smoothing: float,
    sign: float,
) -> tuple[Tensor, Tensor]:
    """The same of some entities (N',), of which each stands for so many: losses, and their derivatives by `found`."""
    shares = shares.to(scores.dtype)
    s = _best(scores).mul_(sign)  # (n, N')
    smooth = s @ shares * (smoothing / entities)
    counted = s.masked_fill_(others == positives[:, None], NEVER)
    highest = counted.amax(1, keepdim=True)
    slope = counted.sub_(highest).exp_().mul_(shares)
    rest = highest + slope.sum(1, keepdim=True).log()  # log R
    gap = rest - found[:, None]
    losses = weights * (functional.softplus(gap)[:, 0] - smooth)
    chosen = weights[:, None] * gap.sigmoid()  # w R / Z
    slope *= sign * chosen * (highest - rest).exp()
    slope -= sign * smoothing / entities * weights[:, None] * shares
    _to_the_best(scores, slope)
    return losses, -chosen[:, 0]


def _best(scores: Tensor) -> Tensor:
    """The scores (n, N') of the best particles; of all but the last one they become 1 where it has that, or else 0."""
    best = scores.amax(1)
    for one in scores.unbind(1)[:-1]:
        torch.eq(one, best, out=one)
    return best


def _to_the_best(scores: Tensor, slope: Tensor) -> None:
    """After `_best`: each slope (n, N') goes to the particle that won, the first one where several did; 0 to others."""
    *others, last = scores.unbind(1)
    for one in others:
        slope -= one.mul_(slope)
    last.copy_(slope)
