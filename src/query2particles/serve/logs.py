"""Structured logs: one JSON object a line, on stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

__all__ = ["JsonLines", "configure_logs"]


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, event, and the fields that it was logged with (`extra={"fields": …}`).

    Control characters are escaped, so that nothing a client sends can forge a line.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the records of this package and of uvicorn to `stream` (stderr), from `level` on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("query2particles", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    # Requests are logged by the guard; what uvicorn says of its own start and end is said by the server.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger("uvicorn").level))
    logging.getLogger("uvicorn.access").disabled = True
