"""The behaviour requirements of specification 000 on limits and failure: BR-013 to BR-017 and BR-022."""

import logging
from collections.abc import Mapping
from datetime import timedelta

import pytest

from penstock import DeadLetterPolicy, FlowControl, Message, MessageQueue, RetryPolicy, SubscriptionOptions
from penstock.errors import InvalidArgument
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


def test_br_015_without_a_retry_policy_an_expired_message_is_available_at_once(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"a")
    queue.pull("billing", 1)

    clock.advance(10)

    assert pulled(queue) == [b"a"]


@pytest.mark.parametrize("end", ["nack", "expiry"])
def test_br_016_the_last_attempt_moves_the_message_to_the_dead_letter_topic(
    queue: MessageQueue, clock: ManualClock, end: str
) -> None:
    queue.register_topic("dead")
    queue.register_subscription("undertaker", "dead")
    subscribe(queue, SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("dead", max_delivery_attempts=3)))
    queue.publish("orders", [Message(data=b"a", attributes={"k": "v"}, ordering_key="x")])
    published = clock.time
    clock.advance(1)

    for attempt in (1, 2, 3):
        assert queue.stats("undertaker").backlog == 0
        [message] = queue.pull("billing", 1)
        assert message.delivery_attempt == attempt
        if end == "nack":
            queue.nack(message.ack_id)
        else:
            clock.advance(10)

    assert queue.stats("billing").backlog == 0
    assert queue.stats("billing").dead_lettered_total == 1
    [letter] = queue.pull("undertaker", 10)
    assert (letter.data, letter.ordering_key, letter.publish_time) == (b"a", "x", published)
    assert letter.attributes.items() >= {("k", "v")}


# ── BR-017: validation ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "attributes",
    [
        {"": "v"},
        {"k" * 257: "v"},
        {"é" * 129: "v"},
        {"k": "v" * 1025},
        {"k": "é" * 513},
        {"goog": "v"},
        {"googclient_x": "v"},
        {"k": 1},
        {"k": None},
        {"k": b"v"},
        {1: "v"},
    ],
)
def test_br_017_bad_attributes_are_refused_with_code_3(queue: MessageQueue, attributes: Mapping[str, str]) -> None:
    subscribe(queue)

    with pytest.raises(InvalidArgument) as caught:
        queue.publish("orders", [Message(data=b"a", attributes=attributes)])

    assert caught.value.code == 3
    assert queue.stats("billing").backlog == 0


@pytest.mark.parametrize(
    "attributes", [{"k" * 256: "v" * 1024}, {"é" * 128: "é" * 512}, {"go": "v", "Goog": "v", "xgoog": "v"}, {"k": ""}]
)
def test_br_017_attributes_at_the_limit_are_taken(queue: MessageQueue, attributes: dict[str, str]) -> None:
    subscribe(queue)

    queue.publish("orders", [Message(data=b"a", attributes=attributes)])

    assert queue.pull("billing", 1)[0].attributes == attributes


def test_br_017_a_message_of_10_mb_is_taken_and_one_byte_more_is_refused(queue: MessageQueue) -> None:
    subscribe(queue)
    attributes, key = {"ké": "v"}, "x"
    room = 10 * MEBIBYTE - 5

    queue.publish("orders", [Message(data=bytes(room), attributes=attributes, ordering_key=key)])
    with pytest.raises(InvalidArgument) as caught:
        queue.publish("orders", [Message(data=bytes(room + 1), attributes=attributes, ordering_key=key)])

    assert caught.value.code == 3
    assert [message.length for message in queue.pull("billing", 10)] == [room]


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
