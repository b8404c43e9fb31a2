"""Who gets the messages: handlers, sync and async, right and wrong, and iterators."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock.client.message import IncomingMessage
from penstock.errors import InvalidArgument
from tests.conformance.stream_drivers import Inbox, Place, in_loop

# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_handler_that_comes_later_gets_what_has_arrived(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        subscription.open()
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        await place.settled()
        inbox = Inbox()
        subscription.on("message", inbox)
        await inbox.has(3)
        assert sorted(inbox.data) == [b"0", b"1", b"2"]


@in_loop
async def test_a_handler_that_was_taken_off_gets_nothing_more(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox, other = Inbox(), Inbox()
        subscription.on("message", inbox).on("message", other).off("message", inbox).off("message", inbox)
        subscription.open()
        await topic.publish_message(b"x")
        await other.has(1)
        assert inbox.messages == []
        subscription.off("message", other)
        await topic.publish_message(b"y")
        await place.settled()
        assert len(other.messages) == 1
        async for message in subscription:
            assert message.data == b"y"
            message.ack()
            break


@in_loop
async def test_a_handler_may_take_itself_off(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox, second = Inbox(), Inbox()

        def once(message: IncomingMessage) -> None:
            subscription.off("message", once)
            inbox(message)

        subscription.on("message", once).on("message", second)
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await second.has(3)
        assert len(inbox.messages) == 1


@pytest.mark.parametrize("event", ["messages", "", None, 1])
@in_loop
async def test_an_event_that_does_not_exist_is_refused(event: Any) -> None:
    async with Place() as place:
        subscription = place.pubsub.subscription("s")
        for method in (subscription.on, subscription.off):
            with pytest.raises(InvalidArgument, match="event"):
                method(event, print)
        with pytest.raises(InvalidArgument, match="listener"):
            subscription.on("message", None)  # type: ignore[arg-type]  # that is the point


@in_loop
async def test_an_async_handler_that_raises_nacks_and_the_rest_goes_on(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        async def handle(message: IncomingMessage) -> None:
            await asyncio.sleep(0)
            if message.delivery_attempt == 1:
                raise ValueError(message.data)
            inbox(message)

        subscription.on("message", handle).on("error", inbox._failed)
        subscription.open()
        await topic.publish_message(b"x")
        await topic.publish_message(b"y")
        await inbox.has(2)
        assert sorted(str(error) for error in inbox.errors) == ["b'x'", "b'y'"]


@in_loop
async def test_a_handler_that_raises_after_its_ack_nacks_nothing(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        def handle(message: IncomingMessage) -> None:
            inbox(message)
            raise ValueError("too late")

        async def handle_slowly(message: IncomingMessage) -> None:
            await asyncio.sleep(0)
            handle(message)

        for handler in (handle, handle_slowly):
            subscription.on("message", handler).on("error", inbox._failed)
            subscription.open()
            await topic.publish_message(b"x")
            await inbox.has_failed(1)
            await place.settled()
            await subscription.close()
            subscription.off("message", handler).off("error", inbox._failed)
            inbox.errors.clear()
        stats = await subscription.stats()
        assert (stats.acked_total, stats.nacked_total, stats.backlog) == (2, 0, 0)


@in_loop
async def test_a_failing_handler_without_a_listener_is_logged_with_its_error(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        def handle(message: IncomingMessage) -> None:
            if message.delivery_attempt == 1:
                raise ZeroDivisionError("oops")
            inbox(message)

        subscription.on("message", handle)
        subscription.open()
        with caplog.at_level(logging.ERROR, "penstock.client"):
            published = await topic.publish_message(b"x")
            await inbox.has(1)
        (record,) = [record for record in caplog.records if record.exc_info]
        assert published in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError


@in_loop
async def test_a_handler_that_is_cancelled_gives_its_message_back(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        async def handle(message: IncomingMessage) -> None:
            if message.delivery_attempt == 1:
                raise asyncio.CancelledError
            inbox(message)

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        assert inbox.messages[0].delivery_attempt == 2


@in_loop
async def test_several_async_handlers_run_side_by_side_and_one_may_fail(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox, met = Inbox(), asyncio.Barrier(2)

        async def first(message: IncomingMessage) -> None:
            await met.wait()
            if message.delivery_attempt == 1:
                raise ValueError("one of two")

        async def second(message: IncomingMessage) -> None:
            await met.wait()
            if message.delivery_attempt == 2:
                inbox(message)

        subscription.on("message", first).on("message", second).on("error", inbox._failed)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        assert [str(error) for error in inbox.errors] == ["one of two"]


@in_loop
async def test_a_listener_that_raises_ends_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        def broken(*_: object) -> None:
            raise ValueError("a listener")

        async def broken_slowly(*_: object) -> None:
            await asyncio.sleep(0)
            raise ValueError("a slow listener")

        def handle(message: IncomingMessage) -> None:
            if message.delivery_attempt == 1:
                raise ValueError("the handler")
            inbox(message)

        subscription.on("error", broken).on("error", broken_slowly).on("close", broken).on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await subscription.close()
        await place.settled()
        assert sum("a listener of" in record.getMessage() for record in caplog.records) == 3


# ── iterators ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_breaking_out_leaves_the_rest_for_the_next_iterator(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        for number in range(4):
            await topic.publish_message(b"%d" % number)
        seen = []
        for _ in range(2):
            async for message in subscription:
                seen.append(message.data)
                message.ack()
                if len(seen) % 2 == 0:
                    break
        await subscription.close()
        assert sorted(seen) == [b"0", b"1", b"2", b"3"]
        assert (await subscription.stats()).backlog == 0


@in_loop
async def test_two_iterators_share_the_messages(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        seen: list[tuple[int, bytes]] = []
        all_seen = asyncio.Event()

        async def consume(number: int) -> None:
            async for message in subscription:
                seen.append((number, message.data))
                await asyncio.sleep(0)
                message.ack()
                if len(seen) == 20:
                    all_seen.set()

        consumers = [asyncio.create_task(consume(number)) for number in range(2)]
        for number in range(20):
            await topic.publish_message(b"%d" % number)
        await all_seen.wait()
        await subscription.close()
        await asyncio.gather(*consumers)
        assert sorted(data for _, data in seen) == sorted(b"%d" % number for number in range(20))
        assert {number for number, _ in seen} == {0, 1}
        assert (await subscription.stats()).backlog == 0


@in_loop
async def test_an_iterator_that_is_cancelled_loses_no_message(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        got: list[bytes] = []

        async def consume() -> None:
            async for message in subscription:
                message.ack()
                got.append(message.data)

        first = asyncio.create_task(consume())
        await place.settled()
        second = asyncio.create_task(consume())
        await place.settled()
        await topic.publish_message(b"x")
        first.cancel()
        async with asyncio.timeout(30):
            while not got:
                await place.settled()
        assert got == [b"x"]
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


@in_loop
async def test_a_message_that_an_iterator_holds_is_extended_and_one_it_left_is_not() -> None:
    async with Place() as place:
        topic, subscription = await place.subscription(ack_deadline=30)
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        iterator = aiter(subscription)
        held = await anext(iterator)
        await place.settled()
        await place.advance(300, step=7)  # also those that wait for their turn
        stats = await subscription.stats()
        assert (stats.in_flight, stats.expired_total) == (3, 0)
        await anext(iterator)
        await place.advance(30, step=7)
        stats = await subscription.stats()
        assert (stats.expired_total, held.is_settled) == (1, False)


@in_loop
async def test_what_ran_out_before_its_turn_is_not_handed_over() -> None:
    async with Place() as place:
        topic, subscription = await place.subscription(ack_deadline=30, max_extension=60)
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        iterator = aiter(subscription)
        first = await anext(iterator)
        await place.settled()
        await place.advance(60, step=7)
        got = [await anext(iterator) for _ in range(3)]
        assert sorted((one.data, one.delivery_attempt) for one in got) == [(b"0", 2), (b"1", 2), (b"2", 2)]
        assert first.delivery_attempt == 1


@in_loop
async def test_a_cut_connection_does_not_disturb_an_iterator(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()
        subscription.on("error", inbox._failed)
        await topic.publish_message(b"before")
        iterator = aiter(subscription)
        (await anext(iterator)).ack()
        await place.settled()
        place.disturb()
        await inbox.has_failed()
        await topic.publish_message(b"after")
        assert (await anext(iterator)).data == b"after"
