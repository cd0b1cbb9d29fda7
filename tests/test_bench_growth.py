"""The bench of growth: sizes, what is measured at each, and what its page and picture show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from query2particles.bench import growth
from query2particles.bench.growth import bench_growth
from query2particles.bench.synthetic import FREEBASE, power_law_facts
from query2particles.bench.training import Effort
from query2particles.files import write_json
from query2particles.plot import growth_curves, plot_growth
from query2particles.report import speed_page

MEASURED = {"making edges s", "facts, million", "edges GiB", "sampling queries/s", "training queries/s", "tables GiB"}
ALSO_ON_A_CPU = {"import s", "import, peak memory GiB", "answer by index ms", "answer exactly ms", "index recall"}


def test_every_size_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_REFERENCE", 10_000)
    said: list[str] = []
    settings = ("batch=64", "negatives=50", "mix=1p:1,2i:1")
    kept: list[tuple[int, ...]] = []
    found = bench_growth(
        largest=20_000,
        dimension=32,
        settings=settings,
        effort=Effort(1, 1, 1),
        say=said.append,
        keep=lambda so_far: kept.append(tuple(growth_curves(so_far.figures))),
    )
    assert kept == [(10_000,), (10_000, 20_000)]
    curves = growth_curves(found.figures)
    assert list(curves) == [10_000, 20_000]
    assert all(own.keys() == MEASURED | ALSO_ON_A_CPU for own in curves.values())
    assert all(min(own.values()) > 0 for own in curves.values())
    assert found.ratios["10,000 entities"] == 1
    # Two bytes for each of 32 coordinates and the bias, and three numbers of four bytes, for each entity and for none.
    assert curves[20_000]["tables GiB"] == pytest.approx(20_001 * (2 * 33 + 12) / 2**30, rel=1e-3)
    assert "20,000 entities" in said
    write_json(tmp_path / "bench-growth-cpu.json", found.as_json())
    plot_growth({"": curves}, tmp_path / "bench-growth-cpu.png", caption=found.about)
    assert (tmp_path / "bench-growth-cpu.png").stat().st_size > 10_000
    page = speed_page(tmp_path)
    assert "## Growth on a CPU" in page
    assert "bench-growth-cpu.png" in page


def test_sizes_are_powers_of_ten_and_the_largest() -> None:
    assert growth._sizes(FREEBASE[0]) == [10**4, 10**5, 10**6, 10**7, FREEBASE[0]]
    assert growth._sizes(10**6) == [10**4, 10**5, 10**6]


def test_facts_on_a_device_follow_the_same_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean ids, of which 200,000 draws tell two power laws apart."""
    monkeypatch.setattr(growth, "_FACTS_AT_ONCE", 70_001)
    made = growth._facts(1000, 50, 200_000, torch.device("cpu"), 0)
    (others,) = power_law_facts(1000, 50, 200_000, seed=3)
    for column, other in zip(made, others, strict=True):
        assert column.dtype == torch.int32
        assert int(column.min()) >= 0
        assert int(column.max()) == int(other.max())
        assert float(column.double().mean()) == pytest.approx(float(other.mean()), rel=0.02)
