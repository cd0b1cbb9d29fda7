"""What is plausible, by the definitions in words, one entity at a time: what the engine is judged by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from query2particles.graph.graph import Graph, Split
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
from worlds import Successors, successors

__all__ = ["Literal"]

_LOST = 0.005


@dataclass(frozen=True, eq=False)
class Literal:
    """Kinds and echoes of one level, from its edges as plain sets."""

    known: Successors
    entities: int
    relations: int  # directed

    @staticmethod
    def of(graph: Graph, split: Split) -> Literal:
        return Literal(successors(graph, split), len(graph.entities), graph.at(split).relations)

    @cached_property
    def roles(self) -> list[set[int]]:
        """The roles of each entity."""
        return [{role for role in range(self.relations) if self.facts(one, role)} for one in range(self.entities)]

    def facts(self, entity: int, role: int) -> int:
        return len(self.known.get((entity, role), ()))

    def lift(self, entity: int, role: int) -> float:
        """max_q (n(q, ρ) / b(ρ) + 1) / (n(q) + 1), without the entity itself where it has the role."""
        asked = [own for one, own in enumerate(self.roles) if one != entity or role not in own]
        share = max(1, sum(role in own for own in self.roles)) / self.entities
        found = [
            (sum({other, role} <= own for own in asked) / share + 1) / (sum(other in own for own in asked) + 1)
            for other in self.roles[entity] - {role}
        ]
        return max(found, default=1.0)

    def usual(self, entity: int, role: int) -> float:
        """The most of: its facts of q, times those of ρ that entities with q have for each of theirs of q."""
        found = [0.0]
        for other in self.roles[entity] - {role}:
            having = [one for one in range(self.entities) if other in self.roles[one]]
            ratio = sum(self.facts(one, role) for one in having) / sum(self.facts(one, other) for one in having)
            found.append(self.facts(entity, other) * ratio)
        return max(found)

    @cached_property
    def single_lifts(self) -> list[float]:
        """Of all roles with a single fact, ascending."""
        every = ((one, role) for one in range(self.entities) for role in self.roles[one])
        return sorted(self.lift(one, role) for one, role in every if self.facts(one, role) == 1)

    @cached_property
    def threshold(self) -> float:
        lifts = self.single_lifts
        return min(1.0, lifts[int(_LOST * (len(lifts) - 1))]) if lifts else 0.0

    def can(self, entity: int, role: int) -> bool:
        return role in self.roles[entity] or self.lift(entity, role) >= self.threshold * (1 - 1e-12)

    def loops(self, relation: int) -> bool:
        """Whether the relation leads anybody to itself."""
        return any(one in self.known.get((one, relation), ()) for one in range(self.entities))

    def echoes(self, query: Query) -> set[int]:
        """The entities of a query that cannot answer it."""
        match query:
            case Project(Anchor(entity), relation):
                return set() if self.loops(relation) else {entity}
            case Intersect(several):
                return set().union(*map(self.echoes, several))
            case Union(several):
                return set.intersection(*map(self.echoes, several))
            case _:
                return set()

    def allowed(self, query: Query) -> set[int]:
        """Who is of a kind that can answer."""
        match query:
            case Project(_, relation):
                return {one for one in range(self.entities) if self._able[one, relation ^ 1]}
            case Intersect(several):
                return set.intersection(*map(self.allowed, several))
            case Union(several):
                return set().union(*map(self.allowed, several))
            case Anchor() | Complement():
                return set(range(self.entities))

    @cached_property
    def _able(self) -> dict[tuple[int, int], bool]:
        return {(one, role): self.can(one, role) for one in range(self.entities) for role in range(self.relations)}

    def open(self, query: Query, closed: Iterable[int]) -> set[int]:
        """Who may be guessed, given whom stored facts name or rule out."""
        return self.allowed(query) - self.echoes(query) - set(closed)
