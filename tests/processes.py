"""The command line in a process of its own, as a person starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
_PATHS = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_PATHS)}
"""One thread: tests run side by side. Scripts that are no commands find the worlds of the tests."""

# A shell starts what runs in the background deaf to Ctrl-C, and so would be what these tests start: hear again.
_MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from query2particles.cli import main; main()"
)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def q2p(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it must leave with this exit code, and never with a traceback."""
    with start(*arguments) as process:
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stdout + stderr
    assert "Traceback" not in stderr
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def q2p_json(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(q2p(*arguments, "--json", code=code).stdout)
