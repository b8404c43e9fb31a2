"""What is delivered, in which order, and how much at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.conformance.consumers.driver import Driver, Streamer, Taken, Taker, bodies, data
from tests.conformance.consumers.place import DEADLINE, Counts
from tests.conformance.consumers.suite import promise

NOT_IN_MEMORY = bodies(100, 4_000)
"""Several times what a broker of this suite keeps in memory."""


async def drain(driver: Driver, consumer: Any, count: int, step: int = 10) -> list[bytes]:
    """Take and ack so many messages, a few at a time."""
    found: list[bytes] = []
    while len(found) < count:
        taken = await consumer.get(min(step, driver.most_held, count - len(found)))
        found += data(taken)
        await consumer.ack(*taken)
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)
    return found


@promise(on_disk=True)
async def test_messages_that_are_not_in_memory_are_all_delivered(driver: Driver) -> None:
    await driver.place.publish(*NOT_IN_MEMORY)
    assert sorted(await drain(driver, await driver.consumer(), 100)) == NOT_IN_MEMORY


@promise("order", on_disk=True)
async def test_messages_that_are_not_in_memory_are_delivered_in_order(driver: Driver) -> None:
    consumer: Any = await driver.consumer()
    await driver.place.publish(*NOT_IN_MEMORY[:50])
    await driver.place.publish(*NOT_IN_MEMORY[50:])
    assert await drain(driver, consumer, 100) == NOT_IN_MEMORY


@promise("limit by count")
async def test_a_consumer_holds_at_most_as_many_as_it_asked_for(driver: Driver) -> None:
    await driver.place.publish(*bodies(9))
    consumer: Any = await driver.consumer(max_messages=3)
    held = await consumer.get(3)
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 3
    if not isinstance(consumer, Streamer):
        assert await consumer.take(9, wait=0) == []
    await consumer.ack(*held[:2])
    more = await consumer.get(2)
    await driver.settled()
    assert (await driver.place.counts()) == (4, 3, 0)
    await consumer.ack(held[2], *more)
    assert len(await drain(driver, consumer, 4, 1)) == 4


@promise("limit by bytes")
async def test_a_consumer_holds_at_most_as_many_bytes_as_it_asked_for(driver: Driver) -> None:
    await driver.place.publish(*bodies(9, 1_000))
    consumer: Any = await driver.consumer(max_bytes=2_500)
    held = await consumer.get(3)  # two are below the limit, the third reaches it
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 3
    await consumer.ack(*held)
    assert len(await drain(driver, consumer, 6, 1)) == 6


@promise("limit by bytes")
async def test_a_message_larger_than_the_limit_comes_alone(driver: Driver) -> None:
    await driver.place.publish(*bodies(2, 1_000))
    consumer: Any = await driver.consumer(max_bytes=10)
    (first,) = await consumer.get()
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 1
    await consumer.ack(first)
    (second,) = await consumer.get()
    assert [first.data, second.data] == bodies(2, 1_000)


# ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def publish_keys(driver: Driver) -> None:
    for key in "ab":
        await driver.place.publish(*(f"{key}{number}".encode() for number in range(3)), key=key)


@promise("one of a key", ordered=True)
async def test_of_one_ordering_key_one_message_is_outstanding(driver: Driver) -> None:
    await publish_keys(driver)
    consumer: Any = await driver.consumer()
    if isinstance(consumer, Taker):
        for number in range(3):
            taken = await consumer.take(10, wait=driver.patience)
            assert sorted(data(taken)) == [b"a%d" % number, b"b%d" % number]
            assert not await consumer.take(10, wait=0)
            await consumer.ack(*taken)
            await driver.place.until(partial(_is_in_flight, 0), driver.patience)
        return
    order: list[bytes] = []
    held: dict[bytes, Taken] = {}
    while len(order) < 6:
        (found,) = await consumer.get()
        assert found.data[:1] not in held, "two messages of one key"
        held[found.data[:1]] = found
        order.append(found.data)
        if len(held) == min(2, driver.most_held):
            await driver.settled()
            assert (await driver.place.counts()).in_flight <= 2
            await consumer.ack(*held.values())
            held.clear()
    assert [one for key in b"ab" for one in order if one[0] == key] == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    await driver.place.until(lambda counts: counts.backlog == 0, driver.patience)


def _is_in_flight(wanted: int, counts: Counts) -> bool:
    return counts.in_flight == wanted


@promise("keys", "nack", ordered=True)
async def test_a_nack_keeps_the_order_of_its_key(driver: Driver) -> None:
    await publish_keys(driver)
    consumer: Any = await driver.consumer()
    last: dict[bytes, int] = {}
    nacked, count = 0, 0
    while len(last) < 6 or (await driver.place.counts()).backlog:
        (found,) = await consumer.get()
        count += 1
        if found.data in {b"a0", b"b1"} and nacked < 2 and found.data not in last:
            nacked += 1
            last[found.data] = -1
            await consumer.nack(found)
            await driver.until_retry()
            continue
        last[found.data] = count
        await consumer.ack(found)
        await driver.settled()
    for key in "ab":
        order = [last[f"{key}{number}".encode()] for number in range(3)]
        assert order == sorted(order), last


@promise("one of a key", "nack", "keys", "expiry", ordered=True)
async def test_an_expiry_keeps_the_order_of_its_key(driver: Driver) -> None:
    await driver.place.publish(b"0", b"1", b"2", key="k")
    consumer: Any = await driver.consumer()
    (first,) = await consumer.get()
    await driver.let_deadlines_pass(DEADLINE + 1)
    (again,) = await consumer.get()
    assert (first.data, again.data) == (b"0", b"0")
    await consumer.ack(again)
    for body in (b"1", b"2"):
        (found,) = await consumer.get()
        assert found.data == body
        await consumer.ack(found)
