"""The subscription or work queue behind a consumer, as the broker sees it: the suite publishes, pauses and counts here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, ParamSpec, TypeVar

from penstock import Broker, DeadLetterPolicy, MessageQueue, NewMessage, QueueConfig, QueueManager, SubscriptionOptions
from penstock.broker import lookup
from penstock.values.message import Message

P = ParamSpec("P")
T = TypeVar("T")

DEADLINE = 30
"""Seconds of a lease in every place."""


class Kind(Enum):
    """What a consumer consumes."""

    SUBSCRIPTION = "subscription"
    QUEUE = "queue"


@dataclass(frozen=True)
class Options:
    """What a promise asks of its place."""

    ordered: bool = False
    exactly_once: bool = False
    on_disk: bool = False
    """Brokers in this process are durable, and keep next to nothing in memory. Servers always are and do."""


class Counts(NamedTuple):
    """How many messages are where."""

    waiting: int
    in_flight: int
    dead: int
    """Dead letters."""

    @property
    def backlog(self) -> int:
        return self.waiting + self.in_flight


class Place:
    """A subscription or a work queue of its own. Names are the broker's own, with the project in front."""

    def __init__(self, broker: Broker, name: str, options: Options) -> None:
        self.broker = broker
        self.name = name
        self.options = options
        self.is_durable = broker.is_durable
        self.topics = MessageQueue(broker=broker)
        self.queues = QueueManager(broker=broker)

    async def create(self) -> None:
        raise NotImplementedError

    async def delete(self) -> None:
        raise NotImplementedError

    async def publish(self, *bodies: bytes, key: str = "") -> None:
        raise NotImplementedError

    async def pause(self) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        raise NotImplementedError

    def counts_now(self) -> Counts:
        """The counts, without giving anybody a turn."""
        raise NotImplementedError

    async def counts(self) -> Counts:
        return await self.run(self.counts_now)

    async def recreate(self) -> None:
        """Delete it and create another one with the same name, in one step of the loop: nobody sees the moment between."""
        is_durable, self.is_durable = self.is_durable, False
        try:
            await self.delete()
            await self.create()
        finally:
            self.is_durable = is_durable

    async def until(self, is_so: Callable[[Counts], bool], patience: float) -> Counts:
        """The counts, once they are as they should be; fails with them if they never are."""
        counts = await self.counts()
        try:
            async with asyncio.timeout(patience):
                while not is_so(counts):
                    await asyncio.sleep(0.005)  # a broker notifies nobody of its counts
                    counts = await self.counts()
        except TimeoutError:
            raise AssertionError(f"still {counts} after {patience} s") from None
        return counts

    async def nobody_waits(self, patience: float) -> None:
        """Return once no consumer waits for it: the broker may notice late that one is gone."""
        found = lookup.find_subscription(self.broker, self.name) or lookup.find_work_queue(self.broker, self.name)
        assert found is not None, "it was created"
        async with asyncio.timeout(patience):
            while found.number in self.broker.notifier.callbacks:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.005)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the broker without blocking the loop where it may wait for a disk."""
        if self.is_durable:
            return await asyncio.to_thread(function, *args, **kwargs)
        return function(*args, **kwargs)


class SubscriptionPlace(Place):
    """A subscription. Its dead letter policy makes Google's API show delivery attempts."""

    @property
    def topic(self) -> str:
        return f"{self.name}-topic"

    @property
    def letters(self) -> str:
        return f"{self.name}-letters"

    async def create(self) -> None:
        for topic in (self.topic, self.letters):
            if not self.topics.topic_exists(topic):
                await self.run(self.topics.register_topic, topic)
        options = SubscriptionOptions(
            ack_deadline_seconds=DEADLINE,
            message_ordering=self.options.ordered,
            exactly_once=self.options.exactly_once,
            dead_letter_policy=DeadLetterPolicy(self.letters, max_delivery_attempts=100),
        )
        await self.run(self.topics.register_subscription, self.name, self.topic, options)

    async def delete(self) -> None:
        await self.run(self.topics.unregister_subscription, self.name)

    async def publish(self, *bodies: bytes, key: str = "") -> None:
        await self.run(self.topics.publish, self.topic, [Message(body, ordering_key=key) for body in bodies])

    async def pause(self) -> None:
        await self.run(self.topics.pause, self.name)

    async def resume(self) -> None:
        await self.run(self.topics.resume, self.name)

    def counts_now(self) -> Counts:
        stats = self.topics.stats(self.name)
        return Counts(stats.ready + stats.delayed, stats.in_flight, stats.dead_lettered_total)


class QueuePlace(Place):
    """A work queue."""

    async def create(self) -> None:
        config = QueueConfig(ack_deadline_secs=DEADLINE, max_retries=100, default_prefetch=1_000)
        await self.run(self.queues.create, self.name, config)

    async def delete(self) -> None:
        await self.run(self.queues.delete, self.name)

    async def publish(self, *bodies: bytes, key: str = "") -> None:
        assert not key, "work queues have no ordering keys"
        await self.run(self.queues.publish_many, self.name, [NewMessage(body.decode()) for body in bodies])

    async def pause(self) -> None:
        await self.run(self.queues.pause, self.name)

    async def resume(self) -> None:
        await self.run(self.queues.resume, self.name)

    def counts_now(self) -> Counts:
        stats = self.queues.stats(self.name)
        return Counts(stats.depth + stats.delayed, stats.in_flight, stats.dead_letters)


PLACES: dict[Kind, type[Place]] = {Kind.SUBSCRIPTION: SubscriptionPlace, Kind.QUEUE: QueuePlace}
