"""How numbers are put into words, the same wherever people read them; the page does it alike (web/src/wording.ts)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["expectation", "html_table", "percentage"]

_ALMOST = 0.995
_TINY = 0.001
_TWO_DIGITS = 0.0995


def percentage(probability: float, *, certain: bool = False) -> str:
    """A probability in percent; "100 %" stands for what is certain alone."""
    if certain:
        return "100 %"
    if probability >= _ALMOST:
        return "> 99 %"
    if probability < _TINY:
        return "< 0.1 %"
    return f"{100 * probability:.{0 if probability >= _TWO_DIGITS else 1}f} %"


def expectation(known: int, expected_more: float, *, complete: bool) -> str:
    """How many answers stored facts name, and how many more there probably are."""
    if expected_more < 0.05:
        amount = "less than 0.1"
    else:
        amount = f"about {expected_more:.1f}" if expected_more < 9.95 else f"about {expected_more:,.0f}"
    if not known:
        return f"nothing known; {amount} expected{': there is probably no answer' if complete else ''}."
    verdict = f": {'it looks' if known == 1 else 'they look'} complete" if complete else ""
    return f"{known:,} known; {amount} more expected{verdict}."


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for notebooks; everything in it is text."""
    header = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
