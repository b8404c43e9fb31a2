"""Evenly spaced calls with a burst, for each client by itself."""

from __future__ import annotations

from collections import OrderedDict

from penstock.rate_limit import RateLimit

MAX_CLIENTS = 50_000


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
