"""The filtered ranks of single facts, by whatever scores all entities: the one judge of `benchmarks/peers.py`

It needs nothing but numpy and torch: each system is judged in the interpreter that it lives in.

Directed relation 2r is relation r, 2r + 1 its inverse: the tail of a fact (h, r, t) is asked for as (h, 2r), its head
as (t, 2r + 1). Candidates are the entities of which no known fact says that they are answers, too; those that score the
same as the answer count half (realistic ties).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.integer[Any]]

Scores = Callable[[Ints, int], torch.Tensor]
"""For facts (n, 3) and 0, the scores (n, entities) of every tail; and 1, of every head. They are overwritten."""


def directed(facts: Ints, inverse: int) -> tuple[Ints, Ints, Ints]:
    """What is asked from, by which directed relation, and the answer."""
    heads, relations, tails = facts.T
    return (tails, 2 * relations + 1, heads) if inverse else (heads, 2 * relations, tails)


def count(scores_of: Scores, facts: Ints, known: Ints, *, chunk: int = 256) -> tuple[Ints, Ints]:
    """How many candidates score more than the answer, and how many the same, (n, 2): for tails and for heads."""
    greater, equal = (np.zeros((len(facts), 2), dtype=np.int64) for _ in range(2))
    relations = 2 * (1 + int(known[:, 1].max()))
    for inverse in (0, 1):
        sources, between, answers = directed(known, inverse)
        keys = sources.astype(np.int64) * relations + between
        order = np.argsort(keys, kind="stable")
        keys, answers = keys[order], answers[order]
        for start in range(0, len(facts), chunk):
            some = facts[start : start + chunk]
            scores = scores_of(some, inverse)
            if bool(scores.isnan().any()):
                raise ValueError("some scores are no numbers")
            sources, between, wanted = directed(some, inverse)
            rows = torch.arange(len(some))
            own = scores[rows, torch.as_tensor(wanted, dtype=torch.int64)][:, None]
            asked = sources.astype(np.int64) * relations + between
            first, after = (np.searchsorted(keys, asked, side=side) for side in ("left", "right"))
            lengths = after - first
            places = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            filtered = rows.repeat_interleave(torch.as_tensor(lengths)), torch.as_tensor(answers[places]).long()
            scores[filtered] = torch.nan  # neither greater than anything nor equal to it
            greater[start : start + chunk, inverse] = (scores > own).sum(1).numpy()
            equal[start : start + chunk, inverse] = (scores == own).sum(1).numpy()
    return greater, equal


def figures(greater: Ints, equal: Ints) -> Mapping[str, float]:
    """Means over all ranks, as percentages."""
    ranks = 1 + greater + equal / 2
    means = {"mrr": (1 / ranks).mean(), **{f"hits@{k}": (ranks <= k).mean() for k in (1, 3, 10)}}
    return {name: round(100 * float(mean), 2) for name, mean in means.items()}
