"""The page of the trials of settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from query2particles.errors import UsageError
from query2particles.report.markdown import table

__all__ = ["trials_page"]


def trials_page(trials: Path) -> str:
    """The page of the trials of settings, one file for each method."""
    lines = ["# Trials", "", "Made by `q2p report` from `benchmarks/trials/`; [what they say](tried.md)."]
    for path in sorted(trials.glob("*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            seeds = ", ".join(map(str, document["seeds"]))
            origin = f"{document['machine']}; commit {document['commit']}; seeds {seeds}."
            rows = [_trial(number, trial) for number, trial in enumerate(document["trials"], start=1)]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no file of trials ({error!r})") from error
        columns = ("", "graph", "changed", "network", "decays", "validation", "test", "2p", "3i", "ip", "2u", "inp")
        lines += ["", f"## {path.stem}", "", document["about"], "", origin, "", *table(columns, rows)]
    return "\n".join(lines) + "\n"


def _trial(number: int, trial: Mapping[str, Any]) -> tuple[str, ...]:
    """EPFO / negation on both, and some shapes of the test set."""
    test = trial.get("test", {})
    validation = "{epfo:.1f} / {negation:.1f}".format(**trial["validation"])
    figures = "{epfo:.1f} / {negation:.1f}".format(**test) if test else ""
    shapes = (str(test["shapes"][shape]) if test else "" for shape in ("2p", "3i", "ip", "2u", "inp"))
    about = trial["graph"], ", ".join(trial["changes"]) or "–", trial["network"], trial["decays"]
    return str(number), *about, validation, figures, *shapes
