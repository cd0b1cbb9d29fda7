"""Tables as Markdown has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["table"]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, text: Collection[str] = ()) -> list[str]:
    """Names to the left, as is what stands in columns of `text`; numbers to the right."""
    marks = ["---" if number == 0 or column in text else "---:" for number, column in enumerate(columns)]
    return [
        f"| {' | '.join(columns)} |",
        f"| {' | '.join(marks)} |",
        *(f"| {' | '.join(cell if isinstance(cell, str) else f'{cell:,}' for cell in row)} |" for row in rows),
    ]
