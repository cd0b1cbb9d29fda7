"""Complex query decomposition by continuous optimisation (Arakelyan et al., ICLR 2021; see `methods/cqd`).

Every variable of a question is a vector in the space of entities, the answer A too. Adam moves them together to where
the formula is most true, by the logarithm, less a penalty that keeps them from growing without end (N3):

    max over A, U, …   log x(A)  −  λ Σ_j |A_j|³ + |U_j|³ + …        x = ⊤ of the atoms p(u, r, v) = σ(φ(u, r, v) − θ)

Then every entity takes A's place, the other variables stay. Where the paper starts from random vectors, variables start
here where the link predictor's own vectors lead: h ∘ r after a projection, the mean of the branches after an
intersection. So equal questions have equal answers, whatever else is asked along with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.methods.cqd import CQDSettings
from query2particles.methods.layers import rows_of
from query2particles.methods.search import Assigned, Decomposition
from query2particles.methods.truth import link_truths
from query2particles.query.algebra import Anchor, Intersect, Project, Query, branches, numbered

__all__ = ["CQDCO", "Recorded", "Settings"]

_ANSWER = -1
"""Other variables are named by the position of the relation that leaves them; none leaves the answer."""


@dataclass(frozen=True, kw_only=True)
class Settings(CQDSettings):
    """Also how variables are moved."""

    steps: int = 50
    """Of Adam."""
    step_size: float = 0.02
    """Its learning rate."""
    variable_n3: float = 0.05
    """λ"""


class Recorded(NamedTuple):
    """Questions that have yet to be answered: their shape, and their ids (n, positions)."""

    shape: Query
    ids: Tensor


class CQDCO(Decomposition):
    """Operators only record what is asked; `score` answers it.

    There is no union: as in the paper they are lifted to the root, where the co-norm joins the branches. An anchor that
    no relation leaves is as near to an entity as a link by a relation that changes nothing would say.
    """

    operators: ClassVar[frozenset[type[Query]]] = frozenset((Anchor, Project, Intersect))
    replayed: ClassVar[bool] = False
    """A search of many steps."""

    def __init__(self, entities: int, relations: int, settings: Settings | None = None) -> None:
        super().__init__(entities, relations, settings := settings or Settings())
        self.settings = settings

    @staticmethod
    def kind(operator: type[Query], below: Sequence[Hashable]) -> Hashable:
        """The shape of a question: only equal ones are answered together."""
        return _shape(operator, [shape for shape in below if isinstance(shape, Query)])

    def anchor(self, entities: Tensor) -> Recorded:
        return Recorded(Anchor(0), entities[:, None])

    def project(self, state: Recorded, relations: Tensor, *, hop: int = 0) -> Recorded:
        del hop
        return Recorded(_shape(Project, [state.shape]), torch.cat((state.ids, relations[:, None]), 1))

    def intersect(self, branches: Sequence[Recorded]) -> Recorded:
        shapes = [branch.shape for branch in branches]
        return Recorded(_shape(Intersect, shapes), torch.cat([branch.ids for branch in branches], 1))

    def score(self, state: Recorded, entities: Tensor | None = None) -> Tensor:
        table = self.links.entities
        answers = rows_of(table, entities)
        return self._truths(state.shape, state.ids, answers, self._optimised(state))

    def disjoin(self, scores: Sequence[Tensor]) -> Tensor:
        """The scores of a union, from those of its branches."""
        return reduce(self.norm.either, scores)

    def stack(self, states: Sequence[Recorded]) -> Recorded:
        return Recorded(states[0].shape, torch.cat([state.ids for state in states]))

    def split(self, state: Recorded, sizes: Sequence[int]) -> Sequence[Recorded]:
        return [Recorded(state.shape, ids) for ids in torch.split(state.ids, list(sizes))]

    @torch.no_grad()
    def assignments(self, query: Query, entity: int) -> Assigned:
        """An answer of a query, and the entities nearest to where its other variables ended: those of any answer."""
        (state,) = execute(compile_shapes((numbered(query),), self.kind), self, [self.ids_of(query)])
        ids, table, variables = state.ids, self.links.entities, self._optimised(state)

        def assigned(query: Query, shape: Query, v: int) -> Assigned:
            x, u, link = self._truths(shape, ids, table[[v]], variables), v, None
            if isinstance(shape, Project):
                source = self._source(shape, ids, variables)
                u = int((table - source).square().sum(1).argmin())
                link = float(self._link(source, ids[:, shape.relation], table[[v]]).exp())
            inner = (assigned(*pair, u) for pair in zip(branches(query), branches(shape), strict=True))
            return Assigned(query, v, float(x.exp()), link, tuple(inner))

        return assigned(query, state.shape, entity)

    def _truths(self, query: Query, ids: Tensor, answers: Tensor, variables: Mapping[int, Tensor]) -> Tensor:
        """The logarithms of x, (n, m), of answers by their vectors, (m, ·) or (n, m, ·), and of other variables."""
        match query:
            case Anchor(position):
                return self._link(self.links.anchor(ids[:, position]), None, answers)
            case Project(inner, relation):
                source = self._source(query, ids, variables)
                link = self._link(source, ids[:, relation], answers)
                if isinstance(inner, Anchor):
                    return link
                return self.norm.both(self._truths(inner, ids, source[:, None], variables), link)
            case _:
                several = (self._truths(branch, ids, answers, variables) for branch in branches(query))
                return reduce(self.norm.both, several)

    def _optimised(self, state: Recorded) -> Mapping[int, Tensor]:
        """The vectors (n, ·) that Adam ends with."""
        with torch.inference_mode(False), torch.enable_grad():
            ids = state.ids.clone()  # one made in inference mode cannot be part of what is differentiated
            starts: dict[int, Tensor] = {}
            starts[_ANSWER] = self._start(state.shape, ids, starts)
            if len(starts) == 1:  # all that could move is the answer, whose place every entity takes
                return {}
            places = torch.stack(list(starts.values())).detach().requires_grad_()  # (variables, n, ·)
            adam = torch.optim.Adam([places], lr=self.settings.step_size, maximize=True)
            for _ in range(self.settings.steps):
                variables = dict(zip(starts, places, strict=True))
                x = self._truths(state.shape, ids, variables[_ANSWER][:, None], variables)
                adam.zero_grad()
                torch.autograd.backward(x.sum() - self.settings.variable_n3 * self.links.cubes(places), inputs=[places])
                adam.step()
        return dict(zip(starts, places.detach(), strict=True))

    def _start(self, query: Query, ids: Tensor, variables: dict[int, Tensor]) -> Tensor:
        """The first vectors of a query's answer and, into `variables`, of its other variables."""
        match query:
            case Anchor(position):
                return self.links.anchor(ids[:, position])
            case Project(inner, relation):
                source = self._start(inner, ids, variables)
                if not isinstance(inner, Anchor):
                    variables[relation] = source
                return self.links.project(source, ids[:, relation])
            case _:
                return torch.stack([self._start(branch, ids, variables) for branch in branches(query)]).mean(0)

    def _source(self, query: Project, ids: Tensor, variables: Mapping[int, Tensor]) -> Tensor:
        """The vectors that a projection leaves: of anchors, or of a variable."""
        inner = query.query
        return self.links.anchor(ids[:, inner.entity]) if isinstance(inner, Anchor) else variables[query.relation]

    def _link(self, source: Tensor, relations: Tensor | None, answers: Tensor) -> Tensor:
        state = source if relations is None else self.links.project(source, relations)
        return link_truths(self.links.compare(state, answers), threshold=self.settings.threshold)


def _shape(operator: type[Query], below: Sequence[Query]) -> Query:
    """The shape of an operator over questions of these shapes."""
    if operator is Anchor:
        return Anchor(0)
    return numbered(Project(below[0], 0) if operator is Project else Intersect(tuple(below)))
