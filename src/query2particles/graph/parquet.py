"""Facts from Parquet files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from query2particles.errors import SourceError
from query2particles.graph.readers import Meter, is_compressed, open_bytes, shown
from query2particles.graph.tables import FACT, Column, columns_by_role, positions_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet

__all__ = ["ParquetReader"]

_ROWS = 1 << 17
_SWELLING = 100
"""Parquet compresses by itself, so an outer compression gains little; one that gains this much is a bomb."""
_TEXT = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


@dataclass(frozen=True)
class ParquetReader:
    """A Parquet file: columns of text or whole numbers, by name, by position, or the first three."""

    path: Path
    meter: Meter
    columns: Sequence[Column] | None = None

    def batches(self) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        import pyarrow as pa

        before, size, rows = self.meter.done, self.path.stat().st_size, 0
        try:
            with self._file() as file:
                chosen = self._chosen(file.schema_arrow)
                for batch in file.iter_batches(batch_size=_ROWS, columns=chosen):
                    yield tuple(
                        self._encoded(batch.column(name), role, rows) for name, role in zip(chosen, FACT, strict=True)
                    )
                    rows += batch.num_rows
                    self.meter.done = before + size * rows // file.metadata.num_rows
                    self.meter.tell()
        except (pa.ArrowException, OSError) as error:
            raise SourceError(self.path, None, f"cannot be read as Parquet: {shown(error)}") from error
        self.meter.done = before + size

    def line_of(self, row: int) -> int:
        return row + 1

    @contextmanager
    def _file(self) -> Iterator[pa.parquet.ParquetFile]:
        """The open file. Parquet is read from its end, so a compressed one is first unfolded beside, up to a bound."""
        from pyarrow import parquet

        if not is_compressed(self.path):
            with parquet.ParquetFile(self.path) as file:
                yield file
            return
        bound = max(self.path.stat().st_size, 1 << 20) * _SWELLING
        with tempfile.TemporaryFile() as unfolded:
            with open_bytes(self.path) as stream:
                try:
                    while (piece := stream.read(1 << 20)) and unfolded.tell() < bound:
                        unfolded.write(piece)
                except SourceError as error:
                    raise SourceError(self.path, None, error.reason) from error  # lines mean nothing here
            if piece:
                raise SourceError(self.path, None, f"swells to more than {bound:,} bytes; decompress it yourself")
            with parquet.ParquetFile(unfolded) as file:
                yield file

    def _chosen(self, schema: pa.Schema) -> list[str]:
        import pyarrow as pa

        names: list[str] = schema.names
        if self.columns is not None:
            positions = positions_of(self.path, None, self.columns, names, len(names))
        elif len(names) < len(FACT):
            raise SourceError(self.path, None, f"{len(names)} columns where 3 are expected: {', '.join(FACT)}")
        else:
            positions = columns_by_role(names) or (0, 1, 2)
        for position in positions:
            name, kind = names[position], schema.field(position).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_integer(kind) or str(kind) in _TEXT):
                raise SourceError(
                    self.path, None, f"column {shown(name)} holds {shown(kind)}, not text or whole numbers"
                )
            if names.count(name) > 1:
                raise SourceError(self.path, None, f"two columns are called {shown(name)}")
        return [names[position] for position in positions]

    def _encoded(self, column: pa.Array, role: str, before: int) -> pa.DictionaryArray:
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.null_count:
            row = before + column.is_null().index(True).as_py() + 1
            raise SourceError(self.path, row, f"the {role} is empty")
        try:
            encoded = column.cast(pa.large_string()).dictionary_encode()
            encoded.dictionary.validate(full=True)
        except pa.ArrowInvalid:
            for row, name in enumerate(column.cast(pa.large_binary()).to_pylist(), start=before + 1):
                try:
                    name.decode()
                except UnicodeDecodeError as error:
                    raise SourceError(self.path, row, f"the {role} is not valid UTF-8") from error
            raise
        return encoded
