"""The state of one queue, and queries about it. The transitions are in `queue`.

The same state exists as plain data, a `QueueImage`: `image` returns it, `restore` takes it. A restart, a seek and the creation of
a queue all use `restore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappush
from typing import TypeVar

import msgspec

from penstock.broker.core.leases import Consumer, Lease, Leases
from penstock.broker.core.outcome import RestorePart, WaitReason
from penstock.broker.core.pages import Pages
from penstock.broker.core.waiting import Waiting
from penstock.durations import FOREVER
from penstock.journal.core.checkpoint import Counters, DeadLetterEntry, QueueImage, Trace
from penstock.journal.core.events import Event
from penstock.journal.core.ranges import Ranges, merge
from penstock.values.descriptions import QueueDescription
from penstock.values.filter import Filter
from penstock.values.message import StoredMessage
from penstock.values.policy import Policy

E = TypeVar("E", bound=Event)

MAX_IDLE_CONSUMERS = 10_000
_LEFTOVERS = 512


class QueueState:
    """The state of one subscription or work queue."""

    __slots__ = (
        "_consumers",
        "_expires_at",
        "_expiry_heap",
        "_filter",
        "_leases",
        "_pages",
        "_retire_at",
        "_traces",
        "_waiting",
        "absent",
        "backlog",
        "counters",
        "created_at",
        "dead",
        "dead_letter_room",
        "description",
        "detached",
        "epoch",
        "high",
        "name",
        "number",
        "paused",
        "policy",
        "scheduled",
        "size",
        "soonest",
        "spec",
        "stream",
    )

    def __init__(self, image: QueueImage, pages: Pages) -> None:
        self.number = image.number
        self.name = image.name
        self.stream = image.stream
        self.created_at = image.created_at
        self.policy: Policy = image.policy
        self.spec = image.spec
        self.detached = image.detached
        self.description = self._describe()
        """Its public description, a value that is replaced when it changes."""
        self.scheduled = FOREVER
        """When the shell will tick this queue; kept here to save a look-up."""
        self.soonest = FOREVER
        """Nothing is due before this instant."""
        self._retire_at = FOREVER
        self.dead_letter_room = 0
        """How many dead letters would be received in their topic; the shell sets it before commands that may need it."""
        self.absent: int | None = None
        self._pages = pages
        self._filter = Filter.parse(image.policy.filter) if image.policy.filter else None
        self.restore(image, (), 0)

    def restore(self, image: QueueImage, pieces: Iterable[RestorePart], now: int) -> None:
        """Load the state of an image; `pieces` cover its unsettled offsets in order, with messages where they are needed."""
        self.counters: Counters = image.counters
        self.dead: dict[int, DeadLetterEntry] = dict(image.dead)
        self.epoch = image.epoch
        self.paused = image.paused
        self.high = image.high
        self.backlog = 0
        """Every unsettled message: ready, delayed, waiting for its key, leased."""
        self.size = 0
        """Bytes of the backlog."""
        self._waiting = Waiting()
        self._leases = Leases()
        self._expires_at: dict[int, int] = {}
        self._expiry_heap: list[tuple[int, int]] = []
        self._traces: dict[int, Trace] = {}
        self._consumers = {name: Consumer(name) for name in image.consumers}
        oldest: int | None = None
        for piece in pieces:
            if oldest is None:
                first = self._pages.get(piece.first)
                oldest = first.publish_at if first is not None else piece.published_at
            if piece.messages is None:
                self._waiting.ready.add(piece.priority, piece.first, piece.first + piece.count)
                self.backlog += piece.count
                self.size += piece.size
                continue
            for offset, message in enumerate(piece.messages, piece.first):
                self._revive(offset, message, image, now)
        retention = self.policy.retention
        self._retire_at = oldest + retention if oldest is not None and retention is not None else FOREVER
        self.soonest = 0

    def image(self) -> QueueImage:
        """The state as plain data."""
        traces = {offset: msgspec.structs.replace(trace, due=self._waiting.due(offset)) for offset, trace in self._traces.items()}
        for lease in self._leases.live():
            trace = traces.setdefault(lease.offset, Trace())
            trace.attempts, trace.deadline, trace.epoch = lease.attempt, lease.deadline, lease.epoch
            trace.consumer = lease.consumer.consumer_id if lease.consumer else None
        return QueueImage(
            self.number,
            self.name,
            self.stream,
            self.created_at,
            self.policy,
            self.spec,
            self.high,
            self.unsettled(),
            traces,
            dict(self.dead),
            msgspec.structs.replace(self.counters),
            dict.fromkeys(self._consumers),
            self.epoch,
            self.paused,
            self.detached,
        )

    def _revive(self, offset: int, message: StoredMessage, image: QueueImage, now: int) -> None:
        trace = image.traces.get(offset)
        if trace is None:
            if offset < image.high or self._filter is None or self._filter.matches(message.attributes or {}):
                self._admit(offset, message, later(message.deliver_at, now), mortal=True)
            return
        if trace.deadline is None:
            self._traces[offset] = Trace(trace.attempts, trace.error, trace.cause, trace.immortal)
            self._admit(offset, message, later(trace.due, now), mortal=not trace.immortal)
            return
        if trace.attempts > 1 or trace.immortal:
            self._traces[offset] = Trace(trace.attempts - 1, trace.error, trace.cause, trace.immortal)
        self.backlog += 1
        self.size += message.size
        if not trace.immortal:
            self._track_expiry(offset, message)
        holder = None
        if trace.consumer is not None:
            holder = self._consumers.get(trace.consumer) or Consumer(trace.consumer)
            holder.held.add(offset)
            holder.size += message.size
            self._know(holder)
        if key := self._key(message):
            self._waiting.lanes.restore(key, offset, holder)
        lease = Lease(trace.deadline, offset, trace.attempts, trace.epoch, message, holder)
        self._leases.grant([lease], trace.deadline)

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    @property
    def in_flight_bytes(self) -> int:
        return self._leases.size

    @property
    def delayed(self) -> int:
        return self._waiting.delayed

    @property
    def ready(self) -> int:
        """Messages that wait and are not delayed: deliverable, or behind the first of their key."""
        return self.backlog - len(self._leases) - self._waiting.delayed

    @property
    def is_deliverable(self) -> bool:
        """Whether a message is deliverable now, to any consumer with room."""
        if not self.paused:
            for level in self._waiting.ready.levels:
                if level.count:
                    return True
        return False

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits: deliverable, delayed, or behind its key."""
        return self.backlog > len(self._leases.by_offset)

    @property
    def reserved(self) -> int:
        """How many messages are deliverable to one consumer only, which holds older messages of the same keys."""
        return self._waiting.lanes.reserved

    def is_reserved_for(self, consumer: str | None) -> bool:
        """Whether a message is deliverable now to this consumer only."""
        known = self._consumers.get(consumer) if consumer is not None else None
        return not self.paused and known is not None and known.reserved is not None and known.reserved.first() is not None

    def position(self, priority: int) -> int:
        """How many ready messages are before a new one of this priority."""
        return self._waiting.ahead(priority)

    def priorities(self) -> tuple[tuple[int, int], ...]:
        """(priority, how many are deliverable now), highest priority first; empty if all have the same priority."""
        levels = self._waiting.ready.levels
        return tuple((level.priority, level.count) for level in levels if level.count) if len(levels) > 1 else ()

    def consumers(self) -> list[str]:
        """Consumers that have received a message and were not released."""
        return list(self._consumers)

    def knows(self, consumer: str) -> bool:
        """Whether a consumer has received a message and was not released."""
        return consumer in self._consumers

    def holding(self, consumer: str) -> Consumer:
        """The leases of a consumer. Do not change them."""
        return self._consumers.get(consumer) or Consumer(consumer)

    def waiting(self) -> Ranges:
        """Every unsettled offset that is not leased."""
        return self._waiting.ranges()

    def unsettled(self) -> Ranges:
        return merge([*self._waiting.ranges(), *((lease.offset, lease.offset + 1) for lease in self._leases.live())])

    def oldest(self) -> int | None:
        """The oldest unsettled offset."""
        waiting, leased = self._waiting.oldest(), self._leases.oldest()
        return min((offset for offset in (waiting, leased) if offset is not None), default=None)

    def oldest_waiting(self) -> int | None:
        """The oldest waiting offset."""
        return self._waiting.oldest()

    def is_waiting(self, offset: int) -> bool:
        """Whether a message whose lease has just ended was requeued."""
        return offset in self._traces

    def is_unsettled(self, offset: int, message: StoredMessage) -> bool:
        """Whether a message is still to be delivered or settled here."""
        return self._leases.get(offset) is not None or self._waiting.holds(offset, self._key(message))

    def attempts(self, offset: int) -> int:
        """How many times a waiting message was delivered."""
        trace = self._traces.get(offset)
        return trace.attempts if trace is not None else 0

    def upcoming(self, most: int) -> list[int]:
        """The offsets that would be delivered next, in order."""
        return self._waiting.upcoming(most)

    def explain(self, offset: int, message: StoredMessage) -> WaitReason | None:
        """Why an unsettled message is not deliverable now; None if it is."""
        lease = self._leases.get(offset)
        if lease is not None:
            return WaitReason("leased", until=lease.deadline)
        key = self._key(message)
        if key and (head := self._waiting.lanes.head(key)) != offset:
            return WaitReason("key_blocked", by=head)
        due = self._waiting.due(offset)
        if due is not None:
            return WaitReason("delayed", until=due)
        if self.paused:
            return WaitReason("paused")
        policy, leases = self.policy, self._leases
        if (policy.flow_messages is not None and len(leases) >= policy.flow_messages) or (
            policy.flow_bytes is not None and leases.size >= policy.flow_bytes
        ):
            return WaitReason("flow_limit")
        return None

    def find(self, offset: int, attempt: int, epoch: int) -> Lease | None:
        """The live lease of exactly this delivery."""
        lease = self._leases.by_offset.get(offset)
        return lease if lease is not None and lease.attempt == attempt and lease.epoch == epoch else None

    @property
    def live(self) -> Mapping[int, Lease]:
        return self._leases.by_offset

    def lease_of(self, offset: int) -> Lease | None:
        """The live lease of a message, of any consumer."""
        return self._leases.by_offset.get(offset)

    def has_expired(self, offset: int) -> bool:
        """Whether the last lease of an unsettled or dead message expired."""
        last = self._traces.get(offset) or self.dead.get(offset)
        return last is not None and last.cause == "expired"

    def _admit(self, offset: int, message: StoredMessage, due: int | None, *, mortal: bool) -> None:
        self.backlog += 1
        self.size += message.size
        if mortal:
            self._track_expiry(offset, message)
        if due is not None:
            self.soonest = min(self.soonest, due)
        self._waiting.add(offset, message.priority, self._key(message), due)

    def _track_expiry(self, offset: int, message: StoredMessage) -> None:
        if message.expires_at is not None:
            self._expires_at[offset] = message.expires_at
            self._watch(offset, message.expires_at)

    def _watch(self, offset: int, expires_at: int) -> None:
        """Schedule a check of a message for the end of its TTL."""
        heappush(self._expiry_heap, (expires_at, offset))
        self.soonest = min(self.soonest, expires_at)
        if len(self._expiry_heap) > 2 * len(self._expires_at) + _LEFTOVERS:
            self._expiry_heap = [(instant, mortal) for mortal, instant in self._expires_at.items()]
            heapify(self._expiry_heap)

    def _describe(self) -> QueueDescription:
        return QueueDescription(self.number, self.name, self.stream, self.created_at, self.policy, self.spec, self.detached)

    def _key(self, message: StoredMessage) -> str:
        return message.key if self.policy.ordered else ""

    def _know(self, consumer: Consumer) -> None:
        if consumer.consumer_id not in self._consumers:
            if len(self._consumers) >= MAX_IDLE_CONSUMERS:
                self._consumers = {name: known for name, known in self._consumers.items() if known.held}
            self._consumers[consumer.consumer_id] = consumer

    def _is_full(self, count: int, size: int) -> bool:
        return self.backlog + count >= self.policy.capacity_messages or self.size + size >= self.policy.capacity_bytes

    def _noted(self, event: E) -> E:
        self.counters.note(event)
        return event


def later(instant: int | None, now: int) -> int | None:
    """The instant, if it is in the future."""
    return instant if instant is not None and instant > now else None
