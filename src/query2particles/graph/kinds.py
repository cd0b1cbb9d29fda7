"""Kinds of entities, learned from the roles that they play in stored facts; no type needs to be stored.

A *role* is a directed relation that leaves an entity: the head of a fact of r has the role r, its tail the role r⁻¹. So
"can v be a tail of r" asks whether v can have the role r⁻¹. An entity that has the role can. Of any other, the roles
that it does have tell, by how much more often they go together with ρ than chance would have it:

    lift(v, ρ) = max_q  (n(q, ρ) / b(ρ) + 1) / (n(q) + 1)          q ≠ ρ: the roles of v

with n(q) the number of entities that have the role q, n(q, ρ) of those that have both, and b(ρ) the share of all
entities that have ρ. One role that goes together with ρ is enough: whoever plays several parts is not ruled out by the
others. Of an entity without any other role nothing is known, and its lift is 1.

How low a lift rules a role out is learned from rare but legal roles. Every entity with a single fact of a role is asked
as if it did not have it (its own part in n is taken out), and the threshold is lower than all but `_LOST` of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from query2particles.graph.edges import Edges, Ints

__all__ = ["Kinds"]

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_LOST = 0.005
"""The share of legal single roles that may be ruled out."""

_FURTHEST = 7.0
"""No logarithm of a lift is further from 0."""

_SINGLE = 200_000
"""So many single roles, at most, tell how low a lift legal ones have."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """What entities can be heads and tails of, as far as the edges of one level tell."""

    edges: Edges

    def has(self, entities: Ints, roles: Ints) -> Flags:
        """Whether each entity has each role, elementwise (m,)."""
        found: Flags = self.edges.lengths_of(entities, roles) > 0
        return found

    def lift(self, entities: Ints, roles: Ints) -> Floats:
        """The lift of each entity in each role, elementwise (m,), as if it did not have the role."""
        pair, own, role, _ = self._other_roles(entities, roles)
        left_out = self.has(entities, roles)[pair]
        lifts = ((self._together_at(own, role) - left_out) / self._base[role] + 1) / (self.counts[own] - left_out + 1)
        found = np.where(np.bincount(pair, minlength=len(entities)) > 0, 0.0, 1.0)
        np.maximum.at(found, pair, lifts)
        return found

    def log_lift(self, entities: Ints, roles: Ints) -> Floats:
        """The logarithm of the lift, within bounds: a role that nothing speaks for is −∞ otherwise."""
        return np.clip(np.log(np.maximum(self.lift(entities, roles), 1e-9)), -_FURTHEST, _FURTHEST)

    def usual(self, entities: Ints, roles: Ints) -> Floats:
        """How many facts of each role are usual for an entity with as many facts of its other roles, elementwise (m,).

        The most that one of its other roles q says: its facts of q, times those of ρ that entities with q have for
        each of theirs of q. Who has many of q and none of ρ, though both go together, is probably of another kind.
        """
        pair, own, role, facts = self._other_roles(entities, roles)
        found = np.zeros(len(entities))
        ratios = self._at(self._facts_together, own, role) / np.maximum(self.edges.edges_by_relation[own], 1)
        np.maximum.at(found, pair, facts * ratios)
        return found

    def _other_roles(self, entities: Ints, roles: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """For each of m entities its roles but one: which of the m, the role, the one, and how many facts it has."""
        first, after = self.edges.row_range(entities)
        counts = (after - first).astype(np.int64)
        pair = np.repeat(np.arange(len(entities)), counts)
        rows = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(pair))
        own, role = self.edges.keys[rows] % self.edges.relations, roles.astype(np.int64)[pair]
        others = np.flatnonzero(own != role)
        return pair[others], own[others], role[others], self.edges.lengths_at(rows[others])

    def can(self, entities: Ints, roles: Ints) -> Flags:
        """Whether each entity can have each role, elementwise (m,)."""
        found = self.has(entities, roles)
        unseen = np.flatnonzero(~found)
        found[unseen] = self.lift(entities[unseen], roles[unseen]) >= self.threshold
        return found

    def all_that_can(self, role: int) -> Flags:
        """(entities,): which entities can have a role."""
        together = self._together_at(np.arange(self.edges.relations), np.full(self.edges.relations, role))
        allowed = (together / self._base[role] + 1) / (self.counts + 1) >= self.threshold
        allowed[role] = True
        known, found = (np.zeros(self.edges.entities, dtype=bool) for _ in range(2))
        for keys, _ in self.edges.row_blocks():
            entities, roles = np.divmod(keys, self.edges.relations)
            known[entities] = True
            found[entities[allowed[roles]]] = True
        return found | ~known

    @cached_property
    def threshold(self) -> float:
        """The least lift of a role that is not ruled out: at most 1, which is that of entities nothing is known of."""
        single = np.concatenate([keys[lengths == 1] for keys, lengths in self.edges.row_blocks()])
        if not len(single):
            return 0.0
        some = single[np.linspace(0, len(single) - 1, min(len(single), _SINGLE)).astype(np.int64)]
        lifts = self.lift(*np.divmod(some, self.edges.relations))
        return min(1.0, float(np.quantile(lifts, _LOST, method="lower")))

    @cached_property
    def counts(self) -> Floats:
        """(roles,): n(q)."""
        found: Floats = self._together.diagonal().astype(np.float64)
        return found

    @cached_property
    def _base(self) -> Floats:
        """(roles,): b(ρ); of a role that nobody has, as if one entity did."""
        found: Floats = np.maximum(self.counts, 1) / self.edges.entities
        return found

    def _together_at(self, own: Ints, role: Ints) -> Floats:
        """n(q, ρ), elementwise."""
        return self._at(self._together, own, role)

    @staticmethod
    def _at(table: sparse.csr_array, own: Ints, role: Ints) -> Floats:
        if not len(own):
            return np.zeros(0)
        return np.asarray(table[own, role], dtype=np.float64).ravel()

    @cached_property
    def _together(self) -> sparse.csr_array:
        """(roles, roles): n(q, ρ)."""
        return self._summed(of_facts=False)

    @cached_property
    def _facts_together(self) -> sparse.csr_array:
        """(roles, roles): the facts of ρ of all entities that have q."""
        return self._summed(of_facts=True)

    def _summed(self, *, of_facts: bool) -> sparse.csr_array:
        shape = (self.edges.entities, self.edges.relations)
        found = sparse.csr_array((self.edges.relations, self.edges.relations), dtype=np.int64)
        for keys, lengths in self.edges.row_blocks():
            entities, roles = np.divmod(keys, self.edges.relations)
            ones = np.ones(len(roles), dtype=np.int64)
            has = sparse.csr_array((ones, (entities, roles)), shape=shape)
            counted = sparse.csr_array((lengths.astype(np.int64), (entities, roles)), shape=shape) if of_facts else has
            found = found + has.T @ counted  # an entity whose rows lie in two blocks counts a little less
        return sparse.csr_array(found)
