"""Rows 37–47 of the decisions: questions and journeys, limits, names and filters of subscriptions."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock import DeadLetterPolicy, FlowControl, Message, MessageQueue, RetryPolicy, SubscriptionOptions
from penstock.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)
Options = SubscriptionOptions


@pytest.fixture
def queue(queue: MessageQueue) -> MessageQueue:
    """Both kinds of queue, with a topic."""
    queue.register_topic("orders")
    return queue


def publish(queue: MessageQueue, *bodies: bytes, key: str = "") -> list[str]:
    return queue.publish("orders", [Message(data=body, ordering_key=key) for body in bodies])


def pulled(queue: MessageQueue, name: str = "billing") -> list[bytes]:
    return [message.data for message in queue.pull(name, 100)]


def why(queue: MessageQueue, message_id: str, name: str = "billing") -> str | None:
    explanation = queue.explain(name, message_id)
    assert explanation is not None, "the message is in the subscription"
    return explanation.reason


# ── questions and journeys ───────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_37_explain_says_until_when_a_message_is_leased(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders")
    [message_id] = publish(queue, b"a")
    assert why(queue, message_id) is None
    [message] = queue.pull("billing")

    explanation = queue.explain("billing", message_id)
    assert explanation is not None
    assert (explanation.reason, explanation.until, explanation.by) == ("leased", clock.time + timedelta(seconds=10), None)
    queue.ack(message.ack_id)
    assert queue.explain("billing", message_id) is None
    assert queue.explain("billing", "nonsense") is None


def test_decision_37_explain_says_which_message_blocks_a_key(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders", Options(message_ordering=True))
    first, second, third = publish(queue, b"1", b"2", b"3", key="x")

    for lease in (False, True):
        if lease:
            queue.pull("billing")
        for blocked in (second, third):
            explanation = queue.explain("billing", blocked)
            assert explanation is not None
            assert (explanation.reason, explanation.by) == ("key_blocked", first)


def test_decision_37_explain_says_until_when_a_message_is_delayed(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders", Options(retry_policy=RetryPolicy(7, 7)))
    at = clock.time + timedelta(seconds=5)
    [later] = queue.publish("orders", [Message(data=b"later", deliver_at=at)])
    [failed] = publish(queue, b"failed")
    queue.nack(queue.pull("billing")[0].ack_id)

    for message_id, wait in ((later, 5), (failed, 7)):
        explanation = queue.explain("billing", message_id)
        assert explanation is not None
        assert (explanation.reason, explanation.until) == ("delayed", clock.time + timedelta(seconds=wait))


def test_decision_37_explain_names_pause_and_flow_limit(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders", Options(flow_control=FlowControl(max_messages=1)))
    first, second = publish(queue, b"a", b"b")

    queue.pause("billing")
    assert [why(queue, first), why(queue, second)] == ["paused", "paused"]
    assert queue.pull("billing") == []
    queue.resume("billing")
    queue.pull("billing")
    assert [why(queue, first), why(queue, second)] == ["leased", "flow_limit"]


def test_decision_37_seek_forward_settles_and_seek_backward_brings_back(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders")
    times = []
    for body in (b"0", b"1", b"2", b"3"):
        times.append(clock.time)
        publish(queue, body)
        clock.advance(1)
    [leased] = queue.pull("billing")

    queue.seek("billing", offset=2)
    assert queue.ack_many([leased.ack_id]) == [leased.ack_id]
    assert pulled(queue) == [b"2", b"3"]
    queue.seek("billing", time=times[1])
    assert pulled(queue) == [b"1", b"2", b"3"]
    queue.seek("billing", time=times[1] + MICROSECOND)
    assert pulled(queue) == [b"2", b"3"]
    queue.seek("billing", offset=4)
    assert queue.stats("billing").backlog == 0
    with pytest.raises(OutOfRange):
        queue.seek("billing", offset=5)
    with pytest.raises(InvalidArgument):
        queue.seek("billing", time=times[0], offset=0)
    with pytest.raises(InvalidArgument):
        queue.seek("billing")


def test_decision_37_a_seek_to_a_snapshot_restores_what_was_unsettled_then_and_what_came_since(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")
    publish(queue, b"settled", b"leased", b"waiting")
    settled, _ = queue.pull("billing", 2)
    queue.ack(settled.ack_id)

    queue.create_snapshot("before", "billing")
    publish(queue, b"new")
    queue.ack_many(message.ack_id for message in queue.pull("billing", 100))
    queue.seek("billing", snapshot="before")

    assert pulled(queue) == [b"leased", b"waiting", b"new"]
    with pytest.raises(NotFound):
        queue.seek("billing", snapshot="missing")


def test_decision_37_peek_shows_what_comes_next_and_leases_nothing(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")
    ids = publish(queue, b"a", b"b", b"c")

    assert [message.id for message in queue.peek("billing")] == ids[:1]
    assert [message.id for message in queue.peek("billing", max_messages=2)] == ids[:2]
    assert {message.ack_id for message in queue.peek("billing", 3)} == {""}
    assert queue.stats("billing").delivered_total == 0
    assert pulled(queue) == [b"a", b"b", b"c"]


def test_decision_37_deliver_at_keeps_a_message_back_until_its_instant(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders")
    at = clock.time + timedelta(seconds=5)
    queue.publish("orders", [Message(data=b"later", deliver_at=at), Message(data=b"now", deliver_at=clock.time)])

    assert pulled(queue) == [b"now"]
    clock.advance(timedelta(seconds=5) - MICROSECOND)
    assert pulled(queue) == []
    clock.advance(MICROSECOND)
    assert pulled(queue) == [b"later"]


def test_decision_37_a_repeated_sequence_returns_the_first_id_and_adds_nothing(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_subscription("billing", "orders")
    one = Message(data=b"one", producer_id="p", sequence=1)
    [first] = queue.publish("orders", [one])
    clock.advance(1)

    assert queue.publish("orders", [one, one]) == [first, first]
    mixed = queue.publish(
        "orders", [one, Message(data=b"two", producer_id="p", sequence=2), Message(data=b"other", producer_id="q", sequence=1)]
    )

    assert mixed[0] == first
    assert [message.id for message in queue.pull("billing", 10)] == mixed
    for bad in (Message(data=b"x", producer_id="p"), Message(data=b"x", sequence=1)):
        with pytest.raises(InvalidArgument):
            queue.publish("orders", [bad])


def test_decision_37_a_sequence_that_is_twice_in_one_publish_is_added_once(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")
    one = Message(data=b"one", producer_id="p", sequence=1)

    ids = queue.publish("orders", [one, Message(data=b"between"), one])

    assert ids[0] == ids[2] != ids[1]
    assert [message.id for message in queue.pull("billing", 10)] == ids[:2]


def test_decision_37_ack_many_and_nack_many_settle_the_valid_ones_and_return_the_rest(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")
    queue.register_subscription("shipping", "orders")
    publish(queue, b"a", b"b", b"c")
    billing, shipping = queue.pull("billing", 3), queue.pull("shipping", 3)

    assert queue.ack_many([billing[0].ack_id, "nonsense", shipping[0].ack_id, billing[0].ack_id]) == [
        "nonsense",
        billing[0].ack_id,
    ]
    assert queue.nack_many([billing[0].ack_id, billing[1].ack_id, "", shipping[1].ack_id]) == [billing[0].ack_id, ""]

    assert pulled(queue) == pulled(queue, "shipping") == [b"b"]


@pytest.mark.parametrize("retain", [True, False])
def test_decision_38_a_seek_back_brings_acked_messages_back_only_where_they_are_retained(
    queue: MessageQueue, retain: bool
) -> None:
    assert Options().retain_acked_messages is True
    queue.register_subscription("billing", "orders", Options(retain_acked_messages=retain))
    publish(queue, b"acked", b"leased", b"waiting")
    acked, _ = queue.pull("billing", 2)
    queue.ack(acked.ack_id)

    queue.seek("billing", offset=0)

    assert pulled(queue) == ([b"acked"] if retain else []) + [b"leased", b"waiting"]


# ── the fine print: limits and names ─────────────────────────────────────────────────────────────────────────────────────


def test_decision_39_an_empty_message_needs_an_attribute_and_a_batch_a_message(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")

    queue.publish("orders", [Message(attributes={"k": ""})])

    for batch in ([], [Message()], [Message(ordering_key="x")]):
        with pytest.raises(InvalidArgument):
            queue.publish("orders", batch)
    assert [message.attributes for message in queue.pull("billing", 10)] == [{"k": ""}]


def test_decision_40_one_bad_message_or_one_full_subscription_refuses_the_whole_publish(queue: MessageQueue) -> None:
    queue.register_subscription("billing", "orders")
    queue.register_subscription("strict", "orders", Options(max_messages=2, overflow="reject"))

    with pytest.raises(InvalidArgument, match=r"messages\[1\]"):
        queue.publish("orders", [Message(data=b"good"), Message(data=b"bad", attributes={"": ""})])
    with pytest.raises(ResourceExhausted, match="strict"):
        publish(queue, b"a", b"b", b"c")

    assert pulled(queue) == pulled(queue, "strict") == []
    publish(queue, b"a", b"b")
    assert pulled(queue) == pulled(queue, "strict") == [b"a", b"b"]


def test_decision_41_capacity_counts_leased_messages_and_ends_at_the_limit(queue: MessageQueue) -> None:
    queue.register_subscription("few", "orders", Options(max_messages=2, overflow="reject"))
    publish(queue, b"a")
    publish(queue, b"b")
    leased = queue.pull("few", 2)

    with pytest.raises(ResourceExhausted):
        publish(queue, b"c")
    queue.nack(leased[0].ack_id)
    assert pulled(queue, "few") == [b"a"]
    queue.ack(leased[1].ack_id)
    publish(queue, b"c")
    assert pulled(queue, "few") == [b"c"]


@pytest.mark.parametrize(("first", "is_taken"), [(99, True), (100, False)])
def test_decision_41_capacity_by_bytes_is_reached_when_bytes_reach_the_limit(
    queue: MessageQueue, first: int, is_taken: bool
) -> None:
    queue.register_subscription("small", "orders", Options(max_bytes=100, overflow="discard"))
    publish(queue, b"x" * first)

    publish(queue, b"large" * 100)

    assert queue.stats("small").backlog == (2 if is_taken else 1)


def test_decision_42_flow_control_never_exceeds_the_count_and_lets_one_large_message_pass(queue: MessageQueue) -> None:
    queue.register_subscription("bytes", "orders", Options(flow_control=FlowControl(max_bytes=10)))
    queue.register_subscription("count", "orders", Options(flow_control=FlowControl(max_messages=1)))
    queue.register_subscription("free", "orders")
    publish(queue, b"large" * 100, b"small")

    assert [len(queue.pull(name, 100)) for name in ("bytes", "count", "free")] == [1, 1, 2]
    assert queue.pull("bytes", 1) == queue.pull("count", 1) == []


def test_decision_44_a_detached_subscription_cannot_be_pulled_and_is_not_attached_again(
    restart_queue: Callable[[], MessageQueue],
) -> None:
    queue = restart_queue()
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.unregister_topic("orders")
    queue.register_topic("orders")

    for _ in range(2):
        publish(queue, b"a")
        with pytest.raises(FailedPrecondition) as caught:
            queue.pull("billing")
        assert caught.value.code == 9
        assert queue.get_subscriptions_for_topic("orders") == []
        assert queue.stats("billing").backlog == 0
        queue = restart_queue()


# ── dead letters, retention, filters ─────────────────────────────────────────────────────────────────────────────────────


def test_decision_45_a_dead_letter_topic_without_subscribers_is_as_good_as_missing(queue: MessageQueue) -> None:
    queue.register_topic("dead")
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("dead", 1)))
    publish(queue, b"a")

    queue.nack(queue.pull("billing")[0].ack_id)

    stats = queue.stats("billing")
    assert (stats.backlog, stats.dead_letter_failures_total, stats.dead_lettered_total) == (1, 1, 0)


@pytest.mark.parametrize("overflow", ["reject", "discard"])
def test_decision_45_only_as_many_die_as_the_dead_letter_subscription_has_room_for(queue: MessageQueue, overflow: str) -> None:
    queue.register_topic("dead")
    queue.register_subscription("undertaker", "dead", Options(max_messages=2, overflow=overflow))
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("dead", 1)))
    publish(queue, b"a", b"b", b"c")

    queue.nack_many(message.ack_id for message in queue.pull("billing", 3))

    stats = queue.stats("billing")
    assert (stats.backlog, stats.dead_letter_failures_total, stats.dead_lettered_total) == (1, 1, 2)
    assert pulled(queue, "undertaker") == [b"a", b"b"]
    assert pulled(queue) == [b"c"]


def test_decision_45_the_event_of_a_death_has_its_reason_attempts_and_source(queue: MessageQueue) -> None:
    queue.register_topic("dead")
    queue.register_subscription("undertaker", "dead")
    queue.register_subscription("billing", "orders", Options(dead_letter_policy=DeadLetterPolicy("dead", 1)))
    [message_id] = publish(queue, b"a")
    queue.nack(queue.pull("billing")[0].ack_id)

    death = queue.broker.history(message_id)[-1]

    assert (death.kind, death.attempt, death.message_id) == ("dead_lettered", 1, message_id)
    assert death.detail["reason"] == "max_retries_exceeded"
    [letter] = queue.pull("undertaker")
    assert {"penstock.reason", "penstock.attempts", "penstock.source"} <= letter.attributes.keys()


@pytest.mark.parametrize("days", [7, 1])
def test_decision_46_an_unacked_message_leaves_exactly_at_its_retention(
    queue: MessageQueue, clock: ManualClock, days: int
) -> None:
    queue.register_subscription("billing", "orders", Options() if days == 7 else Options(message_retention_duration=DAY))
    publish(queue, b"a")

    clock.advance(days * DAY - MICROSECOND)
    assert queue.stats("billing").backlog == 1
    clock.advance(MICROSECOND)

    assert queue.stats("billing").backlog == 0
    assert pulled(queue) == []


def test_decision_47_a_filter_picks_and_what_does_not_match_counts_as_acked(queue: MessageQueue) -> None:
    matching = {
        'attributes.k != "v"': ["none", "w"],
        'attributes.k = "v"': ["v"],
        "attributes:k": ["v", "w"],
        'hasPrefix(attributes.k, "v")': ["v"],
        'NOT attributes:k OR attributes.k = "w"': ["none", "w"],
    }
    for text in matching:
        queue.register_subscription(text, "orders", Options(filter=text))
    given = {"none": {}, "v": {"k": "v"}, "w": {"k": "w"}}

    queue.publish("orders", [Message(data=name.encode(), attributes=attributes) for name, attributes in given.items()])

    assert {text: queue.stats(text).backlog for text in matching} == {text: len(names) for text, names in matching.items()}
    assert {text: [body.decode() for body in pulled(queue, text)] for text in matching} == matching
