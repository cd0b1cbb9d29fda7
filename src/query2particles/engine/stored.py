"""Rows in memory-mapped files, larger than memory if need be, that a killed process leaves fit to go on from.

Rows are written where they lie, so between two checkpoints the files are neither the one nor the other. Before a row is
touched for the first time since the last checkpoint, what it was is appended to a *journal*. Whoever takes up the run
puts these rows back (`recover`), and has the files as they were; a checkpoint (`settle`) flushes the files, and the
journal starts anew. Each journal has the number of the checkpoint that it leads back to, and a checkpoint knows its own
number: whatever moment a process dies at, the journal that belongs to the last checkpoint is there, or none is needed.

What one process wrote, the next one sees, however the first one ended. When the machine itself fails, it may not be so:
after a power cut, start from `best.safetensors` or anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from query2particles.engine.rows import Table

__all__ = ["StoredTable"]

_SQUARES, _TOUCHED = "squares", "touched"
_JOURNAL = "journal-{}.rows"


class StoredTable(Table):
    """The tables of `shapes`, by name the shape of a row, and their moments, in a folder: files NAME.rows.

    With `fresh`, all are zeros; otherwise `recover` comes first.
    """

    def __init__(
        self, folder: Path, shapes: Mapping[str, Sequence[int]], entities: int, *, decay: float, fresh: bool
    ) -> None:
        self._folder = folder
        if fresh:
            for path in folder.glob("*.rows"):
                path.unlink()

        def mapped(name: str, *shape: int) -> Tensor:
            size = int(np.prod((entities + 1, *shape), dtype=np.int64))
            path = folder / f"{name}.rows"
            if not path.exists() or path.stat().st_size != 4 * size:
                with path.open("wb") as file:
                    file.truncate(4 * size)
            return torch.from_file(str(path), shared=True, size=size).view(entities + 1, *shape)

        tables = {name: mapped(name, *shape) for name, shape in shapes.items()}
        super().__init__(
            tables,
            decay=decay,
            generator=torch.Generator(),
            moments=(mapped(_SQUARES, len(tables)), mapped(_TOUCHED)),
        )
        self._noted = torch.zeros(entities + 1, dtype=torch.bool)  # whose former rows are in the journal
        if fresh:
            self.settle(0)

    @property
    def elsewhere(self) -> frozenset[str]:
        return frozenset(self.tables)

    def state(self) -> dict[str, Tensor]:
        return {}

    def write(self, ids: Tensor, gradients: Sequence[Tensor], rate: Tensor | float) -> None:
        own = ids.cpu()
        own = own[own < self.entities]  # those to the end stand for none
        self._note(own)
        super().write(own, [one[: len(own)] for one in gradients], float(rate))

    def flush(self) -> None:
        """Bring all rows to the disk."""
        for name in (*self.tables, _SQUARES, _TOUCHED):
            with (self._folder / f"{name}.rows").open("rb") as file:
                os.fsync(file.fileno())  # which takes what was written through mappings along

    def settle(self, checkpoint: int) -> None:
        """There is a checkpoint of this number, of the rows as they are: from here on they are its journal's matter."""
        before, self.checkpoint = self._journal, checkpoint
        self._journal.write_bytes(b"")
        self._noted.zero_()
        if before != self._journal:
            before.unlink(missing_ok=True)

    @property
    def _journal(self) -> Path:
        return self._folder / _JOURNAL.format(self.checkpoint)

    def recover(self, checkpoint: int) -> None:
        """Bring the rows to where this checkpoint left them."""
        self.checkpoint = checkpoint
        if self._journal.exists():
            for ids, former in self._entries():
                for tensor, rows in zip(self._all(), former, strict=True):
                    tensor[ids] = rows
            self.flush()
        for other in self._folder.glob(_JOURNAL.format("*")):
            if other != self._journal:
                other.unlink()
        self.settle(checkpoint)

    def _note(self, ids: Tensor) -> None:
        """Write down what rows were that the journal does not have yet."""
        new = ids[~self._noted[ids]]
        self._noted[new] = True
        entry = [torch.tensor([len(new)]), new, *(tensor[new] for tensor in self._all())]
        with self._journal.open("ab") as file:
            file.write(b"".join(one.numpy().tobytes() for one in entry))

    def _entries(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """What was written down, without an entry that was cut off: its rows were not touched yet."""
        widths = [int(np.prod(tensor.shape[1:], dtype=np.int64)) for tensor in self._all()]
        with self._journal.open("rb") as file:
            while len(start := file.read(8)) == 8:
                count = int(np.frombuffer(start, np.int64)[0])
                ids = file.read(8 * count)
                former = [file.read(4 * count * width) for width in widths]
                if len(former[-1]) < 4 * count * widths[-1]:
                    return
                yield (
                    torch.from_numpy(np.frombuffer(ids, np.int64).copy()),
                    [
                        torch.from_numpy(np.frombuffer(data, np.float32).copy()).view(count, *tensor.shape[1:])
                        for data, tensor in zip(former, self._all(), strict=True)
                    ],
                )

    def _all(self) -> list[Tensor]:
        return [*self.tables.values(), self.squares, self.touched]
