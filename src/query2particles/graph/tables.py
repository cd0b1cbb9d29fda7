"""Facts from TSV and CSV: read by pyarrow, and by hand once more to find a line that is wrong.

TSV has no quoting: a cell is whatever stands between two tabs. CSV follows RFC 4180: a cell that starts with `"` runs
to the next single `"`, over line ends too. Lines end with LF, CRLF or CR; blank lines count but hold nothing.

The first line is a header just where it says so: one of its cells names a head (`head`, `subject`, `source`, `from`),
one a relation (`relation`, `relationship`, `predicate`, `property`, `edge`, `type`) and one a tail (`tail`, `object`,
`target`, `to`), in any case and with or without `id`, `name`, `entity`, `node`, `iri` or `uri` behind (`head_id`,
`Tail Name`). Then the columns are taken by those names, in whatever order they stand, and there may be others beside;
only where two cells name the same, the line counts as a header but the columns must be just three, in our order. The
letters `h r t` and `s p o` are a header only as a whole line: three cells, in this order.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from query2particles.errors import SourceError, UsageError
from query2particles.graph.readers import Meter, open_bytes, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FACT", "LABEL", "LONGEST_NAME", "Column", "TableReader", "columns_by_role", "complaint", "positions_of"]

Column: TypeAlias = int | str
"""A column by its position, from 1, or by its name in the header."""

FACT = ("head", "relation", "tail")
LABEL = ("name", "label")

LONGEST_NAME = 100_000
"""In characters. A longer one is a missing quote or an attack, not a name."""

_LONGEST_LINE = 1 << 22
_BLOCK = 1 << 23
_SUFFIX = r"(?:[ _-]?(?:id|name|entity|node|iri|uri))?"
_HEADER = [
    re.compile(rf"(?:{words}){_SUFFIX}", re.IGNORECASE)
    for words in (
        "head|subject|source|from",
        "relation|relationship|predicate|property|edge|type",
        "tail|object|target|to",
    )
]
_LETTERS = (["h", "r", "t"], ["s", "p", "o"])
_BAD_BYTE = re.compile("[\udc80-\udcff]")
_END = "\0"
"""Stands for the end of a file: the one character that no delimiter may be, once in every column."""


def complaint(name: str) -> str | None:
    """What is wrong with a name, None where nothing is. Names are opaque, but must be seen and fit on a page."""
    if not name or name.isspace():
        return "is empty"
    if len(name) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME:,} characters"
    return None


def header_roles(cells: Sequence[str]) -> list[list[int]] | None:
    """For head, relation and tail the positions that name them, or None where this is no header."""
    words = [cell.strip().casefold() for cell in cells]
    if words in _LETTERS:
        return [[0], [1], [2]]
    roles = [[position for position, word in enumerate(words) if role.fullmatch(word)] for role in _HEADER]
    return roles if all(roles) else None


def columns_by_role(cells: Sequence[str]) -> tuple[int, ...] | None:
    """The positions of head, relation and tail, where each is named just once."""
    roles = header_roles(cells) or []
    return tuple(role[0] for role in roles) if roles and all(len(role) == 1 for role in roles) else None


def positions_of(
    path: Path, line: int | None, columns: Sequence[Column], names: Sequence[str] | None, width: int
) -> tuple[int, ...]:
    """Where the chosen columns stand; `names` is the header, where there is one."""
    found = []
    for column in columns:
        if isinstance(column, int):
            if not 1 <= column <= width:
                raise SourceError(path, line, f"no column {column}: there are {width}")
            found.append(column - 1)
        elif names is None or column not in names:
            raise SourceError(
                path, line, f"no column {shown(column)}; the columns are: {shown(', '.join(names or []))}"
            )
        else:
            found.append(list(names).index(column))
    if len(set(found)) < len(found):
        raise UsageError(f"{path}: the same column is chosen twice")
    return tuple(found)


@dataclass(frozen=True)
class _Plan:
    """What the first line of a table tells."""

    line: int
    width: int
    positions: tuple[int, ...]
    header: bool


@dataclass(frozen=True)
class TableReader:
    """A TSV (`quoted` false) or CSV file; `roles` are what its columns hold."""

    path: Path
    meter: Meter
    delimiter: str
    quoted: bool
    header: bool | None = None
    columns: Sequence[Column] | None = None
    roles: tuple[str, ...] = FACT

    @cached_property
    def _plan(self) -> _Plan | None:
        with closing(self._records()) as records:
            line, cells = next(records, (0, []))
        if not cells:
            return None
        header = self.header
        if header is None:
            by_name = any(isinstance(column, str) for column in self.columns or ())
            header = by_name or header_roles(cells) is not None
        width = len(cells)
        if self.columns is not None:
            positions = positions_of(self.path, line, self.columns, cells if header else None, width)
        elif header and (by_role := columns_by_role(cells)) is not None:
            positions = by_role
        else:
            width, positions = len(self.roles), tuple(range(len(self.roles)))
        return _Plan(line, width, positions, header)

    def batches(self) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        if (plan := self._plan) is None:
            return
        names, chosen = [str(at) for at in range(plan.width)], [str(at) for at in plan.positions]
        text = pa.dictionary(pa.int32(), pa.string())
        # pyarrow takes a quote that never closes for one long cell. A last line of our own, which such a cell
        # would swallow, gives it away.
        end = f"\n{self.delimiter.join([_END] * plan.width)}\n".encode() if self.quoted else b""
        try:
            with (
                open_bytes(self.path, self.meter, end) as stream,
                arrow.open_csv(
                    stream,
                    arrow.ReadOptions(column_names=names, block_size=_BLOCK),
                    arrow.ParseOptions(
                        delimiter=self.delimiter,
                        quote_char='"' if self.quoted else False,
                        newlines_in_values=self.quoted,
                    ),
                    arrow.ConvertOptions(
                        column_types=dict.fromkeys(chosen, text), include_columns=chosen, strings_can_be_null=False
                    ),
                ) as reader,
            ):
                yield from self._facts_only(reader, plan)
        except pa.ArrowInvalid as error:
            self._explain(str(error))

    def _facts_only(self, reader: Iterator[pa.RecordBatch], plan: _Plan) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        """The batches without the header and without the end mark."""
        held: pa.RecordBatch | None = None
        skip = int(plan.header)
        for batch in reader:
            if held is not None:
                yield tuple(held.columns)
            if batch.num_rows:
                held, skip = batch.slice(skip), 0
            self.meter.tell()
        if held is None:
            return
        if self.quoted:
            if any(column[-1].as_py() != _END for column in held.columns):
                self._explain("a quote is opened and never closed")
            held = held.slice(0, held.num_rows - 1)
        yield tuple(held.columns)

    def line_of(self, row: int) -> int:
        plan = self._plan
        with closing(self._records()) as records:
            for number, (line, _) in enumerate(records, start=-int(plan is not None and plan.header)):
                if number == row:
                    return line
        raise SourceError(self.path, None, "changed while it was read")

    def rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Each fact with its line, by hand: slower than `batches`. The first line that is wrong is an error."""
        if (plan := self._plan) is None:
            return
        with closing(self._records(self.meter)) as records:
            for line, cells in records:
                if len(cells) != plan.width:
                    raise SourceError(self.path, line, self._wrong_width(len(cells), plan))
                if plan.header and line == plan.line:
                    continue
                for role, position in zip(self.roles, plan.positions, strict=True):
                    if _BAD_BYTE.search(cells[position]):
                        raise SourceError(self.path, line, f"the {role} is not valid UTF-8")
                    if (wrong := complaint(cells[position])) is not None:
                        raise SourceError(self.path, line, f"the {role} {wrong}")
                yield line, tuple(cells[position] for position in plan.positions)

    def _explain(self, reason: str) -> NoReturn:
        """Read slowly to the first line that is wrong and say what is."""
        for _ in self.rows():
            pass
        raise SourceError(self.path, None, f"cannot be read: {shown(reason)}")

    def _wrong_width(self, width: int, plan: _Plan) -> str:
        separator = {"\t": "tab", ",": "comma", " ": "space"}.get(self.delimiter, repr(self.delimiter))
        option = "; --delimiter changes it" if self.roles == FACT else ""
        found = f"{width} column{'s' * (width != 1)} (separator: {separator}{option})"
        if self.columns is not None or plan.width != len(self.roles):
            return f"{found} where line {plan.line} has {plan.width}"
        roles = ", ".join(self.roles)
        hint = f"; choose three of them with --columns, or name them {roles} in a header"
        return f"{found} where {plan.width} are expected: {roles}{hint * (width > plan.width and self.roles == FACT)}"

    def _records(self, meter: Meter | None = None) -> Generator[tuple[int, list[str]]]:
        """Each line that is not blank, with its number and its cells; a bad byte b is there as U+DC00 + b."""
        with (
            open_bytes(self.path, meter) as stream,
            io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text,
        ):
            if self.quoted:
                yield from self._quoted_records(text)
            else:
                for line, content in enumerate(self._lines(text), start=1):
                    if cells := content.rstrip("\r\n"):
                        yield line, cells.split(self.delimiter)

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        number = 0
        while line := text.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise SourceError(self.path, number, f"longer than {_LONGEST_LINE:,} characters")
            yield line

    def _quoted_records(self, text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
        lines = _Marked(self._lines(text))
        reader = csv.reader(lines, delimiter=self.delimiter)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except csv.Error as error:
                raise SourceError(self.path, line, f"{error}; is a quote never closed?") from error
            if lines.ended:
                if cells != [_END]:
                    raise SourceError(self.path, line, "a quote is opened here and never closed")
                return
            if cells:
                yield line, cells


class _Marked:
    """Lines, and after the last one the end mark."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self.ended = lines, False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.ended:
            raise StopIteration
        line = next(self._lines, None)
        self.ended = line is None
        return f"{_END}\n" if line is None else line  # an open quote would swallow the line end too
