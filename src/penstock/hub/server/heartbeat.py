"""Finds connections whose client has vanished without a word: each is asked by a ping now and then, and cut when it stays silent.

Pings also keep proxies from closing what is merely quiet. They are spread: clients that all came at once, as after a restart, are
not all asked at once, which would keep everybody waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

PERIOD_SECONDS = 30.0
STEP_SECONDS = 0.1
PER_STEP = 50
"""How many are asked in a row, unless there are so many that all of them could not be asked within a period."""


class HeartbeatPeer(Protocol):
    """A connection that can be asked."""

    due: float

    def ask(self) -> bool:
        """Ask whether the client is there; False when it did not answer the last time."""

    def abort(self) -> None:
        """End the connection at once."""


class HeartbeatScheduler:
    """Asks connections, the one that waited longest first."""

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._waiting: OrderedDict[HeartbeatPeer, None] = OrderedDict()
        """By when they are due: everyone who is asked goes to the end."""
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
        """Those that are due, at most as many as are asked in one round."""
        found: list[HeartbeatPeer] = []
        for one in self._waiting:
            if one.due > now or len(found) == most:
                break
            found.append(one)
        return found
