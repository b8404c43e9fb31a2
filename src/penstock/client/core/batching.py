"""When published messages are sent, and with which others: the rules of a publisher, without I/O.

    add ──> gathering ──┬─ max_messages or max_bytes reached ──┬─> queued ──take──> in flight ──settle──> done
                        └─ max_wait is over, or flush ─────────┘                        │
                        └─ nothing of its lane is in flight ──────────take──────────────┘

A *lane* is everything with one ordering key; all messages without a key share one. Of a keyed lane one batch is in flight at a
time, so that order holds however often a batch is tried. A batch that fails pauses its keyed lanes: what waits there fails too,
since it must not overtake. `take` is asked at the end of a turn of the event loop, so a lone message waits for no timer, and what
one turn publishes goes together.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import (
    JournalUncertain,
    PenstockError,
    PublishingPaused,
    RateLimited,
    ResourceExhausted,
    ServerUnreachable,
)

UNKEYED_IN_FLIGHT = 10
"""Batches without an ordering key that are in flight at once; further messages gather."""
MIN_PAUSE, MAX_PAUSE = SECOND // 10, 5 * SECOND

M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full, how long it gathers (microseconds), and the limits of unconfirmed messages. None: no limit."""

    max_messages: int = 100
    max_bytes: int = 1 << 20
    max_wait: int = SECOND // 100
    max_outstanding_messages: int | None = None
    max_outstanding_bytes: int | None = None
    is_refusing: bool = False
    """Whether a message beyond the limits is refused; otherwise it waits, and the limits hold for messages in flight."""


class Batch(Generic[M, T]):
    """Messages that are sent together. `tickets`: one for each message, or, of an explicit batch, one for all."""

    __slots__ = ("due_at", "is_explicit", "is_marked", "lanes", "messages", "size", "tickets")

    def __init__(self, lanes: list[BatchLane[M, T]], due_at: int, *, is_marked: bool, is_explicit: bool = False) -> None:
        self.lanes = lanes
        self.due_at = due_at
        self.is_marked = is_marked
        self.is_explicit = is_explicit
        self.messages: list[M] = []
        self.tickets: list[T] = []
        self.size = 0

    @property
    def keys(self) -> list[str]:
        return [lane.key for lane in self.lanes if lane.key]


class BatchLane(Generic[M, T]):
    """The messages of one ordering key."""

    __slots__ = ("gathering", "in_flight", "is_listed", "is_paused", "is_watched", "key", "limit", "queued")

    def __init__(self, key: str) -> None:
        self.key = key
        self.limit = 1 if key else UNKEYED_IN_FLIGHT
        self.in_flight = 0
        self.gathering: Batch[M, T] | None = None
        self.queued: deque[Batch[M, T]] = deque()
        self.is_paused = False
        self.is_listed = False
        """Whether it is queued as a lane that may have something to send."""
        self.is_watched = False
        """Whether it has a timer."""


class Batching(Generic[M, T]):
    """The unconfirmed messages of one topic."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.messages = 0
        """The number of unconfirmed messages: gathering, queued or in flight."""
        self.bytes = 0
        self.unsettled: set[Batch[M, T]] = set()
        self._in_flight_messages = 0
        self._in_flight_bytes = 0
        self._lanes: dict[str, BatchLane[M, T]] = {}
        self._listed: deque[BatchLane[M, T]] = deque()
        self._timers: list[tuple[int, int, BatchLane[M, T]]] = []
        self._timers_made = 0

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(  # noqa: PLR0917  # once for each message: names would cost
        self, key: str, message: M, ticket: T, size: int, now: int, is_marked: bool = False
    ) -> bool:
        """Add a message; returns whether to call `take` at the end of this turn. PublishingPaused, ResourceExhausted.

        `is_marked`: it has a producer id of its own. Such messages and others never share a batch, because their requests are
        made idempotent in different ways.
        """
        limits = self.limits
        lane = self._lanes.get(key)
        if lane is not None and lane.is_paused:
            raise PublishingPaused(key)
        if limits.is_refusing:
            self._check_room(1, size)
        if lane is None:
            lane = self._lanes[key] = BatchLane(key)
        batch = lane.gathering
        if batch is not None and (batch.size + size > limits.max_bytes or batch.is_marked != is_marked):
            self._enqueue(lane, batch)
            batch = None
        is_news = False
        if batch is None:
            batch = lane.gathering = Batch([lane], now + limits.max_wait, is_marked=is_marked)
            self.unsettled.add(batch)
            is_news = lane.in_flight > 0 and self._watch(lane, batch.due_at)
        batch.messages.append(message)
        batch.tickets.append(ticket)
        batch.size += size
        self.messages += 1
        self.bytes += size
        if len(batch.messages) >= limits.max_messages or batch.size >= limits.max_bytes:
            self._enqueue(lane, batch)
        if not lane.is_listed and lane.in_flight < (lane.limit if lane.queued else 1):
            self._list(lane)
        return True if self._listed else is_news  # avoids a call of `bool`

    def check_batch(self, keys: set[str], *, messages: int, size: int) -> None:
        """Raise PublishingPaused or ResourceExhausted if an explicit batch cannot be accepted."""
        for key in sorted(keys):
            if key in self._lanes and self._lanes[key].is_paused:
                raise PublishingPaused(key)
        if self.limits.is_refusing:
            self._check_room(messages, size)

    def add_batch(self, keys: set[str], messages: list[M], ticket: T, *, size: int, is_marked: bool = False) -> None:
        """Add an explicit batch. It waits for its turn in the lane of each of its keys."""
        # Messages without a key have no order, so they do not delay a batch that has keys.
        lanes = [self._lanes.setdefault(key, BatchLane(key)) for key in sorted(keys - {""}) or [""]]
        batch = Batch(lanes, 0, is_marked=is_marked, is_explicit=True)
        batch.messages, batch.tickets, batch.size = messages, [ticket], size
        self.unsettled.add(batch)
        self.messages += len(messages)
        self.bytes += size
        for lane in lanes:
            if lane.gathering is not None:
                self._enqueue(lane, lane.gathering)
            lane.queued.append(batch)
            self._list(lane)

    def lacking(self, messages: int = 1, size: int = 0) -> str | None:
        """The limit that is reached: 'messages', 'bytes', or None. If nothing is unconfirmed there is always room."""
        limits = self.limits
        if self.messages:
            if limits.max_outstanding_messages is not None and self.messages + messages > limits.max_outstanding_messages:
                return "messages"
            if limits.max_outstanding_bytes is not None and self.bytes + size > limits.max_outstanding_bytes:
                return "bytes"
        return None

    def flush(self) -> None:
        for lane in self._lanes.values():
            if lane.gathering is not None:
                self._enqueue(lane, lane.gathering)
                self._list(lane)

    def resume(self, key: str) -> None:
        lane = self._lanes.get(key) if key else None
        if lane is not None:
            lane.is_paused = False
            self._forget(lane)

    # ── going out ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, now: int) -> Batch[M, T] | None:
        """The next batch to send, which is in flight from now on; None if there is none. Lanes take turns."""
        if self._timers and self._timers[0][0] <= now:
            self._ring(now)
        while self._listed:
            lane = self._listed[0]
            batch = self._head(lane)
            if batch is not None and not self._fits(batch):
                return None  # wait for the batch in flight
            self._listed.popleft()
            lane.is_listed = False
            if batch is not None:
                self._depart(batch)
                if lane.queued or lane.gathering is not None:
                    self._list(lane)
                return batch
            if lane.gathering is not None:
                self._watch(lane, lane.gathering.due_at)
        return None

    def next_due(self) -> int | None:
        """When to call `take` again, if nothing else happens before."""
        return self._timers[0][0] if self._timers else None

    def settle(self, batch: Batch[M, T]) -> None:
        self._in_flight_messages -= len(batch.messages)
        self._in_flight_bytes -= batch.size
        for lane in batch.lanes:
            lane.in_flight -= 1
            if lane.queued or lane.gathering is not None:
                self._list(lane)
        self._drop(batch)

    def pause(self, keys: list[str]) -> list[tuple[Batch[M, T], str]]:
        """Pause these keys because of a failure. Returns what waited behind it, with the key that stops each.

        A batch of several keys that fails this way pauses its other keys too: nothing may overtake there either.
        """
        stopped: list[tuple[Batch[M, T], str]] = []
        rest = [*reversed(keys)]
        while rest:
            key = rest.pop()
            lane = self._lanes.setdefault(key, BatchLane(key))
            if lane.is_paused:
                continue
            lane.is_paused = True
            if lane.gathering is not None:
                self._enqueue(lane, lane.gathering)
            waiting, lane.queued = lane.queued, deque()
            for batch in waiting:
                if batch in self.unsettled:  # it may have waited in a lane that was just paused
                    stopped.append((batch, key))
                    rest += [other for other in batch.keys if other != key]
                    self._drop(batch)
        return stopped

    def abandon(self) -> list[Batch[M, T]]:
        """Remove and return everything that is not in flight."""
        waiting: dict[Batch[M, T], None] = {}
        self.flush()
        for lane in [*self._lanes.values()]:
            waiting.update(dict.fromkeys(lane.queued))
            lane.queued.clear()
        for batch in waiting:
            self._drop(batch)
        return [*waiting]

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_room(self, messages: int, size: int) -> None:
        if (lacking := self.lacking(messages, size)) is not None:
            raise ResourceExhausted(
                f"Flow control: max {lacking} exceeded",
                hint="await topic.flow_controlled() before publishing, raise the limits, or choose on_limit='block'",
            )

    def _enqueue(self, lane: BatchLane[M, T], batch: Batch[M, T]) -> None:
        lane.gathering = None
        lane.queued.append(batch)

    def _list(self, lane: BatchLane[M, T]) -> None:
        if not lane.is_listed:
            lane.is_listed = True
            self._listed.append(lane)

    def _head(self, lane: BatchLane[M, T]) -> Batch[M, T] | None:
        if lane.in_flight >= lane.limit:
            return None
        if not lane.queued:
            return lane.gathering if not lane.in_flight else None
        batch = lane.queued[0]
        if len(batch.lanes) > 1 and any(other.in_flight or other.queued[0] is not batch for other in batch.lanes):
            return None  # the last of its lanes to become free finds it again
        return batch

    def _fits(self, batch: Batch[M, T]) -> bool:
        limits = self.limits
        if limits.is_refusing or not self._in_flight_messages:
            return True
        most, most_bytes = limits.max_outstanding_messages, limits.max_outstanding_bytes
        return (most is None or self._in_flight_messages + len(batch.messages) <= most) and (
            most_bytes is None or self._in_flight_bytes + batch.size <= most_bytes
        )

    def _depart(self, batch: Batch[M, T]) -> None:
        for lane in batch.lanes:
            if lane.gathering is batch:
                lane.gathering = None
            else:
                lane.queued.popleft()
            lane.in_flight += 1
        self._in_flight_messages += len(batch.messages)
        self._in_flight_bytes += batch.size

    def _watch(self, lane: BatchLane[M, T], due_at: int) -> bool:
        """Set a timer for a lane; returns whether it is new."""
        if lane.is_watched:
            return False
        lane.is_watched = True
        self._timers_made += 1  # lanes cannot be compared
        heapq.heappush(self._timers, (due_at, self._timers_made, lane))
        return True

    def _ring(self, now: int) -> None:
        """Close the batches whose gathering time is over."""
        while self._timers and self._timers[0][0] <= now:
            _, _, lane = heapq.heappop(self._timers)
            lane.is_watched = False
            batch = lane.gathering
            if batch is not None and batch.due_at <= now:
                self._enqueue(lane, batch)
                self._list(lane)
            elif batch is not None:
                self._watch(lane, batch.due_at)

    def _drop(self, batch: Batch[M, T]) -> None:
        self.unsettled.discard(batch)
        self.messages -= len(batch.messages)
        self.bytes -= batch.size
        for lane in batch.lanes:
            if lane.key:
                self._forget(lane)

    def _forget(self, lane: BatchLane[M, T]) -> None:
        if not (lane.in_flight or lane.queued or lane.gathering is not None or lane.is_paused):
            self._lanes.pop(lane.key, None)


@dataclass(slots=True)
class RetryWindow:
    """How long a failed batch is retried: until a deadline, with growing delays."""

    until: int
    failures: int = field(default=0, init=False)
    refusal: PenstockError | None = field(default=None, init=False)
    """Why the last attempt failed; reset by a new attempt."""

    def pause(self, error: PenstockError, now: int) -> int | None:
        """Microseconds to wait before the next attempt; None if there must be none.

        After a refusal nothing is stored, so a retry duplicates nothing. If the server was unreachable, or its journal
        uncertain, that is unknown, and the link has retried for long enough, under the mark by which the log knows a repeat.
        """
        if not error.transient or isinstance(error, ServerUnreachable | JournalUncertain):
            return None
        self.failures += 1
        self.refusal = error
        pause = exponential(self.failures, MIN_PAUSE, MAX_PAUSE)
        if isinstance(error, RateLimited):
            pause = max(round(error.retry_after * SECOND), 1)
        return pause if now + pause < self.until else None
