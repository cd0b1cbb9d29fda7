"""What a client may ask for, and for how long: every limit of the server with its default."""

from __future__ import annotations

from dataclasses import dataclass, fields

from query2particles.errors import UsageError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, characters or pieces; times in seconds. All are above zero, but for `wait`."""

    body: int = 262_144
    """Bytes of a request's body."""
    header: int = 16_384
    """Bytes of a request's line and headers together."""
    question: int = 2_000
    """Characters of a question."""
    depth: int = 16
    """Operators on the longest way through a question."""
    size: int = 64
    """Operators and names of a question."""
    k: int = 1_000
    """Answers that a request may ask for."""
    batch: int = 64
    """Questions of one batch."""
    facts: int = 2_000
    """Facts of one request that are judged."""
    names: int = 1_000
    """Names that a completion may ask for."""
    queue: int = 256
    """Questions that wait; the next one is told to come back later."""
    together: int = 32
    """Questions that are answered in one go."""
    wait: float = 0.004
    """How long a question waits for others to join it, at most."""
    seconds: float = 15.0
    """From a request's last byte to its answer."""
    reading: float = 10.0
    """For a request's headers, again for its body, and for a client to take its answer."""
    idle: float = 60.0
    """How long a connection stays open between two requests."""
    connections: int = 512
    """Open at the same time."""
    draining: float = 30.0
    """For the answers that are still due when the server is told to end."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 or (field.name == "wait" and value == 0)):
                raise UsageError(f"the limit {field.name} must be above zero, not {value}")
        if self.batch > self.queue:
            raise UsageError(
                f"a batch of {self.batch} questions would never fit a queue of {self.queue}: make the queue longer, "
                "or batches smaller"
            )
