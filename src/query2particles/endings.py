"""How training ends before its time: by a signal, for want of memory, by a loss that is no number."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from query2particles.checkpoint import State
from query2particles.errors import TrainingError
from query2particles.run import Run

__all__ = ["Stopping", "diverged", "hearing_signals", "out_of_memory", "stop_signals"]


@dataclass
class Stopping:
    """The signal that came, if one did."""

    signal: int | None = None


@contextlib.contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Ctrl-C and SIGTERM are noted, so that training ends between two updates; a second one ends it at once."""
    stopping = Stopping()

    def note(number: int) -> None:
        stopping.signal = number

    with hearing_signals(note):
        yield stopping


@contextlib.contextmanager
def hearing_signals(hear: Callable[[int], object]) -> Iterator[None]:
    """Ctrl-C and SIGTERM are heard inside, each once: a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What runs in the background is deaf to Ctrl-C, and stays so; handlers that are not Python's cannot be put back.
    previous = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, previous[number])
        hear(number)

    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def out_of_memory(what: str, **halves: int) -> Iterator[None]:
    """Where memory runs out inside, say in what, and which settings to halve, the first first."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not any(map(_is_of_memory, _chain(error))):
            raise
        lower = ", then ".join(f"{key} (--set {key}={max(value // 2, 1)})" for key, value in halves.items())
        raise TrainingError(
            f"out of memory in {what}: lower {lower}, then the size of the model (--set dimension=… or particles=…)"
        ) from error


def diverged(run: Run, state: State) -> TrainingError:
    """The error of a loss or a weight that is no number, with what is left."""
    rate, clip = run.config.training.rate / 3, run.config.training.clip / 3
    if state.best_update:
        kept = f"{run.folder} keeps the weights of update {state.best_update:,}"
    elif saved := run.saved():
        kept = f"{run.folder} keeps update {saved[1].update:,}, where it was interrupted, and no validated weights"
    else:
        kept = "nothing was saved before"
    return TrainingError(
        f"the loss or a weight is no number after {state.update:,} updates; {kept}. "
        f"Train a new run at a lower rate (--set rate={rate:.1g}) or with smaller steps (--set clip={clip:.1g})"
    )


_MEMORY_WORDS = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")
"""What torch says where memory is out, on CUDA and on the CPU; errors of memory access say other things."""


def _is_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those behind it: what ends the capture of a CUDA graph hides what went wrong inside."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one)
            waiting += [one.__cause__, one.__context__]
            yield one
