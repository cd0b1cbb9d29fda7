"""`q2p bench growth`: what training, sampling, import and answers take as a graph grows, up to Freebase's size.

Graphs are made up (`bench/synthetic`), with as many facts an entity as Freebase has. The edges are sorted where queries
are drawn, entities are trained by rows in bfloat16 against as many negatives at every size. Import and answers are
measured on a CPU only: they need none but the disk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from query2particles.bench.indexing import bench_index
from query2particles.bench.models import median_seconds, seconds_of
from query2particles.bench.record import Bench, Say, significant
from query2particles.bench.symbolic import bench_import_large
from query2particles.bench.synthetic import FREEBASE, facts_from
from query2particles.bench.training import EFFORT_EACH, Effort, timed_updates
from query2particles.config import Config, configured
from query2particles.curriculum import training_parts
from query2particles.engine.batches import Pool
from query2particles.engine.captured import Captured
from query2particles.engine.negatives import Proposal
from query2particles.engine.update import POOLED
from query2particles.plot import growth_curves
from query2particles.presets import preset
from query2particles.provenance import machine
from query2particles.tables import settled, subject_by_rows
from query2particles.train import assembled
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.stream import Stream

__all__ = ["LARGEST", "bench_growth"]

LARGEST = {"cpu": 1_000_000, "cuda": FREEBASE[0]}
_SMALLEST = 10_000
_REFERENCE = 1_000_000
"""What larger graphs are compared with."""
_ENTITIES_A_RELATION = FREEBASE[0] // FREEBASE[1]
_FEWEST_RELATIONS = 100
_DRAWN = 1.02
"""So many facts are drawn for each that there is to be, as some repeat: of ten million entities about one in forty."""
_BATCH = {"cpu": 512, "cuda": 8192}
_NEGATIVES = 4096
_FACTS_AT_ONCE = 1 << 24


def bench_growth(
    device: torch.device | str = "cpu",
    *,
    largest: int | None = None,
    dimension: int = 400,
    settings: Sequence[str] = (),
    effort: Effort | None = None,
    seed: int = 0,
    say: Say = print,
    keep: Callable[[Bench], object] = lambda _: None,
) -> Bench:
    """One size after the other: ten thousand entities, ten times as many, and so on, and the largest.

    `keep` hears of what there is after each: the largest may take longer than there is time.
    """
    where = torch.device(device)
    largest = largest or LARGEST[where.type]
    effort = effort or EFFORT_EACH[where.type]
    start = ["table=bf16", f"negatives={_NEGATIVES}", f"batch={_BATCH[where.type]}", f"dimension={dimension}"]
    config = configured(preset(), None, [*start, *settings])
    result = Bench(
        "growth",
        machine(where.type),
        f"{where.type}, made-up graphs; the default preset, d {config.model.dimension}, batch "
        f"{config.training.batch:,}, {config.training.negatives:,} negatives, tables in bfloat16, sampling included; "
        f"medians of {effort.blocks} blocks of {effort.updates} updates",
        seed=seed,
        compares=f"queries/s of training / those at {_REFERENCE:,} entities",
    )
    for entities in _sizes(largest):
        say(f"{entities:,} entities")
        figures = _trained(entities, config, where, effort, seed)
        if where.type == "cpu":
            figures |= _imported_and_asked(entities, dimension, say)
        result.figures |= {f"{entities:,} entities, {name}": significant(value) for name, value in figures.items()}
        speeds = {size: own["training queries/s"] for size, own in growth_curves(result.figures).items()}
        if reference := speeds.get(_REFERENCE):
            result.ratios = {f"{size:,} entities": significant(speed / reference) for size, speed in speeds.items()}
        keep(result)
    return result


def _sizes(largest: int) -> list[int]:
    powers = takewhile(lambda size: size < largest, (_SMALLEST * 10**power for power in range(20)))
    return [*powers, largest]


def _trained(entities: int, config: Config, device: torch.device, effort: Effort, seed: int) -> dict[str, float]:
    """Of a graph that is gone afterwards: its edges, sampling and updates."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    relations = min(max(entities // _ENTITIES_A_RELATION, _FEWEST_RELATIONS), FREEBASE[1])
    figures: dict[str, float] = {}
    made: list[DeviceEdges] = []

    def make_edges() -> None:
        drawn = int(_DRAWN * entities * FREEBASE[2] / FREEBASE[0])
        facts = _facts(entities, relations, drawn, device, seed)
        made.append(DeviceEdges.of_facts(*facts, entities=entities, relations_count=relations, device=device))

    figures["making edges s"] = seconds_of(make_edges, device)
    edges = made.pop()
    figures["facts, million"] = len(edges.ends) / 2e6  # each is an edge in both directions
    figures["edges GiB"] = sum(one.nbytes for one in vars(edges).values() if isinstance(one, Tensor)) / 2**30
    config, _ = settled(config, entities, device)
    training = config.training
    generator = torch.Generator(device).manual_seed(seed)
    parts, _ = training_parts(training)
    batches = POOLED if on_cuda else 1
    stream = Stream(edges, [replace(part, count=part.count * batches) for part in parts], generator, cap=training.cap)
    pool = Pool(stream, batches)
    draw = Captured(pool.fill, generator) if on_cuda else pool.fill
    for _ in range(6 if on_cuda else 1):
        draw()
    drawn = batches * sum(part.count for part in parts)
    figures["sampling queries/s"] = drawn / median_seconds(draw, device, effort.blocks)
    del draw, pool
    with torch.random.fork_rng([device] if on_cuda else []):
        torch.manual_seed(seed)
        subject = subject_by_rows(config, entities, edges.relations, device, parts, generator)
        assert training.negatives != "auto", "they are given"
        proposal = Proposal(entities, training.negatives, device, generator=generator)
        prepared = assembled(config, subject, stream, proposal, generator)
        updates = timed_updates(prepared, device, effort)
    figures["training queries/s"] = updates["queries/s"]
    assert subject.rows is not None, "tables are trained by rows"
    own = (*subject.rows.tables.values(), subject.rows.squares, subject.rows.touched)
    figures["tables GiB"] = sum(one.nbytes for one in own) / 2**30
    if on_cuda:
        figures["peak GPU memory GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return figures


def _imported_and_asked(entities: int, dimension: int, say: Say) -> dict[str, float]:
    imported = bench_import_large(entities * FREEBASE[2] // FREEBASE[0], 4 << 30, say).figures
    asked = bench_index(entities, dimension, say=say).figures
    return {
        "import s": imported["import seconds"],
        "import, peak memory GiB": imported["peak memory GiB"],
        "answer by index ms": asked["index median ms"],
        "answer exactly ms": asked["exact median ms"],
        "index recall": asked["recall of the best 10"],
    }


def _facts(entities: int, relations: int, facts: int, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Heads, relations and tails, drawn on the device by the same laws as `power_law_facts`."""
    generator = torch.Generator(device).manual_seed(seed)
    columns = torch.empty((3, facts), dtype=torch.int32, device=device)
    for start in range(0, facts, _FACTS_AT_ONCE):
        some = columns[:, start : start + _FACTS_AT_ONCE]
        uniforms = torch.rand(some.shape, generator=generator, dtype=torch.float64, device=device)
        h, r, t = facts_from((uniforms[0], uniforms[1], uniforms[2]), entities, relations)
        for column, drawn in zip(some, (h, r, t), strict=True):
            column.copy_(drawn)
    return columns.unbind()
