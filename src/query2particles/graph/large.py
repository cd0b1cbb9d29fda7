"""Import of sources of any size into a graph folder.

What fits into memory goes through `import_graph`. What does not is imported in steps, which keep what they made in a
hidden folder beside the graph's:

    facts-N       a stretch of the sources, as large as memory allows: its names, sorted, and its facts as their places
    read          how many rows there are, and what the sources say besides facts
    entities      ids for all names, in order of first appearance (`numbering`); relations likewise
    edges-N       the facts of facts-N as sorted edges (`edge_runs`)
    train …       the edges of one level; where splits are drawn, first `all`, then the draw
    graph         the graph folder itself, which is then put in its place

A step is written beside its place and renamed, so that an import that was killed goes on after the last finished step
when it is started again with the same sources and options. The folder is the same, bit for bit, as that of
`import_graph`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.errors import Query2ParticlesError, SourceError, UsageError, clipped
from query2particles.files import check_replaceable, new_folder, write_json
from query2particles.graph.edge_runs import EdgeRun, merge_edges, stored_facts
from query2particles.graph.edges import Edges
from query2particles.graph.facts import Dictionary, Facts, fail_at, first_complaint, split_numbers
from query2particles.graph.graph import SPLITS, Graph, Split, is_graph_file, smaller
from query2particles.graph.load import (
    ImportOptions,
    describe,
    import_graph,
    literal_labels,
    no_facts,
    source_files,
    source_labels,
    source_readers,
)
from query2particles.graph.numbering import NameRun, Numbered, as_arrays, number_names, write_labels
from query2particles.graph.rdf import RdfReader
from query2particles.graph.readers import Meter, Reader, format_of, is_compressed
from query2particles.graph.tables import LONGEST_NAME
from query2particles.graph.vocabulary import Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MEMORY", "Watch", "import_into"]

Watch: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Shows how far a piece of work is: called with its name, then again and again with what is done and what is in all."""

MEMORY = 4 << 30
"""How much memory an import may take, in bytes, about."""

_LEAST_MEMORY = 64 << 20
_SWELLING = 8
"""How much longer text is than the compressed file that it comes from, and …"""
_WHOLE = 6
"""how many times the size of a text `import_graph` takes in memory, both about, and rather too much than too little."""
_ROW_BYTES = 80
"""What a fact takes in memory while the names of its stretch are sorted, and while its edges are …"""
_FACT_BYTES = 12
"""What a fact takes on the disk as three ids."""
_LETTER_BYTES = 4
"""and each letter of the names in its dictionaries."""


def import_into(
    sources: Sequence[Path],
    folder: Path,
    *,
    options: ImportOptions | None = None,
    memory: int = MEMORY,
    watch: Watch | None = None,
) -> Graph:
    """Import all sources (see `import_graph`) into a graph folder, in about so many bytes of memory; and open it."""
    if memory < _LEAST_MEMORY:
        raise UsageError(f"an import needs some memory: at least {_LEAST_MEMORY >> 20} MiB")
    options, watch = options or ImportOptions(), watch or _unwatched
    check_replaceable(folder, is_graph_file)
    files = source_files(sources, options)
    every = [path for paths in files.values() for path in paths]
    if sum(map(_text_size, every)) * _WHOLE <= memory:
        with watch("reading") as progress:
            graph = import_graph(sources, options=options, progress=progress)
        graph.save(folder)
        return graph
    ties = [*every, *([options.labels] if options.labels is not None else [])]
    with _Workplace.open(folder, _tied(ties, options)) as workplace:
        _LargeImport(sources, files, options, memory, watch, workplace).make(folder)
    return Graph.open(folder)


@contextlib.contextmanager
def _unwatched(_: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


def _text_size(path: Path) -> int:
    """How many bytes a source has as text, about."""
    packed = is_compressed(path) or format_of(path) == "parquet"
    return path.stat().st_size * (_SWELLING if packed else 1)


def _tied(paths: Sequence[Path], options: ImportOptions) -> dict[str, Any]:
    """What must be the same for an import to go on where another ended."""
    stats = [(str(path.resolve()), path.stat()) for path in paths]
    return {
        "format": 1,
        "sources": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        "options": json.loads(json.dumps(dataclasses.asdict(options), default=str)),
    }


@dataclass(frozen=True)
class _Workplace:
    """The hidden folder of an import: one folder a finished step."""

    folder: Path

    @staticmethod
    @contextlib.contextmanager
    def open(target: Path, tied: Mapping[str, Any]) -> Iterator[_Workplace]:
        """The workplace of imports into `target`, emptied where it belongs to others; gone after success."""
        target = target.resolve()
        folder = target.with_name(f".{target.name}.import")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another import into {target} is under way; wait for it, or stop it") from error
            try:
                same = json.loads((folder / "import.json").read_text("utf-8")) == tied
            except (OSError, ValueError):
                same = False
            if not same:
                for path in folder.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)
                write_json(folder / "import.json", tied)
            try:
                yield _Workplace(folder)
            except Query2ParticlesError:  # the sources are wrong: once they are mended, what was made of them is too
                _abandon(folder)
                raise
            _abandon(folder)

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of a step, which `make` fills where it is not finished yet."""
        if not self.has(name):
            with new_folder(self.folder / name, replaces=lambda _: True) as beside:
                make(beside)
        return self.folder / name

    def has(self, name: str) -> bool:
        return (self.folder / name).is_dir()


def _abandon(folder: Path) -> None:
    """Remove it. Whoever is killed on the way leaves steps that belong to no import, which the next one removes."""
    (folder / "import.json").unlink()
    shutil.rmtree(folder)


@dataclass(frozen=True)
class _LargeImport:
    """One import in steps."""

    sources: Sequence[Path]
    files: Mapping[Split, Sequence[Path]]
    options: ImportOptions
    memory: int
    watch: Watch
    workplace: _Workplace

    def make(self, target: Path) -> None:
        graph = self.workplace.folder / "graph"
        if not graph.is_dir():
            self._make_graph()
        with new_folder(target, replaces=is_graph_file) as beside:
            for path in graph.iterdir():
                _place(path, beside / path.name)

    def _make_graph(self) -> None:
        read = self._read()
        entities, relations = (self._number(read, kind, columns) for kind, columns in _COLUMNS.items())
        seen = self._check_seen(read, entities, relations)
        runs, rows = self._sort_edges(read, entities, relations, seen)
        counts: dict[str, Any] = {"unseen_dropped": sum(read.rows.values()) - sum(rows.values())}
        if self.options.fractions is not None:
            runs, kept = self._draw(runs["train"], seen)
            counts = {
                "split": {
                    "fractions": list(self.options.fractions),
                    "seed": self.options.seed,
                    "kept_in_train": kept,
                }
            }
        levels: dict[Split, Path] = {}
        together: list[EdgeRun] = []
        for split in SPLITS:
            if own := [run for run in runs[split] if len(run)]:
                together += own
                levels[split] = self._merge(split, together, seen[0])
        labels = source_labels(self.options.labels, read.rdf)

        def write(folder: Path) -> None:
            unknown = set(labels)
            for numbered, count in ((entities, seen[0]), (relations, seen[1])):
                numbered.write_vocabulary(folder, count)
                own = {**literal_labels(read.rdf), **labels} if numbered is entities else labels
                unknown -= write_labels(folder, numbered.kind, own, memory=self.memory)
            opened: dict[Split, Edges] = {}
            for split in SPLITS:
                if split in levels:
                    for path in levels[split].iterdir():
                        _place(path, folder / path.name)
                    opened[split] = Edges.open(folder, split, entity_count=seen[0], relation_count=seen[1])
                else:
                    opened[split] = opened[smaller(split)]
            counts["duplicates"] = sum(rows.values()) - opened["test"].facts
            about = describe(self.sources, self.files, self.options, counts, read.rdf, len(unknown))
            vocabularies = Vocabulary.open(folder, "entities"), Vocabulary.open(folder, "relations")
            Graph(*vocabularies, opened, about).write_manifest(folder)

        with self.watch("writing the graph") as progress:
            progress(0, 1)
            self.workplace.once("graph", write)

    def _read(self) -> _Read:
        """All sources as stretches of facts."""
        meter = Meter(sum(path.stat().st_size for paths in self.files.values() for path in paths))
        by_split = source_readers(self.files, self.options, meter)
        readers = [(split, reader) for split in SPLITS for reader in by_split[split]]
        if not self.workplace.has("read"):
            with self.watch("reading") as progress:
                meter.progress = progress
                self._read_all(readers)
        told = json.loads((self.workplace.folder / "read" / "read.json").read_text("utf-8"))
        rdf = [reader for _, reader in readers if isinstance(reader, RdfReader)]
        for reader, said in zip(rdf, told["rdf"], strict=True):
            for name, value in said.items():
                setattr(reader, name, value)
        origins = [(start, reader) for start, (_, reader) in zip(told["origins"], readers, strict=True)]
        read = _Read(told["rows"], [_Stretch(**stretch) for stretch in told["stretches"]], origins, rdf)
        complaints = [stretch.complaint for stretch in read.stretches if stretch.complaint is not None]
        if complaints:
            fail_at(origins, complaints[0][0], complaints[0][2])
        if not read.rows["train"]:
            raise no_facts(self.files)
        return read

    def _read_all(self, readers: Sequence[tuple[Split, Reader]]) -> None:
        """Every batch into a stretch; those of stretches that are there already are passed over."""
        rows = dict.fromkeys(SPLITS, 0)
        origins: list[int] = []
        stretches = self._stretches_there()
        finished = sum(stretch.rows for stretch in stretches)
        stretch = _OpenStretch(finished)
        for number, (split, reader) in enumerate(readers):
            origins.append(sum(rows.values()))
            for batch in reader.batches():
                before = sum(rows.values())
                rows[split] += len(batch[0])
                if before >= finished:
                    stretch.add(batch)
                elif before + len(batch[0]) > finished:
                    raise SourceError(reader.path, None, "changed while it was read; start again with another --out")
                if stretch.size >= self.memory:
                    stretches.append(self._write(stretch, split, len(stretches)))
                    stretch = _OpenStretch(sum(rows.values()))
            if stretch.rows and (number + 1 == len(readers) or readers[number + 1][0] != split):
                stretches.append(self._write(stretch, split, len(stretches)))
                stretch = _OpenStretch(sum(rows.values()))
        said = ("labels", "prefixes", "literals_dropped", "literal_labels")
        rdf = [{name: getattr(reader, name) for name in said} for _, reader in readers if isinstance(reader, RdfReader)]
        told = {
            "rows": rows,
            "stretches": [dataclasses.asdict(one) for one in stretches],
            "origins": origins,
            "rdf": rdf,
        }
        self.workplace.once("read", lambda folder: write_json(folder / "read.json", told))

    def _stretches_there(self) -> list[_Stretch]:
        found: list[_Stretch] = []
        while self.workplace.has(f"facts-{len(found)}"):
            text = (self.workplace.folder / f"facts-{len(found)}" / "stretch.json").read_text("utf-8")
            found.append(_Stretch(**json.loads(text)))
        return found

    def _write(self, stretch: _OpenStretch, split: Split, number: int) -> _Stretch:
        told: list[_Stretch] = []
        self.workplace.once(f"facts-{number}", lambda folder: told.append(stretch.write(folder, split)))
        return told[0]

    def _number(self, read: _Read, kind: str, columns: Sequence[str]) -> Numbered:
        """Ids for all names of a kind."""
        runs = [NameRun(self.workplace.folder / f"facts-{at}", kind) for at in range(len(read.stretches))]
        before = len(columns) * read.rows["train"]
        with self.watch(f"numbering {kind}") as progress:
            folder = self.workplace.once(
                kind,
                lambda folder: number_names(runs, folder, kind, before=before, memory=self.memory, progress=progress),
            )
        return Numbered.open(folder, kind)

    def _check_seen(self, read: _Read, entities: Numbered, relations: Numbered) -> tuple[int, int]:
        """How many entities and relations the graph has: those of training facts, unless splits are drawn."""
        if self.options.fractions is None and self.options.unseen == "error":
            unseen = [
                (first[0] // len(_COLUMNS[numbered.kind]), kind, first[1])
                for numbered, kind in ((entities, "entity"), (relations, "relation"))
                if (first := numbered.first_unseen) is not None
            ]
            if unseen:
                row, kind, name = min(unseen)
                fail_at(read.origins, row, f"the {kind} {clipped(name)!r} is in no training fact")
        return entities.seen, relations.seen

    def _sort_edges(
        self, read: _Read, entities: Numbered, relations: Numbered, seen: tuple[int, int]
    ) -> tuple[dict[Split, list[EdgeRun]], dict[Split, int]]:
        """Each stretch as sorted edges, without facts about what was not seen; and how many facts are left."""
        runs: dict[Split, list[EdgeRun]] = {split: [] for split in SPLITS}
        rows = dict.fromkeys(SPLITS, 0)

        def write(folder: Path, at: int) -> None:
            source = self.workplace.folder / f"facts-{at}"
            ids = {"entities": entities.ids(at), "relations": relations.ids(at)}
            facts = {
                column: ids[kind][np.load(source / f"{column}.npy")]
                for kind, columns in _COLUMNS.items()
                for column in columns
            }
            keep = (facts["heads"] < seen[0]) & (facts["tails"] < seen[0]) & (facts["relations"] < seen[1])
            heads, between, tails = (facts[column][keep] for column in ("heads", "relations", "tails"))
            write_json(folder / "kept.json", int(keep.sum()))
            del facts, ids
            EdgeRun(folder).write(heads, between, tails, entity_count=seen[0], relation_count=seen[1])

        done = 0
        with self.watch("sorting facts") as progress:
            for at, stretch in enumerate(read.stretches):
                folder = self.workplace.once(f"edges-{at}", partial(write, at=at))
                runs[stretch.split].append(EdgeRun(folder))
                rows[stretch.split] += json.loads((folder / "kept.json").read_text("utf-8"))
                done += stretch.rows
                progress(_FACT_BYTES * done, _FACT_BYTES * sum(read.rows.values()))
        return runs, rows

    def _draw(self, runs: Sequence[EdgeRun], seen: tuple[int, int]) -> tuple[dict[Split, list[EdgeRun]], int]:
        """The facts of all runs, each once, as runs of the splits that are drawn; and how many it had to leave."""
        fractions = self.options.fractions
        assert fractions is not None
        every = self._merge("all", runs, seen[0])
        count = sum(len(heads) for heads, _, _ in self._stored(every, seen[1]))
        drawn: dict[Split, list[EdgeRun]] = {split: [] for split in SPLITS}

        def draw(folder: Path) -> None:
            numbers, kept = split_numbers(
                self._stored(every, seen[1]), count, *seen, fractions=fractions, seed=self.options.seed
            )
            np.save(folder / "numbers.npy", numbers)
            write_json(folder / "kept.json", kept)

        with self.watch("drawing splits") as progress:
            folder = self.workplace.once("draw", draw)
            numbers = np.load(folder / "numbers.npy", mmap_mode="r")
            done = 0
            for at, (heads, relations, tails) in enumerate(self._stored(every, seen[1])):
                own = numbers[done : done + len(heads)]
                done += len(heads)
                for number, split in enumerate(SPLITS):
                    chosen = own == number

                    def write(folder: Path, facts: Facts = (heads[chosen], relations[chosen], tails[chosen])) -> None:
                        EdgeRun(folder).write(*facts, entity_count=seen[0], relation_count=seen[1])

                    drawn[split].append(EdgeRun(self.workplace.once(f"{split}-drawn-{at}", write)))
                progress(_FACT_BYTES * done, _FACT_BYTES * count)
        return drawn, int(json.loads((folder / "kept.json").read_text("utf-8")))

    def _stored(self, level: Path, relation_count: int) -> Iterator[Facts]:
        return stored_facts(level, "all", relation_count, memory=self.memory)

    def _merge(self, level: str, runs: Sequence[EdgeRun], entity_count: int) -> Path:
        with self.watch(f"merging facts ({level})") as progress:
            return self.workplace.once(
                level,
                lambda folder: merge_edges(
                    runs, folder, level, entity_count=entity_count, memory=self.memory, progress=progress
                ),
            )


_LIKE_A_SPACE = [0, *{chr(code).encode(errors="replace")[0] for code in range(0x3001) if chr(code).isspace()}]
"""The bytes that white space begins with; 0 stands for an empty name."""

_COLUMNS = {"entities": ("heads", "tails"), "relations": ("relations",)}
"""The columns of facts in which the names of each kind stand."""


@dataclass(frozen=True)
class _Stretch:
    """Rows of one split that were read one after another."""

    split: Split
    rows: int
    complaint: tuple[int, int, str] | None  # row, column and reason of the first name that is no name


@dataclass(frozen=True)
class _Read:
    """What reading found."""

    rows: Mapping[Split, int]
    stretches: Sequence[_Stretch]
    origins: Sequence[tuple[int, Reader]]  # the first row of each source
    rdf: Sequence[RdfReader]


class _OpenStretch:
    """A stretch that is being read, from row `start` on."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._dictionaries = {kind: Dictionary() for kind in _COLUMNS}
        self.rows = 0

    @property
    def size(self) -> int:
        """The memory that it will take when it is written."""
        return _ROW_BYTES * self.rows + _LETTER_BYTES * sum(one.size for one in self._dictionaries.values())

    def add(self, batch: tuple[pa.DictionaryArray, ...]) -> None:
        heads, relations, tails = batch
        self._dictionaries["entities"].add(heads)
        self._dictionaries["entities"].add(tails)
        self._dictionaries["relations"].add(relations)
        self.rows += len(heads)

    def write(self, folder: Path, split: Split) -> _Stretch:
        """Write names and facts; the stretch is empty afterwards."""
        doubtful: list[Any] = []
        for kind, columns in _COLUMNS.items():
            names, first, codes = self._dictionaries.pop(kind).finish(len(columns))
            first += self._start * len(columns)
            order = NameRun(folder, kind).write(names, first)
            places = np.empty(len(order), dtype=np.int32)
            places[order] = np.arange(len(order), dtype=np.int32)
            for column, part in zip(columns, codes, strict=True):
                np.save(folder / f"{column}.npy", places[part])
            doubtful += _doubtful(names, first)
        stretch = _Stretch(split, self.rows, first_complaint(*doubtful))
        write_json(folder / "stretch.json", dataclasses.asdict(stretch))
        return stretch


def _doubtful(names: pa.LargeStringArray, first: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The names that may be wrong, to be looked at one by one: very long ones, and those that begin like a space."""
    block, offsets = as_arrays(names)
    lengths = np.diff(offsets)
    begins = np.zeros(len(names), dtype=np.uint8)
    begins[lengths > 0] = block[offsets[:-1][lengths > 0]]
    doubtful = np.flatnonzero((lengths > LONGEST_NAME) | np.isin(begins, _LIKE_A_SPACE))
    return names.take(doubtful).to_pylist(), first[doubtful]


def _place(path: Path, target: Path) -> None:
    """The same file at another place of the same disk; a copy, where the file system cannot."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
