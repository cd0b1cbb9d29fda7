"""How a method scores queries of several shapes, for those who ask: all shapes in one plan, what is alike together.

On CUDA a few queries take the GPU less time than the host takes to say what to do. Where queries of one shape come
again, as many at a time, that is captured (`engine/captured`): ids are written to where the graph reads them, and it is
replayed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from query2particles.engine.captured import Captured
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.nearest import Best, best_of, nearest, refuse_nan, select_best
from query2particles.engine.plan import Plan, compile_shapes
from query2particles.engine.ranks import Factored, all_scores, float32_factors, ids_for
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions

__all__ = ["Scored", "best_of_all", "score_all"]

Found = TypeVar("Found")

_MOST_SCORES = 1 << 21
"""A replay gives no more scores at once: with more, it is the GPU that takes the time."""

_REPLAYED_ON = frozenset({"cuda"})

_MOST_REPLAYS = 64
"""Of one method: shapes and numbers of queries. What was not asked for longest goes."""


class Scored(NamedTuple):
    """The queries of one shape."""

    scores: Tensor  # (n, entities)
    factors: tuple[Tensor, Tensor, Tensor] | None  # if they are products: particles (n, w, d), table, bias


def score_all(method: Method[Any], batch: Batch, entities: int, unions: Unions = "native") -> dict[Query, Scored]:
    """How a method scores the queries of each shape; call it in `scoring`."""
    ids = {shape: ids_for(method, rows) for shape, rows in batch.items()}
    if (replays := _replays_for(method, ids, entities)) is None:
        return _scored(method, ids, entities, unions)
    ((shape, rows),) = ids.items()

    def work(method: Method[Any], rows: Tensor) -> Scored:
        return _scored(method, {shape: rows}, entities, unions)[shape]

    scores, factors = replays.found((shape, entities, unions), rows, work)
    return {shape: Scored(scores.clone(), factors and (factors[0].clone(), *factors[1:]))}


def best_of_all(
    method: Method[Any], batch: Batch, k: int, entities: int, unions: Unions = "native"
) -> dict[Query, Best]:
    """The best k entities of the queries of each shape, as many as states fit into memory; call it in `scoring`."""
    ids = {shape: ids_for(method, rows) for shape, rows in batch.items()}
    if (replays := _replays_for(method, ids, entities)) is not None:
        ((shape, rows),) = ids.items()

        def work(method: Method[Any], rows: Tensor) -> tuple[Best, Tensor]:
            return select_best([(0, _scored(method, {shape: rows}, entities, unions)[shape].scores)], k)

        best, not_a_number = replays.found((shape, k, entities, unions), rows, work)
        refuse_nan(not_a_number)
        return {shape: Best(*(part.clone() for part in best))}
    if isinstance(method, Factored) and not hasattr(method, "disjoin"):
        return _nearest(method, ids, k, entities, unions)
    return {shape: best_of([(0, own.scores)], k) for shape, own in _scored(method, ids, entities, unions).items()}


def _nearest(method: Method[Any], ids: Mapping[Query, Any], k: int, entities: int, unions: Unions) -> dict[Query, Best]:
    """From the particles of all disjuncts of a query, side by side; queries with as many are looked at together."""
    assert isinstance(method, Factored)
    parts, _, states = _executed(method, ids, unions)
    factors: dict[Query, tuple[Tensor, Tensor, Tensor]] = {}
    for (shape, _), state in zip(parts, states, strict=True):
        particles, table, bias = float32_factors(method, state, entities)
        own = [factors[shape][0], particles] if shape in factors else [particles]
        factors[shape] = torch.cat(own, 1), table, bias
    widths: defaultdict[int, list[Query]] = defaultdict(list)
    for shape, (particles, _, _) in factors.items():
        widths[particles.shape[1]].append(shape)
    found: dict[Query, Best] = {}
    for shapes in widths.values():
        _, table, bias = factors[shapes[0]]
        best = nearest(torch.cat([factors[shape][0] for shape in shapes]), table, bias, k)
        sizes = [len(ids[shape]) for shape in shapes]
        found |= zip(shapes, map(Best, *(torch.split(part, sizes) for part in best)), strict=True)
    return {shape: found[shape] for shape in ids}


def _executed(
    method: Method[Any], ids: Mapping[Query, Any], unions: Unions
) -> tuple[Sequence[tuple[Query, Query]], Plan, Sequence[Any]]:
    """Every disjunct of every shape with its shape, the plan for all of them, and their states."""
    parts = [(shape, part) for shape in ids for part in Disjuncts.of(shape, unions).shapes]
    plan = compile_shapes(tuple(part for _, part in parts), method.kind)
    return parts, plan, execute(plan, method, [ids[shape] for shape, _ in parts])


def _scored(method: Method[Any], ids: Mapping[Query, Any], entities: int, unions: Unions) -> dict[Query, Scored]:
    parts, plan, states = _executed(method, ids, unions)
    together: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, root in enumerate(plan.roots):
        together[plan.nodes[root].kind].append(number)
    scores: dict[int, Tensor] = {}
    for numbers in together.values():
        stacked = states[numbers[0]] if len(numbers) == 1 else method.stack([states[number] for number in numbers])
        sizes = [len(ids[parts[number][0]]) for number in numbers]
        scores.update(zip(numbers, torch.split(all_scores(method, stacked, entities), sizes), strict=True))
    disjoin = getattr(method, "disjoin", None)
    found: dict[Query, Scored] = {}
    for shape in ids:
        own = [number for number, (of, _) in enumerate(parts) if of == shape]
        branches = [scores[number] for number in own]
        if disjoin is not None and len(own) > 1:
            found[shape] = Scored(torch.as_tensor(disjoin(branches)), None)
            continue
        factors = None
        if isinstance(method, Factored):
            particles, tables, biases = zip(*(method.factors(states[number]) for number in own), strict=True)
            factors = torch.cat(particles, 1), tables[0], biases[0]
        found[shape] = Scored(reduce(torch.maximum, branches), factors)
    return found


class _Replays:
    """Of one method, as long as its tensors stay what they are."""

    def __init__(self, method: nn.Module) -> None:
        self._method = ref(method)  # which is the key that these are found by
        self._replays: OrderedDict[Hashable, _Replay[Any]] = OrderedDict()
        self._pool: Any = None

    def found(self, asked: Hashable, ids: Tensor, work: Callable[[Any, Tensor], Found]) -> Found:
        """What `work` finds for the method and ids; `asked` tells it from other work.

        The next replay, of this graph or another, writes to the same place.
        """
        method: Any = self._method()
        key = asked, len(ids), tuple(map(_state, _tensors(method)))
        if key not in self._replays:
            while len(self._replays) >= _MOST_REPLAYS:
                self._replays.popitem(last=False)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._replays[key] = _Replay(self._method, ids, work, self._pool)
        self._replays.move_to_end(key)
        found: Found = self._replays[key](ids)
        return found


class _Replay(Generic[Found]):
    def __init__(self, method: Callable[[], Any], ids: Tensor, work: Callable[[Any, Tensor], Found], pool: Any) -> None:
        self._ids = torch.empty_like(ids)
        self._found: Found | None = None  # all of which is kept: a graph reads what it was captured with

        def replayed() -> None:
            self._found = work(method(), self._ids)

        self._captured = Captured(replayed, pool=pool)

    def __call__(self, ids: Tensor) -> Found:
        self._ids.copy_(ids)
        self._captured()
        assert self._found is not None
        return self._found


def _replays_for(method: Method[Any], ids: Mapping[Query, Any], entities: int) -> _Replays | None:
    """Where few queries of one shape are asked on a device that can replay them."""
    if len(ids) != 1 or not isinstance(method, nn.Module) or not getattr(method, "replayed", True):
        return None
    (rows,) = ids.values()
    if rows.device.type not in _REPLAYED_ON or len(rows) * entities > _MOST_SCORES:
        return None
    return _REPLAYS.setdefault(method, _Replays(method))


_REPLAYS: WeakKeyDictionary[nn.Module, _Replays] = WeakKeyDictionary()


def _tensors(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers; without their names, which take torch most of the time that it takes to list them."""
    found: list[Tensor | None] = []
    parts = [module]
    for part in parts:  # which grows
        found += part._parameters.values()
        found += part._buffers.values()
        parts += [one for one in part._modules.values() if one is not None]
    return [tensor for tensor in found if tensor is not None]


def _state(tensor: Tensor) -> tuple[int, int]:
    """Differs where a tensor has moved or been written to, so that what was remembered of it is out of date."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
