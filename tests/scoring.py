"""What tests of methods share: a model whose numbers are all random, and its scores of queries of mixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.query.algebra import Query, branches
from worlds import by_shape

__all__ = ["operators_of", "scattered", "scores_of"]

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
