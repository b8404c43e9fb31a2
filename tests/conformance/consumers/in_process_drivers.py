"""Consumers in this process besides the client: `MessageQueue`, `QueueManager`, and the router's source of local queues."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import ClassVar

from penstock import MessageQueue, QueueManager
from penstock.broker.aio import AsyncBroker
from penstock.clock import SystemClock
from penstock.errors import InvalidArgument, PenstockError
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from tests.conformance.consumers.driver import Consumer, Driver, Taken, Taker
from tests.conformance.consumers.native_drivers import NO_HANDLES, NO_KEYS, NO_TOKENS, NOBODY_TO_VANISH
from tests.conformance.consumers.place import DEADLINE, Kind

POLL_SECONDS = 0.002
BLOCKING = "a thread that waits cannot be cancelled"
NO_LIMITS = "it takes what it asks for"

_numbers = itertools.count()


class PullTaker(Taker):
    """`MessageQueue.pull`, which never waits."""

    def __init__(self, topics: MessageQueue, name: str, patience: float) -> None:
        super().__init__(patience)
        self._topics, self._name = topics, name

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            found = await asyncio.to_thread(self._topics.pull, self._name, count)
            if found or loop.time() >= until:
                return [Taken(one.data, one.delivery_attempt, one.ack_id) for one in found]
            await asyncio.sleep(POLL_SECONDS)  # it never waits by itself

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            with suppress(InvalidArgument):  # the lease is over; whether the ack counted shows at the broker
                self._topics.ack(one.handle)

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            self._topics.nack(one.handle)

    async def modify(self, seconds: int, *taken: Taken) -> None:
        for one in taken:
            self._topics.set_ack_deadline(one.handle, seconds)

    async def close(self) -> None:
        """There is nothing to close."""


class MessageQueuePull(Driver):
    name = "MessageQueue.pull"
    kind = Kind.SUBSCRIPTION
    is_remote = False
    keeps_leases = True
    cannot: ClassVar = {
        "wait": BLOCKING,
        "longest wait": "it never waits",
        "vanish": NOBODY_TO_VANISH,
        "tokens": NO_TOKENS,
        "limit by count": NO_LIMITS,
        "limit by bytes": NO_LIMITS,
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        return PullTaker(self.place.topics, self.place.name, self.patience)


class ConsumeTaker(Taker):
    """`QueueManager.consume_many`, in a thread where it waits."""

    def __init__(self, queues: QueueManager, name: str, patience: float, prefetch: int | None) -> None:
        super().__init__(patience)
        self._queues, self._name, self._prefetch = queues, name, prefetch
        self._consumer = f"consumer-{next(_numbers)}"

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        found = await asyncio.to_thread(
            self._queues.consume_many, self._name, self._consumer, max_messages=count, timeout=wait, prefetch=self._prefetch
        )
        return [Taken(str(one.payload).encode(), one.retry_count + 1, one.message_id) for one in found]

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            with suppress(PenstockError):  # the lease is over; whether the ack counted shows at the broker
                self._queues.ack(self._name, one.handle, self._consumer)

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            self._queues.nack(self._name, one.handle, consumer_id=self._consumer)

    async def modify(self, seconds: int, *taken: Taken) -> None:
        for one in taken:
            self._queues.extend(self._name, one.handle, seconds, self._consumer)

    async def close(self) -> None:
        """There is nothing to close."""


class QueueManagerConsume(Driver):
    name = "QueueManager.consume"
    kind = Kind.QUEUE
    is_remote = False
    keeps_leases = True
    longest_wait = 86_400
    cannot: ClassVar = {
        "wait": BLOCKING,
        "vanish": NOBODY_TO_VANISH,
        "tokens": NO_TOKENS,
        "keys": NO_KEYS,
        "one of a key": NO_KEYS,
        "exactly once": "work queues have no such setting",
        "stale ack": NO_HANDLES,
        "limit by bytes": "the prefetch is a number of messages",
    }

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        return ConsumeTaker(self.place.queues, self.place.name, self.patience, max_messages)


class SourceTaker(Taker):
    """`Source.poll`."""

    def __init__(self, source: Source, patience: float) -> None:
        super().__init__(patience)
        self._source = source
        self._is_gone = False

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        return [Taken(one.body, one.count, one) for one in await self._source.poll(count, wait)]

    async def ack(self, *taken: Taken) -> None:
        for one in taken:
            self._source.ack(one.handle)
        await self._source.flush()

    async def nack(self, *taken: Taken) -> None:
        for one in taken:
            self._source.nack(one.handle, 0)
        await self._source.flush()

    async def close(self) -> None:
        if not self._is_gone:
            await self._source.stop()

    async def vanish(self) -> None:
        self._is_gone = True


class _Router(Driver):
    is_remote = False
    _queues: BrokerQueues
    honours_late_acks = True
    cannot: ClassVar = {
        "tokens": NO_TOKENS,
        "connection": "the router is in the process of its broker",
        "limit by count": "the router bounds what it polls for",
        "limit by bytes": "the router bounds what it polls for",
        "longest wait": "the router decides how long it waits",
        "leases outlive their consumer": "what a source held is released when it stops",
        "somebody else": "all sources of a router are one consumer",
        "exactly once": "the router acks a message again that comes again",
        "stale ack": "the router acks a message, whatever its delivery",
    }

    async def open(self) -> None:
        self._aio = AsyncBroker(self.broker)
        self.rest.callback(self._aio.close)
        self._queues = BrokerQueues(self._aio)

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        config = QueueConfig("orders", f"penstock:///{self.kind.value}s/{self.place.name}", visibility_timeout=DEADLINE)
        source = open_source(config, SourceContext(environment={}, clock=SystemClock(), local=self._queues))
        await source.start()
        return SourceTaker(source, self.patience)

    async def released(self) -> None:
        """A router that died is one that starts again: its next life gives back what the last one held."""
        self._queues = BrokerQueues(self._aio)


class RouterQueue(_Router):
    name = "router queue"
    kind = Kind.QUEUE
    cannot: ClassVar = {**_Router.cannot, "keys": NO_KEYS, "one of a key": NO_KEYS}


class RouterSubscription(_Router):
    name = "router subscription"
    kind = Kind.SUBSCRIPTION


DRIVERS: list[type[Driver]] = [MessageQueuePull, QueueManagerConsume, RouterQueue, RouterSubscription]
