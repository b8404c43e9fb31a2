"""A take that waits may be cancelled at any moment: nothing stays leased without a consumer, and no attempt is counted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.conformance.consumers.driver import Driver, Streamer, Taker, bodies, data
from tests.conformance.consumers.suite import promise

WAIT = 30
ROUNDS = 50
MOST_TURNS = 10
MANY = 220
"""More waits than a server lets one connection have at a time."""


async def cancelled(task: asyncio.Future[Any]) -> bool:
    """Cancel a task; whether it ended by that."""
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def next_consumer_gets(driver: Driver, body: bytes) -> None:
    """Assert that a message is delivered to somebody else, once, and as if nobody had had it before."""
    other: Taker = await driver.consumer()
    (found,) = await other.get()
    assert (found.data, found.attempt) == (body, 1)
    await other.ack(found)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
    await other.close()


@promise("wait")
async def test_a_wait_that_was_given_up_takes_nothing(driver: Driver) -> None:
    consumer: Taker = await driver.consumer()
    for _ in range(4):
        with suppress(TimeoutError):
            await asyncio.wait_for(consumer.take(wait=WAIT), 0.02)
    await driver.place.nobody_waits(driver.patience)
    await driver.place.publish(b"one")
    await driver.nothing_is_held()
    await next_consumer_gets(driver, b"one")


@promise("wait", "meets")
async def test_a_wait_that_was_cancelled_before_it_began_takes_nothing(driver: Driver) -> None:
    consumer: Taker = await driver.consumer()
    await driver.place.publish(b"one")
    for turns in range(4):
        task = asyncio.ensure_future(consumer.take(wait=WAIT))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not await cancelled(task):  # it was quicker
            await consumer.nack(*task.result())
    await driver.nothing_is_held()


@promise("wait")
async def test_many_cancelled_waits_exhaust_nothing(driver: Driver) -> None:
    consumer: Taker = await driver.consumer()
    for _ in range(2):
        waits = [asyncio.ensure_future(consumer.take(wait=WAIT)) for _ in range(MANY // 2)]
        await driver.settled()
        for task in waits:
            task.cancel()
        await asyncio.wait(waits)
        await driver.settled()
    await driver.place.publish(b"one")
    (found,) = await consumer.get()
    assert found.attempt == 1
    await consumer.ack(found)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


@promise("wait", "connection", "vanish")
async def test_a_consumer_that_vanishes_while_it_waits_takes_nothing(driver: Driver) -> None:
    consumer: Taker = await driver.consumer()
    task = asyncio.ensure_future(consumer.take(wait=WAIT))
    await driver.settled()
    await consumer.vanish()
    await cancelled(task)
    await driver.place.nobody_waits(driver.patience)
    await driver.place.publish(b"one")
    await driver.nothing_is_held()
    await next_consumer_gets(driver, b"one")


async def leased_or_done(driver: Driver, task: asyncio.Future[Any]) -> None:
    """Return in the very turn of the loop in which the broker has leased something, or the take is done."""
    while not task.done() and not driver.place.counts_now().in_flight:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0)


@promise("wait", "meets")
async def test_a_message_that_meets_the_cancellation_is_not_lost(driver: Driver) -> None:
    consumer: Taker = await driver.consumer()
    for number in range(ROUNDS):
        body, turns = b"%d" % number, number % MOST_TURNS
        task = asyncio.ensure_future(consumer.take(wait=WAIT))
        await driver.settled()
        publish = asyncio.ensure_future(driver.place.publish(body))
        if number % 3 == 0:  # while it is being published
            for _ in range(turns):
                await asyncio.sleep(0)
        elif number % 3 == 1:  # soon after
            await publish
            for _ in range(turns):
                await asyncio.sleep(0)
        else:  # exactly when it is leased
            await leased_or_done(driver, task)
        if await cancelled(task):
            await publish
            await next_consumer_gets(driver, body)
        else:
            await publish
            (found,) = task.result()
            assert (found.data, found.attempt) == (body, 1)
            await consumer.ack(found)
            await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
    assert (await driver.place.counts()).dead == 0


@promise("wait", "meets", on_disk=True)
async def test_a_load_that_is_cancelled_leaves_nothing_leased(driver: Driver) -> None:
    """Where messages have to be read from disk before they are delivered, the wait has one more place to be cancelled at."""
    await driver.place.publish(*bodies(40, 4_000))
    consumer: Taker = await driver.consumer()
    for turns in range(MOST_TURNS):
        task = asyncio.ensure_future(consumer.take(40, wait=WAIT))
        if turns % 2:
            await leased_or_done(driver, task)
        else:
            for _ in range(turns):
                await asyncio.sleep(0)
        if not await cancelled(task):
            await consumer.nack(*task.result())
        await driver.nothing_is_held()
    assert data(await consumer.get(40)) == bodies(40, 4_000)


@promise("unharmed")
async def test_a_consumer_that_closes_while_a_message_comes_leaves_it_to_the_next(driver: Driver) -> None:
    for number in range(ROUNDS // 5):
        consumer = await driver.consumer()
        publish = asyncio.ensure_future(driver.place.publish(b"%d" % number))
        for _ in range(number):
            await asyncio.sleep(0)
        await consumer.close()
        await publish
        await driver.nothing_is_held() if not driver.keeps_leases else await driver.released()
        other = await driver.consumer()
        (found,) = await other.get()
        assert found.data == b"%d" % number
        # What the consumer had when it closed was an attempt.
        was_seen = isinstance(consumer, Streamer) and bool(consumer.arrived)
        assert driver.keeps_leases or was_seen or found.attempt in {1, None}
        await other.ack(found)
        await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
        await other.close()
