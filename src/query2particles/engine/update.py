"""One update of training: take a batch, run it, take the loss and its gradient, step.

All shapes of the training mix share a batch, so one plan serves every update, and operators of all shapes share calls.
On CUDA the operators are compiled and run in bfloat16, batches come out of a pool, and a whole update is captured as
one CUDA graph: after the first few updates the host only says "again" and writes the learning rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from query2particles.engine.ahead import Ahead
from query2particles.engine.batches import Drawn, Pool, Stream
from query2particles.engine.captured import Captured
from query2particles.engine.compiled import Compiled
from query2particles.engine.execute import execute
from query2particles.engine.fused_loss import max_sampled_softmax, max_softmax
from query2particles.engine.half import HalfOperators
from query2particles.engine.loss import LossTerms, Objective, negatives_loss, softmax_loss
from query2particles.engine.negatives import Negatives, Proposal
from query2particles.engine.plan import compile_shapes
from query2particles.engine.rows import Filling, Table, WorkingSet
from query2particles.query.algebra import Query

__all__ = ["POOLED", "Update"]

POOLED = 32
"""On CUDA a stream draws this many batches at a time."""


class Update:
    """`update(rate)` makes one; `mean_loss()` is that of the updates since it was last asked, and waits for them.

    `terms` belong to the shapes, one each; `objective` to all, and `proposal` draws what it is set against. On CUDA the
    stream draws `POOLED` batches at a time. With `working`, the method has few entities, which are those of the batch,
    and rows of `table`; with `ahead` they are read while the update before runs, and a checkpoint takes a `rewind`.
    """

    def __init__(
        self,
        method: Any,
        optimiser: torch.optim.Optimizer,
        stream: Stream,
        shapes: Sequence[Query],
        terms: Sequence[LossTerms],
        *,
        objective: Objective,
        proposal: Proposal,
        clip: float,
        generator: torch.Generator,
        working: WorkingSet | None = None,
        table: Table | None = None,
        ahead: bool = False,
        alone: bool = True,
    ) -> None:
        self._parameters: list[nn.Parameter] = list(method.parameters())
        self._optimiser, self._clip, self._working, self._table = optimiser, clip, working, table
        self._objective, self._proposal, self._shapes = objective, proposal, tuple(shapes)
        self._plan = compile_shapes(tuple(shapes), method.kind)
        self._groups: defaultdict[Any, list[int]] = defaultdict(list)
        for number, root in enumerate(self._plan.roots):
            self._groups[self._plan.nodes[root].kind, terms[number]].append(number)
        self._losses = torch.zeros((), device=self._parameters[0].device)
        self._rate = torch.zeros_like(self._losses)  # that of the rows: a captured update reads it anew each time
        self._count = 0  # updates since the loss was last read
        self._left = 0  # batches left in the pool
        self._pool: Pool | None = None
        self._half: HalfOperators | None = None
        self._ahead = Ahead(working, self._filling, generator) if working is not None and ahead else None
        self._method, self._module, self._draw = method, method, stream.draw
        self._captures = self._parameters[0].is_cuda and alone and not ahead  # waiting for others cannot be captured
        self._update: Callable[[], None] = self._work
        if self._parameters[0].is_cuda:
            self._half = HalfOperators(method)
            self._module = self._half.method
            self._method = Compiled(self._module)
            self._pool = Pool(stream, POOLED)
            self._draw = self._pool.take
            if self._captures:
                self._update = Captured(self._work, None if working is None else generator)
            else:
                self._draw = self._from_pool
            self._fill = Captured(self._pool.fill, generator)

    def __call__(self, rate: float) -> None:
        self._rate.fill_(rate)
        for group in self._optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._captures:
            self._refill()
        self._update()
        self._count += 1

    def _refill(self) -> None:
        """Before a batch is taken out of the pool."""
        if not self._left:
            self._fill()
            self._left = POOLED
        self._left -= 1

    def _from_pool(self) -> list[Drawn]:
        assert self._pool is not None
        self._refill()
        return self._pool.take()

    def mean_loss(self) -> float:
        mean = float(self._losses) / max(self._count, 1)
        self._losses.zero_()
        self._count = 0
        return mean

    def loss(self) -> Tensor:
        """The mean loss of the next batch."""
        drawn, negatives = self._take()
        states = execute(self._plan, self._method, [part.ids for part in drawn])
        losses = []
        for (_, terms), members in self._groups.items():
            state = self._method.stack([states[number] for number in members])
            positives = torch.cat([drawn[number].positives for number in members])
            excluded = torch.cat([drawn[number].excluded for number in members])
            weights = torch.cat([drawn[number].weights for number in members])
            losses.append(self._loss_of(state, positives, excluded, weights, terms, negatives))
        if hasattr(self._method, "penalty"):
            for shape, part in zip(self._shapes, self._penalised(drawn), strict=True):
                losses.append(self._method.penalty(shape, part.ids, part.positives))
        return torch.stack(losses).sum() / self._queries_of(drawn)

    def rewind(self) -> None:
        """Give back what was drawn ahead: the next update draws it once more, from the same random numbers."""
        if self._ahead is not None and self._pool is None:  # whose batches were drawn long before
            self._ahead.rewind()

    def _take(self) -> tuple[Sequence[Drawn], Negatives | None]:
        """The next batch, and what its positives are set against; None: all entities."""
        if self._objective.over_all:
            return self._draw(), None
        if self._working is None:
            return self._draw(), self._proposal.draw()
        if self._ahead is not None:
            filling = self._ahead.take()
        else:
            filling = self._filling()
            self._working.fill(filling.ids, self._working.rows.read(filling.ids))
        return filling.drawn, filling.negatives

    def _queries_of(self, drawn: Sequence[Drawn]) -> int:
        """What the loss is a mean over."""
        return sum(len(part.ids) for part in drawn)

    def _penalised(self, drawn: Sequence[Drawn]) -> Sequence[Drawn]:
        """What the method's penalty is taken of."""
        return drawn

    def _filling(self) -> Filling:
        assert self._working is not None
        return self._working.renumbered(self._draw(), self._proposal.draw())

    def _loss_of(
        self,
        state: Any,
        positives: Tensor,
        excluded: Tensor,
        weights: Tensor,
        terms: LossTerms,
        negatives: Negatives | None,
    ) -> Tensor:
        method = self._method
        precise = getattr(method, "precise", False)
        fused = hasattr(method, "factors")
        if negatives is None:
            if fused:
                particles, table, bias = method.factors(state)
                return max_softmax(particles, table, bias, positives, excluded, weights, terms, precise=precise)
            return softmax_loss(method.score(state), positives, excluded, weights, terms)
        entities = self._proposal.entities
        scores = method.score(state, torch.stack([positives, excluded], 1))
        if fused and self._objective.kind == "softmax":
            particles, table, bias = method.factors(state, negatives.entities)
            known = scores, positives, excluded, weights
            return max_sampled_softmax(particles, table, bias, *known, negatives, entities, terms, precise=precise)
        return negatives_loss(
            self._objective.kind,
            scores,
            method.score(state, negatives.entities),
            positives != excluded,
            negatives.entities == positives[:, None],
            weights,
            stands_for=negatives.stands_for,
            entities=entities,
            terms=terms,
        )

    def _work(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        if self._half is not None:
            self._half.refresh()
        loss = self.loss()
        torch.autograd.backward(loss)
        if self._half is not None:
            self._half.hand_over()
        self._step()
        self._losses += self._reported(loss)

    def _step(self) -> None:
        """Move everything against the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimiser.step()
        if self._working is not None and self._table is not None:
            self._table.write(self._working.ids, self._working.gradients(), self._rate)

    def _reported(self, loss: Tensor) -> Tensor:
        return loss.detach()
