"""A rate limiter that allows bursts. It returns how long to wait; it never waits."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

from penstock.durations import SECOND
from penstock.errors import InvalidArgument


class RateLimit:
    """The generic cell rate algorithm. It keeps one instant for each caller: when its allowance is full again."""

    __slots__ = ("_slack", "_step", "burst", "per_second")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        if isinstance(per_second, bool) or not 0 < per_second <= SECOND:
            raise InvalidArgument.of("rate_limit", per_second, f"more than 0, at most {SECOND} calls a second")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise InvalidArgument.of("rate_burst", burst, "an integer, 1 or more")
        self.per_second = per_second
        self.burst = burst
        self._step = ceil(SECOND / per_second)  # rounded up: never faster than the limit
        self._slack = (burst - 1) * self._step

    def take(self, full_at: int, now: int, cost: int = 1) -> tuple[int, int]:
        """Return (0, the new instant) if a call is allowed, or (how long to wait, the same instant).

        `cost` is the number of calls that it counts as; a call that costs more than a burst takes a whole burst.
        """
        # No wait is longer than this; a longer one means that the clock was set back, which must not lock the caller out.
        full_at = min(full_at, now + self._slack + self._step)
        more = 0 if cost == 1 else (min(cost, self.burst) - 1) * self._step
        wait = full_at + more - self._slack - now
        return (wait, full_at) if wait > 0 else (0, max(full_at, now) + self._step + more)

    def spend(self, full_at: int, now: int, cost: int) -> tuple[int, int]:
        """Return (how long to wait before the next call, the new instant), for calls that were already made."""
        full_at = max(full_at, now) + cost * self._step
        return max(full_at - now - self._slack - self._step, 0), full_at


MAX_CLIENTS = 50_000


class ClientRates:
    """One rate limit, applied to each client separately. Not thread-safe: it belongs to one event loop.

    Beyond `max_clients` the client that called longest ago is forgotten, so memory is bounded. A forgotten client starts again
    with a full burst; the limit of connections bounds all of them together.
    """

    __slots__ = ("_full_at", "_limit", "_max_clients")

    def __init__(self, limit: RateLimit, max_clients: int = MAX_CLIENTS) -> None:
        self._limit = limit
        self._max_clients = max_clients
        self._full_at: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, client: str, now: int) -> int:
        """Count a call and return 0, or return the microseconds until a call is allowed."""
        wait, self._full_at[client] = self._limit.take(self._full_at.get(client, 0), now)
        self._full_at.move_to_end(client)
        if len(self._full_at) > self._max_clients:
            self._full_at.popitem(last=False)
        return wait
