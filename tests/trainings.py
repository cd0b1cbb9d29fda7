"""Trainings of a moment, of any method, and what two of them have to have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from query2particles.config import Config, configured
from query2particles.presets import preset
from query2particles.run import Run

__all__ = ["contents", "fewer_questions", "tiny"]

_SIZES = {"dimension": 8, "hidden": 8, "beam": 4, "steps": 2, "triples": 8, "width": 16, "dropout": 0.2}
_TRAINING = ("updates=12", "validate_every=4", "validation_queries=3", "warm_up=3")


def tiny(method: str, *settings: str, name: str = "small") -> Config:
    """A preset, by default that for small graphs, cut down in size: a dozen updates of a few queries."""
    start = preset(method, name)
    sizes = [f"{key}={size}" for key, size in _SIZES.items() if hasattr(start.model, key)]
    return configured(start, None, [*sizes, *_TRAINING, "batch=24", *settings])


def fewer_questions(patch: pytest.MonkeyPatch) -> None:
    """Calibrations ask as few questions as still tell something, and take seconds."""
    patch.setattr("query2particles.training.fit.questions_for", lambda *_: {"one_hop": 1500, "longer": 60})


def contents(folder: Path) -> dict[str, Any]:
    """Weights, moments, random states, and what happened but for speed."""
    found: dict[str, Any] = {}
    for name in ("best.safetensors", "last.safetensors"):
        if not (folder / name).exists():
            continue
        with safe_open(folder / name, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
        about.get("state", {}).pop("seconds", None)
        tensors = {key: (one.dtype, one.flatten().tolist()) for key, one in load_file(folder / name).items()}
        found[name] = about, tensors
    timeless = ({**line, "seconds": 0, "queries_per_second": 0} for line in Run.open(folder).read_trace())
    found["trace"] = list(timeless)
    return found
