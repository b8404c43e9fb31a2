"""Specification 004, each requirement and each criterion, wherever the broker is."""

from __future__ import annotations

import asyncio
from collections import Counter

from penstock.client.message import IncomingMessage
from penstock.errors import FailedPrecondition, NotFound, SubscriptionNotFound
from penstock.values.policy import FlowControl
from tests.conformance.stream_drivers import Inbox, Place, in_loop, until

# ── behaviour requirements ───────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_br_001_a_started_stream_emits_messages_as_they_arrive(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        await topic.publish_message(b"before")
        await place.settled()
        assert (inbox.data, subscription.is_open) == ([], False)
        subscription.stream.start()
        await inbox.has(1)
        await topic.publish_message(b"after")
        await inbox.has(2)
        assert (inbox.data, subscription.is_open) == ([b"before", b"after"], True)


@in_loop
async def test_br_002_pulling_stops_at_max_messages_and_resumes_below(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_messages=3))
        inbox = Inbox(ack=False).listen(subscription)
        for number in range(7):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(3)
        await place.settled()
        assert len(inbox.messages) == 3
        assert subscription.stream.in_flight == 3
        inbox.messages[0].ack()
        inbox.messages[1].ack()
        await inbox.has(5)
        await place.settled()
        assert len(inbox.messages) == 5


@in_loop
async def test_br_003_pulling_stops_at_max_bytes_and_resumes_below(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_bytes=250))
        inbox = Inbox(ack=False).listen(subscription)
        for _ in range(6):
            await topic.publish_message(b"x" * 100)
        subscription.open()
        await inbox.has(3)  # 200 bytes are below the limit, 300 are not
        await place.settled()
        assert len(inbox.messages) == 3
        inbox.messages[0].ack()
        await place.settled()
        assert len(inbox.messages) == 4
        assert (await subscription.stats()).in_flight_bytes == 300


@in_loop
async def test_br_003_a_message_larger_than_the_limit_comes_alone(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_bytes=10))
        inbox = Inbox(ack=False).listen(subscription)
        await topic.publish_message(b"x" * 100)
        await topic.publish_message(b"y")
        subscription.open()
        await inbox.has(1)
        await place.settled()
        assert len(inbox.messages) == 1
        inbox.messages[0].ack()
        await inbox.has(2)


@in_loop
async def test_br_004_with_allow_excess_the_batch_completes_and_then_it_waits(place: Place) -> None:
    async with place:
        limits = FlowControl(max_messages=3, allow_excess_messages=True)
        topic, subscription = await place.subscription(flow_control=limits)
        inbox = Inbox(ack=False).listen(subscription)
        for number in range(10):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(10)
        await topic.publish_message(b"late")
        for message in inbox.messages[:7]:
            message.ack()
        await place.settled()
        assert len(inbox.messages) == 10  # three are still out: the limit
        inbox.messages[7].ack()
        await inbox.has(11)


@in_loop
async def test_br_005_an_unacked_message_comes_again_after_its_deadline(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox(ack=False).listen(subscription)
        published = await topic.publish_message(b"x")
        subscription.open()
        await inbox.has(1)
        await place.advance(29.999999)
        assert len(inbox.messages) == 1
        await place.advance(0.000001)
        await inbox.has(2)
        assert [message.id for message in inbox.messages] == [published, published]
        assert [message.delivery_attempt for message in inbox.messages] == [1, 2]
        inbox.messages[1].ack()
        await place.settled()
        await place.advance(60)
        assert len(inbox.messages) == 2


@in_loop
async def test_br_006_a_key_waits_for_its_ack_and_other_keys_do_not(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(message_ordering=True)
        inbox = Inbox(ack=False).listen(subscription)
        for key in "ab":
            for number in range(3):
                await topic.publish_message(f"{key}{number}".encode(), ordering_key=key)
        await topic.publish_message(b"free")
        subscription.open()
        await inbox.has(3)
        await place.settled()
        assert sorted(inbox.data) == [b"a0", b"b0", b"free"]
        for count in range(4, 8):
            next(one for one in inbox.messages if one.ordering_key and not one.is_settled).ack()
            await inbox.has(count)
        assert [one for one in inbox.data if one.startswith(b"a")] == [b"a0", b"a1", b"a2"]
        assert [one for one in inbox.data if one.startswith(b"b")] == [b"b0", b"b1", b"b2"]


@in_loop
async def test_br_007_pause_stops_pulling_and_what_is_in_flight_goes_on(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        begun, go_on = asyncio.Event(), asyncio.Event()
        done: list[bytes] = []

        async def handle(message: IncomingMessage) -> None:
            begun.set()
            await go_on.wait()
            message.ack()
            done.append(message.data)

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"first")
        await begun.wait()
        subscription.pause()
        await topic.publish_message(b"second")
        await place.settled()
        go_on.set()
        await place.settled()
        assert done == [b"first"]
        assert (await subscription.stats()).backlog == 1
        begun.clear()
        subscription.resume()
        await begun.wait()


@in_loop
async def test_br_008_stop_takes_no_more_waits_and_emits_close_once(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"in flight")
        await inbox.has(1)
        closing = asyncio.create_task(subscription.close())
        await topic.publish_message(b"too late")
        await place.settled()
        assert (len(inbox.messages), inbox.closes, closing.done()) == (1, 0, False)
        inbox.messages[0].ack()
        await closing
        assert (len(inbox.messages), inbox.closes, subscription.is_open) == (1, 1, False)
        assert subscription.stream.in_flight == 0
        assert (await subscription.stats()).backlog == 1


@in_loop
async def test_br_008_stop_waits_no_longer_than_leases_last(place: Place) -> None:
    # A server's clock is its own: what the client waits for is its own deadline, in real time.
    ack_deadline = 0.05 if place.is_remote else 30
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait", ack_deadline=ack_deadline)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"forgotten")
        await inbox.has(1)
        closing = asyncio.create_task(subscription.close())
        await place.settled()
        assert closing.done() is False or place.is_remote
        await place.advance(ack_deadline)
        await closing
        assert inbox.closes == 1


@in_loop
async def test_br_009_a_passing_error_is_told_and_the_stream_goes_on(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        await topic.publish_message(b"before")
        await inbox.has(1)
        await place.settled()
        place.disturb()
        await inbox.has_failed()
        assert getattr(inbox.errors[0], "transient", None) is True
        await topic.publish_message(b"after")
        await inbox.has(2)
        assert (inbox.data, inbox.closes, subscription.is_open) == ([b"before", b"after"], 0, True)
        assert len(inbox.errors) == 1  # however many streams were cut


@in_loop
async def test_br_009_a_fatal_error_is_told_and_ends_the_stream(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        await place.settled()
        await subscription.delete()
        await inbox.has_closed()
        assert [type(error) for error in inbox.errors] == [SubscriptionNotFound]
        assert (inbox.closes, subscription.is_open) == (1, False)


@in_loop
async def test_br_010_messages_are_spread_over_max_streams(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(max_streams=3, flow_control=FlowControl(max_messages=3))
        inbox = Inbox().listen(subscription)
        subscription.open()
        await place.settled()
        for number in range(60):
            await topic.publish_message(b"%d" % number)
            await inbox.has(number + 1)
        assert {message.stream for message in inbox.messages} == {0, 1, 2}
        assert sorted(inbox.data) == sorted(b"%d" % number for number in range(60))


@in_loop
async def test_br_010_each_stream_gets_an_equal_part(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(max_streams=3)
        inbox = Inbox().listen(subscription)
        for _ in range(300):  # they wait when the streams are opened
            await topic.publish_message(b"before")
        subscription.open()
        await inbox.has(300)
        parts = Counter(message.stream for message in inbox.messages)
        assert all(80 <= parts[number] <= 120 for number in range(3)), parts
        await place.settled()
        inbox.messages.clear()
        await asyncio.gather(*(topic.publish_message(b"after") for _ in range(300)))
        await inbox.has(300)
        parts = Counter(message.stream for message in inbox.messages)
        assert all(80 <= parts[number] <= 120 for number in range(3)), parts


@in_loop
async def test_no_message_is_held_for_a_busy_loop_at_a_high_water_mark_of_0(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(high_water_mark=0, max_streams=2)
        for number in range(5):
            await topic.publish_message(b"%d" % number)
        seen = []
        async for message in subscription:
            await place.settled()
            assert (await subscription.stats()).in_flight == subscription.stream.in_flight == 1
            seen.append(message.data)
            message.ack()
            await place.settled()
            assert ((await subscription.stats()).in_flight, subscription.stream.in_flight) == (0, 0)
            if len(seen) == 5:
                break
        assert sorted(seen) == [b"%d" % number for number in range(5)]


@in_loop
async def test_messages_up_to_the_high_water_mark_wait_for_a_busy_loop(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(high_water_mark=3)
        for number in range(9):
            await topic.publish_message(b"%d" % number)
        messages = aiter(subscription)
        first, second = await anext(messages), None
        await place.settled()
        assert subscription.stream.in_flight == 1 + 3
        second = await anext(messages)
        await place.settled()
        assert subscription.stream.in_flight == 2 + 3
        first.ack()
        second.ack()
        await place.settled()
        assert subscription.stream.in_flight == 3
        inbox = Inbox(ack=False).listen(subscription)  # a handler takes what waits, and whatever comes
        await inbox.has(7)
        assert subscription.stream.in_flight == 7


@in_loop
async def test_a_high_water_mark_of_0_holds_nothing_back_from_handlers(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(high_water_mark=0)
        inbox = Inbox(ack=False).listen(subscription)
        for number in range(9):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(9)
        subscription.off("message", inbox)
        await topic.publish_message(b"nobody takes this one")
        await place.settled()
        assert subscription.stream.in_flight == 9


# ── acceptance criteria ──────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_ac_004_ack_deadline_redelivery_in_real_time(place: Place) -> None:
    async with place.in_real_time():
        topic, subscription = await place.subscription(ack_deadline=0.1)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"test")
        await inbox.has(2)
        inbox.messages[-1].ack()
        assert {message.data for message in inbox.messages} == {b"test"}


@in_loop
async def test_ac_008_error_event_on_failure(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        await place.settled()
        await topic.delete()
        await inbox.has_closed()
        assert [type(error) for error in inbox.errors] == [FailedPrecondition]


@in_loop
async def test_ac_009_multiple_concurrent_messages(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_messages=10))
        go_on = asyncio.Event()
        running = 0
        all_run = asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            nonlocal running
            running += 1
            if running == 10:
                all_run.set()
            await go_on.wait()
            message.ack()

        subscription.on("message", handle)
        subscription.open()
        for number in range(10):
            await topic.publish_message(b"msg%d" % number)
        await all_run.wait()
        go_on.set()
        await until(lambda: _is_empty(place))


# ── the specification's errors ───────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_subscription_that_does_not_exist_is_told_with_code_5(place: Place) -> None:
    async with place:
        subscription = place.pubsub.subscription("nobody")
        inbox = Inbox().listen(subscription)
        subscription.open()
        await inbox.has_closed()
        (error,) = inbox.errors
        assert isinstance(error, NotFound)
        assert error.code == 5
        assert str(error).startswith("Subscription not found")


async def _is_empty(place: Place) -> bool:
    return (await place.pubsub.subscription("billing").stats()).backlog == 0
