"""A fair queue for a scarce resource, without threads and clocks."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_LANES = 1_000


class FairQueue(Generic[T]):
    """Start-time fair queueing: the waiting entry whose lane has used the least is next; among equals, the oldest.

    A lane that waits for the first time, or after a pause, starts level with the lane that was served last: it precedes lanes
    that have used much since, and gets no credit for earlier idle time.
    """

    def __init__(self) -> None:
        self._used: dict[Hashable, int] = {}
        self._level = 0
        """The start time of the lane that was served last."""
        self._waiting: list[tuple[int, int, Hashable, T]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, lane: Hashable, waiter: T) -> None:
        heappush(self._waiting, (max(self._used.get(lane, 0), self._level), next(self._numbers), lane, waiter))

    def next(self) -> T:
        """Remove and return the next entry; the queue must not be empty."""
        start, _, lane, waiter = heappop(self._waiting)
        self._level = start
        self._used[lane] = max(self._used.get(lane, 0), start)
        return waiter

    def add_use(self, lane: Hashable, amount: int) -> None:
        """Record what an entry used that was served."""
        self._used[lane] = self._used.get(lane, self._level) + amount
        if len(self._used) > MAX_LANES:
            self._used = {lane: used for lane, used in self._used.items() if used > self._level}
