"""Shapes are compiled, queries are not: from the shapes of a batch to the operator calls that answer it.

Nodes of all shapes of a batch that stand at the same height, apply the same operator to as many branches of the same
kinds, and lie as many hops from their anchors, share one call. `print(plan)` shows the calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from query2particles.engine.method import width
from query2particles.query.algebra import Anchor, Project, Query, branches, nickname

__all__ = ["Node", "Plan", "Step", "compile_shapes"]

Kind = Callable[[type[Query], Sequence[Hashable]], Hashable]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of one shape: node numbers of its branches, and the position of its id, if it has one."""

    shape: int
    operator: type[Query]
    below: tuple[int, ...]
    position: int
    height: int
    hop: int
    kind: Hashable


@dataclass(frozen=True, slots=True)
class Step:
    """One operator call: the nodes that share it, in the order in which their rows are stacked."""

    operator: type[Query]
    arity: int
    hop: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls, in order, that answer a batch of these shapes; `roots[i]` is the node that holds shape i's result."""

    shapes: tuple[Query, ...]
    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    roots: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"{', '.join(map(nickname, self.shapes))}: {len(self.nodes)} nodes in {len(self.steps)} calls"]
        for number, step in enumerate(self.steps):
            what = step.operator.__name__.lower() + (f"/{step.arity}" if step.arity > 1 else "")
            where = ", ".join(f"{nickname(self.shapes[self.nodes[node].shape])}#{node}" for node in step.nodes)
            lines.append(f"{number:4d}  {what:<12} hop {step.hop}  {where}")
        return "\n".join(lines)


@lru_cache(maxsize=256)
def compile_shapes(shapes: tuple[Query, ...], kind: Kind = width) -> Plan:
    """The plan for a batch of these shapes."""
    nodes: list[Node] = []

    def add(shape: int, query: Query) -> int:
        below = tuple(add(shape, branch) for branch in branches(query))
        position = query.entity if isinstance(query, Anchor) else query.relation if isinstance(query, Project) else -1
        hops = max((nodes[node].hop + (nodes[node].operator is Project) for node in below), default=0)
        nodes.append(
            Node(
                shape=shape,
                operator=type(query),
                below=below,
                position=position,
                height=1 + max((nodes[node].height for node in below), default=-1),
                hop=hops,
                kind=kind(type(query), [nodes[node].kind for node in below]),
            )
        )
        return len(nodes) - 1

    roots = tuple(add(number, shape) for number, shape in enumerate(shapes))
    groups: defaultdict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        kinds = tuple(nodes[below].kind for below in node.below)
        groups[node.height, node.operator.__name__, node.hop, kinds].append(number)
    steps = tuple(
        Step(nodes[members[0]].operator, len(nodes[members[0]].below), nodes[members[0]].hop, tuple(members))
        for _, members in sorted(groups.items(), key=lambda item: (nodes[item[1][0]].height, item[1][0]))
    )
    return Plan(shapes, tuple(nodes), steps, roots)
