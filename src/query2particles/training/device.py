"""Where a model computes."""

from __future__ import annotations

import torch

from query2particles.errors import UsageError

__all__ = ["device_named"]


def device_named(name: str) -> str:
    """The device that is meant by auto, cpu or cuda: `auto` takes the GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"the device is auto, cpu or cuda, not {name!r}")
    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise UsageError("this machine has no CUDA device that torch can use; leave out --device, or say --device cpu")
    return "cuda" if found and name != "cpu" else "cpu"
