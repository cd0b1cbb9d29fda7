"""Streams of training queries: exact positives, the sampler's distribution, no surprises for a CUDA graph."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from query2particles.engine.exact import exact_answers
from query2particles.engine.sets import Sets
from query2particles.errors import SamplingError, UsageError
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    abstract,
    branches,
    ground,
    nickname,
    query_ids,
    shape_named,
)
from query2particles.workload import candidates
from query2particles.workload.candidates import complements_pushed_down
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.sample import draw_answers, draw_queries
from query2particles.workload.stream import Drawn, FixedStream, Grounding, Part, Stream, _Front
from worlds import oracle, queries, random_graph, random_query, successors

GRAPH = random_graph(21, entities=60, relations=3, facts=1200)
EDGES = GRAPH.at("train")
ON_DEVICE = DeviceEdges.of(EDGES, "cpu")
COMPLEMENT = Complement(Project(Anchor(0), 1))
MIX = ("1p", "2p", "3p", "2i", "3i", "2in", "3in", "inp", "pin", "pni")


def stream(*parts: Part, seed: int = 0, edges: DeviceEdges = ON_DEVICE, subsampling: bool = False) -> Stream:
    return Stream(edges, parts, torch.Generator().manual_seed(seed), subsampling=subsampling)


def check_positives(edges: Edges, parts: list[Part], drawn: list[Drawn]) -> None:
    for part, one in zip(parts, drawn, strict=True):
        name = nickname(part.shape)
        assert (one.weights == 1).all(), name
        assert one.ids.dtype == one.positives.dtype == torch.int64
        assert one.ids.shape == (part.count, part.positions)
        answers = exact_answers(edges, {part.shape: one.ids.numpy()})[part.shape]
        for row, positive in enumerate(one.positives.tolist()):
            assert positive in answers[row], (name, one.ids[row].tolist(), positive)


def usable_queries(edges: Edges, shape: Query, draws: int, seed: int = 0) -> Ints:
    """What the other sampler draws, less queries without an answer."""
    ids, _ = draw_queries(shape, draws, edges, np.random.default_rng(seed), draw_answers(edges))
    return ids[exact_answers(edges, {shape: ids})[shape].sizes > 0]


def random_shapes(count: int) -> list[Query]:
    """Odd trees, nested complements and unions among them, that the other sampler can ground."""
    generator, found = random.Random(5), dict[Query, None]()
    while len(found) < count:
        shape, _ = abstract(random_query(generator, 60, 3, depth=5))
        if 4 < len(nickname(shape)) < 90 and len(usable_queries(EDGES, shape, 400)) > 20:
            found[shape] = None
    return list(found)


def test_positives_are_exact_answers(atlas: Graph) -> None:
    parts = [Part(shape, 1000) for shape in SHAPES.values()]
    check_positives(atlas.at("train"), parts, stream(*parts, edges=DeviceEdges.of(atlas.at("train"), "cpu")).draw())


def test_positives_of_odd_trees_are_exact_answers() -> None:
    parts = [Part(shape, 1000) for shape in random_shapes(20)]
    assert any("n(i" in nickname(part.shape) or "n(u" in nickname(part.shape) for part in parts)
    assert any("u(" in nickname(part.shape) for part in parts)
    check_positives(EDGES, parts, stream(*parts).draw())


@pytest.mark.parametrize(
    "name",
    [
        "i(p(e),n(p(u(p(e),p(e)))))",
        "i(p(e),n(p(i(p(e),p(e)))))",
        "i(p(e),n(p(i(p(e),n(p(e))))))",
        "i(p(e),u(p(e),n(p(e))))",
        "p(u(n(p(e)),i(n(p(e)),n(p(p(e))))))",
        "i(p(p(e)),p(p(e)),p(e),n(p(e)))",
    ],
)
def test_positives_of_chosen_trees_are_exact_answers(name: str) -> None:
    part = Part(shape_named(name), 1000)
    check_positives(EDGES, [part], stream(part).draw())


def test_positives_are_exact_where_little_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any sources tried most memberships are uncertain; none is taken for granted."""
    monkeypatch.setattr(candidates, "_SOURCES", 2)
    monkeypatch.setattr(candidates, "_SOURCES_ALL_LEVELS", 2)
    parts = [Part(shape_named(name), 500) for name in ("pni", "pi", "i(p(e),n(p(p(p(e)))))", "p(n(p(p(e))))")]
    check_positives(EDGES, parts, stream(*parts).draw())


def test_positives_are_exact_without_the_table_of_rows() -> None:
    parts = [Part(SHAPES[name], 300) for name in (*MIX, "up")]
    one, other = stream(*parts), stream(*parts, edges=DeviceEdges.of(EDGES, "cpu", table_cells=0))
    drawn = one.draw()
    check_positives(EDGES, parts, drawn)
    for with_table, without in zip(drawn, other.draw(), strict=True):
        assert torch.equal(with_table.ids, without.ids)
        assert torch.equal(with_table.positives, without.positives)


@pytest.mark.slow
def test_many_positives_are_exact_answers(atlas: Graph) -> None:
    for edges, shapes in ((atlas.at("train"), list(SHAPES.values())), (EDGES, random_shapes(20))):
        parts = [Part(shape, 10_000) for shape in shapes]
        check_positives(edges, parts, stream(*parts, edges=DeviceEdges.of(edges, "cpu")).draw())


@pytest.mark.benchmark
def test_positives_on_a_benchmark_graph_are_exact_answers(data: Path) -> None:
    edges = open_graph(data / "FB15k-237").at("train")
    parts = [Part(shape, 2000) for shape in SHAPES.values()]
    check_positives(edges, parts, stream(*parts, edges=DeviceEdges.of(edges, "cpu")).draw())


def distance(one: Ints, other: Ints, size: int) -> float:
    """Total variation between the shares of each number in two samples."""
    shares = [np.bincount(sample, minlength=size) / len(sample) for sample in (one, other)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


@pytest.mark.parametrize("name", ["2p", "3p", "2i", "3i", "pi", "ip", "2u", "up", "2in", "3in", "inp", "pin", "pni"])
def test_ids_are_distributed_as_by_the_other_sampler(name: str) -> None:
    """The marginals of every position are no farther away than those of a second sample, but for lost queries."""
    shape, count = SHAPES[name], 8000
    one, other = (usable_queries(EDGES, shape, 60_000, seed)[:count] for seed in (0, 1))
    assert len(one) == len(other) == count
    ids = stream(Part(shape, count)).draw()[0].ids.numpy()
    for position in range(ids.shape[1]):
        noise = distance(one[:, position], other[:, position], 60)
        assert distance(ids[:, position], one[:, position], 60) < noise + 0.015


@pytest.mark.benchmark
@pytest.mark.parametrize("name", ["2p", "3i", "2in", "3in", "inp", "pin", "pni"])
def test_ids_on_a_benchmark_graph_are_distributed_as_by_the_other_sampler(data: Path, name: str) -> None:
    edges, shape, count = open_graph(data / "FB15k-237").at("train"), SHAPES[name], 6000
    one, other = (usable_queries(edges, shape, 24_000, seed)[:count] for seed in (0, 1))
    ids = stream(Part(shape, count), edges=DeviceEdges.of(edges, "cpu")).draw()[0].ids.numpy()
    for position in range(ids.shape[1]):
        noise = distance(one[:, position], other[:, position], edges.entities)
        assert distance(ids[:, position], one[:, position], edges.entities) < noise + 0.04


def test_one_hop_queries_are_all_as_likely() -> None:
    ids = stream(Part(SHAPES["1p"], 100_000)).draw()[0].ids.numpy()
    rows = np.bincount(EDGES.rows_of(ids[:, 0], ids[:, 1]), minlength=EDGES.no_row)
    assert len(rows) == EDGES.no_row
    expected = 100_000 / EDGES.no_row
    assert np.square(rows - expected).sum() / expected == pytest.approx(EDGES.no_row, rel=0.25)


@pytest.mark.parametrize("name", ["1p", "2p", "3p", "2i", "2u", "up", "ip", "2in", "pi", "pin", "pni", "inp"])
def test_positives_are_nearly_uniform_among_answers(name: str) -> None:
    """The distance from uniform that random draws do not explain, in the mean over often drawn queries."""
    edges, shape = random_graph(3, entities=10, relations=1, facts=60).at("train"), SHAPES[name]
    drawn = stream(Part(shape, 30_000), edges=DeviceEdges.of(edges, "cpu")).draw()[0]
    seen = defaultdict(list)
    for ids, positive in zip(map(tuple, drawn.ids.tolist()), drawn.positives.tolist(), strict=True):
        seen[ids].append(positive)
    often = [ids for ids, positives in seen.items() if len(positives) > 100]
    answers = exact_answers(edges, {shape: np.array(often)})[shape]
    excess = []
    for row, ids in enumerate(often):
        size, number = len(answers[row]), len(seen[ids])
        shares = np.bincount(seen[ids], minlength=10)[answers[row]] / number
        # The mean of |share − p| of a binomial share is √(2 p (1 − p) / π number).
        chance = size / 2 * np.sqrt(2 / np.pi * (1 / size) * (1 - 1 / size) / number)
        excess.append(np.abs(shares - 1 / size).sum() / 2 - chance)
    assert len(often) >= 20
    assert np.mean(answers.sizes) > 1.3
    assert np.mean(excess) < 0.025


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_pushing_complements_down_keeps_the_answers(data: st.DataObject) -> None:
    graph = random_graph(2, entities=9, relations=2, facts=30)
    query = data.draw(queries(9, 2))
    pushed = complements_pushed_down(query)
    known, everything = successors(graph, "train"), frozenset(range(9))
    assert oracle(pushed, known, everything) == oracle(query, known, everything)

    def check(part: Query) -> None:
        assert not isinstance(part, Complement) or isinstance(part.query, Anchor | Project)
        for branch in branches(part):
            check(branch)

    check(pushed)


def test_queries_are_hardly_ever_repeated() -> None:
    """The rows drawn in excess make up for those that cannot be used: queries differ as much as the other sampler's."""
    edges = random_graph(8, entities=200, relations=4, facts=20_000).at("train")
    on_device = DeviceEdges.of(edges, "cpu")
    for name in ("2p", "3i", "2in", "3in", "pni"):
        shape = SHAPES[name]
        expected = usable_queries(edges, shape, 24_000)[:8000]
        drawn = stream(Part(shape, 8000), edges=on_device).draw()[0].ids.numpy()
        distinct, wanted = (len(np.unique(ids, axis=0)) for ids in (drawn, expected))
        assert len(expected) == 8000
        assert distinct > 0.99 * wanted


def test_the_seed_decides() -> None:
    parts = [Part(SHAPES[name], 50) for name in MIX]

    def draws(seed: int) -> list[npt.NDArray[np.int64]]:
        source = stream(*parts, seed=seed)
        return [one.ids.numpy() for _ in range(2) for one in source.draw()]

    first, again, other = draws(1), draws(1), draws(2)
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    for one, later in zip(first[: len(MIX)], first[len(MIX) :], strict=True):
        assert (one != later).any()
    assert any((one != two).any() for one, two in zip(first, other, strict=True))


def test_parts_do_not_depend_on_their_company() -> None:
    """Every part of a mixed batch holds what it asked for, also where one shape comes twice."""
    parts = [Part(SHAPES["2i"], 30), Part(SHAPES["1p"], 7), Part(SHAPES["2i"], 300), Part(SHAPES["inp"], 1)]
    drawn = stream(*parts).draw()
    check_positives(EDGES, parts, drawn)
    assert not torch.equal(drawn[0].ids, drawn[2].ids[:30])


def test_united_and_complemented_one_hop_queries() -> None:
    parts = [Part(SHAPES["2u"], 500, Grounding.ONE_HOP), Part(COMPLEMENT, 500, Grounding.ONE_HOP)]
    for source in (stream(*parts), fixed(*parts)):
        united, complemented = source.draw()
        for ids, positive in zip(united.ids.tolist(), united.positives.tolist(), strict=True):
            assert EDGES.has(ids[0], ids[1], positive)
            assert len(EDGES.tails_of(ids[2], ids[3]))
        assert len(np.unique(united.ids.numpy(), axis=0)) > 100
        for (head, relation), positive in zip(complemented.ids.tolist(), complemented.positives.tolist(), strict=True):
            assert EDGES.has(head, relation, positive)
    with pytest.raises(UsageError, match="ground it by a walk"):
        Part(SHAPES["2p"], 5, Grounding.ONE_HOP)
    with pytest.raises(UsageError, match="leave it out"):
        Part(SHAPES["2p"], 0)


def test_unions_have_positives_of_either_branch_by_their_numbers() -> None:
    """Branches come edge by edge, and of every union each answer is as likely."""
    part = Part(SHAPES["2u"], 40_000, Grounding.UNITED)
    shape = SHAPES["1p"]
    keys = np.stack(np.divmod(EDGES.keys, EDGES.relations), axis=1)
    rows = Sets(EDGES.entities, EDGES.offsets, EDGES.tails)
    fixed_stream = FixedStream({shape: (keys, rows)}, [part], torch.Generator().manual_seed(0))
    for source in (stream(part), fixed_stream):
        ids, positives = source.draw()[0][:2]
        of_first, expected, apart = 0, 0.0, 0
        for (one, by, other, along), positive in zip(ids.tolist(), positives.tolist(), strict=True):
            some, others = EDGES.tails_of(one, by), EDGES.tails_of(other, along)
            assert positive in some or positive in others
            if not np.intersect1d(some, others).size:
                apart += 1
                of_first += positive in some
                expected += len(some) / (len(some) + len(others))
        assert apart > 10_000
        assert of_first / apart == pytest.approx(expected / apart, abs=0.015)
        heavy = [len(EDGES.tails_of(one, by)) for one, by, _, _ in ids.tolist()]
        sizes = np.diff(EDGES.offsets)
        assert np.mean(heavy) == pytest.approx((sizes**2).sum() / sizes.sum(), rel=0.05)


def test_one_hop_queries_by_edge() -> None:
    """Every stored edge is as likely as query and positive; a fixed workload gives the same."""
    shape = SHAPES["1p"]
    keys = np.stack(np.divmod(EDGES.keys, EDGES.relations), axis=1)
    rows = Sets(EDGES.entities, EDGES.offsets, EDGES.tails)
    part = Part(shape, 20 * len(EDGES.tails), Grounding.EDGE)
    fixed_stream = FixedStream({shape: (keys, rows)}, [part], torch.Generator().manual_seed(0))
    for source in (stream(part), fixed_stream):
        drawn = source.draw()[0]
        check_positives(EDGES, [part], [drawn])
        edges = torch.cat([drawn.ids, drawn.positives[:, None]], 1)
        different, numbers = np.unique(edges.numpy(), axis=0, return_counts=True)
        assert len(different) == len(EDGES.tails)
        assert numbers.min() > 2
        assert numbers.max() < 60


def test_walks_by_edge() -> None:
    """The last step back of a chain is a uniformly random edge; the step before it, one into where that edge starts."""
    part = Part(SHAPES["2p"], 20_000, Grounding.EDGE)
    drawn = stream(part).draw()[0]
    check_positives(EDGES, [part], [drawn])
    heads, relations = np.divmod(EDGES.keys, EDGES.relations)
    sizes = EDGES.row_lengths[:-1]
    into = np.bincount(heads, sizes, EDGES.entities)  # as inverses are stored, as many edges reach an entity
    # P(r₁, r₂) = Σ over edges (h, r₂, t): 1/edges · share of the edges into h, but the one back, that have r₁.
    expected = np.zeros((EDGES.relations, EDGES.relations))
    for key, (middle, last) in enumerate(zip(heads, relations, strict=True)):
        for other in np.flatnonzero(heads == middle):
            if other != key:
                share = sizes[other] / (into[middle] - sizes[key])
                expected[relations[other] ^ 1, last] += sizes[key] / len(EDGES.tails) * share
    expected /= expected.sum()
    found = np.zeros_like(expected)
    np.add.at(found, (drawn.ids[:, 1].numpy(), drawn.ids[:, 2].numpy()), 1 / len(drawn.ids))
    np.testing.assert_allclose(found, expected, atol=0.012)


def test_queries_with_many_answers_are_left_out(atlas: Graph) -> None:
    """For one-hop queries exactly, for others as far as the candidates tell."""
    edges = atlas.at("train")
    parts = [Part(SHAPES[name], 500) for name in ("1p", "2i", "2p", "2in")]
    generator = torch.Generator().manual_seed(0)
    drawn = Stream(DeviceEdges.of(edges, "cpu"), parts, generator, cap=20).draw()
    check_positives(edges, parts, drawn)
    most = {}
    for part, one in zip(parts, drawn, strict=True):
        sizes = exact_answers(edges, {part.shape: one.ids.numpy()})[part.shape].sizes
        most[nickname(part.shape)] = np.quantile(sizes, [0.5, 0.9, 1])
    assert most["1p"][2] <= 20
    assert most["2i"][1] <= 25
    assert most["2in"][1] <= 25
    assert most["2p"][0] <= 20


def test_what_is_excluded_is_in_every_branch_and_no_answer() -> None:
    """Where a complement stands at the root; elsewhere, and in a workload, the positive takes its place."""
    names = ("2in", "3in", "pin", "pni")
    for name, drawn in zip(names, stream(*(Part(SHAPES[name], 300) for name in names)).draw(), strict=True):
        shape, ids, excluded = SHAPES[name], drawn.ids.numpy(), drawn.excluded.tolist()
        answers = exact_answers(EDGES, {shape: ids})[shape]
        assert not any(entity in answers[row] for row, entity in enumerate(excluded))
        for branch in branches(shape):
            inner = branch.query if isinstance(branch, Complement) else branch
            own = abstract(inner)[0]
            reached = exact_answers(EDGES, {own: ids[:, list(query_ids(inner))]})[own]
            assert all(entity in reached[row] for row, entity in enumerate(excluded))
    others = [Part(SHAPES["1p"], 50), Part(SHAPES["inp"], 50), Part(Complement(SHAPES["1p"]), 50, Grounding.ONE_HOP)]
    for drawn in [*stream(*others).draw(), *fixed(Part(SHAPES["1p"], 50)).draw()]:
        assert torch.equal(drawn.excluded, drawn.positives)


def test_an_impossible_shape_says_so() -> None:
    """Two different ways into an entity where every entity has one only."""
    pairs = Edges.of(np.array([0]), np.array([0]), np.array([1]), entity_count=2, relation_count=1)
    with pytest.raises(SamplingError, match=r"draws of 2i on this graph.*leave this shape out"):
        stream(Part(SHAPES["1p"], 5), Part(SHAPES["2i"], 5), edges=DeviceEdges.of(pairs, "cpu"))


def test_the_first_usable_rows_come_first_and_again_if_they_are_too_few() -> None:
    rows, counts = [5, 4, 6, 3], [2, 3, 3, 2]
    usable = torch.tensor([0, 1, 0, 1, 1] + [0, 1, 1, 0] + [0] * 6 + [1, 0, 0], dtype=torch.bool)
    chosen, weights = _Front(rows, counts, torch.device("cpu")).choose(usable)
    assert chosen[:5].tolist() == [1, 3, 6, 7, 6]
    assert set(chosen[5:8].tolist()) <= set(range(9, 15))  # none is usable, but those of other parts are no substitute
    assert chosen[8:].tolist() == [15, 15]
    assert weights.tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 1, 1]


def test_a_draw_without_a_query_weighs_nothing() -> None:
    """Ids stay in range even then."""
    edges = random_graph(4, entities=12, relations=2, facts=30).at("train")
    source = stream(Part(SHAPES["1p"], 4), Part(SHAPES["3in"], 4), edges=DeviceEdges.of(edges, "cpu"))
    one_hop, negated = source.draw_from(torch.zeros(source.uniforms, dtype=torch.float64))
    assert one_hop.weights.tolist() == [1, 1, 1, 1]
    assert negated.weights.tolist() == [0, 0, 0, 0]
    assert (negated.ids[:, 1::2] < edges.relations).all()
    assert ((negated.ids >= 0) & (negated.ids < 12)).all()


def test_a_draw_is_one_graph() -> None:
    """No decision depends on a value, so that the draw can be captured, or compiled, whole."""
    source = stream(*(Part(shape, 40) for shape in SHAPES.values()))
    uniforms = torch.rand(source.uniforms, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    compiled = torch.compile(source.draw_from, fullgraph=True, backend="eager")
    for one, other in zip(source.draw_from(uniforms), compiled(uniforms), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.positives, other.positives)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_draws_anew_at_every_replay() -> None:
    parts = [Part(shape, 500) for shape in SHAPES.values()]
    generator = torch.Generator("cuda").manual_seed(1)
    source = Stream(DeviceEdges.of(EDGES, "cuda"), parts, generator)
    source.draw()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        drawn = source.draw()
    seen = []
    for _ in range(2):
        graph.replay()
        on_host = [Drawn(*(tensor.cpu() for tensor in one)) for one in drawn]
        check_positives(EDGES, parts, on_host)
        seen.append(on_host)
    assert all((one.ids != other.ids).any() for one, other in zip(*seen, strict=True))


def fixed(*parts: Part, seed: int = 0, subsampling: bool = False) -> FixedStream:
    """Draws from 40 queries of each shape that has some."""
    names = ("1p", "2p", "3in", "n(p(e))")
    ids = {shape_named(name): usable_queries(EDGES, shape_named(name), 4000)[:40] for name in names}
    answers = exact_answers(EDGES, ids)
    workload = {shape: (ids[shape], answers[shape]) for shape in ids}
    return FixedStream(workload, parts, torch.Generator().manual_seed(seed), subsampling=subsampling)


def test_fixed_queries() -> None:
    parts = [Part(shape_named(name), 4000) for name in ("2p", "1p", "n(p(e))", "3in")]
    drawn = fixed(*parts).draw()
    check_positives(EDGES, parts, drawn)
    for part, one in zip(parts, drawn, strict=True):
        given_ids = usable_queries(EDGES, part.shape, 4000)[:40]
        different, numbers = np.unique(one.ids.numpy(), axis=0, return_counts=True)
        assert {tuple(ids) for ids in different.tolist()} == {tuple(ids) for ids in given_ids.tolist()}
        if len(different) == 40:
            assert numbers.min() > 50
            assert numbers.max() < 160
    again = fixed(*parts).draw()
    assert all(torch.equal(one.positives, two.positives) for one, two in zip(drawn, again, strict=True))


def test_fixed_positives_are_uniform_and_queries_without_answers_left_out() -> None:
    shape = SHAPES["1p"]
    ids, answers = np.array([[0, 0], [1, 0], [2, 0]]), Sets.of([[3, 5, 8], [], [4]], 60)
    generator = torch.Generator().manual_seed(0)
    drawn = FixedStream({shape: (ids, answers)}, [Part(shape, 30_000)], generator).draw()[0]
    assert set(drawn.ids[:, 0].tolist()) == {0, 2}
    first = drawn.positives[drawn.ids[:, 0] == 0]
    assert len(first) == pytest.approx(15_000, rel=0.05)
    assert np.bincount(first.numpy(), minlength=9)[[3, 5, 8]] == pytest.approx(len(first) / 3, rel=0.06)
    with pytest.raises(SamplingError, match="no 2p queries with an answer"):
        FixedStream({shape: (ids, answers)}, [Part(SHAPES["2p"], 3)], generator)


def expected_weights(shapes: list[Query], drawn: list[Drawn]) -> list[npt.NDArray[np.float64]]:
    """1 / √a of a query with a answers, in the mean over all parts 1."""
    sizes = [
        exact_answers(EDGES, {shape: one.ids[:, : len(tuple(query_ids(shape)))].numpy()})[shape].sizes
        for shape, one in zip(shapes, drawn, strict=True)
    ]
    mean = np.mean(np.concatenate(sizes) ** -0.5)
    return [several**-0.5 / mean for several in sizes]


@pytest.mark.parametrize("of", [stream, fixed])
def test_one_hop_queries_with_many_answers_weigh_less(of: Callable[..., Stream | FixedStream]) -> None:
    """By exactly 1 / √a, also drawn by edge; of what is put together from them, the first one counts."""
    one_hop = SHAPES["1p"]
    parts = [
        Part(one_hop, 700),
        Part(one_hop, 300, Grounding.EDGE),
        Part(SHAPES["2u"], 200, Grounding.ONE_HOP),
        Part(COMPLEMENT, 100, Grounding.ONE_HOP),
    ]
    drawn, plain = (list(of(*parts, subsampling=subsampling).draw()) for subsampling in (True, False))
    weights = torch.cat([one.weights for one in drawn])
    assert weights.dtype == torch.float32
    assert float(weights.mean()) == pytest.approx(1, abs=1e-5)
    assert len(set(weights.tolist())) > 5
    for one, wanted in zip(drawn, expected_weights([one_hop] * 4, drawn), strict=True):
        np.testing.assert_allclose(one.weights.numpy(), wanted, rtol=1e-5)
    for one, other in zip(drawn, plain, strict=True):  # nothing else is drawn for it
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.positives, other.positives)
        assert (other.weights == 1).all()


def test_weights_of_a_fixed_workload_are_exact_for_all_shapes() -> None:
    parts = [Part(shape_named(name), 500) for name in ("2p", "1p", "n(p(e))", "3in")]
    drawn = list(fixed(*parts, subsampling=True).draw())
    for one, wanted in zip(drawn, expected_weights([part.shape for part in parts], drawn), strict=True):
        np.testing.assert_allclose(one.weights.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("grounding", [Grounding.WALK, Grounding.EDGE])
def test_weights_of_other_shapes_are_estimated(grounding: Grounding) -> None:
    """From as many answers as were looked at, and not far off."""
    parts = [Part(SHAPES[name], 1000, grounding) for name in ("2p", "2i", "pi", "2in", "pin")]
    drawn = list(stream(*parts, subsampling=True).draw())
    for part, one, wanted in zip(parts, drawn, expected_weights([part.shape for part in parts], drawn), strict=True):
        ratios = one.weights.numpy() / wanted
        assert np.median(ratios) == pytest.approx(1, abs=0.05), nickname(part.shape)
        assert np.corrcoef(one.weights.numpy(), wanted)[0, 1] > 0.9, nickname(part.shape)


def test_subsampling_gives_no_weight_to_what_has_none() -> None:
    edges = random_graph(4, entities=12, relations=2, facts=30).at("train")
    parts = [Part(SHAPES["1p"], 4), Part(SHAPES["3in"], 4)]
    source = stream(*parts, edges=DeviceEdges.of(edges, "cpu"), subsampling=True)
    one_hop, negated = source.draw_from(torch.zeros(source.uniforms, dtype=torch.float64))
    assert negated.weights.tolist() == [0, 0, 0, 0]
    assert one_hop.weights.tolist() == [2, 2, 2, 2]  # the same query each time


def test_equal_branches_and_steps_straight_back_do_not_occur() -> None:
    parts = [Part(shape_named(name), 2000) for name in ("2i", "3i", "3p", "i(i(p(e),p(e)),i(p(e),p(e)))", "up")]
    for part, one in zip(parts, stream(*parts).draw(), strict=True):
        for ids in one.ids.tolist():
            check_rules(ground(part.shape, ids))


def check_rules(query: Query) -> None:
    if isinstance(query, Intersect | Union):
        assert len(set(branches(query))) == len(branches(query))
    if isinstance(query, Project) and isinstance(query.query, Project):
        assert query.relation ^ 1 != query.query.relation
    for branch in branches(query):
        check_rules(branch)
