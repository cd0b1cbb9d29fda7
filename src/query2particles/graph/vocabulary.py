"""Names outside, ids inside: the names and labels of a graph's entities or relations.

Names are unique keys, labels are what people read and may repeat. Both lie as UTF-8 in one block of bytes each, with a
sorted permutation beside it, so that a vocabulary of millions opens at once from a memory-mapped folder and a name is
found by bisection.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from query2particles.errors import GraphError
from query2particles.graph.arrays import open_array, unreadable

__all__ = ["Vocabulary", "local_name"]

_SCAN = 200_000
"""Up to this many names are all compared when the nearest are asked for; beyond, only the sorted neighbourhood."""

_CHECKED = 1 << 20
"""Up to this many strings are all looked at for damage before the first is looked up."""

_HASHED_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class _Strings:
    """Many strings: their bytes end to end, where each begins, and their ids in sorted order."""

    block: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    folder: Path | None = None  # that they were opened from

    @staticmethod
    def of(strings: Sequence[str]) -> _Strings:
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
        order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), dtype=np.int64)
        return _Strings(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets, order)

    def raw(self, index: int) -> bytes:
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        if not 0 <= start <= stop <= len(self.block):
            raise unreadable(self.folder, f"string {index} is nowhere")
        return self.block[start:stop].tobytes()

    def __getitem__(self, index: int) -> str:
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            raise unreadable(self.folder, f"string {index} is not UTF-8") from error

    @cached_property
    def _damaged(self) -> bool:
        """Whether the order is not made of ids, or strings overlap. Where they are many, only what is read is."""
        if len(self.order) > _CHECKED:
            return False
        return bool(np.any(self.offsets[1:] < self.offsets[:-1]) or np.any(self._no_ids(self.order)))

    def _no_ids(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return (ids < 0) | (ids >= len(self.order))

    def sorted_ids(self, start: int, stop: int) -> list[int]:
        """The ids of the strings from one place in sorted order to another."""
        ids = self.order[max(0, start) : stop]
        if self._damaged or self._no_ids(ids).any():
            raise unreadable(self.folder, "the order or the offsets of its strings are damaged")
        found: list[int] = ids.tolist()
        return found

    def rank(self, key: bytes) -> int:
        """How many strings sort before `key`."""
        return bisect.bisect_left(range(len(self.order)), key, key=lambda at: self.raw(self.sorted_ids(at, at + 1)[0]))

    def around(self, key: bytes, reach: int) -> list[int]:
        """The ids of the strings that sort closest to `key`, `reach` on either side."""
        rank = self.rank(key)
        return self.sorted_ids(rank - reach, rank + reach)

    def starting_with(self, key: bytes, limit: int) -> list[int]:
        first = self.rank(key)
        found = []
        for index in self.sorted_ids(first, first + limit):
            if not self.raw(index).startswith(key):
                break
            found.append(index)
        return found

    def equal_to(self, key: bytes) -> list[int]:
        found: list[int] = []
        for at in range(self.rank(key), len(self.order)):
            index = self.sorted_ids(at, at + 1)[0]
            if self.raw(index) != key:
                break
            found.append(index)
        return sorted(found)


class Vocabulary:
    """The names (unique) and labels (for people) of ids 0 … n − 1."""

    def __init__(self, names: _Strings, labels: _Strings | None) -> None:
        self._names, self._labels = names, labels if labels is not None else names

    @staticmethod
    def of(names: Sequence[str], labels: Sequence[str] | None = None) -> Vocabulary:
        """The vocabulary of these names, ids in their order. Labels default to the names."""
        strings = _Strings.of(names)
        for one, other in zip(strings.order.tolist(), strings.order[1:].tolist(), strict=False):
            if names[one] == names[other]:
                raise GraphError(f"the name {names[one]!r} stands for two ids, {one} and {other}")
        if labels is None or list(labels) == list(names):
            return Vocabulary(strings, None)
        if len(labels) != len(names):
            raise GraphError(f"{len(names)} names, but {len(labels)} labels")
        return Vocabulary(strings, _Strings.of(labels))

    def __len__(self) -> int:
        return len(self._names.order)

    def name(self, index: int) -> str:
        return self._names[index]

    def label(self, index: int) -> str:
        return self._labels[index]

    def names(self, indices: Iterable[int]) -> list[str]:
        return [self._names[index] for index in indices]

    def find(self, name: str) -> int | None:
        """The id of a name."""
        key = name.encode(errors="surrogatepass")
        at = self._names.rank(key)
        for found in self._names.sorted_ids(at, at + 1):
            if self._names.raw(found) == key:
                return found
        return None

    def find_label(self, label: str) -> list[int]:
        """All ids of a label."""
        return self._labels.equal_to(label.encode(errors="surrogatepass"))

    def starting_with(self, prefix: str, limit: int = 20) -> list[int]:
        """Ids whose name or label starts with `prefix`, for completion."""
        key = prefix.encode(errors="surrogatepass")
        found = self._names.starting_with(key, limit)
        if self._labels is not self._names:
            found += [index for index in self._labels.starting_with(key, limit) if index not in set(found)]
        return found[:limit]

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """The names most like `name`, by the letter pairs that they, their last parts or their labels share with it."""
        wanted = _letter_pairs(name[:200])
        if len(self) <= _SCAN:
            candidates: Iterable[int] = range(len(self))
        else:
            key, reach = name.encode(errors="surrogatepass"), _SCAN // 20
            candidates = {*self._names.around(key, reach), *self._labels.around(key, reach)}
        scored = heapq.nlargest(count, ((self._likeness(index, wanted), -index) for index in candidates))
        return [self.name(-index) for likeness, index in scored if likeness >= 0.4]

    def _likeness(self, index: int, wanted: frozenset[str]) -> float:
        name = self.name(index)
        return max(_dice(wanted, _letter_pairs(text)) for text in {name, local_name(name), self.label(index)})

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the names in the order of their ids."""
        digest = hashlib.sha256()
        for values, kind in ((self._names.offsets, "<i8"), (self._names.block, "u1")):
            for start in range(0, len(values), _HASHED_AT_ONCE):
                digest.update(values[start : start + _HASHED_AT_ONCE].astype(kind).tobytes())
        return digest.hexdigest()

    def save(self, folder: Path, kind: str) -> None:
        """Write the arrays into `folder`, their files starting with `kind`."""
        for what, strings in (("names", self._names), ("labels", self._labels)):
            if what == "names" or strings is not self._names:
                np.save(folder / f"{kind}-{what}.npy", strings.block)
                np.save(folder / f"{kind}-{what}-offsets.npy", strings.offsets)
                np.save(folder / f"{kind}-{what}-order.npy", strings.order)

    @staticmethod
    def open(folder: Path, kind: str) -> Vocabulary:
        """Memory-map what `save` wrote."""

        def strings(what: str) -> _Strings:
            block = open_array(folder / f"{kind}-{what}.npy", np.uint8)
            offsets, order = (
                open_array(folder / f"{kind}-{what}-{part}.npy", np.int64) for part in ("offsets", "order")
            )
            if not (len(offsets) == len(order) + 1 and offsets[0] == 0 and offsets[-1] == len(block)):
                raise unreadable(folder, f"the {what} of {kind}, their offsets and their order do not fit together")
            return _Strings(block, offsets, order, folder)

        names = strings("names")
        labels = strings("labels") if any(folder.glob(f"{kind}-labels*.npy")) else None
        if labels is not None and len(labels.order) != len(names.order):
            raise unreadable(folder, f"{len(names.order)} names of {kind}, but {len(labels.order)} labels")
        return Vocabulary(names, labels)


def local_name(name: str) -> str:
    """What a person calls an IRI that nothing labels, its last part; any other name is its own label."""
    path = name.partition("://")[2]
    return unquote(path.rstrip("/#").replace("#", "/").rpartition("/")[2]) or name


def _letter_pairs(text: str) -> frozenset[str]:
    padded = f" {text.casefold().replace('_', ' ')} "
    return frozenset(map("".join, pairwise(padded)))


def _dice(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))
