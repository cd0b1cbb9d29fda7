"""docs/serving.md tells every option, limit, code and metric as it is."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from query2particles.cli.serving import serve
from query2particles.serve.limits import Limits
from query2particles.serve.metrics import METRICS
from query2particles.serve.problems import CODES
from servers import Server

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_limits(name: str) -> None:
    default = getattr(Limits(), name)
    assert f"| `--max-{name}` | {default:,} |" in PAGE
    assert inspect.signature(serve).parameters[f"max_{name}"].default == default


def test_options() -> None:
    for name in inspect.signature(serve).parameters:
        assert f"--{name.replace('_', '-')}" in PAGE or name == "runs"
    assert "--no-batching" in PAGE


def test_codes() -> None:
    for code, (statuses, words) in CODES.items():
        assert f"| `{code}` | {', '.join(map(str, statuses))} | {words} |" in PAGE


def test_metrics(server: Server) -> None:
    for name, words in METRICS.items():
        assert f"| `{name}` | {words} |" in PAGE
    told = set(re.findall(r"# TYPE (\w+)", server.get("/metrics").text))
    assert {name for name in told if not name.endswith("_created")} == set(METRICS)


def test_endpoints(server: Server) -> None:
    for path, operations in server.get("/openapi.json").json()["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path}`" in PAGE
