"""Metrics: one registry for a process, asked at `/metrics`.

Services count with plain numbers and say at a scrape what they are (`Measured`), so that
counting costs the path of a record nothing. Labels have few values: never the name of a
stream, a tenant or a consumer. Names and meanings stand in docs/metrics.md; a test
compares the page with what running services say.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol, runtime_checkable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import StoreError
from bottomless_server.core.histogram import HistogramCounts
from bottomless_server.runtime.base.endless import loop_failures
from bottomless_server.runtime.http.app import method_not_allowed, parse_query, request_id_of
from bottomless_server.runtime.http.problems import send_problem
from bottomless_server.runtime.http.route_templates import RouteTemplates
from bottomless_server.runtime.listener.connections import Connections
from bottomless_server.runtime.observe.exposition import PATHS, exposed
from bottomless_server.runtime.observe.gc_pauses import gc_pause_metrics

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the buckets of durations."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@runtime_checkable
class Measured(Protocol):
    """What a service may have beside the rest: its numbers."""

    def metrics(self) -> Iterable[Metric]: ...


def counted(name: str, meaning: str, value: float) -> Metric:
    """A number that only grows; `_total` is added to its name."""
    return CounterMetricFamily(name, meaning, value)


def gauged(name: str, meaning: str, value: float) -> Metric:
    """A number as it is now."""
    return GaugeMetricFamily(name, meaning, value)


def counted_by(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    """Numbers that only grow, one for each value of a label."""
    family = CounterMetricFamily(name, meaning, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def gauged_by(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    """Numbers as they are now, one for each value of a label."""
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value, found in values.items():
        family.add_metric([value], found)
    return family


def distributed(name: str, meaning: str, values: HistogramCounts) -> Metric:
    """How values are distributed."""
    family = HistogramMetricFamily(name, meaning)
    _distribute(family, [], values)
    return family


def distributed_by(
    name: str, meaning: str, label: str, values: Mapping[str, HistogramCounts]
) -> Metric:
    """How values are distributed, for each value of a label."""
    family = HistogramMetricFamily(name, meaning, labels=[label])
    for value, found in values.items():
        _distribute(family, [value], found)
    return family


def _distribute(
    family: HistogramMetricFamily, labels: Sequence[str], values: HistogramCounts
) -> None:
    names = [*map(floatToGoString, values.bounds), "+Inf"]
    up_to = accumulate(values.counts)
    family.add_metric(labels, list(zip(names, up_to, strict=True)), values.total)


class Metrics:
    """The registry of a process, and what is counted of its HTTP."""

    def __init__(self) -> None:
        # When a series began is of no use to Prometheus, and doubles the answer.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_Asking(gc_pause_metrics))
        self.registry.register(_Asking(_loop_metrics))
        self.templates = RouteTemplates(())
        """Set when the applications are there."""
        self._requests = Counter(
            "bottomless_http_requests",
            "Requests that were answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "bottomless_http_request_duration_seconds",
            "From the head of a request to the head of its answer.",
            ["method", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "bottomless_http_requests_in_flight",
            "Requests whose answer has not ended.",
            registry=self.registry,
        )
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._in_flight_count = 0
        self._in_flight.set_function(lambda: self._in_flight_count)

    def add(self, service: Measured) -> None:
        """Ask a service at every scrape."""
        self.registry.register(_Asking(service.metrics))

    def watch(self, listeners: Mapping[str, Connections]) -> None:
        """Show the connections of listeners."""
        self.registry.register(_Asking(lambda: _connection_metrics(listeners)))

    def route_of(self, path: str) -> str:
        """What a path is called in labels, as far as it is known by now."""
        return self.templates.find(path)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, its requests counted."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            began_at = time.perf_counter()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = self.templates.find(scope["path"])

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seconds = time.perf_counter() - began_at
                    self.note(method, route, message["status"], seconds)
                await send(message)

            self.begin()
            try:
                await app(scope, receive, send_counted)
            finally:
                self.end()

        return counting

    def served(self, app: ASGIApp) -> ASGIApp:
        """The application of an internal listener, with the paths of metrics before it."""

        async def with_metrics(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] not in PATHS:
                await app(scope, receive, send)
                return
            try:
                if scope["method"] not in ("GET", "HEAD"):
                    raise method_not_allowed(["GET", "HEAD"])
                parse_query(scope, {})
            except StoreError as error:
                await send_problem(send, error, request_id_of(scope))
                return
            await exposed(scope, self.registry)(scope, receive, send)

        return with_metrics

    def begin(self) -> None:
        """A request has come."""
        self._in_flight_count += 1

    def end(self) -> None:
        """The answer to a request has ended, or there is none."""
        self._in_flight_count -= 1

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer that begins, so many seconds after the head of its request."""
        # Looked up by hand: the library's own look-up costs as much as all the rest.
        counter = self._counters.get((method, route, status))
        if counter is None:
            counter = self._requests.labels(method, route, str(status))
            self._counters[method, route, status] = counter
        counter.inc()
        histogram = self._histograms.get((method, route))
        if histogram is None:
            histogram = self._histograms[method, route] = self._durations.labels(method, route)
        histogram.observe(seconds)


class _Asking(Collector):
    def __init__(self, ask: Callable[[], Iterable[Metric]]) -> None:
        self._ask = ask

    def collect(self) -> Iterable[Metric]:
        return self._ask()

    def describe(self) -> Sequence[Metric]:
        # Else it would be asked when it is registered, before its service started.
        return ()


def _loop_metrics() -> Iterable[Metric]:
    failed = CounterMetricFamily(
        "bottomless_loop_failures",
        "Rounds of a lasting loop that failed as nobody expected.",
        labels=["loop"],
    )
    for loop, count in loop_failures().items():
        failed.add_metric([loop], count)
    return (failed,)


def _connection_metrics(listeners: Mapping[str, Connections]) -> Iterable[Metric]:
    opened = GaugeMetricFamily(
        "bottomless_http_connections", "Connections that are open.", labels=["listener"]
    )
    waiting = GaugeMetricFamily(
        "bottomless_http_send_bytes",
        "Bytes of answers that wait to be taken.",
        labels=["listener"],
    )
    bodies = GaugeMetricFamily(
        "bottomless_http_body_bytes",
        "Bytes of bodies of requests that have no answer yet.",
        labels=["listener"],
    )
    ended = CounterMetricFamily(
        "bottomless_http_connections_ended",
        "Connections that a bound ended, by which.",
        labels=["listener", "reason"],
    )
    for name, connections in listeners.items():
        opened.add_metric([name], len(connections))
        waiting.add_metric([name], connections.waiting_bytes)
        bodies.add_metric([name], connections.body_bytes)
        for reason, count in connections.ended.items():
            ended.add_metric([name, reason], count)
    return (opened, waiting, bodies, ended)
