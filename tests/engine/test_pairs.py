"""Sums over dimensions for every pair, against loops over the pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine import pairs
from query2particles.engine.pairs import l1_distances, pair_sums

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def smooth(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """No product of what belongs to a query with what belongs to an entity, and not the same in any two operands."""
    return torch.tanh(a * x - b.sin()) * (y + a).square() + x.exp() * b


def box(centre: Tensor, offset: Tensor, point: Tensor) -> Tensor:
    """With corners, as distances of papers have them."""
    way = (point - centre).abs()
    return (way - offset.abs()).relu() + 0.25 * torch.minimum(way, offset.abs())


Term = Callable[..., Tensor]
TERMS: list[tuple[Term, int, int]] = [(smooth, 2, 2), (box, 2, 1), (torch.sub, 1, 1)]
"""Each with how many tensors of queries and how many of entities it takes."""
each_term = pytest.mark.parametrize(("term", "left", "right"), TERMS, ids=lambda one: getattr(one, "__name__", None))


def numbers(count: int, *shape: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(count)]


def literal(term: Term, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Pair by pair, dimension by dimension."""
    n, d = left[0].shape
    m = right[0].shape[-2]
    rows = []
    for i in range(n):
        for v in range(m):
            total = left[0].new_zeros(())
            for j in range(d):
                of_entity = (one[v, j] if one.dim() == 2 else one[i, v, j] for one in right)
                total = total + term(*(one[i, j] for one in left), *of_entity)
            rows.append(total)
    return torch.stack(rows).view(n, m) if rows else left[0].new_zeros(n, m)


def with_gradients(sums: Tensor, operands: Sequence[Tensor]) -> list[Tensor]:
    """Of a weighted sum, so that no pair stands for another."""
    weights = torch.linspace(-1, 2, sums.numel(), dtype=sums.dtype, device=sums.device).view(sums.shape)
    return [sums.detach(), *torch.autograd.grad((weights * sums).sum(), operands)]


def in_blocks(monkeypatch: pytest.MonkeyPatch, terms: int) -> None:
    monkeypatch.setattr(pairs, "_BLOCK", terms)


@each_term
@pytest.mark.parametrize("own", [False, True], ids=["entities of all", "entities of each"])
@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
def test_sums_and_gradients_are_those_of_loops(
    term: Term, left: int, right: int, own: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the entities come in blocks, the last one smaller."""
    n, m, d = 3, 7, 4
    queries = numbers(left, n, d, seed=1)
    entities = numbers(right, *((n, m, d) if own else (m, d)), seed=2)
    in_blocks(monkeypatch, block * n * d)
    sums = pair_sums(term, queries, entities)
    assert sums.shape == (n, m)
    expected = with_gradients(literal(term, queries, entities), [*queries, *entities])
    for found, wanted in zip(with_gradients(sums, [*queries, *entities]), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@each_term
@pytest.mark.parametrize("own", [False, True], ids=["entities of all", "entities of each"])
def test_gradients_against_finite_differences(
    term: Term, left: int, right: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks(monkeypatch, 2 * 3 * 2)
    operands = [*numbers(left, 3, 2, seed=3), *numbers(right, *((3, 5, 2) if own else (5, 2)), seed=4)]
    assert torch.autograd.gradcheck(lambda *some: pair_sums(term, some[:left], some[left:]), operands)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 4), m=st.integers(0, 5), d=st.integers(0, 3), own=st.booleans(), block=st.integers(1, 12))
def test_any_sizes(n: int, m: int, d: int, own: bool, block: int) -> None:
    """None of something, too."""
    queries, entities = numbers(2, n, d, seed=5), numbers(1, *((n, m, d) if own else (m, d)), seed=6)
    with pytest.MonkeyPatch.context() as patch:
        in_blocks(patch, block)
        found = with_gradients(pair_sums(box, queries, entities), [*queries, *entities])
    assert found[0].shape == (n, m)
    assert [one.shape for one in found[1:]] == [one.shape for one in [*queries, *entities]]
    torch.testing.assert_close(found[0], literal(box, queries, entities).detach())


def test_only_what_was_given_is_kept_for_the_way_back() -> None:
    """Nothing of size queries × entities × dimensions."""
    queries, entities = numbers(2, 6, 5, seed=7), numbers(1, 40, 5, seed=8)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        pair_sums(box, queries, entities)
    assert sorted(kept) == sorted(one.numel() for one in [*queries, *entities])


def test_blocks_are_no_larger_than_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noting(x: Tensor, y: Tensor) -> Tensor:
        terms = (x - y).square()
        seen.append(terms.numel())
        return terms

    in_blocks(monkeypatch, 50)
    queries, entities = numbers(1, 3, 4, seed=9), numbers(1, 11, 4, seed=10)
    with_gradients(pair_sums(noting, queries, entities), [*queries, *entities])
    assert max(seen) <= 50
    assert sum(seen) == 2 * 3 * 11 * 4  # there, and once more on the way back


def test_a_tensor_that_needs_no_gradient() -> None:
    (query,), (entity,) = numbers(1, 3, 4, seed=11), numbers(1, 5, 4, seed=12)
    wanted = with_gradients(pair_sums(torch.sub, [query], [entity]), [query])
    for found, one in zip(
        with_gradients(pair_sums(torch.sub, [query], [entity.detach()]), [query]), wanted, strict=True
    ):
        assert torch.equal(found, one)
    with torch.no_grad():
        assert torch.equal(pair_sums(torch.sub, [query], [entity]), wanted[0])


@pytest.mark.parametrize("own", [False, True], ids=["entities of all", "entities of each"])
@pytest.mark.parametrize("m", [0, 1, 7])
def test_l1_distances(own: bool, m: int) -> None:
    (left,), (right,) = numbers(1, 3, 4, seed=13), numbers(1, *((3, m, 4) if own else (m, 4)), seed=14)
    distances = l1_distances(left, right)
    assert distances.shape == (3, m)
    assert (distances >= 0).all()
    wanted = literal(lambda x, y: (x - y).abs(), [left], [right])
    torch.testing.assert_close(distances.detach(), wanted.detach())
    if m:
        for found, expected in zip(
            with_gradients(distances, [left, right]), with_gradients(wanted, [left, right]), strict=True
        ):
            torch.testing.assert_close(found, expected)
        assert torch.autograd.gradcheck(l1_distances, (left, right))


@pytest.mark.gpu
@needs_gpu
@each_term
def test_entities_of_each_query_on_cuda(term: Term, left: int, right: int) -> None:
    """Entities of all queries are in `test_pair_kernels.py`."""
    queries = numbers(left, 33, 48, seed=15, dtype=torch.float32)
    entities = numbers(right, 33, 25, 48, seed=16, dtype=torch.float32)
    expected = with_gradients(pair_sums(term, queries, entities), [*queries, *entities])
    on_device = [one.detach().cuda().requires_grad_() for one in [*queries, *entities]]
    found = with_gradients(pair_sums(term, on_device[:left], on_device[left:]), on_device)
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), wanted, rtol=1e-4, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.gpu
@needs_gpu
def test_distances_on_cuda_are_those_of_the_cpu() -> None:
    (left,), (right,) = (numbers(1, rows, 64, seed=17, dtype=torch.float32) for rows in (9, 500))
    on_device = [one.detach().cuda().requires_grad_() for one in (left, right)]
    found = with_gradients(l1_distances(*on_device), on_device)
    for one, wanted in zip(found, with_gradients(l1_distances(left, right), [left, right]), strict=True):
        torch.testing.assert_close(one.cpu(), wanted, rtol=1e-4, atol=1e-3)
