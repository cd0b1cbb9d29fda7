"""What facts that are still missing cannot change: who is an answer for good, and who never will be.

Missing facts can only be added. Where they may add to a set and take nothing from it, what stored facts say of it is
certain; a complement turns that around. Both bounds of a query are queries themselves, over the same ids:

    certain(e) = e          certain(A.r) = certain(A).r         certain(!A) = refuted(A)
    refuted(e) = !e         refuted(A.r) = nothing              refuted(!A) = certain(A)

    certain(A & B) = certain(A) & certain(B)                    refuted(A & B) = refuted(A) | refuted(B)
    certain(A | B) = certain(A) | certain(B)                    refuted(A | B) = refuted(A) & refuted(B)

None stands for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union

__all__ = ["certain", "refuted"]


def certain(query: Query) -> Query | None:
    """The query whose exact answers stay answers of this one, whatever facts are added."""
    match query:
        case Anchor():
            return query
        case Project(inner, relation):
            below = certain(inner)
            return None if below is None else Project(below, relation)
        case Complement(inner):
            return refuted(inner)
        case Intersect(several):
            return _all(Intersect, list(map(certain, several)))
        case Union(several):
            return _any(Union, list(map(certain, several)))


def refuted(query: Query) -> Query | None:
    """The query whose exact answers never become answers of this one, whatever facts are added."""
    match query:
        case Anchor():
            return Complement(query)
        case Project():
            return None
        case Complement(inner):
            return certain(inner)
        case Intersect(several):
            return _any(Union, list(map(refuted, several)))
        case Union(several):
            return _all(Intersect, list(map(refuted, several)))


Join = Callable[[tuple[Query, ...]], Query]


def _all(join: Join, several: Sequence[Query | None]) -> Query | None:
    """All of them together; nothing where one is nothing."""
    found = [one for one in several if one is not None]
    return join(tuple(found)) if len(found) == len(several) else None


def _any(join: Join, several: Sequence[Query | None]) -> Query | None:
    """Those that are something."""
    found = [one for one in several if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    return join(tuple(found))
