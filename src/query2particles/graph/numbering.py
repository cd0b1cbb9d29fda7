"""Ids for more names than fit into memory, in order of first appearance.

Names come in *runs*: the distinct names of a stretch of the sources, sorted, each with the position where it first
stands there. All runs are cut at the same names into ranges that fit into memory. Range by range the names of all runs
are brought together; that gives each distinct name its *rank* in sorted order, and tells which run has it first. The
new names of a run, by position, then take the next ids.

A vocabulary has the same files as `Vocabulary.save` writes.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.errors import GraphError
from query2particles.graph.arrays import ArrayWriter, open_array, read_part
from query2particles.graph.runs import common_ranges
from query2particles.graph.vocabulary import local_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NameRun", "Numbered", "as_arrays", "number_names", "write_labels"]

Positions: TypeAlias = npt.NDArray[np.int64]

_NAME_BYTES = 100
"""What a name takes in memory while it is sorted, beside its letters."""

_LETTER_BYTES = 4
"""How often its letters are there then."""

_LABELS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class NameRun:
    """Sorted names and a position of each, in files of a folder that start with `kind`."""

    folder: Path
    kind: str

    def write(self, names: pa.LargeStringArray, positions: Positions) -> npt.NDArray[np.int64]:
        """Write names that come in any order; returns the order in which they are kept."""
        from pyarrow import compute

        order: npt.NDArray[np.int64] = compute.sort_indices(names).to_numpy().astype(np.int64)
        block, offsets = as_arrays(names.take(order))
        np.save(self._file("names"), block)
        np.save(self._file("offsets"), offsets)
        np.save(self._file("positions"), positions[order])
        return order

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def key(self, at: int) -> bytes:
        return self._block[self._offsets[at] : self._offsets[at + 1]].tobytes()

    def names(self, start: int, stop: int) -> pa.LargeStringArray:
        offsets = read_part(self._file("offsets"), start, stop + 1)
        return _as_strings(read_part(self._file("names"), int(offsets[0]), int(offsets[-1])), offsets - offsets[0])

    def positions(self, start: int, stop: int) -> Positions:
        return read_part(self._file("positions"), start, stop)

    def rank(self, key: bytes) -> int:
        return bisect_left(range(len(self)), key, key=self.key)

    def size(self, at: int) -> int:
        return _NAME_BYTES * at + _LETTER_BYTES * int(self._offsets[at])

    def _file(self, part: str) -> Path:
        return self.folder / f"{self.kind}-run-{part}.npy"

    @cached_property
    def _block(self) -> npt.NDArray[np.uint8]:
        return open_array(self._file("names"), np.uint8)

    @cached_property
    def _offsets(self) -> npt.NDArray[np.int64]:
        return open_array(self._file("offsets"), np.int64)


@dataclass(frozen=True)
class Numbered:
    """The names of several runs with their ids, in a folder."""

    folder: Path
    kind: str
    seen: int
    """How many names stand before the position that `number_names` was given: theirs are the first ids."""
    first_unseen: tuple[int, str] | None
    """The position and the name of the first of the others."""

    @staticmethod
    def open(folder: Path, kind: str) -> Numbered:
        told = json.loads((folder / f"{kind}.json").read_text("utf-8"))
        return Numbered(folder, kind, told["seen"], told["first_unseen"])

    def ids(self, run: int) -> npt.NDArray[np.int32]:
        """The id of each name of a run."""
        ranks = np.load(self.folder / f"{self.kind}-ranks-{run}.npy")
        order = open_array(self.folder / f"{self.kind}-names-order.npy", np.int64)
        ids: npt.NDArray[np.int32] = order[ranks].astype(np.int32)
        return ids

    def write_vocabulary(self, target: Path, count: int) -> None:
        """The first `count` names, as a vocabulary without labels."""
        offsets = open_array(self.folder / f"{self.kind}-names-offsets.npy", np.int64)
        stops = {"names": int(offsets[count]), "names-offsets": count + 1}
        kinds: tuple[tuple[str, type[np.uint8] | type[np.int64]], ...] = (
            ("names", np.uint8),
            ("names-offsets", np.int64),
            ("names-order", np.int64),
        )
        for part, kind in kinds:
            source = open_array(self.folder / f"{self.kind}-{part}.npy", kind)
            with ArrayWriter(target / f"{self.kind}-{part}.npy", kind) as written:
                stop = stops.get(part, len(source))
                for start in range(0, stop, _LABELS_AT_ONCE):
                    values = source[start : min(stop, start + _LABELS_AT_ONCE)]
                    written.append(values[values < count] if part == "names-order" else values)


def number_names(
    runs: Sequence[NameRun],
    folder: Path,
    kind: str,
    *,
    before: int,
    memory: int,
    progress: Callable[[int, int], object],
) -> None:
    """Give the names of all runs their ids, as a `Numbered` in the folder; what stands before `before` is seen."""
    total = sum(run.size(len(run)) for run in runs)
    count = _rank_names(runs, folder, kind, memory, lambda done: progress(done, 2 * total))
    seen, first_unseen, given, done = 0, None, 0, total
    order = np.lib.format.open_memmap(folder / f"{kind}-names-order.npy", mode="w+", dtype=np.int64, shape=(count,))
    with (
        ArrayWriter(folder / f"{kind}-names.npy", np.uint8) as blocks,
        ArrayWriter(folder / f"{kind}-names-offsets.npy", np.int64) as offsets,
    ):
        offsets.append(np.zeros(1, np.int64))
        for number, run in enumerate(runs):
            fresh = np.flatnonzero(np.load(folder / f"{kind}-fresh-{number}.npy"))
            (folder / f"{kind}-fresh-{number}.npy").unlink()
            positions = run.positions(0, len(run))[fresh]
            by_position = np.argsort(positions)
            ids = np.empty(len(fresh), dtype=np.int64)
            ids[by_position] = given + np.arange(len(fresh))
            order[np.load(folder / f"{kind}-ranks-{number}.npy", mmap_mode="r")[fresh]] = ids
            block, ends = as_arrays(run.names(0, len(run)).take(fresh[by_position]))
            offsets.append(blocks.count + ends[1:])
            blocks.append(block)
            known = int(np.count_nonzero(positions < before))
            if first_unseen is None and known < len(fresh):
                at = by_position[known]
                first_unseen = int(positions[at]), run.key(int(fresh[at])).decode()
            seen += known
            given += len(fresh)
            done += run.size(len(run))
            progress(done, 2 * total)
    told = {"seen": seen, "first_unseen": first_unseen}
    (folder / f"{kind}.json").write_text(json.dumps(told), "utf-8")


def _rank_names(
    runs: Sequence[NameRun], folder: Path, kind: str, memory: int, progress: Callable[[int], object]
) -> int:
    """Write the rank of each name of each run, and whether no earlier run has it; returns how many names there are."""
    from pyarrow import compute

    count = 0
    with contextlib.ExitStack() as stack:
        files = [
            (
                stack.enter_context(ArrayWriter(folder / f"{kind}-ranks-{number}.npy", np.int32)),
                stack.enter_context(ArrayWriter(folder / f"{kind}-fresh-{number}.npy", np.bool_)),
            )
            for number in range(len(runs))
        ]
        for slices in common_ranges(runs, memory):
            names = _names(runs, slices)
            order = compute.sort_indices(names).to_numpy()  # stable: of equal names the earliest run's comes first
            ordered = names.take(order)
            new = np.ones(len(names), dtype=bool)
            new[1:] = compute.not_equal(ordered.slice(1), ordered.slice(0, len(names) - 1)).to_numpy(
                zero_copy_only=False
            )
            if count + int(new.sum()) >= 2**31:
                raise GraphError(f"more than {2**31 - 1:,} {kind}: ids are 4 bytes wide; import a part of the sources")
            ranks = np.empty(len(names), dtype=np.int32)
            ranks[order] = count + np.cumsum(new) - 1
            fresh = np.zeros(len(names), dtype=bool)
            fresh[order[new]] = True
            stops = np.cumsum([stop - start for start, stop in slices])[:-1]
            for (rank_file, fresh_file), own_ranks, own_fresh in zip(
                files, np.split(ranks, stops), np.split(fresh, stops), strict=True
            ):
                rank_file.append(own_ranks)
                fresh_file.append(own_fresh)
            count += int(new.sum())
            progress(sum(run.size(stop) for run, (_, stop) in zip(runs, slices, strict=True)))
    return count


def write_labels(folder: Path, kind: str, labels: Mapping[str, str], *, memory: int) -> set[str]:
    """Label the vocabulary in a folder, as the import does: by `labels`, else by the last part of an IRI.

    Where that gives every name itself, nothing is written. Returns which of the labelled names there are.
    """
    if not labels and not any(b"://" in block.tobytes() for block, _ in _stored(folder, kind)):
        return set()
    import pyarrow as pa
    from pyarrow import compute

    found: set[str] = set()
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        runs: list[NameRun] = []
        files = {part: folder / f"{kind}-labels{part}.npy" for part in ("", "-offsets", "-order")}
        differs = False
        with ArrayWriter(files[""], np.uint8) as blocks, ArrayWriter(files["-offsets"], np.int64) as offsets:
            offsets.append(np.zeros(1, np.int64))
            for letters, places in _stored(folder, kind):
                names = _as_strings(letters, places).to_pylist()
                given = [labels.get(name) or local_name(name) for name in names]
                found |= labels.keys() & set(names)
                differs = differs or given != names
                runs.append(NameRun(Path(scratch), f"{len(runs)}"))
                texts = pa.array(given, pa.large_string())
                runs[-1].write(texts, np.arange(offsets.count - 1, offsets.count - 1 + len(names)))
                block, ends = as_arrays(texts)
                offsets.append(blocks.count + ends[1:])
                blocks.append(block)
        if differs:
            with ArrayWriter(files["-order"], np.int64) as order:
                for slices in common_ranges(runs, memory):
                    ids = np.concatenate([run.positions(*cut) for run, cut in zip(runs, slices, strict=True)])
                    order.append(ids[compute.sort_indices(_names(runs, slices)).to_numpy()])
        else:
            files[""].unlink()
            files["-offsets"].unlink()
    return found


def _names(runs: Sequence[NameRun], slices: Sequence[tuple[int, int]]) -> pa.LargeStringArray:
    """The names of a slice of each run, one run after another."""
    import pyarrow as pa

    return pa.concat_arrays([run.names(*cut) for run, cut in zip(runs, slices, strict=True)])


def _stored(folder: Path, kind: str) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """The names of a vocabulary, many at a time: their letters end to end, and where each begins."""
    path = folder / f"{kind}-names-offsets.npy"
    count = len(open_array(path, np.int64)) - 1
    for start in range(0, count, _LABELS_AT_ONCE):
        offsets = read_part(path, start, min(count, start + _LABELS_AT_ONCE) + 1)
        yield read_part(folder / f"{kind}-names.npy", int(offsets[0]), int(offsets[-1])), offsets - offsets[0]


def as_arrays(strings: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The letters of strings end to end, and where each begins."""
    _, places, letters = strings.buffers()
    offsets = np.frombuffer(places, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    block = np.frombuffer(letters, np.uint8) if letters is not None else np.zeros(0, np.uint8)
    return block[offsets[0] : offsets[-1]], offsets - offsets[0]


def _as_strings(block: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.LargeStringArray:
    import pyarrow as pa

    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(block))
