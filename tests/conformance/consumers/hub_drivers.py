"""Durable subscriptions of the hub, by `HubClient`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

from penstock.client import HubClient
from penstock.errors import PenstockError
from penstock.hub.broker.stored_message import TOPIC
from penstock.values.message import Message
from tests.conformance.consumers.driver import Consumer, Driver, Streamer, Taken
from tests.conformance.consumers.native_drivers import NO_WAIT
from tests.conformance.consumers.place import Counts, Kind, Options, Place, SubscriptionPlace

HISTORY = "consumers"
"""The first level of the hub topics of this suite, of which the server keeps the history; see `conftest`."""


class HubPlace(SubscriptionPlace):
    """A durable subscription of one address to a topic of its own. It exists once its address has subscribed."""

    def __init__(self, broker: Any, project: str, options: Options) -> None:
        super().__init__(broker, project, options)
        self.hub_topic = f"{HISTORY}/{project}"

    @property
    def topic(self) -> str:
        return f"hub.{HISTORY}"

    @property
    def _subscription(self) -> str:
        """The broker's subscription; its name ends with the pattern and a digest."""
        (found,) = (
            one.name
            for one in self.topics.get_subscriptions_for_topic(self.topic)
            if f".{self.hub_topic.replace('/', '.')}." in one.name
        )
        return found

    async def create(self) -> None:
        """Subscribing creates it."""

    async def publish(self, *bodies: bytes, key: str = "") -> None:
        assert not key, "a hub has no ordering keys"
        found = [Message(b'"%s"' % body, {TOPIC: self.hub_topic}) for body in bodies]
        await self.run(self.topics.publish, self.topic, found)

    async def pause(self) -> None:
        await self.run(self.topics.pause, self._subscription)

    async def resume(self) -> None:
        await self.run(self.topics.resume, self._subscription)

    def counts_now(self) -> Counts:
        stats = self.topics.stats(self._subscription)
        return Counts(stats.ready + stats.delayed, stats.in_flight, stats.dead_lettered_total)


class HubConsumer(Streamer):
    """One connection of the address."""

    def __init__(self, client: HubClient, patience: float) -> None:
        super().__init__(patience)
        self._client = client
        self._reader: asyncio.Task[None]

    async def start(self, topic: str) -> None:
        self._messages = self._client.subscribe(topic, durable=True)
        await self._messages.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                self.add(Taken(str(message.data).encode(), None, message))
        except PenstockError as error:
            self.has_ended(error.reason)
        else:
            self.has_ended("closed")

    async def ack(self, *taken: Taken) -> None:
        await self._client.ack(*(one.handle for one in taken))

    async def close(self) -> None:
        with suppress(PenstockError):  # the connection is gone for good
            await self._messages.__aexit__(None, None, None)
        await self._client.close()
        await asyncio.wait([self._reader])

    async def vanish(self) -> None:
        link: Any = self._client._link
        life, socket = link._life, link._socket
        socket._socket._response.connection.transport.abort()  # from inside: there is no such button
        life.cancel()  # or it would connect again
        await asyncio.wait([life])


class HubDurable(Driver):
    name = "hub durable subscription"
    kind = Kind.SUBSCRIPTION
    is_remote = True
    has_one_consumer = True
    cannot: ClassVar = {
        "wait": NO_WAIT,
        "longest wait": "a connection does not end by itself",
        "keys": "a hub has no ordering keys",
        "one of a key": "a hub has no ordering keys",
        "nack": "a hub has acks only",
        "late ack": "a lease lasts as long as its connection",
        "leases outlive their consumer": "what a connection holds is released when it ends",
        "limit by count": "the hub bounds it by settings, not by what a client asks for",
        "limit by bytes": "the hub bounds it by settings, not by what a client asks for",
        "recreate": "the subscription is its reader's own: nobody else deletes it",
        "expiring tokens": "a session whose token has expired has 30 seconds to present another",
        "exactly once": "a hub has no such setting",
    }

    def make_place(self, name: str) -> Place:
        return HubPlace(self.broker, self.scene.project, self.scene.options)

    async def open(self) -> None:
        """Have the subscription made, so that it keeps what is published before the first consumer of a test."""
        consumer = await self.make(max_messages=None, max_bytes=None)
        await consumer.close()

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        client = HubClient(self.server.url, address=f"@(agent/{self.scene.project})", token=self.scene.token)
        await client.open()
        consumer = HubConsumer(client, self.patience)
        assert isinstance(self.place, HubPlace)
        await consumer.start(self.place.hub_topic)
        return consumer


DRIVERS: list[type[Driver]] = [HubDurable]
