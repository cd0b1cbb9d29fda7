"""How training ends early: what is an error of memory, and what to do about it."""

from __future__ import annotations

import pytest
import torch

from query2particles.endings import out_of_memory
from query2particles.errors import TrainingError


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        MemoryError("Unable to allocate 1 GiB"),
    ],
)
def test_out_of_memory_says_what_to_lower(error: Exception) -> None:
    with pytest.raises(TrainingError, match=r"in training: lower batch \(--set batch=512\).*dimension"):  # noqa: SIM117
        with out_of_memory("training", batch=1024):
            raise error


@pytest.mark.parametrize("error", [RuntimeError("an illegal memory access was encountered"), ValueError("memory")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match="memory"), out_of_memory("training", batch=4):
        raise error


def test_an_error_of_memory_behind_another() -> None:
    """As where the capture of a CUDA graph ends: its own error hides the one that ended it."""
    hidden = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(TrainingError, match="out of memory in training"), out_of_memory("training", batch=4):  # noqa: PT012
        try:
            try:
                raise hidden
            finally:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        except RuntimeError as error:
            raise RuntimeError("the update failed") from error


def test_errors_that_go_in_circles() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    with pytest.raises(RuntimeError, match="one"), out_of_memory("training", batch=4):
        raise one


def test_validation_has_advice_of_its_own() -> None:
    with (
        pytest.raises(
            TrainingError, match=r"in validation: lower validation_queries \(--set validation_queries=1\), then b"
        ),
        out_of_memory("training", batch=1),
        out_of_memory("validation", validation_queries=3, batch=1),
    ):
        raise MemoryError
