"""The main job, end to end, on the embedded graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from query2particles.answer import Answered, ask
from query2particles.graph.graph import Graph
from query2particles.query.algebra import SHAPES, ground
from query2particles.query.names import Lexicon
from query2particles.query.syntax import Syntax
from query2particles.query.text import format_path
from query2particles.workload.sample import sample_shape

__all__ = ["QUESTIONS", "Drawn", "ask_all", "draw_all"]

QUESTIONS: tuple[tuple[str, Syntax, str], ...] = (
    (
        "Where did the Turing Award laureates who are not Canadian graduate from?",
        "path",
        '("Turing Award".^award_received & !Canada.^citizen_of).graduated_from',
    ),
    (
        "Which capitals lie in countries that border both Germany and Italy?",
        "logic",
        "?city : exists ?country. capital_of(?city, ?country) & borders(?country, Germany) & borders(?country, Italy)",
    ),
    (
        "Which currencies are used where French or Portuguese is spoken, but not in Africa?",
        "sparql",
        """SELECT DISTINCT ?currency WHERE {
  ?country :uses_currency ?currency .
  { ?country :speaks :French } UNION { ?country :speaks :Portuguese }
  MINUS { ?country :on_continent :Africa }
}""",
    ),
)
"""Three questions in three syntaxes, whose answers a person can judge."""


@dataclass(frozen=True)
class Drawn:
    """Fresh queries of one shape: how many, their easy and hard answers, and one of them as text."""

    shape: str
    queries: int
    easy: int
    hard: int
    example: str


def ask_all(graph: Graph, k: int = 12) -> Iterator[tuple[str, str, Answered]]:
    """Each question in words, as text, and with its answers."""
    for words, syntax, text in QUESTIONS:
        yield words, text, ask(graph, text, syntax=syntax, k=k)


def draw_all(
    graph: Graph, *, count: int, seed: int, progress: Callable[[int], object] | None = None
) -> Iterator[Drawn]:
    """Test queries of all fourteen shapes."""
    lexicon = Lexicon(graph)
    for name, shape in SHAPES.items():
        drawn = sample_shape(graph, shape, count, split="test", cap=100, seed=seed, allow_fewer=True, progress=progress)
        yield Drawn(
            shape=name,
            queries=len(drawn.ids),
            easy=int(drawn.labels.easy.sizes.sum()),
            hard=int(drawn.labels.hard.sizes.sum()),
            example=format_path(ground(shape, drawn.ids[0].tolist()), lexicon),
        )
