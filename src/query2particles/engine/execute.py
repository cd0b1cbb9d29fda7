"""Running a plan with a method: one operator call a step, states stacked and sliced in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from query2particles.engine.method import Method, lacking
from query2particles.engine.plan import Plan
from query2particles.errors import UnsupportedError
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union

__all__ = ["check_operators", "execute"]

State = TypeVar("State")

_OTHERS: dict[type[Query], str] = {Intersect: "intersect", Union: "union", Complement: "complement"}
"""What not every method has."""


def execute(plan: Plan, method: Method[State], ids: Sequence[Any], *, keep: bool = False) -> list[State]:
    """The states of the roots, one for each shape of the plan; with `keep`, of every node in the plan's order.

    `ids[i]` holds the rows of shape i, (n, positions). A state is dropped as soon as the call that needs it has run.
    """
    check_operators(method, plan.shapes)
    states: dict[int, State] = {}
    whole: dict[tuple[int, ...], State] = {}  # results that no call has taken apart yet, by their nodes

    def parts_of(nodes: tuple[int, ...]) -> list[State]:
        for together in [several for several in whole if not set(several).isdisjoint(nodes)]:
            sizes = [len(ids[plan.nodes[node].shape]) for node in together]
            states.update(zip(together, method.split(whole.pop(together), sizes), strict=True))
        return [states[node] if keep else states.pop(node) for node in nodes]

    def operand(nodes: tuple[int, ...]) -> State:
        if nodes in whole:  # all rows of an earlier call, in its order: no copies
            return whole[nodes] if keep else whole.pop(nodes)
        parts = parts_of(nodes)
        return parts[0] if len(parts) == 1 else method.stack(parts)

    for step in plan.steps:
        members = [plan.nodes[node] for node in step.nodes]
        operands = [operand(tuple(member.below[branch] for member in members)) for branch in range(step.arity)]
        own = None
        if step.operator in (Anchor, Project):
            own = _joined([ids[member.shape][:, member.position] for member in members])
        if step.operator is Anchor:
            result = method.anchor(own)
        elif step.operator is Project:
            result = method.project(operands[0], own, hop=step.hop)
        else:
            apply = getattr(method, _OTHERS[step.operator])
            result = apply(operands[0] if step.operator is Complement else operands)
        whole[step.nodes] = result
    return parts_of(tuple(range(len(plan.nodes)))) if keep else parts_of(plan.roots)


def check_operators(method: Method[Any], shapes: Sequence[Query]) -> None:
    """Refuse what a method cannot do."""
    if missing := lacking(method.operators, *shapes):
        raise UnsupportedError(
            f"{type(method).__name__} has no {' and no '.join(missing)}: ask without, lift unions to the root (dnf), "
            "or ask another method (q2p methods says what each can do)"
        )


def _joined(columns: list[Any]) -> Any:
    """Columns of ids as one, where they are: numpy arrays, or torch tensors on any device."""
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import torch

    return torch.cat(columns)
