"""The entity tables of a method as rows of which an update reads and writes a few, wherever the others lie.

Once a batch and its negatives are drawn, it is known what an update reads of the tables: anchors, positives, excluded
entities, negatives. Their rows, each once and in order, make small tables (`WorkingSet`); the method runs on these with
ids renumbered, and their gradients go back to the rows that they came from. Nothing else of a table is touched, so it
may be as long as memory is, of half precision, or on a disk.

A row has a learning rate of its own, by the mean square of its gradients so far (as row-wise AdaGrad and Adam have):

    v ← v + (|g|²/d − v) / min(t, T)        e ← (1 − η λ) e − η g / (√v + ε)

where t updates touched the row, and T are remembered. Two numbers a row, where Adam keeps two for each of its
coordinates. Rows decay (λ) when they are touched: one that comes once in ten thousand updates would otherwise be
nothing by the time that it does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from query2particles.engine.batches import Drawn
from query2particles.engine.negatives import Negatives
from query2particles.query.algebra import Query, anchor_positions

__all__ = [
    "Distinct",
    "Filling",
    "Rows",
    "Table",
    "WorkingSet",
    "distinct",
    "rounded_stochastically",
    "with_few_entities",
]

_REMEMBERED = 1000
"""T: as AdamW, which forgets a thousandth of a square at every update."""

_SMALLEST = 1e-8
"""ε"""

_LOW_BITS = 1 << 16
"""What a float32 has more bits than a bfloat16, as a number."""


class Rows(Protocol):
    """Rows of all entity tables of a method, by ascending distinct ids; the id after the last one stands for none."""

    @property
    def entities(self) -> int: ...

    def read(self, ids: Tensor) -> list[Tensor]:
        """Of each table the rows (m, …), in float32, where the ids are."""
        ...


class Table:
    """Rows in tensors of `entities` + 1 rows, on any device, of float32 or bfloat16; the last one is for nothing.

    bfloat16 has eight bits: a small step would be rounded away, at every update again. Rounded up as often as its share
    of the gap says, it is kept in the mean; `generator`, on the tensors' device, says when.
    """

    def __init__(
        self,
        tables: Mapping[str, Tensor],
        *,
        decay: float,
        generator: torch.Generator,
        moments: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.tables = dict(tables)
        self._decay, self._generator = decay, generator
        first = next(iter(self.tables.values()))
        self.squares, self.touched = moments or (  # v, t
            torch.zeros((len(first), len(self.tables)), device=first.device),
            torch.zeros(len(first), device=first.device),
        )

    @property
    def entities(self) -> int:
        return len(self.touched) - 1

    @property
    def device(self) -> torch.device:
        return self.touched.device

    def read(self, ids: Tensor) -> list[Tensor]:
        own = ids.to(self.device)
        return [table.index_select(0, own).to(ids.device, torch.float32) for table in self.tables.values()]

    def whole_tables(self) -> dict[str, Tensor]:
        """By name, with a row for each entity."""
        return {name: table[: self.entities] for name, table in self.tables.items()}

    def write(self, ids: Tensor, gradients: Sequence[Tensor], rate: Tensor | float) -> None:
        """Let rows step against the gradients (m, …) of each table."""
        own = ids.to(self.device)
        times = self.touched.index_select(0, own) + 1
        squares = self.squares.index_select(0, own)
        found = torch.stack([one.to(self.device).square().flatten(1).mean(1) for one in _as_rows(gradients)], 1)
        squares += (found - squares) / times.clamp(max=_REMEMBERED)[:, None]
        self.touched.index_copy_(0, own, times)
        self.squares.index_copy_(0, own, squares)
        for table, gradient, square in zip(self.tables.values(), gradients, squares.unbind(1), strict=True):
            scale = rate / (square.sqrt() + _SMALLEST)
            step = gradient.to(self.device) * scale.view(-1, *[1] * (gradient.dim() - 1))
            rows = table.index_select(0, own).float() * (1 - rate * self._decay) - step
            if table.dtype == torch.bfloat16:
                rows = rounded_stochastically(rows, self._generator)
            table.index_copy_(0, own, rows)

    checkpoint = 0
    """The number of the last one, where rows need to know."""

    def flush(self) -> None:
        """Before a checkpoint is written; rows in memory are written with it."""

    def settle(self, checkpoint: int) -> None:
        """After a checkpoint of this number was written."""

    def recover(self, checkpoint: int) -> None:
        """After a checkpoint of this number was read."""

    @property
    def elsewhere(self) -> frozenset[str]:
        """The tables that a checkpoint need not hold."""
        return frozenset()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs besides the tables."""
        return {"squares": self.squares, "touched": self.touched}


def _as_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """With a second dimension where a row is a single number."""
    return [one if one.dim() > 1 else one[:, None] for one in tensors]


def rounded_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """Float32 as bfloat16: either neighbour, the nearer one more often, so that the mean is the value."""
    noise = torch.randint(_LOW_BITS, values.shape, generator=generator, dtype=torch.int32, device=values.device)
    bits = values.contiguous().view(torch.int32) + noise  # carries into what is kept as often as it is near to it
    return (bits & -_LOW_BITS).view(torch.float32).to(torch.bfloat16)


class Distinct(NamedTuple):
    """Which entities there are in a list, and where each of the list is among them."""

    ids: Tensor  # (n,) ascending, without repeats, then `nothing` to the end
    places: Tensor  # (n,)


def distinct(entities: Tensor, nothing: int) -> Distinct:
    """In tensors as long as the list, whatever it holds, so that a CUDA graph can hold it."""
    ascending, order = entities.int().sort()  # on CUDA in half the time that longer ones take
    new = torch.ones_like(ascending, dtype=torch.bool)
    torch.ne(ascending[1:], ascending[:-1], out=new[1:])
    numbers = new.long().cumsum(0) - 1
    ids = torch.full_like(entities, nothing).scatter_(0, numbers, ascending.to(entities.dtype))
    return Distinct(ids, torch.empty_like(numbers).scatter_(0, order, numbers))


def with_few_entities(method: Any, tables: Sequence[str], count: int) -> Any:
    """The method with tables of `count` entities; all other parameters are those of the original itself."""
    kept: dict[int, Any] = {id(one): one for one in (*method.parameters(), *method.buffers())}
    for name in tables:
        own = getattr(method, name)
        kept[id(own)] = nn.Parameter(own.new_zeros((count, *own.shape[1:]), dtype=torch.float32))
    return copy.deepcopy(method, kept)


class Filling(NamedTuple):
    """What a batch needs of the rows, and the batch with ids of the small tables."""

    ids: Tensor  # (capacity,)
    drawn: list[Drawn]
    negatives: Negatives


class WorkingSet:
    """The small tables that a method of `capacity` entities runs on, filled anew for every update."""

    def __init__(self, method: Any, tables: Sequence[str], rows: Rows, shapes: Sequence[Query]) -> None:
        self.rows = rows
        self.parameters: list[nn.Parameter] = [getattr(method, name) for name in tables]
        self._anchors = [anchor_positions(shape) for shape in shapes]
        self._ids: Tensor | None = None

    def renumbered(self, drawn: Sequence[Drawn], negatives: Negatives) -> Filling:
        """Find out which rows a batch needs."""
        columns = [negatives.entities]
        for part, anchors in zip(drawn, self._anchors, strict=True):
            columns += [part.positives, part.excluded, *(part.ids[:, anchor] for anchor in anchors)]
        found = distinct(torch.cat(columns), self.rows.entities)
        places = iter(torch.split(found.places, [len(column) for column in columns]))
        others = Negatives(next(places), negatives.stands_for)
        own = [_with_places(part, anchors, places) for part, anchors in zip(drawn, self._anchors, strict=True)]
        return Filling(found.ids, own, others)

    def fill(self, ids: Tensor, rows: Sequence[Tensor]) -> None:
        """Let these rows be the small tables."""
        self._ids = ids
        for parameter, own in zip(self.parameters, rows, strict=True):
            parameter.data.copy_(own)
            parameter.grad = None

    @property
    def ids(self) -> Tensor:
        """The entity of each place of the small tables."""
        assert self._ids is not None, "fill comes first"
        return self._ids

    def gradients(self) -> list[Tensor]:
        return [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]


def _with_places(part: Drawn, anchors: Sequence[int], places: Iterator[Tensor]) -> Drawn:
    positives, excluded = next(places), next(places)
    columns = list(part.ids.unbind(1))
    for anchor in anchors:
        columns[anchor] = next(places)
    return Drawn(torch.stack(columns, 1), positives, excluded, part.weights)
