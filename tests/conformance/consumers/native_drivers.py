"""Penstock's own client: its stream, `pull` and `consume`, of a server and of a broker in this process."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.client import PubSub
from penstock.client.message import IncomingMessage
from penstock.client.queue import WorkQueue
from penstock.client.subscription import Subscription
from penstock.values.policy import FlowControl
from tests.conformance.consumers.driver import Consumer, Driver, Streamer, Taken, Taker
from tests.conformance.consumers.place import DEADLINE, Kind

Source = Subscription | WorkQueue

NO_WAIT = "a stream has no wait of its own that could be cancelled"
NO_KEYS = "work queues have no ordering keys"
NO_HANDLES = "messages of work queues are settled by their ids"
WINDOWED = "a stream may have several messages of a key outstanding"


def taken(message: IncomingMessage) -> Taken:
    return Taken(message.data, message.delivery_attempt, message)


class ClientDriver(Driver):
    """What all forms of the client share. Each consumer is a client of its own."""

    async def client(self) -> PubSub:
        if self.is_remote:
            pubsub = PubSub(self.server.url, project=self.scene.project, token=self.scene.token)
        else:
            pubsub = PubSub(broker=self.broker)
        await pubsub.open()
        self.rest.push_async_callback(pubsub.close)
        return pubsub

    def source(self, pubsub: PubSub, **options: Any) -> Source:
        return pubsub.queue("work", **options) if self.kind is Kind.QUEUE else pubsub.subscription("work", **options)


def abandon(pubsub: PubSub) -> None:
    """Break the connection of a client that does not come back."""
    link: Any = pubsub.link
    link._is_open = False  # from inside: a client that is merely disconnected would connect again
    link._connection._transport.abort()


class ClientTaker(Taker):
    """Takes by `pull` or `consume`."""

    def __init__(self, pubsub: PubSub, source: Source, patience: float, prefetch: int | None) -> None:
        super().__init__(patience)
        self._pubsub, self._source, self._prefetch = pubsub, source, prefetch

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        if isinstance(self._source, WorkQueue):
            return [taken(one) for one in await self._source.consume(count, wait=wait, prefetch=self._prefetch)]
        return [taken(one) for one in await self._source.pull(count, wait=wait)]

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            one.handle.ack()

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            one.handle.nack()

    async def modify(self, seconds: int, *taken: Taken) -> None:
        for one in taken:
            await one.handle.modify_ack_deadline_with_response(seconds)

    async def close(self) -> None:
        await self._source.close()
        await self._pubsub.close()

    async def vanish(self) -> None:
        abandon(self._pubsub)


class ClientStreamer(Streamer):
    """Takes what a stream brings."""

    def __init__(self, pubsub: PubSub, source: Source, patience: float) -> None:
        super().__init__(patience)
        self._pubsub, self._source = pubsub, source
        source.on("message", self._receive).on("error", self._fail)
        source.open()

    def _receive(self, message: IncomingMessage) -> None:
        self.add(taken(message))

    def _fail(self, error: Exception) -> None:
        if not getattr(error, "transient", False):
            self.has_ended(getattr(error, "reason", repr(error)))

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            one.handle.ack()

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            one.handle.nack()

    async def close(self) -> None:
        await self._source.close()
        await self._pubsub.close()

    async def vanish(self) -> None:
        abandon(self._pubsub)


class _Stream(ClientDriver):
    after_recreation = "ends"
    cannot: ClassVar = {
        "wait": NO_WAIT,
        "longest wait": "a stream does not end by itself",
        "one of a key": WINDOWED,
        "late ack": "the client extends its leases, and a lease that ended all the same is redelivered to the same stream",
        "leases outlive their consumer": "what a stream holds is released when it ends",
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        pubsub = await self.client()
        limits = FlowControl(max_messages=max_messages, max_bytes=max_bytes)
        options: dict[str, Any] = {"flow_control": limits, "ack_deadline": DEADLINE, "close_behavior": "nack", "max_streams": 1}
        if self.scene.options.ordered:
            options["message_ordering"] = True
        return ClientStreamer(pubsub, self.source(pubsub, **options), self.patience)


class _Take(ClientDriver):
    keeps_leases = True
    longest_wait = 60

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        pubsub = await self.client()
        return ClientTaker(pubsub, self.source(pubsub), self.patience, max_messages)


NO_STREAM_LIMITS = "a pull takes what it asks for"
NOBODY_TO_VANISH = "a consumer of a broker in this process does not vanish without it"
NO_TOKENS = "a broker in this process asks for no tokens"


class NativeStream(_Stream):
    name = "native stream"
    kind = Kind.SUBSCRIPTION
    is_remote = True


class NativeQueueStream(_Stream):
    name = "native queue stream"
    kind = Kind.QUEUE
    is_remote = True
    cannot: ClassVar = {**_Stream.cannot, "keys": NO_KEYS}


class NativePull(_Take):
    name = "native pull"
    kind = Kind.SUBSCRIPTION
    is_remote = True
    cannot: ClassVar = {"limit by count": NO_STREAM_LIMITS, "limit by bytes": NO_STREAM_LIMITS}


class NativeConsume(_Take):
    name = "native consume"
    kind = Kind.QUEUE
    is_remote = True
    longest_wait = 86_400
    cannot: ClassVar = {
        "keys": NO_KEYS,
        "one of a key": NO_KEYS,
        "exactly once": "work queues have no such setting",
        "limit by bytes": "the prefetch is a number of messages",
    }


class EmbeddedStream(_Stream):
    name = "embedded stream"
    kind = Kind.SUBSCRIPTION
    is_remote = False
    cannot: ClassVar = {**_Stream.cannot, "vanish": NOBODY_TO_VANISH, "tokens": NO_TOKENS}


class EmbeddedPull(_Take):
    name = "embedded pull"
    kind = Kind.SUBSCRIPTION
    is_remote = False
    cannot: ClassVar = {**NativePull.cannot, "vanish": NOBODY_TO_VANISH, "tokens": NO_TOKENS}


class EmbeddedConsume(_Take):
    name = "embedded consume"
    kind = Kind.QUEUE
    is_remote = False
    longest_wait = 86_400
    cannot: ClassVar = {**NativeConsume.cannot, "vanish": NOBODY_TO_VANISH, "tokens": NO_TOKENS}


DRIVERS: list[type[Driver]] = [
    NativeStream,
    NativeQueueStream,
    NativePull,
    NativeConsume,
    EmbeddedStream,
    EmbeddedPull,
    EmbeddedConsume,
]
