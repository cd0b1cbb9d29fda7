"""Hostile text for parsers: random, and mutated from good questions."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence

import pytest

from query2particles.errors import QueryError


def assert_only_query_errors(parse: Callable[[str], object], seeds: Sequence[str], alphabet: str) -> None:
    """Feed `parse` for Q2P_FUZZ_SECONDS: it may succeed or raise a QueryError, nothing else, and not hang."""
    generator = random.Random(0)
    end = time.monotonic() + float(os.environ.get("Q2P_FUZZ_SECONDS", "3"))
    count = 0
    while time.monotonic() < end:
        text = _mutated(generator, seeds, alphabet)
        started = time.monotonic()
        try:
            parse(text)
        except QueryError:
            pass
        except Exception as error:
            pytest.fail(f"{text!r} raised {error!r}")
        assert time.monotonic() - started < 5, f"{text!r} took too long"
        count += 1
    assert count > 20


def _mutated(generator: random.Random, seeds: Sequence[str], alphabet: str) -> str:
    if generator.random() < 0.2:
        return "".join(_character(generator, alphabet) for _ in range(generator.randrange(40)))
    text = generator.choice(seeds)
    for _ in range(generator.randrange(1, 6)):
        start = generator.randrange(len(text) + 1)
        stop = min(len(text), start + generator.randrange(6))
        match generator.randrange(5):
            case 0:
                text = text[:start] + text[stop:]
            case 1:
                text = text[:start] + _character(generator, alphabet) + text[start:]
            case 2:
                text = text[:stop] + text[start:stop] * generator.choice((1, 2, 50)) + text[stop:]
            case 3:
                other = generator.choice(seeds)
                text = text[:start] + other[generator.randrange(len(other) + 1) :]
            case _:
                text = text[:start] + _character(generator, alphabet) + text[stop:]
    return text


def _character(generator: random.Random, alphabet: str) -> str:
    if generator.random() < 0.7:
        return generator.choice(alphabet)
    return generator.choice(
        ["\x00", "\ud800", "é", "🜚", "\u202e", "\ufeff", "a", "0", "\u00a0", "'", "-", "{", "]", "%"]
    )
