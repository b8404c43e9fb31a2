"""Unsettled messages that are not leased: ready, in the lane of their key, or delayed.

A message is deliverable from at most one place: `ready`, or the messages reserved for one consumer (see `ordering`). Delayed ones
are in a heap by the instant at which they are due; an entry whose message has left, or is due at another time, is skipped when it
comes up.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from penstock.broker.core.ordering import KeyLanes
from penstock.broker.core.ready import Level, Ready
from penstock.durations import FOREVER
from penstock.journal.core.ranges import Ranges, merge

_LEFTOVERS = 512


class Waiting:
    """The waiting messages of one queue. `key` is "" for a message without an ordering key."""

    __slots__ = ("_delayed", "_due", "lanes", "ready")

    def __init__(self) -> None:
        self.ready = Ready()
        self._delayed: dict[int, int] = {}
        self.lanes = KeyLanes(self.ready, self._delayed)
        """The messages that have a key."""
        self._due: list[tuple[int, int, int, str]] = []

    def add(self, offset: int, priority: int, key: str, due: int | None) -> None:
        """Add a new message, which waits until `due` and for its turn in its key."""
        if due is not None:
            self._delay(offset, priority, key, due)
        if key:
            self.lanes.add(key, offset, priority)
        elif due is None:
            self.ready.add(priority, offset, offset + 1)

    def come_back(self, offset: int, priority: int, key: str, due: int | None) -> None:
        """Add a message whose lease has ended."""
        if due is not None:
            self._delay(offset, priority, key, due)
        if key:
            self.lanes.come_back(key, offset, priority)
        elif due is None:
            self.ready.add(priority, offset, offset + 1)

    def remove(self, offset: int, priority: int, key: str) -> None:
        """Remove a message, wherever it waits; the next of its key becomes deliverable."""
        was_delayed = self._delayed.pop(offset, None) is not None
        if key:
            self.lanes.remove(key, offset)
        elif not was_delayed:
            self.ready.remove(priority, offset)

    def first(self, reserved: Ready) -> Level | None:
        """The level with the next message for a consumer that has messages reserved for it."""
        common, own = self.ready.first(), reserved.first()
        if common is None or own is None:
            return common or own
        return min(common, own, key=lambda level: (-level.priority, level.first()))

    def wake(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            due, offset, priority, key = heappop(self._due)
            if self._delayed.get(offset) == due:
                del self._delayed[offset]
                if key:
                    self.lanes.due(key, offset)
                else:
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
        return len(self._delayed)

    def due(self, offset: int) -> int | None:
        """The instant until which a message is delayed."""
        return self._delayed.get(offset)

    def ranges(self) -> Ranges:
        behind = ((offset, offset + 1) for offset in self.lanes.waiting())
        return merge([*self.ready.ranges(), *((offset, offset + 1) for offset in self._delayed), *behind])

    def oldest(self) -> int | None:
        """The oldest waiting offset. Messages behind the first of their key are younger than it, so they are not examined."""
        ready = (level.first() for level in self.ready.levels if level.count)
        return min([*ready, *self._delayed], default=None)

    def holds(self, offset: int, key: str) -> bool:
        return offset in self._delayed or offset in self.ready or (bool(key) and self.lanes.holds(key, offset))

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
