"""Checks of what becomes of a message that was delivered."""

from __future__ import annotations

from typing import cast

from penstock.clock import monotonic
from penstock.router.source import KeepsDeadLetters
from tests.conformance.sources.driver import (
    EARLY,
    PATIENCE,
    SHORT,
    SourceDriver,
    bodies,
    elapsed,
    emptied,
    equal,
    holds,
    needs,
    same_again,
    same_bodies,
    started,
    take,
)


async def what_is_acked_is_gone_for_good(driver: SourceDriver) -> None:
    """The next life does not see it either."""
    await driver.send(bodies(20))
    async with started(driver) as source:
        for received in await take(source, 20):
            source.ack(received)
        await source.flush()
        await emptied(driver)
    async with started(driver) as source:
        equal(list(await source.poll(10, 0.5)), [], "the next life gets nothing")


async def an_ack_needs_no_flush(driver: SourceDriver) -> None:
    """It is carried out soon by itself."""
    await driver.send(bodies(3))
    async with started(driver) as source:
        for received in await take(source, 3):
            source.ack(received)
        await emptied(driver)


async def what_is_nacked_comes_again_after_its_delay(driver: SourceDriver) -> None:
    """Not before, and with the same id."""
    await driver.send([b"late", b"done"])
    async with started(driver) as source:
        first, other = sorted(await take(source, 2), key=lambda received: received.body, reverse=True)
        began = monotonic()
        source.nack(first, 2)
        source.ack(other)
        (again,) = await take(source, 1)
        holds(elapsed(began) >= 2 - EARLY, f"it comes after 2 s, not after {elapsed(began):.2f} s")
        same_again(driver, first, again)
        source.ack(again)
        await source.flush()
        await emptied(driver)


async def what_is_nacked_with_no_delay_comes_at_once(driver: SourceDriver) -> None:
    """Long before its lease would end."""
    await driver.send([b"a"])
    async with started(driver) as source:
        (first,) = await take(source, 1)
        source.nack(first, 0)
        (again,) = await take(source, 1)
        same_again(driver, first, again, is_counted=False)
        source.ack(again)
        await source.flush()
        await emptied(driver)


@needs("keeps_place")
async def what_is_nacked_with_no_delay_keeps_its_place(driver: SourceDriver) -> None:
    """Before what was behind it, and several in their old order, whatever order they are nacked in."""
    sent = bodies(10)
    await driver.send(sent)
    async with started(driver) as source:
        held = await take(source, 6)
        for received in (held[3], held[1], held[5]):
            source.nack(received, 0)
        await source.flush()
        for received in (held[0], held[2], held[4]):
            source.ack(received)
        rest = await take(source, 7)
        equal([received.body for received in rest], [sent[index] for index in (1, 3, 5, 6, 7, 8, 9)], "they come in order")


@needs("has_leases")
async def what_nothing_is_said_of_comes_again_when_its_lease_ends(driver: SourceDriver) -> None:
    """Not before; and only the newest delivery counts."""
    await driver.send([b"forgotten"])
    async with started(driver, SHORT) as source:
        lease = source.lease_seconds
        assert lease is not None, "broken promise: a source with leases says how long they are"
        (first,) = await take(source, 1)
        began = monotonic()
        (again,) = await take(source, 1, lease + PATIENCE)
        holds(elapsed(began) >= lease - EARLY - 0.2, f"it comes after {lease} s, not after {elapsed(began):.2f} s")
        same_again(driver, first, again)
        source.ack(again)
        await source.flush()
        await emptied(driver)


@needs("has_leases")
async def what_is_extended_stays_away_for_longer(driver: SourceDriver) -> None:
    """The other one comes when its lease ends."""
    await driver.send([b"other", b"worked on"])
    async with started(driver, SHORT) as source:
        other, first = sorted(await take(source, 2), key=lambda received: received.body)
        began = monotonic()
        source.extend(first, SHORT + 2)
        (early,) = await take(source, 1)
        equal(early.body, other.body, "the one that was not extended comes first")
        source.ack(early)
        (again,) = await take(source, 1)
        holds(elapsed(began) >= SHORT + 2 - EARLY, f"it stays away for {SHORT + 2} s, not for {elapsed(began):.2f} s")
        same_again(driver, first, again)
        source.ack(again)
        await source.flush()
        await emptied(driver)


@needs("has_leases")
async def what_is_extended_again_and_again_never_comes(driver: SourceDriver) -> None:
    """As long as that continues; and then it can be acked."""
    await driver.send([b"long work"])
    async with started(driver, SHORT) as source:
        (received,) = await take(source, 1)
        began = monotonic()
        while elapsed(began) < SHORT + 2:  # longer than one extension lasts
            source.extend(received, SHORT + 1)
            equal(list(await source.poll(1, SHORT / 4)), [], "it stays away")
        source.ack(received)
        await source.flush()
        await emptied(driver)


async def settling_what_is_settled_does_no_harm(driver: SourceDriver) -> None:
    """Twice, in another way, or by a delivery that another life got: what follows is as if nothing had been."""
    await driver.send([b"1", b"2", b"3"])
    async with started(driver) as source:
        one, two, three = sorted(await take(source, 3), key=lambda received: received.body)
        source.ack(one)
        source.ack(one)
        source.nack(one, 0)
        source.extend(one, 5)
        source.nack(two, 0)
        source.ack(three)
        await source.flush()
        source.ack(one)
        source.nack(three, 1)
        source.extend(three, 1)
        await source.flush()
        (again,) = await take(source, 1)
        equal(again.body, b"2", "the one that was nacked is redelivered, the others do not")
    async with started(driver) as source:
        for received in (one, three, again):
            source.extend(received, 5)
            source.nack(received, 0)
        await source.flush()
        (last,) = await take(source, 1)
        equal(last.body, b"2", "the one that was left is redelivered")
        source.ack(last)
        await driver.send(bodies(5))
        rest = await take(source, 5)
        same_bodies(driver, rest, bodies(5), "what follows comes as ever")
        for received in rest:
            source.ack(received)
        await source.flush()
        await emptied(driver)
        holds(source.is_healthy, "it is healthy still")


@needs("keeps_dead")
async def what_is_buried_is_not_handed_out_again(driver: SourceDriver) -> None:
    """It is among the dead letters of the queue, and the others are as they were."""
    sent = bodies(4)
    await driver.send(sent)
    async with started(driver) as source:
        held = await take(source, 4)
        await cast(KeepsDeadLetters, source).dead_letter(held[1], "malformed", "no id", 0)
        for received in (held[0], held[2], held[3]):
            source.ack(received)
        await source.flush()
        await emptied(driver)
    async with started(driver) as source:
        equal(list(await source.poll(10, 0.3)), [], "nothing is redelivered")
