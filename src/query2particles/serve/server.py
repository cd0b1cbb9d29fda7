"""Start, listen, drain."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

import uvicorn

from query2particles.errors import UsageError
from query2particles.graph.graph import Split
from query2particles.searched import Searching
from query2particles.serve.app import Service, create_app
from query2particles.serve.limits import Limits
from query2particles.serve.logs import configure_logs
from query2particles.serve.metrics import Metrics
from query2particles.serve.protocol import protocol_for
from query2particles.serve.runs import Runs
from query2particles.serve.security import Access, Keys, check_binding

__all__ = ["serve"]

_LOG = logging.getLogger(__name__)

_BACKLOG = 1024


class _Server(uvicorn.Server):
    """Ends with success when it is told to end, after the last answer."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # uvicorn's raises the signals again
        assert threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.ready = False
        super().handle_exit(sig, frame)


def serve(
    sources: Mapping[str, str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    keys: Keys | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    insecure: bool = False,
    limits: Limits | None = None,
    graph: str | None = None,
    device: str = "cpu",
    split: Split = "test",
    searching: Searching | None = None,
    log_level: str = "info",
    on_listening: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve runs, by name, until SIGTERM or Ctrl-C; then answer what was asked, and return."""
    keys, limits = keys or Keys(), limits or Limits()
    check_binding(host, keys, insecure=insecure)
    configure_logs(log_level)
    metrics = Metrics()
    runs = Runs(sources, limits=limits, metrics=metrics, graph=graph, device=device, split=split, searching=searching)
    service = Service(runs, metrics, limits, Access.of(keys, host, hosts, origins))
    config = uvicorn.Config(
        create_app(service),
        http=protocol_for(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=limits.idle,  # type: ignore[arg-type]  # any number of seconds will do
        timeout_graceful_shutdown=limits.draining,  # type: ignore[arg-type]
    )
    with _listening(host, port) as listener:
        address = listener.getsockname()
        url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
        fields = {
            "url": url,
            "runs": {name: run.current.version for name, run in runs.served.items()},
            "keys": bool(keys),
        }
        _LOG.info("listening", extra={"fields": fields})
        on_listening(url)
        _Server(config, service).run(sockets=[listener])
    _LOG.info("ended")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}; name another --host or --port"
        ) from None
