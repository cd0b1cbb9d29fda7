"""The CUDA kernels between the score products of `engine/fused_loss`: scores are read from memory and written once.

Only imported where there is a CUDA device (or Triton's interpreter, for tests): Triton comes with CUDA builds of torch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from query2particles.engine.loss import LossTerms

__all__ = ["other_rows_in_place", "rows_in_place"]

_BLOCK = 4096
_WARPS = 8
"""The fastest of nine pairs on an H200, for 14,528 columns and near it for 63,424."""


def rows_in_place(
    scores: Tensor, positives: Tensor, excluded: Tensor, weights: Tensor, entities: int, terms: LossTerms
) -> Tensor:
    """The losses (n,) of scores (n, w, N'), which are overwritten by their derivatives; `fused_loss._rows` on CUDA.

    One program takes one query, so that what it reads again comes from the cache.
    """
    n, width, columns = scores.shape
    losses = torch.empty(n, device=scores.device, dtype=torch.float32)
    _rows[(n,)](
        scores,
        positives,
        excluded,
        weights,
        losses,
        entities,
        columns,
        *terms,
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return losses


def other_rows_in_place(
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
    """The same of scores of a few entities (N',) that stand for all; `fused_loss._other_rows` on CUDA."""
    n, width, columns = scores.shape
    losses, by_found = (torch.empty(n, device=scores.device, dtype=torch.float32) for _ in range(2))
    _other_rows[(n,)](
        scores,
        found.contiguous(),
        positives,
        weights,
        others,
        shares,
        losses,
        by_found,
        columns,
        smoothing / entities,
        sign,
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return losses, by_found


@triton.jit  # type: ignore[untyped-decorator]
def _best(start, column, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """max_k of the scores in these columns."""
    inside = column < columns
    best = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(1, WIDTH):
        best = tl.maximum(best, tl.load(start + k * columns + column, mask=inside, other=0.0).to(tl.float32))
    return best


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    scores,
    positives,
    excluded,
    weights,
    losses,
    entities,
    columns,
    epsilon,
    kappa,
    sign,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    start = scores + row.to(tl.int64) * WIDTH * columns
    positive = tl.load(positives + row)
    barred = tl.load(excluded + row)
    weight = tl.load(weights + row)
    lanes = tl.arange(0, BLOCK)
    # Read here, before a barrier: below, other warps may already have overwritten them.
    found = sign * tl.max(_best(start, positive + tl.zeros([16], tl.int64), columns, WIDTH), 0)
    gap = sign * tl.max(_best(start, barred + tl.zeros([16], tl.int64), columns, WIDTH), 0) - found
    kept_apart = tl.where(barred == positive, 0.0, kappa)

    # log Z, by a running maximum; Σ s for the smoothing.
    highest = -1e30
    total = 0.0
    plain = 0.0
    for offset in range(0, columns, BLOCK):
        column = offset + lanes
        s = tl.where(column < columns, sign * _best(start, column, columns, WIDTH), -1e30)
        higher = tl.maximum(highest, tl.max(s, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(s - higher), 0)
        highest = higher
        plain += tl.sum(tl.where(column < entities, s, 0.0), 0)
    log_z = highest + tl.log(total)
    target = (1 - epsilon) * found + epsilon / entities * plain
    softplus = tl.maximum(gap, 0.0) + tl.log(1 + tl.exp(-tl.abs(gap)))
    tl.store(losses + row, weight * (log_z - target + kept_apart * softplus))

    push = kept_apart / (1 + tl.exp(-gap))
    for offset in range(0, columns, BLOCK):
        column = offset + lanes
        best = _best(start, column, columns, WIDTH)
        slope = tl.exp(sign * best - log_z) - tl.where(column < entities, epsilon / entities, 0.0)
        slope += tl.where(column == barred, push, 0.0) - tl.where(column == positive, 1 - epsilon + push, 0.0)
        _to_the_best(start, column, columns, best, sign * weight * slope, WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def _other_rows(  # type: ignore[no-untyped-def]
    scores,
    found,
    positives,
    weights,
    others,
    shares,
    losses,
    by_found,
    columns,
    smooth,
    sign,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    start = scores + row.to(tl.int64) * WIDTH * columns
    positive = tl.load(positives + row)
    weight = tl.load(weights + row)
    own = tl.load(found + row)
    lanes = tl.arange(0, BLOCK)

    # log R, by a running maximum; Σ s / (m q) for the smoothing.
    highest = -1e30
    total = 0.0
    plain = 0.0
    for offset in range(0, columns, BLOCK):
        column = offset + lanes
        inside = column < columns
        share = tl.load(shares + column, mask=inside, other=0.0)
        s = sign * _best(start, column, columns, WIDTH)
        plain += tl.sum(s * share, 0)
        s = tl.where(inside & (tl.load(others + column, mask=inside, other=-1) != positive), s, -1e30)
        higher = tl.maximum(highest, tl.max(s, 0))
        total = total * tl.exp(highest - higher) + tl.sum(share * tl.exp(s - higher), 0)
        highest = higher
    gap = highest + tl.log(total) - own
    surprise = tl.maximum(gap, 0.0) + tl.log(1 + tl.exp(-tl.abs(gap)))  # log Z less the positive's score
    log_z = own + surprise
    tl.store(losses + row, weight * (surprise - smooth * plain))
    tl.store(by_found + row, -weight / (1 + tl.exp(-gap)))

    for offset in range(0, columns, BLOCK):
        column = offset + lanes
        inside = column < columns
        share = tl.load(shares + column, mask=inside, other=0.0)
        best = _best(start, column, columns, WIDTH)
        counts = inside & (tl.load(others + column, mask=inside, other=-1) != positive)
        slope = share * (tl.where(counts, tl.exp(sign * best - log_z), 0.0) - smooth)
        _to_the_best(start, column, columns, best, sign * weight * slope, WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def _to_the_best(start, column, columns, best, slope, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Write the derivatives over the scores: to the particle that won, the first one where several did; 0 to others."""
    inside = column < columns
    for k in tl.static_range(0, WIDTH):
        place = start + k * columns + column
        wins = tl.load(place, mask=inside, other=0.0).to(tl.float32) == best
        tl.store(place, tl.where(wins, slope, 0.0).to(start.dtype.element_ty), mask=inside)
        best = tl.where(wins, float("inf"), best)
