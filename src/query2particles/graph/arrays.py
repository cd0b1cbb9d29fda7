"""The arrays of a graph folder, memory-mapped. What is not as `save` wrote it is an error, never another graph."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from query2particles.errors import GraphError

__all__ = ["open_array", "unreadable"]


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
