"""The behaviour requirements of specification 000 on topics, leases, order and deletion: BR-001–012 and BR-018–021."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from penstock import Message, MessageQueue, SubscriptionOptions, TopicMetadata
from penstock.errors import InvalidArgument, NotFound
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)


@pytest.fixture(autouse=True)
def no_instance_is_left_behind() -> Iterator[None]:
    yield
    MessageQueue.reset_instance()


@pytest.fixture
def queue(queue: MessageQueue) -> MessageQueue:
    """Both kinds of queue, with a topic."""
    queue.register_topic("orders")
    return queue


def subscribe(queue: MessageQueue, options: SubscriptionOptions | None = None, name: str = "billing") -> None:
    queue.register_subscription(name, "orders", options)


def publish(queue: MessageQueue, *bodies: bytes, key: str = "", topic: str = "orders") -> list[str]:
    return queue.publish(topic, [Message(data=body, ordering_key=key) for body in bodies])


def pulled(queue: MessageQueue, most: int = 100, name: str = "billing") -> list[bytes]:
    return [message.data for message in queue.pull(name, most)]


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


# ── BR-001 to BR-004: instance, topics, publishing ───────────────────────────────────────────────────────────────────────


def test_br_001_every_thread_gets_the_same_instance() -> None:
    barrier = threading.Barrier(8)
    seen: list[MessageQueue] = []

    def look() -> None:
        barrier.wait(10)
        seen.append(MessageQueue.get_instance())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(seen) == 8
    assert set(map(id, seen)) == {id(MessageQueue.get_instance())}


def test_br_001_reset_instance_closes_the_old_one_and_the_next_is_new() -> None:
    first = MessageQueue.get_instance()
    first.register_topic("orders")

    MessageQueue.reset_instance()

    assert MessageQueue.get_instance() is not first
    assert not MessageQueue.get_instance().topic_exists("orders")


@pytest.mark.parametrize("close", [lambda queue: queue.close(), lambda queue: queue.broker.close()], ids=["it", "its broker"])
def test_br_001_after_the_instance_was_closed_the_next_is_new(close: Callable[[MessageQueue], None]) -> None:
    first = MessageQueue.get_instance()
    close(first)

    again = MessageQueue.get_instance()

    assert again is not first
    again.register_topic("orders")


def test_br_002_nothing_has_an_impossible_name(queue: MessageQueue) -> None:
    for name in ("", "a\nb", "\0", "\x85", "n" * 2_000, "\ud800"):
        assert (queue.topic_exists(name), queue.get_topic(name)) == (False, None)
        assert (queue.subscription_exists(name), queue.get_subscription(name)) == (False, None)
        assert queue.get_subscriptions_for_topic(name) == []


def test_br_002_a_registered_topic_is_listed_with_its_metadata(queue: MessageQueue, clock: ManualClock) -> None:
    clock.advance(5)
    queue.register_topic("payments")

    topic = queue.get_topic("payments")

    assert topic is not None
    assert (topic.name, topic.created) == ("payments", clock.time)
    assert queue.topic_exists("payments")
    assert [one.name for one in queue.get_all_topics()] == ["orders", "payments"]
    assert queue.get_topic("missing") is None


def test_br_002_given_metadata_keeps_the_time_of_creation(queue: MessageQueue, clock: ManualClock) -> None:
    made = clock.time - timedelta(days=30)

    queue.register_topic("payments", TopicMetadata("payments", made))

    assert queue.get_topic("payments") == TopicMetadata("payments", made)


def test_br_002_a_new_topic_has_no_messages(queue: MessageQueue) -> None:
    subscribe(queue)

    assert pulled(queue) == []


def test_br_003_publish_gives_each_message_an_id_and_a_time_and_each_subscription_a_copy(
    queue: MessageQueue, clock: ManualClock
) -> None:
    subscribe(queue, name="billing")
    subscribe(queue, name="shipping")
    assert [one.name for one in queue.get_subscriptions_for_topic("orders")] == ["billing", "shipping"]
    clock.advance(1.5)

    ids = publish(queue, b"a", b"b")
    billing, shipping = queue.pull("billing", 10), queue.pull("shipping", 10)

    assert len(set(ids)) == 2
    assert [message.id for message in billing] == [message.id for message in shipping] == ids
    assert {message.publish_time for message in [*billing, *shipping]} == {clock.time}
    for message in billing:
        queue.ack(message.ack_id)
    assert queue.stats("shipping").in_flight == 2


def test_br_003_ids_are_unique_across_topics(queue: MessageQueue) -> None:
    queue.register_topic("payments")

    ids = [*publish(queue, b"a", b"b"), *publish(queue, b"a", b"b", topic="payments"), *publish(queue, b"a")]

    assert len(set(ids)) == 5


def test_br_004_what_is_published_without_subscriptions_reaches_nobody_later(queue: MessageQueue) -> None:
    ids = publish(queue, b"early", b"too early")
    subscribe(queue)
    publish(queue, b"in time")

    assert len(set(ids)) == 2
    assert pulled(queue) == [b"in time"]


# ── BR-005 to BR-009: leases ─────────────────────────────────────────────────────────────────────────────────────────────


def test_br_005_pull_leases_up_to_max_messages_and_nobody_else_gets_them(queue: MessageQueue) -> None:
    subscribe(queue)
    publish(queue, b"a", b"b", b"c")

    first, second, third = queue.pull("billing", 2), queue.pull("billing", 2), queue.pull("billing", 2)

    assert [message.data for message in first] == [b"a", b"b"]
    assert [message.data for message in second] == [b"c"]
    assert third == []
    assert len({message.ack_id for message in [*first, *second]}) == 3
    assert queue.stats("billing").in_flight == 3


def test_br_005_pull_starts_the_deadline_of_each_message_when_it_is_pulled(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"a", b"b")
    queue.pull("billing", 1)
    clock.advance(4)
    queue.pull("billing", 1)

    clock.advance(6)
    assert pulled(queue) == [b"a"]
    clock.advance(4)
    assert pulled(queue) == [b"b"]


def test_br_006_an_acked_message_is_gone_for_good(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"a")
    [message] = queue.pull("billing", 1)

    queue.ack(message.ack_id)
    clock.advance(3600)

    stats = queue.stats("billing")
    assert (stats.backlog, stats.in_flight, stats.acked_total, stats.expired_total) == (0, 0, 1, 0)
    assert pulled(queue) == []


def test_br_007_a_nacked_message_is_available_at_once_with_the_next_attempt(queue: MessageQueue) -> None:
    subscribe(queue)
    publish(queue, b"a", b"b")
    [first] = queue.pull("billing", 1)

    queue.nack(first.ack_id)

    assert queue.stats("billing").in_flight == 0
    again = queue.pull("billing", 2)
    assert [(message.data, message.delivery_attempt) for message in again] == [(b"a", 2), (b"b", 1)]
    assert again[0].id == first.id


@pytest.mark.parametrize("deadline", [None, 10, 600])
def test_br_008_a_lease_ends_exactly_at_its_deadline(queue: MessageQueue, clock: ManualClock, deadline: int | None) -> None:
    subscribe(queue, SubscriptionOptions() if deadline is None else SubscriptionOptions(ack_deadline_seconds=deadline))
    publish(queue, b"a")
    queue.pull("billing", 1)

    clock.advance(seconds(deadline or 10) - MICROSECOND)
    assert queue.pull("billing", 1) == []
    clock.advance(MICROSECOND)
    [again] = queue.pull("billing", 1)

    assert again.delivery_attempt == 2
    assert queue.stats("billing").expired_total == 1


@pytest.mark.parametrize("after", [-1, 0, 1])
def test_br_008_an_ack_counts_until_the_deadline_and_not_from_it_on(queue: MessageQueue, clock: ManualClock, after: int) -> None:
    subscribe(queue)
    publish(queue, b"a")
    [message] = queue.pull("billing", 1)

    clock.advance(seconds(10) + after * MICROSECOND)

    if after < 0:
        queue.ack(message.ack_id)
        assert queue.stats("billing").backlog == 0
    else:
        with pytest.raises(InvalidArgument):
            queue.ack(message.ack_id)
        assert queue.stats("billing").ready == 1


def test_br_009_each_extension_adds_its_seconds_to_the_deadline(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"a")
    [message] = queue.pull("billing", 1)

    queue.modify_ack_deadline(message.ack_id, 15)
    clock.advance(3)
    queue.modify_ack_deadline(message.ack_id, 5)

    clock.advance(seconds(27) - MICROSECOND)
    assert queue.pull("billing", 1) == []
    clock.advance(MICROSECOND)
    assert pulled(queue) == [b"a"]


# ── BR-010: ordering ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_br_010_one_message_a_key_is_out_and_other_keys_and_unkeyed_messages_flow(queue: MessageQueue) -> None:
    subscribe(queue, SubscriptionOptions(message_ordering=True))
    for key in ("x", "y", ""):
        publish(queue, f"{key}1".encode(), f"{key}2".encode(), key=key)

    first = queue.pull("billing", 10)

    assert [message.data for message in first] == [b"x1", b"y1", b"1", b"2"]
    assert queue.pull("billing", 10) == []
    queue.ack(first[1].ack_id)
    assert pulled(queue) == [b"y2"]


@pytest.mark.parametrize("end", ["nack", "expiry"])
def test_br_010_a_failed_head_is_redelivered_before_its_successor(queue: MessageQueue, clock: ManualClock, end: str) -> None:
    subscribe(queue, SubscriptionOptions(message_ordering=True))
    publish(queue, b"1", b"2", b"3", key="x")
    [head] = queue.pull("billing", 10)

    if end == "nack":
        queue.nack(head.ack_id)
    else:
        clock.advance(10)

    order = []
    while batch := queue.pull("billing", 10):
        order += [message.data for message in batch]
        queue.ack_many(message.ack_id for message in batch)
    assert order == [b"1", b"2", b"3"]


def test_br_010_without_message_ordering_a_key_holds_nothing_back(queue: MessageQueue) -> None:
    subscribe(queue)
    publish(queue, b"1", b"2", key="x")

    assert pulled(queue) == [b"1", b"2"]


# ── BR-011, BR-012, BR-021: deletion ─────────────────────────────────────────────────────────────────────────────────────


def test_br_011_a_deleted_subscription_is_gone_with_its_messages_and_leases(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, b"a", b"b")
    [leased] = queue.pull("billing", 1)

    queue.unregister_subscription("billing")

    assert not queue.subscription_exists("billing")
    assert queue.get_subscription("billing") is None
    assert queue.get_subscriptions_for_topic("orders") == queue.get_all_subscriptions() == []
    with pytest.raises(InvalidArgument):
        queue.ack(leased.ack_id)
    subscribe(queue)
    clock.advance(600)
    assert pulled(queue) == []


def test_br_012_a_deleted_topic_leaves_its_subscriptions_detached_and_empty(queue: MessageQueue) -> None:
    subscribe(queue)
    publish(queue, b"a")

    queue.unregister_topic("orders")

    assert not queue.topic_exists("orders")
    subscription = queue.get_subscription("billing")
    assert subscription is not None
    assert subscription.detached
    assert queue.stats("billing").backlog == 0
    with pytest.raises(NotFound):
        publish(queue, b"b")


def test_br_021_deleting_a_topic_ends_the_leases_and_timers_of_its_subscriptions(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue, name="billing")
    subscribe(queue, name="shipping")
    publish(queue, b"a", b"b")
    leases = [*queue.pull("billing", 1), *queue.pull("shipping", 2)]

    queue.unregister_topic("orders")
    clock.advance(3600)

    assert queue.ack_many(message.ack_id for message in leases) == [message.ack_id for message in leases]
    for name in ("billing", "shipping"):
        stats = queue.stats(name)
        assert (stats.backlog, stats.in_flight, stats.in_flight_bytes, stats.expired_total) == (0, 0, 0, 0)
    assert queue.get_subscriptions_for_topic("orders") == []


# ── BR-018 to BR-020: ack ids, order, leases ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", [MessageQueue.ack, MessageQueue.nack], ids=["ack", "nack"])
def test_br_018_only_the_current_ack_id_of_a_message_is_valid(
    queue: MessageQueue, verb: Callable[[MessageQueue, str], None]
) -> None:
    subscribe(queue)
    publish(queue, b"a")
    [first] = queue.pull("billing", 1)
    queue.nack(first.ack_id)

    with pytest.raises(InvalidArgument, match=f"Invalid ack ID: {first.ack_id}"):
        verb(queue, first.ack_id)
    [second] = queue.pull("billing", 1)
    with pytest.raises(InvalidArgument):
        verb(queue, first.ack_id)

    assert second.ack_id != first.ack_id
    assert queue.stats("billing").in_flight == 1
    verb(queue, second.ack_id)
    with pytest.raises(InvalidArgument):
        verb(queue, second.ack_id)


def test_br_018_an_ack_id_is_not_used_again_when_a_seek_brings_its_message_back(queue: MessageQueue) -> None:
    subscribe(queue)
    publish(queue, b"a")
    [old] = queue.pull("billing")
    queue.ack(old.ack_id)
    queue.seek("billing", offset=0)

    [new] = queue.pull("billing")

    assert (new.id, new.delivery_attempt) == (old.id, 1)
    with pytest.raises(InvalidArgument):
        queue.ack(old.ack_id)
    queue.ack(new.ack_id)


def test_br_019_messages_come_oldest_first_and_a_redelivered_one_at_its_age(queue: MessageQueue) -> None:
    subscribe(queue)
    for body in b"a b c d e f".split():
        publish(queue, body)
    out = queue.pull("billing", 4)

    queue.nack_many([out[3].ack_id, out[1].ack_id])

    assert pulled(queue) == [b"b", b"d", b"e", b"f"]


def test_br_019_publish_times_never_go_back_in_a_stream(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    for _ in range(3):
        publish(queue, b"a", b"b")
        clock.advance(MICROSECOND)

    out = queue.pull("billing", 10)

    assert all(one.publish_time <= two.publish_time and one.id < two.id for one, two in pairwise(out))


def test_br_020_settled_leases_leave_nothing_behind(queue: MessageQueue, clock: ManualClock) -> None:
    subscribe(queue)
    publish(queue, *(b"x" for _ in range(50)))
    out = queue.pull("billing", 50)

    failed = [*queue.ack_many(m.ack_id for m in out[:25]), *queue.nack_many(m.ack_id for m in out[25:])]
    clock.advance(600)

    assert failed == []
    stats = queue.stats("billing")
    assert (stats.in_flight, stats.in_flight_bytes, stats.expired_total, stats.ready) == (0, 0, 0, 25)
    assert queue.ack_many(m.ack_id for m in out) == [m.ack_id for m in out]
