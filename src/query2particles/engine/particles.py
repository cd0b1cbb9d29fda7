"""The particles of queries, of several shapes at once: what a method that scores by inner products makes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import Factored, ids_for
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions

__all__ = ["particles_of"]


def particles_of(method: Method[Any], batch: Batch, unions: Unions = "native") -> dict[Query, Tensor]:
    """Of each shape the particles (n, w, d) of its queries, no entity scored; call it in `scoring`.

    Those of several disjuncts stand side by side: the best of all scores is the best of each one's.
    """
    assert isinstance(method, Factored), "only inner products have particles"
    parts = [(shape, part) for shape in batch for part in Disjuncts.of(shape, unions).shapes]
    plan = compile_shapes(tuple(part for _, part in parts), method.kind)
    states = execute(plan, method, [ids_for(method, batch[shape]) for shape, _ in parts])
    own = [(shape, method.factors(state)[0].float()) for (shape, _), state in zip(parts, states, strict=True)]
    return {shape: torch.cat([particles for of, particles in own if of == shape], 1) for shape in batch}
