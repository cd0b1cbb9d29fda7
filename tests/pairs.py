"""Fixture pairs in plain text: a question, and below it what becomes of it.

    the question, on one line or several
    => the same in the path syntax

    another question
    !! UnsupportedError: words of its message

Blank lines part the pairs; lines that start with `--` are comments.
"""

from __future__ import annotations

from pathlib import Path

from query2particles import errors
from query2particles.errors import QueryError

CASES = Path(__file__).parent / "cases"


def pairs(name: str) -> list[tuple[str, str]]:
    """The questions of a file with their last lines, `=> …` or `!! …`."""
    text = (CASES / name).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    found = []
    for block in filter(None, map(str.strip, lines.split("\n\n"))):
        question, _, outcome = block.rpartition("\n")
        assert outcome[:3] in ("=> ", "!! "), f"{name}: a pair without its outcome: {block}"
        found.append((question, outcome))
    return found


def refusal(outcome: str) -> tuple[type[QueryError], str] | None:
    """The class of error and the words that `!! …` expects; None for `=> …`."""
    if outcome.startswith("=> "):
        return None
    kind, _, words = outcome.removeprefix("!! ").partition(": ")
    expected = getattr(errors, kind)
    assert issubclass(expected, QueryError)
    return expected, words
