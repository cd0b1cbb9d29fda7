"""Entity tables in shards, a range of rows on each of several processes; operators are on all of them.

Every process draws the same batch and runs its share of it. The rows that a share needs come from whoever has them, and
their gradients go back there (`Shards`), so that a row moves by the gradients of all. What the optimiser moves on all
processes alike has the sum of their gradients.

A softmax over all entities is taken where the rows are: the states of all shares go to all processes, each scores its
own rows, and what a loss needs of a whole row of scores (`ShardColumns`) is put together by sums and maxima:

    log Z = log Σ_shards Σ_{v in shard} exp s(v)

The slope of that by a score is again a matter of that score's own process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from query2particles.distributed import Group
from query2particles.engine.batches import Drawn
from query2particles.engine.looking import Looking, standing_in
from query2particles.engine.loss import LossTerms, softmax_loss
from query2particles.engine.negatives import Negatives
from query2particles.engine.rows import Table, distinct
from query2particles.engine.update import Update

__all__ = ["ShardColumns", "ShardedLooking", "ShardedUpdate", "Shards", "share_of"]


def share_of(count: int, size: int) -> int:
    """How many of `count` each of `size` processes has; the last ones may have fewer."""
    return -(-count // size)


class Shards:
    """The rows of all processes; `local` has this one's, the first of which is entity `start`."""

    def __init__(self, local: Table, entities: int, group: Group) -> None:
        self.local, self.entities, self.group = local, entities, group
        self._each = share_of(entities, group.size)
        self.start = group.rank * self._each

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """Those of this process, with the row for nothing."""
        return self.local.tables

    def read(self, ids: Tensor) -> list[Tensor]:
        there = ids[ids < self.entities]
        asked, sent, received = self._asked(there)
        rows = self.local.read(asked)
        found = [self.group.exchanged(one, received, sent) for one in rows]
        nothing = len(ids) - len(there)
        return [torch.cat([one, one.new_zeros((nothing, *one.shape[1:]))]) for one in found]

    def collected(self, ids: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Of this process's rows that any process has gradients of: their local ids, and the sums."""
        there = ids[ids < self.entities]
        asked, sent, received = self._asked(there)
        arrived = [self.group.exchanged(one[: len(there)], sent, received) for one in gradients]
        found = distinct(asked, self.local.entities)
        own = found.ids[found.ids < self.local.entities]
        sums = [one.new_zeros((len(own), *one.shape[1:])).index_add_(0, found.places, one) for one in arrived]
        return own, sums

    def whole_tables(self) -> dict[str, Tensor]:
        """All rows of all tables, in the memory of the leading process; empty elsewhere."""
        found = {}
        for name, table in self.tables.items():
            padded = table.new_zeros((self._each, *table.shape[1:]))
            padded[: self.local.entities] = table[: self.local.entities]
            every = self.group.gathered(padded)
            found[name] = torch.cat([one.cpu() for one in every])[: self.entities] if self.group.leads else padded[:0]
        return found

    def scores_of_all(self, own: Tensor) -> Tensor:
        """The scores (n, entities), from those of this process's rows (n, rows)."""
        padded = own.new_zeros((self._each, len(own)))
        padded[: own.shape[1]] = own.T
        return torch.cat(self.group.gathered(padded))[: self.entities].T

    def _asked(self, ids: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """Which of this process's rows others ask for, how many ids go to each, and how many came from each."""
        sent = torch.bincount(ids // self._each, minlength=self.group.size)
        received = self.group.exchanged(sent, [1] * self.group.size, [1] * self.group.size)
        to, of = sent.tolist(), received.tolist()
        return self.group.exchanged(ids, to, of) - self.start, to, of


class ShardedLooking(Looking):
    """A method that looks rows up on all processes, which ask it the same at the same time."""

    def __init__(self, method: nn.Module, shards: Shards) -> None:
        super().__init__(method, shards)
        self._shards = shards

    def score(self, state: Any, entities: Tensor | None = None) -> Tensor:
        if entities is not None:
            return super().score(state, entities)
        local = self._shards.local
        with standing_in(self.method, {name: table[: local.entities] for name, table in local.tables.items()}) as own:
            scores: Tensor = own.score(state, torch.arange(local.entities, device=local.device))
        return self._shards.scores_of_all(scores.float())


@dataclass(frozen=True)
class ShardColumns:
    """What a loss takes of rows of scores, of which a process has those of its own entities."""

    shards: Shards

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        result: Tensor = _LogSumExp.apply(scores, self.shards.group)  # type: ignore[no-untyped-call]
        return result

    def at(self, scores: Tensor, entities: Tensor) -> Tensor:
        local = entities - self.shards.start
        own = (local >= 0) & (local < scores.shape[1])
        found = scores.gather(1, local.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
        return self._sum(torch.where(own, found, 0))

    def mean(self, scores: Tensor) -> Tensor:
        return self._sum(scores.sum(1)) / self.shards.entities

    def _sum(self, own: Tensor) -> Tensor:
        result: Tensor = _Sum.apply(own, self.shards.group)  # type: ignore[no-untyped-call]
        return result


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, group: Group) -> Tensor:
        highest = group.largest(scores.amax(1))
        found = highest + group.sum((scores - highest[:, None]).exp().sum(1)).log()
        ctx.save_for_backward(scores, found)
        return found

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        scores, found = ctx.saved_tensors
        return slope[:, None] * (scores - found[:, None]).exp(), None


class _Sum(torch.autograd.Function):
    """Over all processes; each goes on with the slope by its own part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        del ctx
        return group.sum(own.clone())

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        del ctx
        return slope, None


class _Gathered(torch.autograd.Function):
    """The rows of all processes one after another; slopes that any of them has found come back."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.count = group, len(own)
        return torch.cat(group.gathered(own))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        start = ctx.group.rank * ctx.count
        return ctx.group.sum(slope.contiguous())[start : start + ctx.count], None


class ShardedUpdate(Update):
    """An update of all processes. `scored` are this one's rows as parameters, where the optimiser moves all of them;
    otherwise the rows of the batch move by themselves.
    """

    def __init__(
        self, *arguments: Any, shards: Shards, scored: Mapping[str, nn.Parameter] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, alone=False, **options)
        self._shards, self._group, self._scored = shards, shards.group, scored
        assert self._working is not None
        by_rows = {id(one) for one in self._working.parameters}
        self._alike = [one for one in self._parameters if id(one) not in by_rows]
        self._real: list[int] = []  # queries of each part of the share that are not there to fill it up
        self._queries = 0
        self._shared_loss = torch.zeros_like(self._losses)  # what every process has counted in full

    def _take(self) -> tuple[Sequence[Drawn], Negatives | None]:
        drawn = self._draw()
        self._queries = sum(len(part.ids) for part in drawn)
        self._shared_loss.zero_()
        own, self._real = [], []
        for part in drawn:
            share = share_of(len(part.ids), self._group.size)
            at = torch.arange(share, device=part.ids.device) + share * self._group.rank
            last = len(part.ids) - 1
            some = Drawn(*(field[at.clamp(max=last)] for field in part))
            own.append(some._replace(weights=some.weights * (at <= last)))
            self._real.append(min(max(len(part.ids) - share * self._group.rank, 0), share))
        negatives = None if self._objective.over_all else self._proposal.draw()
        none = Negatives(own[0].positives[:0], self._losses.new_ones(()))
        assert self._working is not None
        filling = self._working.renumbered(own, negatives or none)
        self._working.fill(filling.ids, self._shards.read(filling.ids))
        return filling.drawn, None if negatives is None else filling.negatives

    def _queries_of(self, drawn: Sequence[Drawn]) -> int:
        del drawn
        return self._queries

    def _penalised(self, drawn: Sequence[Drawn]) -> list[Drawn]:
        return [Drawn(*(field[:real] for field in part)) for part, real in zip(drawn, self._real, strict=True)]

    def _loss_of(
        self,
        state: Any,
        positives: Tensor,
        excluded: Tensor,
        weights: Tensor,
        terms: LossTerms,
        negatives: Negatives | None,
    ) -> Tensor:
        if negatives is not None:
            return super()._loss_of(state, positives, excluded, weights, terms, negatives)
        assert self._working is not None
        assert self._scored is not None, "a softmax over all entities moves all of them"
        ids = self._working.ids
        every = [torch.cat(self._group.gathered(one)) for one in (ids[positives], ids[excluded], weights)]
        states = trees.tree_map(lambda one: _Gathered.apply(one, self._group), state)  # type: ignore[no-untyped-call]
        with standing_in(self._module, self._scored) as method:
            scores = method.score(states)
        loss = softmax_loss(scores, every[0], every[1], every[2], terms, ShardColumns(self._shards))
        self._shared_loss += loss.detach()
        return loss

    def _reported(self, loss: Tensor) -> Tensor:
        """The loss of all processes."""
        several = (1 - 1 / self._group.size) * self._shared_loss / self._queries
        return self._group.sum(loss.detach() - several)

    def _step(self) -> None:
        assert self._working is not None
        self._sum_gradients()
        ids, gradients = self._shards.collected(self._working.ids, self._working.gradients())
        if self._scored is not None:
            for parameter, gradient in zip(self._scored.values(), gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.index_add_(0, ids, gradient)
            gradients = [one.grad for one in self._scored.values() if one.grad is not None]
        alike = [one.grad for one in self._alike if one.grad is not None]
        squares = self._group.sum(_squares(gradients, self._losses)) + _squares(alike, self._losses)
        scale = (self._clip / (squares.sqrt() + 1e-6)).clamp(max=1)
        for one in (*alike, *gradients):
            one.mul_(scale)
        self._optimiser.step()
        if self._scored is None:
            self._shards.local.write(ids, gradients, self._rate)

    def _sum_gradients(self) -> None:
        """Of what all processes move alike; what none has used stays without."""
        used = self._losses.new_tensor([one.grad is not None for one in self._alike])
        moved = [one for one, any_of in zip(self._alike, self._group.sum(used).tolist(), strict=True) if any_of]
        flat = [torch.zeros_like(one) if one.grad is None else one.grad for one in moved]
        total = self._group.sum(torch.cat([one.flatten() for one in flat]))
        for one, summed in zip(moved, torch.split(total, [one.numel() for one in moved]), strict=True):
            one.grad = summed.view_as(one)


def _squares(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return sum((one.square().sum() for one in tensors), torch.zeros_like(like))
