"""A node that stands by relays every protocol to the owner. Two nodes in one loop, real sockets, with and without TLS."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from penstock import PubSub
from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.errors import ServerUnreachable
from penstock.google import messages
from penstock.http.authentication import TokenGate
from penstock.http.http2_relay import PROTOCOLS
from penstock.http.limits import HttpLimits
from penstock.http.monitoring import monitoring_routes
from penstock.hub.client.client import HubClient
from penstock.journal.memory import MemoryJournal
from penstock.server.nodes.relay import Owner, Relay
from penstock.server.nodes.standby import Standby
from penstock.server.server import Ownership, Server
from tests.integration.client.quiet import run, until

KEY = os.urandom(32)
LIST_TOPICS = "/google.pubsub.v1.Publisher/ListTopics"


@dataclass
class Two:
    """An owner, a node that stands by, and what the latter knows."""

    server: Server
    standby: Standby
    relay: Relay
    owner: Owner | None
    ports: dict[str, int]
    scheme: str
    trust: ssl.SSLContext | None
    certificate: Path | None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.ports['http']}"

    @property
    def native(self) -> str:
        return f"penstock{'s' if self.trust else ''}://127.0.0.1:{self.ports['native']}"


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> tuple[Path, Path] | None:
    return certificate if request.param == "tls" else None


@asynccontextmanager
async def two(tls: tuple[Path, Path] | None, key: bytes = KEY) -> AsyncIterator[Two]:
    files: dict[str, Any] = {} if tls is None else {"tls_cert": tls[0], "tls_key": tls[1]}
    ports: dict[str, Any] = dict.fromkeys(["port", "grpc_port", "native_port", "resp_port", "rpc_port"], 0)
    settings = Settings(memory=True, shutdown_seconds=1, **ports, **files)
    server = Server(settings, SystemClock(), ownership=Ownership(MemoryJournal(), 7, KEY))
    await server.start()
    trust = None if tls is None else ssl.create_default_context(cafile=tls[0])
    found = Two(server, None, None, None, {}, "http" if tls is None else "https", trust, tls[0] if tls else None)  # type: ignore[arg-type]
    found.owner = Owner(7, f"{found.scheme}://127.0.0.1:{server.port}", key)
    found.relay = Relay(lambda: found.owner, lambda: trust or ssl.create_default_context())
    routes = monitoring_routes(version="1", problems=list, collectors=[])
    found.standby = Standby(found.relay, lambda: found.owner, routes, gate=TokenGate(), limits=HttpLimits(), hosts=["127.0.0.1"])
    served = None
    if tls is not None:
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(*tls)
        served.set_alpn_protocols([*PROTOCOLS])
    try:
        found.ports["http"] = await found.standby.start_http("127.0.0.1", 0, served)
        for name in ("grpc", "native", "resp", "rpc"):
            found.ports[name] = await found.standby.start(name, "127.0.0.1", 0, served)
        yield found
    finally:
        await found.standby.stop()
        await server.stop()


def test_every_protocol_reaches_the_owner(tls: tuple[Path, Path] | None) -> None:
    async def scenario() -> None:
        async with two(tls) as nodes:
            async with PubSub(nodes.native, tls=nodes.trust) as pubsub:
                topic = pubsub.topic("orders")
                await topic.create()
                await topic.subscription("billing").create()
                await topic.publish_message(b"x" * 500_000)
                async for message in pubsub.subscription("billing"):
                    assert len(message.data) == 500_000
                    await message.ack_with_response()
                    break
            async with HubClient(nodes.url, tls=nodes.trust) as hub, hub.subscribe("room/1") as heard:
                await hub.publish("room/1", {"a": 1})
                async for said in heard:
                    assert said.data == {"a": 1}
                    break
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=nodes.trust or True)) as session:
                topics = f"{nodes.url}/v1/projects/penstock/topics"
                async with session.get(f"{nodes.url}/health/live") as answer:  # the node's own; the next is not
                    assert answer.status == 200
                async with session.get(topics) as answer:
                    assert [one["name"] for one in (await answer.json())["topics"]] == ["projects/penstock/topics/orders"]
            await asyncio.to_thread(call_grpc, nodes)
            reader, writer = await asyncio.open_connection("127.0.0.1", nodes.ports["resp"], ssl=nodes.trust)
            writer.write(b"*1\r\n$4\r\nPING\r\n")
            assert await reader.readexactly(10) == b"$4\r\nPONG\r\n"
            writer.close()
            await until(lambda: not len(nodes.relay), "the relayed connections end")

    run(scenario)


def call_grpc(nodes: Two) -> None:
    for name in ("http", "grpc"):
        address = f"127.0.0.1:{nodes.ports[name]}"
        if nodes.certificate is None:
            channel = grpc.insecure_channel(address)
        else:
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(nodes.certificate.read_bytes()))
        with channel:
            request = messages.ListTopicsRequest(project="projects/penstock").SerializeToString()
            answer = channel.unary_unary(LIST_TOPICS)(request, timeout=30)
            assert [one.name for one in messages.ListTopicsResponse.FromString(answer).topics] == [
                "projects/penstock/topics/orders"
            ]


def test_our_client_goes_to_the_owner_itself_and_an_old_one_is_relayed(tls: tuple[Path, Path] | None) -> None:
    async def scenario() -> None:
        async with two(tls) as nodes:
            async with PubSub([nodes.url], tls=nodes.trust) as pubsub:
                await pubsub.topic("orders").create()
                assert not len(nodes.relay)
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=nodes.trust or True)) as session,
                session.get(f"{nodes.url}/native") as answer,
            ):
                place = json.loads(await answer.read())
            assert nodes.owner is not None
            assert place == {
                "port": nodes.ports["native"],
                "version": 1,
                "tls": tls is not None,
                "epoch": 7,
                "owner": nodes.owner.address,
            }

    run(scenario)


def test_the_owner_sees_the_address_of_the_client() -> None:
    async def scenario() -> None:
        async with two(None) as nodes:
            _, writer = await asyncio.open_connection("127.0.0.1", nodes.ports["native"])
            mine = writer.get_extra_info("sockname")
            native = next(api for api in nodes.server._apis if hasattr(api, "connections") and hasattr(api, "service"))
            await until(lambda: bool(native.connections), "the connection arrives")
            assert [one.address for one in native.connections] == [f"{mine[0]}:{mine[1]}"]
            writer.close()

    run(scenario)


def test_without_an_owner_clients_get_an_error_that_passes() -> None:
    async def scenario() -> None:
        async with two(None) as nodes:
            nodes.owner = None
            topics = f"{nodes.url}/v1/projects/penstock/topics"
            async with aiohttp.ClientSession() as session, session.get(topics) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert (await answer.json())["error"]["reason"] == "unavailable"
            with pytest.raises(ServerUnreachable):
                async with PubSub([nodes.url]):
                    pass

    run(scenario)


def test_a_change_of_ownership_ends_what_is_relayed_to_the_owner_before() -> None:
    async def scenario() -> None:
        async with two(None) as nodes, PubSub(nodes.native) as pubsub:
            await pubsub.topic("orders").create()
            assert len(nodes.relay) == 1
            nodes.relay.cut(before=7)
            assert len(nodes.relay) == 1
            nodes.relay.cut(before=8)
            await pubsub.topic("orders").publish_message(b"over the next connection")

    run(scenario)


def test_a_line_that_no_node_has_written_is_refused() -> None:
    async def scenario() -> None:
        async with two(None, key=b"another key") as nodes:
            reader, writer = await asyncio.open_connection("127.0.0.1", nodes.ports["resp"])
            writer.write(b"*1\r\n$4\r\nPING\r\n")
            assert await reader.read() == b""
            writer.close()

    run(scenario)
