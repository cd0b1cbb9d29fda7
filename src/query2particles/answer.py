"""Answering a question in any syntax: text → query → answers with their names.

`ask` gives what follows from stored facts; `predict` what a trained method thinks, best first, and says of each answer
whether stored facts support it or whether it is a guess.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from query2particles.engine.exact import exact_answers_of
from query2particles.graph.graph import Graph, Split
from query2particles.query.algebra import Query, abstract, nickname
from query2particles.query.names import Lexicon
from query2particles.query.rewrite import Unions
from query2particles.query.syntax import Syntax, format_query, parse_query

if TYPE_CHECKING:
    from query2particles.engine.method import Method

__all__ = ["Answer", "Answered", "Ranked", "ask", "predict"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One entity that answers a question."""

    entity: int
    name: str
    label: str


@dataclass(frozen=True, slots=True)
class Ranked(Answer):
    """An entity as a method ranks it. Where `known`, stored facts say that it is an answer; otherwise it is a guess."""

    score: float
    known: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """A question and what answers it: the first answers by their labels, and how many there are in all."""

    question: str
    query: Query
    canonical: str
    shape: str
    total: int
    answers: tuple[Answer, ...]
    warning: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "query": self.canonical,
            "shape": self.shape,
            "method": "exact",
            "total": self.total,
            "answers": [asdict(answer) for answer in self.answers],
            **({"warning": self.warning} if self.warning else {}),
        }


def ask(graph: Graph, question: str, *, k: int = 10, syntax: Syntax | None = None, split: Split = "test") -> Answered:
    """The exact answers of a question, from the facts of one nested level (by default all facts of the graph).

    Exact answers are a set without an order of their own: the `k` first by label are named, `total` counts them all.
    """
    lexicon = Lexicon(graph)
    query = parse_query(question, lexicon, syntax)
    found = exact_answers_of(graph.at(split), query)
    members = found[0].tolist()
    warning = None
    if found.complemented:
        warning = (
            f"the question asks for what something is not: {len(members):,} of {len(graph.entities):,} entities "
            "answer it. Intersect it with what the answers should be."
        )
    first = heapq.nsmallest(k, members, key=lambda entity: (graph.entities.label(entity).casefold(), entity))
    return Answered(
        question=question,
        query=query,
        canonical=format_query(query, lexicon),
        shape=nickname(abstract(query)[0]),
        total=int(found.sizes[0]),
        answers=tuple(Answer(entity, graph.entities.name(entity), graph.entities.label(entity)) for entity in first),
        warning=warning,
    )


def predict(
    graph: Graph,
    method: Method[Any],
    query: Query,
    *,
    k: int = 10,
    split: Split = "test",
    guesses_only: bool = False,
    unions: Unions = "native",
) -> list[Ranked]:
    """The `k` entities that a method scores highest, best first; those that follow from the facts of a level are known.

    With `guesses_only` the known ones are passed over. Scores of one query compare with each other, not with those of
    another.
    """
    from query2particles.engine.disjuncts import Disjuncts
    from query2particles.engine.ranks import best_of, scoring

    known = exact_answers_of(graph.at(split), query)[0]
    shape, ids = abstract(query)
    with scoring(method):
        row = Disjuncts.of(shape, unions).scores(method, np.array([ids], dtype=np.int64), len(graph.entities))
        entities, scores = best_of([(0, row)], k + len(known) if guesses_only else k)
    supported = set(known.tolist())
    found = zip(entities[0].tolist(), scores[0].tolist(), strict=True)
    ranked = [(entity, score, entity in supported) for entity, score in found]
    return [
        Ranked(entity, graph.entities.name(entity), graph.entities.label(entity), score, is_known)
        for entity, score, is_known in [one for one in ranked if not (guesses_only and one[2])][:k]
    ]
