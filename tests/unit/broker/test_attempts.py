"""What a router tried, in the event log: stored, in rows, in columns, and by the ids of messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import Broker, QueueManager
from penstock.broker.history import life_of, record, rows
from penstock.ids import message_id
from penstock.journal.core import events
from penstock.journal.core.checkpoint import State
from penstock.journal.core.events import Attempted
from penstock.log.arrow import EVENTS, read_events
from penstock.testing import ManualClock

AT = 1_767_225_600_000_000


def foreign(*ids: str, **changes: Any) -> Attempted:
    told = Attempted(None, AT, None, None, [*ids], "orders", "P", "https://shop/hook", 1, 1, 200, 1_500, "SUCCESS", "")
    return msgspec.structs.replace(told, **changes)


def local(queue: int, offsets: list[int], **changes: Any) -> Attempted:
    return foreign(*(f"order-{offset}" for offset in offsets), queue=queue, offsets=offsets, published=AT, **changes)


def test_the_stored_form_is_small_where_all_attempts_say_the_same() -> None:
    many = foreign(*(f"id{number:04}" for number in range(1_000)))
    assert events.decode(events.encode([many])) == [many]
    assert len(events.encode([many])) / 1_000 < 8


def test_attempts_of_other_queues_are_known_by_the_ids_that_messages_have() -> None:
    first, second = rows(7, foreign("a", "b", pools=["P", "Q"], statuses=[200, 503], errors=["", "503"]), {})
    assert (first.offset, first.kind, first.stream, first.queue, first.message_offset) == (7, "attempted", None, None, None)
    assert (first.message_id, first.attempt, first.consumer) == ("a", 1, "P")
    assert first.detail == {
        "target": "https://shop/hook",
        "status": "200",
        "duration": "1500",
        "outcome": "SUCCESS",
        "calls": "1",
        "queue": "orders",
    }
    assert (second.offset, second.message_id, second.consumer) == (8, "b", "Q")
    assert (second.detail["status"], second.detail["error"]) == ("503", "503")


def test_attempts_of_a_queue_of_this_broker_are_known_by_their_places() -> None:
    (row,) = rows(0, local(4, [9], numbers=3), {4: 4})
    assert (row.stream, row.queue, row.message_offset, row.attempt) == (4, 4, 9, 3)
    assert row.message_id == message_id(AT, 4, 9)
    assert row.detail["id"] == "order-9"


def test_attempts_of_a_queue_that_is_gone_keep_the_ids_that_messages_have() -> None:
    (row,) = rows(0, local(4, [9]), {})
    assert (row.stream, row.queue, row.message_id) == (None, 4, "order-9")


def test_a_part_of_a_record_is_told_alone() -> None:
    told = record(foreign("a", "b", "c", pools=["P", "Q", "R"], durations=[1, 2, 3]), {}).cut(1, 2)
    assert (told.count, told.names, told.consumer, told.detail_of(0)["duration"]) == (1, ["b"], ["Q"], "2")
    told = record(local(4, [1, 2, 3]), {4: 4}).cut(2, 3)
    assert (told.count, told.offsets, told.detail_of(0)["id"]) == (1, [3], "order-3")


def test_the_state_of_queues_is_as_if_nothing_had_happened() -> None:
    state = State()
    state.replay([foreign("a"), local(4, [1])])
    assert state == State()


@pytest.fixture
def broker() -> Any:
    with Broker(clock=ManualClock()) as broker:
        yield broker


def emit(broker: Broker, *told: Attempted) -> None:
    with broker.lock:
        for event in told:
            broker.emit(event)


def test_columns_say_what_rows_say(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    queues.create("tasks")
    ids = [queues.publish("tasks", b"x").message_id for _ in range(3)]
    number = broker.catalog.work_queue("tasks").number
    published = int(ids[0][:14], 16)
    emit(
        broker,
        foreign("a", "b", "ü", pools=["P", "Q", "P"], targets=["t1", "t2", "t3"], errors=["", "no", ""], numbers=[1, 2, 3]),
        msgspec.structs.replace(local(number, [0, 1, 2]), published=published),
        foreign("alone"),
    )
    told = [row for batch in read_events(broker, batch_rows=2) for row in batch.to_pylist()]
    log = broker.journal.read_events(0, broker.journal.event_range()[1])
    wanted = [row for first, event in log for row in rows(first, event, {number: number})]
    for name in ("offset", "kind", "message_offset", "message_id", "attempt", "consumer"):
        assert [row[name] for row in told] == [getattr(row, name) for row in wanted], name
    assert [dict(row["detail"]) for row in told] == [row.detail for row in wanted]
    assert [row["subscription"] for row in told if row["kind"] == "attempted"] == [None] * 3 + ["tasks"] * 3 + [None]
    assert pa.Table.from_batches(read_events(broker), EVENTS).num_rows == len(wanted)


def test_a_message_is_found_by_either_of_its_ids(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    queues.create("tasks")
    published = [queues.publish("tasks", b"x").message_id for _ in range(2)]
    number = broker.catalog.work_queue("tasks").number
    taken = queues.consume("tasks")
    assert taken is not None
    emit(
        broker, msgspec.structs.replace(local(number, [0]), published=int(published[0][:14], 16)), foreign("a", "b"), foreign("a")
    )
    queues.nack("tasks", taken.message_id, requeue=False)

    kinds = ["published", "leased", "attempted", "dead_lettered"]
    assert [row.kind for row in broker.history(published[0])] == kinds
    assert [row.kind for row in broker.history("order-0")] == kinds
    assert [row.kind for row in broker.history(published[1])] == ["published"]
    assert [(row.kind, row.message_id) for row in broker.history("a")] == [("attempted", "a")] * 2
    assert broker.history("nobody") == []
    assert life_of(broker.journal, "f" * 30, {}) == []


def test_an_attempt_that_is_told_late_does_not_hide_that_a_message_is_dead(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    queues.create("tasks")
    queues.publish("tasks", b"x")
    taken = queues.consume("tasks")
    assert taken is not None
    queues.nack("tasks", taken.message_id, requeue=False)
    queues.purge_dead_letters("tasks")
    number = broker.catalog.work_queue("tasks").number
    emit(broker, msgspec.structs.replace(local(number, [0]), published=int(taken.message_id[:14], 16)))

    queues.retry_dead_letter("tasks", taken.message_id)  # it left the list, and is in the log
    assert queues.stats("tasks").depth == 1
