"""The decisions that concern streams, wherever the broker is."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.options import SubscriberOptions
from penstock.errors import InvalidArgument
from penstock.values.policy import FlowControl
from tests.conformance.stream_drivers import Inbox, Place, in_loop, until


@in_loop
async def test_decision_1_a_stream_asks_for_60_seconds_or_less_than_a_subscription_may(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        assert (await subscription.metadata()).options.ack_deadline_seconds == 10
        await place.advance(59.999999)
        assert len(inbox.messages) == 1
        await place.advance(0.000001)
        await inbox.has(2)
        short = await topic.subscription("short", ack_deadline=1).create()
        assert (await short.metadata()).options.ack_deadline_seconds == 10
        with pytest.raises(InvalidArgument):
            await topic.subscription("too-short", ack_deadline_seconds=9).create()


@in_loop
async def test_decision_2_modify_ack_deadline_counts_from_now_and_0_is_nack(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.advance(20)
        inbox.messages[0].modify_ack_deadline(15)
        await place.settled()
        await place.advance(14.999999)
        assert len(inbox.messages) == 1
        await place.advance(0.000001)
        await inbox.has(2)
        inbox.messages[1].modify_ack_deadline(0)
        await inbox.has(3)
        assert await inbox.messages[1].ack_with_response() is AckResponse.INVALID


@in_loop
async def test_decision_35_durations_are_seconds_or_timedelta_and_times_are_aware(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=timedelta(seconds=30), close_timeout=timedelta(seconds=1))
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        message = inbox.messages[0]
        assert message.publish_time == place.clock.time
        assert message.received.utcoffset() == timedelta(0)
        assert (await subscription.metadata()).options.ack_deadline_seconds == 30
        await place.advance(30)
        await inbox.has(2)


@in_loop
async def test_decision_60_a_lease_is_extended_while_its_handler_runs(place: Place) -> None:
    # The client of a server extends leases in real time. The server's clock stands still, so that a busy machine ends no lease.
    ack_deadline = 2 if place.is_remote else 30
    async with place:
        topic, subscription = await place.subscription(ack_deadline=ack_deadline)
        go_on = asyncio.Event()
        deliveries = 0

        async def handle(message: IncomingMessage) -> None:
            nonlocal deliveries
            deliveries += 1
            await go_on.wait()
            message.ack()

        subscription.on("message", handle)
        subscription.open()
        published = await topic.publish_message(b"slow")

        async def is_extended() -> bool:
            return sum(event.kind == "extended" for event in await place.pubsub.trace(published)) >= 3

        if not place.is_remote:
            await place.settled()
            await place.advance(3 * ack_deadline, step=1)
        await until(is_extended)  # three times half a lease and more: without, an embedded lease would have run out
        go_on.set()
        await until(lambda: _is_empty(place))
        assert deliveries == 1
        assert (await subscription.stats()).expired_total == 0


@in_loop
async def test_decision_60_a_handler_that_returned_without_settling_lets_the_lease_run_out(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox(ack=False)

        async def handle(message: IncomingMessage) -> None:
            await asyncio.sleep(0)
            inbox(message)

        subscription.on("message", handle)
        subscription.open()
        published = await topic.publish_message(b"forgotten")
        await inbox.has(1)
        await place.settled()
        await place.advance(30, step=1)
        await inbox.has(2)
        kinds = [event.kind for event in await place.pubsub.trace(published)]
        assert "extended" not in kinds


@in_loop
async def test_decision_61_a_handler_that_raises_is_told_nacks_and_the_stream_goes_on(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox()

        def handle(message: IncomingMessage) -> None:
            if message.data == b"bad" and message.delivery_attempt == 1:
                raise ValueError("no")
            inbox(message)

        subscription.on("message", handle).on("error", inbox._failed)
        subscription.open()
        await topic.publish_message(b"bad")
        await topic.publish_message(b"good")
        await inbox.has(2)
        assert [str(error) for error in inbox.errors] == ["no"]
        assert sorted(inbox.data) == [b"bad", b"good"]
        await place.settled()
        stats = await subscription.stats()
        assert (stats.nacked_total, stats.backlog) == (1, 0)


@in_loop
async def test_decision_62_the_same_subscription_each_time_and_options_by_keyword(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(
            flow_control=FlowControl(max_messages=7, max_bytes=70, allow_excess_messages=True),
            ack_deadline=42,
            message_ordering=True,
            max_streams=2,
        )
        assert topic.subscription("billing") is subscription is place.pubsub.subscription("billing")
        options = subscription.stream.options
        assert (options.max_messages, options.max_bytes, options.flow_control.allow_excess_messages) == (7, 70, True)
        assert (options.ack_deadline, options.message_ordering, options.max_streams) == (42, True, 2)
        default = SubscriberOptions()
        assert (default.max_messages, default.max_bytes, default.ack_deadline) == (1_000, 100 * 1024 * 1024, 60)
        assert (default.message_ordering, default.max_streams, default.flow_control.allow_excess_messages) == (False, 5, False)


@in_loop
async def test_decision_62_unkeyed_messages_come_first_in_first_out_at_first(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(max_streams=1)
        inbox = Inbox().listen(subscription)
        for number in range(50):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(50)
        assert inbox.data == [b"%d" % number for number in range(50)]


async def _is_empty(place: Place) -> bool:
    return (await place.pubsub.subscription("billing").stats()).backlog == 0
