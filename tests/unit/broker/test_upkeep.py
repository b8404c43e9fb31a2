"""What a broker that runs for long must not do: lose by tidying, leak, stand still, or wait for ever."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.api import queue_manager
from penstock.broker import retention
from penstock.broker.core.queue import Queue
from penstock.errors import CorruptLog
from penstock.testing import ManualClock

WEEK = 7 * 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def as_after_a_crash(broker: Broker, at: Path) -> Broker:
    """A broker on a copy of the data directory, as a kill at this moment leaves it."""
    shutil.copytree(str(broker.journal.path), at)  # type: ignore[attr-defined]  # a journal on disk has a path
    return Broker(data_dir=at, clock=ManualClock())


def hold_the_pen(broker: Broker) -> threading.Lock:
    """What keeps the writer from writing anything more: a crash between two of its steps."""
    writer = broker._commits._writer
    assert writer is not None
    return writer.pen


def test_what_settled_a_message_is_on_disk_before_the_message_leaves_it(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(data_dir=tmp_path / "data", clock=clock) as broker:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        message_id = queues.publish("tasks", b"x").message_id
        assert queues.consume("tasks") is not None
        broker.sync()
        with hold_the_pen(broker):
            queues.ack("tasks", message_id)
            clock.advance(WEEK + 1)
            broker._commits._retention.run(clock.now())
            with as_after_a_crash(broker, tmp_path / "crashed") as survivor:
                assert QueueManager(broker=survivor).stats("tasks").acked_total == 1


def test_a_deletion_is_on_disk_before_its_messages_leave_it(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(data_dir=tmp_path / "data", clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"x")])
        with hold_the_pen(broker):
            with broker.lock:
                broker.emit(broker.catalog.delete_topic("orders", clock.now()))
            clock.advance(61)
            broker._commits._retention.run(clock.now())
            with as_after_a_crash(broker, tmp_path / "crashed") as survivor:
                assert not MessageQueue(broker=survivor).topic_exists("orders")


def test_the_writer_outlives_an_error_nobody_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageQueue(data_dir=tmp_path / "data") as queue:
        queue.register_topic("orders")
        with monkeypatch.context() as broken:
            broken.setattr(queue.broker._commits._retention, "run", lambda now: 1 / 0)
            broken.setattr(queue.broker._commits._retention, "due_at", 0)
            queue.register_topic("more")
        queue.register_topic("and more")
        assert queue.publish("and more", [Message(b"x")])


def inside(broker: Broker, name: str) -> Queue:
    return broker.catalog.work_queues[name]


def test_messages_that_expire_unread_leave_nothing_behind(clock: ManualClock) -> None:
    with QueueManager(clock=clock) as queues:
        queues.create("tasks", QueueConfig(message_ttl=1, dead_letter_max_size=10, max_depth=100_000))
        for _ in range(3_000):
            queues.publish("tasks", b"x")
            clock.advance(0.5)
        (level,) = inside(queues.broker, "tasks")._waiting.ready.levels

        assert queues.stats("tasks").depth <= 2
        assert len(level._gone) + len(level._returned) < 2_000


def test_times_to_live_of_settled_messages_are_forgotten(clock: ManualClock) -> None:
    with QueueManager(clock=clock) as queues:
        queues.create("tasks", QueueConfig(message_ttl=WEEK))
        queues.publish("tasks", b"held")
        assert queues.consume("tasks", "keeper", ack_deadline=86_400) is not None
        for _ in range(3_000):
            queues.publish("tasks", b"x")
            message = queues.consume("tasks")
            assert message is not None
            queues.ack("tasks", message.message_id)
        assert len(inside(queues.broker, "tasks")._expiry_heap) < 2_000


def test_a_consumer_waits_no_longer_than_it_said_though_the_clock_stands_still(clock: ManualClock) -> None:
    with QueueManager(clock=clock) as queues:
        queues.create("tasks")
        assert queues.consume("tasks", timeout=0.05) is None


def test_a_seek_keeps_what_the_subscription_holds_of_a_log_that_was_shed(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 100_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(ack_deadline_seconds=600))
        queue.publish("orders", [Message(b"held")])
        assert queue.pull("billing")
        for _ in range(600):
            queue.publish("orders", [Message(bytes(1_000))])
            queue.ack(queue.pull("billing")[0].ack_id)
        assert queue.broker.catalog.topics["orders"].earliest > 0
        assert queue.broker.catalog.topics["orders"].pages.size < 500_000

        queue.create_snapshot("now", "billing")
        queue.seek("billing", snapshot="now")

        assert [message.data for message in queue.pull("billing", 10)] == [b"held"]


def test_a_queue_whose_log_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data_dir=tmp_path / "data", clock=clock, window_bytes=0) as broker:
        queues = QueueManager(broker=broker)
        for name in ("sick", "well"):
            queues.create(name)
        queues.publish("sick", b"x", ttl=5)
        queues.publish("well", b"x", delay=5)
        sick = inside(broker, "sick").stream
        read = broker.window.fetch

        def fetch(stream: object, offset: int) -> object:
            if getattr(stream, "number", None) == sick:
                raise CorruptLog("data", "a page", "it is damaged")
            return read(stream, offset)  # type: ignore[arg-type]  # passed on as it came

        monkeypatch.setattr(broker.window, "fetch", fetch)
        clock.advance(6)
        assert queues.consume("well") is not None
        monkeypatch.undo()
        clock.advance(1)
        assert [letter.reason for letter in queues.dead_letters("sick")] == ["ttl_expired"]


def test_settings_of_queues_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_manager, "MAX_CONFIGS", 3)
    with QueueManager() as queues:
        for depth in range(1, 20):
            queues.create("tasks", QueueConfig(max_depth=depth))
            assert queues.config("tasks").max_depth == depth
            queues.delete("tasks")
            assert len(queues._configs) <= 3


def test_a_delivery_that_a_crash_forgot_does_not_lend_its_ack_id_to_the_next(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(data_dir=tmp_path / "data", clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"x")])
        with hold_the_pen(broker):
            (forgotten,) = queue.pull("billing")
            with as_after_a_crash(broker, tmp_path / "crashed") as survivor:
                (delivered,) = MessageQueue(broker=survivor).pull("billing")

    assert (delivered.id, delivered.delivery_attempt) == (forgotten.id, forgotten.delivery_attempt)
    assert delivered.ack_id != forgotten.ack_id
