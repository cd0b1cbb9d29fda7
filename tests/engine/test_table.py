"""The best entities of a table in blocks are those of all scores at once, whole or in parts, in memory or in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from query2particles.engine import table as tables
from query2particles.engine.method import lacking
from query2particles.engine.particles import particles_of
from query2particles.engine.ranks import scoring
from query2particles.engine.scored import score_all
from query2particles.engine.sets import Sets
from query2particles.engine.table import Table, best_rows, merged
from query2particles.errors import TrainingError, UsageError
from query2particles.methods.registry import METHODS, make
from query2particles.query.algebra import SHAPES
from query2particles.workload.selection import drawn_queries
from trainings import tiny
from worlds import random_graph

GRAPH = random_graph(11, entities=60, relations=3, facts=400)


def made_up(entities: int, seed: int = 0, *, distinct: int | None = None) -> Table:
    """Rows of small whole numbers, so that many score the same; some rows are there more than once."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-2, 3, (distinct or entities, 6), generator=generator).float()
    places = torch.randint(len(rows), (entities,), generator=generator)
    return Table(rows[places], torch.randint(-1, 2, (len(rows),), generator=generator).float()[places])


def asked(count: int, particles: int = 2, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (count, particles, 6), generator=generator).float()


def by_definition(table: Table, particles: torch.Tensor, k: int, excluded: Sets | None = None) -> list[list[int]]:
    """Ids in the order of their scores, of equal ones the smaller first."""
    scores = (particles @ table.vectors.T).amax(1) + table.bias
    found = []
    for row, own in enumerate(scores.tolist()):
        closed = set() if excluded is None else set(excluded[row].tolist())
        open_to = [entity for entity in range(len(own)) if entity not in closed]
        found.append(sorted(open_to, key=lambda entity: (-own[entity], entity))[:k])
    return found


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 4), st.integers(1, 9), st.integers(0, 1000))
def test_the_best_are_those_of_all_scores(entities: int, k: int, particles: int, parts: int, seed: int) -> None:
    table, queries = made_up(entities, seed), asked(3, particles, seed + 1)
    generator = np.random.default_rng(seed)
    excluded = Sets.of([generator.integers(entities, size=n).tolist() for n in (0, 3, 40)], entities)
    for closed in (None, excluded):
        whole = table.best(queries, k, closed)
        cut = merged([part.best(queries, k, closed) for part in table.parts(parts)], k)
        for row, own in enumerate(by_definition(table, queries, k, closed)):
            for found in (whole, cut):
                there = found.entities[row] >= 0
                assert found.entities[row][there].tolist() == own
                assert np.isneginf(found.scores[row][~there]).all()
            np.testing.assert_allclose(cut.log_totals[row], whole.log_totals[row], rtol=1e-5, atol=1e-6)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, queries = made_up(500, distinct=20), asked(5)
    whole = table.best(queries, 12)
    monkeypatch.setattr(tables, "_BLOCK", 7)
    small = table.best(queries, 12)
    np.testing.assert_array_equal(small.entities, whole.entities)
    np.testing.assert_array_equal(small.scores, whole.scores)
    np.testing.assert_allclose(small.log_totals, whole.log_totals, rtol=1e-5)
    scores = (queries @ table.vectors.T).amax(1) + table.bias
    np.testing.assert_allclose(whole.log_totals, scores.double().logsumexp(1).numpy(), rtol=1e-5)


def test_parts_have_all_rows_once() -> None:
    table = made_up(10)
    assert [(part.first, len(part)) for part in table.parts(3)] == [(0, 3), (3, 3), (6, 4)]
    assert len(made_up(2).parts(5)) == 2


def test_a_half_precise_table_in_a_file(tmp_path: Path) -> None:
    rows = np.memmap(tmp_path / "rows", dtype=np.float16, mode="w+", shape=(300, 6))
    rows[:] = made_up(300).vectors.numpy()
    mapped = Table(torch.from_numpy(rows), torch.zeros(300))
    exact = Table(mapped.vectors.float(), mapped.bias)
    np.testing.assert_array_equal(mapped.best(asked(4), 9).entities, exact.best(asked(4), 9).entities)


def test_scores_that_are_no_numbers_are_refused() -> None:
    table = made_up(20)
    table.vectors[7] = torch.nan
    with pytest.raises(TrainingError, match="NaN"):
        table.best(asked(2), 3)


def test_results_of_different_queries_stand_one_below_the_other() -> None:
    table = made_up(4)
    together = best_rows([table.best(asked(2), 9), table.best(asked(3), 2)], 9)
    assert together.entities.shape == together.scores.shape == (5, 9)
    assert (together.entities[:, 4:] == -1).all()


@pytest.mark.parametrize("method", ["q2p", "gqe", "betae", "emql", "links"])
def test_particles_and_table_give_the_scores_of_a_method(method: str) -> None:
    config = tiny(method)
    torch.manual_seed(0)
    model = make(method, GRAPH.at("train"), config.model).eval()
    batch, _ = drawn_queries(GRAPH, "valid", most=4, seed=0)
    able = {shape: ids for shape, ids in batch.items() if not lacking(METHODS[method].operators, shape)}
    assert able
    with scoring(model):
        scored = score_all(model, able, len(GRAPH.entities))
        particles = particles_of(model, able)
        table = Table.of(model)
    for shape, ids in able.items():
        for row in range(len(ids)):
            own = table.scores_of(particles[shape][row], np.arange(len(GRAPH.entities)))
            np.testing.assert_allclose(own, scored[shape].scores[row].numpy(), rtol=1e-4, atol=1e-4)


def test_disjuncts_stand_side_by_side() -> None:
    torch.manual_seed(0)
    model = make("q2p", GRAPH.at("train"), tiny("q2p").model).eval()
    shape = SHAPES["up"]
    ids = np.array([[0, 1, 2, 3, 4]])
    with scoring(model):
        scores = score_all(model, {shape: ids}, 60, "dnf")[shape].scores[0]
        (particles,) = particles_of(model, {shape: ids}, "dnf")[shape]
        own = Table.of(model).scores_of(particles, np.arange(60))
    np.testing.assert_allclose(own, scores.numpy(), rtol=1e-5, atol=1e-6)


def test_what_has_no_table_is_refused() -> None:
    with pytest.raises(UsageError, match="inner products"):
        Table.of(make("q2b", GRAPH.at("train"), tiny("q2b").model))
