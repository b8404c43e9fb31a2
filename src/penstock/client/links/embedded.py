"""A broker in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

import penstock
from penstock.access import ANYONE
from penstock.api.embedded import embedded_service
from penstock.api.feed import Feed
from penstock.api.operations import Operations as BrokerOperations
from penstock.api.service import Service
from penstock.client.link import Channel, Receiver, check_loop
from penstock.clock import Clock
from penstock.errors import FailedPrecondition, PenstockError
from penstock.values.message import Message
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import Leased, Limits, Nack, Opened
from penstock.wire.operations import Operations

P = ParamSpec("P")
T = TypeVar("T")


class EmbeddedLink:
    """Opens a broker, in memory or on a data directory, or shares one that somebody else closes."""

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        broker: penstock.Broker | None = None,
        project: str | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._given = broker
        self._project = project
        self.broker = broker if broker is not None else penstock.Broker(data_dir=data_dir, clock=clock)
        self.clock: Clock = self.broker.clock
        self.address = "this process" if data_dir is None else str(data_dir)
        self._service: Service | None = None
        self._operations: BrokerOperations | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Belong to the running loop from now on."""
        if self._service is None:
            if self._is_closed:
                raise FailedPrecondition(
                    "the client was closed and cannot be opened again: its broker ended with it",
                    hint="make a new PubSub with the same arguments",
                )
            self._loop = asyncio.get_running_loop()
            self._service = embedded_service(self.broker)
            self._operations = BrokerOperations(self._service, ANYONE, self._project or self._service.projects.default)

    async def close(self) -> None:
        """End the feeds, write everything down, and close the broker unless it was shared."""
        service, self._service, self._operations = self._service, None, None
        if service is not None:
            service.close()
            service.aio.close()
        if self._given is None:
            self._is_closed = True
            # In a thread: closing waits for the disk.
            await asyncio.to_thread(self.broker.close)

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation."""
        with self._asked() as operations:
            method: Callable[P, Awaitable[T]] = getattr(operations, operation.__name__)
            return await method(*args, **kwargs)

    async def publish(self, topic: str, messages: list[Message]) -> list[str]:
        """Publish to a topic."""
        with self._asked() as operations:
            return await operations.publish(topic, messages)

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        """Publish to a work queue."""
        with self._asked() as operations:
            return await operations.enqueue(queue, messages)

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        """Start a stream of deliveries."""
        channel = _EmbeddedChannel(receiver)
        with self._asked() as operations:
            begin = operations.open if kind == frames.TOPIC else operations.open_queue
            channel.feed = begin(name, consumer, limits, channel, owner=self, held=held)
        channel.opened = channel.feed.opened
        return channel

    @contextmanager
    def _asked(self) -> Iterator[BrokerOperations]:
        """The operations of an open link; errors get the names that the caller knows."""
        operations = self._operations
        if operations is None:
            raise FailedPrecondition("the client is not open", hint="async with PubSub() as pubsub: …")
        check_loop(self._loop)
        try:
            yield operations
        except PenstockError as error:
            raise operations.for_caller(error) from None


class _EmbeddedChannel:
    """A feed of the same process: nothing is copied."""

    room = sys.maxsize

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.feed: Feed
        self.opened: Opened

    def deliver(self, queue: object, leases: Sequence[Leased]) -> None:
        """From the feed."""
        self._receiver.receive(self, leases)

    def end(self, error: PenstockError | None) -> None:
        """From the feed."""
        self._receiver.ended(self, error)

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        """Settle deliveries. `begun` is not needed: if this process dies, so does the broker, and the leases expire."""
        self.feed.settle_receipts(acks, nacks, deadlines)

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        """Nothing: everything arrives at once."""
        return [], []

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        """Settle deliveries; returns those that were not leased any more."""
        failed = self.feed.settle_receipts(acks, nacks, deadlines)
        await self.feed.confirmed()
        return failed

    def adjust(self, limits: Limits) -> None:
        """Change the limits."""
        self.feed.adjust(limits)

    async def close(self, *, keep: bool = False) -> None:
        """End it."""
        self.feed.close(keep=keep)
