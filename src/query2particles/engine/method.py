"""The whole contract between the engine and a paper.

A method says what a set of entities looks like inside it (its *state*, batch first) and what the five operators do to
states. The engine never looks inside a state; it only stacks and slices them by the method's own `stack` and `split`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import Any, Protocol, TypeVar

from query2particles.query.algebra import Anchor, Intersect, Query, Union

__all__ = ["Method", "width"]

State = TypeVar("State")


class Method(Protocol[State]):
    """What the engine needs of a method. Ids are one-dimensional integer arrays (numpy, or torch on any device)."""

    @property
    def operators(self) -> Set[type[Query]]:
        """What the method can do; unions and complements that it lacks must be rewritten (`query/rewrite`) first."""
        ...

    def anchor(self, entities: Any) -> State:
        """(n,) entities → the states of n one-element sets."""
        ...

    def project(self, state: State, relations: Any, *, hop: int) -> State:
        """Follow relations (n,); hop 0 starts at anchors, hop 1 at the end of another projection."""
        ...

    def intersect(self, branches: Sequence[State]) -> State: ...

    def union(self, branches: Sequence[State]) -> State: ...

    def complement(self, state: State) -> State: ...

    def score(self, state: State, entities: Any = None) -> Any:
        """How well entities fit: all of them (n, N), or only those given, (m,) or (n, m)."""
        ...

    def stack(self, states: Sequence[State]) -> State:
        """The states of several batches as one batch."""
        ...

    def split(self, state: State, sizes: Sequence[int]) -> Sequence[State]:
        """A batch in parts of these sizes: what `stack` made one, apart again."""
        ...

    def kind(self, operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """Only states of one kind can be stacked; known before anything runs. `width` suits most methods.

        A static function, please: plans are remembered by it.
        """
        ...


def width(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
    """The width of a state in units of an anchor's: an intersection returns one, a union the sum, others keep it."""
    if operator in (Anchor, Intersect):
        return 1
    if operator is Union:
        return sum(unit for unit in below if isinstance(unit, int))
    return below[0]
