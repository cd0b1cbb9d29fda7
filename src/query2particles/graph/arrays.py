"""The arrays of a graph folder, memory-mapped. What is not as `save` wrote it is an error, never another graph.

Arrays that never lie in memory as a whole are written by an `ArrayWriter`, part by part, and read with `read_part`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from query2particles.errors import GraphError

__all__ = ["ArrayWriter", "open_array", "read_part", "unreadable"]


def open_array(path: Path, *kinds: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """The one-dimensional array in a file, of one of these kinds. Nothing but the file's first bytes is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a header that needs repair was not written by us
            array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # the header is parsed as Python, which fails in every way that Python can
        raise unreadable(path.parent, f"{path.name}: {error}") from error
    if array.ndim != 1 or array.dtype not in kinds:
        raise unreadable(path.parent, f"{path.name}: {array.dtype} in the shape {array.shape}")
    return array


def unreadable(folder: Path | None, reason: object) -> GraphError:
    """The error about a damaged folder; None where the graph came from none."""
    return GraphError(f"{folder or 'the graph'} is not a readable graph folder ({reason}); import it again")


def read_part(path: Path, start: int, stop: int) -> npt.NDArray[Any]:
    """Elements `start` … `stop` − 1 of the array in a file, as a copy: nothing of the file stays mapped."""
    return np.array(np.lib.format.open_memmap(path, mode="r")[start:stop])


class ArrayWriter:
    """A one-dimensional array on its way into a file, part by part: the same bytes as `np.save` of the whole."""

    def __init__(self, path: Path, kind: type[np.integer[Any]] | type[np.bool_]) -> None:
        self.count = 0
        self._kind = np.dtype(kind)
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._kind).data)
        self.count += len(values)

    def _write_header(self) -> None:
        """For as many elements as there are. numpy leaves room, so that the header of a longer array is no longer."""
        described = {
            "descr": np.lib.format.dtype_to_descr(self._kind),
            "fortran_order": False,
            "shape": (self.count,),
        }
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, described)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._write_header()
