"""Several processes that train together, started by torchrun: who one is among them, and how they speak.

torchrun says by environment variables how many there are (WORLD_SIZE) and which one this is (RANK, LOCAL_RANK). They
speak by gloo on CPUs, by NCCL on GPUs, each with a GPU of its own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from query2particles.errors import UsageError

__all__ = ["Group", "processes", "processes_in_all"]


@dataclass(frozen=True)
class Group:
    """All processes, which make the same calls in the same order."""

    rank: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes files and speaks to people."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """That of all processes, in place."""
        distributed.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum over all processes, in place."""
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return tensor

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """That of every process; all have one shape."""
        every = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(every, tensor.contiguous())
        return every

    def exchanged(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """The first sent[0] rows go to process 0, the next to process 1, …; what came from each, in their order."""
        found = rows.new_empty((sum(received), *rows.shape[1:]))
        distributed.all_to_all_single(found, rows.contiguous(), list(received), list(sent))
        return found

    def told(self, value: Any) -> Any:
        """What the leading process says."""
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def wait(self) -> None:
        """Until all have come this far."""
        self.told(None)
        self.sum(torch.zeros(1))


def processes_in_all() -> int:
    """How many torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def processes(device: str) -> Iterator[tuple[Group | None, str]]:
    """The processes that torchrun has started this one with, and the device that is its own; None where it is alone."""
    size = processes_in_all()
    if size < 2:
        yield None, device
        return
    if device == "cuda":
        number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if number >= there:
            raise UsageError(f"process {number} of this machine has no GPU: start as many as there are ({there})")
        device = f"cuda:{number}"
        torch.cuda.set_device(device)
    # Some modules of torch name the group of all processes as a default when they are loaded. Loaded after it is there,
    # they would keep it, and its threads, beyond the end of Python, which then aborts now and then: so, before.
    importlib.import_module("torch.distributed.checkpoint")
    store, rank, _ = next(rendezvous("env://"))
    # torchrun keeps its store when it starts processes anew, with the addresses of those that died in it.
    own = PrefixStore(f"attempt {_restarts()}", store)
    # On CUDA gloo stays for what is not on a GPU: numbers that steps agree on.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, store=own, rank=rank, world_size=size)
    try:
        yield Group(rank, size), device
    finally:
        distributed.destroy_process_group()
