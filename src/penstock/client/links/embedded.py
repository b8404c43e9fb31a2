"""A broker in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import penstock
from penstock.access import ANYONE
from penstock.api.feed import Feed
from penstock.api.operations import Operations as BrokerOperations
from penstock.api.service import Service, embedded_service
from penstock.client.link import OPEN_IT, Channel, Receiver, check_loop
from penstock.clock import Clock
from penstock.errors import FailedPrecondition, PenstockError
from penstock.values.message import Batch, StoredMessage, joined, summarize
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import Leased, Limits, Nack, Opened
from penstock.wire.operations import Operations

P = ParamSpec("P")
T = TypeVar("T")


class EmbeddedLink:
    """Opens a broker, in memory or on a data directory, or shares one that its owner closes."""

    is_embedded = True

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
                    hint="create a new PubSub with the same arguments",
                )
            self._loop = asyncio.get_running_loop()
            self._service = embedded_service(self.broker)
            self._operations = BrokerOperations(self._service, ANYONE, self._project or self._service.projects.default)

    async def close(self) -> None:
        """End the feeds, write everything to disk, and close the broker unless it is shared."""
        service, self._service, self._operations = self._service, None, None
        if service is not None:
            service.close()
            service.aio.close()
        if self._given is None:
            self._is_closed = True
            # In a thread: closing waits for the disk.
            await asyncio.to_thread(self.broker.close)

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        operations = self._operations_here()
        method: Callable[P, Awaitable[T]] = getattr(operations, operation.__name__)
        try:
            return await method(*args, **kwargs)
        except PenstockError as error:
            raise operations.for_caller(error) from None

    async def publish(self, topic: str, messages: list[StoredMessage] | list[Batch]) -> list[str]:
        """Publish checked messages to a topic; each with a producer id is a batch of its own."""
        batch = joined(messages) if isinstance(messages[0], Batch) else summarize(messages)
        operations = self._operations_here()
        try:
            return await operations.publish_checked(topic, batch)
        except PenstockError as error:
            raise operations.for_caller(error) from None

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        operations = self._operations_here()
        try:
            return await operations.enqueue(queue, messages)
        except PenstockError as error:
            raise operations.for_caller(error) from None

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        channel = _EmbeddedChannel(receiver)
        operations = self._operations_here()
        begin = operations.open if kind == frames.TOPIC else operations.open_queue
        try:
            channel.feed = begin(name, consumer, limits, channel, owner=self, held=held)
        except PenstockError as error:
            raise operations.for_caller(error) from None
        channel.opened = channel.feed.opened
        return channel

    def _operations_here(self) -> BrokerOperations:
        """The operations of an open link. Their errors have the caller's names of resources: see `for_caller`."""
        operations = self._operations
        if operations is None:
            raise FailedPrecondition("the client is not open", hint=OPEN_IT)
        check_loop(self._loop)
        return operations


class _EmbeddedChannel:
    """A feed in the same process, without copying."""

    room = sys.maxsize

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.feed: Feed
        self.opened: Opened

    def deliver(self, queue: object, leases: Sequence[Leased]) -> None:
        self._receiver.receive(self, leases)

    def end(self, error: PenstockError | None) -> None:
        self._receiver.ended(self, error)

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        """Settle deliveries. `begun` is not needed: if this process dies, so does the broker, and the leases expire."""
        self.feed.settle_receipts(acks, nacks, deadlines)

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        """None: everything arrives at once."""
        return [], []

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        """Settle deliveries; returns those that were not leased any more."""
        failed = self.feed.settle_receipts(acks, nacks, deadlines)
        await self.feed.confirmed()
        return failed

    def adjust(self, limits: Limits) -> None:
        self.feed.adjust(limits)

    async def close(self, *, keep: bool = False) -> None:
        self.feed.close(keep=keep)
