"""What positives are set against: random entities, the same for all queries of an update.

    uniform    q(v) = 1 / N
    degree     q(v) = ½ · 1 / N + ½ · deg(v)^¾ / Σ deg^¾

In a softmax the entities that score high matter most, and they are more often those with many facts; the uniform half
bounds what a rare one stands for, 1 / (m q(v)) ≤ 2 N / m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from query2particles.graph.edges import Ints

__all__ = ["Negatives", "Proposal"]

_POWER = 0.75
_UNIFORM_SHARE = 0.5


class Negatives(NamedTuple):
    """m entities, and how many each stands for."""

    entities: Tensor  # (m,)
    stands_for: Tensor  # (m,) 1 / (m q(v))


class Proposal:
    """Draws negatives, by torch's own generator or a given one: `count` of the entities, or, for 0, all of them.

    With `degrees` (N,) entities with many facts come more often.
    """

    def __init__(
        self,
        entities: int,
        count: int,
        device: torch.device,
        *,
        degrees: Ints | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.entities, self.count = entities, count
        self._device, self._generator = device, generator
        self._likely: Tensor | None = None  # q, (N,)
        if degrees is not None and count:
            weights = np.asarray(degrees, dtype=np.float64) ** _POWER
            likely = _UNIFORM_SHARE / entities + (1 - _UNIFORM_SHARE) * weights / weights.sum()
            self._likely = torch.from_numpy(likely).to(device)
            self._up_to = self._likely.cumsum(0)  # (N,) the probability of this entity and all before

    def draw(self) -> Negatives:
        if not self.count:
            return Negatives(torch.arange(self.entities, device=self._device), torch.ones((), device=self._device))
        if self._likely is None:
            drawn = torch.randint(self.entities, (self.count,), generator=self._generator, device=self._device)
            return Negatives(drawn, torch.full((), self.entities / self.count, device=self._device))
        uniform = torch.rand(self.count, generator=self._generator, dtype=torch.float64, device=self._device)
        drawn = torch.searchsorted(self._up_to, uniform * self._up_to[-1]).clamp(max=self.entities - 1)
        return Negatives(drawn, (1 / (self.count * self._likely[drawn])).float())
