"""What exists can change: topics, subscriptions, snapshots and documents, now and after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock import Broker, DeadLetterPolicy, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.broker.positions import seek, take_snapshot
from penstock.broker.settlement import release, settle_many
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, QueueNotFound, SnapshotNotFound, SubscriptionNotFound, TopicNotFound
from penstock.journal.core.events import Event
from penstock.testing import ManualClock
from penstock.values.message import accept
from penstock.values.policy import subscription_policy

Reopen = Callable[[], Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reopen(tmp_path: Path, clock: ManualClock) -> Iterator[Reopen]:
    """Each call closes the broker before and opens the same data directory again."""
    with ExitStack() as stack:

        def open_again() -> Broker:
            stack.close()
            broker = Broker(data_dir=tmp_path / "data", clock=clock)
            MessageQueue(broker=broker)
            return stack.enter_context(broker)

        yield open_again


def shop(broker: Broker, **options: object) -> MessageQueue:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", SubscriptionOptions(**options))  # type: ignore[arg-type]
    return queue


def bodies(queue: MessageQueue, subscription: str = "billing") -> list[bytes]:
    received = queue.pull(subscription, 100)
    queue.ack_many(message.ack_id for message in received)
    return [message.data for message in received]


def test_a_topics_settings_change_and_survive_a_restart(reopen: Reopen) -> None:
    broker = reopen()
    broker.change(lambda catalog, now: catalog.create_topic("orders", now, spec=b"first", retention=5 * SECOND))
    broker.change(lambda catalog, now: catalog.update_topic("orders", b"second", 7 * SECOND, now))
    for stream in (broker.catalog.topic("orders"), reopen().catalog.topic("orders")):
        assert (stream.spec, stream.retention) == (b"second", 7 * SECOND)


def test_a_subscriptions_settings_change_for_deliveries_from_then_on_and_survive_a_restart(
    reopen: Reopen, clock: ManualClock
) -> None:
    broker = reopen()
    queue = shop(broker)
    queue.publish("orders", [Message(b"a"), Message(b"b")])
    held = queue.pull("billing")[0]
    policy = subscription_policy(SubscriptionOptions(ack_deadline_seconds=60), durable=True)
    broker.change(lambda catalog, now: catalog.update_queue(catalog.subscription("billing"), policy, b"spec", now))

    assert broker.catalog.subscription("billing").spec == b"spec"
    later = queue.pull("billing")[0]
    clock.advance(10)
    assert queue.ack_many([held.ack_id, later.ack_id]) == [held.ack_id]
    assert reopen().catalog.subscription("billing").policy == policy


def test_a_shorter_retention_takes_effect_on_what_waits(reopen: Reopen, clock: ManualClock) -> None:
    broker = reopen()
    queue = shop(broker)
    queue.publish("orders", [Message(b"a")])
    policy = subscription_policy(SubscriptionOptions(message_retention_duration=600), durable=True)
    broker.change(lambda catalog, now: catalog.update_queue(catalog.subscription("billing"), policy, b"", now))
    clock.advance(601)
    assert queue.stats("billing").backlog == 0


def test_a_detached_subscription_is_empty_and_gets_nothing_more_also_after_a_restart(reopen: Reopen) -> None:
    broker = reopen()
    queue = shop(broker)
    queue.publish("orders", [Message(b"a")])
    assert broker.change(lambda catalog, now: catalog.detach_subscription("billing", now)) is not None
    assert broker.change(lambda catalog, now: catalog.detach_subscription("billing", now)) is None
    for _ in range(2):
        queue.publish("orders", [Message(b"b")])
        assert queue.stats("billing").backlog == 0
        with pytest.raises(FailedPrecondition):
            queue.pull("billing")
        queue = MessageQueue(broker=reopen())


def test_documents_are_kept_replaced_and_dropped_and_survive_a_restart_and_a_checkpoint(reopen: Reopen) -> None:
    broker = reopen()
    broker.change(lambda catalog, now: catalog.keep_document("schema:a", b"1", now))
    broker.change(lambda catalog, now: catalog.keep_document("schema:a", b"2", now))
    broker.change(lambda catalog, now: catalog.keep_document("schema:b", b"3", now))
    assert broker.change(lambda catalog, now: catalog.drop_document("schema:b", now)) is not None
    assert broker.change(lambda catalog, now: catalog.drop_document("schema:b", now)) is None
    assert reopen().catalog.documents == {"schema:a": b"2"}
    assert reopen().catalog.documents == {"schema:a": b"2"}


def test_a_snapshots_settings_change_and_survive_a_restart(reopen: Reopen) -> None:
    broker = reopen()
    shop(broker)
    broker.change(lambda catalog, now: take_snapshot(catalog, "mark", "billing", now, spec=b"1", expires_at=now + SECOND))
    broker.change(lambda catalog, now: catalog.update_snapshot("mark", b"2", now + 2 * SECOND, now))
    expected = broker.catalog.snapshot("mark")
    assert (expected.spec, expected.expires_at) == (b"2", broker.clock.now() + 2 * SECOND)
    assert reopen().catalog.snapshot("mark") == expected


def test_what_does_not_exist_cannot_change(reopen: Reopen) -> None:
    broker = reopen()
    for change, error in (
        (lambda catalog, now: catalog.update_topic("no", b"", None, now), TopicNotFound),
        (lambda catalog, now: catalog.detach_subscription("no", now), SubscriptionNotFound),
        (lambda catalog, now: catalog.update_snapshot("no", b"", None, now), SnapshotNotFound),
        (lambda catalog, now: catalog.delete_snapshot("no", now), SnapshotNotFound),
    ):
        with pytest.raises(error):
            broker.change(change)


def test_without_retain_acked_a_seek_to_a_snapshot_brings_back_what_was_acked_since(reopen: Reopen) -> None:
    queue = shop(reopen(), retain_acked_messages=False, filter='attributes.k = "v"')
    queue.publish("orders", [Message(b"old", {"k": "v"})])
    assert bodies(queue) == [b"old"]
    queue.publish("orders", [Message(b"waiting", {"k": "v"})])
    queue.create_snapshot("mark", "billing")
    queue.publish("orders", [Message(b"later", {"k": "v"}), Message(b"other", {"k": "w"})])
    assert bodies(queue) == [b"waiting", b"later"]

    queue.seek("billing", snapshot="mark")
    assert bodies(queue) == [b"waiting", b"later"]


def test_without_retain_acked_a_seek_in_time_reaches_back_as_far_as_the_topics_own_retention(
    reopen: Reopen, clock: ManualClock
) -> None:
    broker = reopen()
    queue = shop(broker, retain_acked_messages=False)
    broker.change(lambda catalog, now: catalog.update_topic("orders", b"", 600 * SECOND, now))
    start = clock.time
    queue.publish("orders", [Message(b"too old")])
    clock.advance(500)
    queue.publish("orders", [Message(b"young")])
    clock.advance(200)
    assert bodies(queue) == [b"too old", b"young"]

    queue.seek("billing", time=start)
    assert bodies(queue) == [b"young"]


def test_without_retain_acked_and_topic_retention_a_seek_brings_nothing_back(reopen: Reopen, clock: ManualClock) -> None:
    queue = shop(reopen(), retain_acked_messages=False)
    start = clock.time
    queue.publish("orders", [Message(b"a"), Message(b"b")])
    queue.ack(queue.pull("billing")[0].ack_id)
    queue.seek("billing", time=start)
    assert bodies(queue) == [b"b"]


def test_a_change_wakes_only_the_consumers_of_what_it_concerns(clock: ManualClock) -> None:
    with Broker(clock=clock) as broker:
        queue = shop(broker)
        queue.register_topic("news")
        queue.register_subscription("reader", "news")
        woken: list[str] = []
        for name in ("billing", "reader"):
            broker.notifier.add(broker.catalog.subscription(name).number, partial(woken.append, name))

        def woken_by(change: Callable[[Catalog, int], Event | None]) -> set[str]:
            woken.clear()
            broker.change(change)
            return set(woken)

        policy = broker.catalog.subscription("billing").policy
        for change in (
            lambda catalog, now: catalog.create_topic("other", now),
            lambda catalog, now: catalog.update_topic("orders", b"", None, now),
            lambda catalog, now: catalog.create_subscription("audit", "orders", policy, b"", now),
            lambda catalog, now: catalog.keep_document("schema", b"", now),
            lambda catalog, now: catalog.drop_document("schema", now),
            lambda catalog, now: take_snapshot(catalog, "mark", "billing", now),
            lambda catalog, now: catalog.update_snapshot("mark", b"", None, now),
            lambda catalog, now: catalog.delete_snapshot("mark", now),
        ):
            assert woken_by(change) == set()
        for change in (
            lambda catalog, now: catalog.subscription("billing").pause(False, now),
            lambda catalog, now: catalog.update_queue(catalog.subscription("billing"), policy, b"", now),
            lambda catalog, now: catalog.detach_subscription("billing", now),
            lambda catalog, now: catalog.delete_queue(catalog.subscription("billing"), now),
        ):
            assert woken_by(change) == {"billing"}
        assert woken_by(lambda catalog, now: catalog.delete_topic("news", now)) == {"reader"}


def test_google_attributes_name_the_subscription_and_project_of_a_dead_letter(clock: ManualClock) -> None:
    with Broker(clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "dead"):
            queue.register_topic(topic)
        queue.register_subscription("graves", "dead")
        options = SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("dead", 1))
        policy = msgspec.structs.replace(subscription_policy(options, durable=False), letter=("billing", "shop"))
        broker.change(lambda catalog, now: catalog.create_subscription("billing", "orders", policy, b"", now))
        queue.publish("orders", [Message(b"a", {"own": "1"})])
        queue.nack(queue.pull("billing")[0].ack_id)

        attributes = queue.pull("graves")[0].attributes
        assert attributes["own"] == "1"
        assert attributes["CloudPubSubDeadLetterSourceSubscription"] == "billing"
        assert attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] == "shop"
        assert attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "1"
        assert attributes["CloudPubSubDeadLetterSourceTopicPublishTime"].endswith("Z")


def test_a_consumers_bytes_are_bounded_and_counted_down(clock: ManualClock) -> None:
    with Broker(clock=clock) as broker:
        queue = shop(broker)
        queue.publish("orders", [Message(b"x" * 40) for _ in range(5)])

        def grant(prefetch_bytes: int | None = None, max_bytes: int | None = None) -> int:
            consumer = Consumer(broker, Catalog.subscription, "billing", identity="c", prefetch_bytes=prefetch_bytes)
            leases = consumer.take(9, max_bytes)
            held.extend(leases)
            return len(leases)

        held: list[object] = []
        assert grant(prefetch_bytes=100) == 3  # the third reaches beyond the limit
        assert grant(prefetch_bytes=100) == 0
        with broker.lock:
            entry = broker.catalog.subscription("billing")
            broker.settle(entry, [held[0], held[1]], clock.now(), Queue.ack)  # type: ignore[list-item]
        assert grant(prefetch_bytes=100) == 2
        with broker.lock:
            assert release(broker, entry, "c", clock.now()) == 3
            assert release(broker, entry, "c", clock.now()) == 0
        assert grant(max_bytes=1) == 1
        assert grant(max_bytes=79) == 1
        with broker.lock:
            assert release(broker, entry, "c", clock.now()) == 2
        assert grant(max_bytes=80, prefetch_bytes=1000) == 2


def test_ack_ids_of_another_subscription_are_not_settled(clock: ManualClock) -> None:
    with Broker(clock=clock) as broker:
        queue = shop(broker)
        queue.register_subscription("shipping", "orders")
        queue.publish("orders", [Message(b"a")])
        mine, others = queue.pull("billing")[0].ack_id, queue.pull("shipping")[0].ack_id
        with broker.lock:
            only = broker.catalog.subscription("billing")
            failed, _ = settle_many(broker, [mine, others, "nonsense", mine], Queue.ack, clock.now(), only)
        assert failed == [others, "nonsense", mine]
        assert (queue.stats("billing").backlog, queue.stats("shipping").backlog) == (0, 1)


def test_a_seek_of_what_is_detached_is_refused(clock: ManualClock) -> None:
    with Broker(clock=clock) as broker:
        queue = shop(broker)
        queue.unregister_topic("orders")
        with pytest.raises(FailedPrecondition):
            seek(broker, "billing", at=0)


@pytest.mark.parametrize(
    ("find", "delete", "error"),
    [
        (Catalog.topic, Catalog.delete_topic, TopicNotFound),
        (
            Catalog.work_stream,
            lambda catalog, name, now: catalog.delete_queue(catalog.work_queue(name), now),
            QueueNotFound,
        ),
    ],
    ids=["topic", "work queue"],
)
def test_a_publish_that_meets_the_deletion_says_what_is_not_there(
    reopen: Reopen, find: Callable[..., Stream], delete: Callable[..., Event], error: type[Exception]
) -> None:
    broker = reopen()
    MessageQueue(broker=broker).register_topic("mail")
    QueueManager(broker=broker).create("mail")

    def find_and_delete(catalog: Catalog, name: str) -> Stream:
        """As if another caller deleted it before the writer has its turn."""
        stream = find(catalog, name)
        broker.emit(delete(catalog, name, broker.clock.now()))
        return stream

    with pytest.raises(error, match="mail"):
        broker.publish(find_and_delete, "mail", accept([Message(b"x")], broker.clock.now()), broker.clock.now())
