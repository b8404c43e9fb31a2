"""Queries for what exists in a broker, for other packages: every function takes the lock itself and returns immutable values.

They do not process due work first, so that an event loop can call them: if that matters, call `Broker.catch_up` or
`AsyncBroker.advance` before.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.broker import Broker
from penstock.errors import QueueFull, SubscriptionFull
from penstock.journal.core.checkpoint import Position
from penstock.values.descriptions import QueueDescription, SnapshotDescription, StreamDescription
from penstock.values.policy import Overflow


def topic(broker: Broker, name: str) -> StreamDescription:
    """The topic with this name; TopicNotFound if there is none."""
    with broker.lock:
        return broker.catalog.topic(name).describe()


def find_topic(broker: Broker, name: str) -> StreamDescription | None:
    """The topic with this name, or None."""
    with broker.lock:
        stream = broker.catalog.topics.get(name)
        return stream.describe() if stream is not None else None


def topics(broker: Broker) -> list[StreamDescription]:
    with broker.lock:
        return [stream.describe() for stream in broker.catalog.topics.values()]


def find_stream(broker: Broker, number: int) -> StreamDescription | None:
    """The topic, or the stream of a work queue, with this number; None if it was deleted."""
    with broker.lock:
        stream = broker.catalog.streams.get(number)
        return stream.describe() if stream is not None else None


def subscription(broker: Broker, name: str) -> QueueDescription:
    """The subscription with this name; SubscriptionNotFound if there is none."""
    with broker.lock:
        return broker.catalog.subscription(name).description


def find_subscription(broker: Broker, name: str) -> QueueDescription | None:
    """The subscription with this name, or None."""
    with broker.lock:
        queue = broker.catalog.subscriptions.get(name)
        return queue.description if queue is not None else None


def subscriptions(broker: Broker, topic: str | None = None) -> list[QueueDescription]:
    """All subscriptions, also detached ones; or those attached to a topic."""
    with broker.lock:
        if topic is None:
            return [queue.description for queue in broker.catalog.subscriptions.values()]
        stream = broker.catalog.topics.get(topic)
        return [queue.description for queue in stream.queues] if stream is not None else []


def work_queue(broker: Broker, name: str) -> QueueDescription:
    """The work queue with this name; QueueNotFound if there is none."""
    with broker.lock:
        return broker.catalog.work_queue(name).description


def work_queue_spec(broker: Broker, name: str) -> bytes:
    """The stored settings of a work queue; QueueNotFound if there is none.

    It takes no lock: it is one dictionary look-up, for every publish.
    """
    return broker.catalog.work_queue(name).spec


def find_work_queue(broker: Broker, name: str) -> QueueDescription | None:
    """The work queue with this name, or None."""
    with broker.lock:
        queue = broker.catalog.work_queues.get(name)
        return queue.description if queue is not None else None


def work_queues(broker: Broker) -> list[str]:
    """The names of all work queues, in the order they were created."""
    with broker.lock:
        return [*broker.catalog.work_queues]


def queue_names(broker: Broker) -> dict[int, str]:
    """The names of all subscriptions and work queues, by their numbers."""
    with broker.lock:
        return {number: queue.name for number, queue in broker.catalog.queues.items()}


def snapshot(broker: Broker, name: str) -> SnapshotDescription:
    """The snapshot with this name; SnapshotNotFound if there is none."""
    with broker.lock:
        return _snapshot(broker, name, broker.catalog.snapshot(name))


def snapshots(broker: Broker) -> list[SnapshotDescription]:
    with broker.lock:
        return [_snapshot(broker, name, position) for name, position in broker.catalog.snapshots.items()]


def document(broker: Broker, name: str) -> bytes | None:
    """The document that another package has stored under a name, or None."""
    with broker.lock:
        return broker.catalog.documents.get(name)


def document_names(broker: Broker, prefix: str) -> list[str]:
    """The names of documents of other packages that begin with a prefix."""
    with broker.lock:
        return [name for name in broker.catalog.documents if name.startswith(prefix)]


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


def _snapshot(broker: Broker, name: str, position: Position) -> SnapshotDescription:
    stream = broker.catalog.streams.get(position.stream)
    return SnapshotDescription(name, stream.name if stream is not None else None, position.at, position.expires_at, position.spec)
