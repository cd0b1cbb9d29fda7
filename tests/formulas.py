"""Questions as fuzzy formulas over links, by brute force: all entities for all variables, a number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.methods.search import Assigned
from query2particles.methods.truth import NormName
from query2particles.methods.walks import Walks
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    anchor_positions,
    branches,
    ground,
    numbered,
    query_ids,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Join: TypeAlias = Callable[[float, float], float]

ENTITIES, STORED_RELATIONS = 5, 2
NORMS: dict[NormName, tuple[Join, Join]] = {
    "product": (lambda a, b: a * b, lambda a, b: a + b - a * b),
    "godel": (min, max),
    "lukasiewicz": (lambda a, b: max(0.0, a + b - 1), lambda a, b: min(1.0, a + b)),
}


WALKS = Walks(
    torch.tensor([[2, 0], [3, -1], [1, 3], [-1, -1]]),
    torch.tensor([[-1, 3], [0, -1], [-1, -1], [-1, -1]]),
    torch.tensor([[0.3, 0.4], [0.9, 0.0], [0.2, 0.5], [0.0, 0.0]], dtype=torch.float64),
)
"""Of each directed relation, in a graph too small to fit any: paths of one step and of two, and none."""


def inner_variables(query: Query) -> int:
    """All but the answer: one for every projection that does not leave an anchor."""
    own = isinstance(query, Project) and not isinstance(query.query, Anchor)
    return own + sum(map(inner_variables, branches(query)))


def with_random_weights(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    return model


def random_queries(
    shape: Query, count: int = 3, seed: int = 0, *, entities: int = ENTITIES, stored_relations: int = STORED_RELATIONS
) -> list[Query]:
    limits = np.full(len(tuple(query_ids(shape))), 2 * stored_relations)
    limits[anchor_positions(shape)] = entities
    rows = np.random.default_rng(seed).integers(limits, size=(count, len(limits)))
    return [ground(shape, row) for row in rows.tolist()]


def state_of(model: Any, several: Sequence[Query]) -> Any:
    """Of queries of one shape."""
    ids = torch.tensor([tuple(query_ids(query)) for query in several])
    with torch.no_grad():
        (state,) = execute(compile_shapes((numbered(several[0]),), model.kind), model, [ids])
    return state


def scores_of(model: Any, several: Sequence[Query]) -> Floats:
    """Of queries of one shape."""
    with torch.no_grad():
        found: Floats = model.score(state_of(model, several)).numpy()
    return found


@dataclass(frozen=True)
class Formula:
    """What a search has to find: `link` is p(u, r, v).

    Of a set, the `beam` best are followed, as far as they have the `least` share of the truth of the best; all where
    the link is `stored`. Several ways to an entity are joined by `way`: the best of them, or any.
    """

    link: Callable[[int, int, int], float]
    t_norm: NormName
    entities: int
    beam: int
    least: float = 0.0
    stored: Set[tuple[int, int, int]] = frozenset()
    way: Literal["best", "any"] = "best"
    scale: float = 1.0
    by_edge: bool = False
    """Whether the complement of a projection is that of an edge from an entity that is followed."""

    def truth(self, query: Query, v: int) -> float:
        """x(v), by the definition of each operator."""
        both, either = NORMS[self.t_norm]
        match query:
            case Anchor(e):
                return float(v == e)
            case Complement(Project(inner, r)) if self.by_edge:
                return max(both(x, max(0.0, 1 - self.scale * self.link(u, r, v))) for x, u in self.followed(inner))
            case Project(inner, r):
                sources = [(self.truth(inner, u), u) for u in range(self.entities)]
                counting = {u for _, u in self.followed(inner)}
                counting |= {u for u in range(self.entities) if (u, r, v) in self.stored}
                reached = (both(x, self.link(u, r, v)) for x, u in sources if u in counting)
                return reduce(either if self.way == "any" else max, reached)
            case Intersect(several):
                return reduce(both, (self.truth(branch, v) for branch in several))
            case Union(several):
                return reduce(either, (self.truth(branch, v) for branch in several))
            case Complement(inner):
                return max(0.0, 1 - self.scale * self.truth(inner, v))
        raise AssertionError(query)

    def followed(self, query: Query) -> list[tuple[float, int]]:
        """How true the entities of a set are that links are predicted from, and which these are."""
        sources = [(self.truth(query, u), u) for u in range(self.entities)]
        truest = sorted(sources, key=lambda one: (-one[0], one[1]))[: self.beam]
        return [(x, u) for x, u in truest if x >= self.least * truest[0][0]]

    def best_of_all(self, query: Query, v: int) -> float:
        """The definition of the paper: one maximum over all variables at once, not one after the other."""
        both, either = NORMS[self.t_norm]

        def under(query: Query, v: int, chosen: list[int]) -> float:
            match query:
                case Project(Anchor(e), r):
                    return self.link(e, r, v)
                case Project(inner, r):
                    u = chosen.pop()
                    return both(under(inner, u, chosen), self.link(u, r, v))
                case _:
                    parts = [under(branch, v, chosen) for branch in branches(query)]
                    return reduce(either if isinstance(query, Union) else both, parts)

        choices = product(range(self.entities), repeat=inner_variables(query))
        return max(under(query, v, list(chosen)) for chosen in choices)


def check_assignments(formula: Formula, model: Any, query: Query) -> None:
    """Every number is what the definition says, and every chosen entity reaches it."""
    both, _ = NORMS[formula.t_norm]
    scores = scores_of(model, [query])[0]
    for v in range(formula.entities):
        root = model.assignments(query, v)
        assert root.truth == pytest.approx(math.exp(scores[v]))
        for one in nodes(root):
            assert one.truth == pytest.approx(formula.truth(one.query, one.entity), abs=1e-9)
            assert [below.query for below in one.below] == list(branches(one.query))
            if isinstance(one.query, Project):
                (below,) = one.below
                assert one.link == pytest.approx(formula.link(below.entity, one.query.relation, one.entity))
                assert one.truth == pytest.approx(both(below.truth, one.link or 0.0), abs=1e-9)
            else:
                assert one.link is None
                assert all(below.entity == one.entity for below in one.below)


def nodes(root: Assigned) -> list[Assigned]:
    return [root, *(one for below in root.below for one in nodes(below))]
