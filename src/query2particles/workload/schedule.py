"""Calls of equal form, made together: from what each part of a batch needs to a short list of tensor calls.

A `Schedule` records calls on matrices whose rows are queries. Nothing is computed while recording. `compile` puts calls
of one function, with operands of equal widths, that do not wait for each other into one call on stacked rows, and drops
what no result needs. All shapes are fixed then: running a `Program` is a straight line of tensor operations, without a
decision that depends on a value, so a CUDA graph can hold it.

Random numbers are operands like any other: rows of one buffer of uniform numbers, which the caller fills.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Program", "Schedule", "Value"]

Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A matrix (rows, width) that a program will hold.

    What no call computes holds one `constant` number or, where that is None, random numbers.
    """

    rows: int
    width: int
    constant: int | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    function: Function
    operands: tuple[Value, ...]
    fixed: tuple[int, ...]
    results: tuple[Value, ...]

    @property
    def form(self) -> tuple[Hashable, ...]:
        return (self.function, self.fixed, *(operand.width for operand in self.operands))


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows of one of the tensors that a running program keeps."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Step:
    function: Function
    operands: tuple[tuple[_Slice, ...], ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The calls in order. Tensors are numbered: uniform numbers by width, then constants, then the results of calls."""

    uniform_shapes: tuple[tuple[int, int], ...]
    constants: tuple[Tensor, ...]
    steps: tuple[_Step, ...]
    places: dict[Value, _Slice] = field(repr=False)

    @property
    def uniforms(self) -> int:
        """How many uniform numbers a run takes."""
        return sum(rows * width for rows, width in self.uniform_shapes)

    def run(self, uniforms: Tensor) -> list[Tensor]:
        """Every tensor of the program, from a vector of uniform numbers in [0, 1)."""
        sizes = [rows * width for rows, width in self.uniform_shapes]
        tensors = [
            numbers.view(shape)
            for numbers, shape in zip(torch.split(uniforms, sizes), self.uniform_shapes, strict=True)
        ]
        tensors.extend(self.constants)
        for step in self.steps:
            result = step.function(*(_read(tensors, pieces) for pieces in step.operands), *step.fixed)
            tensors.extend((result,) if isinstance(result, Tensor) else result)
        return tensors

    def in_memory_order(self, values: Iterable[Value]) -> list[Value]:
        """The values in the order in which they lie, so that reading them together copies little."""
        return sorted(values, key=lambda value: (self.places[value].tensor, self.places[value].start))

    def reader(self, values: Sequence[Value]) -> Callable[[Sequence[Tensor]], Tensor]:
        """What reads these values, of one width, out of a program's tensors as one matrix."""
        pieces = _joined([self.places[value] for value in values])
        return lambda tensors: _read(tensors, pieces)


class Schedule:
    """What is recorded so far."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def uniform(self, rows: int, width: int = 1) -> Value:
        """A matrix of random numbers."""
        return Value(rows, width)

    def constant(self, number: int, rows: int) -> Value:
        """A column that holds one number."""
        return Value(rows, 1, constant=number)

    def call(
        self, function: Function, *operands: Value, widths: Sequence[int], fixed: Sequence[int] = ()
    ) -> tuple[Value, ...]:
        """The results of `function(*operands, *fixed)`, of these widths; operands may have one column or many."""
        results = tuple(Value(operands[0].rows, width) for width in widths)
        self._calls.append(_Call(function, operands, tuple(fixed), results))
        return results

    def apply(self, function: Function, *operands: Value) -> Value:
        """An elementwise function of its operands."""
        return self.call(function, *operands, widths=[max(operand.width for operand in operands)])[0]

    def compile(self, results: Iterable[Value], device: torch.device) -> Program:
        """The program that computes these results."""
        groups = _grouped(self._needed_for(results))
        computed = {value for group in groups for call in group for value in call.results}
        sources: defaultdict[tuple[int | None, int], dict[Value, None]] = defaultdict(
            dict
        )  # sets that keep their order
        for operand in (operand for group in groups for column in _columns(group) for operand in column):
            if operand not in computed:
                sources[operand.constant, operand.width][operand] = None
        places: dict[Value, _Slice] = {}
        uniform_shapes: list[tuple[int, int]] = []
        constants: list[Tensor] = []
        for (constant, width), values in sorted(sources.items(), key=lambda item: item[0][0] is not None):
            places.update(_stacked(len(uniform_shapes) + len(constants), values))
            height = sum(value.rows for value in values)
            if constant is None:
                uniform_shapes.append((height, width))
            else:
                constants.append(torch.full((height, width), constant, device=device))
        tensors = len(uniform_shapes) + len(constants)
        steps = []
        for group in groups:
            operands = tuple(_joined([places[value] for value in column]) for column in _columns(group))
            steps.append(_Step(group[0].function, operands, group[0].fixed))
            for column in zip(*(call.results for call in group), strict=True):
                places.update(_stacked(tensors, column))
                tensors += 1
        return Program(tuple(uniform_shapes), tuple(constants), tuple(steps), places)

    def _needed_for(self, results: Iterable[Value]) -> list[_Call]:
        needed, calls = set(results), []
        for call in reversed(self._calls):
            if not needed.isdisjoint(call.results):
                needed.update(call.operands)
                calls.append(call)
        return calls[::-1]


def _grouped(calls: Sequence[_Call]) -> list[list[_Call]]:
    """The calls in an order that respects what they need, those to be made together side by side.

    A form whose calls can all be made is next; if there is none, the one that most others wait for, one after another.
    """
    heights: dict[Value, int] = {}  # the longest chain of calls that need a value
    for call in reversed(calls):
        height = 1 + max(heights.get(result, 0) for result in call.results)
        heights.update((operand, max(height, heights.get(operand, 0))) for operand in call.operands)
    pending = {result for call in calls for result in call.results}
    waiting = list(calls)
    groups = []
    while waiting:
        everyone, ready = defaultdict(list), defaultdict(list)
        for call in waiting:
            everyone[call.form].append(call)
            if pending.isdisjoint(call.operands):
                ready[call.form].append(call)
        complete = (form for form, several in ready.items() if len(several) == len(everyone[form]))
        urgent = max(ready, key=lambda form: max(heights[call.operands[0]] for call in ready[form]))
        form = next(complete, urgent)
        groups.append(ready[form])
        pending.difference_update(result for call in ready[form] for result in call.results)
        waiting = [call for call in waiting if not pending.isdisjoint(call.results)]
    return groups


def _columns(group: Sequence[_Call]) -> list[tuple[Value, ...]]:
    return list(zip(*(call.operands for call in group), strict=True))


def _stacked(tensor: int, values: Iterable[Value]) -> dict[Value, _Slice]:
    """Where the values lie that a tensor holds one below the other."""
    places: dict[Value, _Slice] = {}
    start = 0
    for value in values:
        places[value] = _Slice(tensor, start, start + value.rows)
        start += value.rows
    return places


def _joined(slices: Sequence[_Slice]) -> tuple[_Slice, ...]:
    """The same rows with neighbours in one slice."""
    joined = [slices[0]]
    for piece in slices[1:]:
        last = joined[-1]
        if (piece.tensor, piece.start) == (last.tensor, last.stop):
            joined[-1] = _Slice(last.tensor, last.start, piece.stop)
        else:
            joined.append(piece)
    return tuple(joined)


def _read(tensors: Sequence[Tensor], pieces: Sequence[_Slice]) -> Tensor:
    parts = [tensors[piece.tensor][piece.start : piece.stop] for piece in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
