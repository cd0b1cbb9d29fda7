"""Recorded calls: the same results as made one by one, in few calls, without those that nothing needs."""

from __future__ import annotations

import torch
from torch import Tensor

from query2particles.workload.schedule import Schedule, Value


class Recorder:
    """Functions that note how many rows each of their calls had."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def shift(self, one: Tensor, other: Tensor) -> Tensor:
        self.calls.append(("shift", len(one)))
        return one + other

    def halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.append(("halves", len(both)))
        return both[:, :1], both[:, 1:]

    def scale(self, one: Tensor, factor: int) -> Tensor:
        self.calls.append(("scale", len(one)))
        return one * factor


def read(values: list[Value], schedule: Schedule, uniforms: Tensor | None = None) -> list[Tensor]:
    program = schedule.compile(values, torch.device("cpu"))
    if uniforms is None:
        uniforms = torch.rand(program.uniforms, generator=torch.Generator().manual_seed(0))
    tensors = program.run(uniforms)
    return [program.reader([value])(tensors) for value in values]


def test_calls_of_one_form_are_one_call() -> None:
    recorder, schedule = Recorder(), Schedule()
    values = []
    for rows in (2, 3, 4):
        first, second = schedule.call(recorder.halves, schedule.uniform(rows, 2), widths=[1, 1])
        total = schedule.apply(recorder.shift, first, schedule.constant(rows, rows))
        values += [first, second, schedule.call(recorder.scale, total, widths=[1], fixed=[10])[0]]
    found = read(values, schedule)
    assert recorder.calls == [("halves", 9), ("shift", 9), ("scale", 9)]
    uniforms = torch.rand(18, generator=torch.Generator().manual_seed(0)).view(9, 2)
    for number, (rows, numbers) in enumerate(zip((2, 3, 4), torch.split(uniforms, [2, 3, 4]), strict=True)):
        left, right, scaled = found[3 * number : 3 * number + 3]
        assert torch.equal(left, numbers[:, :1])
        assert torch.equal(right, numbers[:, 1:])
        assert torch.equal(scaled, (numbers[:, :1] + rows) * 10)


def test_calls_wait_for_others_of_their_form() -> None:
    """One chain is longer than the other, but its last call is made together with the other's."""
    recorder, schedule = Recorder(), Schedule()
    short, long = schedule.uniform(5), schedule.uniform(6)
    (scaled,) = schedule.call(recorder.scale, long, widths=[1], fixed=[2])
    values = [schedule.apply(recorder.shift, short, short), schedule.apply(recorder.shift, scaled, scaled)]
    read(values, schedule)
    assert recorder.calls == [("scale", 6), ("shift", 11)]


def test_what_differs_in_form_stays_apart_and_what_nothing_needs_is_not_made() -> None:
    recorder, schedule = Recorder(), Schedule()
    narrow, wide = schedule.uniform(2), schedule.uniform(2, 3)
    values = [
        schedule.call(recorder.scale, narrow, widths=[1], fixed=[2])[0],
        schedule.call(recorder.scale, narrow, widths=[1], fixed=[3])[0],
        schedule.call(recorder.scale, wide, widths=[3], fixed=[3])[0],
    ]
    schedule.apply(recorder.shift, narrow, narrow)
    found = read(values, schedule, torch.arange(8.0))
    assert [name for name, _ in recorder.calls] == ["scale", "scale", "scale"]
    assert [tensor.tolist() for tensor in found] == [
        [[0.0], [2.0]],
        [[0.0], [3.0]],
        [[6.0, 9.0, 12.0], [15.0, 18.0, 21.0]],
    ]


def test_values_are_read_in_the_order_asked_for() -> None:
    schedule = Schedule()
    values = [schedule.apply(torch.neg, schedule.uniform(rows)) for rows in (1, 2, 3)]
    program = schedule.compile(values, torch.device("cpu"))
    tensors = program.run(torch.arange(6.0))
    assert program.reader(values)(tensors).flatten().tolist() == [0, -1, -2, -3, -4, -5]
    assert program.reader(values[::-1])(tensors).flatten().tolist() == [-3, -4, -5, -1, -2, 0]
    assert program.in_memory_order(values[::-1]) == values
