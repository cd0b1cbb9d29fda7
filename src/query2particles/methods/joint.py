"""Particles, tree search and stored facts together: what each says about an entity, weighed by the kind of the query.

A query is answered by all parts at once, and an entity v has five features:

    x₁(v)   log softmax over all entities of the score that a method of vectors gives, such as Query2Particles
    x₂(v)   the logarithm of the truth that tree search finds (`methods/tree`) by all ways to v, no less than −30
    x₃(v)   the same by the best way
    x₄(v)   whether stored edges make it an answer
    x₅(v)   how many conditions of the query no stored edge satisfies, as `RelaxAndCount` counts, negated

    score(v) = Σᵢ w_i x_i(v)            w: one row for each family of queries

The family of a query is which of these it has: more than one hop in a row, an intersection, a union, a complement. The
weights are fitted to validation queries (`joining`). What x₄ is for: where there is a complement, a fact that is not
stored makes entities answers that are none. Of what is known, that is what may have to be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from query2particles.engine.method import paired
from query2particles.engine.ranks import all_scores
from query2particles.graph.edges import Edges
from query2particles.methods.search import Assigned
from query2particles.methods.stored import StoredEdges
from query2particles.methods.tree import WAYS, Tree
from query2particles.query.algebra import Query

__all__ = ["ALONE", "FAMILIES", "FEATURES", "Joint", "JointState", "family_name"]

ALONE = ("vectors", "all ways", "best way")
"""What can answer by itself: the search in each of its `WAYS`."""

FEATURES = (*ALONE, "known", "missing")

_HOPS, _INTERSECTION, _UNION, _COMPLEMENT = 1, 2, 4, 8
FAMILIES = 16
"""Every combination of the four is one."""

_NAMES = {_HOPS: "several hops", _INTERSECTION: "intersection", _UNION: "union", _COMPLEMENT: "complement"}

_LEAST_TRUTH = -30.0


def family_name(family: int) -> str:
    """What the queries of a family have."""
    return ", ".join(name for bit, name in _NAMES.items() if family & bit) or "one hop"


class JointState(NamedTuple):
    """The states of the parts for n queries, and the family of each."""

    vectors: Any
    truths: Tensor  # (n, ways, N), or those of an anchor as the search has them
    missing: Tensor  # (n, N) conditions that each entity misses
    conditions: Tensor  # (n,) how many there are
    family: Tensor  # (n,)


class Joint(nn.Module):
    """Over a method of vectors and a tree search, both trained on the same graph."""

    replayed: ClassVar[bool] = False

    def __init__(self, vectors: Any, tree: Tree, edges: Edges, weights: Tensor) -> None:
        super().__init__()
        self.vectors, self.tree = vectors, tree
        self.operators: frozenset[type[Query]] = frozenset(vectors.operators) & Tree.operators
        self.conditions = Conditions(tree.by_relation, edges.entities)
        self.register_buffer("weights", weights)  # (families, features)
        self._entities = edges.entities
        self.kind = paired(vectors.kind, Tree.kind)

    weights: Tensor

    def attach(self, edges: Edges) -> None:
        """What is stored from now on."""
        self.tree.attach(edges)
        self.conditions = Conditions(self.tree.by_relation, edges.entities)

    @property
    def scorers(self) -> dict[str, Any]:
        """What scores single facts."""
        return {"particles": self.vectors, "links": self.tree.links}

    @property
    def left_out(self) -> str:
        """What the search left out so far."""
        return self.tree.left_out

    def anchor(self, entities: Tensor) -> JointState:
        return JointState(
            self.vectors.anchor(entities),
            self.tree.anchor(entities),
            *self.conditions.anchor(entities),
            torch.zeros_like(entities),
        )

    def project(self, state: JointState, relations: Tensor, *, hop: int = 0) -> JointState:
        return JointState(
            self.vectors.project(state.vectors, relations, hop=hop),
            self.tree.projected(state.truths, relations, WAYS),
            *self.conditions.project(state.missing, state.conditions, relations),
            state.family | (_HOPS if hop else 0),
        )

    def intersect(self, branches: Sequence[JointState]) -> JointState:
        vectors, truths, missing, conditions, families = zip(*branches, strict=True)
        return JointState(
            self.vectors.intersect(vectors),
            self.tree.intersect(list(map(self._sets, truths))),
            reduce(torch.add, missing),
            reduce(torch.add, conditions),
            reduce(torch.bitwise_or, families) | _INTERSECTION,
        )

    def union(self, branches: Sequence[JointState]) -> JointState:
        vectors, truths, missing, conditions, families = zip(*branches, strict=True)
        return JointState(
            self.vectors.union(vectors),
            self.tree.union(list(map(self._sets, truths))),
            reduce(torch.minimum, missing),
            reduce(torch.minimum, conditions),
            reduce(torch.bitwise_or, families) | _UNION,
        )

    def complement(self, state: JointState) -> JointState:
        return JointState(
            self.vectors.complement(state.vectors),
            self.tree.complement(self._sets(state.truths)),
            (state.missing == 0) * state.conditions[:, None],
            state.conditions,
            state.family | _COMPLEMENT,
        )

    def score(self, state: JointState, entities: Tensor | None = None) -> Tensor:
        weights = self.weights[state.family]  # (n, features)
        weighted = [w[:, None] * x for w, x in zip(weights.unbind(1), self.features(state), strict=True)]
        scores = reduce(torch.add, weighted)
        return scores if entities is None else scores.gather(1, entities.expand(len(scores), -1))

    def features(self, state: JointState) -> list[Tensor]:
        """x₁ … x₅, each (n, N)."""
        return [
            all_scores(self.vectors, state.vectors, self._entities).log_softmax(1),
            *self._sets(state.truths).clamp(min=_LEAST_TRUTH).unbind(1),
            (state.missing == 0).float(),
            -state.missing.float(),
        ]

    def _sets(self, truths: Tensor) -> Tensor:
        """Also an anchor's as (n, ways, N)."""
        return truths if truths.is_floating_point() else self.tree.score(truths)[:, None].expand(-1, len(WAYS), -1)

    def assignments(self, query: Query, entity: int) -> Assigned:
        """What the search takes the variables for."""
        return self.tree.assignments(query, entity)

    def stack(self, states: Sequence[JointState]) -> JointState:
        vectors, truths, *others = zip(*states, strict=True)
        return JointState(self.vectors.stack(vectors), self.tree.stack(truths), *map(torch.cat, others))

    def split(self, state: JointState, sizes: Sequence[int]) -> Sequence[JointState]:
        parts = (
            self.vectors.split(state.vectors, sizes),
            self.tree.split(state.truths, sizes),
            *(torch.split(one, list(sizes)) for one in state[2:]),
        )
        return [JointState(*part) for part in zip(*parts, strict=True)]


class Conditions(nn.Module):
    """The counts of `RelaxAndCount`, on the device of the parts: how many conditions each entity misses, m (n, N)."""

    def __init__(self, edges: StoredEdges, entities: int) -> None:
        super().__init__()
        self.edges, self._entities = edges, entities

    def anchor(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        missing = entities.new_ones(len(entities), self._entities, dtype=torch.int32)
        return missing.scatter(1, entities[:, None], 0), missing.new_ones(len(entities))

    def project(self, missing: Tensor, conditions: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """m(v) = min { m₁(h) : (h, r, v) is stored }, and one more condition than before, which all others miss too."""
        conditions = conditions + 1
        found = conditions[:, None].repeat(1, self._entities)
        for some, rows, heads, tails in self.edges.of(relations):
            places = rows * self._entities + tails
            found[some].view(-1).scatter_reduce_(0, places, missing[some][rows, heads], "amin")
        return found, conditions
