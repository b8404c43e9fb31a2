"""Evenly spaced calls with a burst, for each client by itself. Says how long to wait; never waits."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

from penstock.durations import SECOND
from penstock.errors import InvalidArgument

MAX_CLIENTS = 50_000


class RateLimit:
    """The generic cell rate algorithm. All it keeps of a client is one instant: when its allowance is full again."""

    __slots__ = ("_slack", "_step", "per_second")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        if isinstance(per_second, bool) or not 0 < per_second <= SECOND:
            raise InvalidArgument.of("rate_limit", per_second, f"more than 0, at most {SECOND} calls a second")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise InvalidArgument.of("rate_burst", burst, "an integer, 1 or more")
        self.per_second = per_second
        self._step = ceil(SECOND / per_second)  # rounded up: never faster than asked
        self._slack = (burst - 1) * self._step

    def take(self, full_at: int, now: int) -> tuple[int, int]:
        """(0, the new instant) when a call may go, or (how long to wait, the same instant)."""
        # No allowance is ever owed for longer than this; more means that the clock was set back, which must not lock out.
        full_at = min(full_at, now + self._slack + self._step)
        wait = full_at - self._slack - now
        return (wait, full_at) if wait > 0 else (0, max(full_at, now) + self._step)


class ClientRates:
    """One limit, kept for each client by itself. Not for several threads: it belongs to one event loop.

    Beyond `max_clients` the one that called longest ago is forgotten, so a million addresses cost no more memory than that.
    A forgotten client starts again with a full burst; all of them together are held by the limit of connections.
    """

    __slots__ = ("_full_at", "_limit", "_max_clients")

    def __init__(self, limit: RateLimit, max_clients: int = MAX_CLIENTS) -> None:
        self._limit = limit
        self._max_clients = max_clients
        self._full_at: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, client: str, now: int) -> int:
        """Take a call and return 0, or return the microseconds until one is free."""
        wait, self._full_at[client] = self._limit.take(self._full_at.get(client, 0), now)
        self._full_at.move_to_end(client)
        if len(self._full_at) > self._max_clients:
            self._full_at.popitem(last=False)
        return wait
