"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["METRICS", "METRICS_TYPE", "Metrics"]

METRICS_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

METRICS = {
    "q2p_requests_total": "Requests, by route and status.",
    "q2p_request_seconds": "Seconds from a request's arrival to its answer, by route.",
    "q2p_errors_total": "Errors, by code.",
    "q2p_batch_questions": "Questions that were answered in one go.",
    "q2p_waiting_questions": "Questions that wait now.",
    "q2p_requests_in_flight": "Requests that are being answered now.",
    "q2p_run_info": "The runs that are served and their versions; always 1.",
    "q2p_reloads_total": "New versions of a run that were picked up, or could not be, by outcome.",
}
"""Every metric and what it counts."""


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(*self._named("q2p_requests_total"), ["route", "status"], registry=self._registry)
        self._seconds = Histogram(
            *self._named("q2p_request_seconds"), ["route"], buckets=_SECONDS, registry=self._registry
        )
        self._errors = Counter(*self._named("q2p_errors_total"), ["code"], registry=self._registry)
        self._batches = Histogram(*self._named("q2p_batch_questions"), buckets=_SIZES, registry=self._registry)
        self._waiting = Gauge(*self._named("q2p_waiting_questions"), registry=self._registry)
        self.in_flight = Gauge(*self._named("q2p_requests_in_flight"), registry=self._registry)
        self._runs = Gauge(*self._named("q2p_run_info"), ["run", "version"], registry=self._registry)
        self._reloads = Counter(*self._named("q2p_reloads_total"), ["run", "outcome"], registry=self._registry)

    @staticmethod
    def _named(name: str) -> tuple[str, str]:
        return name.removesuffix("_total"), METRICS[name]

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def batch(self, questions: int) -> None:
        self._batches.observe(questions)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        self._waiting.set_function(waiting)

    def run(self, name: str, version: str, before: str | None = None) -> None:
        if before is not None:
            self._runs.remove(name, before)
        self._runs.labels(name, version).set(1)

    def reload(self, name: str, outcome: str) -> None:
        self._reloads.labels(name, outcome).inc()

    def page(self) -> bytes:
        return generate_latest(self._registry)
