"""Triton in processes of their own: it reads `TRITON_INTERPRET` when it is first imported."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

__all__ = ["needs_triton", "run_alone"]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="TRITON IS MISSING, the kernel is NOT tested: pip install triton"
)


def run_alone(script: str, task: Literal["interpret", "compile"], folders: pytest.TempPathFactory) -> Any:
    """What a test file prints, as JSON, when it is run by Triton's interpreter, or compiles for a GPU."""
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, script, task],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH")])),
            "TRITON_CACHE_DIR": str(folders.mktemp("cache")),
            "TRITON_INTERPRET": str(int(task == "interpret")),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
