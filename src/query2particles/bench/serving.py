"""`q2p bench serve` and `q2p bench soak`: a server under load, from a process of its own.

serve   good questions of all shapes, with micro-batching and without it, in the same run
soak    good, bad and huge requests, mixed: nothing may fail on the server's side, and its memory stays flat
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from query2particles.bench.load import Load, post, send_for
from query2particles.bench.models import in_words
from query2particles.bench.record import Bench, Say
from query2particles.calibration import Calibration, save_calibration
from query2particles.checkpoint import State
from query2particles.config import build, configured
from query2particles.errors import UsageError
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph, Split
from query2particles.graph.vocabulary import Vocabulary
from query2particles.presets import preset
from query2particles.provenance import machine
from query2particles.query.algebra import ground
from query2particles.query.names import Lexicon
from query2particles.query.text import format_path
from query2particles.run import Run
from query2particles.workload.selection import drawn_queries

__all__ = ["bench_serve", "bench_soak", "random_graph"]

_CONNECTIONS = 32
_WARM_UP = 3.0
_SECONDS = {"serve": 60.0, "soak": 600.0}
_ENTITIES, _RELATIONS, _FACTS = 14_505, 237, 272_115
"""The size of FB15k-237."""

_EACH = 200
"""Questions of each shape."""

_NAME = "FB15k-237"
_STARTING = 120


def bench_serve(
    data: Path | None,
    *,
    seconds: float | None = None,
    count: int | None = None,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Questions a second that a server answers, and how long each takes, with batching and without."""
    seconds = seconds or _SECONDS["serve"]
    with _subject(data, count or _EACH, settings, say) as (graph, run, questions):
        result = Bench(
            "serve",
            machine("cpu"),
            f"{graph.name}, {len(graph.entities):,} entities, {2 * len(graph.relations):,} directed relations, "
            f"untrained {in_words(settings)}; {_CONNECTIONS} connections from a second process, {seconds:g} s each "
            f"way, {len(questions):,} questions as text in turn, k = 10, each with a log line",
            compares="times as many answers a second with micro-batching as without",
        )
        loads = {}
        for name, choice in (("batching", "--batching"), ("no batching", "--no-batching")):
            with _server(run, [*options, choice]) as (url, _):
                say(f"{name}: {seconds:g} s")
                requests = itertools.cycle([post("/v1/answer", _body(question)) for question in questions])
                send_for(url, requests, connections=_CONNECTIONS, seconds=min(_WARM_UP, seconds))
                loads[name] = send_for(url, requests, connections=_CONNECTIONS, seconds=seconds)
            _note(result, name, loads[name])
    slow = loads["no batching"].per_second
    result.ratios["throughput"] = round(loads["batching"].per_second / slow, 2) if slow else 0.0
    return result


def bench_soak(
    data: Path | None,
    *,
    seconds: float | None = None,
    count: int | None = None,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    say: Say = print,
) -> Bench:
    """Good, bad and huge requests for a long time: what the server answers, and the memory that it takes."""
    seconds = seconds or _SECONDS["soak"]
    with _subject(data, count or _EACH, settings, say) as (graph, run, questions):
        result = Bench(
            "soak",
            machine("cpu"),
            f"{graph.name}, {len(graph.entities):,} entities, untrained {in_words(settings)}; {_CONNECTIONS} "
            f"connections from a second process, {seconds:g} s of good, bad and huge requests",
            compares="the memory at the end against that after the first tenth",
        )
        with _server(run, options) as (url, process), _memory(process) as memory:
            say(f"mixed: {seconds:g} s")
            load = send_for(url, _mixed(questions), connections=_CONNECTIONS, seconds=seconds)
    _note(result, "mixed", load)
    for status, number in sorted(load.statuses.items()):
        result.figures[f"answers {status}"] = number
    result.figures["server errors"] = load.failures
    early, late = memory[len(memory) // 10 : len(memory) // 5 + 1], memory[-max(1, len(memory) // 10) :]
    result.figures |= {
        "MiB after a tenth": round(float(np.median(early))),
        "MiB at the end": round(float(np.median(late))),
    }
    result.ratios["memory"] = round(float(np.median(late) / np.median(early)), 3)
    return result


def _note(result: Bench, name: str, load: Load) -> None:
    result.figures[f"{name} answers/s"] = round(load.per_second, 1)
    result.figures[f"{name} median ms"] = round(load.percentile(50), 1)
    result.figures[f"{name} 99th percentile ms"] = round(load.percentile(99), 1)
    result.figures[f"{name} errors"] = load.lost if name == "mixed" else load.errors


def _body(question: str) -> bytes:
    return json.dumps({"question": question, "k": 10}).encode()


def _mixed(questions: Sequence[str]) -> Iterator[bytes]:
    """Good requests, and between them all that a careless or hostile client may send."""
    good = itertools.cycle([post("/v1/answer", _body(question)) for question in questions])
    many = [{"question": question, "k": 3} for question in questions[:20]]
    others = [
        post("/v1/answer/batch", json.dumps({"queries": many}).encode()),
        post("/v1/parse", _body(questions[0]).replace(b', "k": 10', b"")),
        post("/v1/answer", _body("x" * 1_000_000)),
        post("/v1/answer", _body("(" * 10_000 + "a" + ")" * 10_000)),
        post("/v1/answer", _body("[" * 1_900)),
        post("/v1/answer", _body("!" * 1_900 + "a")),
        post("/v1/answer", _body("nobody is called so.^nothing\x00")),
        post("/v1/answer", b"[" * 100_000),
        post("/v1/answer", b'{"question": "\xff\xfe"}'),
        post("/v1/answer", b"{}"),
        post("/v1/answer", _body(questions[0]), {"Content-Type": "text/plain"}),
        post("/v1/answer", _body(questions[0]), {"Content-Encoding": "gzip"}),
        post("/v1/answer", _body(questions[0]), {"Host": "elsewhere.example"}),
        post("/v1/nothing", b"{}"),
        post("/v1/runs", b"{}"),
        b"NONSENSE\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/entities?prefix=a&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n",
    ]
    # Names that were never asked before: whatever remembers them must forget them again.
    strangers = (post("/v1/answer", _body(f"stranger{number}.^nothing")) for number in itertools.count())
    for bad in itertools.cycle([*map(itertools.repeat, others), strangers]):
        yield from itertools.islice(good, 5)
        yield next(bad)


@contextlib.contextmanager
def _subject(
    data: Path | None, count: int, settings: Sequence[str], say: Say
) -> Iterator[tuple[Graph, Path, list[str]]]:
    """A graph, the folder of an untrained but calibrated run on it, and questions as text, shapes mixed."""
    with tempfile.TemporaryDirectory(prefix="q2p-bench-") as folder:
        place, graph = _graph(data, Path(folder), say)
        config = configured(preset(), None, settings)
        generator = np.random.default_rng(config.training.seed)
        batch, _ = drawn_queries(graph, "test", most=count, seed=0)
        lexicon = Lexicon(graph)
        questions = [format_path(ground(shape, ids.tolist()), lexicon) for shape, rows in batch.items() for ids in rows]
        generator.shuffle(questions)
        run = Run.create(Path(folder) / "run", config, graph, str(place))
        with torch.random.fork_rng([]):
            torch.manual_seed(config.training.seed)
            model = build(config, graph).eval()
        run.save_best(model, State())
        # An untrained model cannot be calibrated, but probabilities take their time whatever they are worth.
        save_calibration(run, Calibration.by_scores(model, graph.at("train").relations))
        yield graph, run.folder, questions


def _graph(data: Path | None, folder: Path, say: Say) -> tuple[Path, Graph]:
    """FB15k-237, or a random graph of its size."""
    if data is None:
        say(f"no --data: a random graph of {_NAME}'s size stands in")
        place = folder / "graph"
        random_graph(_ENTITIES, _RELATIONS, _FACTS, seed=0).save(place)
        return place, open_graph(place)
    if not (data / _NAME).is_dir():
        raise UsageError(f"{data} has no folder {_NAME}: name the folder of benchmark graphs, or none")
    return data / _NAME, open_graph(data / _NAME)


def random_graph(entities: int, relations: int, facts: int, *, seed: int) -> Graph:
    """Facts between random entities, some of which are met more often than others; a tenth are held out."""
    generator = np.random.default_rng(seed)
    heads, tails = (np.minimum(generator.random(facts) ** 2 * entities, entities - 1).astype(np.int64) for _ in "ht")
    between = np.minimum(generator.random(facts) ** 2 * relations, relations - 1).astype(np.int64)
    order = generator.permutation(facts)
    bounds: dict[Split, slice] = {
        "train": slice(0, facts * 18 // 20),
        "valid": slice(facts * 18 // 20, facts * 19 // 20),
        "test": slice(facts * 19 // 20, facts),
    }
    parts = {split: (heads[order[part]], between[order[part]], tails[order[part]]) for split, part in bounds.items()}
    names = Vocabulary.of([f"/m/{number:06x}" for number in range(entities)])
    kinds = Vocabulary.of([f"/topic/{number // 9}/relation_{number}" for number in range(relations)])
    return Graph.of(names, kinds, parts, {"name": "random graph"})


@contextlib.contextmanager
def _server(run: Path, options: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "query2particles", "serve", str(run), "--port", "0", *options]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if len(words) < 3:
                process.wait(_STARTING)
                log.seek(0)
                raise UsageError(f"the server did not start: {log.read().strip()[-500:]}")
            yield words[2], process
        finally:
            process.terminate()
            process.wait(_STARTING)


@contextlib.contextmanager
def _memory(process: subprocess.Popen[str]) -> Iterator[list[float]]:
    """The resident memory of a process in MiB, as it goes on."""
    found: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError, ValueError):
                status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
                found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
            ended.wait(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
