"""A nack may say itself how long the message waits."""

import pytest

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager, RetryPolicy, SubscriptionOptions
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.durations import SECOND
from penstock.testing import ManualClock


@pytest.mark.parametrize("policy", [None, RetryPolicy(10, 600)])
def test_the_delay_of_a_nack_replaces_the_policys(policy: RetryPolicy | None) -> None:
    clock = ManualClock()
    with Broker(clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("t")
        queue.register_subscription("s", "t", SubscriptionOptions(retry_policy=policy))
        queue.publish("t", [Message(b"x")])
        consumer = Consumer(broker, Catalog.subscription, "s")

        consumer.settle(consumer.take(1), lambda entry, leases, now: entry.nack(leases, now, delay=3 * SECOND))

        clock.advance(2.999999)
        assert queue.pull("s") == []
        clock.advance(0.000001)
        assert [message.delivery_attempt for message in queue.pull("s")] == [2]


def test_a_delay_does_not_save_from_the_last_attempt() -> None:
    clock = ManualClock()
    with Broker(clock=clock) as broker:
        queues = QueueManager(broker=broker)
        queues.create("q", QueueConfig(max_retries=0))
        queues.publish("q", "x")
        consumer = Consumer(broker, Catalog.work_queue, "q")

        consumer.settle(consumer.take(1), lambda entry, leases, now: entry.nack(leases, now, delay=SECOND, error="no"))

        assert [letter.last_error for letter in queues.dead_letters("q")] == ["no"]
