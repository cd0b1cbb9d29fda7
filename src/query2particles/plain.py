"""The yardstick: evaluation and sampling with plain Python sets, slow and plainly right.

Tests hold the engine against it, and `q2p bench` measures how much faster the engine is. Nothing else uses it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from query2particles.graph.edges import Edges
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union, branches, has_complement

__all__ = ["PlainGraph", "plain_answers", "plain_draw", "plain_one_hop", "plain_sample"]


@dataclass(frozen=True)
class PlainGraph:
    """The edges of one level as dictionaries of sets and lists."""

    tails: Mapping[tuple[int, int], set[int]]  # (head, directed relation) → tails
    outgoing: Mapping[int, list[int]]  # entity → directed relations that leave it
    everything: frozenset[int]

    @staticmethod
    def of(edges: Edges) -> PlainGraph:
        tails: dict[tuple[int, int], set[int]] = {}
        outgoing: dict[int, list[int]] = {}
        offsets = edges.offsets.tolist()
        all_tails = edges.tails.tolist()
        for row, key in enumerate(edges.keys.tolist()):
            head, relation = divmod(key, edges.relations)
            tails[head, relation] = set(all_tails[offsets[row] : offsets[row + 1]])
            outgoing.setdefault(head, []).append(relation)
        return PlainGraph(tails, outgoing, frozenset(range(edges.entities)))


def plain_answers(query: Query, graph: PlainGraph) -> set[int]:
    """The answers, by the definition of each operator."""
    match query:
        case Anchor(entity):
            return {entity}
        case Project(inner, relation):
            tails = graph.tails
            heads = plain_answers(inner, graph)
            return set().union(*[tails[head, relation] for head in heads if (head, relation) in tails])
        case Union(several):
            return set().union(*[plain_answers(branch, graph) for branch in several])
        case Complement(inner):
            return set(graph.everything - plain_answers(inner, graph))
        case Intersect(several):
            positive = [plain_answers(branch, graph) for branch in several if not isinstance(branch, Complement)]
            found = set.intersection(*positive) if positive else set(graph.everything)
            for branch in several:
                if isinstance(branch, Complement):
                    found -= plain_answers(branch.query, graph)
            return found


def plain_sample(
    shape: Query, count: int, large: PlainGraph, small: PlainGraph, *, cap: int, seed: int
) -> list[tuple[Query, set[int], set[int]]]:
    """`count` different queries with their easy and hard answers, drawn one at a time (see `workload/sample`)."""
    generator = random.Random(seed)
    entities = list(large.outgoing)
    negated = has_complement(shape)
    seen: set[Query] = set()
    found: list[tuple[Query, set[int], set[int]]] = []
    while len(found) < count:
        query = plain_draw(shape, generator.choice(entities), large, generator)
        if query is None or query in seen:
            continue
        answers, known = plain_answers(query, large), plain_answers(query, small)
        hard, lost = answers - known, known - answers
        if not hard or (negated and not lost) or max(len(hard), len(lost)) > cap:
            continue
        seen.add(query)
        found.append((query, known - lost, hard))
    return found


def plain_one_hop(
    large: PlainGraph, small: PlainGraph, cap: int, part: int = 0, parts: int = 1
) -> list[tuple[Query, set[int], set[int]]]:
    """Every `parts`-th one-hop query with 1 … cap hard answers, with its easy and hard answers."""
    found: list[tuple[Query, set[int], set[int]]] = []
    for (head, relation), tails in islice(large.tails.items(), part, None, parts):
        known = small.tails.get((head, relation), set())
        if 0 < len(hard := tails - known) <= cap:
            found.append((Project(Anchor(head), relation), tails & known, hard))
    return found


def plain_draw(
    shape: Query, target: int, graph: PlainGraph, generator: random.Random, last: int | None = None
) -> Query | None:
    """A query of this shape, grounded backwards from `target`; None where the walk gets stuck."""
    match shape:
        case Anchor():
            return Anchor(target)
        case Project(inner, _):
            choices = [relation for relation in graph.outgoing.get(target, ()) if relation != last]
            if not choices:
                return None
            outgoing = generator.choice(choices)
            source = generator.choice(tuple(graph.tails[target, outgoing]))
            below = plain_draw(inner, source, graph, generator, outgoing ^ 1)
            return None if below is None else Project(below, outgoing ^ 1)
        case Complement(inner):
            below = plain_draw(inner, target, graph, generator, last)
            return None if below is None else Complement(below)
        case Intersect() | Union():
            several = [plain_draw(branch, target, graph, generator) for branch in branches(shape)]
            kept = tuple(branch for branch in several if branch is not None)
            if len(kept) < len(several) or len(set(kept)) < len(kept):
                return None
            return type(shape)(kept)
