"""Today's clients understand what an earlier server answers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock import Message, PubSub, QueueConfig, SubscriptionOptions
from penstock.client import HubClient
from penstock.errors import InvalidArgument, TopicNotFound
from tests.compatibility.playback import hub_server, native_server

SECONDS = 60.0

pytestmark = pytest.mark.server


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(SECONDS):
            await scenario

    asyncio.run(within())


def test_topics_publishes_and_a_stream() -> None:
    async def scenario() -> None:
        async with native_server() as address, PubSub(address) as pubsub:
            topic = pubsub.topic("orders")
            await topic.create()
            ids = await topic.publish_many([Message(b"one"), Message(b"two"), Message(b"three")])
            assert len(ids) == len({*ids}) == 3
            with pytest.raises(TopicNotFound):
                await pubsub.topic("missing").publish_message(b"x")
            subscription = topic.subscription("billing")
            await subscription.create(SubscriptionOptions(message_ordering=True))
            received: asyncio.Queue[Any] = asyncio.Queue()
            subscription.on("message", received.put_nowait)
            subscription.open()
            message = await received.get()
            assert (message.id, message.data, message.attributes, message.ordering_key) == (ids[0], b"one", {"region": "eu"}, "a")
            assert message.delivery_attempt == 1
            message.ack()
            message = await received.get()  # the recorded server delivered the next one of the key after the ack
            assert message.data == b"three"
            message.ack()
            await subscription.close()

    run(scenario())


def test_work_queues_and_dead_letters() -> None:
    async def scenario() -> None:
        async with native_server() as address, PubSub(address) as pubsub:
            queue = pubsub.queue("tasks")
            await queue.create(QueueConfig(max_retries=1))
            stats = await queue.stats()
            assert (stats.depth, stats.dead_letters, stats.acked_total) == (1, 1, 1)
            [letter] = await queue.dead_letters()
            assert (letter.message.payload, letter.reason, letter.last_error) == ("text", "explicit_nack", "no good")

    run(scenario())


def test_refused_calls_raise_the_errors_of_today() -> None:
    async def scenario() -> None:
        async with native_server() as address, PubSub(address) as pubsub:
            assert [each.name for each in await pubsub.topics()] != []
            schema = pubsub.schema("order")
            await schema.validate_message(b'{"id": 1}', encoding="JSON")
            with pytest.raises(InvalidArgument):
                await schema.validate_message(b'{"id": "x"}', encoding="JSON")

    run(scenario())


def test_the_hub_client_receives_messages_with_their_positions() -> None:
    async def scenario() -> None:
        async with (
            hub_server() as address,
            HubClient(address, address="@(service/ann)") as ann,
            ann.subscribe("orders/+") as orders,
        ):
            message = await orders.get(SECONDS)
            assert (message.topic, message.type, message.sender) == ("orders/eu", "order:placed", "@(service/bob)")
            assert message.data == {"id": 1}
            assert message.position is not None
            assert message.position.offset == 0

    run(scenario())
