"""Shapes grounded backwards from random answers, each row with a positive: the recorded form of `workload/sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from query2particles.errors import UsageError
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    nickname,
    numbered,
    query_ids,
)
from query2particles.workload.candidates import (
    Candidates,
    complements_pushed_down,
    is_one_hop,
    walk_ends_in_answer,
    walk_ends_outside,
)
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.schedule import Schedule, Value

__all__ = ["Grounding", "Groundings", "Part", "leaves"]


class Grounding(Enum):
    """How a part's queries get their ids and their positive."""

    WALK = "walk"
    """Backwards from one answer through all branches; the positive answers the query. One-hop queries (1p) are not
    walked: every stored (head, relation) is as likely."""

    ONE_HOP = "one hop"
    """Every one-hop branch is a stored (head, relation) of its own, each as likely; the positive answers the *first*.
    With shape 2u this is a one-hop query united with another; with shape n(p(e)) it is the complement of a one-hop
    query, and the positive is what the complement must not have."""

    UNITED = "united"
    """As `ONE_HOP`, where every branch is that of a random edge, each as likely, and the positive answers any of them,
    every answer of the union as likely: the more answers a branch has, the more of the positives are its own."""

    EDGE = "edge"
    """As `WALK`, where it starts from a random edge and takes a random edge at every step, each as likely: answers come
    as often as edges lead to them, and queries with many answers more often."""

    STORED = "stored"
    """They are not grounded: they come from a folder of queries."""


_APART = (Grounding.ONE_HOP, Grounding.UNITED)


@dataclass(frozen=True)
class Part:
    """`count` queries of one shape in every draw."""

    shape: Query
    count: int
    grounding: Grounding = Grounding.WALK

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(
                f"a part of {self.count} {nickname(self.shape)} queries: ask for one or more, or leave it out"
            )
        if self.grounding in _APART and not all(map(is_one_hop, leaves(self.shape))):
            raise UsageError(f"{nickname(self.shape)} has other than one-hop branches: ground it by a walk")

    @property
    def positions(self) -> int:
        return len(tuple(query_ids(self.shape)))

    @property
    def one_hop(self) -> bool:
        """Whether each one-hop branch is drawn on its own."""
        return self.grounding in _APART or self.shape == SHAPES["1p"]


def leaves(query: Query) -> list[Query]:
    """The projections and anchors below unions, intersections and complements."""
    if isinstance(query, Anchor | Project):
        return [query]
    return [leaf for branch in branches(query) for leaf in leaves(branch)]


@dataclass(frozen=True)
class _Grounded:
    """The recorded draw of one part's rows."""

    ids: list[Value]
    choices: list[Value]  # how many each step back had
    answer: Value  # that the walk started from
    answer_fits: bool  # whether it always answers the query
    excluded: bool  # whether it never does
    candidates: Value
    weights: Value


def _ground(edges: DeviceEdges, schedule: Schedule, part: Part, rows: int, candidates: int) -> _Grounded:
    ids: dict[int, Value] = {}
    first_rows: dict[int, Value] = {}
    choices: list[Value] = []
    nothing = schedule.constant(edges.no_row, rows)
    by_edge = part.grounding in (Grounding.EDGE, Grounding.UNITED)
    step_back = edges.step_back_by_edge if by_edge else edges.step_back

    def walk(query: Query, target: Value, barred: Value) -> None:
        match query:
            case Anchor(position):
                ids[position] = target
            case Project(inner, position):
                chance = schedule.uniform(rows, 2)
                step = schedule.call(step_back, target, barred, chance, widths=[1, 1, 1, 1])
                ids[position], source, first_rows[position], number = step
                choices.append(number)
                walk(inner, source, first_rows[position])
            case Complement(inner):
                walk(inner, target, barred)
            case Intersect(several) | Union(several):
                for branch in several:
                    walk(branch, target, nothing)

    if part.one_hop:
        for leaf in leaves(part.shape):
            anchor, position = query_ids(leaf)
            draw = edges.draw_rows_by_edge if by_edge else edges.draw_rows
            step = schedule.call(draw, schedule.uniform(rows), widths=[1, 1, 1])
            ids[anchor], ids[position], first_rows[position] = step
        answer, answered = ids[0], part.shape if part.grounding is Grounding.UNITED else leaves(part.shape)[0]
    else:
        draw_answers = edges.draw_answers_by_edge if by_edge else edges.draw_answers
        answer, answered = schedule.apply(draw_answers, schedule.uniform(rows)), part.shape
        walk(answered, answer, nothing)
    answered = complements_pushed_down(answered)
    answer_fits = walk_ends_in_answer(answered) and not part.one_hop
    excluded = walk_ends_outside(answered) and not part.one_hop
    in_order = [ids[position] for position in range(len(ids))]
    proposed = Candidates(edges, schedule, in_order, first_rows, candidates).propose(answered)
    return _Grounded(in_order, choices, answer, answer_fits, excluded, *proposed)


class Groundings:
    """Groundings of all parts with a positive each, usable or not, one part below the other."""

    def __init__(
        self,
        edges: DeviceEdges,
        parts: Sequence[Part],
        rows: Sequence[int],
        candidates: int,
        cap: float,
    ) -> None:
        self._cap = cap
        schedule = Schedule()
        each = zip(parts, rows, strict=True)
        grounded = [_ground(edges, schedule, part, count, candidates) for part, count in each]
        columns = dict.fromkeys(value for part in grounded for value in (*part.ids, *part.choices))
        results = [value for part in grounded for value in (part.answer, part.candidates, part.weights)]
        self._program = schedule.compile([*columns, *results], edges.device)
        self._total = sum(rows)
        self.uniforms = self._total + self._program.uniforms
        self._answers = self._program.reader([part.answer for part in grounded])
        self._candidates = self._program.reader([part.candidates for part in grounded])
        self._weights = self._program.reader([part.weights for part in grounded])
        self._answer_fits, self._excluded = (
            torch.from_numpy(np.repeat(flags, rows)).to(edges.device)[:, None]
            for flags in ([part.answer_fits for part in grounded], [part.excluded for part in grounded])
        )

        # All columns come as one vector with a 0 and a 1 at its end; what belongs to a row is picked out of it.
        in_order = self._program.in_memory_order(columns)
        self._columns = self._program.reader(in_order)
        self._ends = torch.tensor([[0], [1]], device=edges.device)
        starts = dict(zip(in_order, np.cumsum([0] + [value.rows for value in in_order]).tolist(), strict=False))
        zero = sum(value.rows for value in in_order)

        def index(values: Sequence[Sequence[Value]], filler: int) -> Tensor:
            """(rows, n): where the n values of each part's rows are."""
            cells = np.full((self._total, max(map(len, values))), filler)
            for part_cells, part_values in zip(np.split(cells, np.cumsum(rows)[:-1]), values, strict=True):
                for column, value in enumerate(part_values):
                    part_cells[:, column] = starts[value] + np.arange(len(part_cells))
            return torch.from_numpy(cells).to(edges.device)

        self._ids = index([part.ids for part in grounded], zero)
        self._choices = index([part.choices for part in grounded], zero + 1)
        pairs = [[] if part.one_hop else _comparable_branches(part.shape) for part in parts]
        self._compared = max((len(one) for several in pairs for one, _ in several), default=0)
        self._some, self._others = (
            index(
                [
                    [part.ids[position] for pair in several for position in _filled(pair[side], self._compared)]
                    for part, several in zip(grounded, pairs, strict=True)
                ],
                filler,
            )
            for side, filler in ((0, zero), (1, zero + 1))  # where there is nothing to compare, 0 and 1: not equal
        )

    def draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Ids (rows, positions); and for each row its positive, its excluded entity, how many answers there are, as far
        as the candidates tell, and whether it is a query with all of these.
        """
        chance = uniforms[: self._total, None]
        tensors = self._program.run(uniforms[self._total :])
        columns = torch.cat([self._columns(tensors), self._ends]).squeeze(1)
        usable = (columns[self._choices] > 0).all(1)
        if self._compared:
            same = (columns[self._some] == columns[self._others]).view(self._total, -1, self._compared)
            usable &= ~same.all(2).any(1)
        # The candidate at which the running sum of weights passes a random share of the whole. Sums are rounded: look
        # whether it has a weight.
        weights = self._weights(tensors)
        sums = weights.cumsum(1)
        picks = (sums[:, :-1] <= chance * sums[:, -1:]).sum(1, keepdim=True)
        found = weights.gather(1, picks) > 0
        answers = self._answers(tensors)
        positives = torch.where(found, self._candidates(tensors).gather(1, picks), answers)
        excluded = torch.where(self._excluded, answers, positives)
        usable &= (found | self._answer_fits).squeeze(1)
        answers_in_all = sums[:, -1]  # weights tell how many answers a candidate stands for
        usable &= answers_in_all <= self._cap
        return columns[self._ids], positives.squeeze(1), excluded.squeeze(1), answers_in_all, usable


def _comparable_branches(query: Query) -> list[tuple[list[int], list[int]]]:
    """The positions of every two branches of one node, anywhere in the query, that may turn out equal."""
    pairs = [pair for branch in branches(query) for pair in _comparable_branches(branch)]
    for one, other in combinations(branches(query), 2):
        if numbered(one) == numbered(other):
            pairs.append((list(query_ids(one)), list(query_ids(other))))
    return pairs


def _filled(positions: list[int], length: int) -> list[int]:
    """As many positions as wanted: comparing one twice does no harm."""
    return positions + positions[:1] * (length - len(positions))
