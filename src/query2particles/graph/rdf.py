"""Facts from RDF: N-Triples and Turtle.

An IRI is named by itself, without angle brackets; a blank node `_:label`, numbered where several files, or brackets
without a label, need it. `rdfs:label` with a literal gives a label and is no fact. Other literals are counted and
dropped, or kept as entities that are named by their N-Triples form, `"5"^^<http://www.w3.org/2001/XMLSchema#integer>`,
and labelled by their value, `5`.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from query2particles.errors import SourceError
from query2particles.graph.readers import Meter, open_bytes, shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyoxigraph import Literal

__all__ = ["BlankNodes", "RdfReader"]

_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
_BATCH = 1 << 16
_UNLABELLED = re.compile("[a-f][0-9a-f]{15,31}")
"""What pyoxigraph calls a blank node without a label: a random 128-bit number, different in every run, written without
leading zeros. A label that looks the same loses nothing but its looks."""


class BlankNodes:
    """Names for the blank nodes of several files: the same label in two files is two nodes."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def name(self, label: str) -> str:
        """A new name, `label` itself where that is free."""
        base = "node" if _UNLABELLED.fullmatch(label) else label
        name = base
        while self._uses[name]:
            self._uses[base] += 1
            name = f"{base}-{self._uses[base]}"
        self._uses[name] = 1
        return f"_:{name}"


@dataclass
class RdfReader:
    """An N-Triples or Turtle file. What it says besides facts is known once all batches are read."""

    path: Path
    meter: Meter
    turtle: bool
    literals: bool
    blank_nodes: BlankNodes
    labels: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    literals_dropped: int = 0
    literal_labels: dict[str, str] = field(default_factory=dict)

    def batches(self) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        import pyarrow as pa

        def encoded() -> tuple[pa.DictionaryArray, ...]:
            return tuple(pa.array(column, pa.large_string()).dictionary_encode() for column in columns)

        columns: tuple[list[str], ...] = [], [], []
        heads, relations, tails = columns
        with open_bytes(self.path, self.meter) as stream:
            for head, relation, tail in self._facts(stream):
                heads.append(head)
                relations.append(relation)
                tails.append(tail)
                if len(heads) == _BATCH:
                    yield encoded()
                    for column in columns:
                        column.clear()
                    self.meter.tell()
        yield encoded()

    def line_of(self, row: int) -> int:
        # A parser that is fed line by line has read just as far as the fact that it hands out.
        again = RdfReader(self.path, self.meter, self.turtle, self.literals, BlankNodes())
        with open_bytes(self.path) as stream:
            lines = _LineByLine(stream)
            for number, _ in enumerate(again._facts(lines)):
                if number == row:
                    return lines.number
        raise SourceError(self.path, None, "changed while it was read")

    def _facts(self, stream: io.BufferedReader) -> Iterator[tuple[str, str, str]]:
        from pyoxigraph import BlankNode, Literal, NamedNode, RdfFormat, parse

        blank: dict[str, str] = {}
        favoured: set[str] = set()

        def name(node: object) -> str:
            if isinstance(node, NamedNode):
                return node.value
            if not isinstance(node, BlankNode):
                return str(node)
            if node.value not in blank:
                blank[node.value] = self.blank_nodes.name(node.value)
            return blank[node.value]

        if stream.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
            stream.readline(len(codecs.BOM_UTF8))  # pyoxigraph takes a byte order mark for a subject
        parser = parse(stream, RdfFormat.TURTLE if self.turtle else RdfFormat.N_TRIPLES)
        try:
            for fact in parser:
                relation, tail = fact.predicate.value, fact.object
                if not isinstance(tail, NamedNode | BlankNode):
                    if relation == _LABEL and isinstance(tail, Literal):
                        self._label(name(fact.subject), tail, favoured)
                        continue
                    if not self.literals:
                        self.literals_dropped += 1
                        continue
                    kept, value = name(tail), tail.value if isinstance(tail, Literal) else ""
                    self.literal_labels[kept] = value if value.strip() else kept
                yield name(fact.subject), relation, name(tail)
        except SyntaxError as error:
            raise SourceError(self.path, error.lineno, shown(error.msg)) from error
        self.prefixes = dict(parser.prefixes)

    def _label(self, name: str, literal: Literal, favoured: set[str]) -> None:
        """Keep the first label that is English or in no language; before one comes, the first of all."""
        label = literal.value
        plain = literal.language is None or literal.language.partition("-")[0].lower() == "en"
        if label.strip() and (name not in self.labels or (plain and name not in favoured)):
            self.labels[name] = label
            if plain:
                favoured.add(name)


class _LineByLine(io.BufferedReader):
    """Hands out one line at a time, however much is asked for, and counts."""

    number = 0
    _line_ended = True

    def read(self, size: int | None = -1) -> bytes:
        piece = self.readline(-1 if size is None else size)
        self.number += int(self._line_ended and bool(piece))
        self._line_ended = piece.endswith(b"\n")
        return piece
