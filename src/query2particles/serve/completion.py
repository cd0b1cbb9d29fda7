"""Names that begin as somebody has typed: first those whose name or label begins so, then those with such a word."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from query2particles.graph.vocabulary import Vocabulary

__all__ = ["Completion"]

_INDEXED = 200_000
"""Larger vocabularies are searched as they are stored: by how names and labels begin, letter by letter."""

_WORD = re.compile(r"(?<=[\s_./:#(-])(?=\w)")

_Index = list[tuple[str, int]]


@dataclass(frozen=True)
class Completion:
    """The names and labels of a vocabulary, and the words in them, sorted for search; case does not count."""

    vocabulary: Vocabulary
    beginnings: _Index | None
    words: _Index

    @staticmethod
    def of(vocabulary: Vocabulary) -> Completion:
        if len(vocabulary) > _INDEXED:
            return Completion(vocabulary, None, [])
        beginnings: _Index = []
        words: _Index = []
        for index in range(len(vocabulary)):
            for text in dict.fromkeys((vocabulary.label(index).casefold(), vocabulary.name(index).casefold())):
                beginnings.append((text, index))
                words += [(text[place.start() :], index) for place in _WORD.finditer(text)]
        return Completion(vocabulary, sorted(beginnings), sorted(words))

    def starting_with(self, prefix: str, limit: int) -> list[int]:
        """At most `limit` ids, the best first."""
        if self.beginnings is None:
            return self.vocabulary.starting_with(prefix, limit)
        found: dict[int, None] = {}
        for index in (self.beginnings, self.words):
            for entry in _matches(index, prefix.casefold()):
                if len(found) == limit:
                    return list(found)
                found[entry] = None
        return list(found)


def _matches(index: _Index, key: str) -> Iterator[int]:
    for at in range(bisect_left(index, (key, -1)), len(index)):
        text, entry = index[at]
        if not text.startswith(key):
            return
        yield entry
