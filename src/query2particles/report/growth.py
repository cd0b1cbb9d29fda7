"""The picture of how everything grows with a graph, from what several benches have measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.plot import growth_curves

__all__ = ["GROWTH_FIGURE", "measured_growth"]

GROWTH_FIGURE = "figures/growth.png"

_DEVICES = {"cuda": "GPU", "cpu": "CPU"}
_IMPORTED = {"import seconds": "import s", "peak memory GiB": "import, peak memory GiB"}
"""What `q2p bench import --large` measures, and how `q2p bench growth` calls it."""


def measured_growth(results: Path) -> dict[str, dict[int, dict[str, float]]]:
    """By device and number of entities; imports of other sizes, which no GPU takes part in, are those of a CPU."""
    found = {
        name: growth_curves(_read(path)[1])
        for device, name in _DEVICES.items()
        if (path := results / f"bench-growth-{device}.json").is_file()
    }
    for path in sorted(results.glob("bench-import-large*.json")) if found else []:
        about, figures = _read(path, *_IMPORTED)
        if entities := re.search(r"([\d,]+) entities", about):
            own = found.setdefault("CPU", {}).setdefault(int(entities[1].replace(",", "")), {})
            own |= {name: figures[measured] for measured, name in _IMPORTED.items()}
    return found


def _read(path: Path, *needed: str) -> tuple[str, dict[str, float]]:
    """What was measured, in words and figures."""
    try:
        result = json.loads(path.read_text("utf-8"))
        about, figures = result["about"], {str(name): float(value) for name, value in result["figures"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no result of `q2p bench` ({error!r}); measure again") from error
    if lacking := [name for name in needed if name not in figures]:
        raise UsageError(f"{path} lacks {', '.join(lacking)}; measure again")
    return str(about), figures
