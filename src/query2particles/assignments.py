"""What a method took the variables of a question for: the entity at every operator, and how true it finds each.

Methods that search for assignments (CQD) can say which one an answer rests on (`Method.assignments`). That is the
model's own account; `evidence` looks for facts, whatever the method.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from query2particles.engine.method import Method
from query2particles.engine.ranks import scoring
from query2particles.errors import UsageError
from query2particles.evidence import Named
from query2particles.graph.graph import Graph
from query2particles.methods.registry import METHODS
from query2particles.query.algebra import Project, Query

__all__ = ["Assignment", "find_assignment"]


@dataclass(frozen=True)
class Assignment:
    """One operator of a question with the entity that it was given."""

    op: str
    entity: Named
    truth: float
    """How true it is, to the method, that the entity is in the set that the operator stands for."""
    relation: Named | None
    """Of a projection, with how true the link is from the branch's entity to this one; a name with ^ is an inverse."""
    link: float | None
    branches: tuple[Assignment, ...]

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"op": self.op, "entity": self.entity.as_json(), "truth": round(self.truth, 4)}
        if self.relation is not None and self.link is not None:
            document |= {"relation": self.relation.as_json(), "link": round(self.link, 4)}
        return {**document, "branches": [branch.as_json() for branch in self.branches]} if self.branches else document

    def lines(self, before: str = "") -> Iterator[str]:
        """The tree, a line for each operator."""
        step = "" if self.relation is None else f"  by {self.relation.label}, {self.link:.3f}"
        yield f"{before}{self.op}  {self.entity.label}  {self.truth:.3f}{step}"
        for branch in self.branches:
            yield from branch.lines(before + "   ")


def find_assignment(graph: Graph, method: Method[Any] | None, query: Query, entity: int) -> Assignment:
    """What the variables of a query are where the entity is its answer."""
    assignments = getattr(method, "assignments", None)
    if method is None or assignments is None:
        those = ", ".join(name for name, entry in METHODS.items() if hasattr(entry.method, "assignments"))
        raise UsageError(
            f"only methods that search for assignments can show them ({those}); --explain looks for the facts behind "
            "an answer, whatever the method"
        )
    with scoring(method):
        return _named(graph, assignments(query, entity))


def _named(graph: Graph, found: Any) -> Assignment:
    relation = None
    if isinstance(found.query, Project):
        directed = found.query.relation
        relation = Named(directed, graph.relation_name(directed), graph.relation_label(directed))
    return Assignment(
        type(found.query).__name__.lower(),
        Named.of(graph.entities, found.entity),
        found.truth,
        relation,
        found.link,
        tuple(_named(graph, branch) for branch in found.below),
    )
