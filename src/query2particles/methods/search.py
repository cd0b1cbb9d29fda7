"""Questions as formulas over a link predictor, and the search for what makes an answer most true.

A question is a formula over variables: the answer, and one for every set on the way to it. Its atoms r(U, V) are as
true as a method finds the edge, p(u, r, v), given a link predictor that was trained on single edges; a t-norm ⊤ and its
co-norm ⊥ (`methods/truth`) join them. An answer v is as true as the best choice of the other variables makes the
formula:

    anchor        x(v) = [v = e]
    projection    x(v) = max_u x₁(u) ⊤ p(u, r, v)
    intersection  x(v) = x₁(v) ⊤ x₂(v) ⊤ …
    union         x(v) = x₁(v) ⊥ x₂(v) ⊥ …
    complement    x(v) = 1 − x₁(v)
    score         log x(v)

As a question is a tree, the best choice is found set by set: a state is x. The methods that search so differ in p, and
in which entities of a set they follow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.methods import links
from query2particles.methods.truth import FALSE, NORMS, NormName, negated
from query2particles.query.algebra import (
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    numbered,
    query_ids,
)

__all__ = ["Assigned", "Decomposition", "LogicSettings", "TreeSearch"]

_BLOCK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 31}
"""How much the truths of all links from the followed entities of a few queries may take."""


@dataclass(frozen=True, kw_only=True)
class LogicSettings(links.Settings):
    """Those of the link predictor, and of the logic on top of it, which is not trained."""

    t_norm: NormName = "product"
    """⊤"""


@dataclass(frozen=True)
class Assigned:
    """How true it is that an entity is in the set that a query stands for, and what the variables below are."""

    query: Query
    entity: int
    truth: float
    """x(v)"""
    link: float | None
    """p(u, r, v), of a projection."""
    below: tuple[Assigned, ...]
    """For each branch of the query: u, of a projection, and otherwise v again."""


class Decomposition(nn.Module):
    """A link predictor and a logic."""

    def __init__(self, entities: int, relations: int, settings: LogicSettings) -> None:
        super().__init__()
        self.links = links.Links(entities, relations, settings)
        self.norm = NORMS[settings.t_norm]

    @property
    def trainee(self) -> links.Links:
        """What is trained and saved."""
        return self.links

    @property
    def scorers(self) -> dict[str, links.Links]:
        """What scores single facts."""
        return {"links": self.links}

    def ids_of(self, query: Query) -> Tensor:
        """The ids of one query, (1, positions), where the link predictor is."""
        return torch.tensor([tuple(query_ids(query))], device=self.links.entities.device)


class TreeSearch(Decomposition):
    """Fuzzy sets of all entities, as logarithms of truths (n, N); that of an anchor is just its entity's id (n,)."""

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect, Union, Complement))

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """Single entities are kept apart from sets."""
        del below
        return operator is Anchor

    def anchor(self, entities: Tensor) -> Tensor:
        return entities

    @abstractmethod
    def project(self, state: Any, relations: Tensor, *, hop: int = 0) -> Any: ...

    def intersect(self, branches: Sequence[Any]) -> Tensor:
        return reduce(self.norm.both, map(self._truths, branches))

    def union(self, branches: Sequence[Any]) -> Tensor:
        return reduce(self.norm.either, map(self._truths, branches))

    def complement(self, state: Any) -> Tensor:
        return negated(self._truths(state))

    def score(self, state: Any, entities: Tensor | None = None) -> Tensor:
        x = self._truths(state)
        return x if entities is None else x.gather(1, entities.expand(len(x), -1))

    def stack(self, states: Sequence[Any]) -> Any:
        return torch.cat(list(states))

    def split(self, state: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return torch.split(state, list(sizes))

    @torch.no_grad()
    def assignments(self, query: Query, entity: int) -> Assigned:
        """The choice of entities for the variables of a query that makes an answer of it as true as it is."""
        plan = compile_shapes((numbered(query),), self.kind)
        states = execute(plan, self, [self.ids_of(query)], keep=True)

        def assigned(query: Query, node: int, v: int) -> Assigned:
            below, u, link = plan.nodes[node].below, v, None
            if isinstance(query, Project):
                several, x, p = self._led_from(states[below[0]], query.relation, v)
                best = int(self.norm.both(x, p).argmax())
                u, link = int(several[best]), float(p[best].exp())
            inner = (assigned(branch, one, u) for branch, one in zip(branches(query), below, strict=True))
            return Assigned(query, v, float(self._truths(states[node])[0, v].exp()), link, tuple(inner))

        return assigned(query, plan.roots[0], entity)

    def _links_at_once(self) -> int:
        """Of how many entities the links with all others fit the memory set aside for them."""
        table = self.links.entities
        limit = _BLOCK_BYTES["cuda" if table.is_cuda else "cpu"]
        return max(1, limit // (len(table) * table.element_size()))

    def _truths(self, state: Tensor) -> Tensor:
        """The whole set (n, N), of a single entity too."""
        if state.is_floating_point():
            return state
        table = self.links.entities
        return table.new_full((len(state), len(table)), FALSE).scatter(1, state[:, None], 0.0)

    @abstractmethod
    def _led_from(self, state: Any, relation: int, v: int) -> tuple[Tensor, Tensor, Tensor]:
        """The entities u of one set that may lead to v, log x(u) and log p(u, r, v), each (k,)."""
