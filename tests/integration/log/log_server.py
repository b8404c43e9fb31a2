"""What tests of the log API share: a server with something in it, plain requests, and rows."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from penstock import Broker, Message, MessageQueue, QueueManager

PATIENCE = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    def table(self) -> pa.Table:
        assert self.status == 200, self.body
        return pa.ipc.open_stream(self.body).read_all()


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request on a connection of its own; what is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def arrow_body(**columns: Any) -> bytes:
    batch = pa.record_batch(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def fill(broker: Broker, topic: str, count: int, size: int = 10, *, at_once: int = 1000) -> None:
    """A topic with so many messages, whose payloads begin with their numbers."""
    topics = MessageQueue(broker=broker)
    if not topics.topic_exists(topic):
        topics.register_topic(topic)
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        topics.publish(
            topic, [Message(f"{number} ".encode().ljust(size, b"."), ordering_key=f"k{number % 5}") for number in numbers]
        )


def bury(broker: Broker, queue: str) -> None:
    """A work queue with one dead letter."""
    queues = QueueManager(broker=broker)
    queues.create(queue)
    queues.publish(queue, "dies")
    message = queues.consume(queue)
    assert message is not None
    queues.nack(queue, message.message_id, requeue=False, error="no")
