"""The contents of a queue: its state in numbers, the next messages to deliver, and why a message waits. Nothing here changes it.

Every function first does what is due, and may read messages from the disk: in an event loop, call all but the numbers in a
thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.consumer import Find
from penstock.broker.core.queue import Queue
from penstock.durations import to_datetime
from penstock.ids import message_id, parse_message_id
from penstock.values.descriptions import QueueDescription
from penstock.values.message import StoredMessage
from penstock.values.queue import QueueStats
from penstock.values.subscription import Explanation, SubscriptionStats


class Waiting(NamedTuple):
    """A message that would be delivered next."""

    offset: int
    attempts: int
    """How many times it was delivered so far."""
    message: StoredMessage


class HeldMessage(NamedTuple):
    """A leased message."""

    message_id: str
    message: StoredMessage
    consumer: str | None
    attempt: int
    deadline: int
    leased_at: int
    """0: before the broker was opened."""


class UnsettledMessage(NamedTuple):
    """An unsettled message."""

    message_id: str
    message: StoredMessage
    attempts: int
    why: Explanation
    consumer: str | None
    """The holder."""


def upcoming(
    broker: Broker, find: Find, name: str, most: int, max_bytes: int | None = None
) -> tuple[QueueDescription, list[Waiting]]:
    """A queue, and the messages that would be delivered next, up to `max_bytes`, but at least one."""
    found: list[Waiting] = []
    size = 0
    with broker.present():
        queue = find(broker.catalog, name)
        stream = broker.catalog.streams.get(queue.stream)
        for offset in queue.upcoming(most):
            message = broker.message(stream, offset) if stream is not None else None
            if message is None:
                continue
            size += message.size
            if found and max_bytes is not None and size > max_bytes:
                break
            found.append(Waiting(offset, queue.attempts(offset), message))
        return queue.description, found


def subscription_stats(broker: Broker, name: str) -> SubscriptionStats:
    with broker.present() as now:
        queue = broker.catalog.subscription(name)
        counters = queue.counters
        return SubscriptionStats(
            queue.ready,
            queue.delayed,
            queue.in_flight,
            queue.in_flight_bytes,
            queue.backlog,
            queue.size,
            broker.oldest_age(queue, now),
            counters.delivered,
            counters.acked,
            counters.nacked,
            counters.expired,
            counters.dead_lettered,
            counters.discarded,
            counters.dead_letter_failures,
            counters.ttl_expired,
            counters.retired,
            queue.paused,
        )


def queue_stats(broker: Broker, name: str, connected: Collection[str] = ()) -> QueueStats:
    """The state of a work queue in numbers; `connected` consumers count also before their first delivery."""
    with broker.present() as now:
        queue = broker.catalog.work_queue(name)
        counters = queue.counters
        waits = counters.first_deliveries
        return QueueStats(
            queue=queue.name,
            depth=queue.ready,
            consumers=len({*queue.consumers(), *connected}),
            published_total=broker.catalog.streams[queue.stream].next_offset,
            consumed_total=counters.delivered,
            acked_total=counters.acked,
            nacked_total=counters.nacked,
            dead_lettered_total=counters.dead_lettered,
            avg_wait_time_ms=counters.waited / waits / 1000 if waits else 0.0,
            oldest_message_age_secs=broker.oldest_age(queue, now),
            delayed=queue.delayed,
            in_flight=queue.in_flight,
            in_flight_bytes=queue.in_flight_bytes,
            backlog_bytes=queue.size,
            expired_total=counters.expired,
            dead_letters=len(queue.dead),
            dead_letters_evicted_total=counters.evicted,
            ttl_expired_total=counters.ttl_expired,
            discarded_total=counters.discarded,
            paused=queue.paused,
        )


def explain(broker: Broker, find: Find, name: str, message_id: str) -> Explanation | None:
    """Why a message is not delivered now (`.reason` is None if nothing prevents it); None if it is not in the queue."""
    place = parse_message_id(message_id)
    with broker.present():
        queue = find(broker.catalog, name)
        if place is None or place[1] != queue.stream:
            return None
        stream = broker.catalog.streams.get(queue.stream)
        message = broker.message(stream, place[2]) if stream is not None else None
        if message is None or message.publish_at != place[0]:
            return None
        return _explain(broker, queue, place[2], message)


def unsettled(broker: Broker, find: Find, name: str, most: int) -> list[UnsettledMessage]:
    """The oldest unsettled messages of a queue, and why each waits."""
    with broker.present():
        queue = find(broker.catalog, name)
        found = [_unsettled(broker, queue, offset) for offset in _first(queue, most)]
    return [one for one in found if one is not None]


def oldest(broker: Broker, numbers: Iterable[int]) -> dict[int, UnsettledMessage]:
    """The oldest unsettled message of each of these queues, if any, and why it waits; by number of the queue."""
    found: dict[int, UnsettledMessage] = {}
    with broker.present():
        for number in numbers:
            queue = broker.catalog.queues.get(number)
            offset = queue.oldest() if queue is not None else None
            if queue is not None and offset is not None and (one := _unsettled(broker, queue, offset)) is not None:
                found[number] = one
    return found


def held(broker: Broker, number: int, most: int) -> list[HeldMessage]:
    """At most `most` leased messages of a queue; none if it was deleted. Reads nothing from the disk."""
    with broker.lock:
        queue = broker.catalog.queues.get(number)
        leases = [*islice(queue.live.values(), most)] if queue is not None else []
        return [
            HeldMessage(
                message_id(lease.message.publish_at, queue.stream, lease.offset),
                lease.message,
                lease.consumer.consumer_id if lease.consumer is not None else None,
                lease.attempt,
                lease.deadline,
                lease.leased_at,
            )
            for lease in leases
            if queue is not None
        ]


def oldest_times(broker: Broker, numbers: Iterable[int]) -> dict[int, int]:
    """When the oldest unsettled message of each queue was published, by number of the queue. Reads no messages."""
    found: dict[int, int] = {}
    with broker.lock:
        for number in numbers:
            queue = broker.catalog.queues.get(number)
            offset = queue.oldest() if queue is not None else None
            stream = broker.catalog.streams.get(queue.stream) if queue is not None else None
            if offset is not None and stream is not None and (at := broker.window.published_at(stream, offset)) is not None:
                found[number] = at
    return found


def _unsettled(broker: Broker, queue: Queue, offset: int) -> UnsettledMessage | None:
    stream = broker.catalog.streams.get(queue.stream)
    message = broker.message(stream, offset) if stream is not None else None
    why = _explain(broker, queue, offset, message) if message is not None else None
    if message is None or why is None:
        return None
    lease = queue.lease_of(offset)
    holder = lease.consumer.consumer_id if lease is not None and lease.consumer is not None else None
    name_of = message_id(message.publish_at, queue.stream, offset)
    return UnsettledMessage(name_of, message, queue.attempts(offset), why, holder)


def _explain(broker: Broker, queue: Queue, offset: int, message: StoredMessage) -> Explanation | None:
    if not queue.is_unsettled(offset, message):
        return None
    why = queue.explain(offset, message)
    if why is None:
        return Explanation(None)
    head = broker.message(broker.catalog.streams[queue.stream], why.by) if why.by is not None else None
    by = message_id(head.publish_at, queue.stream, why.by) if head is not None and why.by is not None else None
    return Explanation(why.reason, to_datetime(why.until) if why.until is not None else None, by)


def _first(queue: Queue, most: int) -> Iterator[int]:
    for start, stop in queue.unsettled():
        for offset in range(start, stop):
            if most <= 0:
                return
            most -= 1
            yield offset
