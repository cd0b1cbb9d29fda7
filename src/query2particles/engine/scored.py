"""How a method scores queries of several shapes, for those who ask: all shapes in one plan, what is alike together.

On CUDA a few queries take the GPU less time than the host takes to say what to do. Where queries of one shape come
again, as many at a time, that is captured (`engine/captured`): ids are written to where the graph reads them, and it is
replayed.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from query2particles.engine.captured import Captured
from query2particles.engine.disjuncts import Disjuncts
from query2particles.engine.exact import Batch
from query2particles.engine.execute import execute
from query2particles.engine.method import Method
from query2particles.engine.plan import compile_shapes
from query2particles.engine.ranks import Factored, all_scores, ids_for
from query2particles.query.algebra import Query
from query2particles.query.rewrite import Unions

__all__ = ["Scored", "score_all"]

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
    if len(ids) == 1 and isinstance(method, nn.Module) and getattr(method, "replayed", True):
        ((shape, rows),) = ids.items()
        if rows.device.type in _REPLAYED_ON and len(rows) * entities <= _MOST_SCORES:
            return {shape: _REPLAYS.setdefault(method, _Replays(method)).scored(shape, rows, entities, unions)}
    return _scored(method, ids, entities, unions)


def _scored(method: Method[Any], ids: Mapping[Query, Any], entities: int, unions: Unions) -> dict[Query, Scored]:
    parts = [(shape, part) for shape in ids for part in Disjuncts.of(shape, unions).shapes]
    plan = compile_shapes(tuple(part for _, part in parts), method.kind)
    states = execute(plan, method, [ids[shape] for shape, _ in parts])
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
        self._replays: OrderedDict[Hashable, _Replay] = OrderedDict()
        self._pool: Any = None

    def scored(self, shape: Query, ids: Tensor, entities: int, unions: Unions) -> Scored:
        method: Any = self._method()
        key = shape, len(ids), entities, unions, tuple(map(_state, _tensors(method)))
        if key not in self._replays:
            while len(self._replays) >= _MOST_REPLAYS:
                self._replays.popitem(last=False)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._replays[key] = _Replay(self._method, shape, ids, entities, unions, self._pool)
        self._replays.move_to_end(key)
        return self._replays[key](ids)


class _Replay:
    def __init__(
        self,
        method: Callable[[], Any],
        shape: Query,
        ids: Tensor,
        entities: int,
        unions: Unions,
        pool: Any,
    ) -> None:
        self._ids = torch.empty_like(ids)
        self._found: Scored | None = None  # all of which is kept: a graph reads what it was captured with

        def work() -> None:
            self._found = _scored(method(), {shape: self._ids}, entities, unions)[shape]

        self._captured = Captured(work, pool=pool)

    def __call__(self, ids: Tensor) -> Scored:
        self._ids.copy_(ids)
        self._captured()
        assert self._found is not None
        scores, factors = self._found
        # The next replay, of this graph or another, writes to the same place.
        return Scored(scores.clone(), factors and (factors[0].clone(), *factors[1:]))


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
