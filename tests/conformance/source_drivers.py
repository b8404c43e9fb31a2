"""Penstock's own queues in this process, in memory and on disk, as drivers of the suite of sources."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from penstock import MessageQueue, NewMessage, QueueManager
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from penstock.values.message import Message
from tests.conformance.sources.driver import Abilities

IN_PROCESS = Abilities(restarts=False, has_connection=False, keeps_dead=True)


class MemoryDriver:
    """A work queue of a broker in memory."""

    can = IN_PROCESS
    kind = "queues"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broker: Broker
        self._aio: AsyncBroker

    @property
    def data_dir(self) -> Path | None:
        return None

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
        self._broker = Broker(data_dir=self.data_dir)
        self._aio = AsyncBroker(self._broker)
        self._queues = BrokerQueues(self._aio)

    def _close_broker(self) -> None:
        self._aio.close()
        self._broker.close()


class DurableDriver(MemoryDriver):
    """The same on disk, where a crash is one of the whole process: the broker begins anew with what it wrote down."""

    @property
    def data_dir(self) -> Path:
        return self._folder

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
