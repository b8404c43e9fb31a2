"""What becomes of messages: acks, nacks and deadlines, in time and too late; order, dead letters; and without a stream."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.pubsub import PubSub
from penstock.errors import Unavailable
from penstock.testing.server import LocalServer
from penstock.values.policy import DeadLetterPolicy, FlowControl, RetryPolicy, SubscriptionOptions
from tests.conformance.stream_drivers import Inbox, Place, in_loop, until

# ── in time and too late ─────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_messages_may_be_settled_from_other_threads(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        await inbox.has(3)

        def settle() -> None:
            inbox.messages[0].ack()
            inbox.messages[1].nack()
            inbox.messages[2].modify_ack_deadline(300)

        thread = threading.Thread(target=settle)
        thread.start()
        thread.join()
        await inbox.has(4)
        assert inbox.messages[3].id == inbox.messages[1].id
        await place.settled()
        assert (await subscription.stats()).acked_total == 1
        await place.advance(299)
        assert inbox.data.count(inbox.data[2]) == 1


@pytest.mark.parametrize("seconds", [5, 25])
@in_loop
async def test_a_handler_may_ask_for_a_message_again_in_a_while(place: Place, seconds: int) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=60)
        inbox = Inbox(ack=False)

        async def later(message: IncomingMessage) -> None:
            message.modify_ack_deadline(seconds)
            inbox(message)

        subscription.on("message", later)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.settled()
        await place.advance(seconds)
        await asyncio.wait_for(inbox.has(2), 30)


@in_loop
async def test_an_ack_after_the_lease_was_lost_has_no_effect(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.advance(30)
        await inbox.has(2)
        inbox.messages[0].ack()
        await place.settled()
        stats = await subscription.stats()
        assert (stats.acked_total, stats.in_flight) == (0, 1)


@in_loop
async def test_a_delivery_that_was_followed_by_another_is_not_waited_for(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=300, close_behavior="wait")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.advance(300)  # by the broker's clock: that of a client elsewhere says nothing
        await inbox.has(2)
        inbox.messages[1].ack()
        await subscription.close()
        assert (await subscription.stats()).acked_total == 1


@in_loop
async def test_who_comes_back_after_a_cut_renews_its_leases_at_once(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            begun.set()
            await go_on.wait()

        subscription.on("message", handle)
        subscription.open()
        published = await topic.publish_message(b"x")
        await begun.wait()
        await place.settled()
        place.disturb()

        async def is_extended() -> bool:
            return any(event.kind == "extended" for event in await place.pubsub.trace(published))

        await until(is_extended)  # though no time has passed: what was asked for before the cut may not have arrived
        go_on.set()


@in_loop
async def test_after_a_close_nothing_that_is_settled_has_an_effect_or_raises(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="nack")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        for number in range(5):
            await topic.publish_message(b"%d" % number)
        await inbox.has(5)
        await subscription.close()
        one, two, three, four, five = inbox.messages
        one.ack()
        two.nack()
        three.modify_ack_deadline(10)
        assert await four.ack_with_response() is AckResponse.INVALID
        assert await five.modify_ack_deadline_with_response(10) is AckResponse.INVALID
        await place.settled()
        stats = await subscription.stats()
        assert (stats.acked_total, stats.nacked_total, stats.backlog, stats.in_flight) == (0, 5, 5, 0)
        subscription.open()
        await inbox.has(10)
        one.ack()
        await place.settled()
        assert (await subscription.stats()).in_flight == 5


@pytest.mark.parametrize("exactly_once", [False, True])
@in_loop
async def test_a_response_says_what_became_of_it(place: Place, exactly_once: bool) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30, exactly_once=exactly_once)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        for number in range(4):
            await topic.publish_message(b"%d" % number)
        await inbox.has(4)
        acked, nacked, moved, late = inbox.messages
        assert await acked.ack_with_response() is AckResponse.SUCCESS
        assert await acked.ack_with_response() is AckResponse.INVALID
        assert await nacked.nack_with_response() is AckResponse.SUCCESS
        assert await nacked.ack_with_response() is AckResponse.INVALID
        assert await moved.modify_ack_deadline_with_response(100) is AckResponse.SUCCESS
        await place.advance(30)
        assert await late.ack_with_response() is AckResponse.INVALID
        assert await moved.ack_with_response() is AckResponse.SUCCESS
        assert (await subscription.stats()).acked_total == 2


@in_loop
async def test_a_response_waits_for_a_cut_connection_to_come_back(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(exactly_once=True)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.settled()
        place.disturb()
        await inbox.has_failed()
        assert await inbox.messages[0].ack_with_response() is AckResponse.SUCCESS
        assert (await subscription.stats()).backlog == 0


@in_loop
async def test_a_lease_is_extended_up_to_the_limit_and_no_longer() -> None:
    async with Place() as place:
        topic, subscription = await place.subscription(ack_deadline=20, max_extension=100)
        begun, go_on = asyncio.Event(), asyncio.Event()
        attempts: list[int] = []

        async def handle(message: IncomingMessage) -> None:
            attempts.append(message.delivery_attempt)
            begun.set()
            await go_on.wait()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await begun.wait()
        await place.advance(99.999999, step=5)
        assert attempts == [1]
        await place.advance(0.000001)
        assert attempts == [1, 2]
        go_on.set()


@in_loop
async def test_a_short_deadline_of_a_message_that_is_worked_on_is_extended_in_time(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=60)
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            message.modify_ack_deadline(0.2)
            begun.set()
            await go_on.wait()

        subscription.on("message", handle)
        subscription.open()
        published = await topic.publish_message(b"x")
        await begun.wait()

        async def is_extended() -> bool:
            return sum(event.kind == "extended" for event in await place.pubsub.trace(published)) >= 2

        if not place.is_remote:  # the client of a server extends in real time
            await place.settled()
            await place.advance(0.3, step=0.01)
        await until(is_extended)
        assert (await subscription.stats()).expired_total == 0
        go_on.set()


# ── order, exactly once, dead letters ────────────────────────────────────────────────────────────────────────────────────


def test_a_close_waits_for_acks_that_are_confirmed_by_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with PubSub(server.url) as pubsub:
            topic = await pubsub.topic("orders").create()
            subscription = await topic.subscription("billing", exactly_once=True).create()
            inbox = Inbox().listen(subscription)
            for number in range(1, 6):
                await topic.publish_message(b"x")
                subscription.open()
                await inbox.has(number)
                await subscription.close()
            assert (await subscription.stats()).acked_total == 5

    with LocalServer(data_dir=tmp_path) as server, caplog.at_level(logging.WARNING, "penstock.client"):
        asyncio.run(scenario())
    assert "did not reach the broker" not in caplog.text


@in_loop
async def test_a_nacked_message_of_a_key_comes_again_before_its_successor(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(message_ordering=True)
        inbox = Inbox(ack=False)
        failures = {b"a1": 2, b"b0": 1}

        async def handle(message: IncomingMessage) -> None:
            inbox.messages.append(message)
            await asyncio.sleep(0)
            if failures.get(message.data, 0) >= message.delivery_attempt:
                message.nack()
            else:
                message.ack()
            inbox._changed.set()

        subscription.on("message", handle)
        subscription.open()
        for key in "ab":
            for number in range(4):
                await topic.publish_message(f"{key}{number}".encode(), ordering_key=key)
        await inbox.has(11)
        await place.settled()
        assert [data for data in inbox.data if data[:1] == b"a"] == [b"a0", b"a1", b"a1", b"a1", b"a2", b"a3"]
        assert [data for data in inbox.data if data[:1] == b"b"] == [b"b0", b"b0", b"b1", b"b2", b"b3"]


@in_loop
async def test_order_is_kept_across_a_cut_and_a_close(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(message_ordering=True, close_behavior="wait")
        inbox = Inbox().listen(subscription)
        subscription.open()
        for number in range(30):
            await topic.publish_message(b"%02d" % number, ordering_key="k")
            if number == 10:
                await inbox.has(5)
                place.disturb()
            if number == 20:
                await inbox.has(12)
                await subscription.close()
                subscription.open()
        await until(lambda: _is_empty(place))
        seen: list[bytes] = []
        for data in inbox.data:
            if data not in seen:
                seen.append(data)
        assert seen == [b"%02d" % number for number in range(30)]
        # A repeat is of the last one alone: nothing older comes again once a later one was seen.
        positions = [int(data) for data in inbox.data]
        assert all(after - before in {0, 1} for before, after in pairwise(positions))


@in_loop
async def test_exactly_once_keeps_what_is_worked_on_and_gives_back_what_is_not(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(exactly_once=True, close_behavior="wait")
        for number in range(4):
            await topic.publish_message(b"%d" % number)
        iterator = aiter(subscription)
        first = await anext(iterator)
        await place.settled()
        closing = asyncio.create_task(subscription.close())
        await place.settled()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.ready) == (1, 3)
        assert await first.ack_with_response() is AckResponse.SUCCESS
        await closing
        stats = await subscription.stats()
        assert (stats.in_flight, stats.ready, stats.nacked_total) == (0, 3, 0)


@in_loop
async def test_a_message_that_fails_too_often_becomes_a_dead_letter(place: Place) -> None:
    async with place:
        await place.topic("letters")
        letters = await place.pubsub.subscription("undertaker", topic="letters").create()
        topic, subscription = await place.subscription(dead_letter_policy=DeadLetterPolicy("letters", 3))
        attempts: list[int] = []

        def handle(message: IncomingMessage) -> None:
            attempts.append(message.delivery_attempt)
            raise ValueError("poison")

        subscription.on("message", handle).on("error", lambda _: None)
        inbox = Inbox().listen(letters)
        letters.open()
        subscription.open()
        await topic.publish_message(b"poison", {"a": "1"})
        await inbox.has(1)
        assert attempts == [1, 2, 3]
        assert inbox.data == [b"poison"]
        assert inbox.messages[0].attributes["a"] == "1"
        assert (await subscription.stats()).backlog == 0


@in_loop
async def test_a_nacked_message_waits_for_its_backoff(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(retry_policy=RetryPolicy(10, 100))
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        inbox.messages[0].nack()
        await place.settled()
        await place.advance(9.999999)
        assert len(inbox.messages) == 1
        await place.advance(0.000001)
        await inbox.has(2)


# ── much and large ───────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_message_of_10_mib_passes_and_comes_alone(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_bytes=1024))
        inbox = Inbox(ack=False).listen(subscription)
        data = bytes(range(256)) * (10 * 4096)
        subscription.open()
        await topic.publish_message(data)
        await topic.publish_message(b"small")
        await inbox.has(1)
        await place.settled()
        assert len(inbox.messages) == 1
        assert inbox.messages[0].data == data
        assert inbox.messages[0].length == 10 * 1024 * 1024
        inbox.messages[0].ack()
        await inbox.has(2)


@in_loop
async def test_a_slow_consumer_holds_no_more_than_its_limits(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_messages=8), max_streams=3)
        inbox, most = Inbox(), 0

        async def handle(message: IncomingMessage) -> None:
            nonlocal most
            most = max(most, subscription.stream.in_flight)
            await asyncio.sleep(0)
            inbox(message)

        subscription.on("message", handle)
        for start in range(0, 200, 20):
            await asyncio.gather(*(topic.publish_message(b"%d" % number) for number in range(start, start + 20)))
        subscription.open()
        await inbox.has(200)
        assert most <= 8
        assert len({message.id for message in inbox.messages}) == 200


# ── a server that goes away ──────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_stopping_while_the_server_is_away_ends(caplog: pytest.LogCaptureFixture) -> None:
    server = LocalServer().start()
    pubsub = await PubSub(server.url).open()
    topic = await pubsub.topic("orders").create()
    subscription = await topic.subscription("billing", close_behavior="nack").create()
    inbox = Inbox(ack=False).listen(subscription)
    subscription.open()
    await topic.publish_message(b"x")
    await inbox.has(1)
    await asyncio.to_thread(server.stop)
    await inbox.has_failed()
    inbox.messages[0].ack()
    with caplog.at_level(logging.WARNING, "penstock.client"):
        await subscription.close()
    assert (inbox.closes, isinstance(inbox.errors[0], Unavailable)) == (1, True)
    assert any("did not reach the broker" in record.getMessage() for record in caplog.records)
    await pubsub.close()


# ── without a stream ─────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_what_is_pulled_is_settled_also_when_the_client_is_closed_at_once(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        for number in range(5):
            await topic.publish_message(b"%d" % number)
        pulled = await subscription.pull(10, wait=1)
        assert len(pulled) == 5
        for message in pulled[:3]:
            message.ack()
        pulled[3].nack()
        threading.Thread(target=pulled[4].modify_ack_deadline, args=(0,)).run()
        await subscription.close()
        stats = await subscription.stats()
        assert (stats.acked_total, stats.nacked_total, stats.in_flight) == (3, 2, 0)


@in_loop
async def test_what_is_pulled_answers_for_itself(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        for number in range(4):
            await topic.publish_message(b"%d" % number)
        one, two, three, four = await subscription.pull(4, ack_deadline=20)
        assert await one.ack_with_response() is AckResponse.SUCCESS
        assert await two.nack_with_response() is AckResponse.SUCCESS
        assert await three.modify_ack_deadline_with_response(100) is AckResponse.SUCCESS
        await place.advance(20)
        assert await four.ack_with_response() is AckResponse.INVALID
        assert await three.ack_with_response() is AckResponse.SUCCESS


@in_loop
async def test_what_was_only_looked_at_settles_nothing(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        await topic.publish_message(b"x")
        (peeked,) = await subscription.peek()
        (pulled,) = await subscription.pull()
        assert peeked.id == pulled.id
        peeked.ack()
        assert await (await subscription.peek(5) or [peeked])[0].ack_with_response() is AckResponse.INVALID
        await place.settled()
        assert (await subscription.stats()).in_flight == 1


@in_loop
async def test_a_pull_that_cannot_be_settled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Place() as place:
        topic, subscription = await place.subscription()
        await topic.publish_message(b"x")
        (pulled,) = await subscription.pull()
        await subscription.delete()
        with caplog.at_level(logging.WARNING, "penstock.client"):
            pulled.ack()
            await subscription.close()
        assert any("could not be settled" in record.getMessage() for record in caplog.records)


@in_loop
async def test_a_subscription_is_created_as_its_options_say() -> None:
    async with Place() as place:
        topic = await place.topic()
        told = await topic.subscription("told", ack_deadline=45, ack_deadline_seconds=20, max_messages=7).create()
        assert (await told.metadata()).options.ack_deadline_seconds == 20
        assert (await told.metadata()).options.max_messages == 7
        given = await topic.subscription("given", ack_deadline=45).create(SubscriptionOptions(ack_deadline_seconds=99))
        assert (await given.metadata()).options.ack_deadline_seconds == 99


async def _is_empty(place: Place) -> bool:
    return (await place.pubsub.subscription("billing").stats()).backlog == 0
