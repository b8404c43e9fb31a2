"""What other packages see of a broker are values: they do not change, and what is asked for again is up to date."""

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import backlog, lookup
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.settlement import ACK, GIVE_BACK
from penstock.errors import SnapshotNotFound, SubscriptionNotFound, TopicNotFound
from penstock.values.lease import Lease


@pytest.fixture
def topics() -> MessageQueue:
    topics = MessageQueue()
    topics.register_topic("t")
    topics.register_subscription("s", "t")
    return topics


def test_a_description_stays_as_it_was(topics: MessageQueue) -> None:
    broker = topics.broker
    topic, queue = lookup.topic(broker, "t"), lookup.subscription(broker, "s")
    topics.publish("t", [Message(data=b"x")])
    topics.unregister_topic("t")
    assert (topic.next_offset, topic.subscriptions, queue.detached) == (0, 1, False)
    assert lookup.subscription(broker, "s").detached
    assert lookup.find_topic(broker, "t") is None
    assert lookup.find_stream(broker, topic.number) is None
    with pytest.raises(AttributeError):
        queue.detached = True  # type: ignore[misc]  # that is the point


def test_what_does_not_exist_is_named(topics: MessageQueue) -> None:
    broker = topics.broker
    for look, error in (
        (lookup.topic, TopicNotFound),
        (lookup.subscription, SubscriptionNotFound),
        (lookup.snapshot, SnapshotNotFound),
    ):
        with pytest.raises(error, match="gone"):
            look(broker, "gone")
    assert lookup.subscriptions(broker, "gone") == []
    assert lookup.document(broker, "gone") is None


def test_a_snapshot_outlives_its_topic(topics: MessageQueue) -> None:
    topics.create_snapshot("snap", "s")
    assert lookup.snapshot(topics.broker, "snap").topic == "t"
    topics.unregister_topic("t")
    assert [(one.name, one.topic) for one in lookup.snapshots(topics.broker)] == [("snap", None)]


def test_documents_are_found_by_the_beginning_of_their_names() -> None:
    with Broker() as broker:
        for name in ("schema:b", "iam:a", "schema:a"):
            broker.change(lambda catalog, now, name=name: catalog.keep_document(name, b"x", now))  # type: ignore[misc]  # bound early
        assert lookup.document_names(broker, "schema:") == ["schema:b", "schema:a"]


def test_what_comes_next_ends_at_the_limit_of_bytes_but_one_message_always_comes(topics: MessageQueue) -> None:
    topics.publish("t", [Message(data=b"x" * 100)] * 3)
    for limit, count in ((None, 3), (250, 2), (1, 1)):
        queue, waiting = backlog.upcoming(topics.broker, Catalog.subscription, "s", 10, limit)
        assert (queue.name, len(waiting)) == ("s", count)


def test_a_consumer_settles_what_its_client_names_by_keys_of_its_own(topics: MessageQueue) -> None:
    topics.publish("t", [Message(data=b"x")] * 4)
    consumer = Consumer(topics.broker, Catalog.subscription, "s", identity="c")
    consumer.take(4)
    assert consumer.holding() == (4, 4)

    def key_of(lease: Lease) -> str:
        return f"{lease.offset}/{lease.attempt}"

    verbs = [(["0/1", "0/1", "1/2", "9/1"], ACK), (["2/1"], GIVE_BACK)]
    failed = consumer.settle_by_key(verbs, lambda key: int(key.partition("/")[0]), key_of)
    assert failed == ["0/1", "1/2", "9/1"], "a second time, another attempt, and nothing"
    assert [lease.offset for lease in consumer.held()] == [1, 3]
    topics.unregister_subscription("s")
    assert (consumer.held(), consumer.holding(), consumer.current()) == ([], None, None)
    assert consumer.settle_by_key(verbs, lambda _: 0, key_of) == ["0/1", "0/1", "1/2", "9/1", "2/1"]


def test_a_consumer_that_is_released_has_failed_only_at_what_it_was_working_on() -> None:
    queues = QueueManager()
    queues.create("q")
    for payload in ("tried", "not begun"):
        queues.publish("q", payload)
    consumer = Consumer(queues.broker, Catalog.work_queue, "q", identity="c")
    consumer.take(2)
    consumer.release(lambda lease: lease.offset == 0, "it was lost")
    again = queues.consume_many("q")
    assert [(message.payload, message.retry_count) for message in again] == [("tried", 1), ("not begun", 0)]
