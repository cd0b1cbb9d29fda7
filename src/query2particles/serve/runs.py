"""The runs that are served: each by name, in its newest version, with all that its endpoints need."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from query2particles.answer import Question, Reasoner
from query2particles.cluster import Cluster
from query2particles.demo import QUESTIONS
from query2particles.errors import Query2ParticlesError, QueryError, SamplingError, UsageError
from query2particles.graph.folders import ATLAS
from query2particles.graph.graph import Split
from query2particles.query.algebra import Query, depth, ground, shape_named, size
from query2particles.query.syntax import Syntax, format_query
from query2particles.searched import Searching
from query2particles.serve.batching import Batcher
from query2particles.serve.completion import Completion
from query2particles.serve.limits import Limits
from query2particles.serve.metrics import Metrics
from query2particles.serve.problems import RequestError, encoded, problem_of
from query2particles.workload.sample import sample_shape
from query2particles.workload.selection import CAP

__all__ = ["Runs", "ServedRun", "Version", "named_sources"]

_LOG = logging.getLogger(__name__)

_FILES = (
    "config.json",
    "best.safetensors",
    "joined.json",
    "calibration.json",
    "index/index.json",
    "vectors/index/index.json",
)
"""What makes a version of a run."""

_SECONDS_BETWEEN_LOOKS = 1.0
_MANY = 1_000_000
"""Questions to come, for which the edges prepare themselves."""

_EXAMPLES = ("2p", "2i", "ip", "2in")
_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True)
class Version:
    """One version of a run, ready to answer."""

    reasoner: Reasoner
    limits: Limits
    version: str
    entities: Completion
    relations: Completion
    examples: tuple[tuple[str, Syntax, str], ...]

    @staticmethod
    def open(
        source: str, limits: Limits, *, graph: str | None, device: str, split: Split, searching: Searching | None = None
    ) -> Version:
        reasoner = Reasoner.open(source, graph=graph, device=device, split=split, searching=searching)
        own = reasoner.graph
        version = own.fingerprint if reasoner.run is None else _digest(reasoner.run.folder)
        own.at(split).prepare(_MANY)
        reasoner.prepare()
        return Version(
            reasoner,
            limits,
            version[:12],
            Completion.of(own.entities),
            Completion.of(own.relations),
            QUESTIONS if own.name == ATLAS else tuple(_drawn_examples(reasoner)),
        )

    def parse(self, text: str, syntax: Syntax | None) -> Query:
        """The query of a text, if it is within the limits."""
        query = self.reasoner.parse(text, syntax)
        for what, found, most in (("deep", depth(query), self.limits.depth), ("large", size(query), self.limits.size)):
            if found > most:
                raise RequestError(400, "syntax", f"the question is too {what}: {found:,}, where {most:,} is the most")
        return query

    def answered(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        """The JSON of each question's answers, or what is wrong with it."""
        found = [_outcome(partial(self._pass, question)) for question in questions]
        passed = [number for number, one in enumerate(found) if one == b""]
        for number, one in zip(
            passed, self.reasoner.answer_many([questions[number] for number in passed]), strict=True
        ):
            found[number] = problem_of(one) if isinstance(one, Query2ParticlesError) else encoded(one.as_json())
        return found

    def _pass(self, question: Question) -> bytes:
        self.parse(question.text, question.syntax)  # which the reasoner remembers
        return b""

    def check(self) -> None:
        """Refuse to be asked where processes that share a table are lost: some questions have no answer then."""
        for reasoner in (self.reasoner, self.reasoner.fast):
            if reasoner is not None and isinstance(reasoner.search, Cluster):
                reasoner.search.check()

    @cached_property
    def facts_by_relation(self) -> list[int]:
        """Of each stored relation."""
        edges = self.reasoner.graph.at(self.reasoner.split)
        return list(map(int, edges.edges_by_relation[::2]))

    def summary(self) -> dict[str, Any]:
        run = self.reasoner.run
        return {
            "graph": self.reasoner.graph.name,
            "method": None if run is None else run.config.method,
            "particles": None if run is None else getattr(run.config.model, "particles", None),
            "calibrated": self.reasoner.calibration is not None,
            "version": self.version,
        }


class ServedRun:
    """A run by its name. `current` is replaced as a whole when the folder has a new version."""

    def __init__(
        self,
        name: str,
        source: str,
        opened: Callable[[str], Version],
        *,
        limits: Limits,
        metrics: Metrics,
        worker: ThreadPoolExecutor,
    ) -> None:
        self.name, self._source, self._opened = name, source, opened
        self._metrics = metrics
        self._seen = self._latest = self._signature()
        self.current = opened(source)
        metrics.run(name, self.current.version)
        self.batcher: Batcher[Question, bytes] = Batcher(
            self._answered,
            worker,
            together=limits.together,
            wait=limits.wait,
            queue=limits.queue,
            observe=metrics.batch,
        )

    def _answered(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        """All of a batch by the same version."""
        return self.current.answered(questions)

    def look(self) -> bool:
        """Whether the folder has a new version that has come to rest: nothing changed since the last look."""
        before, self._latest = self._latest, self._signature()
        return self._latest == before != self._seen

    def reload(self) -> None:
        """Open the new version and put it in place; where that fails, the old one stays."""
        seen = self._latest
        try:
            new = self._opened(self._source)
        except (Query2ParticlesError, OSError, RuntimeError) as error:
            self._seen = seen
            self._metrics.reload(self.name, "failed")
            fields = {"run": self.name, "version": self.current.version, "reason": str(error)}
            _LOG.error("a new version of a run could not be loaded; the old one stays", extra={"fields": fields})
            return
        before, self.current, self._seen = self.current.version, new, seen
        if new.version != before:
            self._metrics.run(self.name, new.version, before)
        self._metrics.reload(self.name, "loaded")
        fields = {"run": self.name, "version": new.version, "before": before}
        _LOG.info("a new version of a run was loaded", extra={"fields": fields})

    def _signature(self) -> tuple[object, ...]:
        """What changes with the files that make a version."""
        found: list[object] = []
        for name in _FILES:
            try:
                state = (Path(self._source) / name).stat()
                found.append((name, state.st_ino, state.st_mtime_ns, state.st_size))
            except OSError:
                found.append(name)
        return tuple(found)


class Runs:
    """All runs of a server; the first is the default."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        limits: Limits,
        metrics: Metrics,
        graph: str | None = None,
        device: str = "cpu",
        split: Split = "test",
        searching: Searching | None = None,
    ) -> None:
        # One thread answers all questions, batch after batch: it has the machine, and batches grow while it works.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="answering")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")

        def opened(source: str) -> Version:
            return Version.open(source, limits, graph=graph, device=device, split=split, searching=searching)

        self.served = {
            name: ServedRun(name, source, opened, limits=limits, metrics=metrics, worker=self._worker)
            for name, source in sources.items()
        }
        _settle()
        self.default = next(iter(self.served))
        self._others: Batcher[Callable[[], bytes], bytes] = Batcher(
            lambda calls: list(map(_outcome, calls)), self._aside, together=1, wait=0, queue=limits.queue
        )
        self._watching: asyncio.Task[None] | None = None
        metrics.watch_queue(lambda: sum(len(run.batcher) for run in self.served.values()) + len(self._others))

    def named(self, name: str | None) -> ServedRun:
        try:
            return self.served[name or self.default]
        except KeyError:
            raise RequestError(404, "not_found", "there is no run of that name; GET /v1/runs lists them") from None

    async def apart(self, call: Callable[[], bytes]) -> bytes:
        """What is no question for answers, one after the other in a thread of its own."""
        (found,) = await self._others.submit([call])
        if isinstance(found, Exception):
            raise found
        return found

    def start(self) -> None:
        for run in self.served.values():
            run.batcher.start()
        self._others.start()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Answer what still waits, and end."""
        if self._watching is not None:
            self._watching.cancel()
        for run in self.served.values():
            await run.batcher.stop()
        await self._others.stop()
        self._worker.shutdown(wait=False)
        self._aside.shutdown(wait=False)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            for run in self.served.values():
                if run.look():
                    await asyncio.to_thread(run.reload)
                    await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)  # the last batch of the old version may be running
                    await asyncio.to_thread(_settle)


def _settle() -> None:
    """Let go of what is no longer served; what is, is not searched for garbage again, which would hold up answers."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _outcome(call: Callable[[], bytes]) -> bytes | Exception:
    try:
        return call()
    except RequestError as refused:
        return refused
    except Query2ParticlesError as error:
        return problem_of(error)


def named_sources(sources: Sequence[str], names: Sequence[str] = ()) -> dict[str, str]:
    """Runs by name: those given, or else what their folders are called."""
    if names and len(names) != len(sources):
        raise UsageError(f"{len(names)} names for {len(sources)} runs: give a --name for each, or none")
    found: dict[str, str] = {}
    for number, source in enumerate(sources):
        name = names[number] if names else (Path(source).resolve() if Path(source).exists() else Path(source)).name
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a run: use letters, digits, dots and hyphens (--name)")
        if name in found:
            raise UsageError(f"two runs are called {name}: tell them apart with a --name for each")
        found[name] = source
    return found


def _digest(folder: Path) -> str:
    """Of the content of the files that make a version."""
    digest = hashlib.sha256()
    for name in _FILES:
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _drawn_examples(reasoner: Reasoner) -> list[tuple[str, Syntax, str]]:
    """A question of a few shapes, as drawn from the graph."""
    examples: list[tuple[str, Syntax, str]] = []
    for name in _EXAMPLES:
        try:
            found = sample_shape(reasoner.graph, shape_named(name), 1, split="train", cap=CAP, allow_fewer=True)
        except (SamplingError, QueryError):
            continue
        if len(found.ids):
            text = format_query(ground(found.shape, found.ids[0].tolist()), reasoner.lexicon)
            examples.append((f"A question of the shape {name}", "path", text))
    return examples
