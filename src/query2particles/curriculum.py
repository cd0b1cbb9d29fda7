"""What a model is trained on: how many queries of each shape make a batch, where they come from, and at what rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from query2particles.config import Training
from query2particles.engine.loss import LossTerms
from query2particles.engine.negatives import Proposal
from query2particles.engine.sets import Sets
from query2particles.errors import UsageError
from query2particles.graph.edges import Ints
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES, Complement, Query
from query2particles.workload.device_edges import DeviceEdges
from query2particles.workload.selection import stored_queries
from query2particles.workload.stream import FixedStream, Grounding, Joined, Part, Stream

__all__ = ["doubts", "rate_at", "training_parts", "training_proposal", "training_stream"]

_LEAKED = ("1p", "2p", "3p", "2i", "3i")
"""What the released code adds of Query2Box's valid and test queries."""


def training_parts(training: Training) -> tuple[list[Part], list[LossTerms]]:
    """How many queries of each shape make a batch, and how each is trained."""
    terms = LossTerms(training.smoothing, training.exclusion)
    counts = _counts(training)
    one_hop = counts.get("1p", 0)
    unions = round(one_hop * training.union_share)
    if one_hop:
        counts["1p"] -= unions
    leaked = {
        name: round(counts[name] * training.leaked_share) for name in _LEAKED if training.leaked and name in counts
    }
    counts |= {name: counts[name] - count for name, count in leaked.items()}
    by_edge = {name: round(count * training.edge_share) for name, count in counts.items()}
    parts = [Part(SHAPES[name], count - by_edge[name]) for name, count in counts.items() if count > by_edge[name]]
    parts += [Part(SHAPES[name], count, Grounding.EDGE) for name, count in by_edge.items() if count > 0]
    if unions:
        united = Grounding.UNITED if training.union_answers == "any" else Grounding.ONE_HOP
        parts.append(Part(SHAPES["2u"], unions, united))
    every = [terms] * len(parts)
    if one_hop and training.inverted_complements:
        parts.append(Part(Complement(SHAPES["1p"]), one_hop, Grounding.ONE_HOP))
        every.append(terms._replace(exclusion=0.0, sign=-1.0))
    stored = [Part(SHAPES[name], count, Grounding.STORED) for name, count in leaked.items() if count > 0]
    return parts + stored, every + [terms] * len(stored)


def training_stream(
    graph: Graph, training: Training, parts: Sequence[Part], generator: torch.Generator, *, batches: int = 1
) -> Stream | FixedStream | Joined:
    """Where the queries of a batch come from: a folder of them, or the edges; `batches` of them at a time.

    Parts that are `STORED` come from the folder `leaked`, and come last.
    """
    if stored := [part for part in parts if part.grounding is Grounding.STORED]:
        others = [part for part in parts if part.grounding is not Grounding.STORED]
        own = training_stream(graph, replace(training, leaked=""), others, generator, batches=batches)
        leaked = _leaked_queries(graph, Path(training.leaked))
        return Joined(own, FixedStream(leaked, _times(stored, batches), generator))
    parts = _times(parts, batches)
    if training.workload:
        if not training.holds_out:
            raise UsageError(
                "a workload's answers follow from the training edges: leave out workload, or valid_edges and all_edges"
            )
        batch, labels = stored_queries(graph, Path(training.workload), "train")
        workload = {shape: (ids, labels[shape].hard) for shape, ids in batch.items()}
        return FixedStream(workload, parts, generator, subsampling=training.subsampling)
    on_device = DeviceEdges.of(graph.at(training.split), generator.device)
    return Stream(on_device, parts, generator, cap=training.cap, subsampling=training.subsampling)


def training_proposal(graph: Graph, training: Training, generator: torch.Generator, *, alone: bool = True) -> Proposal:
    """What positives are set against; `training` is settled.

    Of what is trained by rows, or by several processes, they come from the stream's generator: batches that are drawn
    ahead can then be drawn once more, and all processes draw the same.
    """
    assert training.negatives != "auto", "settled settings are numbers"
    edges = graph.at(training.split)
    degrees = np.diff(edges.offsets[edges.row_bounds]) if training.negatives_by == "degree" else None
    own = None if training.table == "whole" and alone else generator
    return Proposal(edges.entities, training.negatives, generator.device, degrees=degrees, generator=own)


def _times(parts: Sequence[Part], batches: int) -> list[Part]:
    return [replace(part, count=part.count * batches) for part in parts]


def _leaked_queries(graph: Graph, folder: Path) -> dict[Query, tuple[Ints, Sets]]:
    """The valid and the test queries of a folder, as far as their shapes are trained on, and their hard answers."""
    shapes = [SHAPES[name] for name in _LEAKED]
    splits = [stored_queries(graph, folder, split, shapes=shapes) for split in ("valid", "test")]
    return {
        shape: (
            np.concatenate([batch[shape] for batch, _ in splits if shape in batch]),
            Sets.stack([labels[shape].hard for _, labels in splits if shape in labels]),
        )
        for shape in dict.fromkeys(shape for batch, _ in splits for shape in batch)
    }


def rate_at(update: int, training: Training) -> float:
    """The learning rate of an update: a rise over `warm_up`, then constant, or half a cosine down to zero."""
    if update < training.warm_up:
        return training.rate * (update + 1) / (training.warm_up + 1)
    if training.schedule == "constant":
        return training.rate
    rest = max(training.updates - training.warm_up, 1)
    return training.rate * (1 + math.cos(math.pi * (update - training.warm_up) / rest)) / 2


def doubts(training: Training) -> list[str]:
    """What a person may not have meant by these settings."""
    found = []
    if training.leaked:
        found.append(
            f"this training sees the valid and test queries of {training.leaked} with their hard answers: what is "
            "measured on them afterwards is no result of the method"
        )
    if missing := [name for name, count in _counts(training).items() if training.mix[name] and not count]:
        found.append(
            f"a batch of {training.batch:,} has no query of {', '.join(missing)}, which the mix names; "
            "raise batch, or leave them out of mix"
        )
    if training.warm_up > training.updates:
        found.append(
            f"the rate never gets to {training.rate:g}: it rises over {training.warm_up:,} updates (warm_up), "
            f"and there are {training.updates:,}"
        )
    return found


def _counts(training: Training) -> dict[str, int]:
    """The queries of each shape of the mix in a batch; rounding errors do not add up."""
    total = sum(training.mix.values())
    ends = [0.0, *accumulate(training.mix.values())]
    return {
        name: round(training.batch * end / total) - round(training.batch * start / total)
        for name, start, end in zip(training.mix, ends[:-1], ends[1:], strict=True)
    }
