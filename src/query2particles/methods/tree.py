"""Tree search over calibrated links: what is stored is certain, what is not is as likely as facts of its kind are.

The search is that of `methods/search`, as in QTO (Bai et al., ICML 2023). What a link predictor says about one edge is
put in relation to the other edges of its head and relation:

    p(h, r, t) = 1                                          where the edge (h, r, t) is stored
               = min(κ, c(h, r) softmax_t α φ(h, r, t))     where it is not
               = 0                                          where h = t, and r leads nobody to itself

A softmax says how likely a tail that is drawn from all tails is t; how much differences of scores should count in a
search, α, depends on the graph. Times c, the number of tails to be expected, that is how likely t is among them: one of
many tails may be as certain as a single one. There are at least as many as are stored, and for a head without any, as
many as `unseen` says; κ < 1 keeps guesses behind facts. So truths are probabilities, and complements, which exclude
what is likely, can be trusted.

A projection has a stored part and a predicted part, since x ⊤ 1 = x:

    x(v) = max ( max_{u: (u, r, v) is stored} x₁(u),  max_{u: it is not} x₁(u) ⊤ p(u, r, v) )        or ⊥ for max

The stored part is a sparse product over the edges of r, and covers every entity u, however many there are. The
predicted part takes a row of N links for each u, and follows the entities that count (`least`), no more than `beam`.
Where that bound cuts no set, the search is exact but for `least`; `cut` counts the sets that it cut.

A complement is 1 − s x₁(v), no less than 0. Where the set x₁ is a projection, it can also be read as QTO does, as one
that takes the edge to be missing (`negated_hops`):

    set     v is led to by no u:               x(v) = 1 − s max_u x₁(u) ⊤ p(u, r, v)
    edge    v is not led to by some u:         x(v) = max_u x₁(u) ⊤ (1 − s p(u, r, v))

From a single entity both are the same.

Walks along stored edges (`methods/walks`) say how likely a tail is t, too. A share ω of what they come to is theirs,
and the softmax has the rest:

    ω w(t | h, r) + (1 − ω Σ_t w(t | h, r)) softmax_t α φ(h, r, t)          in place of the softmax above
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from query2particles.engine.products import float32_products
from query2particles.engine.ranks import Factored
from query2particles.errors import TrainingError, UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.methods.search import LogicSettings, TreeSearch
from query2particles.methods.stored import Stored, StoredEdges, StoredTails, blocks_of
from query2particles.methods.truth import FALSE, highest_at, negated
from query2particles.methods.walks import Walked, Walks, fit_walks
from query2particles.query.algebra import Anchor, Project, Query

__all__ = ["WAYS", "Settings", "Tree", "Way"]

Way: TypeAlias = Literal["any", "best"]
"""How what leads to an entity is joined: by all ways there, or by the best one."""

WAYS: tuple[Way, ...] = ("any", "best")

_Join: TypeAlias = Way | Literal["without"]
"""Also: by the best u that does not lead there."""

_LINKS = {"cpu": 1 << 21, "cuda": 1 << 31}
"""How many links of a set are predicted where the beam is not set: on a CPU it is the time that binds."""

_FEWEST = 128
"""Entities of a set that links are predicted from at least."""

_FALSE_BESIDE = 1e-30
"""Entities that are so little true in relation to another are false."""

_NOT_ATTACHED = "the model does not know what is stored; call attach(edges) first"

_JOINED_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 31}
"""How many truths are joined at once: on a CPU, what its caches hold."""

_FUSED_ON = frozenset({"cuda"})
"""Where scores of links are summed and joined by kernels (`engine/way_kernels`), which read them once."""


@dataclass(frozen=True, kw_only=True)
class Settings(LogicSettings):
    """Also how sets are followed, and how scores become probabilities."""

    beam: int | Literal["auto"] = "auto"
    """How many entities of a set links are predicted from, at most: the truest; of equally true ones, those of smaller
    ids. auto: all of them on a GPU, up to 2³¹ links of a set; on a CPU 2²¹ links, but no fewer than 128 entities."""
    unseen: float = 1.0
    """c(h, r) where no edge is stored; where some are, it is their number, if that is more."""
    certain: float = 0.99
    """κ: the most likely that an edge which is not stored can be."""
    sharpness: float = 0.8
    """α: how much a difference of scores counts."""
    walks: float = 0.0
    """ω: how much of what walks come to is theirs to say; 0: no walks."""
    several: Way = "best"
    """Where several entities u lead to v: v is as true as the best one makes it, x₁(u) ⊤ p(u, r, v), or as any of them
    does, by the co-norm ⊥ of all: two ways to an answer then make it likelier than one."""
    least: float = 0.01
    """Links are predicted only from entities that are so true, in relation to the truest of a set: what is found from
    others could be no truer, and most sets have few of them. 0: from all that are not false."""
    threshold: float = 0.0
    """ε: links that are not stored and less likely are false."""
    neg_scale: float = 1.0
    """s: how much a truth counts in a complement; above 1, what is likely is excluded for certain."""
    negated_hops: Literal["set", "edge"] = "set"
    """What the complement of a projection is that of."""


class Hop(NamedTuple):
    """What relations lead to from n sets, where the complement of a projection is that of an edge."""

    truths: Tensor  # (n, N)
    negated: Tensor  # (n, N)


class Tree(TreeSearch):
    """`attach` hands over the stored edges before anything is asked; they are not saved."""

    replayed: ClassVar[bool] = False
    """How many edges are stored is looked at."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__(entities, relations, settings := settings or Settings())
        if not 0 < settings.certain < 1:
            raise UsageError(f"certain lies between 0 and 1, and is not {settings.certain}")
        if settings.sharpness <= 0:
            raise UsageError(f"sharpness is above 0, and not {settings.sharpness}")
        if settings.unseen <= 0:
            raise UsageError(f"unseen is above 0, however little, and not {settings.unseen}")
        if not 0 <= settings.walks < 1:
            raise UsageError(f"walks lies between 0 and 1, and is not {settings.walks}")
        if not 0 <= settings.threshold < settings.certain:
            raise UsageError(f"threshold lies between 0 and certain, and is not {settings.threshold}")
        if settings.neg_scale <= 0:
            raise UsageError(f"neg_scale is above 0, and not {settings.neg_scale}")
        if settings.negated_hops == "edge":
            self.kind = _kind_of_hops  # type: ignore[method-assign]
        self.settings = settings
        self.cut = 0
        """Of how many sets so far the beam left out entities that count."""
        self.stored: StoredTails | None = None
        self._by_relation: StoredEdges | None = None
        self.walks: Walks | None = None

    def attach(self, edges: Edges) -> None:
        """The stored edges: those that the link predictor is or was trained on."""
        edges.check_fit(len(self.links.entities), len(self.links.relations))
        device = self.links.entities.device
        self.stored, self._by_relation = StoredTails(edges).to(device), StoredEdges(edges).to(device)
        self._edges, self.walks = edges, None
        if self.settings.walks:
            self._walks()  # now, lest the first question waits for it

    @property
    def by_relation(self) -> StoredEdges:
        """The stored edges, relation by relation."""
        if self._by_relation is None:
            raise UsageError(_NOT_ATTACHED)
        return self._by_relation

    def project(self, state: Tensor | Hop, relations: Tensor, *, hop: int = 0) -> Any:
        del hop
        sets = state.truths if isinstance(state, Hop) else state
        by_edge = self.settings.negated_hops == "edge"
        ways: tuple[_Join, ...] = (self.settings.several, "without") if by_edge else (self.settings.several,)
        if sets.is_floating_point():
            sets = sets[:, None].expand(-1, len(ways), -1)
        found = self.projected(sets, relations, ways).unbind(1)
        return Hop(*found) if by_edge else found[0]

    def complement(self, state: Tensor | Hop) -> Tensor:
        return state.negated if isinstance(state, Hop) else self.negated(self._truths(state))

    def negated(self, x: Tensor) -> Tensor:
        """The complement of truths, whatever they are of."""
        return negated(x, self.settings.neg_scale)

    def stack(self, states: Sequence[Any]) -> Any:
        if isinstance(states[0], Hop):
            return Hop(*map(torch.cat, zip(*states, strict=True)))
        return super().stack(states)

    def split(self, state: Tensor | Hop, sizes: Sequence[int]) -> Sequence[Any]:
        if isinstance(state, Hop):
            return list(map(Hop, *(torch.split(part, list(sizes)) for part in state)))
        return super().split(state, sizes)

    def _truths(self, state: Tensor | Hop) -> Tensor:
        return state.truths if isinstance(state, Hop) else super()._truths(state)

    def projected(self, state: Tensor, relations: Tensor, ways: Sequence[_Join]) -> Tensor:
        """What relations lead to from sets (n, w, N), each of w joined in its own way, or from single entities (n,).

        Links are scored once for all ways, since sets that differ in that follow much the same entities.
        """
        most = self._links_at_once()
        if not state.is_floating_point():
            blocks = zip(torch.split(state, most), torch.split(relations, most), strict=True)
            p = torch.cat([self._links_from(*block) for block in blocks])
            return torch.stack([self.negated(p) if way == "without" else p for way in ways], 1)
        found = self._stored_part(state, relations, ways)
        followed = self._is_followed(state)
        by_any = followed.any(1)
        counts = by_any.sum(1).cpu().numpy()  # of each query: some follow many, most few
        if not counts.all():
            raise TrainingError("truths are no numbers: the links have diverged; train them again, at a lower rate")
        order = np.argsort(counts, kind="stable")
        for some in blocks_of(counts[order], most):
            rows = torch.as_tensor(order[some], device=state.device)
            within, heads = by_any[rows].nonzero(as_tuple=True)
            for u, query in zip(torch.split(heads, most), torch.split(rows[within], most), strict=True):
                sizes = counts[order[some]] if len(rows) > 1 else np.array([len(u)])  # one may fill several blocks
                join = self._joining(self._scored(u, relations[query]), sizes)
                for number, way in enumerate(ways):
                    x = state[query, number, u].masked_fill(~followed[query, number, u], FALSE)
                    either = self.norm.either if way == "any" else torch.maximum
                    found[rows, number] = either(found[rows, number], join(x, way))
        return found

    def _stored_part(self, state: Tensor, relations: Tensor, ways: Sequence[_Join]) -> Tensor:
        """What stored edges lead to from sets (n, w, N)."""
        found = torch.full_like(state, FALSE, memory_format=torch.contiguous_format)
        entities = state.shape[-1]
        for some, rows, heads, tails in self.by_relation.of(relations):
            own = state[some]
            for number, way in enumerate(ways):
                if way == "without":
                    continue
                join = self.norm.any_at if way == "any" else highest_at
                truths = join(own[rows, number, heads], rows * entities + tails, len(own) * entities)
                found[some, number] = truths.view(-1, entities)
        return found

    def _joining(self, links: _Scored, sizes: Ints) -> Callable[[Tensor, _Join], Tensor]:
        """What makes truths (n, N) of x (rows,), by predicted links from the entities that n queries follow, so many
        each.
        """
        scores = links.scores
        if _is_fused(scores) and self.settings.t_norm == "product" and self.settings.negated_hops == "set":
            from query2particles.engine.way_kernels import joined_ways

            starts = torch.as_tensor(np.append(0, sizes.cumsum()), device=scores.device)
            scores[links.stored.pairs, links.stored.tails] = FALSE
            return lambda x, way: joined_ways(scores, links.shifts, self._most, x, starts, of_all=way == "any")
        p = links.truths(self._most, of_stored=FALSE)

        def join(x: Tensor, way: _Join) -> Tensor:
            truths = self.norm.both(x[:, None], self.negated(links.known(p)) if way == "without" else p)
            return torch.cat([self.joined(own.transpose(0, 1), way) for own in _alike(truths, sizes)])

        return join

    def joined(self, truths: Tensor, way: _Join) -> Tensor:
        """How true v is, of how true each of several u makes it, (k, …): (…)."""
        if len(truths) == 1:
            return truths[0]
        return self.norm.any_of(truths) if way == "any" else truths.amax(0)

    def _is_followed(self, state: Tensor) -> Tensor:
        """Which entities of sets (n, w, N): of those that count, the truest; of equally true ones, the first."""
        counts = self._counts(state, state.amax(-1, keepdim=True))
        many = counts.sum(-1) > self.beam
        if cut := int(many.any(1).sum()):
            self.cut += cut
            truest = state[many].sort(descending=True, stable=True).indices[:, : self.beam]
            counts[many] &= torch.zeros_like(counts[many]).scatter(1, truest, value=True)
        return counts

    @property
    def beam(self) -> int:
        """From how many entities of a set links are predicted, at most."""
        if self.settings.beam != "auto":
            return self.settings.beam
        table = self.links.entities
        return max(_FEWEST, _LINKS["cuda" if table.is_cuda else "cpu"] // len(table))

    @property
    def left_out(self) -> str:
        """What the beam left out so far, in a sentence; nothing where it left out nothing."""
        if not self.cut:
            return ""
        return (
            f"in sets of more than {self.beam:,} entities (beam; there were {self.cut:,}), links are predicted from "
            "the truest alone; stored facts are followed from all"
        )

    def _led_from(self, state: Tensor | Hop, relation: int, v: int) -> tuple[Tensor, Tensor, Tensor]:
        """Those that are followed, and of those that stored edges lead to v from, the truest."""
        assert self.stored is not None, "there is a state"
        x = self._truths(state)[0]
        followed = self._is_followed(x[None, None])[0, 0]
        heads = self.stored.of(*torch.tensor([[v], [relation ^ 1]], device=x.device)).tails
        if len(heads):
            followed[heads[x[heads].argmax()]] = True
        u = followed.nonzero()[:, 0]
        blocks = torch.split(u, self._links_at_once())
        p = torch.cat([self._links_from(some, torch.full_like(some, relation))[:, v] for some in blocks])
        return u, x[u], p

    def _counts(self, x: Tensor, truest: Tensor) -> Tensor:
        """Whether entities are true enough to be followed."""
        return x >= truest + math.log(self.settings.least or _FALSE_BESIDE)

    def _links_from(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Of n heads and relations (n,) with every tail: log p (n, N)."""
        return self._scored(heads, relations).truths(self._most, of_stored=0.0)

    def _scored(self, heads: Tensor, relations: Tensor) -> _Scored:
        if self.stored is None:
            raise UsageError(_NOT_ATTACHED)
        stored = self.stored.of(heads, relations)
        c = stored.counts.to(self.links.entities.dtype).clamp(min=self.settings.unseen)
        state = self.links.project(self.links.anchor(heads), relations)
        if isinstance(self.links, Factored):
            scores = float32_products(self.settings.sharpness * state, self.links.entities)
        else:
            scores = self.settings.sharpness * self.links.score(state)
        self.stored.without_echo(scores, heads, relations, FALSE)
        total = _log_totals(scores)
        if self.settings.walks:
            walked = self.walked(heads, relations)
            total, by_walks = walked.beside(total)
            there = walked.pairs, walked.tails
            scores[there] = torch.logaddexp(scores[there], by_walks)
            self.stored.without_echo(scores, heads, relations, FALSE)
        shifts = c.log() - total
        if self.settings.threshold:
            scores.masked_fill_(scores < (math.log(self.settings.threshold) - shifts)[:, None], FALSE)
        return _Scored(scores, shifts, stored)

    def walked(self, heads: Tensor, relations: Tensor) -> Walked:
        """What walks from n heads and relations (n,) say."""
        assert self.stored is not None, "there are edges to walk along"
        found = self._walks().of(self.stored, heads, relations, self.settings.walks)
        dtype = self.links.entities.dtype
        return found._replace(chances=found.chances.to(dtype), rest=found.rest.to(dtype))

    def _walks(self) -> Walks:
        """Fitted once to what is attached."""
        if self.walks is None:
            self.walks = fit_walks(self._edges).to(self.links.entities.device)
        return self.walks

    @property
    def _most(self) -> float:
        """The logarithm of κ."""
        return math.log(self.settings.certain)


def _kind_of_hops(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
    """Single entities, and what a projection leads to, are kept apart from sets."""
    del below
    return operator is Anchor, operator is Project


class _Scored(NamedTuple):
    """Links of n heads and relations to every tail: log p = min(log κ, score + shift) where they are not stored."""

    scores: Tensor  # (n, N), α φ
    shifts: Tensor  # (n,)
    stored: Stored

    def truths(self, most: float, *, of_stored: float) -> Tensor:
        """The logarithms of p (n, N), in place of the scores."""
        p = self.scores.add_(self.shifts[:, None]).clamp_(max=most)
        p[self.stored.pairs, self.stored.tails] = of_stored
        return p

    def known(self, p: Tensor) -> Tensor:
        """The logarithms of p (n, N), where what is stored is certain."""
        return p.index_put((self.stored.pairs, self.stored.tails), p.new_zeros(()))


def _is_fused(scores: Tensor) -> bool:
    return scores.device.type in _FUSED_ON and scores.dtype == torch.float32


def _log_totals(scores: Tensor) -> Tensor:
    """The logarithm of Z: of the exponentials of each row (n, N), (n,)."""
    if not _is_fused(scores):
        return scores.logsumexp(-1)
    from query2particles.engine.way_kernels import log_totals

    return log_totals(scores)


def _alike(truths: Tensor, sizes: Ints) -> Iterator[Tensor]:
    """From the rows (k + k′ + …, N) of queries in the order of how many each has: (n, k, N) of n that have as many."""
    limit = _JOINED_NUMBERS["cuda" if truths.is_cuda else "cpu"]
    start = 0
    for size, count in zip(*(part.tolist() for part in np.unique(sizes, return_counts=True)), strict=True):
        own = truths[start : start + size * count].view(count, size, -1)
        yield from torch.split(own, max(1, limit // own[0].numel()))
        start += size * count
