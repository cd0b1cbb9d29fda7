"""Count-min sketches of weighted sets (Cormode & Muthukrishnan, 2005): small tables that never say too little.

    S_H(v)[i, j] = Σ { v(x) : h_i(x) = j }        CM(x, b) = minᵢ b[i, h_i(x)]  ≥  v(x)        for b = S_H(v)
    h_i(x) = ((α_i x + β_i) mod P) mod width

of a set that gives weights v(x) ≥ 0 to entities x, with as many hash functions h_i, drawn once, as the sketch is deep.
What other members add to x's cells only makes CM larger. A sketch takes depth · width numbers however many entities
there are, and two are put together without a look at their members:

    union         b = meanᵢ b_i         CM(x, b) ≥ meanᵢ v_i(x)
    intersection  b = minᵢ b_i          CM(x, b) ≥ minᵢ v_i(x)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["CountMin"]

_PRIME = 2**31 - 1
"""P: above any id, and small enough that α x + β does not overflow."""


class CountMin(nn.Module):
    """Sketches (n, depth, width) of n sets. The hash functions follow from the seed, so they are not saved."""

    _factors: Tensor  # α, (depth, 1)
    _shifts: Tensor  # β, (depth, 1)

    def __init__(self, depth: int, width: int, seed: int = 0) -> None:
        super().__init__()
        self.depth, self.width = depth, width
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("_factors", torch.randint(1, _PRIME, (depth, 1), generator=generator), persistent=False)
        self.register_buffer("_shifts", torch.randint(_PRIME, (depth, 1), generator=generator), persistent=False)

    def encode(self, members: Tensor, weights: Tensor) -> Tensor:
        """The sketches of sets with these members and weights, both (n, m); a member may come more than once."""
        cells = self._cells(members)
        sketch = weights.new_zeros(len(members), self.depth, self.width)
        return sketch.scatter_add(2, cells, weights[:, None].expand(cells.shape))

    def weights(self, sketch: Tensor, entities: Tensor) -> Tensor:
        """What the sketches say about entities (n, m): at least their weights."""
        return sketch.gather(2, self._cells(entities)).amin(1)

    @staticmethod
    def union(sketches: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(sketches)).mean(0)

    @staticmethod
    def intersection(sketches: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(sketches)).amin(0)

    def _cells(self, entities: Tensor) -> Tensor:
        """(n, m) → (n, depth, m): the cell of each entity in each row of a sketch."""
        return (self._factors * entities[:, None] + self._shifts) % _PRIME % self.width
