"""Questions built in Python, in place of text: the same trees, by operators.

question = graph["French"].inverse("speaks") & ~graph["Canada"].inverse("citizen_of")
print(question)          # French.^speaks & !Canada.^citizen_of
"""

from __future__ import annotations

from dataclasses import dataclass

from query2particles.errors import UsageError
from query2particles.graph.graph import Graph
from query2particles.query.algebra import Anchor, Complement, Intersect, Project, Query, Union
from query2particles.query.names import Lexicon
from query2particles.query.text import format_path

__all__ = ["Expression", "text_of"]


@dataclass(frozen=True, repr=False)
class Expression:
    """A set of entities of one graph: what a question asks for, or a part of that. `str` is its text."""

    graph: Graph
    query: Query

    @staticmethod
    def of(graph: Graph, entity: str) -> Expression:
        """The set of one entity, by its name or label."""
        if not isinstance(entity, str):
            raise UsageError(f"an entity is named by a string, not by {entity!r}")
        return Expression(graph, Anchor(Lexicon(graph).entity(entity)))

    def follow(self, relation: str) -> Expression:
        """All tails that the relation leads to from these entities: graph["France"].follow("borders")."""
        return Expression(self.graph, Project(self.query, Lexicon(self.graph).relation(relation)))

    def inverse(self, relation: str) -> Expression:
        """All heads that the relation leads to these entities from: graph["French"].inverse("speaks")."""
        return Expression(self.graph, Project(self.query, Lexicon(self.graph).relation(relation) ^ 1))

    def __and__(self, other: Expression) -> Expression:
        """Those that are in both."""
        return Expression(self.graph, Intersect((self.query, self._query_of(other))))

    def __or__(self, other: Expression) -> Expression:
        """Those that are in either."""
        return Expression(self.graph, Union((self.query, self._query_of(other))))

    def __invert__(self) -> Expression:
        """All entities that are not among these."""
        return Expression(self.graph, Complement(self.query))

    def __str__(self) -> str:
        return format_path(self.query, Lexicon(self.graph))

    def __repr__(self) -> str:
        return f"Expression({str(self)!r})"

    def _query_of(self, other: object) -> Query:
        if not isinstance(other, Expression):
            raise UsageError(f"a question is joined with another one, such as graph['France'], not with {other!r}")
        if other.graph.fingerprint != self.graph.fingerprint:
            raise UsageError(f"one question is about {self.graph.name}, the other about {other.graph.name}")
        return other.query


def text_of(question: object, graph: Graph) -> str:
    """The text of a question that is a text, or an expression over this graph."""
    if isinstance(question, Expression):
        if question.graph.fingerprint != graph.fingerprint:
            raise UsageError(f"the question is about {question.graph.name}, and this is {graph.name}")
        return str(question)
    if not isinstance(question, str):
        raise UsageError(f"a question is a text, or an expression such as graph['France'], not {question!r}")
    return question
