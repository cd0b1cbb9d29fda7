"""The edges of a graph as tensors on a device, and the look-ups that drawing queries is made of.

Every function works on matrices of fixed shape, one row a query, and takes its random numbers, uniform in [0, 1), as an
operand. Rows are numbered as in `Edges`; `no_row` stands for none and is empty.

Numbers are 4 bytes wide where they fit, below 2³¹ edges: 16 bytes an edge, 28 a row and 12 an entity, in all. There are
at most as many rows as edges. Freebase's 676 million directed edges, were each a row of its own, with 86 million
entities are 28.7 GiB. All tables are made on the device, part by part: beside them, that takes another 8 bytes an edge
and some 4 GiB for the part in hand. Where edges are first sorted from facts, 30 bytes an edge are enough for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from query2particles.graph.edges import Edges, Ints

__all__ = ["DeviceEdges", "narrow_kind"]

_TABLE_CELLS = 1 << 28
"""Up to this many (entity, relation) cells, a table of 4-byte rows answers look-ups; beyond, bisection does."""

_LAST = torch.iinfo(torch.int64).max

_BLOCK = 1 << 26
"""So many edges are sorted or looked up at once when tables are made."""


@dataclass(frozen=True, eq=False)
class DeviceEdges:
    """All edges of one level, both directions. What is looked up together stands in one table.

    *Narrow* tables are 4-byte below 2³¹ edges.
    """

    entities: int
    relations: int
    no_row: int
    connected: Tensor  # narrow: the entities with an edge
    entity_rows: Tensor  # (entities, 2) narrow: its first row, and how many more it has
    rows: Tensor  # (rows + 1, 4) narrow: where the tails start, how many they are, inverse of the relation, head
    ends: Tensor  # (edges + 1, 2) narrow: tail, and the row that the inverse edge is in
    places: Tensor  # (edges + 1,) row · entities + tail, ascending: membership is looked up here
    rows_by_relation: Tensor  # (rows,) narrow
    relation_rows: Tensor  # (relations, 2) where its rows start in `rows_by_relation`, and how many they are
    keys: Tensor  # (rows + 1,) head · relations + relation, ascending
    table: Tensor | None  # (entities · relations,) 4-byte: the row of each key

    @staticmethod
    def of(
        edges: Edges, device: torch.device | str, *, table_cells: int = _TABLE_CELLS, block: int = _BLOCK
    ) -> DeviceEdges:
        """The same edges on a device."""
        kind = narrow_kind(len(edges))

        def moved(values: Ints, kind: torch.dtype) -> Tensor:
            """Part by part, as the arrays of a folder may be larger than memory."""
            there = torch.empty(len(values), dtype=kind, device=device)
            for start in range(0, len(values), block):
                there[start : start + block] = torch.from_numpy(np.array(values[start : start + block])).to(device)
            return there

        return _tabulate(
            _ended(moved(edges.keys, torch.int64)),
            moved(edges.offsets, kind),
            moved(edges.tails, torch.int32),
            entities=edges.entities,
            relations=edges.relations,
            table_cells=table_cells,
            block=block,
        )

    @staticmethod
    def of_facts(
        heads: Tensor,
        relations: Tensor,
        tails: Tensor,
        *,
        entities: int,
        relations_count: int,
        device: torch.device | str,
        table_cells: int = _TABLE_CELLS,
        block: int = _BLOCK,
    ) -> DeviceEdges:
        """The edges of these facts (one or more), relations as stored, sorted on the device; repeats count once."""
        facts = heads.to(device), relations.to(device), tails.to(device)
        keys, offsets, ends = _sorted_rows(facts, entities, 2 * relations_count, block)
        return _tabulate(
            keys, offsets, ends, entities=entities, relations=2 * relations_count, table_cells=table_cells, block=block
        )

    @property
    def device(self) -> torch.device:
        return self.ends.device

    def rows_of(self, entities: Tensor, relations: Tensor) -> Tensor:
        """The row of each (entity, relation)."""
        keys = entities * self.relations + relations
        if self.table is not None:
            return self.table[keys].long()
        rows = torch.searchsorted(self.keys, keys)
        return torch.where(self.keys[rows] == keys, rows, self.no_row)

    def rows_into(self, entities: Tensor, relations: Tensor) -> Tensor:
        """The row of each (entity, inverse of the relation), which lists what the relation leads to the entity from."""
        return self.rows_of(entities, relations ^ 1)

    def has(self, rows: Tensor, tails: Tensor) -> Tensor:
        """Whether each row has the tail."""
        wanted = rows * self.entities + tails
        return self.places[torch.searchsorted(self.places, wanted)] == wanted

    def draw_answers(self, uniform: Tensor) -> Tensor:
        """Entities with an edge."""
        return self.connected[(uniform * len(self.connected)).long()].long()

    def draw_answers_by_edge(self, uniform: Tensor) -> Tensor:
        """Entities, each as likely as it has edges."""
        return self.draw_rows_by_edge(uniform)[0]

    def draw_rows(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, with their heads and relations."""
        return self._with_heads((uniform * self.no_row).long())

    def draw_rows_by_edge(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, each as likely as it has tails, with their heads and relations."""
        edges = (uniform * (len(self.places) - 1)).long()
        return self._with_heads(self.places[edges] // self.entities)

    def _with_heads(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, _, inverses, heads = self.rows[rows].long().unbind(-1)
        return heads, inverses ^ 1, rows

    def step_back(self, targets: Tensor, barred: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each target a relation that reaches it, a source under it, the row of both, and how many choices it had.

        The relation is uniform among the distinct ones, the source uniform under it. As inverses are stored, the
        relations that reach a target are the inverses of those that leave it. `barred` is the row of the target that
        must not be taken, or `no_row`. Without a choice, what is returned exists but does not fit the target.
        """
        first, more = self.entity_rows[targets].long().unbind(-1)
        choices = more + (barred >= self.no_row)
        rows = first + (uniform[:, :1] * choices).long()
        rows = (rows + (rows >= barred)).clamp(max=self.no_row - 1)
        offsets, lengths, relations, _ = self.rows[rows].long().unbind(-1)
        sources, inverse_rows = self.ends[offsets + (uniform[:, 1:] * lengths).long()].long().unbind(-1)
        return relations, sources, inverse_rows, choices

    def step_back_by_edge(
        self, targets: Tensor, barred: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, where every edge that reaches the target is as likely; the second random number is not used."""
        first, more = self.entity_rows[targets].long().unbind(-1)
        start, stop = self.rows[first, 0].long(), self.rows[first + more + 1, 0]
        gap, length, _, _ = self.rows[barred].unbind(-1)  # of `no_row` the length is 0
        choices = stop - start - length
        edges = start + (uniform[:, :1] * choices).long()
        edges = (edges + torch.where(edges >= gap, length, 0)).clamp(max=len(self.places) - 2)
        sources, inverse_rows = self.ends[edges].long().unbind(-1)
        relations = self.rows[inverse_rows, 2].long() ^ 1
        return relations, sources, inverse_rows, choices

    def by_length(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Several columns of rows, in each line the shortest row first."""
        several = torch.cat(rows, dim=1)
        return torch.split(several.gather(1, self.rows[several, 1].argsort(dim=1)), 1, dim=1)

    def window(self, rows: Tensor, uniform: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """`width` consecutive tails of each row from a random one on, round and round; and their weights.

        A weight says how many tails one stands for: less than one where a short row comes round again.
        """
        offsets, lengths, _, _ = self.rows[rows].long().unbind(-1)
        slots = torch.arange(width, device=rows.device)
        at = ((uniform * lengths).long() + slots) % lengths
        return self.ends[offsets + at, 0].long(), (lengths / width).expand_as(at)

    def follow(self, heads: Tensor, weights: Tensor, relations: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """One random tail of each head under the relation, and how many of all heads' tails it stands for.

        A tail of head h stands for w(h) · |tails of h| / Σ w(g), summed over the heads g that have it: many ways to an
        entity do not make it likelier (the estimator of a union's size by Karp and Luby).
        """
        rows = self.rows_of(heads, relations)
        offsets, lengths, _, _ = self.rows[rows].long().unbind(-1)
        tails = self.ends[offsets + (uniform * lengths).long(), 0].long()
        ways = (self.has(rows[:, None], tails[..., None]) * weights[:, None]).sum(-1)
        return tails, weights * lengths / ways.clamp(min=torch.finfo(ways.dtype).tiny)

    def draw_entities(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Random entities, with weights."""
        return (uniform * self.entities).long(), torch.full_like(uniform, self.entities / uniform.shape[1])

    def draw_heads(self, relations: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Random heads of each relation, with weights."""
        first, counts = self.relation_rows[relations].unbind(-1)
        rows = self.rows_by_relation[first + (uniform * counts).long()]
        return self.rows[rows.long(), 3].long(), (counts / uniform.shape[1]).expand_as(uniform)

    def list_tails(self, rows: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first `limit` tails of each row, whether each is there, and whether these are all.

        (n, width) rows, (n, width · limit) tails.
        """
        listed, there, complete = self._list_tails(rows, limit)
        return listed.flatten(1), there.flatten(1), complete

    def share_tails(self, some: Tensor, others: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Whether two rows have a tail in common, and whether they have none; neither where that would take too long.

        The first `limit` tails of the shorter row are looked up in the longer one.
        """
        swap = self.rows[some, 1] < self.rows[others, 1]
        short, long = torch.where(swap, some, others), torch.where(swap, others, some)
        listed, there, complete = self._list_tails(short, limit)
        shared = (self.has(long[..., None], listed) & there).any(-1)
        return shared, complete & ~shared

    def _list_tails(self, rows: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same with (n, width, limit) tails."""
        offsets, lengths, _, _ = self.rows[rows].long().unbind(-1)
        slots = torch.arange(limit, device=rows.device)
        there = slots < lengths[..., None]
        # Reading past a row's end is harmless; past the last edge it is not.
        at = (offsets[..., None] + slots).clamp(max=len(self.ends) - 1)
        return self.ends[at, 0].long(), there, lengths <= limit


def narrow_kind(edges: int) -> torch.dtype:
    """What numbers of rows and edges, and ids, are stored as, where there are so many edges."""
    return torch.int32 if edges < 2**31 - 1 else torch.int64


def _sorted_rows(
    facts: tuple[Tensor, Tensor, Tensor], entities: int, relations: int, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys, offsets and tails of both edges of each fact, as `Edges` has them, and an end mark after the keys.

    Edges are sorted head by head, about `block` at once, and no more heads than fit one number with relation and tail.
    """
    heads, between, tails = facts
    degrees = torch.bincount(heads, minlength=entities) + torch.bincount(tails, minlength=entities)
    widest = max(1, (2**63 - 1) // (relations * entities))
    steps = torch.arange(0, int(degrees.sum()), block, device=heads.device)
    by_size = torch.searchsorted(degrees.cumsum(0), steps)
    by_width = torch.arange(0, entities, widest, device=heads.device)
    cuts = sorted({*by_size.tolist(), *by_width.tolist()})
    keys, lengths, ends = [], [], []
    for first, after in zip(cuts, [*cuts[1:], entities], strict=True):
        packed = torch.cat(
            [
                _packed(sources, between, targets, first, after, inverse, entities, relations)
                for inverse, (sources, targets) in enumerate(((heads, tails), (tails, heads)))
            ]
        )
        packed = torch.unique_consecutive(packed.sort().values)
        ends.append((packed % entities).int())
        packed.div_(entities, rounding_mode="floor")
        own_keys, own_lengths = torch.unique_consecutive(packed, return_counts=True)
        keys.append(own_keys + first * relations)
        lengths.append(own_lengths.to(torch.int32))
    del packed, degrees
    all_ends = torch.cat(ends)
    del ends
    all_keys = _ended(*keys)
    del keys
    offsets = torch.zeros(len(all_keys), dtype=narrow_kind(len(all_ends)), device=heads.device)
    torch.cumsum(torch.cat(lengths), 0, dtype=offsets.dtype, out=offsets[1:])
    return all_keys, offsets, all_ends


def _ended(*parts: Tensor) -> Tensor:
    """One vector of ascending numbers, with a last one that is larger than any."""
    return torch.cat([*parts, torch.tensor([_LAST], device=parts[0].device)])


def _packed(
    sources: Tensor,
    between: Tensor,
    targets: Tensor,
    first: int,
    after: int,
    inverse: int,
    entities: int,
    relations: int,
) -> Tensor:
    """The edges from the entities `first` … `after` − 1 as single numbers, which sort as the edges do."""
    chosen = ((sources >= first) & (sources < after)).nonzero().squeeze(1)
    packed = sources[chosen].long().sub_(first).mul_(relations)
    return packed.add_(between[chosen], alpha=2).add_(inverse).mul_(entities).add_(targets[chosen])


def _tabulate(
    keys: Tensor, offsets: Tensor, tails: Tensor, *, entities: int, relations: int, table_cells: int, block: int
) -> DeviceEdges:
    """All tables of these rows, on the device that they are on."""
    device, edge_count, row_count = tails.device, len(tails), len(keys) - 1
    kind = narrow_kind(edge_count)
    table = None
    if entities * relations <= table_cells:
        table = torch.full((entities * relations,), row_count, dtype=torch.int32, device=device)
        table[keys[:-1]] = torch.arange(row_count, dtype=torch.int32, device=device)
    bounds = torch.searchsorted(keys, torch.arange(entities + 1, device=device) * relations)
    rows = torch.zeros(row_count + 1, 4, dtype=kind, device=device)
    rows[:, 0] = offsets
    rows_by_relation = torch.empty(row_count, dtype=kind, device=device)
    row_counts = torch.zeros(relations, dtype=torch.int64, device=device)
    parts = [(start, min(start + block, row_count)) for start in range(0, row_count, block)]
    for start, stop in parts:
        rows[start:stop, 1] = offsets[start : stop + 1].diff()
        own = keys[start:stop] % relations
        rows[start:stop, 2] = own ^ 1
        rows[start:stop, 3] = keys[start:stop] // relations
        row_counts += torch.bincount(own, minlength=relations)
    relation_rows = torch.stack([row_counts.cumsum(0) - row_counts, row_counts], dim=-1)
    filled = relation_rows[:, 0].clone()
    for start, stop in parts:
        own, order = (rows[start:stop, 2] ^ 1).sort(stable=True)
        counts = torch.bincount(own, minlength=relations)
        within = torch.arange(stop - start, device=device) - (counts.cumsum(0) - counts)[own]
        rows_by_relation[filled[own] + within] = (order + start).to(kind)
        filled += counts

    edges = DeviceEdges(
        entities=entities,
        relations=relations,
        no_row=row_count,
        connected=bounds.diff().nonzero().squeeze(1).to(kind),
        entity_rows=torch.stack([bounds[:-1].to(kind), (bounds.diff() - 1).to(kind)], dim=-1),
        rows=rows,
        ends=torch.zeros(edge_count + 1, 2, dtype=kind, device=device),
        places=torch.empty(edge_count + 1, dtype=torch.int64, device=device),
        rows_by_relation=rows_by_relation,
        relation_rows=relation_rows,
        keys=keys,
        table=table,
    )
    for start in range(0, edge_count, block):
        stop = min(start + block, edge_count)
        numbers = torch.arange(start, stop, dtype=kind, device=device)
        of_edge = torch.searchsorted(offsets, numbers, right=True).sub_(1)
        targets = tails[start:stop].long()
        edges.ends[start:stop, 0] = tails[start:stop]
        edges.ends[start:stop, 1] = edges.rows_of(targets, rows[of_edge, 2].long()).to(kind)
        edges.places[start:stop] = of_edge.mul_(entities).add_(targets)
    edges.places[-1] = _LAST
    return edges
