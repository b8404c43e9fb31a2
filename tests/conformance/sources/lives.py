"""Checks of what outlives a source, and of servers that go away."""

from __future__ import annotations

import asyncio

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import Unavailable
from tests.conformance.sources.driver import (
    LONG,
    MANY,
    PATIENCE,
    SHORT,
    TIME_LIMIT,
    SourceDriver,
    bodies,
    elapsed,
    emptied,
    equal,
    holds,
    needs,
    same_bodies,
    started,
    take,
)


async def what_a_stopped_source_held_is_given_back_at_once(driver: SourceDriver) -> None:
    """In its old place, before what was never delivered."""
    sent = bodies(20)
    await driver.send(sent)
    async with started(driver) as source:
        held = sorted(await take(source, 10), key=lambda received: received.body)
        source.ack(held[0])
        source.ack(held[4])
    async with started(driver) as source:
        rest = await take(source, 18)
        wanted = [body for body in sent if body not in {held[0].body, held[4].body}]
        if driver.can.gives_back_in_order:
            same_bodies(driver, rest, wanted, "the rest comes, in order, and the released first")
        else:
            equal(sorted(received.body for received in rest), sorted(wanted), "the rest comes")
        for received in rest:
            source.ack(received)
        await source.flush()
        await emptied(driver)


async def what_a_source_held_that_died_comes_again(driver: SourceDriver) -> None:
    """First and in order where the server lets it be; at the end of the leases otherwise."""
    sent = bodies(20)
    await driver.send(sent)
    lease = LONG if driver.can.remembers_after_crash else SHORT
    source = driver.open(lease)
    await source.start()
    held = await take(source, 10)
    source.ack(held[0])
    await source.flush()
    await driver.crash(source)
    async with started(driver, lease) as source:
        rest = await take(source, 19)
        wanted = [body for body in sent if body != held[0].body]
        if driver.can.remembers_after_crash:
            same_bodies(driver, rest, wanted, "what the dead one held comes first, in order")
        else:
            equal(sorted(received.body for received in rest), sorted(wanted), "everything comes")
        for received in rest:
            source.ack(received)
        await source.flush()
        await emptied(driver)


async def stop_ends_waiting_polls(driver: SourceDriver) -> None:
    """They return nothing, soon."""
    source = driver.open(LONG)
    await source.start()
    polls = [asyncio.ensure_future(source.poll(10, PATIENCE * 2)) for _ in range(2)]
    await asyncio.sleep(0.2)
    began = monotonic()
    await source.stop()
    for poll in polls:
        equal(list(await poll), [], "a poll that waited returns nothing")
    holds(elapsed(began) < PATIENCE / 2, f"it returns soon, not after {elapsed(began):.1f} s")
    holds(not source.is_healthy, "a stopped source is not healthy")


async def starting_and_stopping_twice_does_no_harm(driver: SourceDriver) -> None:
    """Nor does stopping what was never started."""
    idle = driver.open(LONG)
    holds(not idle.is_healthy, "a source that was not started is not healthy")
    await idle.stop()
    await idle.stop()
    await driver.send([b"a"])
    source = driver.open(LONG)
    await source.start()
    await source.start()
    holds(source.is_healthy, "a started source is healthy")
    (received,) = await take(source, 1)
    await source.flush()
    source.ack(received)
    await source.stop()
    await source.stop()
    await emptied(driver)


@needs("has_connection")
async def a_server_that_is_not_there_is_unavailable(driver: SourceDriver) -> None:
    """At the start, which can be tried again, and a stop does no harm."""
    source = driver.open_elsewhere()
    for _ in range(2):
        try:
            async with asyncio.timeout(PATIENCE):
                await source.start()
        except Unavailable:
            pass
        else:
            raise AssertionError("broken promise: start raises Unavailable where no server is")
        holds(not source.is_healthy, "it is not healthy")
    await source.stop()


@needs("restarts")
async def a_server_that_comes_back_is_found_again(driver: SourceDriver) -> None:
    """While it is away a poll says so; after that it continues by itself."""
    await driver.send([b"before"])
    async with started(driver) as source:
        for received in await take(source, 1):
            source.ack(received)
        await source.flush()
        await driver.stop_server()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    equal(list(await source.poll(1, 0.5)), [], "nothing comes from a server that is away")
        except Unavailable:
            holds(not source.is_healthy, "it is not healthy while its server is away")
        except TimeoutError:
            raise AssertionError("broken promise: poll raises Unavailable while the server is away") from None
        await driver.start_server()
        await driver.send([b"after"])
        (received,) = await take(source, 1)
        equal(received.body, b"after", "what was sent after the restart comes")
        holds(source.is_healthy, "it is healthy again")
        source.ack(received)
        await source.flush()
        await emptied(driver)


@needs("restarts")
async def an_ack_while_the_server_is_away_counts(driver: SourceDriver) -> None:
    """It is carried out later; if the message is redelivered before, nobody is shown it."""
    await driver.send(bodies(10))
    async with started(driver, SHORT) as source:
        held = await take(source, 10)
        await driver.stop_server()
        for received in held:
            source.ack(received)
        await driver.start_server()
        until = monotonic() + int(PATIENCE * SECOND)
        while await driver.left() and monotonic() < until:
            try:
                equal(list(await source.poll(10, 0.5)), [], "what was acked is not delivered again")
            except Unavailable:
                await asyncio.sleep(0.1)
        equal(await driver.left(), 0, "what was acked leaves the queue")


@needs("restarts")
async def nothing_is_lost_when_the_server_restarts(driver: SourceDriver) -> None:
    """Many messages, two restarts, the first while much is held."""
    sent = bodies(MANY)
    await driver.send(sent)
    async with started(driver, SHORT * 5) as source:
        seen: set[bytes] = set()
        restarts = [MANY // 3, 2 * MANY // 3]
        until = monotonic() + int(TIME_LIMIT * 0.8 * SECOND)
        while len(seen) < MANY or await driver.left():
            holds(monotonic() < until, f"all come in time: {len(seen)} of {MANY} came, {await driver.left()} are left")
            try:
                batch = await source.poll(200, 1)
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            if restarts and len(seen) >= restarts[0]:
                del restarts[0]
                await driver.stop_server()
                await driver.start_server()
            for received in batch:
                seen.add(received.body)
                source.ack(received)
        equal(sorted(seen), sent, "everything came")
