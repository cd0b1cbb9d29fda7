"""A calibration in its run folder, bound to the weights that it was fitted to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from query2particles.calibration.calibration import Calibration
from query2particles.checkpoint import quoted
from query2particles.errors import RunError
from query2particles.files import write_json
from query2particles.run import CALIBRATION, Run

_OUTDATED = (1,)
"""Formats of versions that calibrated otherwise: such runs are calibrated anew."""

__all__ = ["read_calibration", "save_calibration", "weights_digest"]


def weights_digest(run: Run) -> str:
    """What tells the weights of a run from all others."""
    digests = []
    for path in run.weight_files:
        state = path.stat()
        digests.append(_digest_of(path, (state.st_ino, state.st_mtime_ns, state.st_size)))
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@lru_cache(maxsize=64)
def _digest_of(path: Path, state: tuple[int, ...]) -> str:
    """Of a file as it is in this state: calibration and index both ask, and gigabytes take seconds to read."""
    del state
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_calibration(run: Run, calibration: Calibration) -> Calibration:
    """Write it into the run folder; unless it says to which weights it belongs, bound to those that are there."""
    bound = calibration if calibration.weights else replace(calibration, weights=weights_digest(run))
    write_json(run.folder / CALIBRATION, bound.as_json())
    return bound


def read_calibration(run: Run) -> Calibration | None:
    """The calibration of a run; None where there is none, or one of an older version, or the weights have changed."""
    path = run.folder / CALIBRATION
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["format"] in _OUTDATED:
            return None
        found = Calibration.from_json(document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RunError(
            f"{path} cannot be read ({quoted(error)}); remove it, or make it anew with q2p calibrate {run.folder}"
        ) from error
    return found if found.weights == weights_digest(run) else None
