"""Training queries without end, drawn where the model lives: no work of the host for any query.

A stream is built for the *parts* of a batch, each so many queries of one shape, and every `draw` fills all of them:

1. ground each shape backwards from a random answer, by the procedure of `workload/sample`;
2. flag groundings that got stuck or have equal branches in a node;
3. propose candidates along the edges, verify them (`workload/candidates`), and pick one as the positive;
4. bring the rows with a positive to the front.

More rows are drawn than wanted, as many as a trial shows to be needed when the stream is built, so that step 4 hardly
ever has to repeat one. Parts share their tensor calls (`workload/schedule`), all shapes are fixed, and nothing is read
back: a CUDA graph can hold a draw. The positive is an exact answer on the given edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from query2particles.engine.batches import Drawn
from query2particles.engine.sets import Sets
from query2particles.errors import SamplingError
from query2particles.graph.edges import Ints
from query2particles.query.algebra import SHAPES, Query, nickname, query_ids
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.groundings import Grounding, Groundings, Part, leaves

__all__ = ["Drawn", "FixedStream", "Grounding", "Joined", "Part", "Stream"]

_MOST_ROWS = 64
_FEW_ROWS = 1024
"""At most so many rows are drawn for each query wanted, if more than so many in all."""

_TRIAL_ROWS = 4096
_TRIAL_ROUNDS = 32
_TRIAL_USABLE = 1000
"""When a stream is built, so many rows of each kind of part are tried in so many rounds, until so many were usable."""


class Stream:
    """Draws all parts of a batch, each time anew.

    `candidates` is how many answers of each row are considered. With fewer, a draw takes less (half of them, less than
    half the time), more queries with few answers are lost, and the positives of long chains are less uniform.
    Queries with more answers than `cap` are not drawn; their number is exact for one-hop queries, and otherwise
    estimated from the candidates. With `subsampling` the weight of a query with a answers is proportional to 1 / √a.
    """

    def __init__(
        self,
        edges: DeviceEdges,
        parts: Sequence[Part],
        generator: torch.Generator,
        *,
        candidates: int = 16,
        cap: float = math.inf,
        subsampling: bool = False,
    ) -> None:
        self.parts = tuple(parts)
        self._generator, self._subsampling = generator, subsampling
        tallies = _try(edges, parts, candidates, cap)
        rows = [_rows_needed(part.count, tally) for part, tally in zip(parts, tallies, strict=True)]
        self._groundings = Groundings(edges, parts, rows, candidates, cap)
        self._front = _Front(rows, [part.count for part in parts], edges.device)

    @property
    def uniforms(self) -> int:
        """How many random numbers a draw takes."""
        return self._groundings.uniforms

    def draw(self) -> list[Drawn]:
        """The next batch, part by part."""
        device = self._generator.device
        return self.draw_from(torch.rand(self.uniforms, generator=self._generator, dtype=torch.float64, device=device))

    def draw_from(self, uniforms: Tensor) -> list[Drawn]:
        """The batch that follows from these uniform numbers."""
        ids, positives, excluded, answers, usable = self._groundings.draw(uniforms)
        chosen, weights = self._front.choose(usable)
        if self._subsampling:
            weights = _subsampled(weights, answers[chosen])
        counts = [part.count for part in self.parts]
        columns = ids[chosen], positives[chosen], excluded[chosen], weights
        pieces = zip(*(torch.split(column, counts) for column in columns), strict=True)
        return [
            Drawn(part_ids[:, : part.positions], *others)
            for part, (part_ids, *others) in zip(self.parts, pieces, strict=True)
        ]


def _subsampled(weights: Tensor, answers: Tensor) -> Tensor:
    """Less weight for queries with many answers, as word embeddings have it for frequent words; 1 in the mean."""
    weights = weights * answers.clamp(min=1).rsqrt()
    return weights / weights.mean().clamp(min=torch.finfo(weights.dtype).tiny)


class _Front:
    """Takes the first usable rows of each part, and those again where they are too few."""

    def __init__(self, rows: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        ends = np.cumsum(rows)
        self._first = torch.from_numpy(np.repeat(ends - rows, counts)).to(device)
        self._last = torch.from_numpy(np.repeat(ends - 1, counts)).to(device)
        self._places = torch.from_numpy(np.concatenate([np.arange(count) for count in counts])).to(device)

    def choose(self, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each query wanted, and its weight."""
        numbers = usable.long().cumsum(0)
        before = numbers[self._first] - usable[self._first].long()
        available = numbers[self._last] - before
        wanted = before + self._places % available.clamp(min=1) + 1
        chosen = torch.where(available > 0, torch.searchsorted(numbers, wanted), self._first)
        return chosen, (available > 0).float()


@dataclass(frozen=True)
class _Tally:
    """How many of the rows that were tried are usable."""

    usable: int = 0
    rows: int = 0


def _try(edges: DeviceEdges, parts: Sequence[Part], candidates: int, cap: float) -> list[_Tally]:
    """Draw rows of each kind of part until enough are usable."""
    generator = torch.Generator(edges.device).manual_seed(0)
    kinds = [replace(part, count=1) for part in parts]
    tallies = dict.fromkeys(kinds, _Tally())
    for _ in range(_TRIAL_ROUNDS):
        waiting = [kind for kind, tally in tallies.items() if tally.usable < _TRIAL_USABLE]
        if not waiting:
            break
        rows = Groundings(edges, waiting, [_TRIAL_ROWS] * len(waiting), candidates, cap)
        uniforms = torch.rand(rows.uniforms, generator=generator, dtype=torch.float64, device=edges.device)
        *_, usable = rows.draw(uniforms)
        for kind, number in zip(waiting, usable.view(len(waiting), -1).sum(1).tolist(), strict=True):
            tallies[kind] = _Tally(tallies[kind].usable + number, tallies[kind].rows + _TRIAL_ROWS)
    for kind, tally in tallies.items():
        if not tally.usable:
            raise SamplingError(
                f"none of {tally.rows:,} draws of {nickname(kind.shape)} on this graph gave a query with an answer: "
                "leave this shape out of the training mix (mix, such as 1p:4,2p:1), raise the cap, or train on a graph "
                "with more edges"
            )
    return [tallies[kind] for kind in kinds]


def _rows_needed(count: int, tally: _Tally) -> int:
    """So many rows n that, with a cautious estimate p of the usable share, n p − 3 √(n p (1 − p)) ≥ count."""
    share = tally.usable / tally.rows
    spread = 3 * math.sqrt(1 - share)
    cautious = share * max(1 - spread / math.sqrt(tally.usable), 0.25)
    root = (spread + math.sqrt(spread**2 + 4 * count)) / 2
    return min(math.ceil(root**2 / cautious), max(_MOST_ROWS * count, _FEW_ROWS))


class FixedStream:
    """Draws from given queries instead: each as likely, with a uniformly random answer of it.

    `workload` holds the ids (n, positions) and the answers of each shape; queries without an answer are left out. Parts
    grounded by `ONE_HOP` or `UNITED` are put together from its 1p queries; of one grounded by `EDGE` every answer is as
    likely, and of one by `UNITED` every answer of a branch, so that those of several come more often.
    `subsampling` is that of `Stream`.
    """

    def __init__(
        self,
        workload: Mapping[Query, tuple[Ints, Sets]],
        parts: Sequence[Part],
        generator: torch.Generator,
        *,
        subsampling: bool = False,
    ) -> None:
        self.parts = tuple(parts)
        self._generator, self._subsampling = generator, subsampling
        shapes = [SHAPES["1p"] if part.one_hop else part.shape for part in parts]
        self._draws = [len(leaves(part.shape)) if part.one_hop else 1 for part in parts]  # for each query
        width = max(len(tuple(query_ids(shape))) for shape in shapes)
        ids, answers = {}, {}
        for shape in dict.fromkeys(shapes):
            all_ids, all_answers = workload.get(shape, (np.zeros((0, 0)), Sets.empty(0, 0)))
            answered = np.flatnonzero(all_answers.sizes)
            if not len(answered):
                raise SamplingError(
                    f"the workload has no {nickname(shape)} queries with an answer: leave the shape out of the "
                    "training mix, or sample some (q2p sample --split train)"
                )
            ids[shape] = np.pad(all_ids[answered], ((0, 0), (0, width - all_ids.shape[1])))
            answers[shape] = all_answers.take(answered).listed()
        stacked = Sets.stack(list(answers.values()))
        numbers = {shape: len(several) for shape, several in ids.items()}
        first = dict(zip(numbers, np.cumsum([0, *numbers.values()]).tolist(), strict=False))
        slots = [part.count * draws for part, draws in zip(parts, self._draws, strict=True)]

        def moved(values: Ints) -> Tensor:
            return torch.from_numpy(values.astype(np.int64)).to(generator.device)

        self._ids = moved(np.concatenate(list(ids.values())))
        self._offsets, self._sizes = moved(stacked.offsets), moved(stacked.sizes)
        self._answers = moved(stacked.values)
        self._first = moved(np.repeat([first[shape] for shape in shapes], slots))
        self._numbers = moved(np.repeat([numbers[shape] for shape in shapes], slots))
        ends = {shape: (first[shape], first[shape] + numbers[shape]) for shape in shapes}
        spans = [stacked.offsets[list(ends[shape])] for shape in shapes]
        by_answer = [part.grounding in (Grounding.EDGE, Grounding.UNITED) for part in parts]
        self._by_answer = torch.from_numpy(np.repeat(by_answer, slots)).to(generator.device)
        self._first_answer = moved(np.repeat([start for start, _ in spans], slots))
        self._answer_numbers = moved(np.repeat([stop - start for start, stop in spans], slots))

    def draw(self) -> list[Drawn]:
        """The next batch, part by part."""
        uniforms = torch.rand(
            3, len(self._first), generator=self._generator, dtype=torch.float64, device=self._generator.device
        )
        answers = self._first_answer + (uniforms[0] * self._answer_numbers).long()
        rows = torch.where(
            self._by_answer,
            torch.searchsorted(self._offsets, answers, right=True) - 1,
            self._first + (uniforms[0] * self._numbers).long(),
        )
        positives = self._answers[self._offsets[rows] + (uniforms[1] * self._sizes[rows]).long()]
        slots = [part.count * draws for part, draws in zip(self.parts, self._draws, strict=True)]
        columns = self._ids[rows], positives, self._sizes[rows], uniforms[2]
        queries, answers_in_all = [], []
        for part, draws, *pieces in zip(
            self.parts, self._draws, *(torch.split(column, slots) for column in columns), strict=True
        ):
            ids, own, sizes, chance = (piece.view(part.count, draws, -1) for piece in pieces)
            if part.grounding is Grounding.UNITED:
                sums = sizes.cumsum(1)
                branch = (sums <= chance[:, :1] * sums[:, -1:]).sum(1, keepdim=True)
                positive, count = own.gather(1, branch), sums[:, -1:]
            else:
                positive, count = own[:, :1], sizes[:, :1]
            chosen = ids[..., : part.positions // draws].flatten(1)
            queries.append((chosen, positive.flatten()))
            answers_in_all.append(count.flatten())
        weights = torch.ones(sum(part.count for part in self.parts), device=rows.device)
        if self._subsampling:
            weights = _subsampled(weights, torch.cat(answers_in_all))
        each = torch.split(weights, [part.count for part in self.parts])
        return [Drawn(ids, own, excluded=own, weights=w) for (ids, own), w in zip(queries, each, strict=True)]


class Joined:
    """Several streams: the parts of one after those of the other."""

    def __init__(self, *streams: Stream | FixedStream | Joined) -> None:
        self.parts: tuple[Part, ...] = tuple(part for stream in streams for part in stream.parts)
        self._streams = streams

    def draw(self) -> list[Drawn]:
        return [drawn for stream in self._streams for drawn in stream.draw()]
