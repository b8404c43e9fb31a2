"""Ordering keys: one lane a key.

A lane exists while its key has an unsettled message. In the order of their age its messages are: those that are leased, all to
one consumer; the next one; and the rest, which cost one number each: offset and priority in one, so that a message can be let
go without being read.

While nothing of a key is leased, its next message is deliverable to everybody. While something is, the next is reserved for the
consumer that holds it, as long as that holds fewer than its `key_window`, and deliverable to nobody else. A message that comes
back leads its lane again; what was delivered after it must come back, too, and `leased_after` names it.
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
        """The oldest that is not leased, as offset and priority in one."""
        self.place: Ready | None = None
        """Where the next is deliverable from, if it is."""
        self.rest: list[int] | None = None
        """A heap of the others."""


class KeyLanes:
    """All keys of a queue that have something unsettled."""

    __slots__ = ("_delayed", "_gone", "_lanes", "_ready", "reserved")

    def __init__(self, ready: Ready, delayed: Container[int]) -> None:
        self._ready, self._delayed = ready, delayed
        self._lanes: dict[str, KeyLane] = {}
        self._gone: set[int] | None = None
        """Settled out of turn, still in line; made when first needed, since most queues never do."""
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
        """The next message of a key was taken from its place, and is leased."""
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
        """The holder of a key has another window."""
        self._place(self._lanes[key])

    def leased_after(self, key: str, offset: int) -> list[int]:
        """What is leased of a key and younger than a message of it."""
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
        """The next one left: another becomes the next."""
        lane.next = _NONE
        while lane.rest:
            packed = heappop(lane.rest)
            if self._gone and packed >> 4 in self._gone:
                self._gone.discard(packed >> 4)
                continue
            lane.next = packed
            return

    def _place(self, lane: KeyLane) -> None:
        """Put the next to where it is deliverable from, if it is."""
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
        """Take the next away from where it is deliverable from."""
        if lane.place is not None:
            lane.place.remove(lane.next & 15, lane.next >> 4)
            self.reserved -= lane.place is not self._ready
            lane.place = None
