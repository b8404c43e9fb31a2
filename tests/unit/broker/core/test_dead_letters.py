"""Messages that are dead-lettered for a given reason: leased ones, and waiting ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Broker, QueueConfig, QueueManager
from penstock.broker.core.outcome import Outcome
from penstock.broker.core.queue import Queue
from penstock.testing import ManualClock
from penstock.values.lease import Lease


@pytest.fixture
def queues() -> Iterator[QueueManager]:
    with Broker(clock=ManualClock()) as broker:
        queues = QueueManager(broker=broker)
        queues.create("tasks", QueueConfig(dead_letter_max_size=2))
        yield queues


def entry(queues: QueueManager) -> Queue:
    return queues.broker.catalog.work_queue("tasks")


def condemn(queues: QueueManager, error: str | None) -> None:
    message = queues.consume("tasks")
    assert message is not None
    lease = entry(queues).lease_of(int(message.message_id[20:], 16))
    assert lease is not None

    def end(queue: Queue, leases: list[Lease], now: int) -> Outcome:
        return queue.dead_letter_leased(leases, now, reason="malformed", error=error)

    with queues.broker.present() as now:
        queues.broker.settle(entry(queues), [lease], now, end)


def bury(queues: QueueManager, offset: int) -> None:
    queue, stream = entry(queues), queues.broker.catalog.work_stream("tasks")
    with queues.broker.present() as now:
        message = queues.broker.message(stream, offset)
        assert message is not None
        outcome = queue.dead_letter_waiting(offset, message, now, reason="ERROR_CONFIG", attempts=3, error="404")
        queues.broker.absorb(queue, outcome, now)


def test_a_held_message_dies_at_once_and_keeps_why(queues: QueueManager) -> None:
    queues.publish("tasks", b"x", max_retries=5)
    condemn(queues, "not JSON")
    [letter] = queues.dead_letters("tasks")
    assert (letter.reason, letter.attempts, letter.last_error) == ("malformed", 1, "not JSON")
    assert queues.stats("tasks").in_flight == 0
    assert queues.redrive("tasks") == 1
    assert queues.stats("tasks").depth == 1


@pytest.mark.parametrize("delay", [None, 600])
def test_a_waiting_message_dies_at_once_and_comes_back_by_a_redrive_alone(queues: QueueManager, delay: int | None) -> None:
    queues.publish("tasks", b"first", delay=delay)
    queues.publish("tasks", b"second")
    bury(queues, 0)
    [letter] = queues.dead_letters("tasks")
    assert (letter.message.payload, letter.reason, letter.attempts, letter.last_error) == (b"first", "ERROR_CONFIG", 3, "404")
    stats = queues.stats("tasks")
    assert (stats.depth, stats.delayed, stats.dead_lettered_total, stats.nacked_total) == (1, 0, 1, 0)
    second = queues.consume("tasks")
    assert second is not None
    assert second.payload == b"second"
    assert queues.consume("tasks") is None
    queues.redrive("tasks")
    first = queues.consume("tasks")
    assert first is not None
    assert (first.payload, first.retry_count) == (b"first", 0), "it waits no longer for its time"


def test_the_oldest_letter_leaves_a_list_that_is_full(queues: QueueManager) -> None:
    for _ in range(3):
        queues.publish("tasks", b"x")
    for offset in range(3):
        bury(queues, offset)
    assert len(queues.dead_letters("tasks")) == 2
    assert queues.stats("tasks").dead_letters_evicted_total == 1
