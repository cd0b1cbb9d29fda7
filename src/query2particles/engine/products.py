"""Matrix products of float32 numbers from products of float16, which tensor cores are many times as fast at.

Two numbers of float16 hold what one of float32 does, but for a few last bits; what is left out of their product is
smaller than what adding up in float32 rounds away:

    x = x₁ + x₂        x₁ = float16(x)        x₂ = float16(x − x₁)
    ⟨p, e⟩ ≈ ⟨p₁, e₁⟩ + ⟨p₁, e₂⟩ + ⟨p₂, e₁⟩ = ⟨(p₁, p₁, p₂), (e₁, e₂, e₁)⟩

float16 ends at 65,504, and has fewer bits for what is small. So one side is multiplied by a power of two and the other
divided by it, after which their greatest numbers are about as great.

Tensor cores cut off what adding up leaves, where others round: on an H200, products of vectors of 400 coordinates were
seen to be off by 6 · 10⁻⁷ of the vectors' lengths.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["aligned", "float16_products", "float32_products"]

_SPLIT_ON = frozenset({"cuda"})
"""Elsewhere products of float16 are slow."""

_MANY_ROWS = 256
"""With fewer, splitting the table takes longer than it saves."""

_ALIGNED = 16
"""Coordinates and rows: products are fast from multiples of 8 on, and what reads them four at a time of 16."""

_LEAST_PEAK, _MOST_PEAK = 2.0**-8, 2.0**14
"""Between these, the greatest number of either side, float16 has room for all that counts."""


def float32_products(rows: Tensor, table: Tensor) -> Tensor:
    """Rows (n, d) with those of a table (N, d): (n, N), as exact as products of float32, of the greatest at least."""
    if rows.device.type in _SPLIT_ON and rows.dtype == torch.float32 and len(rows) >= _MANY_ROWS:
        peaks = torch.stack([torch.linalg.vector_norm(part, torch.inf) for part in (rows, table)])
        of_rows, of_table = peaks.tolist()  # the host waits here
        if _LEAST_PEAK**2 < of_rows * of_table < _MOST_PEAK**2:  # false where any is NaN
            factor = 2.0 ** round(math.log2(of_table / of_rows) / 2)
            (p, p_rest), (e, e_rest) = _split(rows * factor), _split(table / factor)
            wide = float16_products(aligned(torch.cat([p, p, p_rest], 1)), _padded(torch.cat([e, e_rest, e], 1)))
            return wide[:, : len(table)]
    return rows @ table.T


def float16_products(rows: Tensor, table: Tensor) -> Tensor:
    """The same of float16, in float32: every single product is exact there."""
    if rows.device.type == "cuda":
        return torch.mm(rows, table.T, out_dtype=torch.float32)
    return rows.float() @ table.float().T


def aligned(vectors: Tensor) -> Tensor:
    """With as many coordinates, the last ones 0, as are multiplied fast."""
    return functional.pad(vectors, (0, -vectors.shape[-1] % _ALIGNED))


def _padded(table: Tensor) -> Tensor:
    """With as many rows, too.

    Where the rows of a product do not begin at multiples of 16 bytes, the fastest kernels are not used: with NELL's
    63,361 entities, on an H200, it took seven times as long.
    """
    return functional.pad(aligned(table), (0, 0, 0, -len(table) % _ALIGNED))


def _split(numbers: Tensor) -> tuple[Tensor, Tensor]:
    first = numbers.half()
    return first, (numbers - first).half()
