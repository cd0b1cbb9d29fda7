"""What the command line's options are called."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src" / "query2particles" / "cli").glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_options_with_a_metavar_say_their_name(path: Path) -> None:
    """Typer 0.27 takes it from the metavar otherwise where both are the same but for case: --RUN."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option"):
            continue
        if any(keyword.arg == "metavar" for keyword in node.keywords):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            assert any(str(name).startswith("--") for name in names), f"line {node.lineno}"
