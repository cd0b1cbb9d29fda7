"""What the command line's options are called, and what all of them refuse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from calls import Call
from query2particles.cli import app
from query2particles.errors import UsageError

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


def test_every_command_but_those_that_go_on_has_json() -> None:
    """As the README says."""

    def commands(command: Any, path: str = "") -> Iterator[tuple[str, set[str]]]:
        for name, one in getattr(command, "commands", {}).items():
            yield from commands(one, f"{path} {name}".strip())
        if not hasattr(command, "commands"):
            yield path, {option for parameter in command.params for option in parameter.opts}

    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 20
    assert [name for name, options in found.items() if "--json" not in options] == ["shell", "serve"]


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "atlas"),
        ("graph", "import", "SOURCE"),
        ("export", "RUN"),
        ("evaluate", "RUN"),
        ("bench", "exact"),
        ("reproduce", "fb15k-betae-q2p", "--data", "FOLDER"),
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_written_is_refused_before_the_work(words: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    """Before a source or a run is opened, too: they are not there."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UsageError, match=r"cannot be written \(Not a directory\)"):
        call(*words, "--out", tmp_path / "file" / "new.tsv")
