"""The numbers of the broker: what was published, what waits, what became of it, for each topic, subscription and queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.broker.broker import Broker
from penstock.doors.monitoring.samples import Collector, Metric, Sample
from penstock.errors import NotFound
from penstock.message_queue import MessageQueue
from penstock.projects import Projects
from penstock.queue_manager import QueueManager
from penstock.subscription import SubscriptionStats
from penstock.work import QueueStats

SLICE = 16
BREATH_SECONDS = 0.0005
"""After each slice the collecting thread stands aside, or the event loop would wait for the interpreter again and again."""

_HEALTHY = Metric("penstock_journal_healthy", "gauge", "1 while the journal can write, 0 while it cannot.")
_PUBLISHED = Metric("penstock_topic_published_total", "counter", "Messages published to a topic.", ("project", "topic"))

_Fields = tuple[tuple[Metric, str], ...]


def _of(kind: str, rows: Sequence[tuple[str, str, str]]) -> _Fields:
    """Metrics of subscriptions or queues: (end of the name, field of the stats, meaning)."""
    return tuple(
        (
            Metric(f"penstock_{kind}_{name}", "counter" if name.endswith("_total") else "gauge", meaning, ("project", kind)),
            field,
        )
        for name, field, meaning in rows
    )


_SUBSCRIPTION = _of(
    "subscription",
    [
        ("backlog", "backlog", "Unsettled messages: waiting, delayed and in flight."),
        ("backlog_bytes", "backlog_bytes", "Bytes of the unsettled messages."),
        ("ready", "ready", "Messages that could be delivered now."),
        ("delayed", "delayed", "Messages that are kept back for a time."),
        ("in_flight", "in_flight", "Messages that are delivered and not settled."),
        ("in_flight_bytes", "in_flight_bytes", "Bytes of the messages in flight."),
        ("oldest_age_seconds", "oldest_age_seconds", "Age of the oldest unsettled message."),
        ("delivered_total", "delivered_total", "Deliveries, repeated ones too."),
        ("acked_total", "acked_total", "Messages that were acked."),
        ("nacked_total", "nacked_total", "Deliveries that were given back."),
        ("expired_total", "expired_total", "Deliveries whose deadline ran out."),
        ("dead_lettered_total", "dead_lettered_total", "Messages that went to the dead-letter topic."),
        ("discarded_total", "discarded_total", "Messages that found no room."),
        ("dead_letter_failures_total", "dead_letter_failures_total", "Dead letters that had nowhere to go, and stayed."),
    ],
)
_QUEUE = _of(
    "queue",
    [
        ("depth", "depth", "Messages that wait to be consumed."),
        ("bytes", "backlog_bytes", "Bytes of the unsettled messages."),
        ("delayed", "delayed", "Messages that are kept back for a time."),
        ("in_flight", "in_flight", "Messages that are consumed and not settled."),
        ("in_flight_bytes", "in_flight_bytes", "Bytes of the messages in flight."),
        ("oldest_age_seconds", "oldest_message_age_secs", "Age of the oldest unsettled message."),
        ("consumers", "consumers", "Consumers that hold messages or consumed before."),
        ("published_total", "published_total", "Messages published to the queue."),
        ("delivered_total", "consumed_total", "Deliveries, repeated ones too."),
        ("acked_total", "acked_total", "Messages that were acked."),
        ("nacked_total", "nacked_total", "Deliveries that were given back."),
        ("expired_total", "expired_total", "Deliveries whose deadline ran out."),
        ("ttl_expired_total", "ttl_expired_total", "Messages whose time to live ended."),
        ("dead_lettered_total", "dead_lettered_total", "Messages that became dead letters."),
        ("dead_letters", "dead_letters", "Dead letters in the list."),
    ],
)


def broker_collector(broker: Broker, projects: Projects | None = None) -> Collector:
    """The numbers of everything in a broker. Thousands of queues are collected in slices, so that nobody waits for long."""
    names = projects or Projects()
    subscriptions, queues = MessageQueue(broker=broker), QueueManager(broker=broker)

    def collect() -> Iterator[Sample]:
        yield Sample(_HEALTHY, (), 1 if broker.health is None else 0)
        with broker.present():
            published = [(name, stream.next_offset) for name, stream in broker.catalog.topics.items()]
            of_topics, of_queues = [*broker.catalog.subscriptions], [*broker.catalog.work_queues]
        for name, count in published:
            yield Sample(_PUBLISHED, names.split(name), count)
        yield from _samples(_SUBSCRIPTION, of_topics, subscriptions.stats, names)
        yield from _samples(_QUEUE, of_queues, queues.stats, names)

    return collect


def _samples(
    fields: _Fields, scoped: list[str], stats: Callable[[str], SubscriptionStats | QueueStats], names: Projects
) -> Iterator[Sample]:
    pause = threading.Event()
    for position, name in enumerate(scoped, 1):
        try:
            state = stats(name)
        except NotFound:
            continue  # it was deleted since the names were read
        labels = names.split(name)
        for metric, field in fields:
            yield Sample(metric, labels, getattr(state, field))
        if position % SLICE == 0:
            pause.wait(BREATH_SECONDS)
