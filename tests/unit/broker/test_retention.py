"""What leaves the log, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.broker import retention
from penstock.broker.arrow import read_stream
from penstock.errors import OutOfRange
from penstock.testing import ManualClock

WEEK = 7 * 86_400


@pytest.fixture(params=["memory", "durable"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Broker:
    return Broker(clock=clock, data_dir=tmp_path / "data" if request.param == "durable" else None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def settle_down(broker: Broker, queue: MessageQueue) -> None:
    """Publish once more, and wait until the writer has looked over the streams after that."""
    queue.publish("tick", [Message(b"tick")])
    for _ in range(3):
        broker.sync()


def test_a_settled_message_leaves_the_log_after_a_week(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "tick"):
            queue.register_topic(topic)
        queue.publish("orders", [Message(b"old")])
        clock.advance(WEEK)
        queue.publish("orders", [Message(b"new")])
        settle_down(broker, queue)

        assert [batch["value"].to_pylist() for batch in read_stream(broker, "orders", 1)] == [[b"new"]]
        with pytest.raises(OutOfRange, match="offset 0 of 'orders' is not in the log, which holds 1 to 2"):
            list(read_stream(broker, "orders", 0))


def test_a_message_that_a_work_queue_still_needs_never_leaves(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
        queue.register_topic("tick")
        queues.create("tasks")
        queues.publish("tasks", "waits")
        dead = queues.publish("tasks", "dies", priority=9).message_id
        assert queues.consume("tasks") is not None
        queues.nack("tasks", dead, requeue=False)
        for _ in range(3):
            clock.advance(WEEK)
            settle_down(broker, queue)

        assert [letter.message.payload for letter in queues.dead_letters("tasks")] == ["dies"]
        waiting = queues.consume("tasks")
        assert waiting is not None
        assert waiting.payload == "waits"


def test_what_a_deleted_topic_left_goes(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "tick"):
            queue.register_topic(topic)
        queue.publish("orders", [Message(b"x")])
        number = broker.catalog.topics["orders"].number
        assert number in broker.journal.streams()
        queue.unregister_topic("orders")
        clock.advance(61)
        settle_down(broker, queue)

        assert number not in broker.journal.streams()


def test_a_broker_in_memory_keeps_history_only_up_to_its_bound(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 100_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
        for _ in range(1_000):
            queue.publish("orders", [Message(bytes(1_000))])
            queue.ack(queue.pull("billing")[0].ack_id)

        stream = queue.broker.catalog.topics["orders"]
        assert stream.pages.size < 1_000_000 // 2
        assert stream.earliest > 0


def test_a_broker_in_memory_never_sheds_what_is_not_settled(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 100_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
        for number in range(1_000):
            queue.publish("orders", [Message(number.to_bytes(1_000))])

        assert [int.from_bytes(message.data) for message in queue.pull("billing", 1_000)] == list(range(1_000))


def test_a_cursor_that_nobody_sets_any_more_is_warned_of_once_a_day(
    broker: Broker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("tick")
        for name, holds in (("forgotten", True), ("harmless", False), ("busy", True)):
            broker.cursors.advance(name, {"tick": 0}, clock.now(), holds)
        for _ in range(8):
            clock.advance(86_400)
            broker.cursors.advance("busy", {"tick": 0}, clock.now())
            settle_down(broker, queue)
            settle_down(broker, queue)

        said = [record.getMessage() for record in caplog.records]
        assert said == [
            f"the cursor 'forgotten' was not set for {days} days and still holds the log: delete it if it is no more"
            for days in (7, 8)
        ]
