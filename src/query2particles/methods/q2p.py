"""Query2Particles (Bai et al., Findings of NAACL 2022): a set of entities is a few vectors, its particles.

    anchor        P₀ = e_v + M
    projection    Z = σ(W_z e_l + U_z P + b_z)    R = σ(W_r e_l + U_r P + b_r)    T = tanh(W_h e_l + U_h (R ⊙ P) + b_h)
                  A = (1 − Z) ⊙ P + Z ⊙ T         P' = Attn(W_q A, W_k A, W_v A)
    intersection  P = [P⁽¹⁾, …, P⁽ᴺ⁾]             P' = K particles of MLP(Attn(W_q P, W_k P, W_v P))
    complement    P' = MLP(Attn(W_q P, W_k P, W_v P))
    union         P' = [P⁽¹⁾, …, P⁽ᴺ⁾]
    score         φ(P, e_v) = max_k ⟨p⁽ᵏ⁾, e_v⟩

That is the preset `paper`. `released` is the model of the authors' code, which differs (docs/methods.md). The default
takes from it what helped, layer norms and a block before every later hop, and lets offsets start apart; an
intersection is K means of all N·K particles, so that neither the order of the branches nor that of the particles
changes what comes out, nothing is computed only to be dropped, and a later hop meets what it knows from chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from query2particles.engine.method import width
from query2particles.errors import UsageError
from query2particles.methods.layers import (
    Activation,
    Attention,
    Block,
    FeedForward,
    Matrices,
    Norm,
    activation_of,
    attend,
    norm_of,
    rows_of,
)
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union

__all__ = ["PRESETS", "Q2P", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that the presets differ in, and the sizes."""

    dimension: int = 400
    """d: the length of a particle."""
    particles: int = 2
    """K: particles of an anchor, and of an intersection."""
    dropout: float = 0.1
    """On what enters a projection and a block."""
    attention: Matrices = "shared"
    """Three matrices for queries, keys and values, or one for all; or no attention at all, so that nothing passes
    between particles: an ablation, which takes a `keep` that does without, too."""
    residual: bool = False
    """Attention adds to its input."""
    later_residual: bool = True
    """That of the block before later hops does in any case: what the first hop found reaches the next one from the
    start, where a block without it may learn to say the same of everything, and never recover."""
    norm: Norm = "plain"
    """Layer norms after gates, attention and feed-forward layers, which then add to their input: none; plain; or with
    a learned scale and shift."""
    activation: Activation = "gelu"
    """Of feed-forward layers."""
    projection: Literal["attention", "block", "later-block"] = "later-block"
    """What follows the gates: attention; a block (attention and feed-forward); or attention, and a block goes before
    the gates of every hop but the first."""
    passes: int = 1
    """How often a complement goes through its block, and an intersection that has one (`keep`)."""
    keep: Literal["means", "summaries", "sample", "rows"] = "means"
    """How an intersection comes from N·K particles to K: K weighted means of all (`Means`); K summaries that attend to
    them (`Summaries`); or all go through a block, of which a random sample is kept (one for all queries of a call;
    evenly spaced when not training), or rows 0, N, 2N, …, as in the released code."""
    bias: bool = True
    """A learned bias for each entity."""
    entity_scale: float = 0.05
    """Standard deviation of embeddings at the start."""
    offset_scale: float = 0.05
    """Standard deviation of the offsets M at the start; 0: all particles start equal."""


PRESETS: Mapping[str, Settings] = MappingProxyType(
    {
        "default": Settings(),
        "paper": Settings(
            attention="separate",
            later_residual=False,
            norm="none",
            activation="relu",
            projection="attention",
            keep="sample",
            bias=False,
        ),
        "released": Settings(
            norm="learned",
            passes=2,
            keep="rows",
            later_residual=False,
            entity_scale=1.0,
            offset_scale=0.0,
        ),
    }
)


class Q2P(nn.Module):
    """The particles, on whatever device its parameters are. Dropout and samples draw from torch's own generator."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Union, Complement))
    kind = staticmethod(width)

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or Settings()
        if settings.attention == "none" and settings.keep in ("summaries", "means"):
            raise UsageError(
                f"{settings.keep} look at all particles: with attention=none, also set keep=sample or keep=rows"
            )
        d = settings.dimension
        self.entities = nn.Parameter(torch.randn(entities, d) * settings.entity_scale)
        self.relations = nn.Parameter(torch.randn(relations, d) * settings.entity_scale)
        self.offsets = nn.Parameter(torch.randn(settings.particles, d) * settings.offset_scale)  # M
        self.bias = nn.Parameter(torch.zeros(entities)) if settings.bias else None
        self.projection = Projection(settings)
        pooled = {"summaries": Summaries, "means": Means}
        self._pooled = settings.keep in pooled
        self.intersection: nn.Module = pooled.get(settings.keep, _Passes)(settings)
        self.complementation = _Passes(settings)

    def anchor(self, entities: Tensor) -> Tensor:
        return self._in_working_type(functional.embedding(entities, self.entities)[:, None] + self.offsets)  # (n, K, d)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        e = self._in_working_type(functional.embedding(relations, self.relations))
        result: Tensor = self.projection(state, e, hop)
        return result

    def intersect(self, branches: Sequence[Tensor]) -> Tensor:
        together = torch.cat(list(branches), 1)  # (n, w, d): w = N·K, more where a branch is a union
        p: Tensor = self.intersection(together)
        return p if self._pooled else p[:, self._kept(p.shape[1], len(branches), p.device)]

    def union(self, branches: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(branches), 1)

    def complement(self, state: Tensor) -> Tensor:
        result: Tensor = self.complementation(state)
        return result

    def score(self, state: Tensor, entities: Tensor | None = None) -> Tensor:
        _, table, bias = self.factors(state, entities)
        return (state.to(table.dtype) @ table.transpose(-1, -2)).amax(1) + bias

    def factors(self, state: Tensor, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Particles (n, w, d), table (N, d) and bias (N,) with score(v) = max_k ⟨p_k, e_v⟩ + b_v."""
        return state, rows_of(self.entities, entities), rows_of(self._bias(), entities)

    def stack(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(states))

    def split(self, state: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(state, list(sizes))

    def _bias(self) -> Tensor:
        return self.entities.new_zeros(len(self.entities)) if self.bias is None else self.bias

    def _in_working_type(self, values: Tensor) -> Tensor:
        """Tables stay in float32 where the operators run in less."""
        return values.to(self.projection.transition.weight.dtype)

    def _kept(self, particles: int, branches: int, device: torch.device) -> Tensor:
        """Which of N·K particles stay."""
        kept = torch.arange(self.settings.particles, device=device)
        if self.settings.keep == "rows":
            return kept * branches
        if self.training:
            return torch.rand(particles, device=device).argsort()[: self.settings.particles]
        return kept * particles // self.settings.particles


class Projection(nn.Module):
    """The gated projection f_P(P, e_l), and what follows the gates."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings.dimension
        self.dropout = nn.Dropout(settings.dropout)
        self.relation = nn.Linear(d, 3 * d)  # W_z, W_r, W_h with b_z, b_r, b_h
        self.gates = nn.Linear(d, 2 * d, bias=False)  # U_z, U_r
        self.transition = nn.Linear(d, d, bias=False)  # U_h
        self.norm = norm_of(d, settings.norm)
        through = settings.residual or settings.later_residual
        self.later = _block(settings, dropout=0.0, residual=through) if settings.projection == "later-block" else None
        self.mix = _block(settings, dropout=0.0) if settings.projection == "block" else _Mix(settings)

    def forward(self, p: Tensor, e: Tensor, hop: int) -> Tensor:
        """P (n, w, d) and the relations' embeddings (n, d)."""
        if self.later is not None and hop > 0:
            p = self.later(p)
        p, e = self.dropout(p), self.dropout(e)
        d = e.shape[-1]
        we = self.relation(e)[:, None]  # (n, 1, 3d)
        z, r = torch.sigmoid(we[..., : 2 * d] + self.gates(p)).chunk(2, -1)
        t = torch.tanh(we[..., 2 * d :] + self.transition(r * p))
        a = torch.lerp(p, t, z)  # (1 − Z) ⊙ P + Z ⊙ T
        result: Tensor = self.mix(self.norm(a))
        return result


class Summaries(nn.Module):
    """Another intersection: K summaries attend to all particles, rather than all of them with K to be kept.

        c = mean of all particles P        A = LN(c + Attn(W_q c + S, W_k P, W_v P))        P' = LN(A + MLP(A))

    with learned seeds S (K, d) that tell the summaries apart. Nothing here knows an order of P.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings.dimension
        self.dropout = nn.Dropout(settings.dropout)
        self.seeds = nn.Parameter(torch.randn(settings.particles, d))  # S
        self.context = nn.Linear(d, d, bias=False)  # W_q
        self.particles = nn.Linear(d, 2 * d, bias=False)  # W_k, W_v
        self.feed_forward = FeedForward(d, settings.activation)
        self.norms = nn.ModuleList(norm_of(d, settings.norm) for _ in range(2))

    def forward(self, p: Tensor) -> Tensor:
        p = self.dropout(p)
        c = p.mean(1, keepdim=True)  # (n, 1, d)
        k, v = self.particles(p).chunk(2, -1)
        a = self.norms[0](c + attend(self.context(c) + self.seeds, k, v))  # (n, K, d)
        result: Tensor = self.norms[1](a + self.feed_forward(a))
        return result


class Means(nn.Module):
    """The default's intersection: K means of all particles, in which every coordinate has weights of its own.

        c = mean of all particles P      w_ki = softmax over i of U σ(V p_i + W c + s_k)      p'_k = LN(Σ_i w_ki ⊙ p_i)

    What comes out lies among what came in, so that a later hop meets nothing that it does not know from chains.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        d = settings.dimension
        self.dropout = nn.Dropout(settings.dropout)
        self.seeds = nn.Parameter(torch.randn(settings.particles, d))  # S
        self.particles = nn.Linear(d, d, bias=False)  # V
        self.context = nn.Linear(d, d, bias=False)  # W
        self.weights = nn.Linear(d, d, bias=False)  # U
        self.activation = activation_of(settings.activation)
        self.norm = norm_of(d, settings.norm)

    def forward(self, p: Tensor) -> Tensor:
        p = self.dropout(p)
        c = p.mean(1, keepdim=True)  # (n, 1, d)
        asked = self.context(c) + self.seeds  # (n, K, d)
        inner = self.activation(self.particles(p)[:, None] + asked[:, :, None])  # (n, K, w, d)
        result: Tensor = self.norm((self.weights(inner).softmax(2) * p[:, None]).sum(2))
        return result


class _Mix(nn.Module):
    """The attention that closes a projection."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.attention = Attention(settings.dimension, settings.attention, residual=settings.residual)
        self.norm = norm_of(settings.dimension, settings.norm)

    def forward(self, a: Tensor) -> Tensor:
        result: Tensor = self.norm(self.attention(a))
        return result


class _Passes(nn.Module):
    """The block of an intersection or a complement; several passes share its matrices, each has its own norms."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.block = _block(settings)
        self.norms = nn.ModuleList(
            nn.ModuleList(norm_of(settings.dimension, settings.norm) for _ in self.block.norms)
            for _ in range(settings.passes - 1)
        )

    def forward(self, p: Tensor) -> Tensor:
        p = self.block(p)
        for norms in self.norms:
            p = self.block(p, norms)
        return p


def _block(settings: Settings, **changes: Any) -> Block:
    options: dict[str, Any] = {
        "attention": settings.attention,
        "residual": settings.residual,
        "norm": settings.norm,
        "activation": settings.activation,
        "dropout": settings.dropout,
    }
    return Block(settings.dimension, **{**options, **changes})
