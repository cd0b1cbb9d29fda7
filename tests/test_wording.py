"""Numbers in words; the page says the same (web/src/wording.test.ts)."""

from __future__ import annotations

import pytest

from query2particles.wording import expectation, percentage


@pytest.mark.parametrize(
    ("probability", "certain", "words"),
    [
        (1.0, True, "100 %"),
        (1.0, False, "> 99 %"),
        (0.9949, False, "99 %"),
        (0.28, False, "28 %"),
        (0.0996, False, "10 %"),
        (0.0123, False, "1.2 %"),
        (0.001, False, "0.1 %"),
        (0.0009, False, "< 0.1 %"),
        (0.0, False, "< 0.1 %"),
    ],
)
def test_probabilities(probability: float, certain: bool, words: str) -> None:
    assert percentage(probability, certain=certain) == words


@pytest.mark.parametrize(
    ("known", "more", "complete", "words"),
    [
        (81, 0.2, True, "81 known; about 0.2 more expected: they look complete."),
        (1, 0.01, True, "1 known; less than 0.1 more expected: it looks complete."),
        (61, 9.9, False, "61 known; about 9.9 more expected."),
        (1234, 12.4, False, "1,234 known; about 12 more expected."),
        (0, 0.3, True, "nothing known; about 0.3 expected: there is probably no answer."),
        (0, 2.0, False, "nothing known; about 2.0 expected."),
    ],
)
def test_expected_numbers(known: int, more: float, complete: bool, words: str) -> None:
    assert expectation(known, more, complete=complete) == words
