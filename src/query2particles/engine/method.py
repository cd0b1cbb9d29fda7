"""The whole contract between the engine and a paper.

A method says what a set of entities looks like inside it (its *state*, batch first) and what the five operators do to
states. The engine never looks inside a state; it only stacks and slices them by the method's own `stack` and `split`.

Beyond this protocol a method has those of `intersect(branches)`, `union(branches)` and `complement(state)` that its
`operators` name, and may have, where the engine would otherwise do the usual thing:

    factors(state, entities=None)   scores as best inner products (engine/ranks.Factored): fast ranks, fast softmax
    precise = True                  those products need float32 in training, too
    disjoin(scores)                 the score of a union lifted to the root, from those of its branches; else the best
    penalty(shape, ids, positives)  what training adds to the loss of some queries of one shape
    trainee                         the module that is trained and saved in place of the method
    attach(edges)                   the training edges, before it is trained or asked
    scorers                         the methods that score single facts in its place, by name (calibration/facts)
    left_out                        what a search had to leave out so far, in a sentence; empty where nothing
    replayed = False                scoring looks at values or takes many steps: no CUDA graph of it (engine/scored)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union, branches

__all__ = ["Kind", "Method", "lacking", "paired", "width"]

State = TypeVar("State")
Kind: TypeAlias = Callable[[type[Query], Sequence[Hashable]], Hashable]


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


_IN_WORDS = {Project: "projection", Intersect: "intersection", Union: "union", Complement: "complement"}


def lacking(operators: Set[type[Query]], *queries: Query) -> list[str]:
    """What these queries need that is not among the operators, in words."""

    def needed(query: Query) -> set[type[Query]]:
        return {type(query)}.union(*map(needed, branches(query)))

    missing = set().union(*map(needed, queries)) - operators
    return [words for operator, words in _IN_WORDS.items() if operator in missing]


def width(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
    """The width of a state in units of an anchor's: an intersection returns one, a union the sum, others keep it."""
    if operator in (Anchor, Intersect):
        return 1
    if operator is Union:
        return sum(unit for unit in below if isinstance(unit, int))
    return below[0]


@lru_cache
def paired(first: Kind, second: Kind) -> Kind:
    """Of states that are made of two: what both can stack. For the same two the same function, as plans need it."""

    def both(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        pairs = [one for one in below if isinstance(one, tuple)]
        return first(operator, [one for one, _ in pairs]), second(operator, [other for _, other in pairs])

    return both
