"""Answers of grounded queries without listing all of them: propose candidates along the edges, then verify.

`propose` gives every query a fixed number of candidates, each with a weight: how many answers it stands for, 0 if it is
none. Drawing one by weight gives an exact answer, and comes close to drawing uniformly among all answers.

    Project(Anchor e, r)   neighbouring tails of the row (e, r) from a random one on: all of them where they are few
    Project(A, r)          for each candidate of A a random tail, weighed by their number and the other ways to it
    Intersect              candidates of the branch that has fewest, verified in the others
    Union                  candidates of all branches, less those that an earlier branch has
    Complement             random entities, or heads of the relation that follows, verified

`member` verifies: yes, no, or neither where certainty would take too many look-ups. An entity is in Project(A, r) if
one of its sources under r is in A; of these only a bounded number is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeGuard

import torch
from torch import Tensor

from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union, branches
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.schedule import Schedule, Value

__all__ = [
    "Candidates",
    "complements_pushed_down",
    "is_one_hop",
    "walk_ends_in_answer",
    "walk_ends_outside",
]

_SOURCES = 16
"""How many sources of an entity are tried at most."""

_SOURCES_ALL_LEVELS = 64
"""How many together, where sources of sources are tried."""


@dataclass(frozen=True)
class Candidates:
    """Records the calls that propose and verify candidates for the queries of one shape.

    `ids` are the ids of the queries by position, `first_rows` the rows (e, r) of Project(Anchor e, r), by the
    position of r. The shape's complements are pushed down.
    """

    edges: DeviceEdges
    schedule: Schedule
    ids: Sequence[Value]
    first_rows: Mapping[int, Value]
    count: int  # of candidates for each query

    def propose(self, query: Query, before: int | None = None) -> tuple[Value, Value]:
        """Candidates and their weights; `before` is the position of the relation that is applied to the result."""
        call, edges, rows = self.schedule.call, self.edges, self.ids[0].rows
        both = [self.count, self.count]
        match query:
            case Anchor(position):
                values, weights = call(_single, self.ids[position], widths=both, fixed=[self.count])
            case Project(Anchor(), position):
                values, weights = self._window(self.first_rows[position])
            case Project(inner, position):
                heads = self.propose(inner, position)
                chance = self.schedule.uniform(rows, self.count)
                values, weights = call(edges.follow, *heads, self.ids[position], chance, widths=both)
            case Union(several):
                values, weights = self._propose_union(several, before)
            case Complement() | Intersect():
                several = branches(query) if isinstance(query, Intersect) else (query,)
                values, weights = self._propose_intersection(several, before)
        return values, weights

    def _window(self, row: Value) -> tuple[Value, Value]:
        start = self.schedule.uniform(row.rows)
        both = [self.count, self.count]
        values, weights = self.schedule.call(self.edges.window, row, start, widths=both, fixed=[self.count])
        return values, weights

    def _propose_intersection(self, several: Sequence[Query], before: int | None) -> tuple[Value, Value]:
        """Candidates of the shortest one-hop branch, or of a deeper one, or from everywhere; verified in the others."""
        call, apply, rows = self.schedule.call, self.schedule.apply, self.ids[0].rows
        both = [self.count, self.count]
        one_hop = [self.first_rows[branch.relation] for branch in several if is_one_hop(branch)]
        if len(one_hop) > 1:
            one_hop = list(call(self.edges.by_length, *one_hop, widths=[1] * len(one_hop)))
        deeper = [branch for branch in several if not is_one_hop(branch) and not _nearly_everything(branch)]
        proposed = [self._window(row) for row in one_hop[:1]] + [self.propose(branch) for branch in deeper]
        came_from: Sequence[Value] = ()
        if len(proposed) > 1:
            operands = (operand for pair in proposed for operand in pair)
            values, weights, *came_from = call(_fewest, *operands, widths=[*both, *(1 for _ in proposed)])
        elif proposed:
            values, weights = proposed[0]
        elif before is None:
            values, weights = call(self.edges.draw_entities, self.schedule.uniform(rows, self.count), widths=both)
        else:
            chance = self.schedule.uniform(rows, self.count)
            values, weights = call(self.edges.draw_heads, self.ids[before], chance, widths=both)
        passed = [apply(self.edges.has, row, values) for row in one_hop[len(proposed) == 1 :]]
        if len(proposed) > 1:
            for branch, own in zip(deeper, came_from[-len(deeper) :], strict=True):
                passed.append(apply(torch.logical_or, self.member(branch, values)[0], own))
        passed += [self.member(branch, values)[0] for branch in several if _nearly_everything(branch)]
        return values, reduce(partial(apply, torch.mul), passed, weights)

    def _propose_union(self, several: Sequence[Query], before: int | None) -> tuple[Value, Value]:
        proposed: list[Value] = []
        for number, branch in enumerate(several):
            values, weights = self.propose(branch, before)
            for earlier in several[:number]:
                found, _ = self.member(earlier, values)
                weights = self.schedule.apply(_unless, weights, found)
            proposed += values, weights
        chance = self.schedule.uniform(self.ids[0].rows, self.count * len(several))
        values, weights = self.schedule.call(_thinned, chance, *proposed, widths=[self.count, self.count])
        return values, weights

    def member(self, query: Query, values: Value) -> tuple[Value, Value]:
        """Whether each value is surely an answer, and whether it is surely none."""
        levels = max(1, _levels(query))
        limit = max(2, min(_SOURCES, int(_SOURCES_ALL_LEVELS ** (1 / levels))))
        return self._member(query, values, limit)

    def _member(self, query: Query, values: Value, limit: int) -> tuple[Value, Value]:
        call, apply, edges = self.schedule.call, self.schedule.apply, self.edges
        match query:
            case Anchor(position):
                yes = apply(torch.eq, values, self.ids[position])
                return yes, apply(torch.logical_not, yes)
            case Project(Anchor(), position):
                yes = apply(edges.has, self.first_rows[position], values)
                return yes, apply(torch.logical_not, yes)
            case Project(Project(Anchor(), first), position):
                into = apply(edges.rows_into, values, self.ids[position])
                two_flags = [values.width, values.width]
                yes, no = call(edges.share_tails, self.first_rows[first], into, widths=two_flags, fixed=[limit])
                return yes, no
            case Project(inner, position):
                into = apply(edges.rows_into, values, self.ids[position])
                widths = [values.width * limit, values.width * limit, values.width]
                sources, there, complete = call(edges.list_tails, into, widths=widths, fixed=[limit])
                below = self._member(inner, sources, limit)
                yes, no = call(_any, *below, there, complete, widths=[values.width, values.width], fixed=[limit])
                return yes, no
            case Complement(inner):
                yes, no = self._member(inner, values, limit)
                return no, yes
            case Intersect(several) | Union(several):
                found = [self._member(branch, values, limit) for branch in several]
                each_yes, each_no = zip(*found, strict=True)
                every, one = partial(apply, torch.logical_and), partial(apply, torch.logical_or)
                if isinstance(query, Union):
                    every, one = one, every
                return reduce(every, each_yes), reduce(one, each_no)


def complements_pushed_down(query: Query, negated: bool = False) -> Query:
    """The same question with complements of anchors and projections only: !!A = A, !(A & B) = !A | !B."""
    match query:
        case Complement(inner):
            return complements_pushed_down(inner, not negated)
        case Intersect(several) | Union(several):
            below = tuple(complements_pushed_down(branch, negated) for branch in several)
            return Intersect(below) if isinstance(query, Intersect) != negated else Union(below)
        case Project(inner, relation):
            query = Project(complements_pushed_down(inner), relation)
    return Complement(query) if negated else query


def walk_ends_in_answer(query: Query) -> bool:
    """Whether the entity that all branches were grounded from is an answer for sure."""
    match query:
        case Anchor():
            return True
        case Project(inner, _):
            return walk_ends_in_answer(inner)
        case Complement():
            return False
        case Intersect(several):
            return all(map(walk_ends_in_answer, several))
        case Union(several):
            return any(map(walk_ends_in_answer, several))


def walk_ends_outside(query: Query) -> bool:
    """Whether the entity that all branches were grounded from is no answer for sure, as a complement excludes it."""
    match query:
        case Anchor() | Project():
            return False
        case Complement(inner):
            return walk_ends_in_answer(inner)
        case Intersect(several):
            return any(map(walk_ends_outside, several))
        case Union(several):
            return all(map(walk_ends_outside, several))


def is_one_hop(query: Query) -> TypeGuard[Project]:
    return isinstance(query, Project) and isinstance(query.query, Anchor)


def _nearly_everything(query: Query) -> bool:
    """Whether the answers are all entities but a few: no candidates are proposed from there if there is a choice."""
    match query:
        case Anchor() | Project():
            return False
        case Complement():
            return True
        case Intersect(several):
            return all(map(_nearly_everything, several))
        case Union(several):
            return any(map(_nearly_everything, several))


def _levels(query: Query) -> int:
    """How many times `member` goes from entities to their sources."""
    below = max(map(_levels, branches(query)), default=0)
    return below + (isinstance(query, Project) and not isinstance(query.query, Anchor))


def _single(entities: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """One candidate with weight 1, and dummies."""
    weights = torch.zeros(len(entities), width, dtype=torch.float64, device=entities.device)
    weights[:, 0] = 1
    return entities.expand(-1, width), weights


def _fewest(*proposed: Tensor) -> tuple[Tensor, ...]:
    """Of several (candidates, weights) those that stand for fewest answers, but some; and for each, if they are it."""
    several, weights = torch.stack(proposed[::2]), torch.stack(proposed[1::2])  # (branches, n, width)
    totals = weights.sum(-1)
    best = torch.where(totals > 0, totals, torch.inf).argmin(0)
    chosen = best.view(1, -1, 1).expand(1, *several.shape[1:])
    flags = (best == number for number in range(len(several)))
    return several.gather(0, chosen)[0], weights.gather(0, chosen)[0], *(flag[:, None] for flag in flags)


def _thinned(uniform: Tensor, *proposed: Tensor) -> tuple[Tensor, Tensor]:
    """As many of several (candidates, weights) as one has, by priority sampling.

    Keep those of the highest priorities w / u; with τ the highest of the others, max(w, τ) is an unbiased weight.
    """
    values, weights = torch.cat(proposed[::2], dim=1), torch.cat(proposed[1::2], dim=1)
    width = proposed[0].shape[1]
    priorities, places = (weights / (1 - uniform)).topk(width + 1, dim=1)
    kept, places = priorities[:, :width] > 0, places[:, :width]
    return values.gather(1, places), torch.maximum(weights.gather(1, places), priorities[:, width:]) * kept


def _unless(weights: Tensor, flags: Tensor) -> Tensor:
    return weights * ~flags


def _any(yes: Tensor, no: Tensor, there: Tensor, complete: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Whether any of an entity's sources passes; surely none does only where all of them were tried."""
    shape = (*complete.shape, limit)
    return (yes & there).view(shape).any(-1), (no | ~there).view(shape).all(-1) & complete
