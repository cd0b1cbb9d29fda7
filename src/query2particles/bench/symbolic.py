"""What needs no model: exact answers, drawing queries, import."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from query2particles.bench.record import Bench, Say
from query2particles.bench.synthetic import FREEBASE, write_power_law_graph
from query2particles.engine.exact import Batch, exact_answers
from query2particles.engine.sets import Sets
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import Graph
from query2particles.plain import PlainGraph, plain_answers, plain_one_hop, plain_sample
from query2particles.provenance import machine
from query2particles.query.algebra import SHAPES, Query, ground, nickname
from query2particles.workload.sample import sample_shape

__all__ = ["bench_exact", "bench_import", "bench_import_large", "bench_sample"]

_LARGE = 100_000_000


def bench_exact(graph: Graph, batch: Batch, say: Say = print) -> Bench:
    """Exact answers of a batch: the engine against plain Python sets, shape by shape."""
    cores = os.cpu_count() or 1
    edges = graph.at("test")
    queries = {shape: [ground(shape, row) for row in ids.tolist()] for shape, ids in batch.items()}
    count = sum(map(len, queries.values()))
    result = Bench("exact", machine(), f"{graph.name}, all facts, {count:,} queries of {len(batch)} shapes")
    say(f"building the dictionaries of the plain evaluator for {edges.facts:,} facts")
    plain = PlainGraph.of(edges)
    edges.prepare(count)
    slow = fast = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        slow_files, fast_file = [Path(scratch, f"plain-{part}") for part in range(cores)], Path(scratch, "engine")
        for shape, ids in batch.items():
            name = nickname(shape)
            say(f"{name}: {len(ids):,} queries")
            shares = [(queries[shape][part::cores], plain, file) for part, file in enumerate(slow_files)]
            plain_seconds = _best(_forked, _write_plain, shares)
            engine_seconds = _best(_write_engine, edges, shape, ids, fast_file)
            _check_same(name, exact_answers(edges, {shape: ids})[shape], slow_files, fast_file)
            result.compare(name, len(ids), engine_seconds, plain_seconds)
            slow += plain_seconds
            fast += engine_seconds
    result.compare("all", count, fast, slow)
    return result


def bench_sample(graph: Graph, *, count: int, cap: int, shapes: Sequence[Query], say: Say = print) -> Bench:
    """Test queries with labels: the sampler against a plain one, which draws a tenth as many of each shape."""
    cores = os.cpu_count() or 1
    fewer = max(cores * 5, count // 10)
    result = Bench(
        "sample", machine(), f"{graph.name}, test split, {count:,} queries a shape (plain: {fewer:,}), cap {cap}"
    )
    say("building the dictionaries of the plain sampler")
    large, small = PlainGraph.of(graph.at("test")), PlainGraph.of(graph.at("valid"))
    sample_shape(graph, SHAPES["2p"], min(count, 1000), split="test", cap=cap, seed=1)
    slow = fast = 0.0
    for shape in shapes:
        name = nickname(shape)
        say(f"{name}: {count:,} queries")
        every = shape == SHAPES["1p"]  # these are not drawn but listed, all of them
        started = time.perf_counter()
        drawn = sample_shape(graph, shape, None if every else count, split="test", cap=cap, allow_fewer=True)
        engine_seconds = (time.perf_counter() - started) * count / len(drawn.ids)
        started = time.perf_counter()
        if every:
            _forked(plain_one_hop, [(large, small, cap, part, cores) for part in range(cores)])
        else:
            _forked(_draw_plain, [(shape, fewer // cores, large, small, cap, seed) for seed in range(cores)])
        plain_count = len(drawn.ids) if every else fewer // cores * cores
        plain_seconds = (time.perf_counter() - started) * count / plain_count
        result.compare(name, count, engine_seconds, plain_seconds)
        slow += plain_seconds
        fast += engine_seconds
    result.compare("all", count * len(shapes), fast, slow)
    return result


def bench_import(triples: int, say: Say = print) -> Bench:
    """Import of synthetic triples in memory: a million entities and a thousand relations for ten million triples."""
    result = Bench("import", machine(), f"{triples:,} synthetic triples, TSV to graph folder")
    return _measure_import(result, max(10, triples // 10), 1000, triples, memory=1 << 40, say=say)


def bench_import_large(triples: int | None, memory: int, say: Say = print) -> Bench:
    """Import of more synthetic triples than fit into memory, with as many facts an entity as Freebase has.

    Another number than the usual one has a name of its own: one result does not replace the other.
    """
    name = "import-large" if triples in (None, _LARGE) else f"import-large-{triples / 1e6:g}-million"
    triples = triples or _LARGE
    entities, relations, facts = (max(10, size * triples // FREEBASE[2]) for size in FREEBASE)
    about = f"{facts:,} synthetic triples of {entities:,} entities, TSV to graph folder, memory {memory / 2**30:g} GiB"
    return _measure_import(Bench(name, machine(), about), entities, relations, facts, memory=memory, say=say)


def _measure_import(result: Bench, entities: int, relations: int, triples: int, *, memory: int, say: Say) -> Bench:
    """Import in a process of its own, so that its peak memory is its own too."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "triples.tsv"), Path(scratch, "graph")
        say(f"writing {triples:,} triples")
        write_power_law_graph(source, entities, relations, triples)
        say("importing")
        script = (
            "import sys; from pathlib import Path; from query2particles.graph.large import import_into; "
            "import_into([Path(sys.argv[1])], Path(sys.argv[2]), memory=int(sys.argv[3])); "
            "status = Path('/proc/self/status'); print(status.read_text() if status.exists() else '')"
        )
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        words = [sys.executable, "-c", script, str(source), str(target), str(memory)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        result.figures["import seconds"] = round(time.perf_counter() - started, 2)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = usage.ru_utime - before.ru_utime + usage.ru_stime - before.ru_stime
        result.figures["processor seconds"] = round(busy, 2)  # on a busy machine, less
        result.figures["peak memory GiB"] = round(_peak_memory(done.stdout, usage) / 2**30, 2)
        result.figures["source GiB"] = round(source.stat().st_size / 2**30, 2)
        result.figures["graph GiB"] = round(sum(path.stat().st_size for path in target.iterdir()) / 2**30, 2)
        result.figures["triples/s"] = round(triples / result.figures["import seconds"])
        opened, found = [], []
        for attempt in range(5):
            started = time.perf_counter()
            graph = Graph.open(target)
            opened.append(1000 * (time.perf_counter() - started))
            name = graph.entities.name(attempt * len(graph.entities) // 5)
            started = time.perf_counter()
            graph.entities.find(name)
            found.append(1000 * (time.perf_counter() - started))
        result.figures["open milliseconds"] = round(statistics.median(opened), 2)
        result.figures["first open milliseconds"] = round(opened[0], 2)
        result.figures["find a name milliseconds"] = round(statistics.median(found), 2)
    return result


def _peak_memory(status: str, usage: resource.struct_rusage) -> int:
    """In bytes, of a process that ended: as Linux told it, or of the largest that this one has started.

    The latter counts what this process itself held when it started the other.
    """
    if found := re.search(r"VmHWM:\s+(\d+) kB", status):
        return int(found[1]) << 10
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forked(work: Callable[..., object], arguments: list[tuple[Any, ...]]) -> None:
    """Run `work` once for each tuple of arguments, side by side; the dictionaries are shared by forking."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the plain evaluator failed")


def _best(work: Callable[..., object], *arguments: object) -> float:
    """The seconds of the fastest of three runs: what the work takes when the machine does nothing else."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work(*arguments)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _write_engine(edges: Edges, shape: Query, ids: Ints, file: Path) -> None:
    exact_answers(edges, {shape: ids})[shape].listed().values.tofile(file)


def _check_same(name: str, answers: Sets, slow_files: list[Path], fast_file: Path) -> None:
    """Both must have written the same answers; the plain evaluator dealt the queries out to its processes."""
    fast = np.fromfile(fast_file, dtype=np.int32)
    slow = [np.fromfile(file, dtype=np.int32) for file in slow_files]
    dealt = [answers.take(np.arange(part, len(answers), len(slow))).listed().values for part in range(len(slow))]
    if not np.array_equal(fast, answers.listed().values) or not all(map(np.array_equal, dealt, slow)):
        raise RuntimeError(f"the engine and the plain evaluator disagree on {name}")


def _write_plain(queries: list[Query], graph: PlainGraph, file: Path) -> None:
    with file.open("wb") as target:
        for query in queries:
            target.write(array("i", sorted(plain_answers(query, graph))).tobytes())


def _draw_plain(shape: Query, count: int, large: PlainGraph, small: PlainGraph, cap: int, seed: int) -> None:
    plain_sample(shape, count, large, small, cap=cap, seed=seed)
