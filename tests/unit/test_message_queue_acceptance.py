"""The acceptance criteria of specification 000, one test each, in its own words and order."""

from collections.abc import Iterator

import pytest

from penstock import Message, MessageQueue, SubscriptionOptions
from penstock.errors import InvalidArgument, NotFound
from penstock.testing import ManualClock


@pytest.fixture(autouse=True)
def no_instance_is_left_behind() -> Iterator[None]:
    yield
    MessageQueue.reset_instance()


def test_ac_001_singleton_pattern() -> None:
    queue1 = MessageQueue.get_instance()
    queue2 = MessageQueue.get_instance()

    assert queue1 is queue2


def test_ac_002_register_and_check_topic(queue: MessageQueue) -> None:
    assert queue.topic_exists("test-topic") is False

    queue.register_topic("test-topic")

    assert queue.topic_exists("test-topic") is True


def test_ac_003_publish_and_pull_messages(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")

    message_ids = queue.publish("test-topic", [Message(data=b"Hello", attributes={})])
    assert len(message_ids) == 1

    pulled = queue.pull("test-sub", 10)
    assert len(pulled) == 1
    assert pulled[0].data.decode() == "Hello"


def test_ac_004_multiple_subscriptions_receive_copies(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("sub-1", "test-topic")
    queue.register_subscription("sub-2", "test-topic")

    queue.publish("test-topic", [Message(data=b"test")])

    pulled1 = queue.pull("sub-1", 10)
    pulled2 = queue.pull("sub-2", 10)

    assert len(pulled1) == 1
    assert len(pulled2) == 1


def test_ac_005_ack_removes_message(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")
    queue.publish("test-topic", [Message(data=b"test")])

    pulled1 = queue.pull("test-sub", 10)
    assert len(pulled1) == 1

    queue.ack(pulled1[0].ack_id)

    assert queue.pull("test-sub", 10) == []


def test_ac_006_nack_redelivers_immediately(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")
    queue.publish("test-topic", [Message(data=b"test")])

    pulled1 = queue.pull("test-sub", 10)
    assert pulled1[0].delivery_attempt == 1

    queue.nack(pulled1[0].ack_id)

    pulled2 = queue.pull("test-sub", 10)
    assert len(pulled2) == 1
    assert pulled2[0].delivery_attempt == 2


def test_ac_007_ack_deadline_expiry_redelivers(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic", SubscriptionOptions(ack_deadline_seconds=10))
    queue.publish("test-topic", [Message(data=b"test")])

    pulled1 = queue.pull("test-sub", 10)
    assert len(pulled1) == 1

    clock.advance(10.1)

    pulled2 = queue.pull("test-sub", 10)
    assert len(pulled2) == 1
    assert pulled2[0].delivery_attempt == 2


def test_ac_008_modify_ack_deadline(queue: MessageQueue, clock: ManualClock) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic", SubscriptionOptions(ack_deadline_seconds=10))
    queue.publish("test-topic", [Message(data=b"test")])

    pulled1 = queue.pull("test-sub", 10)
    queue.modify_ack_deadline(pulled1[0].ack_id, 15)

    clock.advance(12)

    assert queue.pull("test-sub", 10) == []

    queue.ack(pulled1[0].ack_id)


def test_ac_009_message_ordering(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic", SubscriptionOptions(message_ordering=True))
    queue.publish(
        "test-topic",
        [Message(data=b"first", ordering_key="user-123"), Message(data=b"second", ordering_key="user-123")],
    )

    pulled1 = queue.pull("test-sub", 10)
    assert len(pulled1) == 1
    assert pulled1[0].data.decode() == "first"

    assert queue.pull("test-sub", 10) == []

    queue.ack(pulled1[0].ack_id)

    pulled3 = queue.pull("test-sub", 10)
    assert len(pulled3) == 1
    assert pulled3[0].data.decode() == "second"


def test_ac_010_publish_without_subscriptions(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")

    message_ids = queue.publish("test-topic", [Message(data=b"test")])

    assert len(message_ids) == 1


def test_ac_011_get_subscriptions_for_topic(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("sub-1", "test-topic")
    queue.register_subscription("sub-2", "test-topic")

    subs = queue.get_subscriptions_for_topic("test-topic")

    assert len(subs) == 2


def test_ac_012_unregister_topic_detaches_subscriptions(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")

    queue.unregister_topic("test-topic")

    assert queue.topic_exists("test-topic") is False
    assert queue.subscription_exists("test-sub") is True
    sub = queue.get_subscription("test-sub")
    assert sub is not None
    assert sub.topic == "test-topic"


def test_ac_013_fifo_message_ordering_without_ordering_key(queue: MessageQueue) -> None:
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")
    queue.publish("test-topic", [Message(data=b"A"), Message(data=b"B"), Message(data=b"C")])

    pulled = queue.pull("test-sub", 10)

    assert len(pulled) == 3
    assert pulled[0].data.decode() == "A"
    assert pulled[1].data.decode() == "B"
    assert pulled[2].data.decode() == "C"


def test_the_error_for_a_missing_topic_has_the_code_and_text_of_the_specification(queue: MessageQueue) -> None:
    with pytest.raises(NotFound) as caught:
        queue.publish("test-topic", [Message(data=b"test")])

    assert (caught.value.code, caught.value.message) == (5, "Topic not found: test-topic")


def test_the_error_for_a_missing_subscription_has_the_code_and_text_of_the_specification(queue: MessageQueue) -> None:
    with pytest.raises(NotFound) as caught:
        queue.pull("test-sub", 10)

    assert (caught.value.code, caught.value.message) == (5, "Subscription not found: test-sub")


def test_the_error_for_an_invalid_ack_id_has_the_code_and_text_of_the_specification(queue: MessageQueue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        queue.ack("abc123")

    assert (caught.value.code, caught.value.message) == (3, "Invalid ack ID: abc123")


def test_the_example_of_basic_queue_operations_runs(queue: MessageQueue) -> None:
    queue.register_topic("orders")
    queue.register_subscription("order-processor", "orders", SubscriptionOptions(ack_deadline_seconds=60))
    message_ids = queue.publish("orders", [Message(data=b"Order #1", attributes={"orderId": "12345"})])

    messages = queue.pull("order-processor", 10)
    queue.ack(messages[0].ack_id)

    assert [message.id for message in messages] == message_ids
    assert messages[0].attributes == {"orderId": "12345"}


def test_the_example_of_an_ordered_message_queue_runs(queue: MessageQueue) -> None:
    queue.register_topic("user-events")
    options = SubscriptionOptions(message_ordering=True, ack_deadline_seconds=120)
    queue.register_subscription("event-processor", "user-events", options)
    queue.publish(
        "user-events", [Message(data=b"login", ordering_key="user-123"), Message(data=b"page-view", ordering_key="user-123")]
    )

    msg1 = queue.pull("event-processor", 10)
    queue.ack(msg1[0].ack_id)
    msg2 = queue.pull("event-processor", 10)
    queue.ack(msg2[0].ack_id)

    assert [msg1[0].data, msg2[0].data] == [b"login", b"page-view"]
