"""Ordering keys: one lane a key, one message out of each lane at a time.

A lane exists while its key has an unsettled message. Its head is the oldest of them: ready, leased, delayed or failed, and
nothing of the key passes it. The others wait here and cost one number each: offset and priority in one, so that a message can
be let go without being read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class Lane:
    """One key's messages."""

    __slots__ = ("head", "waiting")

    def __init__(self, head: int) -> None:
        self.head = head
        self.waiting: deque[int] | None = None


class Lanes:
    """All keys of a queue that have something unsettled."""

    __slots__ = ("_gone", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._gone: set[int] | None = None
        """Settled out of turn, still in line; made when first needed, since most queues never do."""

    def enter(self, key: str, offset: int, priority: int) -> bool:
        """True when the message is its key's head and may go on; False when it waits here."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = Lane(offset)
            return True
        if lane.waiting is None:
            lane.waiting = deque()
        lane.waiting.append(offset << 4 | priority)
        return False

    def leave(self, key: str, offset: int) -> tuple[int, int] | None:
        """Settle a message of the key; returns the (offset, priority) that becomes head, if one does."""
        lane = self._lanes[key]
        if lane.head != offset:
            self._gone = self._gone or set()
            self._gone.add(offset)
            return None
        while lane.waiting:
            packed = lane.waiting.popleft()
            following = packed >> 4
            if self._gone and following in self._gone:
                self._gone.discard(following)
                continue
            lane.head = following
            return following, packed & 15
        del self._lanes[key]
        return None

    def head(self, key: str) -> int | None:
        """The offset that everything else of this key waits for."""
        lane = self._lanes.get(key)
        return lane.head if lane else None

    def holds(self, key: str, offset: int) -> bool:
        """Whether a message waits behind its key's head."""
        lane = self._lanes.get(key)
        waiting = lane.waiting if lane is not None else None
        return any(packed >> 4 == offset for packed in waiting or ()) and not (self._gone and offset in self._gone)

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """Every waiting message as (key, offset, priority)."""
        for key, lane in self._lanes.items():
            for packed in lane.waiting or ():
                if not self._gone or packed >> 4 not in self._gone:
                    yield key, packed >> 4, packed & 15
