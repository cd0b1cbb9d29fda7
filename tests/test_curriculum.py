"""What a batch is made of, at which rate it is trained on, and what to tell a person about both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from query2particles.config import Training
from query2particles.curriculum import doubts, rate_at, training_parts, training_stream
from query2particles.graph.graph import Split
from query2particles.query.algebra import SHAPES, Complement, Query, nickname
from query2particles.workload.benchmark import write_set
from query2particles.workload.groundings import Grounding, Part
from query2particles.workload.labels import label
from query2particles.workload.selection import drawn_queries
from worlds import random_graph

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
@pytest.mark.parametrize("share", [0.0, 1 / 3, 1.0])
@pytest.mark.parametrize("edge_share", [0.0, 1.0])
def test_a_batch_has_the_shapes_of_the_mix(batch: int, share: float, edge_share: float) -> None:
    training = replace(
        Training(), batch=batch, union_share=share, inverted_complements=True, smoothing=0.25, edge_share=edge_share
    )
    parts, terms = training_parts(training)
    assert sum(part.count for part in parts if part.shape != Complement(SHAPES["1p"])) == batch
    counts = {part.shape: part.count for part in parts}
    assert len(counts) == len(parts) == len(terms)
    assert all(part.count > 0 for part in parts)
    one_hop = counts.get(SHAPES["1p"], 0) + counts.get(SHAPES["2u"], 0)
    total = sum(training.mix.values())
    for name, weight in training.mix.items():
        count = one_hop if name == "1p" else counts.get(SHAPES[name], 0)
        assert abs(count - batch * weight / total) < 1
    assert abs(counts.get(SHAPES["2u"], 0) - share * one_hop) <= 0.5
    assert counts.get(Complement(SHAPES["1p"]), 0) == one_hop
    for part, term in zip(parts, terms, strict=True):
        usual = Grounding.EDGE if edge_share else Grounding.WALK
        added = {SHAPES["2u"]: Grounding.UNITED, Complement(SHAPES["1p"]): Grounding.ONE_HOP}
        assert part.grounding == added.get(part.shape, usual)
        assert term.sign == (-1 if part.shape == Complement(SHAPES["1p"]) else 1)
        assert term.smoothing == 0.25


def test_without_the_options_a_batch_is_the_mix_alone() -> None:
    parts, _ = training_parts(replace(Training(), union_share=0.0, inverted_complements=False, mix={"2i": 1.0}))
    assert [part.shape for part in parts] == [SHAPES["2i"]]


def test_rates() -> None:
    training = replace(Training(), rate=0.5, warm_up=4, updates=24, schedule="constant")
    rates = [rate_at(update, training) for update in range(24)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert set(rates[4:]) == {0.5}
    falling = [rate_at(update, replace(training, schedule="cosine")) for update in range(24)]
    assert falling[:5] == pytest.approx(rates[:5])
    assert falling[14] == pytest.approx(0.25)
    assert falling == sorted(falling[:4]) + sorted(falling[4:], reverse=True)
    assert 0 < falling[-1] < 0.01
    assert rate_at(0, replace(training, warm_up=0)) == 0.5
    assert rate_at(23, replace(training, warm_up=100)) == pytest.approx(0.5 * 24 / 101)


def test_some_queries_are_drawn_by_edge() -> None:
    training = replace(Training(), batch=100, mix={"1p": 1.0, "2i": 1.0}, edge_share=0.4, union_share=0.2)
    parts, _ = training_parts(training)
    assert [(nickname(part.shape), part.count, part.grounding) for part in parts] == [
        ("1p", 24, Grounding.WALK),
        ("2i", 30, Grounding.WALK),
        ("1p", 16, Grounding.EDGE),
        ("2i", 20, Grounding.EDGE),
        ("2u", 10, Grounding.UNITED),
    ]
    as_released, _ = training_parts(replace(training, union_answers="first"))
    assert as_released[-1] == Part(SHAPES["2u"], 10, Grounding.ONE_HOP)
    everything, _ = training_parts(replace(training, edge_share=1.0, union_share=0.0, mix={"1p": 1.0}))
    assert [(part.count, part.grounding) for part in everything] == [(100, Grounding.EDGE)]


def test_shapes_that_get_no_query_are_named() -> None:
    training = replace(Training(), mix={"1p": 6.0, "2i": 1.0, "3p": 0.0, "2in": 1.0}, batch=4, warm_up=0)
    (told,) = doubts(training)
    have = {nickname(part.shape) for part in training_parts(training)[0]}
    missing = {"2i", "2in"} - have
    assert missing
    assert "a batch of 4 has no query of " + ", ".join(sorted(missing, key=list(training.mix).index)) + "," in told
    assert "3p" not in told, "its weight is 0"
    assert doubts(replace(training, batch=64)) == []


def test_what_a_share_takes_is_not_missing() -> None:
    assert doubts(replace(Training(), mix={"1p": 1.0}, batch=4, union_share=1.0, warm_up=0)) == []


def test_a_rate_that_only_rises() -> None:
    training = replace(Training(), updates=10, warm_up=10)
    assert doubts(training) == []
    (told,) = doubts(replace(training, warm_up=11, rate=0.5))
    assert "never gets to 0.5: it rises over 11 updates (warm_up), and there are 10" in told


@pytest.mark.parametrize("from_a_folder", [False, True], ids=["drawn", "from a folder"])
def test_subsampling_reaches_the_stream(from_a_folder: bool, tmp_path: Path) -> None:
    """Without it all queries weigh the same; with it the weights of 1p are as 1 / √(number of tails)."""
    graph = random_graph(2, entities=40, relations=2, facts=600)
    training = replace(Training(), batch=200, mix={"1p": 1.0})
    if from_a_folder:
        edges = graph.at("train")
        keys = np.stack(np.divmod(edges.keys, edges.relations), axis=1)
        one_hop = {SHAPES["1p"]: keys}
        write_set(tmp_path / "queries", graph, "train", one_hop, label(graph, "train", one_hop))
        training = replace(training, workload=str(tmp_path / "queries"))
    for subsampling in (False, True):
        changed = replace(training, subsampling=subsampling)
        parts, _ = training_parts(changed)
        (drawn,) = training_stream(graph, changed, parts, torch.Generator().manual_seed(0)).draw()
        tails = [len(graph.at("train").tails_of(*ids)) for ids in drawn.ids.tolist()]
        weights = np.array(tails) ** -0.5 if subsampling else np.ones(len(tails))
        assert len(set(tails)) > 2
        np.testing.assert_allclose(drawn.weights.numpy(), weights / weights.mean(), rtol=1e-5)


def test_facts_that_are_trained_on() -> None:
    """All of the split that is said, and no other."""
    graph = random_graph(2, entities=20, relations=2, facts=100)
    splits: dict[Split, Training] = {
        "train": Training(),
        "valid": replace(Training(), valid_edges=True),
        "test": replace(Training(), all_edges=True),
    }
    for split, start in splits.items():
        training = replace(start, batch=5000, mix={"1p": 1.0})
        (drawn,) = training_stream(
            graph, training, training_parts(training)[0], torch.Generator().manual_seed(0)
        ).draw()
        edges = graph.at(split)
        pairs = np.repeat(edges.keys, np.diff(edges.offsets))
        heads, relations = np.divmod(pairs, edges.relations)
        facts = set(zip(heads.tolist(), relations.tolist(), edges.tails.tolist(), strict=True))
        assert set(zip(*drawn.ids.T.tolist(), drawn.positives.tolist(), strict=True)) == facts


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_leaked_queries_come_with_their_hard_answers(tmp_path: Path, device: str, batches: int) -> None:
    """As many as is said, after all others, from both splits, of the five shapes that the released code takes."""
    graph = random_graph(2, entities=40, relations=3, facts=600)
    folder, answers = tmp_path / "queries", dict[Query, dict[tuple[int, ...], set[int]]]()
    splits: tuple[Split, ...] = ("valid", "test")
    for split in splits:
        batch, labels = drawn_queries(graph, split, most=15, seed=0)
        write_set(folder, graph, split, batch, labels)
        for shape, ids in batch.items():
            own = answers.setdefault(shape, {})
            for number, row in enumerate(map(tuple, ids.tolist())):
                own.setdefault(row, set()).update(labels[shape].hard[number].tolist())
    training = replace(Training(), batch=1000, leaked=str(folder), leaked_share=0.4, inverted_complements=True)
    parts, terms = training_parts(training)
    plain, plain_terms = training_parts(replace(training, leaked=""))
    stored = [part for part in parts if part.grounding is Grounding.STORED]
    assert parts[-len(stored) :] == stored
    assert {nickname(part.shape) for part in stored} == {"1p", "2p", "3p", "2i", "3i"}
    assert sum(part.count for part in parts) == sum(part.count for part in plain)
    assert len(terms) == len(parts)
    assert set(terms) == set(plain_terms)
    before = {part.shape: part.count for part in plain if part.grounding is Grounding.EDGE}
    assert all(abs(part.count - 0.4 * before[part.shape]) <= 0.5 for part in stored)
    stream = training_stream(graph, training, parts, torch.Generator(device).manual_seed(0), batches=batches)
    drawn = stream.draw()
    assert [len(one.ids) for one in drawn] == [batches * part.count for part in parts]
    for part, one in list(zip(parts, drawn, strict=True))[-len(stored) :]:
        rows = list(map(tuple, one.ids.tolist()))
        assert all(
            positive in answers[part.shape][row] for row, positive in zip(rows, one.positives.tolist(), strict=True)
        )
        assert len(set(rows)) > 15  # of one split there are no more
    assert any("no result of the method" in words for words in doubts(training))


def test_nothing_leaks_unless_it_is_meant() -> None:
    parts, _ = training_parts(Training())
    assert Grounding.STORED not in {part.grounding for part in parts}
    assert not any("no result" in words for words in doubts(Training()))
