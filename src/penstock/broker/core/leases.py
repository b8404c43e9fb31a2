"""The leases of a queue, by holder and deadline.

Leases are in a dict by offset and in a heap by deadline. A settled or extended lease stays in the heap until it comes up, or
until most of the heap is stale and it is rebuilt: the cost of a lease is constant, without a timer for each. A stale entry keeps
its message in memory, so the heap is also rebuilt when stale entries have many bytes. The first query for the oldest lease builds
a heap by offset, which is used until all its entries are settled.
"""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from heapq import heapify, heappop, heappush

from penstock.broker.core.ready import Ready
from penstock.ids import MAX_OFFSET
from penstock.values.lease import ConsumerHoldings, Lease

__all__ = ["Consumer", "Lease", "Leases"]

_LEFTOVERS = 512
_LEFTOVER_BYTES = 8 * 1024 * 1024
_BYTES_A_LEASE = 64
"""Added to the limit for each live lease, since rebuilding the heap takes time for each of them."""


class Consumer(ConsumerHoldings):
    """A consumer as the queue knows it."""

    key_window: int = 1
    """How many messages of one ordering key it may hold."""
    reserved: Ready | None = None
    """Messages reserved for this consumer, because it holds older messages with the same keys."""


class Leases:
    """The live leases of one queue."""

    __slots__ = ("_ages", "_heap", "_latest", "_leftover", "_lowest", "by_offset", "size")

    def __init__(self) -> None:
        self.by_offset: dict[int, Lease] = {}
        """The live leases; call `added` after adding to it."""
        self._heap: list[Lease] = []
        self._leftover = 0
        """Bytes of the messages settled since the heap was rebuilt."""
        self._latest = 0
        self._ages: list[int] = []
        self._lowest = MAX_OFFSET
        """The lowest offset that was leased since `_ages` was built."""
        self.size = 0
        """Bytes in flight."""

    def __len__(self) -> int:
        return len(self.by_offset)

    def get(self, offset: int) -> Lease | None:
        return self.by_offset.get(offset)

    def grant(self, leases: list[Lease], deadline: int) -> None:
        """Add leases that share one deadline."""
        for lease in leases:
            self.by_offset[lease.offset] = lease
        self.added(leases, deadline, sum(lease.message.size for lease in leases), min(lease.offset for lease in leases))

    def added(self, leases: list[Lease], deadline: int, size: int, lowest: int) -> None:
        """Note leases with one deadline that were put into `by_offset`: the bytes of their messages and their lowest offset."""
        self.size += size
        if lowest < self._lowest:  # noqa: PLR1730  # cheaper than a call of min()
            self._lowest = lowest
        heap = self._heap
        if deadline >= self._latest:
            # Nothing in the heap is later, so appending keeps it a heap.
            self._latest = deadline
            heap += leases
        else:
            for lease in leases:
                heappush(heap, lease)
        if len(heap) > 2 * len(self.by_offset) + _LEFTOVERS:
            self._sweep()

    def end(self, leases: list[Lease]) -> int:
        """Remove live leases; returns the bytes of their messages."""
        by_offset, size = self.by_offset, 0
        for lease in leases:
            offset, length, holder = lease.offset, lease.message.size, lease.consumer
            del by_offset[offset]
            size += length
            if holder is not None:
                holder.held.discard(offset)
                holder.size -= length
        self.size -= size
        self._leftover += size
        if self._leftover > _LEFTOVER_BYTES and self._leftover > _BYTES_A_LEASE * len(by_offset):
            self._sweep()
        return size

    def move(self, lease: Lease, deadline: int) -> None:
        moved = Lease(deadline, lease.offset, lease.attempt, lease.epoch, lease.message, lease.consumer, lease.leased_at)
        self.by_offset[lease.offset] = moved
        heappush(self._heap, moved)
        self._latest = max(self._latest, deadline)
        if len(self._heap) > 2 * len(self.by_offset) + _LEFTOVERS:
            self._sweep()

    def due(self, now: int) -> Iterator[Lease]:
        """Expired leases, oldest deadline first; each is still live and must be ended by the caller."""
        while self._heap and self._heap[0].deadline <= now:
            lease = heappop(self._heap)
            if self.by_offset.get(lease.offset) is lease:
                yield lease
        if not self._heap:
            self._latest = 0

    def next_deadline(self) -> int | None:
        """The earliest deadline of a live lease."""
        while self._heap:
            lease = self._heap[0]
            if self.by_offset.get(lease.offset) is lease:
                return lease.deadline
            heappop(self._heap)
        self._latest = 0
        return None

    def oldest(self) -> int | None:
        """The lowest offset of a live lease."""
        by_offset, ages = self.by_offset, self._ages
        while ages and ages[0] not in by_offset:
            heappop(ages)
        if ages and ages[0] < self._lowest:
            return ages[0]
        if self._lowest not in by_offset:
            # An older lease came after the heap was built and is settled, or all leases in the heap are.
            self._ages = list(by_offset)
            heapify(self._ages)
            self._lowest = MAX_OFFSET
            return self._ages[0] if self._ages else None
        return self._lowest

    def live(self) -> ValuesView[Lease]:
        """All leases, in no particular order."""
        return self.by_offset.values()

    def _sweep(self) -> None:
        """Rebuild the heap from the live leases."""
        self._leftover = 0
        self._heap = list(self.by_offset.values())
        heapify(self._heap)
