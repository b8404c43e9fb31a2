"""Streams and events as Arrow: the same offsets always give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker.arrow import EVENTS, MESSAGES, read_events, read_stream
from penstock.errors import InvalidArgument, OutOfRange, TopicNotFound
from penstock.testing import ManualClock


@pytest.fixture(params=["memory", "durable"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(clock=ManualClock(), data_dir=tmp_path / "data" if request.param == "durable" else None) as broker:
        yield broker


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=MESSAGES)


def test_a_stream_is_read_with_every_column(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    first = Message(b"\x00\xff", {"k": "v", "é": "ü"}, "user-1", priority=9, ttl=5)
    ids = queue.publish("orders", [first, Message(b"two")])
    rows = table(read_stream(broker, "orders")).to_pylist()

    assert [row["message_id"] for row in rows] == ids
    assert rows[0] | {"publish_time": None, "expires_at": None} == {
        "stream": "orders",
        "offset": 0,
        "message_id": ids[0],
        "key": "user-1",
        "value": b"\x00\xff",
        "attributes": [("k", "v"), ("é", "ü")],
        "priority": 9,
        "publish_time": None,
        "expires_at": None,
    }
    assert (rows[0]["expires_at"] - rows[0]["publish_time"]).total_seconds() == 5
    assert (rows[1]["key"], rows[1]["attributes"], rows[1]["expires_at"], rows[1]["value"]) == (None, None, None, b"two")


@pytest.mark.parametrize("size", [1, 3, 100, 257])
def test_any_range_gives_exactly_its_rows_however_they_were_published(broker: Broker, size: int) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    values = [str(number).encode() for number in range(600)]
    for start in range(0, len(values), size):
        queue.publish("orders", [Message(value) for value in values[start : start + size]])

    for start, stop in ((0, 600), (0, 1), (599, 600), (98, 303), (300, 300)):
        rows = table(read_stream(broker, "orders", start, stop, batch_rows=64))
        assert rows["value"].to_pylist() == values[start:stop]
        assert rows["offset"].to_pylist() == list(range(start, stop))


def test_columns_can_be_picked(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"x")])
    (batch,) = read_stream(broker, "orders", columns=["value", "offset"])
    assert batch.to_pylist() == [{"value": b"x", "offset": 0}]
    with pytest.raises(InvalidArgument, match="nonsense"):
        read_stream(broker, "orders", columns=["nonsense"])


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 2), (1, 0), (-1, 1)])
def test_a_range_that_the_log_does_not_hold_is_refused(broker: Broker, start: int, stop: int) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"x")])
    with pytest.raises(OutOfRange, match="which holds 0 to 1"):
        read_stream(broker, "orders", start, stop)


def test_a_topic_and_a_queue_of_one_name_are_told_apart(broker: Broker) -> None:
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    queues.create("orders")
    queues.publish("orders", "from the queue")
    assert table(read_stream(broker, "orders"))["value"].to_pylist() == [b"from the queue"]
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"from the topic")])

    assert table(read_stream(broker, "topic:orders"))["value"].to_pylist() == [b"from the topic"]
    assert table(read_stream(broker, "queue:orders"))["value"].to_pylist() == [b"from the queue"]
    with pytest.raises(TopicNotFound):
        read_stream(broker, "nothing")


def test_the_event_log_tells_what_happened_in_order_and_densely(broker: Broker) -> None:
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.publish("orders", [Message(b"a"), Message(b"b")])
    one, two = queue.pull("billing", 2)
    queue.modify_ack_deadline(one.ack_id, 5)
    queue.nack(one.ack_id)
    queue.ack(two.ack_id)
    queue.pause("billing")
    queue.resume("billing")
    queue.create_snapshot("here", "billing")
    queue.seek("billing", snapshot="here")
    queue.delete_snapshot("here")
    queues.create("tasks")
    queues.publish("tasks", "x")
    message = queues.consume("tasks", "worker")
    assert message is not None
    queues.nack("tasks", message.message_id, requeue=False, error="boom")
    queues.redrive("tasks")
    queues.purge("tasks")
    queues.release_consumer("tasks", "worker")
    queues.delete("tasks")
    queue.unregister_subscription("billing")
    queue.unregister_topic("orders")
    rows = pa.Table.from_batches(list(read_events(broker, batch_rows=5)), schema=EVENTS).to_pylist()

    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert [row["kind"] for row in rows] == [
        *("topic_created", "subscription_created", "published", "published", "leased", "leased", "extended", "nacked", "acked"),
        *("paused", "resumed", "snapshot_taken", "seeked", "snapshot_deleted", "queue_created", "published", "leased"),
        *("dead_lettered", "redriven", "dropped", "consumer_released", "queue_deleted", "queue_deleted", "topic_deleted"),
    ]
    dead = next(row for row in rows if row["kind"] == "dead_lettered")
    assert dict(dead["detail"]) == {"reason": "explicit_nack", "cause": "nacked", "error": "boom"}
    assert [row["offset"] for batch in read_events(broker, 3, 6) for row in batch.to_pylist()] == [3, 4, 5]
