"""Ranks against their definition, one candidate at a time; blocks, ties, infinities and NaN; the best k entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from query2particles.engine import nearest
from query2particles.engine import ranks as module
from query2particles.engine.exact import Exact
from query2particles.engine.method import Method, width
from query2particles.engine.ranks import Ranks, TiePolicy, all_scores, ids_for, ranks, rows_at_once, scoring, top_k
from query2particles.engine.sets import Sets
from query2particles.errors import TrainingError
from query2particles.graph.graph import Graph
from query2particles.query.algebra import Anchor, Query

Rows = list[list[int]]


class Table(torch.nn.Module):
    """A method that knows the scores already: a state is the numbers of its rows. It has no operators."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor,))
    kind = staticmethod(width)

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scores", scores)

    def anchor(self, entities: torch.Tensor) -> torch.Tensor:
        return entities

    def score(self, state: torch.Tensor, entities: torch.Tensor | None = None) -> torch.Tensor:
        scores: torch.Tensor = self.get_buffer("scores")[state]
        return scores if entities is None else scores[:, entities]

    def project(self, state: torch.Tensor, relations: torch.Tensor, *, hop: int) -> torch.Tensor:
        raise NotImplementedError

    def intersect(self, branches: Sequence[torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError

    union = intersect

    def complement(self, state: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def stack(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(states))

    def split(self, state: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        return torch.split(state, list(sizes))


class Particles(Table):
    """A method whose score is the best inner product; a state is particles (n, w, d) with whole numbers."""

    def __init__(self, entities: int, particles: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(torch.randint(-9, 10, (entities, 5), generator=generator).float())
        self.register_buffer("bias", torch.randint(-9, 10, (entities,), generator=generator).float())
        self.register_buffer("offsets", torch.randint(-9, 10, (particles, 5), generator=generator).float())

    def anchor(self, entities: torch.Tensor) -> torch.Tensor:
        return self.get_buffer("scores")[entities][:, None] + self.get_buffer("offsets")

    def factors(
        self, state: torch.Tensor, entities: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        assert entities is None
        return state, self.get_buffer("scores"), self.get_buffer("bias")

    def score(self, state: torch.Tensor, entities: torch.Tensor | None = None) -> torch.Tensor:
        del entities
        return (state[:, :, None] * self.get_buffer("scores")).sum(-1).amax(1) + self.get_buffer("bias")


@st.composite
def rankings(draw: st.DrawFn) -> tuple[torch.Tensor, Rows, Rows]:
    """Scores with many ties, some infinite, and disjoint sets of hard and easy answers."""
    entities = draw(st.integers(1, 12))
    count = draw(st.integers(0, 6))
    score = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 1.0, np.inf])
    scores = draw(st.lists(st.lists(score, min_size=entities, max_size=entities), min_size=count, max_size=count))
    role = st.sampled_from(["hard", "easy", "candidate"])
    roles = draw(st.lists(st.lists(role, min_size=entities, max_size=entities), min_size=count, max_size=count))
    hard, easy = ([[v for v in range(entities) if row[v] == kind] for row in roles] for kind in ("hard", "easy"))
    return torch.tensor(scores, dtype=torch.float32).reshape(count, entities), hard, easy


def ranks_by_definition(scores: torch.Tensor, hard: Rows, easy: Rows) -> list[tuple[int, int]]:
    """For each hard answer, how many candidates score more, and how many the same."""
    found = []
    for row, own, known in zip(scores.tolist(), hard, easy, strict=True):
        candidates = [score for entity, score in enumerate(row) if entity not in own and entity not in known]
        for answer in own:
            found.append((sum(s > row[answer] for s in candidates), sum(s == row[answer] for s in candidates)))
    return found


def ranked(scores: torch.Tensor, hard: Rows, easy: Rows, chunk: int = 3) -> Ranks:
    entities = scores.shape[1]
    return ranks(lambda rows: scores[rows].clone(), Sets.of(hard, entities), Sets.of(easy, entities), chunk=chunk)


@given(rankings(), st.integers(1, 7), st.sampled_from([0, 256]), st.sampled_from([1, 100, 1 << 20]))
def test_ranks_are_what_their_definition_says(
    ranking: tuple[torch.Tensor, Rows, Rows], chunk: int, many: int, count_bytes: int
) -> None:
    """By comparing and by sorting, in chunks and blocks of any size, in the queries' own order."""
    scores, hard, easy = ranking
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY_ANSWERS", many)
        patch.setattr(module, "_COUNT_BYTES", {"cpu": count_bytes})
        found = ranked(scores, hard, easy, chunk)
    expected = ranks_by_definition(scores, hard, easy)
    assert list(zip(found.greater.tolist(), found.equal.tolist(), strict=True)) == expected
    assert np.diff(found.offsets).tolist() == [len(own) for own in hard]
    for policy, share in ((TiePolicy.OPTIMISTIC, 0), (TiePolicy.REALISTIC, 0.5), (TiePolicy.PESSIMISTIC, 1)):
        assert found.under(policy).tolist() == [1 + greater + share * equal for greater, equal in expected]


def test_a_constant_scorer_ranks_in_the_middle() -> None:
    found = ranked(torch.zeros(2, 101), [[3], [0, 7]], [[], [1, 2]])
    candidates = [100, 97, 97]
    assert found.optimistic.tolist() == [1, 1, 1]
    assert found.realistic.tolist() == [1 + count / 2 for count in candidates]
    assert found.pessimistic.tolist() == [1 + count for count in candidates]


def test_answers_may_be_listed_as_complements() -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    hard, easy = Sets.of([[1, 3, 4]], 5).complement(), Sets.of([[3]], 5)
    found = ranks(lambda rows: scores[rows], hard, easy, chunk=1)
    assert found.greater.tolist() == [2, 1]  # answers 0 and 2; candidates 1 and 4


@pytest.mark.parametrize("bad", ["candidate", "answer", "known"])
@pytest.mark.parametrize("many", [0, 256])
def test_nan_is_refused_wherever_it_stands(bad: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY_ANSWERS", many)
    scores = torch.zeros(3, 5)
    scores[2, {"answer": 0, "known": 1, "candidate": 2}[bad]] = torch.nan
    with pytest.raises(TrainingError, match="NaN"):
        ranked(scores, [[0]] * 3, [[1]] * 3, chunk=2)
    with pytest.raises(TrainingError, match="NaN"):
        top_k(Table(scores), torch.arange(3), 2, entities=5)


def test_progress_hears_of_every_query() -> None:
    heard: list[int] = []
    scores, hard = torch.zeros(5, 4), Sets.of([[0]] * 5, 4)
    ranks(lambda rows: scores[rows], hard, Sets.empty(4, 5), chunk=2, progress=heard.append)
    assert heard == [2, 2, 1]


@pytest.mark.parametrize("block", [1, 3, 7, 100, None])
@pytest.mark.parametrize("few", [0, 256])
def test_blocks_of_entities_give_the_same_scores(block: int | None, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers, so that no order of adding rounds: with factors, and with the method's own score."""
    monkeypatch.setattr(nearest, "_FEW_ROWS", few)
    method = Particles(entities=23, particles=3, seed=1)
    state = method.anchor(torch.arange(9))
    expected = method.score(state)
    assert torch.equal(all_scores(method, state, 23, block), expected)
    table = Table(expected)
    assert torch.equal(all_scores(table, torch.arange(9), 23, block), expected)


def test_exact_scores_come_as_tensors(random_world: Graph) -> None:
    method = Exact(random_world.at("test"))
    entities = random_world.at("test").entities
    state = method.anchor(np.arange(3))
    assert torch.equal(all_scores(method, state, entities), torch.eye(entities)[:3])
    assert torch.equal(all_scores(method, state, entities, block=4), torch.eye(entities)[:3])


def best_by_definition(row: Sequence[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda entity: (-row[entity], entity))[:k]


@given(rankings(), st.integers(1, 15), st.none() | st.integers(1, 13))
def test_the_best_k_are_those_of_a_full_sort(
    ranking: tuple[torch.Tensor, Rows, Rows], k: int, block: int | None
) -> None:
    """Of equal scores the smaller id first; −0 equals 0, infinities are scores like others."""
    scores, _, _ = ranking
    entities, found = top_k(Table(scores), torch.arange(len(scores)), k, entities=scores.shape[1], block=block)
    assert entities.tolist() == [best_by_definition(row, k) for row in scores.tolist()]
    assert torch.equal(found, scores.gather(1, entities))


@given(st.integers(0, 1000), st.integers(1, 8))
def test_the_best_k_of_a_maximum_are_among_the_best_k_of_each_particle(seed: int, k: int) -> None:
    method = Particles(entities=40, particles=3, seed=seed)
    state = method.anchor(torch.arange(5))
    together, _ = top_k(method, state, k, entities=40)
    apart = torch.cat([top_k(method, state[:, [one]], k, entities=40)[0] for one in range(3)], dim=1)
    assert all(set(best) <= set(any_of) for best, any_of in zip(together.tolist(), apart.tolist(), strict=True))


class Watching(Table):
    """Takes down how it is called."""

    def score(self, state: Any, entities: Any = None) -> torch.Tensor:
        matmul = torch.backends.cuda.matmul
        self.seen = (self.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), matmul.fp32_precision)
        return super().score(state, entities)


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """A setting of the products on a GPU that was there before."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, request.param
    yield request.param
    matmul.fp32_precision = before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", ["tf32", "ieee", "none"], indirect=True)
def test_scores_are_true_float32_and_settings_come_back(training: bool, precision: str) -> None:
    method = Watching(torch.zeros(1, 3)).train(training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        top_k(method, torch.arange(1), 1, entities=3)
        assert torch.is_autocast_enabled("cpu")
    assert method.seen == (False, False, False, "ieee")
    assert (method.training, torch.backends.cuda.matmul.fp32_precision) == (training, precision)


def test_settings_come_back_after_an_error() -> None:
    method = Table(torch.zeros(1, 3))
    before = torch.backends.cuda.matmul.fp32_precision
    with pytest.raises(ZeroDivisionError), scoring(method):
        raise ZeroDivisionError
    assert method.training
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_rows_at_once_follow_the_memory(random_world: Graph) -> None:
    method: Method[Any] = Table(torch.zeros(1, 3))
    assert rows_at_once(method, 14_505) == 4096
    assert rows_at_once(method, 63_361) == (1 << 28) // (4 * 63_361)
    assert rows_at_once(method, 10**9) == 1
    assert rows_at_once(Exact(random_world.at("test")), 30) == 4096


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("many", [0, 256])
def test_a_gpu_gives_the_same_ranks_and_answers(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY_ANSWERS", many)
    generator = np.random.default_rng(0)
    roles = generator.integers(12, size=(300, 500))
    hard, easy = (Sets.of([np.flatnonzero(row == kind).tolist() for row in roles], 500) for kind in (0, 1))
    found = []
    for device in ("cpu", "cuda"):
        method = Particles(entities=500, particles=3, seed=2).to(device)

        def scores_of(rows: Any, method: Particles = method) -> torch.Tensor:
            return all_scores(method, method.anchor(ids_for(method, rows)), 500)

        with scoring(method):
            ranked = ranks(scores_of, hard, easy, chunk=128)
            best, scores = top_k(method, method.anchor(ids_for(method, np.arange(300))), 20, entities=500, block=77)
        found.append((ranked.greater.tolist(), ranked.equal.tolist(), best.tolist(), scores.tolist()))
    assert found[0] == found[1]


def test_ids_go_where_the_method_computes(random_world: Graph) -> None:
    ids = np.arange(4)
    assert ids_for(Exact(random_world.at("test")), ids) is ids
    assert isinstance(ids_for(Table(torch.zeros(1, 3)), ids), torch.Tensor)
