"""A project other than the default one: its names stand alone for who works in it, in errors too."""

from __future__ import annotations

import asyncio

import pytest

from penstock import NewMessage, PubSub, QueueConfig, SubscriptionOptions
from penstock.client.publishing import outgoing
from penstock.errors import AlreadyExists, NotFound, OutOfRange, QueueFull, SubscriptionFull


@pytest.fixture(params=["embedded", "server"])
def client(request: pytest.FixtureRequest, project: str) -> PubSub:
    url = None if request.param == "embedded" else request.getfixturevalue("shared_server").url
    return PubSub(url, project=project)


def test_errors_name_things_as_the_caller_knows_them(client: PubSub) -> None:
    async def scenario() -> None:
        async with client as pubsub:
            topic = await pubsub.topic("orders").create()
            with pytest.raises(AlreadyExists, match="Topic already exists: orders"):
                await topic.create()
            with pytest.raises(NotFound, match="Topic not found: nosuch"):
                await pubsub.topic("nosuch").delete()
            with pytest.raises(NotFound, match="Topic not found: nosuch"):
                await pubsub.topic("nosuch").publish_message(b"x")
            with pytest.raises(NotFound, match="Subscription not found: nosuch"):
                await pubsub.subscription("nosuch").pull()
            subscription = topic.subscription("billing")
            await subscription.create(SubscriptionOptions(max_messages=1, overflow="reject"))
            await topic.publish_message(b"x")
            message, _ = outgoing(b"y", clock=topic.publisher.clock)
            with pytest.raises(SubscriptionFull, match="Subscription is full: billing; nothing was published to topic 'orders'"):
                await pubsub.link.publish("orders", [message])
            with pytest.raises(OutOfRange, match="offset 9 of 'orders'"):
                await subscription.seek(offset=9)
            queue = await pubsub.queue("mail").create(QueueConfig(max_depth=1))
            await queue.publish("x")
            with pytest.raises(QueueFull, match="Queue is full: mail"):
                await pubsub.link.enqueue("mail", [NewMessage("y")])
            with pytest.raises(NotFound, match="Queue not found: nosuch"):
                await pubsub.queue("nosuch").stats()

    asyncio.run(scenario())


def test_a_stream_of_what_is_not_there_says_so_plainly(client: PubSub) -> None:
    async def scenario() -> None:
        async with client as pubsub:
            with pytest.raises(NotFound, match="Subscription not found: nosuch"):
                async for _ in pubsub.subscription("nosuch"):
                    pass

    asyncio.run(scenario())


def test_a_snapshot_may_be_kept_in_another_project(client: PubSub, project: str) -> None:
    async def scenario() -> None:
        async with client as pubsub:
            topic = await pubsub.topic("orders").create()
            subscription = await topic.subscription("billing").create()
            kept = await subscription.create_snapshot(f"projects/{project}-office/snapshots/before")
            assert (kept.name, kept.topic) == (f"{project}-office/before", "orders")
            assert await pubsub.snapshots() == []
            assert (await subscription.create_snapshot("mine")).name == "mine"
            assert [one.name for one in await pubsub.snapshots()] == ["mine"]

    asyncio.run(scenario())
