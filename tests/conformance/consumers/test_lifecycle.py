"""What happens under a consumer: its queue is deleted and created again, paused and resumed; and how a consumer leaves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.conformance.consumers.driver import Driver, Streamer, Taken, bodies, data
from tests.conformance.consumers.place import Counts
from tests.conformance.consumers.suite import promise

WAIT = 30


@promise("recreate")
async def test_a_queue_that_is_created_again_leases_nothing_to_a_consumer_that_has_ended(driver: Driver) -> None:
    consumer: Any = await driver.consumer()
    is_stream = isinstance(consumer, Streamer)
    wait = None if is_stream else asyncio.ensure_future(consumer.take(wait=WAIT))
    await driver.settled()
    await driver.recreate()
    if is_stream and driver.after_recreation == "ends":
        await consumer.until(lambda: consumer.end is not None, "the stream has not ended")
        assert any(word in consumer.end for word in ("not_found", "4404")), consumer.end
    await driver.place.publish(b"new")
    if wait is not None:
        await asyncio.wait([wait], timeout=driver.patience)
        assert wait.done(), "it neither continues nor ends"
        if wait.exception() is None:
            assert [(one.data, one.attempt) for one in wait.result()] == [(b"new", 1)]
            await consumer.ack(*wait.result())
            await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
            return
    else:
        await driver.nothing_is_held()
    other = await driver.consumer()
    (found,) = await other.get()
    assert (found.data, found.attempt) == (b"new", 1)


@promise("recreate")
async def test_an_ack_of_a_queue_that_is_gone_does_nothing_to_the_new_one(driver: Driver) -> None:
    consumer: Any = await driver.consumer()
    await driver.place.publish(b"old")
    (old,) = await consumer.get()
    await driver.recreate()
    await driver.place.publish(b"new")
    with suppress(Exception):  # each API has errors of its own
        await consumer.ack(old)
    await driver.settled()
    assert (await driver.place.counts()).backlog == 1
    other = await driver.consumer()
    (found,) = await other.get()
    assert (found.data, found.attempt) == (b"new", 1)


@promise()
async def test_nothing_is_delivered_while_paused_and_everything_after_it(driver: Driver) -> None:
    consumer: Any = await driver.consumer()
    await driver.settled()
    await driver.place.pause()
    await driver.place.publish(*bodies(3))
    wait = None if isinstance(consumer, Streamer) else asyncio.ensure_future(consumer.take(3, wait=WAIT))
    await driver.settled()
    counts = await driver.place.counts()
    assert (counts.waiting, counts.in_flight) == (3, 0)
    if not driver.has_one_consumer:
        late = await driver.consumer()
        await driver.settled()
        assert (await driver.place.counts()).in_flight == 0
        await late.close()
    await driver.place.resume()
    found = [] if wait is None else await wait
    while len(found) < 3:
        await consumer.ack(*found)
        found += await consumer.get()
    await consumer.ack(*found)
    assert sorted(data(found)) == bodies(3)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


@pytest.mark.usefixtures("short_grace")
@promise()
async def test_closing_in_the_middle_loses_nothing(driver: Driver) -> None:
    sent, acked = bodies(120), list[Taken]()
    most = min(20, driver.most_held)
    await driver.place.publish(*sent[:60])
    for start in (60, 90):
        consumer: Any = await driver.consumer()
        held = await consumer.get(most)
        publish = asyncio.ensure_future(driver.place.publish(*sent[start : start + 30]))
        await consumer.ack(*held[: most // 2])
        acked += held[: most // 2]
        await publish
        await driver.place.until(partial(_is_backlog, start + 30 - len(acked)), driver.patience)
        await consumer.close()
        await driver.released()
    last: Any = await driver.consumer()
    while len(acked) < 120:
        held = await last.get(min(most, 120 - len(acked)))
        await last.ack(*held)
        acked += held
    assert sorted(data(acked)) == sent
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


@pytest.mark.usefixtures("short_grace")
@promise("vanish")
async def test_what_a_vanished_consumer_held_is_redelivered(driver: Driver) -> None:
    await driver.place.publish(*bodies(5))
    consumer: Any = await driver.consumer()
    (acked,) = await consumer.get()
    await consumer.ack(acked)
    await driver.place.until(partial(_is_backlog, 4), driver.patience)
    await consumer.get(min(4, driver.most_held))
    await consumer.vanish()
    await driver.released()
    other: Any = await driver.consumer()
    found = [acked]
    while len(found) < 5:
        held = await other.get()
        await other.ack(*held)
        found += held
    assert sorted(data(found)) == bodies(5)
    await driver.place.until(partial(_is_backlog, 0), driver.patience)


def _is_backlog(wanted: int, counts: Counts) -> bool:
    return counts.backlog == wanted
