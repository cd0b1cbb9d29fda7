"""How likely given facts are true, many at a time: an error takes the place of the fact that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from query2particles.answer import Reasoner
from query2particles.errors import QueryError
from query2particles.query.names import Lexicon

__all__ = ["Scored", "Scorer", "Triple"]

Triple: TypeAlias = tuple[str, str, str]
"""Head, relation and tail by name."""

_SUGGESTED = 5
"""Unknown names for which the nearest ones are looked up: a source may be full of them."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A fact, as it was named, and how likely it is true."""

    fact: Triple
    probability: float
    stored: bool

    def as_json(self) -> dict[str, Any]:
        head, relation, tail = self.fact
        likely = {"probability": round(self.probability, 6), "stored": self.stored}
        return {"head": head, "relation": relation, "tail": tail, **likely}


@dataclass
class Scorer:
    """Judges the facts of one source, part by part."""

    reasoner: Reasoner
    _unknown: int = field(default=0, init=False)

    def __call__(self, facts: Iterable[Triple]) -> list[Scored | QueryError]:
        """What each fact is worth, in their order."""
        found: list[Scored | QueryError | None] = []
        stored: list[bool] = []
        named: list[Triple] = []
        edges = self.reasoner.graph.at(self.reasoner.split)
        for fact in facts:
            try:
                ids = self._ids(fact)
            except QueryError as error:
                self._unknown += 1
                found.append(error)
                continue
            found.append(None)
            named.append(fact)
            stored.append(edges.has(*ids))
        judged = iter(map(Scored, named, self.reasoner.probability(named), stored))
        return [next(judged) if one is None else one for one in found]

    def _ids(self, fact: Triple) -> tuple[int, int, int]:
        head, relation, tail = fact
        lexicon: Lexicon = self.reasoner.lexicon
        if self._unknown >= _SUGGESTED:
            lexicon = replace(lexicon, suggestions=0)
        return lexicon.entity(head), lexicon.relation(relation), lexicon.entity(tail)
