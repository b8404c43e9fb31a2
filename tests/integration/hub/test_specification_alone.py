"""Decision 63: a client that was written from specification 002 alone: it opens a WebSocket, subscribes, and knows no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from penstock.testing.server import LocalServer
from tests.integration.hub.scene import HUB, scenario


class Client:
    """Everything that the specification says of a client: send a type and a payload, receive JSON."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, kind: str, **payload: object) -> None:
        await self._socket.send_json({"type": kind, "payload": payload})

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._socket.receive_str(timeout=60))
        return message


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws") as socket:
        yield Client(socket)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with LocalServer() as server:
        yield server.url


@scenario
async def test_a_client_of_the_specification_subscribes_publishes_and_unsubscribes(url: str) -> None:
    """Specification 002, from "Subscription Flow" to "Unsubscribe Flow", on two fresh sockets."""
    async with client(url) as subscriber, client(url) as publisher:
        await subscriber.send("hub:subscribe", topic="system/events", durable=False)
        subscribed = await subscriber.receive()
        assert (subscribed["type"], subscribed["from"]) == ("hub:subscribed", HUB)
        assert subscribed["payload"]["topic"] == "system/events"
        assert subscribed["payload"]["subscriptionId"].startswith("sub-")

        data = {"eventId": "evt_123", "action": "user_signup"}
        await publisher.send("hub:publish", topic="system/events", type="event:created", data=data)
        forwarded = await subscriber.receive()
        assert (forwarded["type"], forwarded["payload"]) == ("event:created", data)
        metadata = forwarded["metadata"]
        assert (metadata["forwarded"], metadata["via"], metadata["topic"]) == (True, HUB, "system/events")
        ack = await publisher.receive()
        assert (ack["type"], ack["from"]) == ("hub:delivery_ack", HUB)
        assert (ack["payload"]["topic"], ack["payload"]["subscriberCount"]) == ("system/events", 1)
        assert (ack["payload"]["delivered"], type(ack["payload"]["timestamp"])) == (True, int)
        assert forwarded["from"] == ack["to"] != forwarded["to"] == subscribed["to"]

        await subscriber.send("hub:unsubscribe", topic="system/events")
        unsubscribed = await subscriber.receive()
        assert (unsubscribed["type"], unsubscribed["payload"]["topic"]) == ("hub:unsubscribed", "system/events")
        await publisher.send("hub:publish", topic="system/events", type="event:created", data=data)
        assert (await publisher.receive())["payload"]["subscriberCount"] == 0


@scenario
async def test_a_client_of_the_specification_is_told_its_errors(url: str) -> None:
    """Specification 002, "Error Scenarios", as the first thing that a connection hears."""
    async with client(url) as one, client(url) as other:
        await one.send("hub:subscribe", topic="no spaces")
        error = (await one.receive())["payload"]
        assert (error["code"], error["message"]) == ("internal_error", "topic is required")
        await other.send("hub:publish", topic="system/events", data=1)
        error = (await other.receive())["payload"]
        assert (error["code"], error["message"]) == ("internal_error", "payload.type is required")
