"""Where unsettled messages wait while nobody holds them: ready, behind the head of their key, or delayed.

A message is in exactly one of these places. Delayed ones stand in a heap by the instant they are due; an entry whose message
has left, or is due at another time, is skipped when it comes up.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from penstock.broker.core.ordering import Lanes
from penstock.broker.core.ready import Ready
from penstock.durations import FOREVER
from penstock.journal.core.ranges import Ranges, merge

_LEFTOVERS = 512


class Waiting:
    """The waiting messages of one queue. `key` is "" for a message that no order binds."""

    __slots__ = ("_delayed", "_due", "_lanes", "ready")

    def __init__(self) -> None:
        self.ready = Ready()
        self._lanes = Lanes()
        self._delayed: dict[int, int] = {}
        self._due: list[tuple[int, int, int, str]] = []

    def add(self, offset: int, priority: int, key: str, due: int | None) -> None:
        """Let a new message in, which has to wait until `due` and for its turn in its key."""
        is_head = not key or self._lanes.enter(key, offset, priority)
        if due is not None:
            self._delay(offset, priority, key, due)
        elif is_head:
            self.ready.add(priority, offset, offset + 1)

    def hold(self, key: str, offset: int, priority: int) -> None:
        """A message is restored as leased: it leads its key."""
        if key:
            self._lanes.enter(key, offset, priority)

    def come_back(self, offset: int, priority: int, key: str, due: int | None) -> None:
        """Let a message in again whose lease ended; it still leads its key."""
        if due is None:
            self.ready.add(priority, offset, offset + 1)
        else:
            self._delay(offset, priority, key, due)

    def remove(self, offset: int, priority: int, key: str) -> None:
        """Take a message out, wherever it waits, and let its follower go on."""
        was_delayed = self._delayed.pop(offset, None) is not None
        if not was_delayed and (not key or self._lanes.head(key) == offset):
            self.ready.remove(priority, offset)
        if key:
            self.settle(key, offset)

    def settle(self, key: str, offset: int) -> None:
        """A message of this key is over; its follower, if there is one, may go on."""
        following = self._lanes.leave(key, offset)
        if following is not None and following[0] not in self._delayed:
            self.ready.add(following[1], following[0], following[0] + 1)

    def wake(self, now: int) -> None:
        """Make ready what has become due."""
        while self._due and self._due[0][0] <= now:
            due, offset, priority, key = heappop(self._due)
            if self._delayed.get(offset) == due:
                del self._delayed[offset]
                if not key or self._lanes.head(key) == offset:
                    self.ready.add(priority, offset, offset + 1)

    def next_due(self) -> int:
        """The next instant at which `wake` has something to do."""
        while self._due:
            due, offset, _, _ = self._due[0]
            if self._delayed.get(offset) == due:
                return due
            heappop(self._due)
        return FOREVER

    def ahead(self, priority: int) -> int:
        """How many are ready with this priority or a higher one."""
        return self.ready.ahead(priority)

    @property
    def delayed(self) -> int:
        """How many wait for an instant."""
        return len(self._delayed)

    def due(self, offset: int) -> int | None:
        """Until when a message is delayed."""
        return self._delayed.get(offset)

    def head(self, key: str) -> int | None:
        """The message that all others of this key wait for."""
        return self._lanes.head(key)

    def ranges(self) -> Ranges:
        """Every waiting offset."""
        behind = ((offset, offset + 1) for _, offset, _ in self._lanes.waiting())
        return merge([*self.ready.ranges(), *((offset, offset + 1) for offset in self._delayed), *behind])

    def oldest(self) -> int | None:
        """The oldest waiting offset. Those behind their key's head are younger than it, so they need no look."""
        ready = (level.first() for level in self.ready.levels if level.count)
        return min([*ready, *self._delayed], default=None)

    def holds(self, offset: int, key: str) -> bool:
        """Whether a message waits here."""
        return offset in self._delayed or offset in self.ready or (bool(key) and self._lanes.holds(key, offset))

    def upcoming(self, most: int) -> list[int]:
        """The offsets that would be delivered next, in order."""
        found: list[int] = []
        for level in self.ready.levels:
            for start, stop in sorted(level.ranges()):
                found += range(start, min(stop, start + most - len(found)))
                if len(found) >= most:
                    return found
        return found

    def _delay(self, offset: int, priority: int, key: str, due: int) -> None:
        self._delayed[offset] = due
        heappush(self._due, (due, offset, priority, key))
        if len(self._due) > 2 * len(self._delayed) + _LEFTOVERS:
            self._due = [entry for entry in self._due if self._delayed.get(entry[1]) == entry[0]]
            heapify(self._due)
