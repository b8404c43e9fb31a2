"""The unmodified synap-sdk against a real server on loopback, over each of its three transports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from synap_sdk import SynapClient, SynapConfig
from synap_sdk.exceptions import SynapException

from penstock import Broker
from penstock.broker.aio import AsyncBroker
from penstock.http.port import HttpServer
from penstock.queue_api import Queues, Resp3Server, SynapRpcServer, routes
from penstock.values.message import MAX_MESSAGE_BYTES
from penstock.values.policy import QueueConfig, RetryPolicy

TRANSPORTS = ("http", "resp3", "synap")
MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""As the server has it by default."""


@asynccontextmanager
async def connected(transport: str, defaults: QueueConfig | None = None) -> AsyncIterator[tuple[SynapClient, Queues]]:
    """A client of a server that lives as long as the block."""
    with Broker() as broker:
        aio = AsyncBroker(broker)
        queues = Queues(aio, defaults=defaults)
        server = (
            HttpServer(routes(queues, MAX_REQUEST_BYTES))
            if transport == "http"
            else {"resp3": Resp3Server, "synap": SynapRpcServer}[transport](queues)
        )
        port = await server.start("127.0.0.1", 0)
        client = SynapClient(SynapConfig(f"{transport}://127.0.0.1:{port}", timeout=60))
        try:
            yield client, queues
        finally:
            await client.close()
            queues.close()
            await server.stop()
            aio.close()


def over(transport: str, talk: Callable[[SynapClient, Queues], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), connected(transport) as (client, queues):
            await talk(client, queues)

    asyncio.run(main())


every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@every_transport
def test_what_is_published_is_consumed_and_acked(transport: str) -> None:
    payloads: list[Any] = [{"resize": "cat.png", "deep": [1, {"a": None}]}, "plain text", "ünïcode", 17, [1, 2, 3], ""]
    if transport == "http":  # over the others the client turns them into text
        payloads.append(b"\x00\xff\xfe")

    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks", max_size=100, message_ttl=30)
        for payload in payloads:
            message_id = await client.queue.publish("tasks", payload, priority=7, max_retries=2)

            message = await client.queue.consume("tasks", "worker-1")

            assert message is not None
            assert (message.id, message.payload, message.priority, message.retries) == (message_id, payload, 7, 0)
            await client.queue.ack("tasks", message.id)
            assert await client.queue.consume("tasks", "worker-1") is None

    over(transport, talk)


@pytest.mark.parametrize(
    ("transport", "payload"),
    [
        # The client makes a list of ten million numbers of it, which takes it seconds.
        pytest.param("http", b"\xff" * MAX_MESSAGE_BYTES, marks=pytest.mark.long, id="http"),
        pytest.param("resp3", "x" * MAX_MESSAGE_BYTES, id="resp3"),
        pytest.param("synap", "x" * MAX_MESSAGE_BYTES, id="synap"),
    ],
)
def test_a_message_of_10_mebibytes_is_published_and_consumed(transport: str, payload: str | bytes) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks")
        await client.queue.publish("tasks", payload)
        message = await client.queue.consume("tasks", "worker-1")
        assert message is not None
        assert message.payload == payload

    over(transport, talk)


@every_transport
def test_the_most_urgent_message_comes_first(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks")
        for priority in (1, 9, 5):
            await client.queue.publish("tasks", f"p{priority}", priority=priority)
        got = [await client.queue.consume("tasks", "w") for _ in range(3)]
        assert [message.payload for message in got if message is not None] == ["p9", "p5", "p1"]

    over(transport, talk)


@every_transport
def test_a_nacked_message_comes_back_with_its_retries_counted(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks")
        await client.queue.publish("tasks", "again")
        first = await client.queue.consume("tasks", "w")
        assert first is not None
        await client.queue.nack("tasks", first.id)
        second = await client.queue.consume("tasks", "w")
        assert second is not None
        assert (second.id, second.retries) == (first.id, 1)

    over(transport, talk)


@every_transport
def test_creating_a_queue_twice_is_fine(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks", max_size=5, message_ttl=11)
        await client.queue.create_queue("tasks")
        config = await queues.of().get_queue("tasks")
        assert (config.max_depth, config.ack_deadline_secs) == (5, 11)

    over(transport, talk)


@every_transport
def test_stats_list_and_delete(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("one")
        await client.queue.create_queue("two")
        await client.queue.publish("one", "x")
        stats = await client.queue.stats("one")
        assert (stats["depth"], stats["published"], stats["acked"], stats["published_total"]) == (1, 1, 0, 1)
        assert await client.queue.list() == ["one", "two"]
        await client.queue.delete_queue("one")
        assert await client.queue.list() == ["two"]

    over(transport, talk)


@every_transport
def test_errors_say_what_was_wrong(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        with pytest.raises(SynapException, match="Queue not found: nowhere"):
            await client.queue.publish("nowhere", "x")
        await client.queue.create_queue("tasks", max_size=1)
        with pytest.raises(SynapException, match="Message not found: nothing"):
            await client.queue.ack("tasks", "nothing")
        with pytest.raises(SynapException, match="Invalid priority: 12"):
            await client.queue.publish("tasks", "x", priority=12)
        await client.queue.publish("tasks", "x")
        with pytest.raises(SynapException, match="Queue is full: tasks"):
            await client.queue.publish("tasks", "x")
        assert await client.queue.list() == ["tasks"], "the connection goes on"

    over(transport, talk)


@every_transport
def test_commands_that_are_not_served_are_refused(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        with pytest.raises(SynapException, match="unknown command"):
            await client.kv.set("key", "value")

    over(transport, talk)


@every_transport
def test_many_calls_at_once_share_a_connection(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.queue.create_queue("tasks")
        ids = await asyncio.gather(*(client.queue.publish("tasks", {"n": n}) for n in range(50)))
        assert len(set(ids)) == 50
        assert (await client.queue.stats("tasks"))["depth"] == 50

    over(transport, talk)


@every_transport
def test_event_streams_are_read_by_offset(transport: str) -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        assert await client.stream.get_or_create_room("events")
        assert not await client.stream.get_or_create_room("events")
        assert await client.stream.publish("events", "user.created", {"id": "1"}) == 0
        assert await client.stream.publish("events", "user.deleted", [1, 2]) == 1
        events = await client.stream.read("events", offset=0)
        assert [(event.offset, event.event, event.data) for event in events] == [
            (0, "user.created", {"id": "1"}),
            (1, "user.deleted", [1, 2]),
        ]
        assert [event.offset for event in await client.stream.read("events", offset=1)] == [1]
        assert await client.stream.list_rooms() == ["events"]
        assert (await client.stream.stats("events"))["event_count"] == 2
        assert await client.pubsub.publish("events", {"hello": 1}) == 0
        assert await client.pubsub.list_topics() == ["events"]
        await client.stream.delete_room("events")
        assert await client.stream.list_rooms() == []

    over(transport, talk)


@every_transport
def test_queues_of_the_sdk_have_the_defaults_of_the_server(transport: str) -> None:
    async def main() -> None:
        defaults = QueueConfig(max_retries=7, retry_policy=RetryPolicy(2, 60))
        async with asyncio.timeout(60), connected(transport, defaults) as (client, queues):
            await client.queue.create_queue("tasks", max_size=100)
            config = queues.manager.config("tasks")
            assert (config.max_depth, config.max_retries, config.retry_policy) == (100, 7, RetryPolicy(2, 60))

    asyncio.run(main())


def test_the_sdk_sets_the_backoff_of_one_queue_by_a_command() -> None:
    async def talk(client: SynapClient, queues: Queues) -> None:
        await client.send_command("queue.create", {"name": "tasks", "retry_policy": {"minimum_backoff": 1, "maximum_backoff": 8}})
        assert queues.manager.config("tasks").retry_policy == RetryPolicy(1, 8)

    over("http", talk)
