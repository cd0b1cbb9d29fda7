"""Products of float32 by parts of float16: no further off than those of float32 themselves may be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from query2particles.engine import products as module
from query2particles.engine.products import aligned, float16_products, float32_products


def random_vectors(seed: int, dimension: int, scales: tuple[float, float]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, table = (torch.randn(count, dimension, generator=generator) for count in (300, 501))
    return rows * scales[0], table * scales[1]


def off(found: Tensor, rows: Tensor, table: Tensor) -> float:
    """The greatest error, in relation to the greatest lengths of the vectors."""
    rows, table = rows.double(), table.double()
    lengths = (torch.linalg.vector_norm(part, dim=1).max() for part in (rows, table))
    return float((found.double() - rows @ table.T).abs().max() / math.prod(lengths))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.02, 0.3), (1e-3, 1e3), (2e4, 1e-6)], ids=str)
@pytest.mark.parametrize("dimension", [1, 61, 400])
def test_they_are_as_exact(
    dimension: int, scales: tuple[float, float], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(module, "_SPLIT_ON", {device})
    rows, table = (part.to(device) for part in random_vectors(dimension, dimension, scales))
    found = float32_products(rows, table)
    assert found.dtype == torch.float32
    assert not torch.equal(found, rows @ table.T), "it was split"
    assert off(found, rows, table) < (2.0**-20 if device == "cuda" else 2.0**-21)  # tensor cores cut off, not round
    if scales == (1.0, 1.0):
        assert off(float16_products(aligned(rows.half()), aligned(table.half())), rows, table) > 2.0**-17


def test_tables_of_any_length_are_multiplied_at_their_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tensor cores are given begins at multiples of 16 bytes, in every row of the factors and of the product."""
    monkeypatch.setattr(module, "_SPLIT_ON", {"cpu"})
    given: list[Tensor] = []

    def watched(rows: Tensor, table: Tensor) -> Tensor:
        given.extend((rows, table, found := float16_products(rows, table)))
        return found

    monkeypatch.setattr(module, "float16_products", watched)
    for length in (489, 496, 501):
        rows, table = random_vectors(0, 61, (1.0, 1.0))
        assert float32_products(rows, table[:length]).shape == (300, length)
    assert all(one.stride(0) * one.element_size() % 16 == 0 for one in given)
    assert len(given) == 9


@pytest.mark.parametrize("scales", [(1e-6, 1e-3), (1e5, 1e6)], ids=str)
def test_what_does_not_fit_is_multiplied_as_it_is(scales: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPLIT_ON", {"cpu"})
    rows, table = random_vectors(0, 40, scales)
    assert torch.equal(float32_products(rows, table), rows @ table.T)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_so(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPLIT_ON", {"cpu"})
    rows, table = random_vectors(0, 40, (1.0, 1.0))
    table[7, 3] = value
    found = float32_products(rows, table)
    assert not bool(found[:, 7].isfinite().any())
    assert bool(found[:, :7].isfinite().all())


def test_few_rows_and_other_types_are_multiplied_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPLIT_ON", {"cpu"})
    rows, table = random_vectors(0, 40, (1.0, 1.0))
    assert torch.equal(float32_products(rows[:9], table), rows[:9] @ table.T)
    assert float32_products(rows.double(), table.double()).dtype == torch.float64
