"""A method whose entities are looked up where their rows lie: it answers like one that holds them all.

Every call that needs entities reads their rows into the method of few entities that was trained on them, all entities
block by block. Whatever the rows are stored as, scores are computed from float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from query2particles.engine.rows import Rows, distinct

__all__ = ["FixedRows", "Held", "Looking", "standing_in"]

_BLOCK = 1 << 16
"""Entities whose rows are read at once."""


class Held(Rows, Protocol):
    """Rows that know their tables."""

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """By name, those that are here."""
        ...

    def whole_tables(self) -> Mapping[str, Tensor]:
        """By name, with a row for each entity."""
        ...


class FixedRows:
    """Rows that are only read: tables of any type, wherever they are, with a row for each entity."""

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        self.tables = dict(tables)

    @property
    def entities(self) -> int:
        return len(next(iter(self.tables.values())))

    def whole_tables(self) -> Mapping[str, Tensor]:
        return self.tables

    def read(self, ids: Tensor) -> list[Tensor]:
        found = []
        for table in self.tables.values():
            own = ids.clamp(max=self.entities - 1).to(table.device)  # what stands for none may be any
            found.append(table.index_select(0, own).to(ids.device, torch.float32))
        return found


@contextmanager
def standing_in(method: Any, tables: Mapping[str, Tensor]) -> Iterator[Any]:
    """Inside, these are the method's tables."""
    own = method._parameters
    before = {name: own[name] for name in tables}
    try:
        own.update(tables)
        yield method
    finally:
        own.update(before)


_NONE = FixedRows({})


class Looking(nn.Module):
    """The operators of `method`, over all entities of `rows`; `state_dict` is that of a method that holds them all."""

    replayed = False
    """Rows may have to be waited for."""

    def __init__(self, method: nn.Module, rows: Held) -> None:
        super().__init__()
        self.method, self._rows = method, rows

    def __getattr__(self, name: str) -> Any:
        """What needs no entities is the method's own; its tables and factors would be those of few."""
        if name in ("factors", "penalty") or name in self.__dict__.get("_rows", _NONE).tables:
            raise AttributeError(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("method"), name)

    def anchor(self, entities: Tensor) -> Any:
        found = distinct(entities, self._rows.entities)
        with self._standing_in(found.ids) as method:
            return method.anchor(found.places)

    def score(self, state: Any, entities: Tensor | None = None) -> Tensor:
        if entities is None:
            return torch.cat([self.score(state, block) for block in self._blocks()], 1)
        found = distinct(entities.flatten(), self._rows.entities)
        with self._standing_in(found.ids) as method:
            scores: Tensor = method.score(state, found.places.view_as(entities))
            return scores.float()

    def state_dict(self, *arguments: Any, **options: Any) -> Mapping[str, Tensor]:  # type: ignore[override]
        return {**self.method.state_dict(*arguments, **options), **self._rows.whole_tables()}

    def _blocks(self) -> Iterator[Tensor]:
        for start in range(0, self._rows.entities, _BLOCK):
            yield torch.arange(start, min(start + _BLOCK, self._rows.entities), device=self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.method.parameters()).device

    def _standing_in(self, ids: Tensor) -> AbstractContextManager[Any]:
        """Inside, the method's tables are these rows."""
        return standing_in(self.method, dict(zip(self._rows.tables, self._rows.read(ids), strict=True)))
