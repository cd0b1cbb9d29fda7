"""Filtered ranks and best answers, in blocks: no matrix of all queries by all entities is ever needed.

The rank of a hard answer a of a query counts the candidates v, the entities that are no answers of it:

    greater = |{v : s(v) > s(a)}|        equal = |{v : s(v) = s(a)}|        optimistic   1 + greater
                                                                            realistic    1 + greater + equal / 2
                                                                            pessimistic  1 + greater + equal

A few whole rows of scores at a time are computed, so that an answer is compared with the very number that stands for it
there: another product would round differently, and equal scores would no longer tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from query2particles.engine.method import Method
from query2particles.engine.nearest import best_of, fitting, nearest, product_blocks, refuse_nan
from query2particles.engine.sets import Sets
from query2particles.graph.edges import Ints

__all__ = [
    "Factored",
    "Ranks",
    "TiePolicy",
    "all_scores",
    "best_of",
    "finders",
    "float32_factors",
    "ids_for",
    "ranks",
    "rows_at_once",
    "score_blocks",
    "scoring",
    "top_k",
]

State = TypeVar("State")

Floats = npt.NDArray[np.float64]

_MOST_ROWS = 4096
"""More queries at once gain nothing, and states take memory too."""

_SCORE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""How much the scores of the queries at hand may take."""

_COUNT_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}
"""How much of the scores is counted at once: on a CPU, what its caches hold."""

_MANY_ANSWERS = 256
"""Above this many hard answers, sorting a query's scores beats comparing them with each answer's."""

_TIE = 1e-5
"""Inner products that differ by less tie where it is asked which particle is best, in relation to their size."""


class TiePolicy(StrEnum):
    """What a rank says where candidates score the same as the answer."""

    OPTIMISTIC = "optimistic"
    REALISTIC = "realistic"
    PESSIMISTIC = "pessimistic"


_SHARES = {TiePolicy.OPTIMISTIC: 0.0, TiePolicy.REALISTIC: 0.5, TiePolicy.PESSIMISTIC: 1.0}
"""How much of the candidates that tie with an answer stands before it."""


@dataclass(frozen=True)
class Ranks:
    """What the hard answers of n queries compete with; those of query i are at offsets[i] … offsets[i + 1] − 1."""

    offsets: Ints  # (n + 1,)
    greater: Ints  # (answers,)
    equal: Ints  # (answers,)

    @property
    def optimistic(self) -> Floats:
        return self.under(TiePolicy.OPTIMISTIC)

    @property
    def realistic(self) -> Floats:
        return self.under(TiePolicy.REALISTIC)

    @property
    def pessimistic(self) -> Floats:
        return self.under(TiePolicy.PESSIMISTIC)

    def under(self, policy: TiePolicy) -> Floats:
        """The rank of every hard answer."""
        return 1 + self.greater.astype(np.float64) + _SHARES[policy] * self.equal


@runtime_checkable
class Factored(Protocol):
    """A method whose score is the best inner product of a few particles: s(v) = max_k ⟨p_k, e_v⟩ + b_v."""

    def factors(self, state: Any, entities: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The particles p (n, w, d), and of all entities the table e (N, d) and the bias b (N,).

        Only of those given, (m,) or (n, m), they are (…, d) and (…).
        """
        ...


def float32_factors(method: Factored, state: Any, entities: int) -> tuple[Tensor, Tensor, Tensor]:
    """The factors of the first entities of a table."""
    particles, table, bias = (part.float() for part in method.factors(state))
    return particles, table[:entities], bias[:entities]


@contextmanager
def scoring(method: Method[Any]) -> Iterator[None]:
    """Inside, the method computes as ranks and answers need it: no dropout, no gradients, true float32."""
    matmul = torch.backends.cuda.matmul
    precision = matmul.fp32_precision
    trained = method if isinstance(method, torch.nn.Module) and method.training else None
    matmul.fp32_precision = "ieee"  # bf16 and TF32 round so coarsely that scores tie
    if trained is not None:  # a walk through all its parts: a fifth of what a single question takes
        trained.eval()
    try:
        with torch.inference_mode(), torch.autocast(_device(method).type, enabled=False):
            yield
    finally:
        if trained is not None:
            trained.train()
        matmul.fp32_precision = precision


def ids_for(method: Method[Any], ids: Ints) -> Any:
    """Ids where the method computes: a tensor on the device of a module, otherwise the array as it is."""
    return torch.as_tensor(ids, device=_device(method)) if isinstance(method, torch.nn.Module) else ids


def rows_at_once(method: Method[Any], entities: int) -> int:
    """How many queries' scores of all entities fit the memory set aside for them."""
    return min(_MOST_ROWS, fitting(_SCORE_BYTES, _device(method), entities))


def score_blocks(
    method: Method[State], state: State, entities: int, block: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """The scores (n, m) of m entities at a time, with the id of the first; `block` entities, or what fits."""
    if not isinstance(method, Factored):
        for start in range(0, entities, block or entities):
            stop = min(start + (block or entities), entities)
            some = None if stop - start == entities else ids_for(method, np.arange(start, stop))
            yield start, torch.as_tensor(method.score(state, some)).float()
        return
    yield from product_blocks(*float32_factors(method, state, entities), block)


def all_scores(method: Method[State], state: State, entities: int, block: int | None = None) -> Tensor:
    """The scores (n, entities) as a matrix of its own, computed in blocks."""
    matrix: Tensor | None = None
    for start, scores in score_blocks(method, state, entities, block):
        if matrix is None:
            matrix = scores.new_empty(len(scores), entities)
        matrix[:, start : start + scores.shape[1]] = scores
    assert matrix is not None, "a graph has entities"
    return matrix


def ranks(
    scores_of: Callable[[Ints], Tensor],
    hard: Sets,
    easy: Sets,
    *,
    chunk: int,
    progress: Callable[[int], object] | None = None,
) -> Ranks:
    """The filtered ranks of the hard answers of n queries, `chunk` queries at a time.

    `scores_of(rows)` gives the scores (len(rows), entities) of the queries of these numbers, in a matrix that is then
    overwritten. Queries are taken by their number of hard answers, most first: those of one chunk have about as many.
    """
    order = np.argsort(-hard.sizes, kind="stable")
    hard, easy = hard.take(order), easy.take(order)
    counted: list[tuple[Tensor, Tensor]] = []
    for first in range(0, len(order), chunk):
        scores = scores_of(order[first : first + chunk])
        together = fitting(_COUNT_BYTES, scores.device, hard.entities)
        lowest: list[Tensor] = []
        for start in range(0, len(scores), together):
            some = scores[start : start + together]
            lowest.append(some.amin())  # NaN where any is
            place = first + start, first + start + len(some)
            counted.append(_counts(some, hard.rows(*place).listed(), easy.rows(*place).listed()))
        refuse_nan(torch.stack(lowest).isnan().any())
        if progress is not None:
            progress(len(scores))
    greater, at_least = (
        torch.cat([pair[which] for pair in counted]).cpu().numpy() if counted else np.zeros(0, dtype=np.int64)
        for which in range(2)
    )
    return _in_place(Ranks(np.append(0, np.cumsum(hard.sizes)), greater, at_least - greater), order)


def top_k(
    method: Method[State], state: State, k: int, *, entities: int, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """The best k entities (n, k) of each query, best first, and their scores; of equal ones the smaller id first."""
    with scoring(method):
        if isinstance(method, Factored) and block is None:
            return nearest(*float32_factors(method, state, entities), k)
        return best_of(score_blocks(method, state, entities, block), k)


def finders(products: npt.NDArray[Any]) -> Ints:
    """Of inner products (n, w, …) with w particles each, which particle is best, (n, …): the first of those that tie.

    Where particles all but coincide, rounding must not decide: it differs from batch to batch.
    """
    best = products.max(1, keepdims=True)
    found: Ints = (products >= best - _TIE * (1 + np.abs(best))).argmax(1)
    return found


def _device(method: Method[Any]) -> torch.device:
    if not isinstance(method, torch.nn.Module):
        return torch.device("cpu")
    return next((tensor.device for tensor in chain(method.parameters(), method.buffers())), torch.device("cpu"))


def _counts(scores: Tensor, hard: Sets, easy: Sets) -> tuple[Tensor, Tensor]:
    """For all hard answers in turn, how many candidates score more, and how many at least as much. Overwrites scores.

    Answers leave the ranking by the score −∞, which is greater than nothing, but equal to an answer's that is −∞ too.
    """
    sizes = hard.sizes  # descending
    own = hard.row_of_each()
    columns = np.arange(len(own)) - np.repeat(hard.offsets[:-1], sizes)
    padded = np.zeros((len(sizes), sizes[0]), dtype=np.int64)
    padded[own, columns] = hard.values
    answers = scores.gather(1, torch.as_tensor(padded, device=scores.device))  # (rows, most answers)
    for sets in (hard, easy):
        members = sets.row_of_each(), sets.values
        scores[tuple(torch.as_tensor(ids, dtype=torch.int64, device=scores.device) for ids in members)] = -torch.inf
    count = _counts_by_sorting if sizes[0] > _MANY_ANSWERS else _counts_by_comparing
    greater, at_least = count(scores, answers, sizes)
    left_out = torch.as_tensor(sizes + easy.sizes, device=scores.device)[:, None]
    at_least = torch.where(answers == -torch.inf, at_least - left_out, at_least)
    taken = torch.as_tensor(own * padded.shape[1] + columns, device=scores.device)
    return greater.flatten()[taken], at_least.flatten()[taken]


def _counts_by_comparing(scores: Tensor, answers: Tensor, sizes: Ints) -> tuple[Tensor, Tensor]:
    """One comparison of the rows that have a j-th answer with it, for each j; written as integers, it sums fast."""
    counts = [torch.zeros(answers.shape, dtype=torch.int64, device=answers.device) for _ in range(2)]
    flags = torch.empty(scores.shape, dtype=torch.int32, device=scores.device)
    for column in range(answers.shape[1]):
        held = int(np.count_nonzero(sizes > column))
        thresholds = answers[:held, column, None]
        for compare, count in zip((torch.gt, torch.ge), counts, strict=True):
            count[:held, column] = compare(scores[:held], thresholds, out=flags[:held]).sum(1, dtype=torch.int32)
    return counts[0], counts[1]


def _counts_by_sorting(scores: Tensor, answers: Tensor, sizes: Ints) -> tuple[Tensor, Tensor]:
    del sizes
    ascending = scores.sort(dim=1).values
    at_most, less = (torch.searchsorted(ascending, answers, right=right) for right in (True, False))
    return scores.shape[1] - at_most, scores.shape[1] - less


def _in_place(found: Ranks, order: Ints) -> Ranks:
    """Ranks of queries that were taken in an order, in the queries' own."""
    sizes = np.empty_like(order)
    sizes[order] = np.diff(found.offsets)
    offsets = np.append(0, np.cumsum(sizes))
    places = np.arange(len(found.greater)) + np.repeat(offsets[order] - found.offsets[:-1], sizes[order])
    greater, equal = np.empty_like(found.greater), np.empty_like(found.equal)
    greater[places], equal[places] = found.greater, found.equal
    return Ranks(offsets, greater, equal)
