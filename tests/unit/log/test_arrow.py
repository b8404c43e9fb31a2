"""Streams and events as Arrow: the same offsets always give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import history
from penstock.broker.log_view import BrokerLog
from penstock.errors import FailedPrecondition, InvalidArgument, OutOfRange, TopicNotFound
from penstock.log import arrow
from penstock.log.arrow import DEAD_LETTERS, EVENTS, MESSAGES, dead_letter_parts, message_parts, read_events, read_stream
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
        "partition": 0,
    }
    assert (rows[0]["expires_at"] - rows[0]["publish_time"]).total_seconds() == 5
    assert (rows[1]["key"], rows[1]["attributes"], rows[1]["expires_at"], rows[1]["value"]) == (None, None, None, b"two")


def test_any_range_gives_exactly_its_rows_however_they_were_published(broker: Broker, subtests: pytest.Subtests) -> None:
    queue = MessageQueue(broker=broker)
    values = [str(number).encode() for number in range(600)]
    for size in (1, 3, 100, 257):
        with subtests.test(size=size):
            name = f"orders-{size}"
            queue.register_topic(name)
            for start in range(0, len(values), size):
                queue.publish(name, [Message(value) for value in values[start : start + size]])

            for start, stop in ((0, 600), (0, 1), (599, 600), (98, 303), (300, 300)):
                rows = table(read_stream(broker, name, start, stop, batch_rows=64))
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


def test_a_range_that_the_log_does_not_hold_is_refused(broker: Broker, subtests: pytest.Subtests) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"x")])
    for start, stop in ((0, 2), (2, 2), (1, 0), (-1, 1)):
        with subtests.test(start=start, stop=stop), pytest.raises(OutOfRange, match="which holds 0 to 1"):
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


def told(broker: Broker) -> list[dict[str, object]]:
    """The event log, row by row."""
    names = BrokerLog(broker).names()
    return [
        {
            "offset": row.offset,
            "at": datetime.fromtimestamp(row.at / 1e6, UTC),
            "kind": row.kind,
            "stream": None if row.stream is None else names.streams[row.stream],
            "subscription": None if row.queue is None else names.queues[row.queue],
            "message_offset": row.message_offset,
            "message_id": row.message_id,
            "attempt": row.attempt,
            "consumer": row.consumer,
            "detail": list(row.detail.items()),
        }
        for first, event in broker.journal.read_events(0, broker.journal.event_range()[1])
        for row in history.rows(first, event, names.stream_of)
    ]


def test_events_of_many_messages_are_told_in_columns_as_in_rows(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    clock = broker.clock
    assert isinstance(clock, ManualClock)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    for _ in range(3):
        queue.publish("orders", [Message(b"x")] * 70)
        clock.advance(1)
    for turn in range(4):
        deliveries = queue.pull("billing", 100)
        queue.modify_ack_deadline(deliveries[0].ack_id, 20 + turn)
        for each in deliveries[1:5]:
            queue.nack(each.ack_id)
        for each in deliveries[5:15]:
            queue.ack(each.ack_id)
        clock.advance(601)
    broker.sync()
    every = told(broker)
    assert len(every) > 500
    for start, stop, rows in ((0, len(every), 64), (5, 17, 5), (100, 101, 1), (60, 400, 1_000)):
        found = [row for batch in read_events(broker, start, stop, batch_rows=rows) for row in batch.to_pylist()]
        assert found == every[start:stop]
        sizes = [batch.num_rows for batch in read_events(broker, start, stop, batch_rows=rows)]
        assert max(sizes) < 2 * rows


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
    assert rows == told(broker), "what is told in columns is what is told in rows"
    dead = next(row for row in rows if row["kind"] == "dead_lettered")
    assert dict(dead["detail"]) == {"reason": "explicit_nack", "cause": "nacked", "error": "boom"}
    assert [row["offset"] for batch in read_events(broker, 3, 6) for row in batch.to_pylist()] == [3, 4, 5]


def test_the_names_of_what_was_deleted_stay_in_the_events(broker: Broker) -> None:
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.publish("orders", [Message(b"a")])
    [message] = queue.pull("billing")
    queue.ack(message.ack_id)
    queues.create("tasks")
    queues.publish("tasks", "x")
    before = list(read_events(broker))
    queues.delete("tasks")
    queue.unregister_subscription("billing")
    queue.unregister_topic("orders")
    queue.register_topic("orders")

    after = pa.Table.from_batches(read_events(broker), EVENTS)
    assert after.slice(0, sum(batch.num_rows for batch in before)).equals(pa.Table.from_batches(before, EVENTS))
    assert set(after["stream"].to_pylist()) == {"orders", "queue:tasks"}
    assert after["subscription"].to_pylist().count("billing") == 4


def test_ordering_keys_pick_messages(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    for start in range(0, 300, 100):
        keyed = [Message(str(n).encode(), ordering_key=f"k{n % 7}" if n % 2 else "") for n in range(start, start + 100)]
        queue.publish("orders", keyed)
        queue.publish("orders", [Message(b"plain")] * 50)
    view = BrokerLog(broker)
    span = view.span("orders")
    every = table(read_stream(broker, "orders")).to_pylist()
    for start, stop in ((0, 450), (10, 11), (77, 333), (450, 450)):
        for keys in (["k1"], ["k1", "k4"], ["missing"], [], [""]):
            parts = message_parts(view, span, start, stop, keys=keys, batch_rows=128)
            found = [row for batch, _ in parts for row in batch.to_pylist()]
            assert found == [row for row in every[start:stop] if row["key"] in keys]
    with pytest.raises(InvalidArgument, match="keys"):
        message_parts(view, span, 0, 1, keys="k1")


def test_every_part_says_where_to_go_on(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    for _ in range(10):
        queue.publish("orders", [Message(b"0123456789")] * 100)
    view = BrokerLog(broker)
    span = view.span("orders")
    parts = list(message_parts(view, span, 50, 950, batch_rows=200))
    assert [going_on for _, going_on in parts] == [50 + sum(b.num_rows for b, _ in parts[: n + 1]) for n in range(len(parts))]
    small = list(message_parts(view, span, 0, 1_000, batch_bytes=1_500))
    assert len(small) == 5
    assert small[-1][1] == 1_000


def test_a_stream_that_was_made_again_is_not_the_old_one(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"x")])
    view = BrokerLog(broker)
    span = view.span("orders")
    queue.unregister_topic("orders")
    with pytest.raises(TopicNotFound):
        message_parts(view, span, 0, 1)
    queue.register_topic("orders")
    with pytest.raises(FailedPrecondition, match=r"'orders' was deleted and recreated: its number is 2, expected 1"):
        message_parts(view, span, 0, 1)


def test_a_part_that_is_removed_while_it_is_read_is_named(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    for _ in range(4):
        queue.publish("orders", [Message(b"x" * 100)] * 100)
    view = BrokerLog(broker)
    span = view.span("orders")
    firsts = [summary.first for summary in broker.journal.summaries(span.number, 0, 400)]
    broker.journal.trim(span.number, firsts[1:3])
    parts = message_parts(view, span, 0, 400)
    assert next(parts)[1] == 100
    with pytest.raises(OutOfRange, match="offset 100 of 'orders' is not in the log, which holds 300 to 400"):
        next(parts)


def dead_letters(broker: Broker, start: int = 0, **options: object) -> list[dict[str, object]]:
    broker.sync()
    view = BrokerLog(broker)
    parts = dead_letter_parts(view, start, view.event_range()[1], **options)  # type: ignore[arg-type]
    return [row for batch, _ in parts for row in pa.Table.from_batches([batch], DEAD_LETTERS).to_pylist()]


def test_dead_letters_come_with_their_payloads(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    ids = {}
    for name in ("tasks", "other"):
        queues.create(name)
        ids[name] = [queues.publish(name, f"{name} {n}").message_id for n in range(3)]
        for _ in range(3):
            message = queues.consume(name)
            assert message is not None
            if message.payload != f"{name} 1":
                queues.nack(name, message.message_id, requeue=False, error="boom")

    found = dead_letters(broker)
    assert [(row["stream"], row["subscription"], row["message_offset"], row["value"]) for row in found] == [
        ("queue:tasks", "tasks", 0, b"tasks 0"),
        ("queue:tasks", "tasks", 2, b"tasks 2"),
        ("queue:other", "other", 0, b"other 0"),
        ("queue:other", "other", 2, b"other 2"),
    ]
    assert [row["message_id"] for row in found] == [ids["tasks"][0], ids["tasks"][2], ids["other"][0], ids["other"][2]]
    assert {(row["reason"], row["cause"], row["target"], row["error"], row["attempt"]) for row in found} == {
        ("explicit_nack", "nacked", None, "boom", 1)
    }
    number = BrokerLog(broker).span("queue:other").number
    assert [row["value"] for row in dead_letters(broker, streams={number: "shown"})] == [b"other 0", b"other 2"]
    assert {row["stream"] for row in dead_letters(broker, streams={number: "shown"})} == {"shown"}


def test_a_dead_letter_whose_message_has_left_keeps_its_row(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    queues.create("tasks")
    queues.publish("tasks", "x")
    message = queues.consume("tasks")
    assert message is not None
    queues.nack("tasks", message.message_id, requeue=False)
    number = BrokerLog(broker).span("queue:tasks").number
    broker.journal.trim(number, [0])
    [row] = dead_letters(broker)
    assert (row["value"], row["key"], row["attributes"], row["message_id"]) == (None, None, None, message.message_id)


def test_large_dead_letters_come_in_small_batches(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = QueueManager(broker=broker)
    queues.create("tasks")
    for _ in range(8):
        queues.publish("tasks", "x" * 1_000)
        message = queues.consume("tasks")
        assert message is not None
        queues.nack("tasks", message.message_id, requeue=False)
    broker.sync()
    monkeypatch.setattr(arrow, "BATCH_BYTES", 2_500)
    view = BrokerLog(broker)
    parts = list(dead_letter_parts(view, *view.event_range()))
    assert sum(batch.num_rows for batch, _ in parts) == 8
    if broker.is_durable:  # in memory the small ones share a chunk
        assert max(batch.num_rows for batch, _ in parts) <= 2


def test_columns_that_some_messages_have(broker: Broker, subtests: pytest.Subtests) -> None:
    rows: list[tuple[list[Message], str]] = [
        ([Message(b"", {"a": "1", "b": "2"}), Message(b"x"), Message(b"y", {"c": "é"})], "attributes"),
        ([Message(b"x", priority=n) for n in range(10)], "priority"),
        ([Message(b"x", ttl=n or None) for n in range(5)], "expires_at"),
        ([Message(b"x", ordering_key="k" * n) for n in range(5)], "key"),
    ]
    queue = MessageQueue(broker=broker)
    for messages, name in rows:
        with subtests.test(name):
            queue.register_topic(name)
            queue.publish(name, [Message(b"plain")] * 3)
            queue.publish(name, messages)
            queue.publish(name, [Message(b"plain")] * 3)
            found = table(read_stream(broker, name))
            found.validate(full=True)
            values = found[name].to_pylist()
            given = {
                "attributes": [list(message.attributes.items()) or None for message in messages],
                "priority": [message.priority for message in messages],
                "key": [message.ordering_key or None for message in messages],
            }
            plain = 5 if name == "priority" else None
            assert values[:3] == values[-3:] == [plain] * 3
            if name in given:
                assert values[3:-3] == given[name]
            else:
                assert [value is not None for value in values[3:-3]] == [bool(message.ttl) for message in messages]


def test_ids_and_offsets_are_right_where_their_digits_change(broker: Broker) -> None:
    """The last four digits of an offset come from a table: its ends are where it could go wrong."""
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    ids: list[str] = []
    for size in (65_530, 3, 5, 70_000, 1):
        ids += queue.publish("orders", [Message(b"x")] * size)
    found = table(read_stream(broker, "orders", columns=MESSAGES.names))
    assert found["message_id"].to_pylist() == ids
    assert found["offset"].to_pylist() == list(range(len(ids)))
    found.validate(full=True)
