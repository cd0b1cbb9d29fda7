"""Running a plan with a method: one operator call a step, states stacked and sliced in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from query2particles.engine.method import Method
from query2particles.engine.plan import Plan
from query2particles.errors import UnsupportedError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project

__all__ = ["execute"]

State = TypeVar("State")


def execute(plan: Plan, method: Method[State], ids: Sequence[Any], *, keep: bool = False) -> list[State]:
    """The states of the roots, one for each shape of the plan; with `keep`, of every node in the plan's order.

    `ids[i]` holds the rows of shape i, (n, positions). A state is dropped as soon as the call that needs it has run.
    """
    lacking = {step.operator for step in plan.steps} - method.operators
    if lacking:
        names = " and ".join(sorted(operator.__name__.lower() for operator in lacking))
        raise UnsupportedError(f"{type(method).__name__} has no {names}; rewrite the query first")
    states: dict[int, State] = {}
    for step in plan.steps:
        members = [plan.nodes[node] for node in step.nodes]
        operands = [
            _stacked(method, [states[member.below[branch]] for member in members]) for branch in range(step.arity)
        ]
        if not keep:
            for member in members:
                for below in member.below:
                    del states[below]
        own = None
        if step.operator in (Anchor, Project):
            own = np.concatenate([ids[member.shape][:, member.position] for member in members])
        if step.operator is Anchor:
            result = method.anchor(own)
        elif step.operator is Project:
            result = method.project(operands[0], own, hop=step.hop)
        elif step.operator is Complement:
            result = method.complement(operands[0])
        elif step.operator is Intersect:
            result = method.intersect(operands)
        else:
            result = method.union(operands)
        start = 0
        for node, member in zip(step.nodes, members, strict=True):
            stop = start + len(ids[member.shape])
            states[node] = result if len(members) == 1 else method.rows(result, start, stop)
            start = stop
    return [states[node] for node in (range(len(plan.nodes)) if keep else plan.roots)]


def _stacked(method: Method[State], states: list[State]) -> State:
    return states[0] if len(states) == 1 else method.stack(states)
