"""Synthetic graphs: the sizes asked for, the same for the same seed, and of a power law."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from query2particles.bench import synthetic
from query2particles.bench.synthetic import power_law_facts, write_power_law_graph
from query2particles.config import Training
from query2particles.curriculum import training_parts
from query2particles.graph.load import import_graph
from query2particles.query.algebra import SHAPES
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.stream import Stream

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "power_law_graph.py"


def test_sizes_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_AT_ONCE", 1000)
    parts = list(power_law_facts(500, 7, 2500, seed=1))
    assert [len(heads) for heads, _, _ in parts] == [1000, 1000, 500]
    for columns in parts:
        for column, limit in zip(columns, (500, 7, 500), strict=True):
            assert (column.dtype == np.int32, column.min() >= 0, column.max() < limit) == (True, True, True)
    again, other = list(power_law_facts(500, 7, 2500, seed=1)), list(power_law_facts(500, 7, 2500, seed=2))
    assert all(
        np.array_equal(one, same)
        for some, those in zip(parts, again, strict=True)
        for one, same in zip(some, those, strict=True)
    )
    assert not np.array_equal(parts[0][0], other[0][0])
    assert not np.array_equal(parts[0][0], parts[1][0])


def test_likelihoods_fall_by_a_power() -> None:
    """Ten times as far out in the list, 10⁻ᵃ times as often: on a logarithmic scale a line of slope − a."""
    entities, relations = 100_000, 1000
    heads, between, tails = (
        np.concatenate(column) for column in zip(*power_law_facts(entities, relations, 2_000_000), strict=True)
    )
    of_a_kind = heads % (entities // 100)
    of_a_relation = (tails - between * (entities // relations)) % entities
    for column, count, steepness in ((of_a_kind, 1000, 0.5), (between, relations, 0.6), (of_a_relation, entities, 0.9)):
        edges = np.geomspace(10, count, 12).astype(int)
        numbers, _ = np.histogram(column, bins=edges)
        slope = np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(numbers / np.diff(edges)), 1)[0]
        assert slope == pytest.approx(-steepness, abs=0.05)


def test_heads_of_a_relation_are_of_one_kind() -> None:
    (columns,) = power_law_facts(100_000, 1000, 100_000)
    assert np.array_equal(columns[0] // 1000, columns[1] % 100)


def test_every_shape_can_be_drawn_from_it() -> None:
    """Of a graph in which nothing goes together, no two questions would have an answer in common."""
    (columns,) = power_law_facts(30_000, 100, 120_000)
    edges = DeviceEdges.of_facts(
        *(torch.from_numpy(column) for column in columns), entities=30_000, relations_count=100, device="cpu"
    )
    parts, _ = training_parts(Training(batch=512))
    drawn = Stream(edges, parts, torch.Generator().manual_seed(0)).draw()
    assert {part.shape for part in parts} >= {SHAPES["3in"], SHAPES["inp"], SHAPES["pni"]}
    assert all(len(np.unique(some.ids, axis=0)) > 0.5 * len(some.ids) for some in drawn)


def test_the_script_writes_what_an_import_reads(tmp_path: Path) -> None:
    sizes = ["--entities", "50", "--relations", "4", "--edges", "900", "--seed", "3"]
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "one.tsv"), *sizes], check=True)
    write_power_law_graph(tmp_path / "other.tsv", 50, 4, 900, seed=3)
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "other.tsv").read_bytes()
    graph = import_graph([tmp_path / "one.tsv"])
    assert (len(graph.entities), len(graph.relations)) == (50, 4)
    assert graph.about["duplicates"] + graph.at("train").facts == 900
