"""schemathesis, which reads the description of the server and tries to catch it lying, finds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from servers import Server

# What JSON schema cannot say is whether a text is a question that this graph understands: 400 tells it otherwise. Nor
# how many bytes a body may have: 413 refuses it, whatever it says.
CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "413"]
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""


def test_nothing_is_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run"),
            *(f"{server.url}/openapi.json", "--checks", "all", "--max-examples", "25", "--seed", "1", "--no-color"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 14" in done.stdout
    assert not [line for line in server.logged() if line["level"] == "error"]
    assert server.is_alive
