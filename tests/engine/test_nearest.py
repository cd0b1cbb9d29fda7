"""The best k entities against a full sort: of scores, and of particles by rounded products, where only the certain ones
are taken from these.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from query2particles.engine import nearest as module
from query2particles.engine.nearest import Best, best_of, nearest, product_blocks
from query2particles.engine.products import float16_products
from query2particles.engine.ranks import Factored, top_k
from query2particles.errors import TrainingError
from query2particles.methods.q2p import Q2P, Settings
from unattended import Unattended

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def full_sort(scores: Tensor, k: int) -> list[list[int]]:
    """By score, then by id."""
    return [sorted(range(len(row)), key=lambda v: (-row[v], v))[:k] for row in scores.tolist()]


@pytest.fixture
def rounded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of few particles are rounded, on a CPU too."""
    monkeypatch.setattr(module, "_ROUNDED_ON", {"cpu", "cuda"})
    monkeypatch.setattr(module, "_MANY_ROWS", 1)


class Watch:
    """How many queries were answered from all scores."""

    doubtful = 0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    seen = Watch()

    def watched(particles: Tensor, table: Tensor, bias: Tensor, block: int | None = None) -> object:
        seen.doubtful += len(particles)
        return product_blocks(particles, table, bias, block)

    monkeypatch.setattr(module, "product_blocks", watched)
    return seen


@given(
    st.integers(0, 10**6),
    st.integers(1, 600),
    st.integers(1, 12),
    st.sampled_from([1, 2, 64]),
    st.none() | st.integers(1, 700),
    st.sampled_from([2, 5, 10**6]),
)
def test_the_best_of_scores_are_those_of_a_full_sort(
    seed: int, entities: int, k: int, neighbours: int, block: int | None, values: int
) -> None:
    """In groups of any size, with and without a rest, many ties, −0 beside 0, infinities, one block or several."""
    generator = np.random.default_rng(seed)
    some = np.concatenate([generator.normal(size=values), [-np.inf, np.inf, -0.0, 0.0]]).astype(np.float32)
    scores = torch.from_numpy(generator.choice(some, size=(3, entities)))
    block = block or entities
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NEIGHBOURS", neighbours)
        found = best_of(((start, scores[:, start : start + block]) for start in range(0, entities, block)), k)
    assert found.entities.tolist() == full_sort(scores, k)
    assert torch.equal(found.scores, scores.gather(1, found.entities))


@pytest.mark.parametrize("place", [0, 63, 64, 640, 700, 703])
def test_a_nan_among_scores_is_refused_wherever_it_is(place: int) -> None:
    scores = torch.zeros(2, 704 if place < 704 else place + 1)
    scores[1, place] = torch.nan
    for width in (704, 703 if place < 703 else 704):
        with pytest.raises(TrainingError, match="NaN"):
            best_of([(0, scores[:, :width])], 3)


def random_factors(
    seed: int, *, entities: int = 5000, queries: int = 20, dimension: int = 24, width: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    particles = torch.randn(queries, width, dimension, generator=generator)
    table = torch.randn(entities, dimension, generator=generator)
    return particles, table, torch.randn(entities, generator=generator)


def expected(particles: Tensor, table: Tensor, bias: Tensor, k: int) -> Best:
    return best_of(product_blocks(particles, table, bias), k)


def assert_same(found: Best, particles: Tensor, table: Tensor, bias: Tensor, k: int) -> None:
    right = expected(particles, table, bias, k)
    assert torch.equal(found.entities, right.entities)
    torch.testing.assert_close(found.scores, right.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("rounded_here")
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("entities", [4096, 4097, 5000, 4127])
def test_rounding_finds_the_same(entities: int, width: int, watch: Watch) -> None:
    """With groups that come out even and a rest that does not; hardly any query is doubtful."""
    for k in (1, 5):
        factors = random_factors(entities, entities=entities, width=width)
        assert_same(nearest(*factors, k), *factors, k)
    assert watch.doubtful <= 2


@pytest.mark.parametrize("rounded_on", [set(), {"cpu"}], ids=["float32", "float16"])
def test_blocks_of_queries_give_what_all_give(rounded_on: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDED_ON", rounded_on)
    monkeypatch.setattr(module, "_MANY_ROWS", 1)
    factors = random_factors(7, queries=33)
    together = nearest(*factors, 5)
    monkeypatch.setattr(module, "_PRODUCT_BYTES", {"cpu": 4 * 2 * 5000 * 10})
    apart = nearest(*factors, 5)
    assert torch.equal(together.entities, apart.entities)
    torch.testing.assert_close(together.scores, apart.scores)


@pytest.mark.usefixtures("rounded_here")
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 1e-2]),
    scale=st.sampled_from([2.0**power for power in (-100, -40, 0, 20, 50)]),
    bias_scale=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_near_ties_are_told_apart(seed: int, spread: float, scale: float, bias_scale: float) -> None:
    """Many entities that all but coincide, more than there are candidates, which float16 cannot tell apart; whole
    numbers where they are to tie to the last bit, and vectors of any length.
    """
    generator = torch.Generator().manual_seed(seed)
    few = torch.randint(-3, 4, (40, 16), generator=generator).float()
    table = few[torch.randint(40, (4500,), generator=generator)]
    table = (table + spread * torch.randn(table.shape, generator=generator)) * scale
    bias = bias_scale * torch.randint(-2, 3, (4500,), generator=generator).float()
    particles = torch.randint(-3, 4, (6, 2, 16), generator=generator).float()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROUNDED_ON", {"cpu"})
        patch.setattr(module, "_MANY_ROWS", 1)
        found = nearest(particles, table, bias, 4)
    exact = ((particles.double() @ table.double().T).amax(1) + bias).float()
    if spread == 0 and (bias_scale == 0 or scale == 1):  # nothing rounds
        assert found.entities.tolist() == full_sort(exact, 4)
    right = expected(particles, table, bias, 4)
    torch.testing.assert_close(found.scores, right.scores, rtol=1e-5, atol=1e-5 * float(table.abs().max()))
    torch.testing.assert_close(exact.gather(1, found.entities), right.scores, rtol=1e-5, atol=1e-4 * scale)


@pytest.mark.usefixtures("rounded_here")
def test_near_ties_within_few_groups(watch: Watch) -> None:
    """More of them than candidates, so that those beyond are members of the very groups that are looked into."""
    particles, table, bias = random_factors(8, entities=4992)
    ties = torch.arange(32)[:, None] * (4992 // 32) + torch.arange(3)  # three groups
    noise = 1e-4 * torch.randn(96, table.shape[1], generator=torch.Generator().manual_seed(0))
    table[ties.flatten()] = 5 * particles[0, 0] + noise
    found = nearest(particles[:1], table, bias * 1e-4, 5)
    assert watch.doubtful == 1
    assert_same(found, particles[:1], table, bias * 1e-4, 5)


@pytest.mark.usefixtures("rounded_here")
def test_what_cannot_be_certain_is_answered_from_all_scores(watch: Watch) -> None:
    particles, table, bias = random_factors(1)
    nearest(particles, table.index_fill(0, torch.tensor([17]), 1e6), bias, 5)
    assert watch.doubtful == len(particles), "one vector is so long that all others drown in its rounding"
    watch.doubtful = 0
    same = torch.zeros_like(table) + table[0]
    found = nearest(particles, same, torch.zeros_like(bias), 5)
    assert watch.doubtful == len(particles)
    assert found.entities.tolist() == [[0, 1, 2, 3, 4]] * len(particles)


@pytest.mark.usefixtures("rounded_here")
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds(seed: int) -> None:
    """No coarse product is further off than is said: of vectors as they come, and of the worst for float16."""
    particles, table, bias = random_factors(seed, dimension=31, queries=8)
    if seed:  # every number lies just above the middle between two of float16
        particles, table = (part.sign() * (1 + 2.0**-11 + 2.0**-20) for part in (particles, table))
    e = module._Rounded.of(table, bias)
    p = module._Rounded.of(particles, particles.new_ones(particles.shape[:2]), dim=1)
    coarse = p.vectors.double() @ e.vectors.double().T * (p.length * e.length).double()
    right = particles.double() @ table.double().T + bias.double()
    off = (coarse - right).abs().amax((1, 2))
    bound = (p.lost + e.lost).double() * (p.length.flatten() * e.length).double()
    assert bool((off <= 1.002 * bound).all())
    assert bool((off > 0).all())


@pytest.mark.usefixtures("rounded_here")
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_is_no_number_is_treated_as_ever(which: int, value: float) -> None:
    """NaN is refused; infinite scores are scores like others."""
    factors = random_factors(2, entities=4500)
    factors[which].view(-1)[-1] = value
    try:
        right = expected(*factors, 3)
    except TrainingError:
        with pytest.raises(TrainingError, match="NaN"):
            nearest(*factors, 3)
        return
    assert torch.equal(nearest(*factors, 3).entities, right.entities)


@pytest.mark.usefixtures("rounded_here")
def test_few_entities_and_many_answers() -> None:
    """More answers than there are entities; so many that groups are no use."""
    for entities, k in ((1, 3), (70, 100), (4500, 300), (4500, 4500)):
        factors = random_factors(3, entities=entities, queries=2)
        assert_same(nearest(*factors, k), *factors, k)


@pytest.mark.usefixtures("rounded_here")
def test_rows_behind_the_entities_are_no_answers() -> None:
    """A table may be longer than there are entities."""
    torch.manual_seed(0)
    model = Q2P(5000, 4, Settings(dimension=16, dropout=0.0))
    assert isinstance(model, Factored)
    with torch.no_grad():
        model.entities[4500:] += 100.0
        state = model.anchor(torch.arange(6))
    entities, scores = top_k(model, state, 5, entities=4500)
    assert entities.tolist() == full_sort((state @ model.entities[:4500].T).amax(1), 5)
    again, _ = top_k(model, state, 5, entities=4500, block=1000)
    assert torch.equal(entities, again)
    assert bool((scores[:, :-1] >= scores[:, 1:]).all())


def test_until_the_end_the_host_need_not_wait() -> None:
    particles, table, bias = random_factors(4)
    with Unattended():
        module.select_best(product_blocks(particles, table, bias), 5)
        module._probably_best(particles, table, bias, module._Rounded.of(table, bias), 5)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dimension", [31, 400])
@pytest.mark.parametrize("entities", [14_505, 63_361])
def test_a_gpu_finds_the_same(entities: int, dimension: int, watch: Watch) -> None:
    particles, table, bias = random_factors(5, entities=entities, dimension=dimension, queries=1500)
    found = nearest(particles.cuda(), table.cuda(), bias.cuda(), 10)
    assert watch.doubtful < 15
    exact = (particles.double() @ table.double().T).amax(1) + bias
    right = exact.topk(10, dim=1)
    torch.testing.assert_close(found.scores.cpu().double(), right.values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(exact.gather(1, found.entities.cpu()), right.values, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_keeps_the_bound() -> None:
    """Tensor cores add up no worse than is assumed, whatever the setting for float16."""
    particles, table, bias = (part.cuda() for part in random_factors(6, dimension=400, queries=300))
    particles, table = (part.sign() * (1 + 2.0**-11 + 2.0**-20) for part in (particles, table))
    e = module._Rounded.of(table, bias)
    p = module._Rounded.of(particles, particles.new_ones(particles.shape[:2]), dim=1)
    coarse = float16_products(p.vectors.flatten(0, 1), e.vectors).double()
    right = p.vectors.flatten(0, 1).double() @ e.vectors.double().T
    assert float((coarse - right).abs().amax()) < 400 * 2.0**-22
