"""What a CUDA graph cannot hold, noticed on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = (
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
)
"""Calls for which the host waits for a device: none of them can be captured."""


class Unattended(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a CUDA graph cannot do: the host neither looks at a tensor nor makes one of its own numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            one is not None and one.dtype == torch.bool for one in _indices(args)
        )
        numbers = name == "lift_fresh" and args[0].dim() > 0  # a single one is an argument like any other
        if name in _WAITING or by_mask or numbers:
            raise AssertionError(f"{func} needs the host")
        return func(*args, **(kwargs or {}))


def _indices(arguments: Sequence[Any]) -> Sequence[Tensor | None]:
    return arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list | tuple) else ()
