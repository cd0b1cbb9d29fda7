"""Rows in files: what they were at a checkpoint comes back, whatever was written since."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from query2particles.engine.rows import Table
from query2particles.engine.stored import StoredTable

ENTITIES = 30
SHAPES: dict[str, tuple[int, ...]] = {"entities": (4,), "bias": ()}


def table_in(folder: Path, *, fresh: bool = False) -> StoredTable:
    return StoredTable(folder, SHAPES, ENTITIES, decay=0.1, fresh=fresh)


def write_some(table: Table, seed: int, times: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(times):
        some = torch.randperm(ENTITIES, generator=generator)[:8].sort().values
        ids = torch.cat([some, torch.full((3,), ENTITIES)])  # as a batch with fewer entities than places
        gradients = [torch.randn(len(ids), *shape, generator=generator) for shape in SHAPES.values()]
        for one in gradients:
            one[len(some) :] = 0
        table.write(ids, gradients, 0.1)


def contents(table: Table) -> list[Tensor]:
    every = [*table.tables.values(), table.squares, table.touched]
    return [one[:ENTITIES].clone() for one in every]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_rows_in_files_move_like_rows_in_memory(tmp_path: Path) -> None:
    stored = table_in(tmp_path, fresh=True)
    tables = {name: torch.zeros(ENTITIES + 1, *shape) for name, shape in SHAPES.items()}
    memory = Table(tables, decay=0.1, generator=torch.Generator())
    for table in (stored, memory):
        write_some(table, 0)
    assert same(contents(stored), contents(memory))
    ids = torch.tensor([3, 7, ENTITIES])
    assert same(stored.read(ids), memory.read(ids))


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    table = table_in(tmp_path, fresh=True)
    write_some(table, 0)
    table.flush()
    table.settle(1)
    expected = contents(table)
    write_some(table, 1)
    assert not same(contents(table), expected)
    for _ in range(2):  # whoever takes it up may die, too
        again = table_in(tmp_path)
        again.recover(1)
        assert same(contents(again), expected)
        write_some(again, 2)


@pytest.mark.parametrize("cut", [1, 9, 100, 160])
def test_an_entry_that_was_cut_off_belongs_to_rows_that_were_not_touched(tmp_path: Path, cut: int) -> None:
    table = table_in(tmp_path, fresh=True)
    write_some(table, 0)
    table.settle(1)
    expected = contents(table)
    write_some(table, 1, times=1)
    journal = tmp_path / "journal-1.rows"
    whole = journal.read_bytes()
    before = contents(table)
    table._note(torch.arange(ENTITIES))  # of the update that is killed here
    entry = journal.read_bytes()[len(whole) :]
    assert len(entry) > cut
    journal.write_bytes(whole + entry[:cut])
    assert same(contents(table), before)
    again = table_in(tmp_path)
    again.recover(1)
    assert same(contents(again), expected)


def test_a_death_between_a_checkpoint_and_its_journal_changes_nothing(tmp_path: Path) -> None:
    """The checkpoint says 2, and the journal still leads back to 1: the rows are as they were at 2."""
    table = table_in(tmp_path, fresh=True)
    table.settle(1)
    write_some(table, 0)
    table.flush()
    expected = contents(table)
    again = table_in(tmp_path)
    again.recover(2)
    assert same(contents(again), expected)
    assert [path.name for path in tmp_path.glob("journal-*")] == ["journal-2.rows"]


def test_a_fresh_table_knows_nothing_of_what_was_there(tmp_path: Path) -> None:
    write_some(table_in(tmp_path, fresh=True), 0)
    assert not any(one.any() for one in contents(table_in(tmp_path, fresh=True)))
