"""Mixed precision: the operators of a method in bfloat16, beside the float32 parameters that the optimiser moves."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["HalfOperators"]


class HalfOperators:
    """`method` shares the tables of the original (its own parameters) and has a bfloat16 copy of its operators
    (the parameters of its parts), so that each weight is rounded once an update rather than at every use.
    """

    def __init__(self, original: Any) -> None:
        tables = {id(table): table for table in original.parameters(recurse=False)}
        self.method = copy.deepcopy(original, dict(tables))
        self._originals = [one for one in original.parameters() if id(one) not in tables]
        self._halves = [one for one in self.method.parameters() if id(one) not in tables]
        for half in self._halves:
            half.data = half.data.bfloat16()
        self._gradients = [torch.zeros_like(one) for one in self._originals]

    def refresh(self) -> None:
        """Round the parameters as they are now."""
        if self._halves:
            with torch.no_grad():
                torch._foreach_copy_(self._halves, self._originals)
        for half in self._halves:
            half.grad = None

    def hand_over(self) -> None:
        """Give the gradients to the originals. A half without one has not been used in this update."""
        used = [number for number, half in enumerate(self._halves) if half.grad is not None]
        for number in used:
            self._originals[number].grad = self._gradients[number]
        gradients = [grad for half in self._halves if (grad := half.grad) is not None]
        if used:
            torch._foreach_copy_([self._gradients[number] for number in used], gradients)
