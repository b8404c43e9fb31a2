"""Counters of a hub: since it started, and in the current minute."""

from __future__ import annotations

from collections import Counter

from penstock.hub.core.messages import MetricsResponse
from penstock.hub.core.rules import MINUTE

GONE = "gone"
"""The reason in metrics for connections that the client ended."""


class HubMetrics:
    """Counters that never decrease."""

    __slots__ = ("_since", "_start", "closed", "errors", "opened", "received", "recovered", "sent", "unrecovered")

    def __init__(self, now: int) -> None:
        self.received = 0
        self.sent = 0
        """Messages and replies that were put into an outbox."""
        self.opened = 0
        self.closed: Counter[str] = Counter()
        """By the reason of the close, or `GONE`."""
        self.errors: Counter[str] = Counter()
        """By code."""
        self.recovered = 0
        self.unrecovered = 0
        self._start = now
        self._since = self._now()

    def turn(self, now: int) -> None:
        """Start a new minute if the old one is over."""
        if not 0 <= now - self._start < MINUTE:
            self._start, self._since = now, self._now()

    def minute(self, now: int) -> MetricsResponse:
        self.turn(now)
        received, sent, errors, opened, closed = (new - old for new, old in zip(self._now(), self._since, strict=True))
        return MetricsResponse(received, sent, errors, opened, closed, self._start // 1000, now // 1000)

    def _now(self) -> tuple[int, int, int, int, int]:
        return self.received, self.sent, self.errors.total(), self.opened, self.closed.total()
