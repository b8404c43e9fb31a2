"""Ordering keys of a stream that holds several messages of a key: which one may be handled, and which must be returned.

Messages of a key wait in a lane, oldest first. The first is handled; the next follows when the first is settled. When a message
fails, because it is nacked or its lease expires, the broker redelivers it and every later one of its key. So the later ones that
wait here are returned. The broker may have sent more of the key before it learns of the failure: until the failed message comes
again, later ones are returned too, each of them once. A message that was returned and is redelivered was sent after the broker
learned of the failure, so it is accepted: the failed message is a dead letter then.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar


class KeyedDelivery(Protocol):
    """The relevant fields of a delivery."""

    receipt: int

    @property
    def offset(self) -> int: ...  # the offset of its message
    @property
    def ordering_key(self) -> str: ...  # never empty here


M = TypeVar("M", bound=KeyedDelivery)


class _Failure(NamedTuple):
    """A failed message, and the receipts that were returned since then, by offset."""

    offset: int
    returned: dict[int, int]


class Arrival(NamedTuple, Generic[M]):
    """How to handle a delivery that has arrived."""

    is_next: bool
    """Whether to handle it now. Otherwise it waits, unless it is to be returned."""
    returned: list[M]
    """Deliveries to return to the broker without counting an attempt."""


class KeyLanes(Generic[M]):
    """The deliveries of a stream that have an ordering key."""

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        """Failures to remember: at most as many as messages in the stream can be unknown to the broker."""
        self._lanes: dict[str, deque[M]] = {}
        """The lanes by key; the first of a lane is being handled, or in `_ready`."""
        self._ready: deque[M] = deque()
        """Deliveries whose turn has come."""
        self._failures: dict[str, _Failure] = {}

    def arrive(self, delivery: M) -> Arrival[M]:
        key, offset = delivery.ordering_key, delivery.offset
        failure = self._failures.get(key)
        if failure is not None:
            if offset > failure.offset and failure.returned.get(offset, delivery.receipt) == delivery.receipt:
                failure.returned[offset] = delivery.receipt
                return Arrival(is_next=False, returned=[delivery])
            del self._failures[key]
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((delivery,))
            return Arrival(is_next=True, returned=[])
        # The broker delivers a key in order: messages that are not older than this one are not leased any more.
        returned = self._cut(lane, offset)
        lane.append(delivery)
        return Arrival(len(lane) == 1, returned)

    def settle(self, delivery: M) -> None:
        """A delivery was acknowledged: the next of its key becomes ready."""
        lane = self._lanes.get(delivery.ordering_key)
        if lane is None or lane[0] is not delivery:
            return
        lane.popleft()
        if lane:
            self._ready.append(lane[0])
        else:
            del self._lanes[delivery.ordering_key]

    def fail(self, delivery: M) -> list[M]:
        """A delivery was nacked or has expired. Returns the later ones of its key, which must be returned to the broker."""
        key, offset = delivery.ordering_key, delivery.offset
        lane = self._lanes.get(key)
        if lane is None or delivery not in lane:
            return []  # it was over already
        later = [one for one in self._cut(lane, offset) if one is not delivery]
        if not lane:
            del self._lanes[key]
        self._failures.pop(key, None)
        self._failures[key] = _Failure(offset, {one.offset: one.receipt for one in later})
        if len(self._failures) > self.max_failures:
            # If the failed message became a dead letter, it may never be redelivered.
            del self._failures[next(iter(self._failures))]
        return later

    def take_ready(self) -> M | None:
        """The next delivery whose turn has come."""
        return self._ready.popleft() if self._ready else None

    def drain(self) -> list[M]:
        """Remove and return deliveries that are not being handled."""
        waiting: list[M] = []
        for delivery in self._ready:
            waiting += self._lanes.pop(delivery.ordering_key)
        self._ready.clear()
        for lane in self._lanes.values():
            while len(lane) > 1:
                waiting.append(lane.pop())
        return waiting

    def _cut(self, lane: deque[M], offset: int) -> list[M]:
        """Remove and return deliveries from an offset on."""
        cut: list[M] = []
        while lane and lane[-1].offset >= offset:
            cut.append(lane.pop())
        if cut and not lane and cut[-1] in self._ready:
            self._ready.remove(cut[-1])
        cut.reverse()
        return cut
