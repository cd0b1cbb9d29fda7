"""What the import can read: formats by file ending, and the decompressed bytes of a file.

The readers themselves are in `tables` (TSV, CSV), `parquet` and `rdf` (N-Triples, Turtle). Each hands out its facts in
batches, quickly, and only where something is wrong reads again, slowly, to name the line.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from query2particles.errors import SourceError, clipped, printable

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

__all__ = [
    "FORMATS",
    "Format",
    "Meter",
    "Reader",
    "format_of",
    "is_compressed",
    "known_formats",
    "legible",
    "open_bytes",
    "shown",
    "stem_of",
]

Format: TypeAlias = Literal["tsv", "csv", "parquet", "nt", "ttl"]
FORMATS: tuple[Format, ...] = get_args(Format)

_ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".nt": "nt",
    ".ntriples": "nt",
    ".ttl": "ttl",
    ".turtle": "ttl",
}
_COMPRESSIONS: dict[str, tuple[str, Callable[[io.BufferedReader], gzip.GzipFile | lzma.LZMAFile]]] = {
    ".gz": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    ".xz": ("xz", lzma.LZMAFile),
}


def known_formats() -> str:
    """The endings that `format_of` knows, for messages."""
    return f"{' '.join(_ENDINGS)}, each also with {' or '.join(_COMPRESSIONS)}"


def format_of(path: Path) -> Format | None:
    """The format that the file's ending names, None where it names none."""
    return _ENDINGS.get(Path(_without_compression(path)).suffix.lower())


def stem_of(path: Path) -> str:
    """The file's name without the endings that say how it is written: `x/wordnet.v2.tsv.gz` → `wordnet.v2`."""
    name = Path(_without_compression(path))
    return name.stem if name.suffix.lower() in _ENDINGS else name.name


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() in _COMPRESSIONS


def _without_compression(path: Path) -> str:
    return path.stem if is_compressed(path) else path.name


def shown(text: object, limit: int = 300) -> str:
    """What a parser or a foreign file says, fit for a message: short, on one line, no control characters."""
    return clipped(printable(str(text)), limit)


def legible(name: str) -> str:
    """What the system calls a file, or a caller says, as text that can be written: bytes that are not UTF-8 in hex."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


class Reader(Protocol):
    """One source file."""

    @property
    def path(self) -> Path: ...

    def batches(self) -> Iterator[tuple[pa.DictionaryArray, ...]]:
        """The columns head, relation, tail of the facts, many rows at a time, each with its own dictionary."""
        ...

    def line_of(self, row: int) -> int:
        """The line on which fact number `row` stands (from 1; the row itself in Parquet). Reads the file again."""
        ...


@dataclass
class Meter:
    """How many bytes of how many have been read from the disk, as they lie there, over all sources."""

    total: int
    progress: Callable[[int, int], None] | None = None
    done: int = 0

    def tell(self) -> None:
        """Report. Called from the importing thread only: pyarrow reads ahead in threads of its own."""
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)


def open_bytes(path: Path, meter: Meter | None = None, end: bytes = b"") -> io.BufferedReader:
    """The bytes of a file, decompressed as they are asked for, with `end` after the last.

    Memory stays bounded whatever a compressed file swells to. Broken data raise a SourceError with the line.
    """
    try:
        return io.BufferedReader(_Bytes(path, meter, end), 1 << 20)
    except FileNotFoundError as error:
        raise SourceError(path, None, "no such file") from error
    except OSError as error:
        raise SourceError(path, None, f"cannot be opened: {error.strerror}") from error


class _Bytes(io.RawIOBase):
    def __init__(self, path: Path, meter: Meter | None, end: bytes) -> None:
        self._path, self._meter, self._end = path, meter, end
        self._lines = 0
        self._before = meter.done if meter is not None else 0
        self._file = path.open("rb")
        self._compression: str | None = None
        self._inner: io.BufferedReader | gzip.GzipFile | lzma.LZMAFile = self._file
        if is_compressed(path):
            self._compression, decompress = _COMPRESSIONS[path.suffix.lower()]
            self._inner = decompress(self._file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        try:
            # read1, not read: what was decompressed before the data broke off is still handed out, and counted.
            piece = self._inner.read1(len(view))
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise SourceError(
                self._path, self._lines + 1, f"the {self._compression} data are broken from about here on: {error}"
            ) from error
        except OSError as error:
            raise SourceError(self._path, None, f"cannot be read: {error.strerror}") from error
        if not piece:
            piece, self._end = self._end[: len(view)], self._end[len(view) :]
        if self._compression is not None:
            self._lines += piece.count(b"\n")
        if self._meter is not None:
            self._meter.done = self._before + self._file.tell()
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
            self._file.close()
        super().close()
