"""A broker in memory on a manual clock, its feeds, and sinks that write down what they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock import Broker, Message, MessageQueue, SubscriptionOptions
from penstock.api.feed import Feed
from penstock.api.service import Service, embedded_service
from penstock.broker.async_consumer import BATCH
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Find
from penstock.errors import PenstockError
from penstock.testing import ManualClock
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.wire.frames import Limits, receipt

MIB = 1024 * 1024


@dataclass
class Basket:
    """A sink."""

    room: int = BATCH
    leases: list[Lease] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    ends: list[PenstockError | None] = field(default_factory=list)
    feed: Feed | None = None
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        self.leases += leases
        self.batches.append(len(leases))
        self.filled.set()

    def end(self, error: PenstockError | None) -> None:
        self.ends.append(error)

    @property
    def data(self) -> list[bytes]:
        return [lease.message.data for lease in self.leases]

    @property
    def attempts(self) -> list[int]:
        return [lease.attempt for lease in self.leases]

    @property
    def receipts(self) -> list[int]:
        return [receipt(lease.offset, lease.attempt, lease.epoch) for lease in self.leases]


@dataclass
class Stand:
    """A topic `topic` with a subscription `sub`, and feeds of it."""

    broker: Broker
    clock: ManualClock
    service: Service
    topics: MessageQueue

    def publish(self, *data: bytes, key: str = "") -> None:
        self.topics.publish("topic", [Message(one, ordering_key=key) for one in data])

    def open(
        self,
        consumer: str = "me",
        *,
        name: str = "sub",
        find: Find = Catalog.subscription,
        messages: int = 100,
        size: int = 100 * MIB,
        ack_deadline: float = 60.0,
        allow_excess: bool = False,
        is_paused: bool = False,
        owner: object = "one",
        held: list[int] | None = None,
        has_room: bool = True,
    ) -> Basket:
        basket = Basket(BATCH if has_room else 0)
        limits = Limits(messages, size, ack_deadline, allow_excess, is_paused)
        basket.feed = self.service.feeds.open(find, name, consumer, limits, basket, owner=owner, held=held)
        return basket

    async def quiet(self) -> None:
        """Return when the loop has nothing more to do at once."""
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def in_flight(self) -> int:
        return self.topics.stats("sub").in_flight


def feed_of(basket: Basket) -> Feed:
    assert basket.feed is not None
    return basket.feed


@asynccontextmanager
async def standing(**options: Any) -> AsyncIterator[Stand]:
    clock = ManualClock()
    broker = Broker(clock=clock)
    service = embedded_service(broker)
    topics = MessageQueue(broker=broker)
    topics.register_topic("topic")
    topics.register_subscription("sub", "topic", SubscriptionOptions(**options))
    try:
        yield Stand(broker, clock, service, topics)
    finally:
        service.close()
        service.aio.close()
        broker.close()


def scenario(play: Callable[[Stand], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test on a stand whose subscription has these options."""

    async def run() -> None:
        async with asyncio.timeout(20), standing(**options) as stand:
            await play(stand)

    asyncio.run(run())
