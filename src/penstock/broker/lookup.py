"""What exists in a broker, for other packages: every function takes the lock itself and returns values that do not change.

What is due does not happen first, so that an event loop can ask: call `Broker.catch_up` or `AsyncBroker.advance` before, where
that matters.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.broker import Broker
from penstock.errors import QueueFull, SubscriptionFull
from penstock.values.descriptions import QueueDescription, StreamDescription
from penstock.values.policy import Overflow


def find_topic(broker: Broker, name: str) -> StreamDescription | None:
    """The topic of that name, or None."""
    with broker.lock:
        stream = broker.catalog.topics.get(name)
        return stream.describe() if stream is not None else None


def find_stream(broker: Broker, number: int) -> StreamDescription | None:
    """The topic, or the stream of a work queue, that has this number; None when it was deleted."""
    with broker.lock:
        stream = broker.catalog.streams.get(number)
        return stream.describe() if stream is not None else None


def find_subscription(broker: Broker, name: str) -> QueueDescription | None:
    """The subscription of that name, or None."""
    with broker.lock:
        queue = broker.catalog.subscriptions.get(name)
        return queue.description if queue is not None else None


def find_work_queue(broker: Broker, name: str) -> QueueDescription | None:
    """The work queue of that name, or None."""
    with broker.lock:
        queue = broker.catalog.work_queues.get(name)
        return queue.description if queue is not None else None


def check_room(broker: Broker, counts: Mapping[int, int]) -> None:
    """QueueFull or SubscriptionFull if a stream, by its number, cannot take this many messages now."""
    with broker.lock:
        for number, count in counts.items():
            stream = broker.catalog.streams.get(number)
            if stream is None or not stream.may_refuse:
                continue
            for queue in stream.queues:
                if queue.policy.overflow == Overflow.REJECT and not queue.detached and queue.room() < count:
                    raise QueueFull(queue.name) if queue.number == number else SubscriptionFull(queue.name, stream.name)
