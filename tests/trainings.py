"""What two trainings have to have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from query2particles.run import Run

__all__ = ["contents"]


def contents(folder: Path) -> dict[str, Any]:
    """Weights, moments, random states, and what happened but for speed."""
    found: dict[str, Any] = {}
    for name in ("best.safetensors", "last.safetensors"):
        if not (folder / name).exists():
            continue
        with safe_open(folder / name, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
        about.get("state", {}).pop("seconds", None)
        tensors = {key: (tensor.dtype, tensor.numpy().tobytes()) for key, tensor in load_file(folder / name).items()}
        found[name] = about, tensors
    timeless = ({**line, "seconds": 0, "queries_per_second": 0} for line in Run.open(folder).read_trace())
    found["trace"] = list(timeless)
    return found
