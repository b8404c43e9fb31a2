"""The numbers of the HTTP port."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.durations import SECOND
from penstock.http.monitoring.samples import Collector, Histogram, Metric, Sample
from penstock.http.traffic import BOUNDS, Traffic

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


def traffic_collector(traffic: Traffic) -> Collector:
    """What went through the port so far."""

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
