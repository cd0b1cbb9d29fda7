"""Synthetic graphs of any size: facts drawn by power laws, the same for the same seed, never all in memory.

A number below n that is drawn as ⌊n · u^(1 / (1 − a))⌋, u uniform in [0, 1), is i with a likelihood that falls as i⁻ᵃ:
few entities have very many facts and many have few, as in graphs that people made. As there, entities are of kinds, and
a relation has heads of one kind, some of which have most of its facts; and tails of its own that most facts lead to, as
most people have one of few professions. Without that, next to no two questions would have an answer in common: of 86
million entities, the most frequent tail of a relation is that of one fact in six.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FREEBASE", "facts_from", "power_law_facts", "write_power_law_graph"]

Ids: TypeAlias = npt.NDArray[np.int32]
Numbers = TypeVar("Numbers", "npt.NDArray[np.float64]", "Tensor")

FREEBASE = (86_000_000, 15_000, 338_000_000)
"""Entities, relations and facts of Freebase, about."""

_HEADS, _RELATIONS, _TAILS = 0.5, 0.6, 0.9
"""The a above: of the heads of a kind, of relations, and of the tails of a relation."""

_KINDS = 100

_AT_ONCE = 1_000_000


def facts_from(
    uniforms: tuple[Numbers, Numbers, Numbers], entities: int, relations: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Heads, relations and tails, as whole floating numbers, from as many uniform numbers in float64."""
    for_heads, for_relations, for_tails = uniforms
    r = relations * for_relations ** (1 / (1 - _RELATIONS)) // 1
    kinds = min(_KINDS, relations)
    h = r % kinds * (entities // kinds) + entities // kinds * for_heads ** (1 / (1 - _HEADS)) // 1
    t = (r * (entities // relations) + entities * for_tails ** (1 / (1 - _TAILS)) // 1) % entities
    return h, r, t


def power_law_facts(entities: int, relations: int, facts: int, *, seed: int = 0) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Heads, relations and tails, a million at a time. Facts may repeat, and not every entity need have one."""
    for part, start in enumerate(range(0, facts, _AT_ONCE)):
        generator = np.random.default_rng([seed, part])
        size = min(_AT_ONCE, facts - start)
        uniforms = generator.random(size), generator.random(size), generator.random(size)
        h, r, t = facts_from(uniforms, entities, relations)
        yield h.astype(np.int32), r.astype(np.int32), t.astype(np.int32)


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
