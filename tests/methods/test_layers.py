"""The layers that papers share: attention by sums is attention by products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from query2particles.methods.layers import Attention, attend, attend_to_few, norm_of


def operands(queries: int, keys: int, dimension: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(keys)
    return tuple(  # type: ignore[return-value]
        torch.randn(3, rows, dimension, generator=generator, dtype=torch.float64).requires_grad_()
        for rows in (queries, keys, keys)
    )


@pytest.mark.parametrize("attention", [attend, attend_to_few])
@pytest.mark.parametrize("keys", [1, 2, 7, 20])
@pytest.mark.parametrize("queries", [1, 2, 9])
def test_attention_is_the_same_by_products_and_by_sums(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor], queries: int, keys: int
) -> None:
    """Values and gradients."""
    one = operands(queries, keys)
    found, expected = attention(*one), scaled_dot_product_attention(*one)
    torch.testing.assert_close(found, expected)
    slopes = torch.randn(found.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    of_found = torch.autograd.grad(found, one, slopes)
    of_expected = torch.autograd.grad(expected, one, slopes)
    torch.testing.assert_close(of_found, of_expected)


@pytest.mark.parametrize("attention", [attend, attend_to_few])
def test_attention_withstands_large_logits(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    q, k, v = (1e3 * operand.detach() for operand in operands(2, 8))
    torch.testing.assert_close(attention(q, k, v), scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("residual", [False, True])
def test_matrices_of_attention(residual: bool) -> None:
    """Three, one that serves all, or none: then nothing happens."""
    (p, _, _) = operands(4, 4)
    added = p if residual else torch.zeros_like(p)
    separate = Attention(5, "separate", residual=residual).double()
    (packed,) = separate.parameters()
    w_q, w_k, w_v = packed.chunk(3)
    torch.testing.assert_close(separate(p), added + scaled_dot_product_attention(p @ w_q.T, p @ w_k.T, p @ w_v.T))
    shared = Attention(5, "shared", residual=residual).double()
    (w,) = shared.parameters()
    torch.testing.assert_close(shared(p), added + scaled_dot_product_attention(p @ w.T, p @ w.T, p @ w.T))
    none = Attention(5, "none", residual=residual)
    assert not list(none.parameters())
    assert torch.equal(none(p), p)


def test_norms_by_name() -> None:
    assert isinstance(norm_of(4, "none"), nn.Identity)
    assert [len(list(norm_of(4, norm).parameters())) for norm in ("none", "plain", "learned")] == [0, 0, 2]
