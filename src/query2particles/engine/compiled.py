"""A method with compiled operators: fewer, larger kernels, for CUDA; the same parameters and the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Compiled"]


class Compiled:
    """Compiles what all shapes share, each operator, not each shape; the number of queries stays open.

    So every operator is compiled once, and once more for each number and width of branches.
    """

    def __init__(self, method: Any) -> None:
        torch.compiler.reset()  # what was compiled for earlier models counts against a limit
        self._method = method
        self.anchor = _open_batch(method.anchor)
        self.project = _open_batch(method.project)
        self.intersect = _open_batch(method.intersect)
        self.complement = _open_batch(method.complement)

    def __getattr__(self, name: str) -> Any:
        """What is not compiled is the method's own."""
        return getattr(self._method, name)


def _open_batch(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled = torch.compile(operator)

    def call(operand: Tensor | Sequence[Tensor], *others: Tensor, **options: Any) -> Tensor:
        for tensor in (*([operand] if isinstance(operand, Tensor) else operand), *others):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        result: Tensor = compiled(operand, *others, **options)
        return result

    return call
