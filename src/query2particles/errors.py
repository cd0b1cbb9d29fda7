"""Every error that this package raises on purpose.

    Query2ParticlesError
    ├── UsageError             the call itself is wrong: a path that is not there, an option out of range
    ├── GraphError             a graph folder cannot be used
    │   └── SourceError        an input file is wrong: file, line, reason
    ├── QueryError             a question cannot be understood; points at the spot in the text
    │   ├── QuerySyntaxError   the text follows no grammar
    │   ├── UnknownNameError   no entity or relation of that name; knows the nearest ones
    │   ├── AmbiguousNameError several entities or relations carry that label
    │   └── UnsupportedError   understood, but outside the questions that a tree of operators can ask
    ├── WorkloadError          a set of queries cannot be read, written or drawn
    │   ├── UnsafePickleError  a pickle names something other than plain data
    │   └── SamplingError      a shape cannot be grounded often enough on this graph
    └── RunError               a run folder cannot be used: unreadable, of another graph or version
        ├── TrainingError      training cannot go on, or was in vain: the loss or a score is no number, memory is out
        └── ShardsLostError    processes that share a table are gone, and with them a part of the entities

The command line turns UsageError and QueryError into exit code 2 (the call was wrong), the others into 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "AmbiguousNameError",
    "GraphError",
    "Query2ParticlesError",
    "QueryError",
    "QuerySyntaxError",
    "RunError",
    "SamplingError",
    "ShardsLostError",
    "SourceError",
    "TrainingError",
    "UnknownNameError",
    "UnsafePickleError",
    "UnsupportedError",
    "UsageError",
    "WorkloadError",
]


class Query2ParticlesError(Exception):
    """The root of the tree; its text says what is wrong and, where there is one, the next step."""


class UsageError(Query2ParticlesError):
    """The call itself is wrong."""


class GraphError(Query2ParticlesError):
    """A graph folder cannot be used."""


class SourceError(GraphError):
    """An input file is wrong. `line` counts from 1; None where the whole file is meant."""

    def __init__(self, path: Path | str, line: int | None, reason: str) -> None:
        self.path, self.line, self.reason = Path(path), line, reason
        super().__init__(f"{path}, line {line}: {reason}" if line is not None else f"{path}: {reason}")


class QueryError(Query2ParticlesError):
    """A question cannot be understood.

    `text` is the question as given and `position` the offset of the offending character; the message shows the
    line with a caret under the spot. Errors about a query that never was text have neither.
    """

    def __init__(self, reason: str, text: str | None = None, position: int | None = None, length: int = 1) -> None:
        self.reason, self.text, self.position, self.length = reason, text, position, max(length, 1)
        super().__init__(reason + self._pointer())

    def _pointer(self) -> str:
        """The offending line with a caret below, clipped to a width that fits a terminal."""
        if self.text is None or self.position is None:
            return ""
        position = min(max(self.position, 0), len(self.text))
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : end if end >= 0 else len(self.text)]
        column = position - start
        clip = max(0, column - 60)
        shown = printable(line[clip : clip + 110])
        carets = "^" * max(1, min(self.length, len(shown) - (column - clip)))
        return f"\n  {shown}\n  {' ' * (column - clip)}{carets}"


class QuerySyntaxError(QueryError):
    """The text follows no grammar."""


class UnknownNameError(QueryError):
    """No entity or relation of that name."""

    def __init__(
        self,
        kind: str,
        name: str,
        nearest: Sequence[str],
        text: str | None = None,
        position: int | None = None,
        length: int = 1,
        advice: str | None = None,
    ) -> None:
        self.kind, self.name, self.nearest = kind, name, tuple(nearest)
        if advice is None and self.nearest:
            advice = f"did you mean {', '.join(map(repr, self.nearest))}?"
        hint = f"; {advice}" if advice else ""
        super().__init__(f"no {kind} is called {clipped(name)!r}{hint}", text, position, length)


class AmbiguousNameError(QueryError):
    """Several entities or relations carry that label."""

    def __init__(
        self,
        kind: str,
        name: str,
        candidates: Sequence[str],
        text: str | None = None,
        position: int | None = None,
        length: int = 1,
    ) -> None:
        self.kind, self.name, self.candidates = kind, name, tuple(candidates)
        shown = ", ".join(map(repr, self.candidates[:10])) + (", …" if len(self.candidates) > 10 else "")
        super().__init__(f"{clipped(name)!r} may be any of these: {shown}; use one of them", text, position, length)


class UnsupportedError(QueryError):
    """Understood, but outside the questions that a tree of operators can ask."""


class WorkloadError(Query2ParticlesError):
    """A set of queries cannot be read, written or drawn."""


class UnsafePickleError(WorkloadError):
    """A pickle names something other than plain data; it was not loaded."""


class SamplingError(WorkloadError):
    """A shape cannot be grounded often enough on this graph."""


class RunError(Query2ParticlesError):
    """A run folder cannot be used."""


class TrainingError(RunError):
    """Training cannot go on; what was saved before stays."""


class ShardsLostError(RunError):
    """Processes that share a table are gone, so that some entities cannot be asked."""


def printable(text: str, keep: str = "") -> str:
    """`text` with a dot for whatever could steer a terminal, apart from the characters to `keep`."""
    return "".join(character if character.isprintable() or character in keep else "·" for character in text)


def clipped(name: str, limit: int = 80) -> str:
    """`name`, short enough for a message: input text may be hostile and long."""
    return name if len(name) <= limit else name[: limit - 1] + "…"
