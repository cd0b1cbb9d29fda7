"""How far apart particles are: what `q2p particles` has written among the results."""

from __future__ import annotations

import json
from pathlib import Path

from query2particles.errors import UsageError
from query2particles.experiments.published import GROUPS
from query2particles.query.algebra import GROUP_NAMES
from query2particles.report.markdown import table

__all__ = ["spreads"]

_COLUMNS = ("", "K", "shapes", "cosine", "margin", "effective", "at most", "% of hard answers by rank")


def spreads(results: Path) -> list[str]:
    """A table of the averages of every file particles-NAME.json, and their pictures; nothing without such files."""
    rows, pictures = [], []
    for path in sorted(results.glob("particles-*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            name = f"[{document['method']}, {document['graph']}, {document['queries']}, seed {document['seed']}]"
            name += f"(../benchmarks/results/{path.name})"
            particles = str(document["config"]["model"].get("particles", 1))
            for group in GROUPS:
                if own := document["averages"][group]:
                    numbers = (f"{own[key]:.3f}" if key in own else "" for key in ("cosine", "margin"))
                    counts = (f"{own[key]:.2f}" if key in own else "" for key in ("effective", "at_most"))
                    shares = " ".join(f"{share:.0f}" for share in own.get("by_rank", ()))
                    rows.append((name, particles, GROUP_NAMES[group], *numbers, *counts, shares))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is no result of `q2p particles` ({error!r}); measure again") from error
        if path.with_suffix(".png").is_file():
            pictures += ["", f"![Particles: {path.stem}](../benchmarks/results/{path.stem}.png)"]
    if not rows:
        return []
    return [
        "",
        "### How far apart the particles are",
        "",
        "Means over shapes of what `q2p particles RUN` measures ([what the figures mean](evaluation.md#particles)): a "
        "cosine near 1 and a margin near 0 mean that particles lie on one another; the effective number says how many "
        "of them find answers, and `at most` how many could.",
        "",
        *table(_COLUMNS, rows),
        *pictures,
    ]
