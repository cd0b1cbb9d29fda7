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
        options = ["--shapes", "2p,2i,2in", "--count", "30", "--seed", str(seed), "--out", str(out), "--replace"]
        return [sys.executable, "-m", "query2particles", "sample", "atlas", *options]

    subprocess.run(command(1), check=True, capture_output=True)
    new = contents(out)
    started = time.monotonic()
    subprocess.run(command(0), check=True, capture_output=True)
    seconds = time.monotonic() - started
    old = contents(out)
    assert old != new
    generator, while_writing = random.Random(0), 0
    for attempt in range(20):
        process = subprocess.Popen(command(1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if attempt % 4:  # the writing is short: most kills wait for it
            while process.poll() is None and not list(tmp_path.glob(".set.partial-*")):
                time.sleep(0.0005)
            time.sleep(0.004 * generator.random())
        else:
            time.sleep(seconds * generator.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        while_writing += bool(list(tmp_path.glob(".set.partial-*")))
        found = contents(out)
        assert found in (old, new)
        if found == new:
            subprocess.run(command(0), check=True, capture_output=True)
    assert while_writing > 0
    subprocess.run(command(1), check=True, capture_output=True)
    assert contents(out) == new
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
