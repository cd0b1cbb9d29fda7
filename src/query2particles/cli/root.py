"""The root of the command line: the application, the options that commands share, and how errors end.

Exit codes: 0 done, 1 the work failed, 2 the call was wrong, 130 ended by Ctrl-C, 143 ended by SIGTERM.
"""

from __future__ import annotations

import io
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from query2particles import __version__
from query2particles.errors import Query2ParticlesError, QueryError, UsageError, printable

if TYPE_CHECKING:
    from query2particles.graph.graph import Split

__all__ = ["GraphName", "Json", "Seed", "SplitName", "Stopped", "app", "main", "split_of", "writable"]

app = typer.Typer(
    name="q2p",
    help="Answers first-order-logic questions over incomplete knowledge graphs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

_INTERRUPTED = 130  # what typer makes of Ctrl-C


class Stopped(SystemExit):
    """The end of a command that a signal stopped, and that has said itself what was saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


class SplitName(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


def split_of(name: SplitName) -> Split:
    return name.value


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
GraphName = Annotated[str, typer.Argument(metavar="GRAPH", help="A graph folder, a benchmark folder, or `atlas`.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the random draw.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"query2particles {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    del version


def writable(file: Path | None) -> Path | None:
    """Of an option: refuse before the work what would fail after it."""
    from query2particles.files import check_writable

    if file is not None:
        check_writable(file)
    return file


def main() -> None:
    """The entry point: errors become one message and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no reason to fail
    try:
        app()
    except Query2ParticlesError as error:
        _fail(str(error), 2 if isinstance(error, UsageError | QueryError) else 1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; nothing that was there before is lost", 1)
    except SystemExit as end:
        if end.code == _INTERRUPTED and not isinstance(end, Stopped):
            typer.echo("interrupted; nothing was changed", err=True)
        raise


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(printable(f"error: {message}", keep="\n"), err=True)
    # What is still waiting for a full disk or a reader that has left would fail again at the very end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
