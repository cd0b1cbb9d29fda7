"""Complex query decomposition (Arakelyan et al., ICLR 2021): a link predictor, trained on single edges, answers all.

A link is as true as its own score says, p(u, r, v) = σ(φ(u, r, v) − θ). `CQDBeam`, here, looks for the best choice of
variables among entities (`methods/search`); `CQDCO`, in `methods/cqd_co`, looks for it among vectors. The paper has no
complement: that of the search, x(v) = 1 − x₁(v), is an extension.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from query2particles.methods.search import LogicSettings, SearchSettings, TreeSearch
from query2particles.methods.truth import LinkTruth, link_truths

__all__ = ["CQDBeam", "CQDSettings", "Settings"]


@dataclass(frozen=True, kw_only=True)
class CQDSettings(LogicSettings):
    """Also when a link counts as true."""

    threshold: float = 4.0
    """θ: the score of a link that is as likely true as not. The paper has 0, where a predictor that was trained with a
    softmax finds nearly everything likely, so that no complement excludes anything."""


@dataclass(frozen=True, kw_only=True)
class Settings(CQDSettings, SearchSettings):
    """Also other ways to read a score."""

    truth: LinkTruth = "sigmoid"
    """p: how a score becomes a truth (`methods/truth`). The threshold is the sigmoid's."""


class CQDBeam(TreeSearch):
    """The search with truths that look at one link at a time."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__(entities, relations, settings := settings or Settings())
        self.settings = settings

    def _links(self, u: Tensor, r: Tensor) -> Tensor:
        state = self.links.project(self.links.anchor(u.flatten()), r[:, None].expand_as(u).flatten())
        p = link_truths(self.links.score(state), self.settings.truth, self.settings.threshold)
        return p.view(*u.shape, -1)
