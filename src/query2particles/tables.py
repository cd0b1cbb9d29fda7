"""What a run does about the size of its graph: all entities at every update, or the rows of a batch, and where from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from query2particles.config import Config, TableName, Training, build
from query2particles.distributed import Group
from query2particles.engine.looking import Looking
from query2particles.engine.rows import Table, WorkingSet, with_few_entities
from query2particles.engine.shards import ShardedLooking, Shards, share_of
from query2particles.engine.stored import StoredTable
from query2particles.errors import UsageError
from query2particles.graph.graph import Graph
from query2particles.methods.registry import METHODS, Model, trainee_of
from query2particles.query.algebra import anchor_positions
from query2particles.workload.stream import Part

__all__ = ["Subject", "prepared_subject", "settled", "stays_on_disk", "subject_by_rows"]

_LARGE = 200_000
"""More entities than this are many on any device, and for any method."""

_BY_ROWS_FROM = {"cpu": 4_000, "cuda": _LARGE}
"""With more entities than this, `auto` trains by rows, against some of them. A GPU scores all entities as one matrix
product; a CPU gains as soon as the table no longer fits its caches."""

_FEW_NEGATIVES, _NEGATIVES = 1024, 4096
"""Against so many: a CPU takes the few up to `_LARGE` entities."""

_SHARE = 0.6
"""What the tables may take of the memory that is free."""

_BLOCK = 1 << 16
"""Entities whose first rows are drawn at once. Another number would draw others."""

_SEEDS_APART = 1 << 32
"""Between those of two blocks: far more than anybody's seeds."""


def settled(
    config: Config, entities: int, device: torch.device, before: TableName | None = None, *, processes: int = 1
) -> tuple[Config, list[str]]:
    """The configuration with nothing left to `auto`, and what to say about it; `before` is the table of a save."""
    training, entry = config.training, METHODS[config.method]
    if training.stored != "train":
        raise UsageError("stored is about answers: leave it out of training, and --set it where you evaluate")
    bytes_in_all = 4 * entities * entry.numbers_per_entity(config.model)
    negatives, table, notes = training.negatives, training.table, []
    by_rows = not hasattr(trainee_of(entry.specimen(config.model)), "attach")
    # What cannot be trained by rows, or was not so far, is set against some entities only where there are very many.
    whole = table == "whole" or not by_rows or before == "whole"
    many = entities > (_LARGE if whole else _BY_ROWS_FROM[device.type])
    if negatives == "auto":
        negatives = 0 if not many else _NEGATIVES if entities > _LARGE else _FEW_NEGATIVES
        if negatives:
            notes.append(
                f"{entities:,} entities are many: answers are set against {negatives:,} random ones in every update "
                "(negatives=0: against all)"
            )
    if table == "auto":
        table = before or "whole"
        if before is None and negatives and many and by_rows:
            table = _fitting(bytes_in_all // processes, device, own=not entry.trains_another)
            notes.append(
                f"the entities' tables, {bytes_in_all / 2**30:.1f} GiB in float32, are trained by rows, "
                f"{_WORDS[table]} (table={table}; docs/scale.md)"
            )
    if table != "whole":
        if not negatives:
            raise UsageError(f"table={table} trains the rows of a batch, not all: also set negatives, to 4096 or so")
        if not by_rows:
            raise UsageError(f"{config.method} looks at all entities at every step: leave table at auto or whole")
        if table != "device" and entry.trains_another:
            raise UsageError(
                f"{config.method} answers on top of another method, which needs the whole table: set table=device, or "
                "train what it answers on top of, and answer with --method"
            )
        if table == "bf16" and device.type == "cpu":
            notes.append("bfloat16 saves memory on a CPU, too, but no time")
    if processes > 1:
        if not by_rows or entry.trains_another or table == "host" or (training.loss, negatives) == ("margin", 0):
            raise UsageError(
                f"several processes cannot share this training ({config.method}, table={table}): they need a method "
                "that looks up what it needs of the entities (not emql), and no other on top (train links), tables in "
                "memory (not host), and, for the loss of margins, negatives"
            )
        notes.append(f"{processes} processes, each with {-(-entities // processes):,} of {entities:,} entities")
    return replace(config, training=replace(training, negatives=negatives, table=table)), notes


_WORDS = {"device": "on the device", "bf16": "in bfloat16 on the device", "host": "in a file, read as needed"}


def _fitting(bytes_in_all: int, device: torch.device, *, own: bool) -> TableName:
    """Where tables of so many bytes in float32 are kept; what answers on top of another needs them on the device."""
    free = _free(device)
    if bytes_in_all <= free or not own:
        return "device"
    return "bf16" if device.type == "cuda" and bytes_in_all / 2 <= free else "host"


def _free(device: torch.device) -> float:
    """How many bytes tables may take."""
    if device.type == "cuda":
        return _SHARE * torch.cuda.mem_get_info(device)[0]
    return _SHARE * _available_memory()


def stays_on_disk(config: Config, entities: int) -> bool:
    """Whether the entities' tables, in float32, are more than memory has room for, and the method can do without."""
    entry = METHODS[config.method]
    if 4 * entities * entry.numbers_per_entity(config.model) <= _free(torch.device("cpu")):
        return False
    return not entry.trains_another and not hasattr(entry.specimen(config.model), "attach")


@dataclass(frozen=True)
class Subject:
    """What is trained, and how it is asked in between."""

    model: Model
    """What is validated; `trained` is what of it is trained and saved."""
    trained: Model
    moved: Model
    """What updates run on and the optimiser moves: the same, or one of few entities."""
    rows: Table | None = None
    """Those that are here, of entities that are trained by rows or in shards."""
    working: WorkingSet | None = None
    shards: Shards | None = None
    scored: Mapping[str, nn.Parameter] | None = None
    """Of a shard that moves as a whole, the rows as parameters."""

    def dense(self) -> list[nn.Parameter]:
        """The parameters of `moved` that the optimiser moves: rows are moved by themselves."""
        by_rows = {id(one) for one in self.working.parameters} if self.working is not None else set()
        moved = [one for one in self.moved.parameters() if id(one) not in by_rows]
        return [*(self.scored or {}).values(), *moved]


def prepared_subject(
    config: Config,
    graph: Graph,
    device: torch.device,
    parts: Sequence[Part],
    generator: torch.Generator,
    folder: Path | None = None,
    *,
    fresh: bool = True,
    group: Group | None = None,
) -> Subject:
    """The untrained model of settled settings; first weights come from torch's own generator.

    `folder` is where rows of the host are, or, `fresh`, will be. Each process of a `group` has a shard.
    """
    training, entry = config.training, METHODS[config.method]
    if group is not None:
        return _sharded_subject(config, graph, device, parts, group)
    if training.table == "whole":
        model = build(config, graph).to(device)
        return Subject(model, trainee_of(model), trainee_of(model))
    entities = len(graph.entities)
    if training.table != "device":
        relations = graph.at(training.split).relations
        return subject_by_rows(config, entities, relations, device, parts, generator, folder, fresh=fresh)
    names = list(entry.entity_tables(config.model))
    model = build(config, graph)
    trained = trainee_of(model)
    tables = {}
    for name in names:
        tables[name] = _with_nothing(getattr(trained, name).detach(), device)
        # What is validated and saved is what the rows are written to.
        setattr(trained, name, nn.Parameter(tables[name][:entities]))
    model.to(device)
    rows = Table(tables, decay=training.decay, generator=generator)
    moved = with_few_entities(trained, names, _capacity(parts) + _negatives(training))
    return Subject(model, trained, moved, rows, WorkingSet(moved, names, rows, [part.shape for part in parts]))


def subject_by_rows(
    config: Config,
    entities: int,
    relations: int,
    device: torch.device,
    parts: Sequence[Part],
    generator: torch.Generator,
    folder: Path | None = None,
    *,
    fresh: bool = True,
) -> Subject:
    """The same where nothing of the entities is in float32 on the device, for so many directed relations."""
    training, entry = config.training, METHODS[config.method]
    names = list(entry.entity_tables(config.model))
    moved = cast(Model, entry.method(_capacity(parts) + _negatives(training), relations, config.model).to(device))
    shapes = {name: getattr(moved, name).shape[1:] for name in names}
    rows: Table
    if training.table == "bf16":
        tables = {
            name: torch.zeros((entities + 1, *shape), dtype=torch.bfloat16, device=device)
            for name, shape in shapes.items()
        }
        rows = Table(tables, decay=training.decay, generator=generator)
    else:
        if folder is None:
            raise UsageError("table=host keeps rows in the folder of a run, and there is none here")
        rows = StoredTable(folder, shapes, entities, decay=training.decay, fresh=fresh)
    if fresh:
        _draw_first_rows(rows, config, relations, entities)
    looking = cast(Model, Looking(moved, rows))
    return Subject(looking, looking, moved, rows, WorkingSet(moved, names, rows, [part.shape for part in parts]))


def _sharded_subject(
    config: Config, graph: Graph, device: torch.device, parts: Sequence[Part], group: Group
) -> Subject:
    """The shard of a process: as many rows as any other has, or fewer, in the last one."""
    training, entry, entities = config.training, METHODS[config.method], len(graph.entities)
    names = list(entry.entity_tables(config.model))
    each = share_of(entities, group.size)
    start, stop = group.rank * each, min((group.rank + 1) * each, entities)
    if stop <= start:
        raise UsageError(f"{entities:,} entities are too few for {group.size} processes: start fewer")
    shares = [replace(part, count=share_of(part.count, group.size)) for part in parts]
    capacity = _capacity(shares) + _negatives(training)
    relations = graph.at(training.split).relations
    if training.table == "bf16":
        moved = cast(Model, entry.method(capacity, relations, config.model).to(device))
        tables = {
            name: torch.zeros((stop - start + 1, *getattr(moved, name).shape[1:]), dtype=torch.bfloat16, device=device)
            for name in names
        }
    else:  # the same first weights as those of one process
        whole = build(config, graph)
        moved = with_few_entities(whole, names, capacity).to(device)
        tables = {}
        for name in names:
            tables[name] = _with_nothing(getattr(whole, name).detach()[start:stop], device)
    rounding = torch.Generator(device).manual_seed(training.seed + group.rank)
    rows = Table(tables, decay=training.decay, generator=rounding)
    if training.table == "bf16":
        _draw_first_rows(rows, config, relations, entities, start)
    shards = Shards(rows, entities, group)
    scored = None
    if training.table == "whole":
        scored = {name: nn.Parameter(table[:-1]) for name, table in tables.items()}
    looking = cast(Model, ShardedLooking(moved, shards))
    working = WorkingSet(moved, names, shards, [part.shape for part in parts])
    return Subject(looking, looking, moved, rows, working, shards, scored)


def _with_nothing(rows: Tensor, device: torch.device) -> Tensor:
    """The rows on a device, and one more that stands for none; the device never holds them twice."""
    found = torch.zeros((len(rows) + 1, *rows.shape[1:]), device=device)
    found[:-1] = rows
    return found


def _capacity(parts: Sequence[Part]) -> int:
    """How many entities a batch names, at most, besides negatives."""
    return sum(part.count * (2 + len(anchor_positions(part.shape))) for part in parts)


def _negatives(training: Training) -> int:
    assert training.negatives != "auto", "settled settings are numbers"
    return training.negatives


def _draw_first_rows(rows: Table, config: Config, relations: int, entities: int, first: int = 0) -> None:
    """As the method itself draws them, a block of entities at a time, each from a seed of its own.

    The rows are those of the entities from `first` on.
    """
    method, device = METHODS[config.method].method, rows.device
    for number, start in enumerate(range(0, entities, _BLOCK)):
        stop = min(start + _BLOCK, entities)
        low, high = max(start, first), min(stop, first + rows.entities)
        if low >= high:
            continue
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.device(device):
            torch.manual_seed(config.training.seed + (number + 1) * _SEEDS_APART)
            drawn = method(stop - start, relations, config.model)
        for name, table in rows.tables.items():
            table[low - first : high - first] = getattr(drawn, name).detach()[low - start : high - start]


def _available_memory() -> int:
    """Bytes that a process can still take; where the system does not say, half of what the machine has.

    Free pages alone would be too few: files that were read lie in memory until somebody needs it.
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
