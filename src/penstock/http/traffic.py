"""Counts of what went through the port: requests by route and status with their durations, and connections."""

from __future__ import annotations

from bisect import bisect_left

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
"""Upper bounds of the duration histogram, in microseconds: a long poll may rightly take a minute."""


class RouteTraffic:
    """The requests of one route. Adding one is a look-up and three additions."""

    __slots__ = ("buckets", "by_status", "micros")

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.micros = 0

    def add(self, status: int, micros: int) -> None:
        """Count a request that was answered."""
        self.by_status[status] = self.by_status.get(status, 0) + 1
        self.buckets[bisect_left(BOUNDS, micros)] += 1
        self.micros += micros


class Traffic:
    """All counts of the port."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], RouteTraffic] = {}
        """By method and path template: never by what a client sent, of which there is no end."""
        self.running = 0
        """Requests without an answer yet, WebSockets among them."""
        self.open = 0
        self.accepted = 0
        self.refused = 0
        """Connections beyond the limit."""
        self.cut: dict[str, int] = dict.fromkeys(("head", "body", "write"), 0)
        """Connections that were too slow, by what they were too slow with."""

    def route(self, method: str, path: str) -> RouteTraffic:
        """The counts of a route."""
        return self.routes.setdefault((method, path), RouteTraffic())
