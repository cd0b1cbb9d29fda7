"""Shapes are compiled, queries are not: from the shapes of a batch to the operator calls that answer it.

Nodes of all shapes of a batch that apply the same operator to as many branches of the same kinds share calls (first
hops, straight from anchors, and later ones are kept apart); a call waits for others to join it where that makes fewer
calls in all. `print(plan)` shows the calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
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
        later = any(nodes[node].hop or nodes[node].operator is Project for node in below)
        nodes.append(
            Node(
                shape=shape,
                operator=type(query),
                below=below,
                position=position,
                hop=int(later),
                kind=kind(type(query), [nodes[node].kind for node in below]),
            )
        )
        return len(nodes) - 1

    roots = tuple(add(number, shape) for number, shape in enumerate(shapes))
    steps = tuple(
        Step(nodes[members[0]].operator, len(nodes[members[0]].below), nodes[members[0]].hop, members)
        for members in _calls(nodes)
    )
    return Plan(shapes, tuple(nodes), steps, roots)


def _calls(nodes: Sequence[Node]) -> Iterator[tuple[int, ...]]:
    """Which nodes run together, in order: always those of one group whose branches have all run.

    A group has to run at least as often as the longest chain of its waiting nodes is long. A group whose longest chain
    gets shorter by running now runs; another waits, for its missing nodes could join.
    """
    groups: defaultdict[Hashable, set[int]] = defaultdict(set)
    for number, node in enumerate(nodes):
        groups[_group(nodes, node)].add(number)
    chains = _chains(nodes)
    done: set[int] = set()
    while len(done) < len(nodes):
        ready = {
            group: here
            for group, members in groups.items()
            if (here := {one for one in members if one not in done and done.issuperset(nodes[one].below)})
        }
        worth = {}  # does running the group now save a later call of it, and with how many nodes does it run
        for group, here in ready.items():
            longest, others = (
                max((chains[one] for one in groups[group] - without), default=0) for without in (done, done | here)
            )
            worth[group] = others < longest, len(here)
        chosen = ready[max(worth, key=worth.__getitem__)]
        done |= chosen
        yield tuple(sorted(chosen))


def _group(nodes: Sequence[Node], node: Node) -> Hashable:
    return node.operator, node.hop, tuple(nodes[below].kind for below in node.below)


def _chains(nodes: Sequence[Node]) -> list[int]:
    """How many nodes of its own group, itself among them, each node has on its way to the root.

    As long as it waits, they all do: the longest chain of a group is that of one of its waiting nodes.
    """
    chains = [0] * len(nodes)
    above: dict[int, dict[Hashable, int]] = {}  # of each node, how many of each group lie on its way
    for number in reversed(range(len(nodes))):  # branches stand before what they are branches of
        node = nodes[number]
        group = _group(nodes, node)
        counts = above.pop(number, {})
        chains[number] = counts.get(group, 0) + 1
        for branch in node.below:
            above[branch] = {**counts, group: chains[number]}
    return chains
