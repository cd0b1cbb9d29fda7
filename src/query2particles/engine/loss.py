"""The loss of training: cross-entropy of a softmax over all entities.

    L = Σ_i w_i [ log Z_i − (1 − ε) s_i(v_i) − ε/N Σ_v s_i(v) − κ log σ(s_i(v_i) − s_i(u_i)) ]      Z_i = Σ_v exp s_i(v)

with one positive v_i a query and label smoothing ε uniform over all entities. u_i is an entity that a complement takes
out of the answers. In a softmax it is one among all others, though it is the hardest to tell from an answer; the last
term, which counts only where there is one (u_i ≠ v_i), sets it against the positive alone.

`negatives_loss` takes a few entities in place of all: the same softmax with Σ_v estimated from m of them, each of
which, drawn with probability q(v), stands for 1 / (m q(v)) entities (sampled softmax),

    Z_i = exp s_i(v_i) + Σ_{v ≠ v_i} exp s_i(v) / (m q(v))

or the loss of most papers that measure distances, where a score is a margin less a distance:

    L = Σ_i w_i [ − log σ(s_i(v_i)) − mean_{v ≠ v_i} log σ(− s_i(v)) ]

A negative that happens to be the positive counts in neither.

`max_softmax` is the same for methods whose score is a maximum of inner products, s(v) = max_k ⟨p_k, e_v⟩ + b_v. The
derivatives of a softmax are known as soon as its scores are, so its forward pass takes them at once, block of queries
by block: nothing of size queries × particles × entities outlives a block, and nothing is computed twice. On CUDA the
products run in bfloat16 over an axis padded to whole tiles, and what lies between them is one kernel.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "DEPTH_TILE",
    "ENTITY_TILE",
    "PLAIN",
    "AllColumns",
    "Columns",
    "LossTerms",
    "Objective",
    "max_softmax",
    "negatives_loss",
    "rounded_up",
    "softmax_loss",
]

ENTITY_TILE = 64
DEPTH_TILE = 8
_BLOCK_BYTES = 1 << 30
_NEVER = -1e30
"""The score of what is not to count: below any other, and finite in bfloat16."""


class LossTerms(NamedTuple):
    """What shapes the loss besides the scores."""

    smoothing: float = 0.0
    """ε"""
    exclusion: float = 0.0
    """κ"""
    sign: float = 1.0
    """−1 trains negated scores: the positive is to be the *worst* entity."""


PLAIN = LossTerms()


class Objective(NamedTuple):
    """Which loss, and what a positive is set against."""

    kind: Literal["softmax", "margin"] = "softmax"
    negatives: int = 0
    """So many random entities, the same for all queries of an update; 0: all entities."""

    @property
    def over_all(self) -> bool:
        """Whether it is the softmax over all entities."""
        return self == Objective()


class Columns(Protocol):
    """What a softmax takes of the scores of all entities, of which a process may have some."""

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """Over all entities, (n,)."""
        ...

    def at(self, scores: Tensor, entities: Tensor) -> Tensor:
        """The score of one entity a query, (n,)."""
        ...

    def mean(self, scores: Tensor) -> Tensor:
        """Over all entities, (n,)."""
        ...


class AllColumns:
    """Of scores that are all here."""

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        return torch.logsumexp(scores, 1)

    def at(self, scores: Tensor, entities: Tensor) -> Tensor:
        return scores.gather(1, entities[:, None])[:, 0]

    def mean(self, scores: Tensor) -> Tensor:
        return scores.mean(1)


_ALL = AllColumns()


def softmax_loss(
    scores: Tensor,
    positives: Tensor,
    excluded: Tensor,
    weights: Tensor,
    terms: LossTerms = PLAIN,
    columns: Columns = _ALL,
) -> Tensor:
    """The loss from scores (n, N), for positives, excluded entities and weights (n,); any method, nothing fused."""
    s = terms.sign * scores.to(torch.promote_types(scores.dtype, torch.float32))
    log_z = columns.log_sum_exp(s)
    found, barred = (columns.at(s, entities) for entities in (positives, excluded))
    target = (1 - terms.smoothing) * found + terms.smoothing * columns.mean(s)
    kept_apart = terms.exclusion * (excluded != positives)
    return (weights * (log_z - target + kept_apart * functional.softplus(barred - found))).sum()


def negatives_loss(
    kind: Literal["softmax", "margin"],
    scores: Tensor,
    others: Tensor,
    apart: Tensor,
    hits: Tensor,
    weights: Tensor,
    *,
    stands_for: Tensor,
    entities: int,
    terms: LossTerms = PLAIN,
) -> Tensor:
    """The loss from the scores (n, 2) of positives and excluded entities, and those of some others (n, m).

    `apart` (n,) says where the excluded entity is another one than the positive, `hits` (n, m) which others are the
    positive, and `stands_for` (m,) how many entities each of the others stands for.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    (found, barred), others = (terms.sign * scores.to(wide)).unbind(1), terms.sign * others.to(wide)
    if kind == "margin":
        counted = (~hits).to(wide)
        losses = functional.softplus(-found) + (functional.softplus(others) * counted).sum(1) / counted.sum(1).clamp(1)
    else:
        rest = (others + stands_for.log()).masked_fill(hits, _NEVER).logsumexp(1)
        smooth = (others * stands_for).sum(1) / entities
        losses = torch.logaddexp(found, rest) - (1 - terms.smoothing) * found - terms.smoothing * smooth
    return (weights * (losses + terms.exclusion * apart * functional.softplus(barred - found))).sum()


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
    dtype = torch.bfloat16 if particles.is_cuda and not precise else table.dtype
    result: Tensor = _MaxSoftmax.apply(particles, table, bias, positives, excluded, weights, terms, dtype)  # type: ignore[no-untyped-call]
    return result


class _MaxSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        particles: Tensor,
        table: Tensor,
        bias: Tensor,
        positives: Tensor,
        excluded: Tensor,
        weights: Tensor,
        terms: LossTerms,
        dtype: torch.dtype,
    ) -> Tensor:
        n, w, d = particles.shape
        entities = len(table)
        depth = rounded_up(d + 1, DEPTH_TILE)
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
            queries = positives[here], excluded[here], weights[here]
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
        # A factor with a dimension decides on the type of the product: one pass, not two, where that is a wider one.
        slopes = (
            (one * (slope if one.dtype == dtype else slope.to(dtype).view(1))).to(dtype)
            for one, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *slopes, None, None, None, None, None


def _rows(
    scores: Tensor, positives: Tensor, excluded: Tensor, weights: Tensor, entities: int, terms: LossTerms
) -> tuple[Tensor, Tensor]:
    """The losses of a block of queries (n,), from scores (n, w, N'), which become the derivatives by each of them."""
    epsilon, kappa, sign = terms
    best = scores.amax(1)
    *others, last = scores.unbind(1)
    for one in others:
        torch.eq(one, best, out=one)  # 1 where a particle has the best score
    s = best.mul_(sign)  # (n, N')
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
    for one in others:  # the slope goes to the particle that won, the first one where several did
        slope -= one.mul_(slope)
    last.copy_(slope)
    return losses, scores


def _rows_on_cuda(
    scores: Tensor, positives: Tensor, excluded: Tensor, weights: Tensor, entities: int, terms: LossTerms
) -> tuple[Tensor, Tensor]:
    from query2particles.engine.kernels import rows_in_place

    return rows_in_place(scores, positives, excluded, weights, entities, **terms._asdict()), scores


def rounded_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
