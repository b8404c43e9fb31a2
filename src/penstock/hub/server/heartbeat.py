"""Finds connections whose client has vanished without a close: each is pinged periodically, and aborted if it stays silent.

Pings also keep proxies from closing idle connections. They are spread over time: clients that all connected at once, as after a
restart, are not all pinged at once, which would delay all other work.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

PERIOD_SECONDS = 30.0
STEP_SECONDS = 0.1
PER_STEP = 50
"""How many connections are pinged in one step; more if otherwise not all could be pinged within a period."""


class HeartbeatPeer(Protocol):
    """A connection that can be pinged."""

    due: float

    def ask(self) -> bool:
        """Ping the client; False if it did not answer the last ping."""

    def abort(self) -> None:
        """End the connection at once."""


class HeartbeatScheduler:
    """Pings connections, the one that has waited longest first."""

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._waiting: OrderedDict[HeartbeatPeer, None] = OrderedDict()
        """Ordered by due time: a pinged connection moves to the end."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, one: HeartbeatPeer) -> None:
        one.due = self._loop.time() + self._period
        self._waiting[one] = None
        if self._timer is None:
            self._timer = self._loop.call_at(one.due, self._step)

    def discard(self, one: HeartbeatPeer) -> None:
        self._waiting.pop(one, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self) -> None:
        now = self._loop.time()
        most = max(PER_STEP, int(len(self._waiting) * STEP_SECONDS / self._period) * 2)
        for one in [*self._first(most, now)]:
            one.due = now + self._period
            self._waiting.move_to_end(one)
            if not one.ask():
                one.abort()
        first = next(iter(self._waiting), None)
        self._timer = None if first is None else self._loop.call_at(max(first.due, now + STEP_SECONDS), self._step)

    def _first(self, most: int, now: float) -> list[HeartbeatPeer]:
        """At most `most` connections that are due."""
        found: list[HeartbeatPeer] = []
        for one in self._waiting:
            if one.due > now or len(found) == most:
                break
            found.append(one)
        return found
