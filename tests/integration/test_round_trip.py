"""One message through each port of a server process that is killed and restarted. `make test-pythons` runs it on every Python."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import grpc

from penstock import PubSub
from penstock.google import messages
from penstock.testing.server import ServerProcess


def command(server: ServerProcess, name: str, **payload: Any) -> Any:
    """Run a command of the queue API over HTTP and return its result."""
    body = json.dumps({"command": name, "request_id": "1", "payload": payload}).encode()
    request = urllib.request.Request(f"{server.url}/api/v1/command", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["payload"]


def call(server: ServerProcess, method: str, request: Any) -> Any:
    """Call a method of the Google Pub/Sub API over gRPC."""
    path = f"/google.pubsub.v1.{method}"
    with grpc.insecure_channel(server.grpc) as channel:
        response = channel.unary_unary(path)(request.SerializeToString(), timeout=60, wait_for_ready=True)
    return messages.METHODS[path].response.FromString(response)


async def native(server: ServerProcess) -> bytes:
    async with PubSub(server.url) as pubsub, asyncio.timeout(60):
        topic = await pubsub.topic("native").create()
        subscription = await topic.subscription("native").create()
        await topic.publish_message(b"over the native protocol")
        async for message in subscription:
            message.ack()
            return message.data
    raise AssertionError("the subscription ended without a message")


def test_a_message_passes_through_each_port_and_survives_a_kill(tmp_path: Path) -> None:
    topic, subscription = "projects/p/topics/grpc", "projects/p/subscriptions/grpc"
    server = ServerProcess(tmp_path / "data").start()
    try:
        call(server, "Publisher/CreateTopic", messages.Topic(name=topic))
        call(server, "Subscriber/CreateSubscription", messages.Subscription(name=subscription, topic=topic))
        call(
            server,
            "Publisher/Publish",
            messages.PublishRequest(topic=topic, messages=[messages.PubsubMessage(data=b"over gRPC")]),
        )
        command(server, "queue.create", queue="http")
        command(server, "queue.publish", queue="http", payload="over HTTP")
        server.kill()

        server = ServerProcess(tmp_path / "data").start()
        pulled = call(server, "Subscriber/Pull", messages.PullRequest(subscription=subscription, max_messages=1))
        assert [one.message.data for one in pulled.received_messages] == [b"over gRPC"]
        consumed = command(server, "queue.consume", queue="http", consumer_id="one")["message"]
        assert bytes(consumed["payload"]) == b"over HTTP"
        assert asyncio.run(native(server)) == b"over the native protocol"
    finally:
        assert server.stop() == 0
