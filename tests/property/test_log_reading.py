"""The same range of the log always gives the same rows: of the live broker, after a restart, and from the data directory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker.log_view import BrokerLog, LogView
from penstock.log.arrow import MESSAGES, event_parts, message_parts
from penstock.log.directory import DirectoryLog
from penstock.testing import ManualClock
from tests.property.strategies import effort, patience

names = st.sampled_from(["a", "b", "c"])
messages = st.builds(
    Message,
    st.binary(min_size=1, max_size=8),
    st.dictionaries(st.sampled_from(["x", "é"]), st.text(max_size=3), max_size=2),
    st.sampled_from(["", "", "k1", "k2"]),
    priority=st.integers(0, 9),
    ttl=st.sampled_from([None, None, 5]),
)


class LogMachine(RuleBasedStateMachine):
    """A broker that is used and opened again, and everything that was ever read of it."""

    @initialize()
    def begin(self) -> None:
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "data"
        self._clock = ManualClock()
        self._open()
        self._log = DirectoryLog(self._path)
        self._events: list[dict[str, Any]] = []
        self._rows: dict[int, list[dict[str, Any]]] = {}

    def _open(self) -> None:
        self._broker = Broker(clock=self._clock, data_dir=self._path)
        self._queue, self._queues = MessageQueue(broker=self._broker), QueueManager(broker=self._broker)

    @rule(topic=names)
    def create_topic(self, topic: str) -> None:
        if topic not in self._broker.catalog.topics:
            self._queue.register_topic(topic)

    @rule(topic=names)
    def delete_topic(self, topic: str) -> None:
        if topic in self._broker.catalog.topics:
            self._queue.unregister_topic(topic)

    @rule(subscription=names, topic=names)
    def subscribe(self, subscription: str, topic: str) -> None:
        if subscription not in self._broker.catalog.subscriptions and topic in self._broker.catalog.topics:
            self._queue.register_subscription(subscription, topic)

    @rule(subscription=names)
    def unsubscribe(self, subscription: str) -> None:
        if subscription in self._broker.catalog.subscriptions:
            self._queue.unregister_subscription(subscription)

    @rule(queue=names)
    def make_or_delete_queue(self, queue: str) -> None:
        if queue in self._broker.catalog.work_queues:
            self._queues.delete(queue)
        else:
            self._queues.create(queue)

    @rule(topic=names, batch=st.lists(messages, min_size=1, max_size=5))
    def publish(self, topic: str, batch: list[Message]) -> None:
        if topic in self._broker.catalog.topics:
            self._queue.publish(topic, batch)

    @rule(queue=names)
    def work(self, queue: str) -> None:
        if queue in self._broker.catalog.work_queues:
            self._queues.publish(queue, "x")
            message = self._queues.consume(queue)
            if message is not None:
                self._queues.nack(queue, message.message_id, requeue=False, error="boom")

    @rule(subscription=names, most=st.integers(1, 5), is_good=st.booleans())
    def deliver(self, subscription: str, most: int, is_good: bool) -> None:
        queue = self._broker.catalog.subscriptions.get(subscription)
        if queue is not None and not queue.detached:
            for delivery in self._queue.pull(subscription, most):
                (self._queue.ack if is_good else self._queue.nack)(delivery.ack_id)

    @rule(seconds=st.sampled_from([0.001, 1, 20]))
    def wait(self, seconds: float) -> None:
        self._clock.advance(seconds)

    @rule()
    def checkpoint(self) -> None:
        self._broker.sync()
        self._broker.journal.checkpoint(self._broker.catalog.state())

    @rule()
    def restart(self) -> None:
        self._broker.close()
        self._open()

    @rule()
    def look_anew(self) -> None:
        self._log.close()
        self._log = DirectoryLog(self._path)

    @invariant()
    def the_same_range_gives_the_same_rows(self) -> None:
        if not hasattr(self, "_broker"):
            return
        self._broker.sync()
        live, stored = BrokerLog(self._broker), self._log._view
        assert sorted(live.spans(), key=str) == sorted(stored.spans(), key=str)
        assert live.event_range() == stored.event_range()
        assert live.names() == stored.names()
        told = events_of(live)
        assert events_of(stored) == told
        assert told[: len(self._events)] == self._events, "nothing that was told is told otherwise"
        self._events = told
        for span in live.spans():
            rows = rows_of(live, span.stream)
            assert rows_of(stored, span.stream) == rows
            known = self._rows.get(span.number, [])
            assert rows[: len(known)] == known
            self._rows[span.number] = rows
            low = len(rows) // 3
            assert rows_of(stored, span.stream, low) == rows[low:]
            assert rows_of(stored, span.stream, low, ["k1"]) == [row for row in rows[low:] if row["key"] == "k1"]

    def teardown(self) -> None:
        if hasattr(self, "_broker"):
            self._log.close()
            self._broker.close()
            self._folder.cleanup()


def events_of(view: LogView) -> list[dict[str, Any]]:
    return [row for batch, _ in event_parts(view, *view.event_range(), batch_rows=7) for row in batch.to_pylist()]


def rows_of(view: LogView, stream: str, start: int = 0, keys: list[str] | None = None) -> list[dict[str, Any]]:
    span = view.span(stream)
    parts = message_parts(view, span, start, span.latest, keys=keys, batch_rows=4)
    return [row for batch, _ in parts for row in pa.Table.from_batches([batch], MESSAGES).to_pylist()]


TestLog = LogMachine.TestCase
TestLog.settings = effort(0.4)
TestLog = patience(TestLog)
