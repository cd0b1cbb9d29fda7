"""Synthetic graphs of any size: facts drawn by power laws, the same for the same seed, never all in memory.

A number below n that is drawn as ⌊n · u^(1 / (1 − a))⌋, u uniform in [0, 1), is i with a likelihood that falls as i⁻ᵃ:
few entities have very many facts and many have few, as in graphs that people made. Tails are steeper than heads, as
types and places are. With 86 million entities, the first is the tail of one fact in 240.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["FREEBASE", "STEEPNESS", "power_law_facts", "write_power_law_graph"]

Ids: TypeAlias = npt.NDArray[np.int32]

FREEBASE = (86_000_000, 15_000, 338_000_000)
"""Entities, relations and facts of Freebase, about."""

STEEPNESS = 0.5, 0.6, 0.7
"""Of heads, relations and tails: the a above."""

_AT_ONCE = 1_000_000


def power_law_facts(entities: int, relations: int, facts: int, *, seed: int = 0) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Heads, relations and tails, a million at a time. Facts may repeat, and not every entity need have one."""
    for part, start in enumerate(range(0, facts, _AT_ONCE)):
        generator = np.random.default_rng([seed, part])
        size = min(_AT_ONCE, facts - start)
        heads, between, tails = (
            _drawn(generator, count, steepness, size)
            for count, steepness in zip((entities, relations, entities), STEEPNESS, strict=True)
        )
        yield heads, between, tails


def _drawn(generator: np.random.Generator, count: int, steepness: float, size: int) -> Ids:
    return (count * generator.random(size) ** (1 / (1 - steepness))).astype(np.int32)


def write_power_law_graph(
    path: Path,
    entities: int,
    relations: int,
    facts: int,
    *,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """A TSV file of such facts; `progress` is told how many facts of how many are written."""
    import pyarrow as pa
    from pyarrow import compute, csv

    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    done = 0
    with path.open("wb") as file:
        for columns in power_law_facts(entities, relations, facts, seed=seed):
            names = [
                compute.binary_join_element_wise(kind, pa.array(column).cast(pa.string()), "")
                for kind, column in zip(("entity_", "relation_", "entity_"), columns, strict=True)
            ]
            csv.write_csv(pa.table(names, names=["head", "relation", "tail"]), file, write_options=options)
            done += len(columns[0])
            if progress is not None:
                progress(done, facts)
