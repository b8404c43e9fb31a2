"""The fixtures `clock`, `broker` and `pubsub`: pytest finds them because Penstock is installed; nothing here configures them."""

import asyncio
from datetime import timedelta

import penstock
from penstock import Broker, RetryPolicy, SubscriptionOptions, sync
from penstock.testing import ManualClock


def test_a_retry_after_three_days(pubsub: sync.PubSub, clock: ManualClock) -> None:
    topic = pubsub.topic("payments")
    topic.create()
    three_days = 3 * 86_400
    subscription = topic.subscription("collector")
    subscription.create(SubscriptionOptions(retry_policy=RetryPolicy(three_days, three_days)))
    topic.publish_message(b"invoice 7")
    [message] = subscription.pull()
    assert message.nack_with_response() == 0

    assert subscription.pull() == []
    clock.advance(timedelta(days=3))
    [again] = subscription.pull()
    assert (again.data, again.delivery_attempt) == (b"invoice 7", 2)


def test_each_test_has_a_broker_of_its_own(pubsub: sync.PubSub, broker: Broker) -> None:
    assert pubsub.topics() == []
    with sync.PubSub(broker=broker) as another:
        another.topic("t").create()
    assert len(pubsub.topics()) == 1


def test_asynchronous_code_uses_the_broker(broker: Broker, clock: ManualClock) -> None:
    async def main() -> list[int]:
        async with penstock.PubSub(broker=broker) as pubsub:
            topic = await pubsub.topic("t").create()
            subscription = await topic.subscription("s", ack_deadline=10).create()
            await topic.publish_message(b"x")
            attempts = []
            async for message in subscription:
                attempts.append(message.delivery_attempt)
                if len(attempts) == 2:
                    message.ack()
                    break
                clock.advance(11)
            await subscription.close()
            return attempts

    assert asyncio.run(main()) == [1, 2]
