"""The edges of a graph as tensors on a device, and the look-ups that drawing queries is made of.

Every function works on matrices of fixed shape, one row a query, and takes its random numbers, uniform in [0, 1), as an
operand. Rows are numbered as in `Edges`; `no_row` stands for none and is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from query2particles.graph.edges import Edges, Ints

__all__ = ["DeviceEdges"]

_TABLE_CELLS = 1 << 28
"""Up to this many (entity, relation) cells, a table of 4-byte rows answers look-ups; beyond, bisection does."""


@dataclass(frozen=True, eq=False)
class DeviceEdges:
    """All edges of one level, both directions. What is looked up together stands in one table."""

    entities: int
    relations: int
    no_row: int
    connected: Tensor  # the entities with an edge
    entity_rows: Tensor  # (entities, 2) its first row, and how many more it has
    rows: Tensor  # (rows + 1, 4) where the tails start, how many they are, inverse of the relation, head
    ends: Tensor  # (edges + 1, 2) 4-byte: tail, and the row that the inverse edge is in
    places: Tensor  # (edges + 1,) row · entities + tail, ascending: membership is looked up here
    rows_by_relation: Tensor  # (rows,)
    relation_rows: Tensor  # (relations, 2) where its rows start in `rows_by_relation`, and how many they are
    keys: Tensor  # (rows + 1,) head · relations + relation, ascending
    table: Tensor | None  # (entities · relations,) 4-byte: the row of each key

    @staticmethod
    def of(edges: Edges, device: torch.device | str, *, table_cells: int = _TABLE_CELLS) -> DeviceEdges:
        """The same edges on a device."""

        def moved(*columns: Ints, kind: type[np.int64] | type[np.int32] = np.int64) -> Tensor:
            return torch.from_numpy(np.stack(columns, axis=-1).astype(kind)).to(device)

        last = np.iinfo(np.int64).max
        heads, relations = np.divmod(edges.keys, edges.relations)
        row_of_edge = np.repeat(np.arange(edges.no_row, dtype=np.int64), edges.row_lengths[:-1])
        inverse_rows = edges.rows_of(edges.tails, relations[row_of_edge] ^ 1)
        row_counts = np.bincount(relations, minlength=edges.relations)
        table = None
        if edges.entities * edges.relations <= table_cells:
            cells = np.full(edges.entities * edges.relations, edges.no_row, dtype=np.int32)
            cells[edges.keys] = np.arange(edges.no_row, dtype=np.int32)
            table = torch.from_numpy(cells).to(device)
        return DeviceEdges(
            entities=edges.entities,
            relations=edges.relations,
            no_row=edges.no_row,
            connected=moved(np.flatnonzero(np.diff(edges.row_bounds)))[:, 0],
            entity_rows=moved(edges.row_bounds[:-1], np.diff(edges.row_bounds) - 1),
            rows=moved(edges.offsets, edges.row_lengths, np.append(relations ^ 1, 0), np.append(heads, 0)),
            ends=moved(np.append(edges.tails, 0), np.append(inverse_rows, 0), kind=np.int32),
            places=moved(np.append(row_of_edge * edges.entities + edges.tails, last))[:, 0],
            rows_by_relation=moved(np.argsort(relations, kind="stable"))[:, 0],
            relation_rows=moved(np.cumsum(row_counts) - row_counts, row_counts),
            keys=moved(np.append(edges.keys, last))[:, 0],
            table=table,
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
        return self.connected[(uniform * len(self.connected)).long()]

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
        _, _, inverses, heads = self.rows[rows].unbind(-1)
        return heads, inverses ^ 1, rows

    def step_back(self, targets: Tensor, barred: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each target a relation that reaches it, a source under it, the row of both, and how many choices it had.

        The relation is uniform among the distinct ones, the source uniform under it. As inverses are stored, the
        relations that reach a target are the inverses of those that leave it. `barred` is the row of the target that
        must not be taken, or `no_row`. Without a choice, what is returned exists but does not fit the target.
        """
        first, more = self.entity_rows[targets].unbind(-1)
        choices = more + (barred >= self.no_row)
        rows = first + (uniform[:, :1] * choices).long()
        rows = (rows + (rows >= barred)).clamp(max=self.no_row - 1)
        offsets, lengths, relations, _ = self.rows[rows].unbind(-1)
        sources, inverse_rows = self.ends[offsets + (uniform[:, 1:] * lengths).long()].long().unbind(-1)
        return relations, sources, inverse_rows, choices

    def step_back_by_edge(
        self, targets: Tensor, barred: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, where every edge that reaches the target is as likely; the second random number is not used."""
        first, more = self.entity_rows[targets].unbind(-1)
        start, stop = self.rows[first, 0], self.rows[first + more + 1, 0]
        gap, length, _, _ = self.rows[barred].unbind(-1)  # of `no_row` the length is 0
        choices = stop - start - length
        edges = start + (uniform[:, :1] * choices).long()
        edges = (edges + torch.where(edges >= gap, length, 0)).clamp(max=len(self.places) - 2)
        sources, inverse_rows = self.ends[edges].long().unbind(-1)
        relations = self.rows[inverse_rows, 2] ^ 1
        return relations, sources, inverse_rows, choices

    def by_length(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Several columns of rows, in each line the shortest row first."""
        several = torch.cat(rows, dim=1)
        return torch.split(several.gather(1, self.rows[several, 1].argsort(dim=1)), 1, dim=1)

    def window(self, rows: Tensor, uniform: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """`width` consecutive tails of each row from a random one on, round and round; and their weights.

        A weight says how many tails one stands for: less than one where a short row comes round again.
        """
        offsets, lengths, _, _ = self.rows[rows].unbind(-1)
        slots = torch.arange(width, device=rows.device)
        at = ((uniform * lengths).long() + slots) % lengths
        return self.ends[offsets + at, 0].long(), (lengths / width).expand_as(at)

    def follow(self, heads: Tensor, weights: Tensor, relations: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """One random tail of each head under the relation, and how many of all heads' tails it stands for.

        A tail of head h stands for w(h) · |tails of h| / Σ w(g), summed over the heads g that have it: many ways to an
        entity do not make it likelier (the estimator of a union's size by Karp and Luby).
        """
        rows = self.rows_of(heads, relations)
        offsets, lengths, _, _ = self.rows[rows].unbind(-1)
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
        return self.rows[rows, 3], (counts / uniform.shape[1]).expand_as(uniform)

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
        offsets, lengths, _, _ = self.rows[rows].unbind(-1)
        slots = torch.arange(limit, device=rows.device)
        there = slots < lengths[..., None]
        # Reading past a row's end is harmless; past the last edge it is not.
        at = (offsets[..., None] + slots).clamp(max=len(self.ends) - 1)
        return self.ends[at, 0].long(), there, lengths <= limit
