"""What tells whether an entity answers a question of several hops or branches: named features of both.

Of an entity v and a question with exact answers on the stored facts,

    facts         the log odds of W(v), what single facts say about it (`worth`)
    score         s(v) − log Σ exp s(u) over the open entities u, those that stored facts neither name nor rule out
    lead          the best of these
    total         log Σ exp s(u) itself: where scores are logarithms of truths, how much is open at all
    room          the logarithm of how many answers may be missing (below)
    conditions    how many hops that lead to the answer no stored fact satisfies for v
    kind, role    the lift of v as a tail of the last relation (`graph/kinds`), and log (1 + how often it is one)
    room at v     the logarithm of how many facts of that relation v is short of; of this, of kind and role, the least
                  of an intersection's branches counts, the largest of a union's

and of a known answer that a missing fact may take back its score, negated, lead, log (1 + the number of known answers),
the room of complemented parts (room against), and how many hops there are in a row.

The number of answers that may be missing goes up the tree. A hop is short of what its sources are short of (`rates`),
and of as many tails as are usual for each source that is missing; an intersection is short of what a branch is short
of, but of no more than another branch has; a union of what all are short of; a complement is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.calibration.facts import FactFeatures
from query2particles.calibration.worth import Facts, Worth
from query2particles.engine.exact import Exact
from query2particles.engine.plan import Node, compile_shapes
from query2particles.engine.sets import Sets
from query2particles.graph.edges import Ints
from query2particles.query.algebra import Complement, Intersect, Project, Query, Union, branches
from query2particles.ranking import Contexts

__all__ = ["KNOWN", "OPEN", "Family", "QuestionFeatures", "family_of", "last_relation"]

Floats: TypeAlias = npt.NDArray[np.float64]
Family: TypeAlias = Literal["hops", "intersection", "union", "complement"]

OPEN = ("facts", "score", "lead", "total", "room", "conditions", "kind", "role", "room at v")
"""The features of an entity that may be an answer or not."""

KNOWN = ("low score", "lead", "known", "room against", "hops")
"""Those of a known answer of a question with a complement, which a missing fact may take back."""

_SMALLEST = 1e-6
_ANYTHING = 7.0
"""In place of kind, role and room where no relation leads to the answer."""

_LARGEST_TOTAL = 50.0

_LISTED = 4096
"""Of a larger set, as many members say how many tails are missing, and stand for the others."""


def family_of(query: Query) -> Family:
    """What decides how the features of a question are read: the last thing that is done to find its answers."""
    match query:
        case Intersect():
            return "intersection"
        case Union():
            return "union"
        case Complement():
            return "complement"
        case _:
            return "hops"


def last_relation(shape: Query, ids: Ints) -> Ints:
    """(n,): the directed relation that leads to the answers of each question, of branches the first; −1 without one."""
    match shape:
        case Project(_, position):
            return ids[:, position]
        case Intersect() | Union():
            return next(
                (found for branch in branches(shape) if (found := last_relation(branch, ids))[0] >= 0),
                np.full(len(ids), -1),
            )
        case _:
            return np.full(len(ids), -1)


class QuestionFeatures:
    """Of n questions of one shape, with the exact answers of all its parts."""

    def __init__(
        self,
        shape: Query,
        ids: Ints,
        nodes: Sequence[Sets],
        contexts: Contexts,
        features: FactFeatures,
        facts: Facts,
    ) -> None:
        self.plan: Sequence[Node] = compile_shapes((shape,), Exact.kind).nodes
        self.ids, self.nodes, self.contexts = ids, nodes, contexts
        self.edges, self.kinds, self.rates = features.edges, features.kinds, features.rates
        self.worth = Worth(self.plan, ids, nodes, features, facts)

    def of_open(self, scores: Floats, entities: Ints) -> Floats:
        """(n, k, features) of entities (n, k) that may be answers."""
        score, lead, _ = self._of_scores(scores)
        kind, role, room = self._kinds(entities)
        total = np.clip(self.contexts.log_total, -_LARGEST_TOTAL, _LARGEST_TOTAL)[:, None]
        structure = [self.room(), self._conditions(entities), kind, role, room]
        worth = np.clip(self.worth(entities), _SMALLEST, 1 - _SMALLEST)
        columns = [np.log(worth / (1 - worth)), score, lead, total, *structure]
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    def of_known(self, scores: Floats) -> Floats:
        """(n, k, features) of known answers."""
        score, lead, known = self._of_scores(scores)
        columns = [-score, lead, known, self.room(against=True), self._hops()]
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    def _of_scores(self, scores: Floats) -> list[Floats]:
        features = self.contexts.features(scores)
        return [features[..., 0], features[..., 1], features[..., 2]]

    def _hops(self) -> Floats:
        deepest: list[int] = []
        for node in self.plan:
            below = max((deepest[one] for one in node.below), default=0)
            deepest.append(below + (node.operator is Project))
        return np.full((len(self.ids), 1), float(deepest[-1]))

    def room(self, *, against: bool = False) -> Floats:
        """(n, 1): the logarithm of how many answers may be missing; `against`, of those of complemented parts."""
        missing: list[Floats] = []
        excluded = np.zeros(len(self.ids))
        for node in self.plan:
            below = [missing[one] for one in node.below]
            if node.operator is Project:
                found = self._missing_tails(node, below[0])
            elif node.operator is Intersect:
                positive = [one for one in node.below if self.plan[one].operator is not Complement]
                sizes = [self.nodes[one].sizes + missing[one] for one in positive]
                found = sum(
                    (
                        np.minimum(missing[one], reduce(np.minimum, sizes[:at] + sizes[at + 1 :], sizes[at] + np.inf))
                        for at, one in enumerate(positive)
                    ),
                    np.zeros(len(self.ids)),
                )
            elif node.operator is Union:
                found = sum(below, np.zeros(len(self.ids)))
            else:
                found = np.zeros(len(self.ids))
                if node.operator is Complement:
                    excluded = excluded + below[0]
            missing.append(found)
        logarithm: Floats = np.log(np.maximum(excluded if against else missing[-1], _SMALLEST))
        return logarithm[:, None]

    def _missing_tails(self, node: Node, missing_sources: Floats) -> Floats:
        relations = self.ids[:, node.position]
        sources = self.nodes[node.below[0]]
        usual = self.edges.edges_by_relation[relations] / np.maximum(self.kinds.counts[relations], 1)
        found = missing_sources * usual
        for row, relation in enumerate(relations.tolist()):
            members = sources.values[sources.offsets[row] : sources.offsets[row + 1]][:_LISTED].astype(np.int64)
            if sources.complemented or not len(members):
                continue
            tails = self.edges.lengths_of(members, np.full(len(members), relation))
            mean = float(self.rates(np.full(len(members), relation), tails).mean())
            found[row] += mean * int(sources.sizes[row])
        return found

    def _conditions(self, entities: Ints) -> Floats:
        """(n, k): the hops to the answer that stored facts do not satisfy."""
        unmet: list[Floats] = []
        for number, node in enumerate(self.plan):
            below = [unmet[one] for one in node.below]
            if node.operator is Intersect:
                unmet.append(reduce(np.add, below))
            elif node.operator is Union:
                unmet.append(reduce(np.minimum, below))
            else:
                unmet.append((~self.nodes[number].contain(entities)).astype(np.float64))
        return unmet[-1]

    def _kinds(self, entities: Ints) -> Floats:
        """(3, n, k): of entities as tails of the last relations, their lift, how often they are, and their room."""
        found: list[Floats] = []
        flat, last = entities.ravel(), _answering(self.plan)
        for number, node in enumerate(self.plan):
            if number in last and node.operator is Project:
                roles = np.repeat(self.ids[:, node.position] ^ 1, entities.shape[1])
                often = self.edges.lengths_of(flat, roles)
                lift = self.kinds.log_lift(flat, roles)
                room = np.log(self.rates(roles, often)) + np.where(often == 0, lift, 0.0)
                found.append(np.stack([lift, np.log1p(often), room]).reshape(3, *entities.shape))
            elif number in last and node.operator in (Intersect, Union):
                join = np.minimum if node.operator is Intersect else np.maximum
                found.append(reduce(join, [found[one] for one in node.below]))
            else:
                found.append(np.full((3, *entities.shape), _ANYTHING))
        return found[-1]


def _answering(plan: Sequence[Node]) -> set[int]:
    """The nodes whose set is one of answers, and not of entities on the way to them."""
    found: set[int] = set()
    waiting = [len(plan) - 1]
    while waiting:
        number = waiting.pop()
        found.add(number)
        if plan[number].operator in (Intersect, Union):
            waiting.extend(plan[number].below)
    return found
