"""Import in steps: the same folder as the import in memory, whatever the sources; the same errors; never from new."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from query2particles import files
from query2particles.errors import SourceError, UsageError
from query2particles.graph import facts, large, numbering, tables
from query2particles.graph.arrays import ArrayWriter
from query2particles.graph.edge_runs import EdgeRun
from query2particles.graph.graph import Graph
from query2particles.graph.large import import_into
from query2particles.graph.load import ImportOptions, import_graph
from query2particles.graph.numbering import NameRun
from query2particles.graph.runs import common_ranges

MEMORY = 4000
"""So little that a stretch of the sources has a few rows, and a range of names or edges a few of them."""


@contextmanager
def small_parts() -> Iterator[None]:
    """Every size that parts a large import is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "_LEAST_MEMORY", 0)
        patch.setattr(large, "_WHOLE", 10**9)
        patch.setattr(tables, "_BLOCK", 64)
        patch.setattr(facts, "_WAITING", 10)
        patch.setattr(numbering, "_LABELS_AT_ONCE", 7)
        patch.setattr(files, "_flush", lambda path: None)  # thousands of small files: a disk would take minutes
        yield


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def both_ways(place: Path, sources: list[Path], options: ImportOptions, memory: int = MEMORY) -> tuple[object, object]:
    """What the import in memory makes of the sources, and what the import in steps does: files, or an error."""
    results: list[object] = []
    for way in ("memory", "steps"):
        target = place / way
        try:
            if way == "memory":
                import_graph(sources, options=options).save(target)
            else:
                with small_parts():
                    import_into(sources, target, options=options, memory=memory)
            results.append(contents(target))
        except (SourceError, UsageError) as error:
            results.append((type(error), str(error)))
            assert not target.exists()
        assert not (place / f".{way}.import").exists()
    return results[0], results[1]


NAMES = st.one_of(
    st.integers(0, 12).map(lambda number: f"e{number}"),
    st.sampled_from(["http://x.org/a", "http://x.org/b#a", "é", "日本", "a", "aa", "ab", "://"]),
    st.sampled_from(["", " ", "\u00a0", "\u3000x", "\u2003", "\x1c"]).filter(lambda name: bool(name.strip())),
)
FACTS = st.lists(st.tuples(NAMES, st.sampled_from(["r", "s", "http://x.org/r"]), NAMES), min_size=1, max_size=60)
ROWS_MAYBE_WRONG = st.lists(
    st.one_of(
        st.tuples(NAMES, st.just("r"), NAMES),
        st.tuples(st.sampled_from(["", " ", "\u2003", "\u3000"]), st.just("r"), NAMES),
        st.tuples(NAMES, st.sampled_from(["\u00a0", ""]), NAMES),
        st.tuples(NAMES, st.just("r")),
    ),
    min_size=1,
    max_size=30,
)


def written(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    if path.suffix == ".parquet":
        columns = zip(*rows, strict=True)
        parquet.write_table(pa.table(dict(zip("abc", map(list, columns), strict=True))), path, row_group_size=7)
    elif path.suffix == ".nt":
        path.write_text("".join(f"<x:{h}> <x:{r}> <x:{t}> .\n" for h, r, t in rows), "utf-8")
    else:
        path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_folder_is_the_same_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("large")
    endings = st.sampled_from(["tsv", "tsv", "parquet"])
    sources = [
        written(place / f"{number}.{data.draw(endings)}", data.draw(FACTS))
        for number in range(data.draw(st.integers(1, 3)))
    ]
    options: dict[str, Any] = {}
    match data.draw(st.sampled_from(["plain", "drawn", "files"])):
        case "drawn":
            options["fractions"] = data.draw(st.sampled_from([(0.1, 0.1), (0.3, 0.0), (0.0, 0.4), (0.45, 0.45)]))
            options["seed"] = data.draw(st.integers(0, 3))
        case "files":
            options["unseen"] = data.draw(st.sampled_from(["error", "drop", "drop"]))
            options["valid"] = [written(place / "valid.tsv", data.draw(FACTS))]
            if data.draw(st.booleans()):
                options["test"] = [written(place / "test.tsv", data.draw(FACTS))]
    if data.draw(st.booleans()):
        labels = data.draw(st.lists(st.tuples(NAMES, st.sampled_from(["one", "two", "e1"])), min_size=1, max_size=9))
        options["labels"] = written(place / "labels.tsv", [*labels])
    memory = data.draw(st.sampled_from([500, MEMORY, 100_000]))
    in_memory, in_steps = both_ways(place, sources, ImportOptions(**options), memory)
    assert in_steps == in_memory


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROWS_MAYBE_WRONG, min_size=1, max_size=3))
def test_the_error_is_the_same(tmp_path_factory: pytest.TempPathFactory, tables: list[list[tuple[str, ...]]]) -> None:
    place = tmp_path_factory.mktemp("wrong")
    sources = [written(place / f"{number}.tsv", rows) for number, rows in enumerate(tables)]
    in_memory, in_steps = both_ways(place, sources, ImportOptions())
    assert in_steps == in_memory


def test_what_rdf_says_besides_facts_is_kept(tmp_path: Path) -> None:
    rows = [f"<http://x.org/{number % 17}> <http://x.org/r> _:b{number % 5} .\n" for number in range(60)]
    rows += [f'<http://x.org/{n}> <http://www.w3.org/2000/01/rdf-schema#label> "name {n % 3}" .\n' for n in range(20)]
    rows += [f'<http://x.org/{number}> <http://x.org/age> "{number}" .\n' for number in range(17)]
    one, other = tmp_path / "one.ttl", tmp_path / "other.nt"
    one.write_text("@prefix x: <http://x.org/> .\n" + "".join(rows))
    other.write_text("".join(rows))
    for options in (ImportOptions(), ImportOptions(literals=True)):
        in_memory, in_steps = both_ways(tmp_path, [one, other], options)
        assert isinstance(in_memory, dict)
        assert in_steps == in_memory


def triples(path: Path, count: int, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    heads, relations, tails = (generator.integers(size, size=count).tolist() for size in (count // 5, 9, count // 5))
    rows = zip(heads, relations, tails, strict=True)
    path.write_text("".join(f"entity {head}\tr{relation}\tentity {tail}\n" for head, relation, tail in rows))
    return path


IMPORT = """
import os, signal, sys
from pathlib import Path
from query2particles.graph import facts, large, numbering, tables
large._LEAST_MEMORY, large._WHOLE, tables._BLOCK, numbering._LABELS_AT_ONCE = 0, 10**9, 1 << 14, 500
steps, die_at = [], int(sys.argv[3])
rename = Path.rename
def counted(path, target):
    renamed = rename(path, target)
    steps.append(Path(target).name)
    if len(steps) == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return renamed
Path.rename = counted
options = large.ImportOptions(fractions=(0.1, 0.1))
large.import_into([Path(sys.argv[1])], Path(sys.argv[2]), options=options, memory=300_000)
print(*steps)
"""


def test_a_killed_import_goes_on_after_the_last_finished_step(tmp_path: Path) -> None:
    """One process after another dies right after a step; none does again what one before it had finished."""
    source = triples(tmp_path / "source.tsv", 12_000)
    import_graph([source], options=ImportOptions(fractions=(0.1, 0.1))).save(tmp_path / "reference")

    def run(die_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", IMPORT, str(source), str(tmp_path / "graph"), str(die_at)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    lives = 0
    while (done := run(3)).returncode == -signal.SIGKILL:
        lives += 1
        assert lives < 30, "it does not get on"
    assert done.returncode == 0, done.stderr
    assert lives >= 5
    assert len(done.stdout.split()) <= 3  # the last had little left to do
    assert contents(tmp_path / "graph") == contents(tmp_path / "reference")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "reference", "source.tsv"]


def test_a_kill_at_any_moment_is_no_matter(tmp_path: Path) -> None:
    source = triples(tmp_path / "source.tsv", 12_000)
    import_graph([source], options=ImportOptions(fractions=(0.1, 0.1))).save(tmp_path / "reference")
    command = [sys.executable, "-c", IMPORT, str(source), str(tmp_path / "graph"), "0"]
    for seconds in (0.4, 0.6, 0.8, 1.0):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "graph") == contents(tmp_path / "reference")


@pytest.mark.parametrize("gone", [("read", "facts-0"), ("entities/entities.json",), ()])
def test_a_kill_while_tidying_up_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...]
) -> None:
    """The graph is there, and a part of what it was made from is gone: the next import begins from new."""
    source = triples(tmp_path / "source.tsv", 2000)
    import_graph([source]).save(tmp_path / "reference")
    remove = shutil.rmtree

    def killed(folder: Path, **options: Any) -> None:
        if folder.name == ".graph.import":
            for name in ("graph", *gone):
                path = folder / name
                remove(path) if path.is_dir() else path.unlink()
            raise KeyboardInterrupt
        remove(folder, **options)

    with small_parts():
        monkeypatch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            import_into([source], tmp_path / "graph", memory=100_000)
        monkeypatch.setattr(shutil, "rmtree", remove)
        assert (tmp_path / ".graph.import").is_dir()
        import_into([source], tmp_path / "graph", memory=100_000)
    assert not (tmp_path / ".graph.import").exists()
    assert contents(tmp_path / "graph") == contents(tmp_path / "reference")


def test_other_sources_begin_from_new(tmp_path: Path) -> None:
    """What an import left behind is of no use once a source or an option has changed."""
    source = triples(tmp_path / "source.tsv", 2000)
    command = [sys.executable, "-c", IMPORT, str(source), str(tmp_path / "graph"), "4"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".graph.import" / "facts-0").is_dir()
    stat = source.stat()
    triples(source, 2000, seed=1)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with small_parts():
        import_into([source], tmp_path / "graph", options=ImportOptions(fractions=(0.1, 0.1)), memory=100_000)
    import_graph([source], options=ImportOptions(fractions=(0.1, 0.1))).save(tmp_path / "reference")
    assert contents(tmp_path / "graph") == contents(tmp_path / "reference")


def test_small_sources_are_imported_in_memory_and_large_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = triples(tmp_path / "source.tsv", 1000)
    began: list[str] = []

    @contextmanager
    def watch(work: str) -> Iterator[Any]:
        began.append(work)
        yield lambda done, total: None

    import_into([source], tmp_path / "one", watch=watch)
    assert began == ["reading"]
    monkeypatch.setattr(large, "_LEAST_MEMORY", 0)
    graph = import_into([source], tmp_path / "other", memory=large._WHOLE * source.stat().st_size - 1, watch=watch)
    assert began[1:] == [
        "reading",
        "numbering entities",
        "numbering relations",
        "sorting facts",
        "merging facts (train)",
        "writing the graph",
    ]
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    assert isinstance(graph.at("train").tails, np.memmap)


def test_progress_ends_where_it_should(tmp_path: Path) -> None:
    source = triples(tmp_path / "source.tsv", 3000)
    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(work: str) -> Iterator[Any]:
        told[work] = []
        yield lambda done, total: told[work].append((done, total))

    with small_parts():
        import_into([source], tmp_path / "graph", memory=100_000, watch=watch)
    assert told["reading"][-1] == (source.stat().st_size, source.stat().st_size)
    for work in ("numbering entities", "numbering relations", "sorting facts", "merging facts (train)"):
        assert told[work] == sorted(told[work])
        assert told[work][-1][0] == told[work][-1][1] > 0
        assert len(told[work]) > 1


def test_two_imports_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    source = triples(tmp_path / "source.tsv", 300)
    with (
        small_parts(),
        large._Workplace.open(tmp_path / "graph", {}),
        pytest.raises(UsageError, match="another import"),
    ):
        import_into([source], tmp_path / "graph", memory=MEMORY)


def test_some_memory_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 64 MiB"):
        import_into([triples(tmp_path / "source.tsv", 10)], tmp_path / "graph", memory=1 << 20)


@given(
    st.lists(st.lists(st.text("abc", max_size=4), min_size=1, unique=True), min_size=1, max_size=5),
    st.integers(1, 3000),
)
def test_ranges_are_common_whole_and_small(
    tmp_path_factory: pytest.TempPathFactory, several: list[list[str]], memory: int
) -> None:
    place = tmp_path_factory.mktemp("runs")
    runs = [NameRun(place, str(number)) for number in range(len(several))]
    for run, names in zip(runs, several, strict=True):
        run.write(pa.array(names, pa.large_string()), np.arange(len(names)))
    ends: list[bytes] = []
    stops = [0] * len(runs)
    for slices in common_ranges(runs, memory):
        assert [start for start, _ in slices] == stops
        stops = [stop for _, stop in slices]
        keys = [run.key(at) for run, (start, stop) in zip(runs, slices, strict=True) for at in range(start, stop)]
        assert not ends or min(keys) > ends[-1]
        ends.append(max(keys))
        size = sum(run.size(stop) - run.size(start) for run, (start, stop) in zip(runs, slices, strict=True))
        assert size <= memory + 2 * len(runs) * (100 + 4 * 4)  # at most one name too many on either side
    assert stops == [len(names) for names in several]


def test_a_row_longer_than_memory_is_merged_in_parts(tmp_path: Path) -> None:
    """One (head, relation) with most of the tails: its row goes on from range to range."""
    rows = [("hub", "r", f"t{number % 400}") for number in range(900)] + [("t1", "r", "hub"), ("t2", "s", "t3")]
    source = written(tmp_path / "hub.tsv", [*rows])
    in_memory, in_steps = both_ways(tmp_path, [source], ImportOptions())
    assert in_steps == in_memory
    assert len(Graph.open(tmp_path / "steps").at("train").tails_of(0, 0)) == 400


def test_edges_are_found_in_a_run(tmp_path: Path) -> None:
    run = EdgeRun(tmp_path)
    heads, relations, tails = np.array([3, 3, 1]), np.array([0, 0, 1]), np.array([1, 2, 3])
    run.write(heads, relations, tails, entity_count=4, relation_count=2)
    keys = [run.key(at) for at in range(len(run))]
    assert keys == sorted({(3 * 4, 1), (3 * 4, 2), (1 * 4 + 2, 3), (1 * 4 + 1, 3), (2 * 4 + 1, 3), (3 * 4 + 3, 1)})
    assert [run.rank(key) for key in keys] == list(range(6))
    assert run.rank((12, 3)) == keys.index((12, 2)) + 1


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 12345])
def test_an_array_written_in_parts_has_the_bytes_of_the_whole(tmp_path: Path, kind: Any, count: int) -> None:
    whole = np.random.default_rng(0).integers(2, size=count).astype(kind)
    np.save(tmp_path / "whole.npy", whole)
    with ArrayWriter(tmp_path / "parts.npy", kind) as parts:
        for part in np.array_split(whole, 7):
            parts.append(part)
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
