"""Commands called inside the process of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from query2particles.cli import app

__all__ = ["Call"]


class Call:
    """Calls a command inside this process, where errors stay exceptions, and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.stdout = self.stderr = ""

    def __call__(self, *arguments: str | Path) -> None:
        app(list(map(str, arguments)), standalone_mode=False)
        self.stdout, self.stderr = self._capsys.readouterr()

    def json(self, *arguments: str | Path) -> Any:
        self(*arguments, "--json")
        return json.loads(self.stdout)
