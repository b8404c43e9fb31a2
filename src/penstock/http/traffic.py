"""Counts of the port and their metrics: requests by route and status with their durations, and connections."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from penstock.durations import SECOND
from penstock.http.monitoring.samples import Collector, Histogram, Metric, Sample

BOUNDS = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    60_000_000,
)
"""Upper bounds of the duration histogram, in microseconds. A long poll normally takes up to a minute."""

_REQUESTS = Metric(
    "penstock_http_requests_total", "counter", "Requests answered; 499: the client did not wait.", ("method", "route", "status")
)
_DURATION = Metric(
    "penstock_http_request_duration_seconds",
    "histogram",
    "From a request's head to its answer; long polls and WebSockets wait on purpose.",
    ("method", "route"),
)
_RUNNING = Metric("penstock_http_requests_running", "gauge", "Requests without an answer yet, WebSockets among them.")
_OPEN = Metric("penstock_http_connections", "gauge", "Open connections.")
_ACCEPTED = Metric("penstock_http_connections_accepted_total", "counter", "Connections that were let in.")
_REFUSED = Metric("penstock_http_connections_refused_total", "counter", "Connections closed at once: there were too many.")
_CUT = Metric("penstock_http_connections_cut_total", "counter", "Connections cut because the client was too slow.", ("what",))

_SECONDS = tuple(bound / SECOND for bound in BOUNDS)


class RouteTraffic:
    """The counts of one route. Adding a request costs a lookup and three additions."""

    __slots__ = ("buckets", "by_status", "micros")

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.micros = 0

    def add(self, status: int, micros: int) -> None:
        """Count a request that has ended."""
        self.by_status[status] = self.by_status.get(status, 0) + 1
        self.buckets[bisect_left(BOUNDS, micros)] += 1
        self.micros += micros


class Traffic:
    """All counts of the port."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], RouteTraffic] = {}
        """By method and path template, never by the path that a client sent: these are unlimited."""
        self.running = 0
        """Requests without an answer yet, including WebSockets."""
        self.open = 0
        self.accepted = 0
        self.refused = 0
        """Connections beyond the limit."""
        self.cut: dict[str, int] = dict.fromkeys(("head", "body", "write"), 0)
        """Connections that were cut as too slow, by the part that was too slow."""

    def route(self, method: str, path: str) -> RouteTraffic:
        return self.routes.setdefault((method, path), RouteTraffic())


def traffic_collector(traffic: Traffic) -> Collector:

    def collect() -> Iterator[Sample]:
        yield Sample(_OPEN, (), traffic.open)
        yield Sample(_ACCEPTED, (), traffic.accepted)
        yield Sample(_REFUSED, (), traffic.refused)
        yield Sample(_RUNNING, (), traffic.running)
        for what, count in traffic.cut.items():
            yield Sample(_CUT, (what,), count)
        for (method, path), route in traffic.routes.items():
            by_status = dict(route.by_status)
            if by_status:
                for status, count in sorted(by_status.items()):
                    yield Sample(_REQUESTS, (method, path, str(status)), count)
                histogram = Histogram(_SECONDS, tuple(route.buckets), route.micros / SECOND)
                yield Sample(_DURATION, (method, path), histogram)

    return collect
