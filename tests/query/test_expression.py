"""Questions by operators are the same trees as their text."""

from __future__ import annotations

import pytest

from query2particles.errors import UnknownNameError, UsageError
from query2particles.graph.folders import open_graph
from query2particles.graph.graph import Graph
from query2particles.query.expression import Expression, text_of
from query2particles.query.names import Lexicon
from query2particles.query.syntax import parse_query

ATLAS = open_graph("atlas")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (ATLAS["France"].follow("borders"), "France.borders"),
        (ATLAS["French"].inverse("speaks"), "French.^speaks"),
        (ATLAS["French"].inverse("speaks") & ~ATLAS["Canada"].inverse("citizen_of"), None),
        ((ATLAS["France"].follow("borders") | ATLAS["Japan"].follow("borders")).follow("speaks"), None),
        (ATLAS["Turing Award"].inverse("award_received").follow("graduated_from"), None),
    ],
)
def test_an_expression_is_its_text(built: Expression, text: str | None) -> None:
    assert text is None or str(built) == text
    assert parse_query(str(built), Lexicon(ATLAS)) == built.query
    assert repr(built) == f"Expression({str(built)!r})"
    assert text_of(built, ATLAS) == str(built)


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(UnknownNameError, match="Germny"):
        ATLAS["Germny"]
    with pytest.raises(UnknownNameError, match="borderz"):
        ATLAS["Germany"].follow("borderz")
    with pytest.raises(UsageError, match="named by a string"):
        ATLAS[3]  # type: ignore[index]
    with pytest.raises(UsageError, match="joined with another one"):
        ATLAS["France"] & "Germany"  # type: ignore[operator]
    other = Graph.from_triples([("France", "borders", "Spain")], splits=None, name="other")
    with pytest.raises(UsageError, match="about atlas, the other about other"):
        ATLAS["France"] | other["France"]
    with pytest.raises(UsageError, match="about other, and this is atlas"):
        text_of(other["France"], ATLAS)
    with pytest.raises(UsageError, match="a question is a text"):
        text_of(5, ATLAS)
