"""From the names in a question to ids and back.

A name in a question is, in this order: the unique name of an entity (or relation), a prefixed name whose prefix the
graph remembers (`ex:alice`), or a label that just one of them carries.
"""

from __future__ import annotations

from dataclasses import dataclass

from query2particles.errors import AmbiguousNameError, UnknownNameError
from query2particles.graph.graph import Graph
from query2particles.graph.vocabulary import Vocabulary

__all__ = ["Lexicon"]


@dataclass(frozen=True)
class Lexicon:
    """The names of one graph, as questions use them."""

    graph: Graph
    suggestions: int = 3
    """How many of the nearest names an error tells; to find them takes far longer than to look a name up."""

    def entity(self, name: str, text: str | None = None, position: int | None = None, length: int = 1) -> int:
        """The id of an entity; `text` and `position` tell an error where the name stands."""
        return self._resolve("entity", self.graph.entities, name, text, position, length)

    def relation(self, name: str, text: str | None = None, position: int | None = None, length: int = 1) -> int:
        """The directed id 2k of a stored relation; its inverse is that id ^ 1."""
        return 2 * self._resolve("relation", self.graph.relations, name, text, position, length)

    def entity_name(self, entity: int) -> str:
        """A name that `entity` finds again: with a prefix of the graph where that is shorter."""
        return self._prefixed(self.graph.entities, entity)

    def relation_name(self, relation: int) -> tuple[str, bool]:
        """The stored relation's name, and whether the directed id is its inverse."""
        return self._prefixed(self.graph.relations, relation // 2), relation % 2 == 1

    def _prefixed(self, vocabulary: Vocabulary, index: int) -> str:
        name = vocabulary.name(index)
        for prefix, iri in sorted(self.graph.prefixes.items(), key=lambda item: -len(item[1])):
            short = f"{prefix}:{name.removeprefix(iri)}"
            if iri and name.startswith(iri) and vocabulary.find(short) is None:
                return short
        return name

    def _resolve(
        self, kind: str, vocabulary: Vocabulary, name: str, text: str | None, position: int | None, length: int
    ) -> int:
        found = vocabulary.find(name)
        if found is None:
            prefix, colon, local = name.partition(":")
            if colon and prefix in self.graph.prefixes:
                found = vocabulary.find(self.graph.prefixes[prefix] + local)
        if found is not None:
            return found
        labelled = vocabulary.find_label(name)
        if len(labelled) == 1:
            return labelled[0]
        if labelled:
            raise AmbiguousNameError(kind, name, vocabulary.names(labelled), text, position, length)
        raise UnknownNameError(kind, name, vocabulary.nearest(name, self.suggestions), text, position, length)
