"""How much of a backlog is in memory: as much as the window holds, however large the messages are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.broker import retention, window
from penstock.broker.core import leases
from penstock.broker.core.pages import OVERHEAD
from penstock.broker.core.stream import Stream
from penstock.journal.journal import Journal
from penstock.testing import ManualClock

MB = 1024 * 1024
BUDGET = 3 * MB
MINUTE, DAY = 60, 86_400

Reopen = Callable[[], Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reopen(tmp_path: Path, clock: ManualClock) -> Iterator[Reopen]:
    """Each call closes the broker before and opens the same data directory again, with a small window."""
    with ExitStack() as stack:

        def open_again() -> Broker:
            stack.close()
            return stack.enter_context(Broker(data_dir=tmp_path / "data", clock=clock, window_bytes=BUDGET))

        yield open_again


def backlog(broker: Broker, clock: ManualClock, count: int, **options: object) -> MessageQueue:
    """A subscription that has so many messages of 1 MB to deliver, published a minute apart; the data begin with their number."""
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", SubscriptionOptions(**options))  # type: ignore[arg-type]
    for number in range(count):
        queue.publish("orders", [Message(bytes([number]) + bytes(MB - 1))])
        clock.advance(MINUTE)
    return queue


def orders(broker: Broker) -> Stream:
    return broker.catalog.topic("orders")


def refuse_to_read(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> object:
        raise AssertionError("messages are read from the disk")

    monkeypatch.setattr(journal, "read", read)


def test_large_messages_are_read_only_as_far_as_the_window_has_room(reopen: Reopen, clock: ManualClock) -> None:
    backlog(reopen(), clock, 12)
    broker = reopen()
    queue, received = MessageQueue(broker=broker), list[int]()
    while message := next(iter(queue.pull("billing")), None):
        received.append(message.data[0])
        queue.ack(message.ack_id)
        assert 0 < orders(broker).pages.size <= BUDGET
    assert received == list(range(12))


def test_two_subscriptions_at_different_places_of_a_page_share_the_window(reopen: Reopen, clock: ManualClock) -> None:
    queue = backlog(reopen(), clock, 8)
    queue.register_subscription("shipping", "orders")
    queue.seek("shipping", offset=0)
    queue.ack_many(message.ack_id for message in queue.pull("billing", 4))
    broker = reopen()
    queue = MessageQueue(broker=broker)
    for number in range(4):
        assert queue.pull("billing")[0].data[0] == number + 4
        assert queue.pull("shipping")[0].data[0] == number
        assert orders(broker).pages.size <= BUDGET


def test_many_small_messages_round_the_wanted_one_are_read_with_it(reopen: Reopen) -> None:
    queue = MessageQueue(broker=reopen())
    queue.register_topic("orders")
    for _ in range(3):
        queue.publish("orders", [Message(b"x") for _ in range(1_000)])
    broker = reopen()
    assert [(first, len(messages)) for first, messages in broker.window.fetch(orders(broker), 1_100)] == [
        (1_024, 976),
        (2_000, 48),
    ]


def test_small_messages_count_with_what_they_cost_beside_their_bytes(reopen: Reopen) -> None:
    broker = reopen()
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=100_000))
    for _ in range(20):
        queue.publish("orders", [Message(b"x") for _ in range(1_000)])
    resident = len(orders(broker).pages.span(0, 20_000))
    assert 10_000 <= resident <= BUDGET // OVERHEAD
    stats = queue.stats("billing")
    assert (stats.backlog, stats.backlog_bytes) == (20_000, 20_000)
    assert sum(len(queue.pull("billing", 1_000)) for _ in range(20)) == 20_000
    assert orders(broker).pages.size <= BUDGET


def test_one_message_that_is_larger_than_what_is_read_at_once_is_read_alone(
    reopen: Reopen, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog(reopen(), clock, 4)
    monkeypatch.setattr(window, "READ_BYTES", 1_000)
    broker = reopen()
    assert [(first, len(messages)) for first, messages in broker.window.fetch(orders(broker), 2)] == [(2, 1)]


def test_a_start_over_a_backlog_reads_no_message(reopen: Reopen, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog(reopen(), clock, 6, message_retention_duration=DAY)
    broker = reopen()
    refuse_to_read(broker.journal, monkeypatch)
    broker.catch_up()
    assert orders(broker).pages.size == 0


def test_what_is_too_old_leaves_also_when_it_is_not_in_memory_and_what_is_young_is_not_read(
    reopen: Reopen, clock: ManualClock
) -> None:
    backlog(reopen(), clock, 8, message_retention_duration=DAY)
    clock.advance(DAY - 4 * MINUTE)  # eight minutes after the first publish, less four: the first five are a day old
    broker = reopen()
    queue = MessageQueue(broker=broker)
    stats = queue.stats("billing")
    assert (stats.backlog, stats.retired_total) == (3, 5)
    assert orders(broker).pages.size <= BUDGET
    clock.advance(MINUTE)
    assert queue.stats("billing").backlog == 2
    assert queue.pull("billing")[0].data[0] == 6


def test_the_age_of_the_oldest_message_needs_no_look_at_messages(
    reopen: Reopen, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = reopen()
    backlog(broker, clock, 6)
    QueueManager(broker=broker).create("tasks")
    QueueManager(broker=broker).publish("tasks", b"x")
    clock.advance(MINUTE)
    broker = reopen()
    refuse_to_read(broker.journal, monkeypatch)
    assert MessageQueue(broker=broker).stats("billing").oldest_age_seconds == 7 * MINUTE
    assert QueueManager(broker=broker).stats("tasks").oldest_message_age_secs == MINUTE


def test_the_age_counts_what_is_leased(reopen: Reopen, clock: ManualClock) -> None:
    queue = backlog(reopen(), clock, 3)
    first, second = queue.pull("billing", 2)
    assert queue.stats("billing").oldest_age_seconds == 3 * MINUTE
    queue.ack(first.ack_id)
    assert queue.stats("billing").oldest_age_seconds == 2 * MINUTE
    queue.ack(second.ack_id)
    assert queue.stats("billing").oldest_age_seconds == MINUTE


def consume(queue: MessageQueue, size: int) -> None:
    """Publish a message, deliver it, fail it once, and settle it."""
    queue.publish("orders", [Message(bytes(size))])
    queue.nack(queue.pull("billing")[0].ack_id)
    queue.ack(queue.pull("billing")[0].ack_id)


@pytest.mark.parametrize("place", ["memory", "durable"])
def test_a_queue_that_is_always_empty_takes_memory_in_bytes_not_in_messages(
    place: str, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", BUDGET)
    monkeypatch.setattr(leases, "_LEFTOVER_BYTES", MB)
    data_dir = tmp_path if place == "durable" else None
    with Broker(data_dir=data_dir, clock=clock, window_bytes=BUDGET) as broker:
        queue = backlog(broker, clock, 0)
        for size in (MB, 100_000):
            count = 12 * MB // size
            tracemalloc.start()
            try:
                for _ in range(count):
                    consume(queue, size)
                kept, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert orders(broker).pages.size <= BUDGET
            assert kept < BUDGET + 3 * MB, f"{kept} bytes after {count} messages of {size}"


def test_large_messages_that_are_consumed_at_once_are_not_read_from_the_disk(
    reopen: Reopen, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = reopen()
    queue = backlog(broker, clock, 0)
    refuse_to_read(broker.journal, monkeypatch)
    for _ in range(8):
        consume(queue, MB)
        assert orders(broker).pages.size <= BUDGET
