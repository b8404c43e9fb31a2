"""The broker as an event loop uses it: nothing blocks, nothing is missed, nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue
from penstock.broker.aio import AsyncBroker, LoopCallback
from penstock.broker.async_consumer import AsyncConsumer, TakenRecord
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Handle
from penstock.broker.waiters import Notifier
from penstock.durations import SECOND
from penstock.errors import SubscriptionNotFound, TopicNotFound
from penstock.testing import ManualClock
from penstock.values.lease import Lease
from penstock.values.message import Batch, accept


def batch(*bodies: bytes) -> Batch:
    return accept([Message(body) for body in bodies], 1)


async def until_somebody_waits(aio: AsyncBroker) -> None:
    while not aio.broker.notifier.callbacks:  # noqa: ASYNC110  # the broker has no event for it, and one turn of the loop is enough
        await asyncio.sleep(0)


def in_loop(data_dir: Path | None, scenario: Callable[[AsyncBroker], Awaitable[None]], window_bytes: int = 1 << 20) -> None:
    async def run() -> None:
        with Broker(data_dir=data_dir, window_bytes=window_bytes) as broker:
            queue = MessageQueue(broker=broker)
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders")
            aio = AsyncBroker(broker)
            try:
                async with asyncio.timeout(20):
                    await scenario(aio)
            finally:
                aio.close()

    asyncio.run(run())


async def taken(aio: AsyncBroker, want: int, wait: int = 0, max_bytes: int = 1024 * 1024) -> list[Lease]:
    return await AsyncConsumer(aio, Catalog.subscription, "billing").next(want, wait, max_bytes)


def test_publishes_in_flight_together_all_get_their_own_places(data_dir: Path | None) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        placed = await asyncio.gather(*(aio.publish(Catalog.topic, "orders", batch(b"a", b"b")) for _ in range(50)))
        assert sorted(one.first for one in placed) == list(range(0, 100, 2))
        leases = await taken(aio, 1000)
        assert len(leases) == 100

    in_loop(data_dir, scenario)


def test_an_error_of_a_publish_reaches_its_caller(data_dir: Path | None) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        with pytest.raises(TopicNotFound):
            await aio.publish(Catalog.topic, "nowhere", batch(b"a"))

    in_loop(data_dir, scenario)


def test_a_lease_waits_for_a_message_and_wakes_at_once(data_dir: Path | None) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        waiting = asyncio.create_task(taken(aio, 10, 15 * SECOND))
        await until_somebody_waits(aio)
        await aio.publish(Catalog.topic, "orders", batch(b"a"))
        leases = await waiting
        assert [lease.message.data for lease in leases] == [b"a"]
        assert aio.broker.notifier.callbacks == {}

    in_loop(data_dir, scenario)


def test_a_lease_that_finds_nothing_returns_empty_after_its_wait_and_a_cancelled_one_leaves_no_bell(
    data_dir: Path | None,
) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        leases = await taken(aio, 10, 1000)
        assert leases == []
        waiting = asyncio.create_task(taken(aio, 10, 15 * SECOND))
        await until_somebody_waits(aio)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert aio.broker.notifier.callbacks == {}

    in_loop(data_dir, scenario)


def test_a_wait_ends_with_the_error_when_its_subscription_goes(data_dir: Path | None) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        waiting = asyncio.create_task(taken(aio, 10, 15 * SECOND))
        await until_somebody_waits(aio)
        await aio.call(MessageQueue(broker=aio.broker).unregister_subscription, "billing")
        with pytest.raises(SubscriptionNotFound):
            await waiting

    in_loop(data_dir, scenario)


def test_what_is_not_in_memory_is_read_without_blocking_the_loop(tmp_path: Path) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        for _ in range(30):
            await aio.publish(Catalog.topic, "orders", batch(*[b"x" * 1000] * 100))
        found = 0
        while found < 3000:
            leases = await taken(aio, 1000, max_bytes=500_000)
            assert 0 < len(leases) <= 501
            found += len(leases)

    in_loop(tmp_path / "data", scenario, window_bytes=100_000)


def test_durable_returns_when_acks_are_on_disk(tmp_path: Path) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        await aio.publish(Catalog.topic, "orders", batch(b"a"))
        queue = MessageQueue(broker=aio.broker)
        queue.ack(queue.pull("billing")[0].ack_id)
        await aio.durable()
        kinds = [type(event).__name__ for _, event in aio.broker.journal.read_events(0, 1 << 40)]
        assert kinds[-1] == "Acked"

    in_loop(tmp_path / "data", scenario)


def test_a_bell_rings_those_of_its_queue_only_and_another_one_first_each_time() -> None:
    notifier, heard = Notifier(), list[str]()
    first, second, other = (lambda name=name: heard.append(name) for name in ("first", "second", "other"))
    notifier.add(1, first)
    notifier.add(1, second)
    notifier.add(2, other)
    notifier.notify(1)
    notifier.notify(1)
    assert heard == ["second", "first", "first", "second"]
    notifier.remove(1, first)
    notifier.remove(1, second)
    notifier.remove(1, second)
    notifier.notify(1)
    assert len(heard) == 4
    notifier.notify_all()
    assert heard[-1] == "other"
    notifier.remove(2, other)
    assert notifier.callbacks == {}


def test_a_nudge_calls_once_however_often_and_from_wherever_it_is_rung() -> None:
    async def run() -> None:
        calls: list[int] = []
        called = asyncio.Event()

        def note() -> None:
            calls.append(threading.get_ident())
            called.set()

        callback = LoopCallback(note)
        for _ in range(3):
            callback.notify()
        await asyncio.sleep(0)
        assert calls == [threading.get_ident()]
        called.clear()
        thread = threading.Thread(target=callback.notify)
        thread.start()
        await asyncio.wait_for(called.wait(), 30)
        thread.join()
        assert calls == [threading.get_ident()] * 2

    asyncio.run(run())


def test_a_ring_during_the_call_is_not_lost() -> None:
    async def run() -> None:
        calls: list[int] = []

        def note() -> None:
            calls.append(len(calls))
            if len(calls) < 3:
                callback.notify()

        callback = LoopCallback(note)
        callback.notify()
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == [0, 1, 2]

    asyncio.run(run())


def test_who_waits_in_the_loop_sees_what_a_jump_of_time_makes_deliverable() -> None:
    async def run() -> None:
        clock = ManualClock()
        with Broker(clock=clock) as broker:
            queue = MessageQueue(broker=broker)
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders")
            queue.publish("orders", [Message(b"x")])
            aio = AsyncBroker(broker)
            [first] = await AsyncConsumer(aio, Catalog.subscription, "billing", ack_deadline=SECOND).next(1)
            waiting = asyncio.ensure_future(taken(aio, 1, 30 * SECOND))
            await until_somebody_waits(aio)
            clock.advance(1)
            [again] = await asyncio.wait_for(waiting, 30)
            assert (first.attempt, again.attempt) == (1, 2)
            aio.close()

    asyncio.run(run())


def test_a_record_of_what_was_taken_keeps_no_message_in_memory_and_can_be_undone(data_dir: Path | None) -> None:
    async def scenario(aio: AsyncBroker) -> None:
        await aio.publish(Catalog.topic, "orders", batch(b"x" * 1_000, b"y"))
        record = TakenRecord()
        task = asyncio.get_running_loop().create_task(taken(aio, 10), context=record.context())
        assert len(await task) == 2
        assert {type(one) for _, handles in record._taken for one in handles} == {Handle}  # and no lease, which has its message

        record.undo()

        assert [(lease.message.data, lease.attempt) for lease in await taken(aio, 10)] == [(b"x" * 1_000, 1), (b"y", 1)]
        record.undo()  # there is nothing left to undo
        assert await taken(aio, 10) == []

    in_loop(data_dir, scenario)
