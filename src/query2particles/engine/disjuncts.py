"""A shape with unions in one of three ways: what is executed for it, and how the scores of the parts become one.

native      the shape as it is, by the method's own operator
dnf         its disjuncts, unions lifted to the root; an entity's score is the best of them, or the method's `disjoin`
de-morgan   the shape with complements in place of unions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.method import Method, lacking
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import all_scores, ids_for
from query2particles.errors import UsageError
from query2particles.graph.edges import Ints
from query2particles.query.algebra import Query, Union
from query2particles.query.rewrite import Unions, de_morgan, lift_unions

__all__ = ["Disjuncts"]


@dataclass(frozen=True)
class Disjuncts:
    """What to execute for a shape, each over the same ids; the answers are those of any."""

    shapes: tuple[Query, ...]

    @staticmethod
    def of(shape: Query, unions: Unions) -> Disjuncts:
        match unions:
            case "native":
                return Disjuncts((shape,))
            case "de-morgan":
                return Disjuncts((de_morgan(shape),))
            case "dnf":
                lifted = lift_unions(shape)
                return Disjuncts(lifted.queries if isinstance(lifted, Union) else (lifted,))
        raise UsageError(f"unions are answered as one of {', '.join(get_args(Unions))}, not {unions!r}")

    def lacking(self, method: Method[Any]) -> list[str]:
        """What a method cannot do of all that, in words."""
        return lacking(method.operators, *self.shapes)

    def scores(self, method: Method[Any], ids: Ints, entities: int) -> Tensor:
        """The scores (n, entities) of n queries, in a matrix of its own."""
        own = ids_for(method, ids)
        states = execute(compile_shapes(self.shapes, method.kind), method, [own] * len(self.shapes))
        branches = (all_scores(method, state, entities) for state in states)
        disjoin = getattr(method, "disjoin", None)
        if disjoin is not None and len(self.shapes) > 1:
            return torch.as_tensor(disjoin(list(branches)))
        scores = next(branches)
        for other in branches:
            torch.maximum(scores, other, out=scores)
        return scores
