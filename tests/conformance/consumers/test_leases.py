"""How long a lease lasts: until it is settled, until its deadline, or until its consumer is gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.conformance.consumers.driver import Driver, bodies, data
from tests.conformance.consumers.google_drivers import GoogleStream, PullStreamer
from tests.conformance.consumers.place import DEADLINE
from tests.conformance.consumers.suite import promise

pytestmark = pytest.mark.usefixtures("short_grace")


async def left(driver: Driver, consumer: Any) -> None:
    """End a stream; a consumer without one has nothing to end."""
    if isinstance(consumer, PullStreamer):
        await consumer.finish()
    await driver.after_grace()


@promise("leases outlive their consumer")
async def test_work_that_is_acked_after_its_stream_was_closed_is_not_delivered_again(driver: Driver) -> None:
    await driver.place.publish(*bodies(3))
    consumer: Any = await driver.consumer()
    held = await consumer.get(3)
    await left(driver, consumer)
    assert (await driver.place.counts()).in_flight == 3
    await consumer.ack(*held)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


@promise("leases outlive their consumer")
async def test_a_lease_that_is_extended_after_its_stream_was_closed_is_kept(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    (held,) = await consumer.get()
    if isinstance(consumer, PullStreamer):
        await consumer.finish()
    await consumer.modify(3 * DEADLINE, held)
    await driver.after_grace()
    await driver.let_deadlines_pass(2 * DEADLINE)
    assert (await driver.place.counts()).in_flight == 1
    await consumer.ack(held)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


@promise("leases outlive their consumer")
async def test_a_client_that_nacks_when_it_stops_gets_immediate_redelivery(driver: Driver) -> None:
    await driver.place.publish(*bodies(3))
    consumer: Any = await driver.consumer()
    held = await consumer.get(3)
    if isinstance(consumer, PullStreamer):
        await consumer.finish()
    await consumer.nack(*held)
    other: Any = await driver.consumer()
    assert sorted(data(await other.get(3))) == bodies(3)


@promise("leases outlive their consumer")
async def test_a_lease_that_nobody_keeps_ends_at_its_deadline(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    await consumer.get()
    await left(driver, consumer)
    await driver.let_deadlines_pass(DEADLINE - 1)
    assert (await driver.place.counts()).in_flight == 1
    await driver.let_deadlines_pass(2)
    await driver.place.until(lambda counts: counts.in_flight == 0, driver.patience)
    other: Any = await driver.consumer()
    (found,) = await other.get()
    assert (found.data, found.attempt) == (b"one", 2)


@promise("late ack")
async def test_a_late_ack_counts_where_that_is_promised_while_nobody_else_has_the_message(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    (held,) = await consumer.get()
    await _past_the_deadline(driver, consumer)
    await consumer.ack(held)
    await driver.settled()
    if driver.name.startswith("router"):
        assert not await consumer.take(wait=0)  # it acks the message when it comes again
    if driver.honours_late_acks:
        await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
    else:
        (again,) = await (await driver.consumer()).get()
        assert again.attempt == 2


@promise("late ack", "somebody else")
async def test_a_late_ack_does_not_settle_what_somebody_else_has(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    (held,) = await consumer.get()
    await _past_the_deadline(driver, consumer)
    other: Any = await driver.consumer()
    (again,) = await other.get()
    await consumer.ack(held)
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 1
    await other.nack(again)
    (third,) = await other.get()
    assert third.data == b"one"


@promise("late ack", "exactly once", exactly_once=True)
async def test_exactly_once_refuses_a_late_ack(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    (held,) = await consumer.get()
    await _past_the_deadline(driver, consumer)
    await consumer.ack(held)
    await driver.settled()
    assert (await driver.place.counts()).backlog == 1


@promise("nack", "stale ack")
async def test_an_ack_of_an_earlier_delivery_does_not_settle_a_later_one(driver: Driver) -> None:
    await driver.place.publish(b"one")
    consumer: Any = await driver.consumer()
    (first,) = await consumer.get()
    await consumer.nack(first)
    await driver.until_retry()
    (again,) = await consumer.get()
    with suppress(Exception):  # each API has errors of its own
        await consumer.ack(first)
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 1
    await consumer.ack(again)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


async def _past_the_deadline(driver: Driver, consumer: Any) -> None:
    """Let the lease end, with nobody there to take the message."""
    if isinstance(driver, GoogleStream):
        await consumer.finish()
    await driver.let_deadlines_pass(DEADLINE + 1)
    await driver.place.until(lambda counts: counts.in_flight == 0, driver.patience)
