"""`q2p serve`: runs as a service, and the page that asks them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from query2particles.cli.indexing import ClusterSize, DegradedName, SearchBy, SearchName, WhenDegraded, searching
from query2particles.cli.root import SplitName, app, split_of
from query2particles.cli.training import Device, DeviceName, device_named
from query2particles.errors import UsageError
from query2particles.serve.limits import Limits

__all__ = ["serve"]

_DEFAULT = Limits()
_LIMITS = "Limits"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def _most(name: str, words: str) -> Any:
    return typer.Option(f"--{name}", min=1, help=words, rich_help_panel=_LIMITS)


def _seconds(name: str, words: str, least: float = 0.001) -> Any:
    return typer.Option(f"--{name}", min=least, help=words, rich_help_panel=_LIMITS)


@app.command()
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders; or graphs, which answer from stored facts alone."),
    ],
    name: Annotated[
        list[str] | None, typer.Option(help="What a run is called, one for each; by default as its folder.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients need, one a line; Q2P_API_KEYS holds more.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without a key.")] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Another name that the server answers to; `*` for any.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may ask, such as https://example.org.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="Where the graph of the runs has moved.")] = None,
    split: Annotated[
        SplitName, typer.Option(help="The facts that count as stored: those of train, train + valid, or all.")
    ] = SplitName.test,
    device: Device = DeviceName.cpu,
    search: SearchBy = SearchName.auto,
    cluster: ClusterSize = 0,
    degraded: WhenDegraded = DegradedName.refuse,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model; by default all cores.")] = None,
    batching: Annotated[
        bool, typer.Option("--batching/--no-batching", help="Answer together what arrives together.")
    ] = True,
    log_level: Annotated[LogLevel, typer.Option(help="From `info` on, every request is logged.")] = LogLevel.info,
    max_body: Annotated[int, _most("max-body", "Bytes of a request's body.")] = _DEFAULT.body,
    max_header: Annotated[int, _most("max-header", "Bytes of its headers.")] = _DEFAULT.header,
    max_question: Annotated[int, _most("max-question", "Characters of a question.")] = _DEFAULT.question,
    max_depth: Annotated[int, _most("max-depth", "Operators on its longest way.")] = _DEFAULT.depth,
    max_size: Annotated[int, _most("max-size", "Operators and names of a question.")] = _DEFAULT.size,
    max_k: Annotated[int, _most("max-k", "Answers of a question.")] = _DEFAULT.k,
    max_batch: Annotated[int, _most("max-batch", "Questions of one batch.")] = _DEFAULT.batch,
    max_facts: Annotated[int, _most("max-facts", "Facts of one request.")] = _DEFAULT.facts,
    max_names: Annotated[int, _most("max-names", "Names of a completion.")] = _DEFAULT.names,
    max_queue: Annotated[int, _most("max-queue", "Questions that wait.")] = _DEFAULT.queue,
    max_together: Annotated[int, _most("max-together", "Questions answered in one go.")] = _DEFAULT.together,
    max_wait: Annotated[
        float, _seconds("max-wait", "Seconds that a question waits for others.", least=0)
    ] = _DEFAULT.wait,
    max_seconds: Annotated[float, _seconds("max-seconds", "From a request to its answer.")] = _DEFAULT.seconds,
    max_reading: Annotated[float, _seconds("max-reading", "For a client to send, or take.")] = _DEFAULT.reading,
    max_idle: Annotated[float, _seconds("max-idle", "Between two requests of a connection.")] = _DEFAULT.idle,
    max_connections: Annotated[int, _most("max-connections", "Connections at the same time.")] = _DEFAULT.connections,
    max_draining: Annotated[
        float, _seconds("max-draining", "For answers that are due at the end.")
    ] = _DEFAULT.draining,
) -> None:
    """Serve runs over HTTP, with a page to ask them, until Ctrl-C or SIGTERM."""
    import os

    limits = Limits(
        body=max_body,
        header=max_header,
        question=max_question,
        depth=max_depth,
        size=max_size,
        k=max_k,
        batch=max_batch,
        facts=max_facts,
        names=max_names,
        queue=max_queue,
        together=max_together if batching else 1,
        wait=max_wait if batching else 0,
        seconds=max_seconds,
        reading=max_reading,
        idle=max_idle,
        connections=max_connections,
        draining=max_draining,
    )
    try:
        import torch

        from query2particles.serve.runs import named_sources
        from query2particles.serve.security import KEYS_VARIABLE, Keys
        from query2particles.serve.server import serve as listen
    except ModuleNotFoundError as error:
        raise UsageError(f"q2p serve needs {error.name}: pip install 'query2particles[serve]'") from None
    if threads is not None:
        torch.set_num_threads(threads)
    listen(
        named_sources(runs, name or ()),
        host=host,
        port=port,
        keys=Keys.read(key_file, os.environ.get(KEYS_VARIABLE)),
        hosts=allowed_host or (),
        origins=cors_origin or (),
        insecure=insecure,
        limits=limits,
        graph=graph,
        device=device_named(device),
        split=split_of(split),
        searching=searching(search, cluster, degraded),
        log_level=log_level.value,
        on_listening=lambda url: typer.echo(f"Serving on {url} (end with Ctrl-C)"),
    )
