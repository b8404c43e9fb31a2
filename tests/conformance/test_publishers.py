"""Every way to publish to a topic: its schema and its transforms are applied, with the same outcome.

A way publishes one JSON value and returns whether it was accepted. It decides nothing.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest

import penstock.sync
from penstock import Broker, Message, MessageQueue
from penstock.client import HubClient, PubSub
from penstock.errors import PenstockError
from penstock.google import messages
from penstock.testing.server import LocalServer
from tests.topic_rules import SCHEMA, make_topics

Way = Callable[[Any, str, object], bool]
"""From where the topic is, its name and a JSON value, to whether it was accepted."""

SECONDS = 30
GOOD, BAD = {"id": "x"}, {"id": 1}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


# ── in this process ──────────────────────────────────────────────────────────────────────────────────────────────────────


def by_message_queue(broker: Broker, topic: str, value: object) -> bool:
    try:
        MessageQueue(broker=broker).publish(topic, [Message(encoded(value))])
    except PenstockError:
        return False
    return True


def by_embedded_client(broker: Broker, topic: str, value: object) -> bool:
    async def publish() -> bool:
        async with asyncio.timeout(SECONDS), PubSub(broker=broker) as pubsub:
            return await published(pubsub, topic, value)

    return asyncio.run(publish())


async def published(pubsub: PubSub, topic: str, value: object) -> bool:
    try:
        await pubsub.topic(topic).publish_json(value)
    except PenstockError:
        return False
    return True


def by_blocking_client(broker: Broker, topic: str, value: object) -> bool:
    with penstock.sync.PubSub(broker=broker) as pubsub:
        try:
            pubsub.topic(topic).publish_json(value)
        except PenstockError:
            return False
        return True


# ── a server ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def post(server: LocalServer, path: str, body: object, method: str = "POST") -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=SECONDS)) as connection:
        connection.request(method, path, body if isinstance(body, bytes) else encoded(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def by_native_protocol(server: LocalServer, topic: str, value: object) -> bool:
    async def publish() -> bool:
        async with asyncio.timeout(SECONDS), PubSub(server.url) as pubsub:
            return await published(pubsub, topic, value)

    return asyncio.run(publish())


def by_google_grpc(server: LocalServer, topic: str, value: object) -> bool:
    request = messages.PublishRequest(topic=f"projects/penstock/topics/{topic}", messages=[{"data": encoded(value)}])
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        try:
            call(request.SerializeToString(), timeout=SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return False
            raise
        return True


def by_google_rest(server: LocalServer, topic: str, value: object) -> bool:
    body = {"messages": [{"data": base64.b64encode(encoded(value)).decode()}]}
    status, answer = post(server, f"/v1/projects/penstock/topics/{topic}:publish", body)
    assert status in {200, 400}, answer
    return status == 200


def by_unusual_google_rest(server: LocalServer, topic: str, value: object) -> bool:
    """A body that is not in the plain form, and is read by protobuf."""
    body = {"messages": [{"data": base64.b64encode(encoded(value)).decode(), "ordering_key": ""}]}
    status, answer = post(server, f"/v1/projects/penstock/topics/{topic}:publish", body)
    assert status in {200, 400}, answer
    return status == 200


def command(server: LocalServer, name: str, payload: object) -> bool:
    status, answer = post(server, "/api/v1/command", {"command": name, "payload": payload})
    assert status in {200, 400}, answer
    return bool(answer["success"])


def by_queue_api(server: LocalServer, topic: str, value: object) -> bool:
    return command(server, "pubsub.publish", {"topic": topic, "payload": value})


def by_queue_api_event(server: LocalServer, topic: str, value: object) -> bool:
    return command(server, "stream.publish", {"room": topic, "event": "e", "data": value})


def by_resp3(server: LocalServer, topic: str, value: object) -> bool:
    words = (b"PUBLISH", topic.encode(), encoded(value))
    with socket.create_connection(("127.0.0.1", server.server.resp_port or 0), SECONDS) as connection:
        connection.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        return connection.recv(1024).startswith(b":")


def by_synap_rpc(server: LocalServer, topic: str, value: object) -> bool:
    request = msgspec.msgpack.encode([1, "PUBLISH", [{"Str": topic}, {"Bytes": encoded(value)}]])
    with socket.create_connection(("127.0.0.1", server.server.rpc_port or 0), SECONDS) as connection:
        connection.sendall(len(request).to_bytes(4, "little") + request)
        with connection.makefile("rb") as answers:
            size = int.from_bytes(answers.read(4), "little")
            answer = msgspec.msgpack.decode(answers.read(size))
    assert answer[0] == 1, answer
    return "Ok" in answer[1]


def by_hub(server: LocalServer, topic: str, value: object) -> bool:
    async def publish() -> bool:
        async with asyncio.timeout(SECONDS), HubClient(server.url) as hub:
            try:
                await hub.publish(topic, value)
            except PenstockError:
                return False
            return True

    return asyncio.run(publish())


_writes = itertools.count()


def by_staged_write(server: LocalServer, topic: str, value: object) -> bool:
    sink, batch = pa.BufferOutputStream(), pa.record_batch({"value": pa.array([encoded(value)])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    path = f"/log/writes/w{next(_writes)}"
    status, answer = post(server, f"{path}/parts/0?stream={topic}", bytes(sink.getvalue()), "PUT")
    if status != 200:
        assert status == 400, answer
        return False
    status, answer = post(server, f"{path}/commit", {"parts": ["0"]})
    assert status == 200, answer
    return True


# ── the suite ────────────────────────────────────────────────────────────────────────────────────────────────────────────

IN_PROCESS: list[Way] = [by_message_queue, by_embedded_client, by_blocking_client]
ON_A_SERVER: list[Way] = [
    by_native_protocol,
    by_google_grpc,
    by_google_rest,
    by_unusual_google_rest,
    by_queue_api,
    by_queue_api_event,
    by_resp3,
    by_synap_rpc,
    by_hub,
    by_staged_write,
]
ANSWERED_WITH_AN_OFFSET = {by_queue_api_event, by_hub}
"""What is dropped has no offset, so these refuse it; the others answer as for any other message."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    bind = ("checked=checked", "scripted=scripted")
    with LocalServer(data_dir=tmp_path_factory.mktemp("server"), resp_port=0, rpc_port=0, hub_bind=bind) as server:
        make_topics(server.broker)
        yield server


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path if request.param == "disk" else None) as broker:
        make_topics(broker)
        yield broker


class Topic:
    """What a topic holds, from now on."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._stream = broker.catalog.topic(name)
        self._first = self._stream.next_offset

    @property
    def messages(self) -> list[tuple[object, dict[str, str]]]:
        found = [self._broker.message(self._stream, offset) for offset in range(self._first, self._stream.next_offset)]
        return [(json.loads(one.data), one.attributes or {}) for one in found if one is not None]


def check(way: Way, target: Any, broker: Broker) -> None:
    checked = Topic(broker, "checked")
    assert not way(target, "checked", BAD)
    assert way(target, "checked", GOOD)
    [(value, attributes)] = checked.messages
    assert value == GOOD
    assert attributes["googclient_schemaname"] == SCHEMA

    scripted = Topic(broker, "scripted")
    assert not way(target, "scripted", "fail")
    assert way(target, "scripted", "a")
    assert way(target, "scripted", "drop") == (way not in ANSWERED_WITH_AN_OFFSET)
    assert way(target, "scripted", "b")
    assert [value for value, _ in scripted.messages] == ["A", "B"]


@pytest.mark.parametrize("way", IN_PROCESS, ids=lambda way: way.__name__)
def test_the_rules_of_a_topic_are_applied_in_process(way: Way, broker: Broker) -> None:
    check(way, broker, broker)


@pytest.mark.server
@pytest.mark.parametrize("way", ON_A_SERVER, ids=lambda way: way.__name__)
def test_the_rules_of_a_topic_are_applied_by_a_server(way: Way, server: LocalServer) -> None:
    check(way, server, server.broker)
