"""What a bench writes down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from query2particles import __version__
from query2particles.provenance import commit

__all__ = ["Bench", "Say", "significant"]

Say = Callable[[str], object]


@dataclass
class Bench:
    """What a bench measured: figures with their unit in the name, and the ratios that count."""

    bench: str
    machine: str
    about: str
    version: str = __version__
    commit: str | None = field(default_factory=commit)
    seed: int = 0
    compares: str = "times as fast as plain Python"
    """What the ratios are."""
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def compare(self, name: str, queries: int, engine_seconds: float, plain_seconds: float) -> None:
        """Take down what both took for as many queries."""
        self.figures[f"{name} engine queries/s"] = round(queries / engine_seconds)
        self.figures[f"{name} plain queries/s"] = round(queries / plain_seconds)
        self.ratios[name] = round(plain_seconds / engine_seconds, 2)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def significant(value: float, digits: int = 4) -> float:
    """Rounded to that many digits, wherever the first one is."""
    return float(f"{value:.{digits}g}")
