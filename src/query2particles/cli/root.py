"""The root of the command line: the application, the options that commands share, and how errors end.

Exit codes: 0 done, 1 the work failed, 2 the call was wrong.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from query2particles import __version__
from query2particles.errors import Query2ParticlesError, QueryError, UsageError

if TYPE_CHECKING:
    from query2particles.graph.graph import Split

__all__ = ["GraphName", "Json", "Seed", "SplitName", "app", "main", "split_of"]

app = typer.Typer(
    name="q2p",
    help="Answers first-order-logic questions over incomplete knowledge graphs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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


def main() -> None:
    """The entry point: errors of ours become one message and an exit code."""
    try:
        app()
    except Query2ParticlesError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError | QueryError) else 1)
    except BrokenPipeError:
        # The reader has left (`q2p … | head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
