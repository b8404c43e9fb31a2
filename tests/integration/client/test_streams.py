"""The life of a stream: everything a user may do with it, in every state and wherever the broker is."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.link import Channel
from penstock.client.message import IncomingMessage
from penstock.client.options import SubscriberOptions
from penstock.errors import FailedPrecondition, InvalidArgument, SubscriptionNotFound
from penstock.values.policy import FlowControl
from tests.conformance.stream_drivers import Inbox, Place, in_loop, until

# ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_starting_twice_is_starting_once(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        subscription.open()
        subscription.stream.start()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await place.settled()
        await subscription.close()
        assert (len(inbox.messages), inbox.closes) == (1, 1)


@in_loop
async def test_stopping_what_was_never_started_or_has_stopped_does_nothing(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        await subscription.close()
        await subscription.stream.stop()
        assert inbox.closes == 0
        subscription.open()
        await subscription.close()
        await subscription.close()
        assert (inbox.closes, inbox.errors, subscription.is_open) == (1, [], False)


@in_loop
async def test_many_may_wait_for_the_same_close(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        closings = [asyncio.create_task(subscription.close()) for _ in range(3)]
        await place.settled()
        assert not any(closing.done() for closing in closings)
        inbox.messages[0].ack()
        await asyncio.gather(*closings)
        assert inbox.closes == 1


@in_loop
async def test_stopping_while_it_opens_leaves_nothing_behind(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        await topic.publish_message(b"x")
        for turns in range(6):
            subscription.open()
            for _ in range(turns):
                await asyncio.sleep(0)
            await subscription.close()
        assert inbox.closes == 6
        await place.settled()
        assert (await subscription.stats()).in_flight == 0
        if not inbox.messages:
            subscription.open()
            await inbox.has(1)
            assert inbox.messages[0].delivery_attempt == 1


@in_loop
async def test_it_may_be_opened_again_after_a_fatal_error(place: Place) -> None:
    async with place:
        topic = await place.topic()
        subscription = topic.subscription("billing")
        inbox = Inbox().listen(subscription)
        subscription.open()
        await inbox.has_closed()
        assert isinstance(subscription.stream.failure, SubscriptionNotFound)
        await subscription.create()
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        assert len(inbox.errors) == 1


@in_loop
async def test_a_listener_of_close_may_open_it_again(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.on("close", lambda: subscription.open() if inbox.closes == 1 else None)
        subscription.open()
        await subscription.close()
        assert subscription.is_open
        await topic.publish_message(b"x")
        await inbox.has(1)


@in_loop
async def test_opening_while_it_closes_is_refused(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        closing = asyncio.create_task(subscription.close())
        await place.settled()
        with pytest.raises(FailedPrecondition, match="is closing"):
            subscription.open()
        inbox.messages[0].ack()
        await closing


@in_loop
async def test_a_client_that_is_not_open_opens_nothing(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription()
    with pytest.raises(FailedPrecondition, match="is closed"):
        subscription.open()
    with pytest.raises(FailedPrecondition, match="client is"):
        await subscription.stats()


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_close_nack_gives_back_at_once_and_does_not_wait_for_handlers(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="nack")
        begun, never = asyncio.Event(), asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            begun.set()
            await never.wait()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await begun.wait()
        await subscription.close()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.backlog, stats.nacked_total) == (0, 1, 1)
        never.set()


@in_loop
async def test_close_wait_ends_at_its_timeout_and_gives_back_the_rest(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait", close_timeout=0.05)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        await subscription.close()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.nacked_total, inbox.closes) == (0, 1, 1)


@in_loop
async def test_who_gives_up_waiting_for_a_close_does_not_undo_it(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox, closed = Inbox(ack=False).listen(subscription), asyncio.Event()
        subscription.on("close", closed.set)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await subscription.close()
        assert (subscription.is_open, inbox.closes) == (True, 0)
        inbox.messages[0].ack()
        await subscription.close()
        assert (inbox.closes, (await subscription.stats()).backlog) == (1, 0)


@in_loop
async def test_what_nobody_has_seen_goes_back_at_once_and_counts_no_attempt(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        for number in range(3):
            await topic.publish_message(b"%d" % number)
        first = await anext(aiter(subscription))
        await place.settled()
        assert (await subscription.stats()).in_flight == 3
        closing = asyncio.create_task(subscription.close())
        await place.settled()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.ready, closing.done()) == (1, 2, False)
        first.ack()
        await closing
        assert [one.delivery_attempt for one in await subscription.pull(10)] == [1, 1]


@pytest.mark.parametrize("is_settled", [False, True])
@in_loop
async def test_a_handler_may_close_its_own_subscription(place: Place, is_settled: bool) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        closed = asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            if is_settled:
                message.ack()
            await subscription.close()
            closed.set()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await closed.wait()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.backlog) == (0, 0 if is_settled else 1)


@in_loop
async def test_a_handler_may_close_while_somebody_waits_for_it(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            begun.set()
            message.ack()
            await go_on.wait()
            await subscription.close()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await begun.wait()
        closing = asyncio.create_task(subscription.close())
        await place.settled()
        assert not closing.done()
        go_on.set()
        await closing


@in_loop
async def test_a_handler_may_close_the_client(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        closed = asyncio.Event()

        async def handle(message: IncomingMessage) -> None:
            message.ack()
            await place.pubsub.close()
            closed.set()

        subscription.on("message", handle)
        subscription.open()
        await topic.publish_message(b"x")
        await asyncio.wait_for(closed.wait(), 30)
        assert not subscription.is_open


@in_loop
async def test_who_gives_up_waiting_for_the_client_to_close_leaves_no_connection_behind(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox, closed = Inbox(ack=False).listen(subscription), asyncio.Event()
        subscription.on("close", closed.set)
        subscription.open()
        await topic.publish_message(b"x")
        await inbox.has(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(place.pubsub.close(), 0.05)
        with pytest.raises(FailedPrecondition, match="client is"):
            await subscription.stats()
        await asyncio.wait_for(closed.wait(), 30)


@in_loop
async def test_the_body_of_an_iteration_may_close(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        await topic.publish_message(b"x")
        seen = []
        async for message in subscription:
            seen.append(message.data)
            await subscription.close()
        assert seen == [b"x"]
        assert (await subscription.stats()).backlog == 1  # it was not acked


# ── pause and resume ─────────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_pause_before_opening_opens_it_paused(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.resume()
        subscription.pause()
        subscription.pause()
        subscription.open()
        await topic.publish_message(b"x")
        await place.settled()
        assert (inbox.messages, subscription.stream.is_paused) == ([], True)
        subscription.resume()
        await inbox.has(1)


@in_loop
async def test_a_pause_is_remembered_across_a_close(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        subscription.pause()
        await subscription.close()
        subscription.open()
        await topic.publish_message(b"x")
        await place.settled()
        assert inbox.messages == []
        subscription.resume()
        await inbox.has(1)


@in_loop
async def test_a_handler_that_pauses_gets_nothing_more_of_what_is_on_its_way(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox()

        def handle(message: IncomingMessage) -> None:
            inbox(message)
            if len(inbox.messages) == 2:
                subscription.pause()

        subscription.on("message", handle)
        for number in range(6):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(2)
        await place.settled()
        assert len(inbox.messages) == 2
        if not place.is_remote:  # a client measures its leases in its own time
            await place.advance(120, step=7)
        subscription.resume()
        await inbox.has(6)
        assert {message.delivery_attempt for message in inbox.messages} == {1}
        assert sorted(inbox.data) == [b"%d" % number for number in range(6)]


@in_loop
async def test_what_came_while_it_was_paused_goes_back_when_it_is_closed(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox = Inbox()
        subscription.on("message", inbox).on("message", lambda _: subscription.pause())
        for number in range(5):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(1)
        await place.settled()
        await subscription.close()
        stats = await subscription.stats()
        assert (stats.in_flight, stats.ready, len(inbox.messages)) == (0, 4, 1)


# ── options while it is open ─────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_flow_control_may_go_up_and_down(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(flow_control=FlowControl(max_messages=1))
        inbox = Inbox(ack=False).listen(subscription)
        for number in range(10):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(1)
        subscription.set_options(flow_control=FlowControl(max_messages=4))
        await inbox.has(4)
        subscription.set_options(flow_control=FlowControl(max_messages=2))
        await place.settled()
        inbox.messages[0].ack()
        inbox.messages[1].ack()
        await place.settled()
        assert len(inbox.messages) == 4
        inbox.messages[2].ack()
        await inbox.has(5)
        await place.settled()
        assert len(inbox.messages) == 5


@in_loop
async def test_another_ack_deadline_is_for_leases_from_then_on(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(ack_deadline=30)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"old")
        await inbox.has(1)
        subscription.set_options(ack_deadline=5)
        await place.settled()
        await topic.publish_message(b"new")
        await inbox.has(2)
        await place.advance(5)
        await inbox.has(3)
        assert inbox.data == [b"old", b"new", b"new"]


@in_loop
async def test_another_number_of_streams_keeps_what_is_held(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription(max_streams=1, flow_control=FlowControl(max_messages=5))
        inbox = Inbox(ack=False).listen(subscription)
        for number in range(20):
            await topic.publish_message(b"%d" % number)
        subscription.open()
        await inbox.has(5)
        subscription.set_options(max_streams=4)
        await place.settled()
        assert len(inbox.messages) == 5
        for message in inbox.messages[:5]:
            message.ack()
        await inbox.has(10)
        for message in inbox.messages[5:]:
            message.ack()
        await place.settled()
        assert {message.delivery_attempt for message in inbox.messages} == {1}
        assert len({message.id for message in inbox.messages}) == len(inbox.messages)
        assert inbox.errors == []


@in_loop
async def test_another_number_of_streams_is_heard_while_it_opens(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription(max_streams=1)
        link_open, opened, all_open = place.pubsub.link.open, [0], asyncio.Event()

        async def opening(*args: Any, **kwargs: Any) -> Channel:
            if not opened[0]:
                subscription.set_options(max_streams=3)
            channel = await link_open(*args, **kwargs)
            opened[0] += 1
            if opened[0] == 1 + 3:
                all_open.set()
            return channel

        place.pubsub.link.open = opening  # type: ignore[method-assign]  # between the question and the answer
        subscription.open()
        await asyncio.wait_for(all_open.wait(), 30)


@in_loop
async def test_options_that_make_no_sense_change_nothing(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription()
        before = subscription.stream.options
        with pytest.raises(InvalidArgument, match="unknown option 'max_message'"):
            subscription.set_options(max_message=1)  # type: ignore[call-arg]  # that is the point
        with pytest.raises(InvalidArgument, match="ack_deadline"):
            subscription.set_options(ack_deadline=0)
        with pytest.raises(InvalidArgument, match="options"):
            subscription.stream.set_options(None)  # type: ignore[arg-type]  # that is the point
        assert subscription.stream.options is before
        subscription.open()
        with pytest.raises(FailedPrecondition, match="message_ordering"):
            subscription.stream.set_options(replace(before, message_ordering=True))
        assert subscription.stream.options is before


@in_loop
async def test_order_that_the_subscription_does_not_keep_is_refused(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        await topic.publish_message(b"x")
        subscription.stream.set_options(SubscriberOptions(message_ordering=True))
        subscription.open()
        await inbox.has_closed()
        assert [type(error) for error in inbox.errors] == [FailedPrecondition]
        assert inbox.messages == []
        await place.settled()
        assert (await subscription.stats()).in_flight == 0


# ── what may happen to it ────────────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_subscription_deleted_and_made_again_under_a_stream_ends_it(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"old")
        await inbox.has(1)
        await subscription.delete()
        await subscription.create()
        await inbox.has_closed()
        assert [type(error) for error in inbox.errors] == [SubscriptionNotFound]
        await topic.publish_message(b"new")
        inbox.messages[0].ack()  # of the one that is gone: it must not settle what bears the same number now
        subscription.open()
        await inbox.has(2)
        assert inbox.data == [b"old", b"new"]
        assert (await subscription.stats()).acked_total == 0


@in_loop
async def test_a_paused_stream_hears_that_its_subscription_was_deleted(place: Place) -> None:
    async with place:
        _, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)
        subscription.open()
        subscription.pause()
        await place.settled()
        await subscription.delete()
        await inbox.has_closed()
        assert [type(error) for error in inbox.errors] == [SubscriptionNotFound]


@in_loop
async def test_streams_of_one_client_close_side_by_side(place: Place) -> None:
    async with place:
        topic = await place.topic()
        inboxes = []
        for name in ("first", "second"):
            subscription = await topic.subscription(name, close_behavior="wait").create()
            inboxes.append(Inbox(ack=False).listen(subscription))
            subscription.open()
        await topic.publish_message(b"x")
        for inbox in inboxes:
            await inbox.has(1)
        closing = asyncio.create_task(place.pubsub.close())
        inboxes[1].messages[0].ack()
        await inboxes[1].has_closed()  # it does not wait for the first
        assert inboxes[0].closes == 0
        inboxes[0].messages[0].ack()
        await closing


@in_loop
async def test_a_subscription_made_again_while_the_stream_was_cut_is_another_one() -> None:
    async with Place() as place:
        topic, subscription = await place.subscription(close_behavior="wait")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await topic.publish_message(b"old")
        await inbox.has(1)
        place.disturb()
        await inbox.has_failed()
        await subscription.delete()
        await subscription.create()
        await topic.publish_message(b"new")
        await inbox.has(2)
        inbox.messages[0].ack()  # of the one that is gone: it must not settle what bears the same number now
        await place.settled()
        assert (await subscription.stats()).acked_total == 0
        assert (inbox.data, inbox.closes, subscription.stream.in_flight) == ([b"old", b"new"], 0, 1)
        inbox.messages[1].ack()
        await subscription.close()


@in_loop
async def test_an_error_that_nobody_foresaw_is_told_and_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with Place() as place:
        _, subscription = await place.subscription()
        inbox = Inbox().listen(subscription)

        async def broken(*_: object, **__: object) -> Channel:
            raise ZeroDivisionError("a bug")

        place.pubsub.link.open = broken  # type: ignore[method-assign]  # what must not happen
        subscription.open()
        await inbox.has_closed()
        assert ["a bug" in str(error) for error in inbox.errors] == [True]
        assert "ZeroDivisionError" in caplog.text


@in_loop
async def test_an_error_that_nobody_listens_to_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place:
        _, subscription = await place.subscription()
        subscription.open()
        await place.settled()
        with caplog.at_level(logging.WARNING, "penstock.client"):
            await subscription.delete()
            await until(lambda: _is_closed(place))
        assert any("billing" in record.getMessage() for record in caplog.records)


@in_loop
async def test_a_break_keeps_what_is_held_and_nothing_is_lost(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        for number in range(5):
            await topic.publish_message(b"%d" % number)
        await inbox.has(5)
        await place.settled()
        place.disturb()
        inbox.messages[0].ack()
        inbox.messages[1].nack()
        await inbox.has_failed()
        await inbox.has(6)  # the nacked one
        inbox.messages[2].ack()
        await topic.publish_message(b"after")
        await inbox.has(7)
        await place.settled()
        stats = await subscription.stats()
        assert (stats.acked_total, stats.in_flight) == (2, 4)
        assert inbox.data.count(b"1") == 2
        assert inbox.data.count(b"after") == 1


@in_loop
async def test_a_topic_deleted_under_a_stream_ends_it_with_its_iterators(place: Place) -> None:
    async with place:
        topic, subscription = await place.subscription()

        async def consume() -> None:
            async for message in subscription:
                message.ack()

        consuming = asyncio.create_task(consume())
        await place.settled()
        await topic.delete()
        with pytest.raises(FailedPrecondition, match="detached"):
            await consuming


async def _is_closed(place: Place) -> bool:
    return not place.pubsub.subscription("billing").is_open
