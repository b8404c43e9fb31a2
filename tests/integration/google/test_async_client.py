"""The asynchronous clients that Google generates, against the same server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
from google.pubsub_v1.types import PubsubMessage, StreamingPullRequest

from penstock.testing.server import LocalServer
from tests.integration.google.real_client import unique


def test_the_asynchronous_clients_do_the_whole_round(server: LocalServer, project: str) -> None:
    asyncio.run(whole_round(server.grpc, project))


async def whole_round(host: str, project: str) -> None:
    async with grpc.aio.insecure_channel(host) as channel:
        publisher: Any = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
        subscriber: Any = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
        topic = f"projects/{project}/topics/{unique('async')}"
        subscription = f"projects/{project}/subscriptions/{unique('async')}"
        await publisher.create_topic(name=topic)
        await subscriber.create_subscription(name=subscription, topic=topic)

        answers = await asyncio.gather(
            *[publisher.publish(topic=topic, messages=[PubsubMessage(data=b"%d" % number)]) for number in range(50)]
        )
        assert len({answer.message_ids[0] for answer in answers}) == 50

        pulled = await subscriber.pull(subscription=subscription, max_messages=20)
        assert pulled.received_messages
        await subscriber.acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in pulled.received_messages])

        rest = {one.message.data for one in pulled.received_messages}
        done = asyncio.Event()

        async def requests() -> AsyncIterator[StreamingPullRequest]:
            yield StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=30)
            await done.wait()

        async with asyncio.timeout(30):
            stream = await subscriber.streaming_pull(requests=requests())
            async for answer in stream:
                rest |= {one.message.data for one in answer.received_messages}
                if len(rest) == 50:
                    break
        done.set()
        stream.cancel()
        assert [topic.name async for topic in await publisher.list_topics(project=f"projects/{project}")] == [topic]
        await subscriber.delete_subscription(subscription=subscription)
        await publisher.delete_topic(topic=topic)
