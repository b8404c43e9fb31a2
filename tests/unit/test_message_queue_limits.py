"""The behaviour requirements of specification 000 on limits and failure: BR-013 to BR-015 and BR-022."""

import logging
from datetime import timedelta

import pytest

from penstock import FlowControl, Message, MessageQueue, RetryPolicy, SubscriptionOptions
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)
MEBIBYTE = 1024 * 1024


@pytest.fixture
def queue(queue: MessageQueue) -> MessageQueue:
    """Both kinds of queue, with a topic."""
    queue.register_topic("orders")
    return queue


def subscribe(queue: MessageQueue, options: SubscriptionOptions | None = None, name: str = "billing") -> None:
    queue.register_subscription(name, "orders", options)


def publish(queue: MessageQueue, *bodies: bytes) -> list[str]:
    return queue.publish("orders", [Message(data=body) for body in bodies])


def pulled(queue: MessageQueue, most: int = 100, name: str = "billing") -> list[bytes]:
    return [message.data for message in queue.pull(name, most)]


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


# ── BR-013, BR-014: flow control ─────────────────────────────────────────────────────────────────────────────────────────


def test_br_013_flow_control_by_count_stops_at_the_limit_and_resumes_below_it(queue: MessageQueue) -> None:
    subscribe(queue, SubscriptionOptions(flow_control=FlowControl(max_messages=3)))
    publish(queue, *b"a b c d e".split())

    two = queue.pull("billing", 2)
    assert pulled(queue, 10) == [b"c"]
    assert queue.pull("billing", 10) == []
    queue.ack(two[0].ack_id)
    assert pulled(queue, 10) == [b"d"]
    queue.nack(two[1].ack_id)
    assert pulled(queue, 10) == [b"b"]


def test_br_013_flow_control_by_bytes_stops_at_the_limit_and_resumes_below_it(queue: MessageQueue) -> None:
    subscribe(queue, SubscriptionOptions(flow_control=FlowControl(max_bytes=100)))
    publish(queue, b"a" * 60, b"b" * 39, b"c", b"d")

    out = queue.pull("billing", 10)

    assert [message.length for message in out] == [60, 39, 1]
    assert queue.pull("billing", 10) == []
    queue.ack(out[2].ack_id)
    assert pulled(queue, 10) == [b"d"]


def test_br_014_in_flight_count_and_bytes_follow_pull_ack_nack_and_expiry(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"1", b"22", b"333")

    def in_flight() -> tuple[int, int]:
        stats = queue.stats("billing")
        return stats.in_flight, stats.in_flight_bytes

    out = queue.pull("billing", 10)
    assert in_flight() == (3, 6)
    queue.ack(out[0].ack_id)
    assert in_flight() == (2, 5)
    queue.nack(out[1].ack_id)
    assert in_flight() == (1, 3)
    clock.advance(10)
    assert in_flight() == (0, 0)


# ── BR-015, BR-016: retry and dead letters ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["nack", "expiry"])
def test_br_015_backoff_doubles_from_the_minimum_to_the_maximum(queue: MessageQueue, clock: ManualClock, end: str) -> None:
    policy = RetryPolicy(minimum_backoff=10, maximum_backoff=35)
    subscribe(queue, SubscriptionOptions(retry_policy=policy))
    publish(queue, b"a")

    for attempt, backoff in enumerate([10, 20, 35, 35], 1):
        [message] = queue.pull("billing", 1)
        assert message.delivery_attempt == attempt
        if end == "nack":
            queue.nack(message.ack_id)
        else:
            clock.advance(10)
        assert queue.stats("billing").delayed == 1
        clock.advance(seconds(backoff) - MICROSECOND)
        assert queue.pull("billing", 1) == []
        clock.advance(MICROSECOND)
        assert queue.stats("billing").ready == 1


# ── BR-022: capacity ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_br_022_a_full_subscription_discards_and_others_go_on(queue: MessageQueue, caplog: pytest.LogCaptureFixture) -> None:
    subscribe(queue, SubscriptionOptions(max_messages=3, overflow="discard"), name="small")
    subscribe(queue, name="large")
    publish(queue, b"a", b"b")

    with caplog.at_level(logging.WARNING, "penstock"):
        publish(queue, b"c")
        assert caplog.messages == []
        publish(queue, b"d")

    assert any("small" in message and "full" in message for message in caplog.messages)
    assert queue.stats("small").discarded_total == 1
    [a, *_] = queue.pull("small", 10)
    publish(queue, b"e")
    queue.ack(a.ack_id)
    publish(queue, b"f")
    assert pulled(queue, name="small") == [b"f"]
    assert pulled(queue, name="large") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert queue.stats("small").discarded_total == 2


def test_br_022_by_default_10_000_messages_or_100_mb_fill_a_subscription_in_memory(clock: ManualClock) -> None:
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        subscribe(queue)
        publish(queue, *[b"x"] * 9_999)
        publish(queue, b"last", b"one too many")
        assert queue.stats("billing").backlog == 10_000
        assert queue.stats("billing").discarded_total == 1

        subscribe(queue, name="shipping")
        large = bytes(10 * MEBIBYTE)
        publish(queue, *[large] * 9, large[1:])
        publish(queue, b"passes the limit", b"one too many")
        assert queue.stats("shipping").backlog == 11
        assert queue.stats("shipping").discarded_total == 1
