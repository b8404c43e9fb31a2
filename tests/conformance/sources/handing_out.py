"""Checks of what a source delivers, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.router.core.message import SourceMessage
from penstock.router.source import QueueDepth
from tests.conformance.sources.driver import (
    MANY,
    PATIENCE,
    SourceDriver,
    bodies,
    elapsed,
    emptied,
    equal,
    holds,
    needs,
    same_bodies,
    some,
    started,
    take,
)


async def everything_is_handed_out_once_and_in_order(driver: SourceDriver) -> None:
    """Each message that is acked comes once; nothing is left."""
    sent = bodies(500)
    await driver.send(sent)
    async with started(driver) as source:
        seen: list[SourceMessage] = []
        while len(seen) < len(sent):
            batch = await some(source, 50)
            seen += batch
            for received in batch:
                source.ack(received)
        same_bodies(driver, seen, sent, "what was sent is delivered, in order")
        equal(len({received.broker_id for received in seen}), len(sent), "each message has an id of its own")
        await source.flush()
        await emptied(driver)
        equal(list(await source.poll(10, 0)), [], "what was acked is not redelivered")


async def a_poll_hands_out_no_more_than_it_was_asked_for(driver: SourceDriver) -> None:
    """The rest is for the next poll."""
    sent = bodies(7)
    await driver.send(sent)
    async with started(driver) as source:
        seen: list[SourceMessage] = []
        while len(seen) < len(sent):
            batch = await some(source, 2)
            holds(len(batch) <= 2, "a poll for 2 gives at most 2")
            seen += batch
        same_bodies(driver, seen, sent, "all come, in order")


async def a_waiting_poll_returns_when_a_message_arrives(driver: SourceDriver) -> None:
    """And not when its time is over."""
    async with started(driver) as source:
        equal(list(await source.poll(10, 0.2)), [], "there is nothing yet")
        poll = asyncio.ensure_future(source.poll(10, PATIENCE))
        await asyncio.sleep(0.2)  # it may have started or not: both must do
        began = monotonic()
        await driver.send([b"news"])
        seen = list(await poll) or await take(source, 1)
        equal([received.body for received in seen], [b"news"], "the message that arrived is delivered")
        holds(elapsed(began) < PATIENCE / 4, f"it is delivered soon, not after {elapsed(began):.1f} s")


async def a_poll_of_an_empty_queue_returns_nothing_in_time(driver: SourceDriver) -> None:
    """Waiting or not."""
    async with started(driver) as source:
        for wait in (0, 1):
            began = monotonic()
            equal(list(await source.poll(10, wait)), [], "there is nothing")
            holds(
                elapsed(began) < wait + PATIENCE / 2,
                f"a poll for {wait} s ends in time, not after {elapsed(began):.1f} s",
            )


async def pollers_at_the_same_time_share_the_messages(driver: SourceDriver) -> None:
    """Nothing is handed to two of them."""
    sent = bodies(300)
    await driver.send(sent)
    async with started(driver) as source:
        seen: list[SourceMessage] = []

        async def take() -> None:
            while len(seen) < len(sent):
                seen.extend(await source.poll(20, 1))

        await asyncio.gather(*(take() for _ in range(4)))
        equal(sorted(received.body for received in seen), sent, "each message is delivered once, to one of them")


@needs("remembers_after_crash")  # elsewhere, what was on its way to them comes when its lease ends
async def polls_that_are_cancelled_lose_nothing(driver: SourceDriver) -> None:
    """What arrived for them is handed to the next polls, in order."""
    sent = bodies(60)
    async with started(driver) as source:
        seen: list[SourceMessage] = []
        for first in range(0, len(sent), 6):
            polls = [asyncio.ensure_future(source.poll(2, PATIENCE)) for _ in range(3)]
            await asyncio.sleep(0)
            await driver.send(sent[first : first + 6])
            for poll in polls:
                poll.cancel()
            for batch in await asyncio.gather(*polls, return_exceptions=True):
                if isinstance(batch, BaseException):
                    holds(
                        isinstance(batch, asyncio.CancelledError), f"a poll that is cancelled fails with nothing else: {batch!r}"
                    )
                else:
                    seen += batch
                    for received in batch:
                        source.ack(received)
        while len(seen) < len(sent):
            for received in await some(source, 10):
                seen.append(received)
                source.ack(received)
        same_bodies(driver, seen, sent, "all come once, in order")


async def many_may_be_held_at_a_time(driver: SourceDriver) -> None:
    """A router holds what its pools have room for: no limit of the server stands in the way."""
    sent = bodies(min(MANY, driver.can.most_held))
    await driver.send(sent)
    async with started(driver) as source:
        held = await take(source, len(sent))
        same_bodies(driver, held, sent, "all are delivered while none is settled")
        for received in held:
            source.ack(received)
        await source.flush()
        await emptied(driver)


async def bodies_come_as_they_were_sent(driver: SourceDriver) -> None:
    """Of any length the server takes, of any bytes it takes."""
    bodies = [b"{}", "grüße, \U0001f600 \u2028".encode(), b"long " * (driver.can.largest // 5), b'{"a":\r\n "\\u0000"}\n']
    bodies += [bytes(range(256)) * 4, b"\0", b"\n\0\n"] if driver.can.takes_binary else []
    bodies += [b""] if driver.can.takes_empty else []
    await driver.send(bodies)
    async with started(driver) as source:
        seen = await take(source, len(bodies))
        same_bodies(driver, seen, bodies, "each body is what was sent")
        for received in seen:
            source.ack(received)
        await source.flush()
        await emptied(driver)


@needs("takes_messages")
async def what_is_sent_through_a_source_is_handed_out(driver: SourceDriver) -> None:
    """In the order of its group, and under the id that sending it returned."""
    async with started(driver) as source:
        send: Callable[[bytes, str], Awaitable[str]] = source.send  # type: ignore[attr-defined]  # of `AcceptsMessages`
        sent = bodies(5)
        ids = [await send(body, "a group, of any text: \u00fc") for body in sent]
        seen = await take(source, len(sent))
        same_bodies(driver, seen, sent, "what was sent is delivered, in order")
        equal(sorted(received.broker_id for received in seen), sorted(ids), "each has the id that sending it returned")
        for received in seen:
            source.ack(received)
        await source.flush()
        await emptied(driver)


async def the_depth_is_known_or_said_to_be_unknown(driver: SourceDriver) -> None:
    """What waits, and what is delivered."""
    await driver.send(bodies(10))
    async with started(driver) as source:
        held = await take(source, 4)
        depth = await source.depth()
        until = monotonic() + int(PATIENCE * SECOND)
        while depth is not None and depth != QueueDepth(6, 4) and monotonic() < until:
            await asyncio.sleep(0.05)
            depth = await source.depth()
        holds(depth is None or depth == QueueDepth(6, 4), f"6 wait and 4 are delivered, but {depth} is what it says")
        equal(len(held), 4, "4 are delivered")
