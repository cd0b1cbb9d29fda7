"""Captured work: what needs the host is noticed, and on a GPU graphs share their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from query2particles.engine.captured import Captured
from unattended import Unattended


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x > 0],
        lambda x: x.sum().item(),
        lambda x: x + torch.tensor([1.0]),
        lambda x: x.nonzero(),
        lambda x: x.index_put((x > 0,), x.new_zeros(())),
    ],
)
def test_what_needs_the_host_is_noticed(work: Callable[[Tensor], object]) -> None:
    with Unattended(), pytest.raises(AssertionError, match="needs the host"):
        work(torch.ones(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_that_share_a_pool() -> None:
    """Each computes what it should, whichever is replayed, as long as results are taken at once."""
    pool = torch.cuda.graph_pool_handle()
    given = torch.zeros(1000, device="cuda")
    found: dict[int, Tensor] = {}

    def work(factor: int) -> Callable[[], None]:
        def multiply() -> None:
            found[factor] = ((given + 1) * factor).cumsum(0)

        return multiply

    several = {factor: Captured(work(factor), pool=pool) for factor in (2, 3)}
    for number in range(8):
        given.fill_(number)
        for factor, captured in several.items():
            captured()
            torch.testing.assert_close(found[factor][-1].item(), 1000.0 * (number + 1) * factor)
