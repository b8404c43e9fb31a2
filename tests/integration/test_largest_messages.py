"""A message of 10 MiB, the largest there is, passes every API in its own encoding."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from penstock import PubSub
from penstock.google import messages
from penstock.testing.server import LocalServer
from penstock.values.message import MAX_MESSAGE_BYTES
from tests.integration.raw_pubsub import RawClient

PATIENCE = 60


def _post(url: str, project: str, *pieces: bytes) -> Any:
    headers = {"Content-Type": "application/json", "X-Penstock-Project": project}
    request = urllib.request.Request(url, b"".join(pieces), headers, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


def _create(server: LocalServer, project: str) -> None:
    async def create() -> None:
        async with PubSub(server.url, project=project) as pubsub:
            await pubsub.topic("orders").create()
            await pubsub.queue("tasks").create()

    asyncio.run(create())


COMMAND = b'{"command":"queue.publish","payload":{"queue":"tasks",'
NUMBERS = b"255, " * (MAX_MESSAGE_BYTES - 1) + b"255]"


def test_the_queue_api_over_http(shared_server: LocalServer, project: str) -> None:
    _create(shared_server, project)

    assert _post(f"{shared_server.url}/api/v1/command", project, COMMAND, b'"payload":[', NUMBERS, b"}}")["success"]


@pytest.mark.long
def test_the_queue_api_over_http_in_other_ways(shared_server: LocalServer, project: str, subtests: pytest.Subtests) -> None:
    _create(shared_server, project)
    with subtests.test("a text of characters that JSON escapes"):
        text = b'"' + b"\\u0001" * MAX_MESSAGE_BYTES + b'"'
        assert _post(f"{shared_server.url}/api/v1/command", project, COMMAND, b'"message":', text, b"}}")["success"]
    with subtests.test("a path"):
        assert _post(f"{shared_server.url}/queue/tasks/publish", project, b'{"payload":[', NUMBERS, b"}")["message_id"]
    with subtests.test("one byte more"), pytest.raises(urllib.error.HTTPError, match="400"):
        _post(f"{shared_server.url}/queue/tasks/publish", project, b'{"payload":[0,', NUMBERS, b"}")


def test_google_pub_sub(shared_server: LocalServer, project: str, subtests: pytest.Subtests) -> None:
    _create(shared_server, project)
    topic = f"projects/{project}/topics/orders"
    data = b"x" * (MAX_MESSAGE_BYTES - 100 * (7 + 1024))
    attributes = {f"name-{number:02}": "v" * 1024 for number in range(100)}
    with subtests.test("gRPC"), RawClient(shared_server.grpc) as client:
        message = messages.PubsubMessage(data=data, attributes=attributes)
        assert client.call("Publish", messages.PublishRequest(topic=topic, messages=[message])).message_ids
    with subtests.test("REST"):
        body = {"messages": [{"data": base64.b64encode(data).decode(), "attributes": attributes}]}
        assert _post(f"{shared_server.url}/v1/{topic}:publish", project, json.dumps(body).encode())["messageIds"]


def test_the_native_protocol(shared_server: LocalServer, project: str) -> None:
    async def scenario() -> None:
        async with PubSub(shared_server.url, project=project) as pubsub:
            topic, queue = await pubsub.topic("orders").create(), await pubsub.queue("tasks").create()
            subscription = await topic.subscription("billing").create()
            data = b"x" * MAX_MESSAGE_BYTES
            await asyncio.gather(topic.publish_message(data), queue.publish(data))

            [message], [task] = await asyncio.gather(subscription.pull(wait=PATIENCE), queue.consume(wait=PATIENCE))

            assert (len(message.data), len(task.payload)) == (len(data), len(data))

    asyncio.run(scenario())
