"""Tree search over calibrated links: what is stored is certain, what is not is as likely as facts of its kind are.

The search is that of `methods/search`, as in QTO (Bai et al., ICML 2023), and exact where it follows every entity.
What a link predictor says about one edge is put in relation to the other edges of its head and relation:

    p(h, r, t) = 1                                          where the edge (h, r, t) is stored
               = min(κ, c(h, r) softmax_t α φ(h, r, t))     where it is not

A softmax says how likely a tail that is drawn from all tails is t; how much differences of scores should count in a
search, α, depends on the graph. Times c, the number of tails to be expected, that is how likely t is among them: one of
many tails may be as certain as a single one. There are at least as many as are stored, and for a head without any, as
many as `unseen` says; κ < 1 keeps guesses behind facts. So truths are probabilities, and complements, which exclude
what is likely, can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from query2particles.engine.products import float32_products
from query2particles.engine.ranks import Factored
from query2particles.errors import UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.methods.search import SearchSettings, TreeSearch
from query2particles.methods.stored import StoredTails, laid_out
from query2particles.methods.truth import FALSE

__all__ = ["Settings", "Tree"]

_JOINED_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 31}
"""How many truths are joined at once: on a CPU, what its caches hold."""


@dataclass(frozen=True, kw_only=True)
class Settings(SearchSettings):
    """Also how scores become probabilities."""

    beam: int = 256
    unseen: float = 1.0
    """c(h, r) where no edge is stored; where some are, it is their number, if that is more."""
    certain: float = 0.99
    """κ: the most likely that an edge which is not stored can be."""
    sharpness: float = 0.8
    """α: how much a difference of scores counts."""
    several: Literal["best", "any"] = "best"
    """Where several entities u lead to v: v is as true as the best one makes it, x₁(u) ⊤ p(u, r, v), or as any of them
    does, by the co-norm ⊥ of all: two ways to an answer then make it likelier than one."""
    least: float = 0.01
    """Only entities that are so true, in relation to the truest of a set, are followed: what is found from others
    could be no truer, and most sets have few of them. 0: all of the beam."""


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
        self.settings = settings
        self.stored: StoredTails | None = None

    def attach(self, edges: Edges) -> None:
        """The stored edges: those that the link predictor is or was trained on."""
        edges.check_fit(len(self.links.entities), len(self.links.relations))
        self.stored = StoredTails(edges).to(self.links.entities.device)

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        """Link by link from what counts, of which some queries have much, most have little.

        All links of many queries are scored at once, and those of queries that follow as many entities joined at once.
        """
        del hop
        u, x = super()._followed(state)
        followed = self._counts(x).sum(1).cpu().numpy()  # (n,): the first so many of each
        order = np.argsort(followed, kind="stable")
        found = self.links.entities.new_empty(len(state), len(self.links.entities))
        for some in _blocks(followed[order], self._links_at_once()):
            rows = torch.as_tensor(order[some], device=state.device)
            within, place = laid_out(torch.as_tensor(followed[order[some]], device=state.device))
            query = rows[within]
            truths = self.norm.both(x[query, place][:, None], self._links_from(u[query, place], relations[query]))
            found[rows] = torch.cat([self.joined(own.transpose(0, 1)) for own in _alike(truths, followed[order[some]])])
        return found

    def joined(self, truths: Tensor) -> Tensor:
        """How true v is, of how true each of several u makes it, (k, …): (…)."""
        if len(truths) == 1:
            return truths[0]
        return self.norm.any_of(truths) if self.settings.several == "any" else truths.amax(0)

    def _followed(self, state: Tensor) -> tuple[Tensor, Tensor]:
        u, x = super()._followed(state)
        return u, x.masked_fill(~self._counts(x), FALSE)

    def _counts(self, x: Tensor) -> Tensor:
        """Whether entities are true enough, of truths (n, k) in descending order."""
        return x >= x[:, :1] + (math.log(self.settings.least) if self.settings.least else -math.inf)

    def _links(self, u: Tensor, r: Tensor) -> Tensor:
        return self._links_from(u.flatten(), r[:, None].expand_as(u).flatten()).view(*u.shape, -1)

    def _links_from(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Of n heads and relations (n,) with every tail: log p (n, N)."""
        if self.stored is None:
            raise UsageError("the model does not know what is stored; call attach(edges) first")
        stored = self.stored.of(heads, relations)
        c = stored.counts.to(self.links.entities.dtype).clamp(min=self.settings.unseen)
        state = self.links.project(self.links.anchor(heads), relations)
        multiplied = isinstance(self.links, Factored)
        scores = float32_products(state, self.links.entities) if multiplied else self.links.score(state)
        p = scores.mul_(self.settings.sharpness).log_softmax(-1)
        p = p.add_(c.log()[:, None]).clamp_(max=math.log(self.settings.certain))
        p[stored.pairs, stored.tails] = 0.0
        return p


def _blocks(sizes: Ints, most: int) -> Iterator[slice]:
    """Places of sizes in a row that are no more than `most` together, or one that is."""
    start = 0
    while start < len(sizes):
        stop = start + max(1, int(np.searchsorted(sizes[start:].cumsum(), most, side="right")))
        yield slice(start, stop)
        start = stop


def _alike(truths: Tensor, sizes: Ints) -> Iterator[Tensor]:
    """From the rows (k + k′ + …, N) of queries in the order of how many each has: (n, k, N) of n that have as many."""
    limit = _JOINED_NUMBERS["cuda" if truths.is_cuda else "cpu"]
    start = 0
    for size, count in zip(*(part.tolist() for part in np.unique(sizes, return_counts=True)), strict=True):
        own = truths[start : start + size * count].view(count, size, -1)
        yield from torch.split(own, max(1, limit // own[0].numel()))
        start += size * count
