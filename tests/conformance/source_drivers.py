"""Penstock's own queues under the suite of sources: in this process, in memory and on disk, and at a server."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from penstock import MessageQueue, NewMessage, PubSub, QueueManager
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.broker.core.message import Message
from penstock.clock import SystemClock
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source
from penstock.router.sources.opening import SourceContext, open_source
from penstock.router_host.local import BrokerQueues
from penstock.router_host.remote import ServerQueues
from penstock.testing.server import ServerProcess
from penstock.testing.sources.driver import Abilities
from tests.ports import free_port

IN_PROCESS = Abilities(restarts=False, has_connection=False, keeps_dead=True)


class MemoryDriver:
    """A work queue of a broker in memory."""

    can = IN_PROCESS
    kind = "queues"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._broker: Broker
        self._aio: AsyncBroker

    @classmethod
    @contextmanager
    def serving(cls, folder: Path) -> Iterator[Self]:
        yield cls(None)

    async def begin(self) -> None:
        self._name = f"orders-{secrets.token_hex(4)}"
        self._open_broker()

    async def end(self) -> None:
        self._close_broker()

    def open(self, lease_seconds: int) -> Source:
        config = QueueConfig("orders", f"penstock:///{self.kind}/{self._name}", visibility_timeout=lease_seconds)
        return open_source(config, SourceContext(environment={}, clock=SystemClock(), local=self._queues))

    def open_elsewhere(self) -> Source:
        raise NotImplementedError("a broker in this process is always there")

    async def crash(self, source: Source) -> None:
        """The broker lives on, as that of a server does: only its consumer is gone."""
        self._queues = BrokerQueues(self._aio)

    async def send(self, bodies: Sequence[bytes]) -> None:
        manager = QueueManager(broker=self._broker)
        if not manager.exists(self._name):
            manager.create(self._name)
        manager.publish_many(self._name, [NewMessage(body) for body in bodies])

    async def left(self) -> int:
        stats = QueueManager(broker=self._broker).stats(self._name)
        return stats.depth + stats.in_flight + stats.delayed

    async def stop_server(self) -> None:
        raise NotImplementedError("a broker in this process is always there")

    async def start_server(self) -> None:
        raise NotImplementedError("a broker in this process is always there")

    def _open_broker(self) -> None:
        self._broker = Broker(data_dir=self._folder)
        self._aio = AsyncBroker(self._broker)
        self._queues = BrokerQueues(self._aio)

    def _close_broker(self) -> None:
        self._aio.close()
        self._broker.close()


class DurableDriver(MemoryDriver):
    """The same on disk, where a crash is one of the whole process: the broker begins anew with what it wrote down."""

    @classmethod
    @contextmanager
    def serving(cls, folder: Path) -> Iterator[Self]:
        yield cls(folder)

    async def crash(self, source: Source) -> None:
        self._close_broker()
        self._open_broker()


class SubscriptionDriver(MemoryDriver):
    """A subscription of a topic in memory."""

    can = Abilities(restarts=False, has_connection=False, takes_empty=False, takes_messages=False)
    kind = "subscriptions"

    async def begin(self) -> None:
        await super().begin()
        self._topics = MessageQueue(broker=self._broker)
        self._topics.register_topic("orders")
        self._topics.register_subscription(self._name, "orders")

    async def send(self, bodies: Sequence[bytes]) -> None:
        self._topics.publish("orders", [Message(body) for body in bodies])

    async def left(self) -> int:
        return self._topics.stats(self._name).backlog


class RemoteDriver:
    """A work queue of a server process, which can be killed."""

    can = Abilities(keeps_dead=True)

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._server = ServerProcess(folder, native_port=self._port)

    @classmethod
    @contextmanager
    def serving(cls, folder: Path) -> Iterator[Self]:
        driver = cls(folder)
        with driver._server:
            yield driver

    async def begin(self) -> None:
        self._name = f"orders-{secrets.token_hex(4)}"
        self._pubsub = PubSub(f"penstock://127.0.0.1:{self._port}")
        await self._pubsub.open()
        self._queue = self._pubsub.queue(self._name)
        await self._queue.create()

    async def end(self) -> None:
        if self._server.process.poll() is not None:
            await self.start_server()
        await self._pubsub.close()

    def open(self, lease_seconds: int) -> Source:
        return self._source(self._port, lease_seconds)

    def open_elsewhere(self) -> Source:
        return self._source(free_port(), 30)

    async def crash(self, source: Source) -> None:
        link = source._link  # type: ignore[attr-defined]  # a kill has no other way in
        link._connection.abort("killed")
        source._link = None  # type: ignore[attr-defined]
        await link.close()

    async def send(self, bodies: Sequence[bytes]) -> None:
        await self._queue.publish_many([NewMessage(body) for body in bodies])

    async def left(self) -> int:
        stats = await self._queue.stats()
        return stats.depth + stats.in_flight + stats.delayed

    async def stop_server(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start_server(self) -> None:
        await asyncio.to_thread(self._server.start)

    def _source(self, port: int, lease_seconds: int) -> Source:
        uri = f"penstock://127.0.0.1:{port}/queues/{self._name}"
        context = SourceContext(environment=os.environ, clock=SystemClock(), remote=ServerQueues())
        return open_source(QueueConfig("orders", uri, visibility_timeout=lease_seconds), context)
