"""Look-ups on tensors against the same look-ups on the graph's own arrays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from query2particles.graph.edges import Edges
from query2particles.workload import device_edges
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.device_edges import narrow_kind as device_edges_kind
from worlds import random_graph, successors

GRAPH = random_graph(5, entities=60, relations=2, facts=220)
EDGES: Edges = GRAPH.at("train")
KNOWN = successors(GRAPH, "train")
EVERY = torch.cartesian_prod(torch.arange(EDGES.entities), torch.arange(EDGES.relations))


def tails_of_row(row: int) -> set[int]:
    return set(EDGES.tails[EDGES.offsets[row] : EDGES.offsets[row + 1]].tolist()) if row < EDGES.no_row else set()


@pytest.fixture(params=[1 << 28, 0], ids=["table", "bisection"])
def edges(request: pytest.FixtureRequest) -> DeviceEdges:
    return DeviceEdges.of(EDGES, "cpu", table_cells=request.param)


@pytest.mark.parametrize("block", [1 << 26, 50, 7, 1])
@pytest.mark.parametrize("cells", [1 << 28, 0])
def test_tables_from_facts_and_from_edges_are_the_same_and_right(block: int, cells: int) -> None:
    """However many edges are taken at once, against tables that numpy makes at once."""
    keys = np.repeat(EDGES.keys, EDGES.row_lengths[:-1])
    forward = np.random.default_rng(0).permutation(np.flatnonzero(keys % 2 == 0))
    forward = np.concatenate([forward, forward[:30]])  # some facts twice
    heads, relations, tails = (
        keys[forward] // EDGES.relations,
        keys[forward] % EDGES.relations // 2,
        EDGES.tails[forward],
    )
    facts = [torch.from_numpy(column.astype(np.int32)) for column in (heads, relations, tails)]
    from_facts = partial(DeviceEdges.of_facts, entities=EDGES.entities, relations_count=EDGES.relations // 2)
    made = [
        DeviceEdges.of(EDGES, "cpu", table_cells=cells, block=block),
        from_facts(*facts, device="cpu", table_cells=cells, block=block),
    ]
    heads, relations = np.divmod(EDGES.keys, EDGES.relations)
    of_edge = np.repeat(np.arange(EDGES.no_row), EDGES.row_lengths[:-1])
    expected = {
        "connected": np.flatnonzero(np.diff(EDGES.row_bounds)),
        "entity_rows": np.stack([EDGES.row_bounds[:-1], np.diff(EDGES.row_bounds) - 1], axis=1),
        "rows": np.stack([EDGES.offsets, EDGES.row_lengths, np.append(relations ^ 1, 0), np.append(heads, 0)], axis=1),
        "ends": np.stack([EDGES.tails, EDGES.rows_of(EDGES.tails, relations[of_edge] ^ 1)], axis=1),
        "places": of_edge * EDGES.entities + EDGES.tails,
        "rows_by_relation": np.argsort(relations, kind="stable"),
        "keys": EDGES.keys,
    }
    for edges in made:
        assert (edges.no_row, edges.relations, edges.entities) == (EDGES.no_row, EDGES.relations, EDGES.entities)
        assert (edges.table is None) == (cells == 0)
        for name, values in expected.items():
            there = getattr(edges, name)
            assert there[: len(values)].tolist() == values.tolist(), name
            assert there.element_size() == (8 if name in ("places", "keys") else 4), name
        counts = np.bincount(relations, minlength=EDGES.relations)
        assert edges.relation_rows.tolist() == np.stack([np.cumsum(counts) - counts, counts], axis=1).tolist()


def test_facts_that_do_not_fit_one_number_are_sorted_too() -> None:
    """2¹⁰ entities and 2⁵⁰ directed relations: only 8 heads at once fit 63 bits."""
    heads, tails = torch.tensor([2**10 - 1, 5, 2**9, 5, 5]), torch.tensor([0, 2**10 - 1, 2**9 + 1, 7, 7])
    relations = torch.tensor([2**49 - 1, 0, 5, 0, 0])
    keys, offsets, ends = device_edges._sorted_rows((heads, relations, tails), 2**10, 2**50, block=3)
    expected = Edges.of(heads.numpy(), relations.numpy(), tails.numpy(), entity_count=2**10, relation_count=2**49)
    assert keys[:-1].tolist() == expected.keys.tolist()
    assert offsets.tolist() == expected.offsets.tolist()
    assert ends.tolist() == expected.tails.tolist()


def test_wide_numbers_where_narrow_ones_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = DeviceEdges.of(EDGES, "cpu")
    monkeypatch.setattr(device_edges, "narrow_kind", lambda edges: torch.int64)
    wide = DeviceEdges.of(EDGES, "cpu")
    for name in ("connected", "entity_rows", "rows", "ends", "rows_by_relation"):
        assert getattr(wide, name).dtype == torch.int64
        assert torch.equal(getattr(wide, name), getattr(narrow, name).long())
    assert [device_edges_kind(edges) for edges in (10, 2**31)] == [torch.int32, torch.int64]


def test_rows(edges: DeviceEdges) -> None:
    found = edges.rows_of(EVERY[:, 0], EVERY[:, 1]).numpy()
    assert (found == EDGES.rows_of(EVERY[:, 0].numpy(), EVERY[:, 1].numpy())).all()
    inverse = edges.rows_into(EVERY[:, 0], EVERY[:, 1] ^ 1).numpy()
    assert (inverse == found).all()
    assert (found == EDGES.no_row).any()


def test_membership(edges: DeviceEdges) -> None:
    rows = torch.arange(EDGES.no_row + 1)[:, None]
    found = edges.has(rows, torch.arange(EDGES.entities)[None])
    for row in range(EDGES.no_row + 1):
        assert set(found[row].nonzero().flatten().tolist()) == tails_of_row(row)


def test_steps_back_follow_an_edge_and_never_the_barred_row(edges: DeviceEdges) -> None:
    generator = torch.Generator().manual_seed(1)
    targets = edges.draw_answers(torch.rand(4000, 1, generator=generator, dtype=torch.float64))
    nothing = torch.full_like(targets, edges.no_row)
    relations, sources, rows, choices = edges.step_back(
        targets, nothing, torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    )
    assert (choices > 0).all()
    assert (rows == edges.rows_of(sources, relations)).all()
    assert edges.has(rows, targets).all()
    relations_2, _, rows_2, choices = edges.step_back(
        sources, rows, torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    )
    fine = choices > 0
    assert 0 < (~fine).sum() < 400
    assert (relations_2 ^ 1 != relations)[fine].all()
    assert edges.has(rows_2, sources)[fine].all()
    distinct = np.diff(EDGES.row_bounds)[sources.flatten().numpy()]
    assert (choices.flatten().numpy() == distinct - 1).all()


def test_windows_cover_short_rows_and_weigh_as_many_as_there_are(edges: DeviceEdges) -> None:
    rows = torch.arange(EDGES.no_row)[:, None]
    uniform = torch.rand(len(rows), 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tails, weights = edges.window(rows, uniform, 2)
    for row in range(EDGES.no_row):
        own = tails_of_row(row)
        assert set(tails[row].tolist()) == own if len(own) <= 2 else set(tails[row].tolist()) < own
        assert len(set(tails[row].tolist())) == min(2, len(own))
        assert weights[row].sum() == pytest.approx(len(own))


def test_following_a_relation(edges: DeviceEdges) -> None:
    """The weights of tails add up, in the mean, to the number of different tails of all heads."""
    generator = torch.Generator().manual_seed(1)
    heads = torch.randint(EDGES.entities, (3000, 4), generator=generator)
    relations = torch.randint(EDGES.relations, (3000, 1), generator=generator)
    uniform = torch.rand(3000, 4, generator=generator, dtype=torch.float64)
    tails, weights = edges.follow(heads, torch.ones_like(uniform), relations, uniform)
    reached = []
    for row, relation in enumerate(relations.flatten().tolist()):
        own = [KNOWN.get((head, relation), set()) for head in heads[row].tolist()]
        reached.append(len(set().union(*own)))
        for tail, weight, some in zip(tails[row].tolist(), weights[row].tolist(), own, strict=True):
            assert tail in some if weight else not some
    assert weights.sum() / 3000 == pytest.approx(np.mean(reached), rel=0.02)


def test_heads_of_relations(edges: DeviceEdges) -> None:
    relations = torch.arange(EDGES.relations)[:, None]
    uniform = torch.rand(len(relations), 400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    heads, weights = edges.draw_heads(relations, uniform)
    for relation in range(EDGES.relations):
        own = {head for (head, followed), tails in KNOWN.items() if followed == relation and tails}
        assert set(heads[relation].tolist()) == own
        assert weights[relation].sum() == pytest.approx(len(own))


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_common_tails_are_never_wrong(edges: DeviceEdges, limit: int) -> None:
    """Every two rows, also the empty one: yes and no are right, and with enough tails listed one of them is said."""
    rows = torch.arange(EDGES.no_row + 1)
    yes, no = edges.share_tails(rows[:, None], rows.expand(len(rows), -1), limit)
    listed, there, complete = edges.list_tails(rows[:, None], limit)
    own = [tails_of_row(row) for row in range(len(rows))]
    truth = torch.tensor([[bool(one & other) for other in own] for one in own])
    assert (truth[yes]).all()
    assert not (truth[no]).any()
    short = torch.tensor([[min(len(one), len(other)) for other in own] for one in own])
    assert (yes | no)[short <= limit].all()
    for row, tails in enumerate(own):
        assert len(set(listed[row][there[row]].tolist()) & tails) == int(there[row].sum()) == min(limit, len(tails))
        assert bool(complete[row]) == (len(tails) <= limit)


def test_shortest_row_first(edges: DeviceEdges) -> None:
    rows = torch.randint(EDGES.no_row, (500, 3), generator=torch.Generator().manual_seed(1))
    ordered = torch.cat(edges.by_length(*torch.split(rows, 1, dim=1)), dim=1)
    lengths = torch.from_numpy(EDGES.row_lengths.astype(np.int64))[ordered]
    assert (lengths.diff(dim=1) >= 0).all()
    assert torch.equal(ordered.sort(dim=1).values, rows.sort(dim=1).values)
