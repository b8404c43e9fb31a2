"""Rows 10–12 and 48–57 of the decisions: what the specifications leave open about work queues."""

import logging
import pickle
import threading
from dataclasses import asdict, fields, replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, DeadLetter, Message, MessageQueue, QueueConfig, QueueManager, QueueMessage
from penstock.errors import (
    AckDeadlineExceeded,
    ConsumerNotFound,
    InvalidArgument,
    MessageNotFound,
    QueueFull,
)
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def manager(manager: QueueManager) -> QueueManager:
    """Both kinds of manager, with a queue."""
    manager.create("tasks")
    return manager


def take(manager: QueueManager, queue: str = "tasks", **options: Any) -> QueueMessage:
    message = manager.consume(queue, **options)
    assert message is not None, "the queue has something to deliver"
    return message


def bury(manager: QueueManager, queue: str, *payloads: object) -> list[str]:
    """Publish and let die; returns the ids."""
    ids = [manager.publish(queue, payload).message_id for payload in payloads]
    for _ in ids:
        manager.nack(queue, take(manager, queue).message_id, requeue=False, error="boom")
    return ids


# ── ways to die ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_10_all_three_ways_to_die_reach_the_dead_letters_with_their_reason(
    manager: QueueManager, clock: ManualClock
) -> None:
    manager.publish("tasks", "tried", max_retries=0)
    manager.nack("tasks", take(manager).message_id)
    manager.publish("tasks", "refused")
    manager.nack("tasks", take(manager).message_id, requeue=False)
    manager.publish("tasks", "late", ttl=1)
    clock.advance(1)

    letters = manager.dead_letters("tasks")

    assert [(letter.message.payload, letter.reason) for letter in letters] == [
        ("tried", "max_retries_exceeded"),
        ("refused", "explicit_nack"),
        ("late", "ttl_expired"),
    ]
    assert [letter.attempts for letter in letters] == [1, 1, 0]


def test_decision_11_the_oldest_leaves_a_full_list_counted_and_warned_and_can_still_be_redriven(
    manager: QueueManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.create("small", QueueConfig(dead_letter_max_size=2))

    with caplog.at_level(logging.WARNING, "penstock"):
        ids = bury(manager, "small", "a", "b")
        assert caplog.messages == []
        ids += bury(manager, "small", "c")

    assert [letter.message.payload for letter in manager.dead_letters("small")] == ["b", "c"]
    stats = manager.stats("small")
    assert (stats.dead_letters_evicted_total, stats.dead_lettered_total) == (1, 3)
    assert any("small" in text for text in caplog.messages)
    assert [row.kind for row in manager.broker.history(ids[0])][-2:] == ["dead_lettered", "evicted"]
    manager.retry_dead_letter("small", ids[0])
    assert take(manager, "small").payload == "a"


def test_decision_12_a_requeue_counts_as_a_retry_and_the_message_dies_when_it_exceeds_the_most(manager: QueueManager) -> None:
    for most in (0, 1, 3):
        name = f"retries-{most}"
        manager.create(name, QueueConfig(max_retries=most))
        manager.publish(name, "job")

        for retry in range(most):
            message = take(manager, name)
            assert (message.retry_count, message.max_retries) == (retry, most)
            assert manager.nack(name, message.message_id).action == "requeued"
        last = take(manager, name)

        assert last.retry_count == most
        assert manager.nack(name, last.message_id).action == "dead_lettered"
        assert manager.dead_letters(name)[0].attempts == most + 1


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_48_position_is_1_based_among_the_ready_and_skips_leased_and_delayed(manager: QueueManager) -> None:
    manager.publish("tasks", "leased", priority=9)
    take(manager)
    manager.publish("tasks", "delayed", priority=9, delay=60)

    positions = [manager.publish("tasks", "x", priority=priority).position for priority in (5, 5, 9, 0, 5)]

    assert positions == [1, 2, 1, 4, 4]
    order = [message.priority for message in manager.consume_many("tasks")]
    assert order == [9, 5, 5, 5, 0]


@pytest.mark.parametrize("when", [{"delay": 60}, {"deliver_at": 3_000_000_000}], ids=lambda when: next(iter(when)))
def test_decision_48_a_delayed_message_has_no_position(manager: QueueManager, when: dict[str, Any]) -> None:
    manager.publish("tasks", b"ready")

    assert manager.publish("tasks", b"later", **when).position is None
    assert manager.publish("tasks", b"due already", delay=0).position == 2


def test_decision_48_every_position_is_exact_when_many_publish_at_once(manager: QueueManager) -> None:
    threads_count, each = 8, 10
    barrier = threading.Barrier(threads_count)
    positions: list[int] = []

    def work() -> None:
        barrier.wait(30)
        positions.extend([manager.publish("tasks", "x").position or 0 for _ in range(each)])

    threads = [threading.Thread(target=work) for _ in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(positions) == [*range(1, threads_count * each + 1)]


def test_decision_49_depth_counts_the_waiting_and_max_depth_also_the_leased(manager: QueueManager) -> None:
    manager.create("small", QueueConfig(max_depth=3))
    for payload in ("a", "b"):
        manager.publish("small", payload)
    held = take(manager, "small")
    manager.publish("small", "delayed", delay=60)

    assert manager.stats("small").depth == 1
    with pytest.raises(QueueFull):
        manager.publish("small", "d")
    assert manager.purge("small") == 2
    stats = manager.stats("small")
    assert (stats.depth, stats.delayed, stats.in_flight) == (0, 0, 1)
    manager.ack("small", held.message_id)


def test_decision_49_a_purged_message_does_not_become_a_dead_letter_when_its_ttl_ends(
    manager: QueueManager, clock: ManualClock
) -> None:
    manager.publish("tasks", "x", ttl=10)
    manager.purge("tasks")

    clock.advance(10)

    assert manager.dead_letters("tasks") == []
    assert manager.stats("tasks").dead_lettered_total == 0


def test_decision_50_counters_count_deliveries_and_leave_timeouts_out_of_the_nacked(
    manager: QueueManager, clock: ManualClock
) -> None:
    manager.publish("tasks", "a")
    clock.advance(4)
    manager.nack("tasks", take(manager).message_id)
    clock.advance(100)
    take(manager)
    clock.advance(30)
    manager.publish("tasks", "b", priority=9)
    clock.advance(2)
    manager.ack("tasks", take(manager).message_id)

    stats = manager.stats("tasks")

    assert (stats.consumed_total, stats.nacked_total, stats.expired_total, stats.acked_total) == (3, 1, 1, 1)
    assert stats.avg_wait_time_ms == 3_000


# ── fields and settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_51_messages_and_dead_letters_have_their_field_names(manager: QueueManager, clock: ManualClock) -> None:
    assert [field.name for field in fields(QueueMessage)] == (
        "message_id payload priority retry_count max_retries headers created_at".split()
    )
    assert [field.name for field in fields(DeadLetter)] == (
        "message reason original_queue dead_lettered_at attempts last_error".split()
    )
    [message_id] = bury(manager, "tasks", "job")

    [letter] = manager.dead_letters("tasks")
    assert (letter.message.message_id, letter.message.payload, letter.message.priority) == (message_id, "job", 5)
    assert (letter.original_queue, letter.reason, letter.attempts, letter.last_error) == ("tasks", "explicit_nack", 1, "boom")
    assert (letter.message.created_at, letter.dead_lettered_at, letter.dead_lettered_at.tzinfo) == (clock.time, clock.time, UTC)


def test_decision_51_results_work_with_the_functions_for_dataclasses(manager: QueueManager) -> None:
    result = manager.publish("tasks", {"a": 1})
    message = take(manager)

    assert asdict(result) == {"message_id": message.message_id, "position": 1}
    assert replace(message, payload="b") == QueueMessage(
        message.message_id, "b", 5, 0, message.max_retries, {}, message.created_at
    )
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(AttributeError):
        message.payload = "c"  # type: ignore[misc]  # that is the test


def test_decision_52_the_configuration_has_its_keys() -> None:
    assert [field.name for field in fields(QueueConfig)] == (
        "max_depth ack_deadline_secs max_retries default_priority default_prefetch max_prefetch message_ttl "
        "dead_letter_enabled dead_letter_max_size retry_policy overflow"
    ).split()


def test_decision_52_each_key_of_the_configuration_has_its_effect(manager: QueueManager, clock: ManualClock) -> None:
    config = QueueConfig(ack_deadline_secs=5, default_priority=2, default_prefetch=1, max_prefetch=2, message_ttl=20)
    manager.create("set", config)
    for payload in ("a", "b", "c"):
        manager.publish("set", payload)

    assert manager.config("set") == config
    first = take(manager, "set", consumer_id="w")
    assert first.priority == 2
    assert manager.consume("set", "w") is None
    assert take(manager, "set", consumer_id="w", prefetch=2).payload == "b"
    with pytest.raises(InvalidArgument):
        manager.consume("set", "w", prefetch=3)
    clock.advance(5)
    assert manager.stats("set").expired_total == 2
    clock.advance(15)
    assert [letter.reason for letter in manager.dead_letters("set")] == ["ttl_expired"] * 3


def test_decision_52_without_dead_letters_enabled_none_are_listed(manager: QueueManager) -> None:
    manager.create("plain", QueueConfig(dead_letter_enabled=False))

    bury(manager, "plain", "a")

    assert manager.dead_letters("plain") == []


@pytest.mark.parametrize(("overflow", "depth"), [("discard", 2), ("spill", 3)])
def test_decision_52_overflow_decides_what_happens_beyond_max_depth(manager: QueueManager, overflow: str, depth: int) -> None:
    manager.create("small", QueueConfig(max_depth=2, overflow=overflow))

    for payload in ("a", "b", "c"):
        manager.publish("small", payload)

    assert manager.stats("small").depth == depth
    assert manager.stats("small").discarded_total == 3 - depth


# ── consumers, redrive, time to live ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [-1, 0, 1])
def test_decision_53_a_late_ack_is_told_that_its_deadline_is_exceeded(
    manager: QueueManager, clock: ManualClock, after: int
) -> None:
    manager.publish("tasks", "x")
    message = take(manager)

    clock.advance(timedelta(seconds=30) + after * MICROSECOND)

    if after < 0:
        manager.ack("tasks", message.message_id)
        with pytest.raises(MessageNotFound):
            manager.ack("tasks", message.message_id)
    else:
        with pytest.raises(AckDeadlineExceeded):
            manager.ack("tasks", message.message_id)


def test_decision_53_a_late_ack_of_a_message_that_died_is_told_that_its_deadline_is_exceeded(
    manager: QueueManager, clock: ManualClock
) -> None:
    manager.publish("tasks", "x", max_retries=0)
    message = take(manager)
    clock.advance(30)

    assert len(manager.dead_letters("tasks")) == 1
    with pytest.raises(AckDeadlineExceeded):
        manager.ack("tasks", message.message_id)


def test_decision_53_an_ack_names_its_consumer_or_none(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "x")
    message = take(manager, consumer_id="w1")
    clock.advance(30)
    take(manager, consumer_id="w2")

    with pytest.raises(ConsumerNotFound):
        manager.ack("tasks", message.message_id, consumer_id="w1")
    with pytest.raises(ConsumerNotFound):
        manager.nack("tasks", message.message_id, consumer_id="w1")
    manager.ack("tasks", message.message_id)


def test_decision_54_a_waiting_consumer_ends_when_its_time_is_up(manager: QueueManager, clock: ManualClock) -> None:
    results: list[QueueMessage | None] = []
    started = threading.Event()

    def work() -> None:
        started.set()
        results.append(manager.consume("tasks", timeout=20))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(10)
    # The thread may not wait yet when the clock first moves, so it moves until the thread has seen its time go by.
    for _ in range(10_000):
        clock.advance(5)
        thread.join(0.001)
        if not thread.is_alive():
            break

    assert results == [None]


def test_decision_54_a_waiting_consumer_wakes_when_a_delayed_message_is_due(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "later", delay=5)
    results: list[QueueMessage | None] = []
    thread = threading.Thread(target=lambda: results.append(manager.consume("tasks", timeout=86_400)))
    thread.start()
    for _ in range(10_000):
        clock.advance(1)
        thread.join(0.001)
        if not thread.is_alive():
            break

    assert [message.payload for message in results if message] == ["later"]


def test_decision_54_a_released_consumer_gives_back_everything_without_counting_a_retry(manager: QueueManager) -> None:
    for number in range(3):
        manager.publish("tasks", number)
    held = manager.consume_many("tasks", "w1", max_messages=2)
    other = take(manager, consumer_id="w2")

    assert manager.release_consumer("tasks", "w1") == 2

    with pytest.raises(MessageNotFound):
        manager.ack("tasks", held[0].message_id)
    again = manager.consume_many("tasks", "w3")
    assert [(message.payload, message.retry_count) for message in again] == [(0, 0), (1, 0)]
    manager.ack("tasks", other.message_id, "w2")
    stats = manager.stats("tasks")
    assert (stats.nacked_total, stats.expired_total, stats.consumers) == (0, 0, 2)


def test_decision_54_a_consumer_that_holds_nothing_gives_back_none_and_one_that_never_consumed_is_not_found(
    manager: QueueManager,
) -> None:
    manager.publish("tasks", "x")
    manager.ack("tasks", take(manager, consumer_id="w1").message_id)

    assert manager.release_consumer("tasks", "w1") == 0
    with pytest.raises(ConsumerNotFound):
        manager.release_consumer("tasks", "stranger")


def test_decision_55_a_redriven_message_has_its_id_no_retries_and_no_ttl(manager: QueueManager, clock: ManualClock) -> None:
    message_id = manager.publish("tasks", "job", ttl=10, max_retries=1).message_id
    manager.nack("tasks", take(manager).message_id)
    clock.advance(10)
    assert manager.dead_letters("tasks")[0].reason == "ttl_expired"

    manager.retry_dead_letter("tasks", message_id)
    clock.advance(3600)

    for retry in (0, 1):
        message = take(manager)
        assert (message.message_id, message.retry_count) == (message_id, retry)
        manager.nack("tasks", message_id)
    assert manager.dead_letters("tasks")[0].reason == "max_retries_exceeded"


def test_decision_55_redrive_takes_what_a_predicate_picks_up_to_a_limit(manager: QueueManager) -> None:
    bury(manager, "tasks", *range(6))

    assert manager.redrive("tasks", where=lambda letter: letter.message.payload % 2 == 0, limit=2) == 2
    assert [message.payload for message in manager.consume_many("tasks")] == [0, 2]
    assert manager.redrive("tasks", limit=1) == 1
    assert manager.redrive("tasks") == 3
    assert manager.redrive("tasks") == 0
    assert [message.payload for message in manager.consume_many("tasks", "w2")] == [1, 3, 4, 5]


def test_decision_55_letters_are_put_back_and_removed_by_their_ids(manager: QueueManager) -> None:
    manager.create("others")
    ids = bury(manager, "tasks", *range(5))
    strangers = [*bury(manager, "others", "x"), "", "no id", ids[0][:-1]]

    assert manager.redrive("tasks", message_ids=[ids[3], *strangers, ids[1]]) == 2
    assert [message.payload for message in manager.consume_many("tasks")] == [1, 3]
    assert manager.redrive("tasks", message_ids=ids[:3], limit=1) == 1
    assert manager.purge_dead_letters("tasks", [ids[1], ids[4], *strangers]) == 1
    assert manager.redrive("tasks", message_ids=[]) == manager.purge_dead_letters("tasks", []) == 0
    assert [letter.message.message_id for letter in manager.dead_letters("tasks")] == [ids[2]]
    assert [row.kind for row in manager.broker.history(ids[4])][-1] == "purged"
    assert manager.stats("others").dead_letters == 1
    with pytest.raises(InvalidArgument, match="expected one or the other"):
        manager.redrive("tasks", where=lambda letter: True, message_ids=ids)


def test_decision_55_what_was_removed_by_its_id_stays_away_after_a_restart(tmp_path: Path) -> None:
    with QueueManager(data_dir=tmp_path) as manager:
        manager.create("tasks")
        ids = bury(manager, "tasks", "a", "b", "c")
        manager.purge_dead_letters("tasks", [ids[1]])
    with QueueManager(data_dir=tmp_path) as manager:
        assert [letter.message.payload for letter in manager.dead_letters("tasks")] == ["a", "c"]


@pytest.mark.parametrize("end", ["ack", "nack", "expiry", "release"])
def test_decision_56_a_ttl_that_passes_while_leased_applies_when_the_lease_ends(
    manager: QueueManager, clock: ManualClock, end: str
) -> None:
    manager.publish("tasks", "job", ttl=10)
    clock.advance(timedelta(seconds=10) - MICROSECOND)
    message = take(manager)
    clock.advance(15)
    assert manager.stats("tasks").in_flight == 1
    assert manager.dead_letters("tasks") == []

    if end == "ack":
        manager.ack("tasks", message.message_id)
    elif end == "nack":
        assert manager.nack("tasks", message.message_id).action == "dead_lettered"
    elif end == "release":
        manager.release_consumer("tasks", "default")
    else:
        clock.advance(15)

    reasons = [letter.reason for letter in manager.dead_letters("tasks")]
    assert reasons == ([] if end == "ack" else ["ttl_expired"])
    assert manager.consume("tasks") is None


# ── names and sharing ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_57_pause_stops_and_resume_continues_handing_out(manager: QueueManager) -> None:
    manager.publish("tasks", "x")

    manager.pause("tasks")
    assert manager.consume("tasks") is None
    assert manager.stats("tasks").paused
    manager.resume("tasks")
    assert take(manager).payload == "x"


def test_decision_57_publish_takes_delay_deliver_at_and_a_producers_sequence(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "delay", delay=5)
    manager.publish("tasks", "deliver_at", deliver_at=clock.time + timedelta(seconds=5))
    first = manager.publish("tasks", "once", producer_id="p", sequence=1)

    assert manager.publish("tasks", "once", producer_id="p", sequence=1).message_id == first.message_id
    assert [message.payload for message in manager.consume_many("tasks", "a")] == ["once"]
    clock.advance(timedelta(seconds=5) - MICROSECOND)
    assert manager.consume("tasks") is None
    clock.advance(MICROSECOND)
    assert [message.payload for message in manager.consume_many("tasks", "b")] == ["delay", "deliver_at"]


def test_decision_57_both_faces_share_one_broker_and_leave_it_open(clock: ManualClock, data_dir: Path | None) -> None:
    with Broker(clock=clock, data_dir=data_dir) as broker:
        with MessageQueue(broker=broker) as queue, QueueManager(broker=broker) as manager:
            queue.register_topic("same")
            queue.register_subscription("same", "same")
            manager.create("same")
            queue.publish("same", [Message(data=b"topic")])
            manager.publish("same", b"queue")

        assert [message.data for message in MessageQueue(broker=broker).pull("same", 10)] == [b"topic"]
        assert [message.payload for message in QueueManager(broker=broker).consume_many("same")] == [b"queue"]
        with pytest.raises(InvalidArgument):
            QueueManager(broker=broker, clock=clock)
