"""Rows 1–9 and 30–36 of the decisions: where the specifications disagree, and how a message lives and dies."""

import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from penstock import (
    Broker,
    DeadLetterPolicy,
    Message,
    MessageQueue,
    QueueConfig,
    QueueManager,
    RetryPolicy,
    SubscriptionOptions,
    SubscriptionStats,
)
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)
Options = SubscriptionOptions


@pytest.fixture
def queue(queue: MessageQueue) -> MessageQueue:
    """Both kinds of queue, with a topic, a topic for dead letters and somebody who reads them."""
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("undertaker", "dead")
    return queue


def publish(queue: MessageQueue, *bodies: bytes, key: str = "") -> list[str]:
    return queue.publish("orders", [Message(data=body, ordering_key=key) for body in bodies])


def pulled(queue: MessageQueue, name: str = "billing") -> list[bytes]:
    return [message.data for message in queue.pull(name, 100)]


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


# ── where the specifications disagree ────────────────────────────────────────────────────────────────────────────────────


def test_decision_01_a_subscription_leases_for_10_seconds_and_a_queue_for_30(clock: ManualClock, data_dir: Path | None) -> None:
    with Broker(clock=clock, data_dir=data_dir) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        manager.create("tasks", QueueConfig())
        [message_id] = publish(queue, b"a")
        manager.publish("tasks", b"a")
        queue.pull("billing")
        task = manager.consume("tasks")
        assert task is not None

        explained = queue.explain("billing", message_id)
        assert explained is not None
        assert explained.until == clock.time + seconds(10)
        clock.advance(seconds(30) - MICROSECOND)
        manager.extend("tasks", task.message_id, 0.5)
        clock.advance(0.5)
        assert manager.stats("tasks").expired_total == 1


def test_decision_02_there_is_an_extension_by_n_and_a_deadline_of_now_plus_n(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders")
    publish(queue, b"by", b"to", b"back")
    by, to, back = queue.pull("billing", 3)
    clock.advance(4)

    queue.modify_ack_deadline(by.ack_id, 5)
    queue.set_ack_deadline(to.ack_id, 5)
    queue.set_ack_deadline(back.ack_id, 0)

    assert pulled(queue) == [b"back"]
    clock.advance(5)
    assert pulled(queue) == [b"to"]
    clock.advance(6)
    assert b"by" in pulled(queue)


def test_decision_04_the_default_overflow_discards_in_memory_and_spills_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for data_dir, expected in ((tmp_path, (3, 0, 0)), (None, (2, 1, 1))):
        with MessageQueue(data_dir=data_dir) as queue, caplog.at_level(logging.WARNING, "penstock"):
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders", Options(max_messages=2))
            publish(queue, b"a", b"b", b"c")

            stats = queue.stats("billing")
            assert (stats.backlog, stats.discarded_total, len(caplog.messages)) == expected


def test_decision_04_spill_keeps_the_backlog_in_the_log_and_a_window_in_memory(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(clock=clock, data_dir=tmp_path, window_bytes=2_000) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", Options(max_messages=10))
        bodies = [b"%03d" % number * 30 for number in range(300)]
        for start in range(0, 300, 50):
            publish(queue, *bodies[start : start + 50])

        got: list[bytes] = []
        while batch := pulled(queue):
            got += batch

        assert got == bodies
        assert queue.stats("billing").discarded_total == 0


def test_decision_05_a_deleted_topic_leaves_its_name_on_the_detached_subscription(
    restart_queue: Callable[[], MessageQueue], clock: ManualClock
) -> None:
    queue = restart_queue()
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, b"a", b"b")
    [leased] = queue.pull("billing")
    queue.unregister_topic("orders")

    for _ in range(2):
        found = queue.get_subscription("billing")
        assert found is not None
        assert (found.topic, found.detached) == ("orders", True)
        clock.advance(60)
        assert queue.stats("billing").backlog == queue.stats("billing").expired_total == 0
        assert queue.ack_many([leased.ack_id]) == [leased.ack_id]
        queue = restart_queue()


@pytest.mark.parametrize("end", ["nack", "expiry"])
def test_decision_07_a_key_stays_blocked_while_its_head_waits_for_its_backoff(
    queue: MessageQueue, clock: ManualClock, end: str
) -> None:
    queue.register_subscription("billing", "orders", Options(message_ordering=True, retry_policy=RetryPolicy(20, 20)))
    publish(queue, b"1", b"2", key="x")
    publish(queue, b"free")
    publish(queue, b"other", key="y")
    head, *others = queue.pull("billing", 10)
    assert [message.data for message in others] == [b"free", b"other"]
    queue.ack_many(message.ack_id for message in others)

    if end == "nack":
        queue.nack(head.ack_id)
    else:
        clock.advance(10)
    clock.advance(seconds(20) - MICROSECOND)

    assert pulled(queue) == []
    clock.advance(MICROSECOND)
    [again] = queue.pull("billing", 10)
    assert again.data == b"1"
    queue.ack(again.ack_id)
    assert pulled(queue) == [b"2"]


def test_decision_07_a_dead_lettered_head_frees_its_key(queue: MessageQueue) -> None:
    queue.register_subscription(
        "billing", "orders", Options(message_ordering=True, dead_letter_policy=DeadLetterPolicy("dead", 1))
    )
    publish(queue, b"1", b"2", key="x")

    queue.nack(queue.pull("billing", 10)[0].ack_id)

    assert pulled(queue) == [b"2"]


def test_decision_07_a_head_that_is_not_due_yet_blocks_its_key_and_one_whose_ttl_ends_frees_it(
    queue: MessageQueue, clock: ManualClock
) -> None:
    queue.register_subscription("billing", "orders", Options(message_ordering=True))
    later = clock.time + seconds(5)
    queue.publish("orders", [Message(data=b"later", ordering_key="x", deliver_at=later), Message(data=b"next", ordering_key="x")])
    queue.publish("orders", [Message(data=b"short", ordering_key="y", ttl=5), Message(data=b"after", ordering_key="y")])

    assert [message.data for message in queue.peek("billing", 10)] == [b"short"]
    clock.advance(5)

    assert pulled(queue) == [b"later", b"after"]


def test_decision_08_without_its_dead_letter_topic_a_message_stays_and_the_failure_is_counted_and_warned(
    queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("missing", 2)))
    publish(queue, b"a")

    with caplog.at_level(logging.WARNING, "penstock"):
        for attempt in (1, 2, 3):
            [message] = queue.pull("billing")
            assert message.delivery_attempt == attempt
            queue.nack(message.ack_id)

    stats = queue.stats("billing")
    assert (stats.backlog, stats.dead_letter_failures_total, stats.dead_lettered_total) == (1, 2, 0)
    assert len([text for text in caplog.messages if "missing" in text]) == 2
    queue.register_topic("missing")
    queue.register_subscription("found", "missing")
    queue.nack(queue.pull("billing")[0].ack_id)
    assert queue.stats("billing").backlog == 0
    assert pulled(queue, "found") == [b"a"]


def test_decision_09_a_dead_letter_keeps_everything_and_says_why_it_died(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("dead", 2)))
    [message_id] = queue.publish("orders", [Message(data=b"a", attributes={"k": "v"}, ordering_key="x")])
    published = clock.time
    clock.advance(3)
    for _ in range(2):
        queue.nack(queue.pull("billing")[0].ack_id)

    [letter] = queue.pull("undertaker")

    assert (letter.data, letter.ordering_key, letter.publish_time) == (b"a", "x", published)
    assert (
        letter.attributes.items()
        >= {
            "k": "v",
            "penstock.reason": "max_retries_exceeded",
            "penstock.attempts": "2",
            "penstock.source": "billing",
            "penstock.source_message_id": message_id,
        }.items()
    )


def test_decision_30_ids_are_unique_across_all_streams_and_sort_by_time(clock: ManualClock, data_dir: Path | None) -> None:
    with Broker(clock=clock, data_dir=data_dir) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        manager.create("tasks")
        ids = []
        for topic in ("orders", "payments"):
            queue.register_topic(topic)
        for _ in range(3):
            ids += queue.publish("payments", [Message(data=b"x")])
            clock.advance(MICROSECOND)
            ids.append(manager.publish("tasks", b"x").message_id)
            clock.advance(MICROSECOND)
            ids += publish(queue, b"x", b"x")
            clock.advance(MICROSECOND)

    assert sorted(set(ids)) == ids


# ── the fine print: life and time ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("end", ["nack", "expiry"])
def test_decision_31_consumers_see_a_message_exactly_max_delivery_attempts_times(
    queue: MessageQueue, clock: ManualClock, most: int, end: str
) -> None:
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("dead", most)))
    publish(queue, b"a")

    attempts = []
    while batch := queue.pull("billing"):
        attempts.append(batch[0].delivery_attempt)
        if end == "nack":
            queue.nack(batch[0].ack_id)
        else:
            clock.advance(10)

    assert attempts == [*range(1, most + 1)]
    assert pulled(queue, "undertaker") == [b"a"]


def test_decision_32_backoff_counts_from_the_deadline_even_if_noticed_later(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders", Options(retry_policy=RetryPolicy(5, 60)))
    [first] = publish(queue, b"a")
    queue.pull("billing")

    clock.advance(12)
    explained = queue.explain("billing", first)
    assert explained is not None
    assert (explained.reason, explained.until) == ("delayed", clock.time + seconds(3))
    clock.advance(seconds(3) - MICROSECOND)
    assert queue.pull("billing") == []
    clock.advance(MICROSECOND)
    [second] = queue.pull("billing")
    clock.advance(20)
    [third] = queue.pull("billing")
    assert (second.delivery_attempt, third.delivery_attempt) == (2, 3)


@pytest.mark.parametrize("kind", ["lease", "ttl", "delay", "backoff"])
def test_decision_33_an_instant_is_over_when_now_reaches_it(queue: MessageQueue, clock: ManualClock, kind: str) -> None:
    queue.register_subscription("billing", "orders", Options(retry_policy=RetryPolicy(10, 10) if kind == "backoff" else None))
    message = Message(
        data=b"a",
        ttl=10 if kind == "ttl" else None,
        deliver_at=clock.time + seconds(10) if kind == "delay" else None,
    )
    queue.publish("orders", [message])
    if kind == "lease":
        queue.pull("billing")
    if kind == "backoff":
        queue.nack(queue.pull("billing")[0].ack_id)

    clock.advance(seconds(10) - MICROSECOND)
    assert bool(queue.peek("billing")) is (kind == "ttl")
    clock.advance(MICROSECOND)
    assert bool(queue.peek("billing")) is (kind != "ttl")


@pytest.mark.parametrize(
    "look",
    [
        lambda queue, message_id: queue.pull("billing") != [],
        lambda queue, message_id: queue.peek("billing") != [],
        lambda queue, message_id: queue.stats("billing").expired_total == 1,
        lambda queue, message_id: queue.explain("billing", message_id).reason is None,
        lambda queue, message_id: queue.broker.history(message_id)[-1].kind == "expired",
    ],
    ids=["pull", "peek", "stats", "explain", "history"],
)
def test_decision_34_what_became_due_shows_in_the_next_call_of_any_kind(
    queue: MessageQueue, clock: ManualClock, look: Callable[[MessageQueue, str], bool]
) -> None:
    queue.register_subscription("billing", "orders")
    [message_id] = publish(queue, b"a")
    queue.pull("billing")

    clock.advance(10)

    assert look(queue, message_id)


def test_decision_35_durations_are_seconds_or_timedelta_and_times_are_aware_utc(queue: MessageQueue, clock: ManualClock) -> None:
    clock.advance(0.123456)
    for name, deadline in (("int", 15), ("float", 15.0), ("delta", seconds(15))):
        queue.register_subscription(
            name, "orders", Options(ack_deadline_seconds=deadline, retry_policy=RetryPolicy(seconds(1), 2.5))
        )
    publish(queue, b"a")

    for subscription in queue.get_all_subscriptions():
        assert subscription.created.tzinfo == UTC
    for name in ("int", "float", "delta"):
        [message] = queue.pull(name)
        assert (message.publish_time, message.publish_time.tzinfo) == (clock.time, UTC)
        assert message.publish_time.microsecond == 123456
        explained = queue.explain(name, message.id)
        assert explained is not None
        assert explained.until == clock.time + seconds(15)


def test_decision_36_stats_have_their_names_and_tell_the_truth(queue: MessageQueue, clock: ManualClock) -> None:
    names = (
        "ready delayed in_flight in_flight_bytes backlog backlog_bytes oldest_age_seconds delivered_total acked_total "
        "nacked_total expired_total dead_lettered_total discarded_total dead_letter_failures_total"
    )
    assert [field.name for field in fields(SubscriptionStats)][:14] == names.split()
    options = Options(max_messages=5, overflow="discard", dead_letter_policy=DeadLetterPolicy("dead", 2))
    queue.register_subscription("billing", "orders", options)
    publish(queue, b"1", b"22", b"333", b"4444")
    queue.publish("orders", [Message(data=b"later", deliver_at=clock.time + seconds(100)), Message(data=b"too many")])
    acked, nacked = queue.pull("billing", 2)
    queue.ack(acked.ack_id)
    queue.nack(nacked.ack_id)
    queue.nack(queue.pull("billing")[0].ack_id)
    queue.pull("billing")
    clock.advance(10)
    queue.pull("billing")

    stats = queue.stats("billing")

    assert (stats.ready, stats.delayed, stats.in_flight, stats.in_flight_bytes) == (1, 1, 1, 3)
    assert (stats.backlog, stats.backlog_bytes, stats.oldest_age_seconds) == (3, 12, 10)
    assert (stats.delivered_total, stats.acked_total, stats.nacked_total, stats.expired_total) == (5, 1, 2, 1)
    assert (stats.dead_lettered_total, stats.discarded_total, stats.dead_letter_failures_total) == (1, 1, 0)
