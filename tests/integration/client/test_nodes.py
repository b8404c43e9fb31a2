"""Clients that know several addresses: which of them they use, and where they go when it is lost. Real servers, real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock import PubSub
from penstock import sync as blocking
from penstock.client.links.remote import RemoteLink
from penstock.errors import ServerUnreachable
from penstock.hub.client.client import HubClient
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer
from penstock.values.message import Message
from penstock.wire.http import answer
from tests.integration.client.quiet import run, until
from tests.ports import free_port


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


class Signpost:
    """A node that stands by: its `GET /native` names the owner of the log, and its own native port, which is closed."""

    def __init__(self) -> None:
        self.answer: dict[str, object] = {}
        self.asked = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        body = json.dumps({"port": free_port(), "version": 1, "tls": False, **self.answer}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def signpost() -> AsyncIterator[Signpost]:
    post = Signpost()
    async with await asyncio.start_server(post.serve, "127.0.0.1", 0) as listener:
        post.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield post


def test_every_client_takes_the_first_server_that_answers() -> None:
    async def scenario(servers: list[str]) -> None:
        async with PubSub(servers) as pubsub:
            await pubsub.topic("orders").create()
        async with PubSub(", ".join(servers)) as pubsub:
            assert [one.name for one in await pubsub.topics()] == ["orders"]
        async with HubClient(servers) as hub:
            assert await hub.actors()

    with LocalServer() as server:
        servers = [nowhere(), server.url]
        run(lambda: scenario(servers))
        with blocking.PubSub(servers) as pubsub:
            pubsub.topic("orders").publish_message(b"1")
        with HttpLog(servers) as log:
            log.reach(5)
            assert [one.stream for one in log.spans().streams] == ["orders"]
        with answer(",".join(servers), "/health/live", seconds=5) as response:
            assert response.status == 200


def test_an_error_names_every_address() -> None:
    servers = [nowhere(), nowhere()]

    async def unreachable() -> None:
        with pytest.raises(ServerUnreachable, match="connection refused") as refused:
            await RemoteLink(servers).start()
        assert all(one in str(refused.value) for one in servers)

    run(unreachable)


def test_a_publish_goes_to_the_next_server_and_is_stored_once(tmp_path: Path) -> None:
    """Two servers on one directory, one after the other: what the clients of a failover see."""
    first = LocalServer(data_dir=tmp_path).start()
    second_port, count = free_port(), 200

    async def scenario() -> None:
        async with PubSub([first.url, f"http://127.0.0.1:{second_port}"], give_up_seconds=60) as pubsub:
            topic = pubsub.topic("orders")
            await topic.create()
            await topic.subscription("all").create()
            publishing = [asyncio.ensure_future(pubsub.link.publish("orders", [Message(b"%d" % one)])) for one in range(count)]
            await publishing[0]
            await asyncio.to_thread(first.stop)
            publishing += [asyncio.ensure_future(pubsub.link.publish("orders", [Message(b"later")]))]
            second = await asyncio.to_thread(LocalServer(data_dir=tmp_path, port=second_port).start)
            try:
                ids = [(await one)[0] for one in publishing]
                assert len(set(ids)) == count + 1
                assert (await pubsub.subscription("all").stats()).backlog == count + 1
            finally:
                await pubsub.close()
                await asyncio.to_thread(second.stop)

    try:
        run(scenario)
    finally:
        first.stop()


def test_a_client_follows_the_address_of_the_owner_and_ignores_an_older_one() -> None:
    async def scenario(owner: LocalServer, other: LocalServer) -> None:
        async with signpost() as new, signpost() as old:
            new.answer = {"owner": owner.url, "epoch": 7}
            old.answer = {"owner": other.url, "epoch": 6}
            async with PubSub([new.url, old.url]) as pubsub:
                await pubsub.topic("orders").create()
                # The owner is lost, and the node that stands by cannot reach it either.
                new.answer = {"owner": nowhere(), "epoch": 7}
                assert isinstance(pubsub.link, RemoteLink)
                assert pubsub.link._connection is not None
                pubsub.link._connection.abort("the cable was cut")
                asked = old.asked
                publishing = asyncio.ensure_future(pubsub.topic("orders").publish_message(b"1"))
                await until(lambda: old.asked > asked + 1, "the other node is asked")
                assert not publishing.done()
                new.answer = {"owner": owner.url, "epoch": 8}
                assert await publishing

    with LocalServer() as owner, LocalServer() as other:
        run(lambda: scenario(owner, other))
        with blocking.PubSub(other.url) as pubsub:
            assert pubsub.topics() == []
