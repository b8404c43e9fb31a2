"""Ordering keys: one lane for each key.

A lane exists while its key has an unsettled message. Its messages are, oldest first: those that are leased, all to one consumer;
the next one; and the rest, one number for each, which combines offset and priority, so that a message can be removed without
being read.

While no message of a key is leased, its next message is deliverable to all consumers. While one is, the next is reserved for the
consumer that holds it, if it holds fewer than its `key_window`. A requeued message is first in its lane again; messages that were
delivered after it must be requeued too, and `leased_after` returns them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from heapq import heappop, heappush

from penstock.broker.core.leases import Consumer
from penstock.broker.core.ready import Ready

_NOTHING: list[int] = []
_NONE = -1


class KeyLane:
    """One key's messages."""

    __slots__ = ("holder", "leased", "next", "place", "rest")

    def __init__(self) -> None:
        self.leased = _NOTHING
        """Offsets, oldest first."""
        self.holder: Consumer | None = None
        """The holder, if it has a name."""
        self.next = _NONE
        """The oldest that is not leased, as one number of offset and priority."""
        self.place: Ready | None = None
        """The level from which the next is deliverable, if it is."""
        self.rest: list[int] | None = None
        """A heap of the other messages."""


class KeyLanes:
    """All keys of a queue with unsettled messages."""

    __slots__ = ("_delayed", "_gone", "_lanes", "_ready", "reserved")

    def __init__(self, ready: Ready, delayed: Container[int]) -> None:
        self._ready, self._delayed = ready, delayed
        self._lanes: dict[str, KeyLane] = {}
        self._gone: set[int] | None = None
        """Messages that were settled out of order and are still in a lane; created when first needed."""
        self.reserved = 0
        """How many messages are deliverable to one consumer only."""

    def add(self, key: str, offset: int, priority: int) -> None:
        lane = self._lanes.get(key)
        if lane is not None:
            self._enter(lane, offset << 4 | priority)
            return
        lane = self._lanes[key] = KeyLane()
        lane.next = offset << 4 | priority
        if offset not in self._delayed:
            lane.place = self._ready
            self._ready.add(priority, offset, offset + 1)

    def lease(self, key: str, offset: int, holder: Consumer | None) -> None:
        """Note that the next message of a key is leased."""
        lane = self._lanes[key]
        if lane.leased:
            lane.leased.append(offset)
        else:
            lane.leased = [offset]
        lane.holder = holder
        if lane.place is not self._ready:
            self.reserved -= 1
        lane.place = None
        if not lane.rest:
            lane.next = _NONE
            return
        self._advance(lane)
        if holder is not None and holder.key_window > 1:
            self._place(lane)

    def restore(self, key: str, offset: int, holder: Consumer | None) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = KeyLane()
        lane.leased = [*lane.leased, offset]
        lane.holder = holder
        self._place(lane)

    def come_back(self, key: str, offset: int, priority: int) -> None:
        lane = self._lanes[key]
        self._let_go(lane, offset)
        self._enter(lane, offset << 4 | priority)
        self._place(lane)

    def settle(self, key: str, offset: int) -> None:
        lane = self._lanes[key]
        if lane.next == _NONE and len(lane.leased) == 1:
            del self._lanes[key]
        else:
            self._let_go(lane, offset)
            self._place(lane)

    def remove(self, key: str, offset: int) -> None:
        lane = self._lanes[key]
        if lane.next >> 4 != offset:
            self._gone = self._gone or set()
            self._gone.add(offset)
            return
        self._withdraw(lane)
        self._advance(lane)
        if lane.next != _NONE or lane.leased:
            self._place(lane)
        else:
            del self._lanes[key]

    def due(self, key: str, offset: int) -> None:
        lane = self._lanes[key]
        if lane.next >> 4 == offset:
            self._place(lane)

    def widen(self, key: str) -> None:
        """Apply a changed window of the holder of a key."""
        self._place(self._lanes[key])

    def leased_after(self, key: str, offset: int) -> list[int]:
        """Leased messages of a key that are younger than one of its messages."""
        lane = self._lanes.get(key)
        return lane.leased[bisect_right(lane.leased, offset) :] if lane is not None else []

    def head(self, key: str) -> int | None:
        """The oldest message of a key."""
        lane = self._lanes.get(key)
        if lane is None:
            return None
        return lane.leased[0] if lane.leased else lane.next >> 4

    def holds(self, key: str, offset: int) -> bool:
        """Whether a message waits in its key's lane."""
        lane = self._lanes.get(key)
        if lane is None or (self._gone and offset in self._gone):
            return False
        return lane.next >> 4 == offset or any(packed >> 4 == offset for packed in lane.rest or ())

    def waiting(self) -> Iterator[int]:
        """The offset of every waiting message."""
        for lane in self._lanes.values():
            if lane.next != _NONE:
                yield lane.next >> 4
            for packed in lane.rest or ():
                if not self._gone or packed >> 4 not in self._gone:
                    yield packed >> 4

    def _let_go(self, lane: KeyLane, offset: int) -> None:
        del lane.leased[bisect_left(lane.leased, offset)]
        if not lane.leased:
            lane.holder = None

    def _enter(self, lane: KeyLane, packed: int) -> None:
        if lane.next != _NONE and packed > lane.next:
            if lane.rest is None:
                lane.rest = []
            heappush(lane.rest, packed)
            return
        if lane.next != _NONE:
            self._withdraw(lane)
            lane.rest = lane.rest or []
            heappush(lane.rest, lane.next)
        lane.next = packed
        self._place(lane)

    def _advance(self, lane: KeyLane) -> None:
        """Choose another next message after it has left."""
        lane.next = _NONE
        while lane.rest:
            packed = heappop(lane.rest)
            if self._gone and packed >> 4 in self._gone:
                self._gone.discard(packed >> 4)
                continue
            lane.next = packed
            return

    def _place(self, lane: KeyLane) -> None:
        """Make the next message deliverable, if it may be delivered."""
        place = None
        if lane.next != _NONE and lane.next >> 4 not in self._delayed:
            if not lane.leased:
                place = self._ready
            elif lane.holder is not None and len(lane.leased) < lane.holder.key_window:
                place = lane.holder.reserved
        if place is not lane.place:
            self._withdraw(lane)
            lane.place = place
            if place is not None:
                place.add(lane.next & 15, lane.next >> 4, (lane.next >> 4) + 1)
                self.reserved += place is not self._ready

    def _withdraw(self, lane: KeyLane) -> None:
        """Make the next message not deliverable."""
        if lane.place is not None:
            lane.place.remove(lane.next & 15, lane.next >> 4)
            self.reserved -= lane.place is not self._ready
            lane.place = None
