"""Complex query decomposition (Arakelyan et al., ICLR 2021): a link predictor, trained on single edges, answers all.

A link is as true as its own score says, p(u, r, v) = σ(φ(u, r, v) − θ). `CQDBeam`, here, looks for the best choice of
variables among entities (`methods/search`); `CQDCO`, in `methods/cqd_co`, looks for it among vectors. The paper has no
complement: that of the search, x(v) = 1 − x₁(v), is an extension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from query2particles.methods.search import LogicSettings, TreeSearch
from query2particles.methods.truth import LinkTruth, link_truths

__all__ = ["CQDBeam", "CQDSettings", "Settings"]


@dataclass(frozen=True, kw_only=True)
class CQDSettings(LogicSettings):
    """Also when a link counts as true."""

    threshold: float = 4.0
    """θ: the score of a link that is as likely true as not. The paper has 0, where a predictor that was trained with a
    softmax finds nearly everything likely, so that no complement excludes anything."""


@dataclass(frozen=True, kw_only=True)
class Settings(CQDSettings):
    """Also how sets are followed, and other ways to read a score."""

    beam: int = 64
    """How many entities of a set are followed: the truest; of equally true ones, those of smaller ids."""

    truth: LinkTruth = "sigmoid"
    """p: how a score becomes a truth (`methods/truth`). The threshold is the sigmoid's."""


class CQDBeam(TreeSearch):
    """The search with truths that look at one link at a time."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__(entities, relations, settings := settings or Settings())
        self.settings = settings

    def project(self, state: Tensor, relations: Tensor, *, hop: int = 0) -> Tensor:
        del hop
        width = self.settings.beam if state.is_floating_point() else 1
        rows = max(1, self._links_at_once() // width)
        blocks = zip(torch.split(state, rows), torch.split(relations, rows), strict=True)
        return torch.cat([self._projected(*block) for block in blocks])

    def _projected(self, state: Tensor, r: Tensor) -> Tensor:
        u, x = self._followed(state)
        return self.norm.both(x[..., None], self._links(u, r)).amax(1)

    def _led_from(self, state: Tensor, relation: int, v: int) -> tuple[Tensor, Tensor, Tensor]:
        u, x = self._followed(state)
        return u[0], x[0], self._links(u, u.new_tensor([relation]))[0, :, v]

    def _followed(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The entities u of sets, and log x(u), (n, k)."""
        if not state.is_floating_point():
            return state[:, None], self.links.entities.new_zeros(len(state), 1)
        x, u = (column[:, : self.settings.beam] for column in state.sort(descending=True, stable=True))
        return u, x

    def _links(self, u: Tensor, r: Tensor) -> Tensor:
        """Entities (n, k) and relations (n,): log p(u, r, v) for every v, (n, k, N)."""
        state = self.links.project(self.links.anchor(u.flatten()), r[:, None].expand_as(u).flatten())
        p = link_truths(self.links.score(state), self.settings.truth, self.settings.threshold)
        return p.view(*u.shape, -1)
