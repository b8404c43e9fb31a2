"""Raw counters of all queues and topics, for clients that sample them regularly.

No rates and no ages: these need a clock or the disk. Request some hundred queues at a time, to hold the lock only briefly.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.broker.broker import Broker
from penstock.journal.core.checkpoint import QUEUE


class QueueCounters(msgspec.Struct, frozen=True, gc=False):
    """A subscription or work queue. The totals are since it was created."""

    number: int
    name: str
    is_work_queue: bool
    stream: int
    topic: str
    """Of a subscription: the name of its topic, also if that was deleted."""
    published: int
    """Messages published to its stream, in total."""
    backlog: int
    in_flight: int
    delayed: int
    size: int
    """Bytes of the backlog."""
    dead: int
    """Dead letters in its own list."""
    dead_lettered: int
    acked: int
    failed: int
    """Deliveries that were nacked or expired."""
    delivered: int
    consumers: int
    priorities: tuple[tuple[int, int], ...]
    """(priority, how many are deliverable now), the most urgent first; none where all have the same priority."""
    is_paused: bool
    is_detached: bool
    is_filtered: bool
    is_ordered: bool
    spec: bytes
    """The encoded settings."""

    @property
    def ready(self) -> int:
        return self.backlog - self.in_flight - self.delayed


class TopicCounters(msgspec.Struct, frozen=True, gc=False):
    """A topic."""

    number: int
    name: str
    published: int
    subscriptions: int
    retention: int | None
    """Microseconds."""
    created_at: int


def queue_numbers(broker: Broker) -> list[int]:
    """The numbers of all subscriptions and work queues."""
    with broker.lock:
        return [*broker.catalog.queues]


def topic_numbers(broker: Broker) -> list[int]:
    with broker.lock:
        return [stream.number for stream in broker.catalog.topics.values()]


def queues(broker: Broker, numbers: Iterable[int]) -> list[QueueCounters]:
    found = []
    with broker.lock:
        catalog = broker.catalog
        for number in numbers:
            queue = catalog.queues.get(number)
            if queue is None:
                continue
            stream = catalog.streams.get(queue.stream)
            counters, policy = queue.counters, queue.policy
            found.append(
                QueueCounters(
                    number,
                    queue.name,
                    queue.number == queue.stream,
                    queue.stream,
                    stream.name if stream is not None else "",
                    stream.next_offset if stream is not None else queue.high,
                    queue.backlog,
                    queue.in_flight,
                    queue.delayed,
                    queue.size,
                    len(queue.dead),
                    counters.dead_lettered,
                    counters.acked,
                    counters.nacked + counters.expired,
                    counters.delivered,
                    len(queue.consumers()),
                    queue.priorities(),
                    queue.paused,
                    queue.detached,
                    bool(policy.filter),
                    policy.ordered,
                    queue.spec,
                )
            )
    return found


def topics(broker: Broker, numbers: Iterable[int]) -> list[TopicCounters]:
    found = []
    with broker.lock:
        for number in numbers:
            stream = broker.catalog.streams.get(number)
            if stream is not None and stream.kind != QUEUE:
                found.append(
                    TopicCounters(
                        number, stream.name, stream.next_offset, len(stream.queues), stream.retention, stream.created_at
                    )
                )
    return found
