"""`q2p bench train`: updates of training, against the matrix products of their own scores.

The products are those that the loss cannot do without: scores from particles and entities, and the derivatives by
both. In the shapes that the loss gives them (engine/fused_loss.py: the bias as one more coordinate, depth and
entities in whole tiles; bfloat16 on CUDA) they are the least that an update takes.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from query2particles.bench.data import bench_graph
from query2particles.bench.models import finish, in_words, median_seconds, seconds_of
from query2particles.bench.record import Bench, Say, significant
from query2particles.config import Config, configured
from query2particles.engine.fused_loss import DEPTH_TILE, ENTITY_TILE, rounded_up
from query2particles.engine.plan import compile_shapes
from query2particles.engine.update import POOLED
from query2particles.graph.graph import Graph
from query2particles.methods.q2p import Q2P
from query2particles.methods.registry import METHODS
from query2particles.presets import preset
from query2particles.provenance import machine
from query2particles.train import Prepared, prepare
from query2particles.workload.stream import Part

__all__ = ["EFFORT_EACH", "Effort", "Products", "bench_train", "bench_train_methods", "timed_updates"]

_CAPTURED = 5
"""By then an update has been captured as a CUDA graph."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: the median of so many blocks of so many updates, after some that do not count."""

    warm_up: int
    blocks: int
    updates: int


_EFFORT = {"cpu": Effort(warm_up=1, blocks=3, updates=2), "cuda": Effort(warm_up=6 * POOLED, blocks=7, updates=100)}
EFFORT_EACH = {"cpu": _EFFORT["cpu"], "cuda": Effort(warm_up=2 * POOLED, blocks=3, updates=50)}
"""Of each method, where all are compared: some take twenty times as long as others."""
_GRAPHS = {"cpu": {"FB15k-237": 512}, "cuda": {"FB15k-237": 8192, "NELL": 4096}}
"""What is measured where, and the batch."""


def bench_train(
    data: Path | None,
    device: torch.device | str = "cpu",
    *,
    settings: Sequence[str] = (),
    effort: Effort | None = None,
    say: Say = print,
) -> Bench:
    """Updates of the default preset over the training mix of shapes, sampling included."""
    where = torch.device(device)
    effort = effort or _EFFORT[where.type]
    graphs = _GRAPHS[where.type]
    if data is None:
        graphs = dict(list(graphs.items())[:1])
    result = Bench(
        "train",
        machine(where.type),
        f"{where.type}, {in_words(settings)}; training mix of shapes, "
        f"sampling included; medians of {effort.blocks} blocks of {effort.updates} updates",
        compares="an update / its own score products",
    )
    for name, batch in graphs.items():
        graph = bench_graph(data, name, say)
        config = configured(preset(), None, [f"batch={batch}", *settings])
        say(f"{graph.name}, {len(graph.entities):,} entities, batch {config.training.batch:,}")
        with _cold_caches():
            _measure(result, graph, config, where, effort)
    return result


def bench_train_methods(
    data: Path | None, device: torch.device | str = "cpu", *, effort: Effort | None = None, say: Say = print
) -> Bench:
    """Updates of every method that is trained, with its default preset, loss and training mix, sampling included."""
    where = torch.device(device)
    effort = effort or EFFORT_EACH[where.type]
    name, batch = next(iter(_GRAPHS[where.type].items()))
    graph = bench_graph(data, name, say)
    result = Bench(
        "train-methods",
        machine(where.type),
        f"{where.type}, {graph.name}, {len(graph.entities):,} entities, batch {batch:,}; default presets, each over "
        f"its training mix, sampling included; medians of {effort.blocks} blocks of {effort.updates} updates",
    )
    for method, entry in METHODS.items():
        if entry.trains_another:
            continue
        figures, _ = _updates(graph, configured(preset(method), None, [f"batch={batch}"]), where, effort)
        del figures["queries in a batch"]
        say(f"{method}: {figures['queries/s']:,.0f} queries/s")
        result.figures |= {f"{method} {name}": significant(value, 6) for name, value in figures.items()}
    return result


def _measure(result: Bench, graph: Graph, config: Config, device: torch.device, effort: Effort) -> None:
    figures, parts = _updates(graph, config, device, effort)
    product_seconds = Products.of(parts, config, len(graph.entities)).seconds(device, effort)
    result.ratios[graph.name] = round(figures["ms per update"] / 1000 / product_seconds, 2)
    figures["ms of score products"] = 1000 * product_seconds
    result.figures |= {f"{graph.name} {name}": significant(value, 6) for name, value in figures.items()}


def _updates(
    graph: Graph, config: Config, device: torch.device, effort: Effort
) -> tuple[dict[str, float], Sequence[Part]]:
    """What updates take, and what a batch is made of; the model is gone afterwards."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        gc.collect()  # what an earlier update has left would count as memory of this one
        torch.cuda.reset_peak_memory_stats(device)
    with (
        torch.random.fork_rng([device] if on_cuda else []),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        torch.manual_seed(config.training.seed)
        prepared = prepare(config, graph, device, folder=Path(folder))
        return timed_updates(prepared, device, effort), prepared.parts


def timed_updates(prepared: Prepared, device: torch.device, effort: Effort) -> dict[str, float]:
    """What updates take."""
    on_cuda = device.type == "cuda"

    def updates(count: int) -> None:
        for _ in range(count):
            prepared.update(prepared.config.training.rate)

    capture_seconds = seconds_of(lambda: updates(_CAPTURED), device) if on_cuda else 0.0
    updates(effort.warm_up)
    seconds = median_seconds(lambda: updates(effort.updates), device, effort.blocks) / effort.updates
    queries = sum(part.count for part in prepared.parts)
    figures = {"queries in a batch": queries, "queries/s": queries / seconds, "ms per update": 1000 * seconds}
    if on_cuda:
        figures["seconds until an update is captured"] = capture_seconds
        figures["peak GPU memory GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return figures


@dataclass(frozen=True)
class Products:
    """The sizes of the score products of an update: (rows, depth) particles against (entities, depth)."""

    rows: int
    entities: int
    depth: int

    @staticmethod
    def of(parts: Sequence[Part], config: Config, entities: int) -> Products:
        plan = compile_shapes(tuple(part.shape for part in parts), Q2P.kind)
        widths = (plan.nodes[root].kind for root in plan.roots)  # in units of K: a union of two has 2 K particles
        units = sum(part.count * width for part, width in zip(parts, widths, strict=True) if isinstance(width, int))
        depth = rounded_up(config.model.dimension + 1, DEPTH_TILE)
        return Products(units * config.model.particles, rounded_up(entities, ENTITY_TILE), depth)

    def seconds(self, device: torch.device, effort: Effort) -> float:
        """What the three take together."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        generator = torch.Generator(device).manual_seed(0)
        particles, table, slopes = (
            torch.randn(size, generator=generator, device=device, dtype=dtype)
            for size in ((self.rows, self.depth), (self.entities, self.depth), (self.rows, self.entities))
        )

        def multiply(times: int) -> None:
            for _ in range(times):
                particles @ table.T
                slopes @ table
                slopes.T @ particles

        multiply(min(effort.warm_up, 10))
        finish(device)
        return median_seconds(lambda: multiply(effort.updates), device, effort.blocks) / effort.updates


@contextmanager
def _cold_caches() -> Iterator[None]:
    """Compilers find nothing on the disk that an earlier run has left: compiling takes what it takes the first time.

    What they keep in memory goes with every new model that is compiled (engine/compiled.py).
    """
    before = {name: os.environ.pop(name, None) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ.update({name: str(Path(folder, name)) for name in before})
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
