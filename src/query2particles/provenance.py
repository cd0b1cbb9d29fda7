"""Where a number comes from: a figure is written down together with the commit and the machine that it was made by."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

__all__ = ["commit", "machine"]


def commit() -> str | None:
    """The commit of the checkout that this package runs from, `-dirty` where tracked files differ from it.

    Of a copy without its history, what Q2P_COMMIT says.
    """
    if named := os.environ.get("Q2P_COMMIT"):
        return named
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")  # without tags: the commit itself
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *describe]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def machine(device: str = "cpu") -> str:
    """The GPU, where the work runs on one, the processor and the number of cores that it may use, in words."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    words = [processor, f"{_cores()} cores", f"Python {platform.python_version()}"]
    if device != "cpu":
        import torch

        words = [torch.cuda.get_device_name(device), *words, f"torch {torch.__version__}"]
    return ", ".join(words)


def _cores() -> int | None:
    """Those that this process is confined to, as by `taskset`; where the system does not say, all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
