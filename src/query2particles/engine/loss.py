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

Both softmaxes have a faster form for methods that score by inner products (`engine/fused_loss`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "NEVER",
    "PLAIN",
    "AllColumns",
    "Columns",
    "LossTerms",
    "Objective",
    "negatives_loss",
    "softmax_loss",
]

NEVER = -1e30
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
        rest = (others + stands_for.log()).masked_fill(hits, NEVER).logsumexp(1)
        smooth = (others * stands_for).sum(1) / entities
        losses = torch.logaddexp(found, rest) - (1 - terms.smoothing) * found - terms.smoothing * smooth
    return (weights * (losses + terms.exclusion * apart * functional.softplus(barred - found))).sum()
