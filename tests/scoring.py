"""What tests of methods share: a model whose numbers are all random, and its scores of queries of mixed shapes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, branches
from worlds import by_shape, random_query

__all__ = ["Transcription", "conjunctive_queries", "operators_of", "scattered", "scores_of"]

Module = TypeVar("Module", bound=nn.Module)


def scattered(model: Module, *, scale: float, seed: int) -> Module:
    """The model for evaluation in float64, all its numbers random, those that start at zero or one too."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=scale, generator=generator)
    return model


def scores_of(model: Any, several: Sequence[Query]) -> Tensor:
    """The scores (queries, entities), all in one plan."""
    batch, places = by_shape(several)
    plan = compile_shapes(tuple(batch), model.kind)
    with torch.no_grad():
        found = execute(plan, model, [torch.tensor(ids) for ids in batch.values()])
        scores = dict(zip(batch, map(model.score, found), strict=True))
    return torch.stack([scores[shape][row] for shape, row in places])


def operators_of(query: Query) -> set[type[Query]]:
    return {type(query)}.union(*map(operators_of, branches(query)))


def conjunctive_queries(seed: int, entities: int, relations: int, count: int = 60) -> list[Query]:
    """Random trees without unions and complements, more intersections among them than without this choice."""
    generator = random.Random(seed)
    found: list[Query] = []
    while len(found) < count:
        query = random_query(generator, entities, relations)
        operators = operators_of(query)
        if operators <= {Anchor, Project, Intersect} and (Intersect in operators or generator.random() < 0.1):
            found.append(query)
    return found


class Transcription:
    """A method's operators written down literally, one query at a time; what they share is the way through a tree."""

    def answer(self, query: Query) -> Any:
        """The state of a query; of operators that are not written down there is none."""
        own: Any = self
        below = [self.answer(branch) for branch in branches(query)]
        match query:
            case Anchor(entity):
                return own.anchor(entity)
            case Project(_, relation):
                return own.project(below[0], relation)
            case Intersect():
                return own.intersect(below)
            case Complement():
                return own.complement(below[0])
        raise AssertionError(f"{query} is none of its operators")
