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

import numpy as np
import numpy.typing as npt

from query2particles.errors import GraphError

__all__ = ["Vocabulary"]

_SCAN = 200_000
"""Up to this many names are all compared when the nearest are asked for; beyond, only the sorted neighbourhood."""


@dataclass(frozen=True)
class _Strings:
    """Many strings: their bytes end to end, where each begins, and their ids in sorted order."""

    block: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    @staticmethod
    def of(strings: Sequence[str]) -> _Strings:
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
        order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), dtype=np.int64)
        return _Strings(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets, order)

    def raw(self, index: int) -> bytes:
        return self.block[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __getitem__(self, index: int) -> str:
        return self.raw(index).decode()

    def rank(self, key: bytes) -> int:
        """How many strings sort before `key`."""
        return bisect.bisect_left(range(len(self.order)), key, key=lambda at: self.raw(int(self.order[at])))

    def starting_with(self, key: bytes, limit: int) -> list[int]:
        first = self.rank(key)
        found = []
        for index in self.order[first : first + limit].tolist():
            if not self.raw(index).startswith(key):
                break
            found.append(index)
        return found

    def equal_to(self, key: bytes) -> list[int]:
        found = []
        for index in self.order[self.rank(key) :]:
            if self.raw(int(index)) != key:
                break
            found.append(int(index))
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
        if at < len(self) and self._names.raw(found := int(self._names.order[at])) == key:
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
        """The names most like `name`, by the letter pairs that they, or their labels, share with it."""
        wanted = _letter_pairs(name[:200])
        if len(self) <= _SCAN:
            candidates: Iterable[int] = range(len(self))
        else:
            rank = self._names.rank(name.encode(errors="surrogatepass"))
            candidates = self._names.order[max(0, rank - _SCAN // 20) : rank + _SCAN // 20].tolist()
        scored = heapq.nlargest(count, ((self._likeness(index, wanted), -index) for index in candidates))
        return [self.name(-index) for likeness, index in scored if likeness >= 0.4]

    def _likeness(self, index: int, wanted: frozenset[str]) -> float:
        likeness = _dice(wanted, _letter_pairs(self.name(index)))
        if self._labels is not self._names:
            likeness = max(likeness, _dice(wanted, _letter_pairs(self.label(index))))
        return likeness

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the names in the order of their ids."""
        digest = hashlib.sha256(self._names.offsets.astype("<i8").tobytes())
        digest.update(self._names.block.tobytes())
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
            block, offsets, order = (
                np.load(folder / f"{kind}-{what}{part}.npy", mmap_mode="r") for part in ("", "-offsets", "-order")
            )
            return _Strings(block, offsets, order)

        has_labels = (folder / f"{kind}-labels.npy").exists()
        return Vocabulary(strings("names"), strings("labels") if has_labels else None)


def _letter_pairs(text: str) -> frozenset[str]:
    padded = f" {text.casefold().replace('_', ' ')} "
    return frozenset(map("".join, pairwise(padded)))


def _dice(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))
