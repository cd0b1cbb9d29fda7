"""A sampling run that is killed leaves the old set or the new one, never a mixture."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    out = tmp_path / "set"

    def command(seed: int) -> list[str]:
        options = ["--shapes", "2p,2i,2in", "--count", "30", "--seed", str(seed), "--out", str(out), "--json"]
        return [sys.executable, "-m", "query2particles", "sample", "atlas", *options]

    subprocess.run(command(1), check=True, capture_output=True)
    new = contents(out)
    started = time.monotonic()
    subprocess.run(command(0), check=True, capture_output=True)
    seconds = time.monotonic() - started
    old = contents(out)
    assert old != new
    generator = random.Random(0)
    for attempt in range(20):
        process = subprocess.Popen(command(1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The writing is at the end: half of the kills come there.
        time.sleep(seconds * (generator.random() if attempt % 2 else 0.7 + 0.4 * generator.random()))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = contents(out)
        assert found in (old, new)
        if found == new:
            subprocess.run(command(0), check=True, capture_output=True)
    subprocess.run(command(1), check=True, capture_output=True)
    assert contents(out) == new
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
