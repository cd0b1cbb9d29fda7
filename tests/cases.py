"""Fixture pairs in plain text: `question => result`, one a line, `#` for remarks."""

from __future__ import annotations

from pathlib import Path


def read_cases(name: str) -> list[tuple[str, str]]:
    """The pairs of a file in tests/cases."""
    lines = (Path(__file__).parent / "cases" / name).read_text("utf-8").splitlines()
    pairs = [line.partition(" => ") for line in lines if line.strip() and not line.startswith("#")]
    assert all(arrow for _, arrow, _ in pairs), f"every line of {name} needs ` => `"
    return [(question.strip(), result.strip()) for question, _, result in pairs]
