"""A method with compiled operators: fewer, larger kernels, for CUDA; the same parameters and the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["Compiled"]

_OPERATORS = ("anchor", "project", "intersect", "complement")


class Compiled:
    """Compiles what all shapes share, each operator, not each shape; the number of queries stays open.

    So every operator is compiled once, and once more for each number and width of branches.
    """

    def __init__(self, method: Any) -> None:
        torch.compiler.reset()  # what was compiled for earlier models counts against a limit
        self._method = method
        for name in _OPERATORS:
            if hasattr(method, name):
                setattr(self, name, _open_batch(getattr(method, name)))

    def __getattr__(self, name: str) -> Any:
        """What is not compiled is the method's own."""
        return getattr(self._method, name)


def _open_batch(operator: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(operator)

    def call(*operands: Any, **options: Any) -> Any:
        for tensor in _tensors(operands):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(*operands, **options)

    return call


def _tensors(operands: Any) -> Iterator[Tensor]:
    """The tensors of states, which may be tuples of them, and of sequences of states."""
    for operand in operands:
        if isinstance(operand, Tensor):
            yield operand
        elif operand is not None:
            yield from _tensors(operand)
