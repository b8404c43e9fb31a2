"""Penstock's own queues as sources, where they promise more than the contract of all sources does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock import Broker, Message, MessageQueue, NewMessage, PubSub, QueueManager, SubscriptionOptions
from penstock import QueueConfig as Settings
from penstock.broker.aio import AsyncBroker
from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, QueueNotFound, SubscriptionNotFound, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.source import Source, SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from penstock.router.sources.remote import ServerQueues
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer

LEASE = 30


class Place:
    """A broker in this process, whose time is the test's."""

    def __init__(self, broker: Broker, aio: AsyncBroker) -> None:
        self.broker, self.aio = broker, aio
        self.queues, self.topics = QueueManager(broker=broker), MessageQueue(broker=broker)
        self._context = SourceContext(environment={}, clock=SystemClock(), local=BrokerQueues(aio))

    async def started(self, name: str = "orders", kind: str = "queues") -> Source:
        source = open_source(QueueConfig("orders", f"penstock:///{kind}/{name}", visibility_timeout=LEASE), self._context)
        await source.start()
        return source


@asynccontextmanager
async def place(clock: ManualClock | None = None) -> AsyncIterator[Place]:
    with Broker(clock=clock or ManualClock()) as broker:
        aio = AsyncBroker(broker)
        try:
            yield Place(broker, aio)
        finally:
            aio.close()


def bodies(received: Sequence[SourceMessage]) -> list[bytes]:
    return [one.body for one in received]


def test_the_keys_of_a_subscription_are_kept_by_the_broker() -> None:
    async def run() -> None:
        async with place() as here:
            here.topics.register_topic("orders")
            here.topics.register_subscription("hook", "orders", SubscriptionOptions(message_ordering=True))
            keyed = [Message(b"%s%d" % (key.encode(), number), ordering_key=key) for number in range(2) for key in "ab"]
            here.topics.publish("orders", keyed)
            source = await here.started("hook", "subscriptions")
            first, second = await source.poll(10, 0)
            assert bodies([first, second]) == [b"a0", b"b0"]
            waiting = asyncio.ensure_future(source.poll(10, 60))
            await asyncio.sleep(0)
            source.ack(first)
            assert bodies(await asyncio.wait_for(waiting, 30)) == [b"a1"], "the ack wakes who waits for what was behind it"
            source.nack(second, 0)
            assert bodies(await source.poll(10, 1)) == [b"b0"]
            await source.stop()

    asyncio.run(run())


def test_a_try_counts_and_what_was_not_tried_does_not() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with place(clock) as here:
            here.queues.create("orders", Settings(max_retries=1))
            here.queues.publish("orders", b"x")
            source = await here.started()
            for _ in range(5):
                [received] = await source.poll(1, 1)
                assert received.count == 1
                source.nack(received, 0)
            [received] = await source.poll(1, 1)
            source.nack(received, 10)
            await source.flush()
            clock.advance(9)
            assert not await source.poll(1, 0)
            clock.advance(1)
            [received] = await source.poll(1, 1)
            assert received.count == 2
            source.nack(received, 10)
            await source.flush()
            clock.advance(10)
            [letter] = here.queues.dead_letters("orders")
            assert (letter.reason, letter.attempts) == ("max_retries_exceeded", 2)
            await source.stop()

    asyncio.run(run())


def test_a_queue_that_the_router_makes_leaves_the_number_of_tries_to_the_router() -> None:
    async def run() -> None:
        async with place() as here:
            source = await here.started()
            assert here.queues.config("orders").max_retries == 1_000_000
            await source.stop()

    asyncio.run(run())


def test_what_is_acked_after_its_lease_ended_is_not_handed_out_again() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with place(clock) as here:
            source = await here.started()
            here.queues.publish_many("orders", [NewMessage(b"slow"), NewMessage(b"next")])
            [slow] = await source.poll(1, 1)
            clock.advance(LEASE)
            source.ack(slow)
            await source.flush()
            assert bodies(await source.poll(10, 1)) == [b"next"]
            await source.flush()
            assert here.queues.stats("orders").in_flight == 1
            await source.stop()
            assert here.queues.stats("orders").depth == 1

    asyncio.run(run())


def test_an_ack_of_an_older_delivery_is_one_of_the_message() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with place(clock) as here:
            source = await here.started()
            here.queues.publish("orders", b"x")
            [old] = await source.poll(1, 1)
            clock.advance(LEASE)
            [new] = await source.poll(1, 1)
            source.extend(old, 600)
            source.nack(old, 0)
            await source.flush()
            assert here.queues.stats("orders").in_flight == 1, "an older delivery is not there to be given back"
            source.ack(old)
            await source.flush()
            assert here.queues.stats("orders").in_flight == 0
            source.ack(new)
            await source.stop()

    asyncio.run(run())


def test_a_queue_that_is_made_anew_is_found_again() -> None:
    async def run() -> None:
        async with place() as here:
            source = await here.started()
            here.queues.publish("orders", b"old")
            [old] = await source.poll(1, 1)
            here.queues.delete("orders")
            with pytest.raises(QueueNotFound):
                await source.poll(1, 1)
            here.queues.create("orders")
            here.queues.publish("orders", b"new")
            assert bodies(await source.poll(1, 1)) == [b"new"]
            source.ack(old)
            await source.flush()
            assert here.queues.stats("orders").in_flight == 1, "what was settled in the old one concerns nobody"
            waiting = asyncio.ensure_future(source.poll(1, 60))
            await asyncio.sleep(0)
            here.queues.publish("orders", b"newer")
            assert bodies(await asyncio.wait_for(waiting, 30)) == [b"newer"]
            await source.stop()

    asyncio.run(run())


def test_a_subscription_that_cannot_be_taken_from_is_named() -> None:
    async def run() -> None:
        async with place() as here:
            with pytest.raises(SubscriptionNotFound):
                await here.started("hook", "subscriptions")
            here.topics.register_topic("orders")
            here.topics.register_subscription("hook", "orders")
            source = await here.started("hook", "subscriptions")
            here.topics.unregister_topic("orders")
            with pytest.raises(FailedPrecondition, match="detached"):
                await source.poll(1, 1)
            await source.stop()

    asyncio.run(run())


def test_a_broker_that_is_closed_is_unavailable() -> None:
    async def run() -> None:
        async with place() as here:
            source = await here.started()
            here.queues.publish_many("orders", [NewMessage(b"x")] * 2)
            one, two = await source.poll(2, 1)
            source.ack(one)
            here.broker.close()
            source.nack(two, 0)
            with pytest.raises(Unavailable):
                await source.poll(1, 1)
            await source.flush()
            await source.stop()
            with pytest.raises(Unavailable):
                await here.started()

    asyncio.run(run())


def test_what_a_server_sent_and_nobody_polls_for_goes_back_uncounted() -> None:
    async def run(server: LocalServer) -> None:
        uri = f"penstock://127.0.0.1:{server.server.native_port}/queues/orders"
        context = SourceContext(environment={}, clock=SystemClock(), remote=ServerQueues())
        source = open_source(QueueConfig("orders", uri, visibility_timeout=2), context)
        await source.start()
        async with PubSub(server.url) as pubsub:
            queue = pubsub.queue("orders")
            await queue.publish_many([NewMessage(b"%d" % number) for number in range(4)])
            assert bodies(await source.poll(2, 5)) == [b"0", b"1"]
            # The other two are on their way here for the next poll, which does not come: somebody else gets them.
            others = await queue.consume(10, wait=10)
            assert [(task.payload, task.retry_count) for task in others] == [(b"2", 0), (b"3", 0)]
            for task in others:
                task.ack()
        await source.stop()

    with LocalServer() as server:
        asyncio.run(run(server))
