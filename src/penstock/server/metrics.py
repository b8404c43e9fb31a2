"""The metrics of a server: those of its process, and those of its broker for each topic, subscription and queue.

Of each kind at most `metrics_max_series` have series of their own, so that a response stays small. The totals of a project
count all of them.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Literal, NamedTuple

from penstock.api.message_queue import MessageQueue
from penstock.api.queue_manager import QueueManager
from penstock.broker import lookup
from penstock.broker.broker import Broker
from penstock.clock import Clock, SystemClock
from penstock.durations import SECOND
from penstock.errors import NotFound
from penstock.http.monitoring.samples import Collector, Metric, Sample
from penstock.values.projects import Projects

_START = Metric("process_start_time_seconds", "gauge", "When this process began to serve, in seconds since 1970.")
_RSS = Metric("process_resident_memory_bytes", "gauge", "Memory that this process holds.")
_CPU = Metric("process_cpu_seconds_total", "counter", "Processor time that this process used, user and system.")
_FDS = Metric("process_open_fds", "gauge", "Open files and sockets.")
_MAX_FDS = Metric("process_max_fds", "gauge", "How many files and sockets may be open.")
_LAG = Metric("penstock_event_loop_lag_seconds", "gauge", "The longest the event loop was late since the last scrape.")
_VERSION = Metric("penstock_info", "gauge", "Always 1; the label is the version that runs.", ("version",))

_PROC = Path("/proc/self")

SLICE = 16
YIELD_SECONDS = 0.0005
"""The pause of the collecting thread after each slice, so that the event loop gets the interpreter."""

_HEALTHY = Metric("penstock_journal_healthy", "gauge", "1 while the journal can write, 0 while it cannot.")
OLDEST = "oldest_age_seconds"

MAX_SERIES = 1_000
"""The limit of topics, subscriptions and queues with series of their own."""


class LoopLag:
    """Measures how late timers of the event loop fire. Start it in the loop; `worst` can be called in any thread."""

    INTERVAL_SECONDS = 0.25

    def __init__(self) -> None:
        self._worst = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring."""
        loop = asyncio.get_running_loop()

        def tick(due: float) -> None:
            now = loop.time()
            self._worst = max(self._worst, now - due)
            self._timer = loop.call_at(now + self.INTERVAL_SECONDS, tick, now + self.INTERVAL_SECONDS)

        if self._timer is None:
            tick(loop.time())

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def worst(self) -> float:
        """The largest lag since the last call, in seconds."""
        worst, self._worst = self._worst, 0.0
        return worst


def process_collector(*, version: str, lag: LoopLag | None = None, clock: Clock | None = None) -> Collector:
    """The metrics of this process."""
    started = (clock or SystemClock()).now() / SECOND

    def collect() -> Iterator[Sample]:
        yield Sample(_VERSION, (version,), 1)
        yield Sample(_START, (), started)
        times = os.times()
        yield Sample(_CPU, (), times.user + times.system)
        yield Sample(_MAX_FDS, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if _PROC.exists():
            yield Sample(_RSS, (), int((_PROC / "statm").read_text().split()[1]) * resource.getpagesize())
            yield Sample(_FDS, (), sum(1 for _ in (_PROC / "fd").iterdir()))
        if lag is not None:
            yield Sample(_LAG, (), lag.worst())

    return collect


class _Family(NamedTuple):
    """The metrics of topics, subscriptions or queues: of one, of a project's, and the field of the stats that both show."""

    number: Metric
    rows: tuple[tuple[Metric, Metric, str], ...]


def _of(kind: str, rows: Sequence[tuple[str, str, str]]) -> _Family:
    """Metrics of one kind: (end of the name, field of the stats, meaning)."""

    def metrics(name: str, meaning: str) -> tuple[Metric, Metric]:
        how: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        all_of = f"The largest of all {kind}s of a project" if name == OLDEST else f"The sum over all {kind}s of a project"
        return (
            Metric(f"penstock_{kind}_{name}", how, meaning, ("project", kind)),
            Metric(f"penstock_{kind}s_{name}", how, f"{all_of}: {meaning[0].lower()}{meaning[1:]}", ("project",)),
        )

    number = Metric(f"penstock_{kind}s", "gauge", f"How many {kind}s a project has.", ("project",))
    return _Family(number, tuple((*metrics(name, meaning), field) for name, field, meaning in rows))


_TOPIC = _of("topic", [("published_total", "published_total", "Messages published to a topic.")])
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
        ("nacked_total", "nacked_total", "Deliveries that were nacked."),
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
        ("nacked_total", "nacked_total", "Deliveries that were nacked."),
        ("expired_total", "expired_total", "Deliveries whose deadline ran out."),
        ("ttl_expired_total", "ttl_expired_total", "Messages whose time to live ended."),
        ("dead_lettered_total", "dead_lettered_total", "Messages that became dead letters."),
        ("dead_letters", "dead_letters", "Dead letters in the list."),
    ],
)


def broker_collector(broker: Broker, projects: Projects | None = None, max_series: int = MAX_SERIES) -> Collector:
    """The numbers of everything in a broker. Thousands of queues are collected in slices, so that nobody waits for long.

    Of topics, subscriptions and queues the first `max_series` each have series of their own.
    """
    names = projects or Projects()
    subscriptions, queues = MessageQueue(broker=broker), QueueManager(broker=broker)

    def collect() -> Iterator[Sample]:
        yield Sample(_HEALTHY, (), 1 if broker.health is None else 0)
        broker.catch_up()
        published = {topic.name: _Topic(topic.next_offset) for topic in lookup.topics(broker)}
        of_topics, of_queues = [queue.name for queue in lookup.subscriptions(broker)], lookup.work_queues(broker)
        yield from _samples(_TOPIC, [*published], published.__getitem__, names, max_series)
        yield from _samples(_SUBSCRIPTION, of_topics, subscriptions.stats, names, max_series)
        yield from _samples(_QUEUE, of_queues, queues.stats, names, max_series)

    return collect


class _Topic(NamedTuple):
    published_total: int


def _samples(
    family: _Family, scoped: list[str], stats: Callable[[str], object], names: Projects, max_series: int
) -> Iterator[Sample]:
    pause = threading.Event()
    totals: dict[str, _Totals] = {}
    for position, name in enumerate(scoped, 1):
        try:
            state = stats(name)
        except NotFound:
            continue  # it was deleted since the names were read
        labels = names.split(name)
        values = [getattr(state, field) for _, _, field in family.rows]
        if position <= max_series:
            for (metric, _, _), value in zip(family.rows, values, strict=True):
                yield Sample(metric, labels, value)
        # Callers choose the number of projects, too: those beyond the limit share one sum, without a project.
        project = labels[0] if labels[0] in totals or len(totals) < max_series else ""
        totals.setdefault(project, _Totals(family)).add(values)
        if position % SLICE == 0:
            pause.wait(YIELD_SECONDS)
    for project, total in totals.items():
        yield Sample(family.number, (project,), total.count)
        for (_, metric, _), value in zip(family.rows, total.values, strict=True):
            yield Sample(metric, (project,), value)


class _Totals:
    """The numbers of all queues of a project."""

    def __init__(self, family: _Family) -> None:
        self.count = 0
        self.values: list[float] = [0] * len(family.rows)
        self._how = [max if metric.name.endswith(OLDEST) else add for metric, _, _ in family.rows]

    def add(self, values: list[float]) -> None:
        """Count one queue."""
        self.count += 1
        self.values = [how(total, value) for how, total, value in zip(self._how, self.values, values, strict=True)]
