"""Natural questions: drawn from the graph as people ask, without the condition that an answer is missing.

Most have all their answers stored. One-hop questions are pairs of an entity and a directed relation that the larger
level has, each as likely. Where the smaller level has no answer of such a pair, all its answers are missing, but not
everything that could be asked and is not stored is true: beside every pair of that kind stands one that the larger
level does not have either, of an entity of a kind that has the relation. So half of the questions that stored facts
leave without an answer have one. Longer questions are grounded from a random answer on the larger level: half of them
from any entity, half from one of a random relation, so that a relation with few facts is asked for as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Batch
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.kinds import Kinds
from query2particles.query.algebra import SHAPES, Query
from query2particles.workload.sample import Answers, draw_answers, draw_queries

__all__ = ["Weighted", "natural_questions", "telling_questions"]

_TRIES = 20
"""Rounds of random pairs in search of those that have no answer."""


class Weighted(NamedTuple):
    """Questions (n, 2), and how many natural ones each stands for (n,)."""

    ids: Ints
    weights: npt.NDArray[np.float64]


def natural_questions(
    small: Edges, large: Edges, *, count: int, one_hop: int, seed: int, shapes: Sequence[Query] | None = None
) -> Batch:
    """`one_hop` one-hop questions and `count` of each other shape, or as many different ones as are found."""
    answers = draw_answers(large), _answers_by_role(large)
    found = {}
    for number, shape in enumerate(SHAPES.values() if shapes is None else shapes):
        generator = np.random.default_rng([seed, number])
        if shape == SHAPES["1p"]:
            ids = _with_unanswerable(_some(large.keys, one_hop, generator), large, small, generator)
        else:
            drawn = [draw_queries(shape, count, large, generator, how)[0] for how in answers]
            ids = generator.permutation(np.unique(np.concatenate(drawn), axis=0))[:count]
        if len(ids):
            found[shape] = ids
    return found


def telling_questions(small: Edges, large: Edges, *, count: int, seed: int) -> Weighted:
    """One-hop questions that tell more than as many natural ones: half of them as many of every relation, with and
    without a missing answer, as far as there are such; half of them any, so that none stands for too many. Each is
    weighed by how many questions of its kind it stands for.
    """
    generator = np.random.default_rng([seed, len(SHAPES)])
    missing = large.row_lengths[:-1] > small.lengths_of(*np.divmod(large.keys, large.relations))
    group = 2 * (large.keys % large.relations) + missing
    sizes = np.bincount(group, minlength=2 * large.relations)
    taken = np.minimum(sizes, _level(sizes, count // 2) + count // 2 * sizes // max(sizes.sum(), 1))
    order = generator.permutation(len(group))
    order = order[np.argsort(group[order], kind="stable")]
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.sort(order[place < np.repeat(taken, sizes)])
    weights = (sizes / np.maximum(taken, 1))[group[rows]]
    ids = _with_unanswerable(large.keys[rows], large, small, generator)
    empty = len(ids) - len(rows)
    alike = weights[missing[rows]].mean() if missing[rows].any() else 1.0
    return Weighted(ids, np.concatenate([weights, np.full(empty, alike)]))


def _answers_by_role(edges: Edges) -> Answers:
    """How answers are drawn if every directed relation is as likely to be one that the answer has."""
    roles = [role for role in range(edges.relations) if len(edges.heads_of(role))]

    def drawn(generator: np.random.Generator, count: int) -> Ints:
        found = np.empty(count, dtype=np.int64)
        chosen = generator.choice(roles, size=count)
        for role in np.unique(chosen).tolist():
            own = chosen == role
            found[own] = generator.choice(edges.heads_of(role), size=int(own.sum()))
        return found

    return drawn


def _level(sizes: Ints, count: int) -> int:
    """The most that can be taken from each of several groups if `count` in all may be."""
    most = 1
    while np.minimum(sizes, 2 * most).sum() <= count and most < sizes.max():
        most *= 2
    step = most
    while step:
        if np.minimum(sizes, most + step).sum() <= count:
            most += step
        step //= 2
    return most


def _some(keys: Ints, count: int, generator: np.random.Generator) -> Ints:
    """Different ones of these."""
    rows = np.sort(generator.choice(len(keys), min(count, len(keys)), replace=False))
    return keys[rows]


def _with_unanswerable(keys: Ints, large: Edges, small: Edges, generator: np.random.Generator) -> Ints:
    """Pairs (n, 2) of an entity and a relation, and beside those without a stored answer as many without any."""
    pairs = np.stack(np.divmod(keys, large.relations), axis=1)
    unanswered = int((small.lengths_of(pairs[:, 0], pairs[:, 1]) == 0).sum())
    kinds, empty = Kinds(small), pairs[:0]
    for _ in range(_TRIES):
        if len(empty) >= unanswered:
            break
        drawn = [generator.integers(most, size=4 * unanswered) for most in (large.entities, large.relations)]
        missing = (large.lengths_of(*drawn) == 0) & kinds.can(*drawn)
        empty = np.unique(np.concatenate([empty, np.stack(drawn, axis=1)[missing]]), axis=0)
    return np.concatenate([pairs, generator.permutation(empty)[:unanswered]]).astype(np.int64)
