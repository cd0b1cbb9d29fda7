"""Drawing queries by the benchmarks' published procedure, for any shape on any graph.

Pick an answer uniformly among the entities with an edge, then ground the shape backwards from it: at a projection draw
a relation uniformly among the *distinct* relations that reach the entity, except the inverse of the relation just used
in the same chain, then a source uniformly under it. Every branch, negated and united ones too, starts from the same
answer. A draw is rejected if

- two branches of one node are equal, or the same query was drawn before; A & B and B & A count as two, as they do in
  the published sets (which matters: counting them once, NELL's 2i queries have a fifth fewer hard answers),
- it has no answer, or more than `cap` new ones; for valid and test also: no hard answer,
- it has a complement and loses no answer from the smaller to the larger level, or more than `cap` (valid and test).

Queries whose answers lack a given number of edges of their best proof (`missing`, `workload/hardness`) are grounded
along such edges: so many hops of a proof, any of them as likely, go back along edges that training lacks, the others
along training edges. Half of the answers are drawn among the entities with a missing edge. There may be a better proof
than the one that was grounded: a draw is rejected if no hard answer lacks exactly so many edges.

One-hop queries (1p) are not drawn: they are every (head, relation) of the split's own facts with at most `cap` answers
there, or `count` of them.

Draws are made in rounds of whole arrays. Each round has its own random numbers, from the seed, the shape and its
number, so that the result does not depend on the number of cores.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from itertools import count as counting
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from query2particles.engine.exact import Exact, chunk_size
from query2particles.engine.execute import execute
from query2particles.engine.plan import compile_shapes
from query2particles.engine.sets import intersection
from query2particles.errors import SamplingError
from query2particles.graph.edges import Edges, Ints
from query2particles.graph.graph import SPLITS, Graph, Split, smaller
from query2particles.query.algebra import (
    SHAPES,
    Anchor,
    Complement,
    Intersect,
    Project,
    Query,
    Union,
    branches,
    has_complement,
    nickname,
    query_ids,
)
from query2particles.workload.hardness import most_missing, only_missing
from query2particles.workload.labels import Labels, label, labels_between

__all__ = ["Answers", "Lacking", "Sample", "draw_answers", "draw_queries", "joined_samples", "sample_shape"]

_ROUND = 2048
_WINDOW = 200_000
_PATIENCE = 20_000_000
"""A shape is given up when, at the rate of new queries in the last window of draws, the rest would take this many."""

Answers: TypeAlias = Callable[[np.random.Generator, int], Ints]
"""Draws so many answers."""

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """Drawn queries of one shape, (n, positions), with their answers."""

    shape: Query
    ids: Ints
    labels: Labels
    attempts: int
    missing: int = 0
    """So many edges lacks each of the hard answers; 0 where any number counts."""


def joined_samples(
    samples: Iterable[Sample],
) -> tuple[dict[Query, Ints], dict[Query, Labels], dict[Query, Ints]]:
    """All queries of each shape of which there are some, their answers, and the `missing` of each."""
    several: dict[Query, list[Sample]] = {}
    for sample in samples:
        if len(sample.ids):
            several.setdefault(sample.shape, []).append(sample)
    return (
        {shape: np.concatenate([one.ids for one in own]) for shape, own in several.items()},
        {shape: Labels.stack([one.labels for one in own]) for shape, own in several.items()},
        {
            shape: np.repeat([one.missing for one in own], [len(one.ids) for one in own])
            for shape, own in several.items()
        },
    )


def sample_shape(
    graph: Graph,
    shape: Query,
    count: int | None,
    *,
    split: Split,
    cap: int,
    seed: int = 0,
    missing: int = 0,
    allow_fewer: bool = False,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Sample:
    """`count` queries of one shape, or with `allow_fewer` at most as many; None, for 1p only, takes every one.

    With `missing`, only answers that lack exactly so many edges are hard (valid and test); 0 means any number.
    """
    name = nickname(shape)
    key = [seed, zlib.crc32(name.encode()), SPLITS.index(split)]
    if missing:
        _check_missing(shape, split, missing)
        key.append(missing)
    large = graph.at(split)
    small = None if split == "train" else graph.at(smaller(split))
    if small is not None and large.facts == small.facts:
        raise SamplingError(
            f"{graph.name} has no {split} facts, so its {split} queries have no hard answers: "
            "import it with splits (q2p graph import --split 0.1,0.1), or draw training queries (--split train)"
        )
    if shape == SHAPES["1p"]:  # its hard answers lack one edge, all of them
        ids = _one_hop(large, small, count, cap, np.random.default_rng(key))
        labels = label(graph, split, {shape: ids}, workers=workers)[shape]
        attempts = len(ids)
        if progress is not None:
            progress(len(ids))
    elif count is None:
        raise SamplingError(f"{name} queries cannot all be listed; say how many to draw")
    else:
        lacking = Lacking.of(missing, graph.at("train"), large) if missing else None
        drawn, attempts = _draw(shape, count, large, small, lacking, cap, key, workers or os.cpu_count() or 1, progress)
        ids, labels = drawn.ids, drawn.labels
    if count is not None and len(ids) < count and not allow_fewer:
        raise SamplingError(
            f"only {len(ids):,} of {count:,} {name} queries{_with_missing(missing)} could be grounded on the {split} "
            f"split of {graph.name} in {attempts:,} draws: ask for fewer (--count), raise the cap of {cap} answers "
            "(--cap), or take what there is (--allow-fewer)"
        )
    return Sample(shape, ids, labels, attempts, missing)


def _check_missing(shape: Query, split: Split, missing: int) -> None:
    if split == "train":
        raise SamplingError("no link of a training query is missing: draw valid or test queries (--split)")
    if not 1 <= missing <= (most := most_missing(shape)):
        raise SamplingError(f"an answer of {nickname(shape)} lacks 1 to {most} links, never {missing}")


def _with_missing(missing: int) -> str:
    return f" with {missing} missing link{'s' * (missing > 1)}" if missing else ""


@dataclass(frozen=True)
class Lacking:
    """What queries are grounded along whose answers are to lack `count` edges."""

    count: int
    stored: Edges
    missing: Edges

    @staticmethod
    def of(count: int, train: Edges, whole: Edges) -> Lacking:
        return Lacking(count, train, whole.without(train))


@dataclass(frozen=True)
class _Round:
    """What one round of draws left over."""

    ids: Ints
    hashes: Hashes
    labels: Labels

    def joined(self, others: Sequence[_Round]) -> _Round:
        several = [self, *others]
        ids, hashes = (np.concatenate([getattr(one, kind) for one in several]) for kind in ("ids", "hashes"))
        return _Round(ids, hashes, Labels.stack([one.labels for one in several]))

    def take(self, rows: Ints) -> _Round:
        return _Round(self.ids[rows], self.hashes[rows], self.labels.take(rows))


def _draw(
    shape: Query,
    count: int,
    large: Edges,
    small: Edges | None,
    lacking: Lacking | None,
    cap: int,
    key: list[int],
    workers: int,
    progress: Callable[[int], object] | None,
) -> tuple[_Round, int]:
    """Rounds until `count` different queries are found, or patience ends; and how many draws that took."""
    answers = draw_answers(large) if lacking is None else _either(draw_answers(lacking.missing), draw_answers(large))
    found: list[_Round] = []
    seen: set[int] = set()
    attempts = window_start = seen_before = 0

    def size_of(number: int) -> int:
        """Few draws at first, for few queries; more and more where hardly any is accepted."""
        return min(_ROUND, max(64, 4 * count) << min(number // 4, 10))

    def one_round(number: int) -> _Round:
        generator = np.random.default_rng([*key, number])
        ids, hashes = draw_queries(shape, size_of(number), large, generator, answers, lacking)
        parts = range(0, max(len(ids), 1), chunk_size(large))
        slices = [slice(start, start + parts.step) for start in parts]
        accepted = [_accepted(shape, ids[one], hashes[one], large, small, lacking, cap) for one in slices]
        return accepted[0].joined(accepted[1:])

    with ThreadPoolExecutor(workers) as pool:
        for number, result in enumerate(_in_order(pool, one_round, ahead=workers)):
            attempts += size_of(number)
            fresh = []
            for row, signature in enumerate(result.hashes.tolist()):
                if signature not in seen and len(seen) < count:
                    seen.add(signature)
                    fresh.append(row)
            if fresh or not found:  # what is found is never empty, so that it has its kind
                found.append(result.take(np.array(fresh, dtype=np.int64)))
            if progress is not None:
                progress(len(fresh))
            if len(seen) == count:
                break
            if attempts - window_start >= _WINDOW:
                rate = (len(seen) - seen_before) / (attempts - window_start)
                if count - len(seen) > rate * max(_PATIENCE, 200 * count):
                    break
                window_start, seen_before = attempts, len(seen)
    return found[0].joined(found[1:]), attempts


def _in_order(pool: ThreadPoolExecutor, work: Callable[[int], _Round], ahead: int) -> Iterator[_Round]:
    """work(0), work(1), … without end, a few at a time; what is under way when the caller stops is dropped."""
    numbers = counting()
    waiting = [pool.submit(work, next(numbers)) for _ in range(ahead)]
    try:
        while True:
            yield waiting.pop(0).result()
            waiting.append(pool.submit(work, next(numbers)))
    finally:
        for future in waiting:
            future.cancel()


def _accepted(
    shape: Query,
    ids: Ints,
    hashes: Hashes,
    large: Edges,
    small: Edges | None,
    lacking: Lacking | None,
    cap: int,
) -> _Round:
    """The draws that pass the rules about answers, with their labels."""
    negated = has_complement(shape)
    if small is not None:
        gains, loses = _may_change(shape, ids, large, small)
        possible = np.flatnonzero(gains & loses if negated else gains)
        ids, hashes = ids[possible], hashes[possible]
    plan = compile_shapes((shape,), Exact.kind)
    answers = execute(plan, Exact(large), [ids])[0]
    if small is None:
        known = None
        keep = np.flatnonzero((answers.sizes > 0) & (answers.sizes <= cap))
    else:
        known = execute(plan, Exact(small), [ids])[0]
        shared = intersection([known, answers]).sizes if negated else known.sizes
        new, lost = answers.sizes - shared, known.sizes - shared
        keep = np.flatnonzero((new > 0) & (np.maximum(new, lost) <= cap) & (lost > 0 if negated else True))
        known = known.take(keep)
    found = _Round(ids[keep], hashes[keep], labels_between(known, answers.take(keep)))
    if lacking is None:
        return found
    batch, wanted = {shape: found.ids}, {shape: np.full(len(keep), lacking.count)}
    labels = only_missing(lacking.stored, large, batch, {shape: found.labels}, wanted)[shape]
    return replace(found, labels=labels).take(np.flatnonzero(labels.hard.sizes))


def _may_change(shape: Query, ids: Ints, large: Edges, small: Edges) -> tuple[Flags, Flags]:
    """Whether each query can gain, and can lose, answers from the smaller level to the larger: cheap, never wrong.

    One hop from an anchor gains just where its row is longer on the larger level. A later hop gains only if what it
    starts from changes or its relation has new edges. A complement gains what its branch loses.
    """
    match shape:
        case Anchor():
            return np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
        case Project(Anchor(anchor), position):
            entities, relations = ids[:, anchor], ids[:, position]
            gains = large.lengths_of(entities, relations) > small.lengths_of(entities, relations)
            return gains, np.zeros(len(ids), dtype=bool)
        case Project(inner, position):
            gains, loses = _may_change(inner, ids, large, small)
            new_edges = large.edges_by_relation > small.edges_by_relation
            return gains | new_edges[ids[:, position]], loses
        case Complement(inner):
            gains, loses = _may_change(inner, ids, large, small)
            return loses, gains
        case Intersect(several) | Union(several):
            changes = [_may_change(branch, ids, large, small) for branch in several]
            gains, loses = (np.logical_or.reduce(flags) for flags in zip(*changes, strict=True))
            return gains, loses


def draw_answers(edges: Edges) -> Answers:
    """How answers are drawn: each entity with an edge is as likely."""
    if not edges.large:
        entities = np.flatnonzero(np.diff(edges.row_bounds))
        return lambda generator, count: generator.choice(entities, size=count)

    def drawn(generator: np.random.Generator, count: int) -> Ints:
        """From all entities, and again in place of those without an edge; their list would grow with the graph."""
        found = np.full(count, -1, dtype=np.int64)
        while len(missing := np.flatnonzero(found < 0)):
            tried = generator.integers(edges.entities, size=len(missing))
            first, after = edges.row_range(tried)
            found[missing[after > first]] = tried[after > first]
        return found

    return drawn


def _either(one: Answers, other: Answers) -> Answers:
    """Each answer by one or the other, as likely."""
    return lambda generator, count: np.where(
        generator.random(count) < 0.5, one(generator, count), other(generator, count)
    )


def draw_queries(
    shape: Query,
    count: int,
    edges: Edges,
    generator: np.random.Generator,
    answers: Answers,
    lacking: Lacking | None = None,
) -> tuple[Ints, Hashes]:
    """Up to `count` groundings of a shape, and a hash of each.

    Groundings that got stuck, or in which two branches of a node are equal, are left out. With `lacking`, so many hops
    go along edges that are missing.
    """
    ids = np.full((count, len(tuple(query_ids(shape)))), -1, dtype=np.int64)
    sound = np.ones(count, dtype=bool)

    def step_back(targets: Ints, last: Ints | None, along_missing: Flags | None) -> tuple[Ints, Ints]:
        """Along any edge; or where it is said, for each target, along a missing one or a stored one."""
        if lacking is None or along_missing is None:
            possible, outgoing, sources = _step_back(edges, targets, last, generator)
        else:
            possible, outgoing, sources = (
                np.where(along_missing, one, other)
                for one, other in zip(
                    _step_back(lacking.missing, targets, last, generator),
                    _step_back(lacking.stored, targets, last, generator),
                    strict=True,
                )
            )
        np.logical_and(sound, possible, out=sound)
        return outgoing, sources

    def fill(query: Query, targets: Ints, last: Ints | None, missing: Ints | None) -> Hashes:
        """`missing` says for each draw how many hops of a proof of the target are to be missing, where it matters."""
        match query:
            case Anchor(position):
                ids[:, position] = targets
                return _mixed(targets.astype(np.uint64))
            case Project(inner, position):
                along_missing = None
                if missing is not None:
                    along_missing = generator.random(count) * most_missing(query) < missing
                    missing = missing - along_missing
                outgoing, sources = step_back(targets, last, along_missing)
                ids[:, position] = outgoing ^ 1
                below = fill(inner, sources, outgoing ^ 1, missing)
                return _mixed(below * np.uint64(3) + _mixed(ids[:, position].astype(np.uint64)))
            case Complement(inner):
                return _mixed(~fill(inner, targets, last, None))
            case Intersect() | Union():
                shares = _shares(query, missing, generator)
                several = [
                    fill(branch, targets, None, share) for branch, share in zip(branches(query), shares, strict=True)
                ]
                for one, other in combinations(several, 2):
                    sound[one == other] = False
                combined = np.full(count, isinstance(query, Union), dtype=np.uint64)
                for branch in several:
                    combined = _mixed(combined * np.uint64(3) + branch)
                return combined

    hashes = fill(shape, answers(generator, count), None, None if lacking is None else np.full(count, lacking.count))
    return ids[sound], hashes[sound]


def _shares(query: Intersect | Union, missing: Ints | None, generator: np.random.Generator) -> Iterator[Ints | None]:
    """How many hops of each branch are to be missing, if so many are of them all.

    Any hops of an intersection's branches are as likely; of a union every branch is a proof of its own.
    """
    most = [most_missing(branch) for branch in query.queries]
    for number, own in enumerate(most):
        if missing is None:
            yield None
        elif isinstance(query, Union):
            yield np.minimum(missing, own)
        else:
            share = generator.hypergeometric(missing, sum(most[number:]) - missing, own)
            missing = missing - share
            yield share


def _step_back(
    edges: Edges, targets: Ints, last: Ints | None, generator: np.random.Generator
) -> tuple[Flags, Ints, Ints]:
    """For each target, whether it has any, the inverse of a relation that reaches it, never `last`, and a source.

    As inverses are stored, the relations that reach a target are the inverses of those that leave it.
    """
    first, after = edges.row_range(targets)
    barred: Ints = np.full(len(targets), edges.no_row) if last is None else edges.rows_of(targets, last)
    choices = after - first - (barred < edges.no_row)
    rows = first + (generator.random(len(targets)) * choices).astype(np.int64)
    rows += rows >= barred
    rows = np.minimum(rows, len(edges.keys) - 1)
    within = (generator.random(len(targets)) * edges.lengths_at(rows)).astype(np.int64)
    return choices > 0, edges.keys[rows] % edges.relations, edges.tails[edges.offsets[rows] + within]


def _one_hop(large: Edges, small: Edges | None, count: int | None, cap: int, generator: np.random.Generator) -> Ints:
    """Every (head, relation) with 1 … cap answers among the split's own facts, or `count` of them."""
    allowed = [_allowed_rows(keys, lengths, large, small, cap) for keys, lengths in large.row_blocks()]
    total = sum(map(len, allowed))
    if count is not None and count < total:
        chosen = np.sort(generator.choice(total, size=count, replace=False))
        ends = np.cumsum([len(keys) for keys in allowed])
        parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
        allowed = [keys[part - (end - len(keys))] for keys, part, end in zip(allowed, parts, ends, strict=True)]
    return np.stack(np.divmod(np.concatenate(allowed), large.relations), axis=1)


def _allowed_rows(keys: Ints, lengths: Ints, large: Edges, small: Edges | None, cap: int) -> Ints:
    """Of these rows, the keys of those with 1 … cap answers that the smaller level does not have."""
    new = lengths.astype(np.int64)
    if small is not None:
        new -= small.lengths_of(*np.divmod(keys, large.relations))
    return keys[(new > 0) & (new <= cap)]


def _mixed(values: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that scatters them (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
