"""Streams that hold several messages of an ordering key (decision 0038), wherever the broker is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.subscription import Subscription
from penstock.client.topic import Topic
from penstock.errors import FailedPrecondition, Unavailable
from penstock.values.policy import DeadLetterPolicy
from tests.conformance.stream_drivers import PATIENCE, Inbox, Place, in_loop, until

WINDOW = 20


async def window(place: Place, count: int, keys: str = "k", **options: Any) -> tuple[Topic, Subscription]:
    """A subscription with messages k0, k1, … of each key."""
    topic, subscription = await place.subscription(message_ordering=True, ordering_window=WINDOW, **{"max_streams": 1, **options})
    for number in range(count):
        for key in keys:
            await topic.publish_message(f"{key}{number}".encode(), ordering_key=key)
    return topic, subscription


async def holds(subscription: Subscription, count: int) -> None:
    async def is_so() -> bool:
        return subscription.stream.in_flight == count

    await until(is_so)


def numbers(inbox: Inbox, key: str = "k") -> list[int]:
    return [int(data[1:]) for data in inbox.data if data.startswith(key.encode())]


class Orderly:
    """An async handler that nacks as `fails` says, and notices calls that overlap or overtake."""

    def __init__(self, fails: Callable[[int, int], bool]) -> None:
        self._fails = fails
        self._running: set[str] = set()
        self.done: dict[str, list[int]] = {}
        self.problems: list[str] = []
        self.nacks = 0
        self._changed = asyncio.Event()

    async def __call__(self, message: IncomingMessage) -> None:
        key, number = message.ordering_key, int(message.data[1:])
        done = self.done.setdefault(key, [])
        if key in self._running:
            self.problems.append(f"{key}{number} overlaps")
        if number != len(done):
            self.problems.append(f"{key}{number} comes after {done[-1:]}")
        self._running.add(key)
        for _ in range(3):
            await asyncio.sleep(0)
        self._running.discard(key)
        if self._fails(number, message.delivery_attempt):
            self.nacks += 1
            message.nack()
        else:
            done.append(number)
            message.ack()
        self._changed.set()

    async def has(self, count: int, keys: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while any(len(self.done.get(key, ())) < count for key in keys):
                self._changed.clear()
                await self._changed.wait()


@in_loop
async def test_the_stream_holds_several_messages_of_a_key_and_handles_one_at_a_time(place: Place) -> None:
    async with place:
        _, subscription = await window(place, WINDOW + 5)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, WINDOW)
        assert numbers(inbox) == [0]
        for count in range(1, WINDOW + 5):
            inbox.messages[-1].ack()
            await inbox.has(count + 1)
            assert numbers(inbox) == [*range(count + 1)]
        inbox.messages[-1].ack()
        await place.settled()
        assert (await subscription.stats()).backlog == 0


@in_loop
async def test_handlers_that_ack_at_once_get_everything_in_order(place: Place) -> None:
    async with place:
        _, subscription = await window(place, 2 * WINDOW, "ab")
        inbox = Inbox().listen(subscription)
        subscription.open()
        await inbox.has(4 * WINDOW)
        assert numbers(inbox, "a") == numbers(inbox, "b") == [*range(2 * WINDOW)]


@in_loop
async def test_an_iterator_gets_a_key_in_order(place: Place) -> None:
    async with place:
        _, subscription = await window(place, WINDOW)
        seen = []
        async with asyncio.timeout(PATIENCE):
            async for message in subscription:
                seen.append(int(message.data[1:]))
                message.ack()
                if len(seen) == WINDOW:
                    break
        assert seen == [*range(WINDOW)]


@in_loop
async def test_a_nack_brings_the_message_and_all_later_ones_of_its_key_again(place: Place) -> None:
    async with place:
        topic, subscription = await window(place, 6)
        await topic.publish_message(b"x0", ordering_key="x")
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, 7)
        inbox.messages[0].ack()
        await inbox.has(3)
        second = next(one for one in inbox.messages if one.data == b"k1")
        second.nack()
        await inbox.has(4)
        again = inbox.messages[-1]
        assert (again.data, again.delivery_attempt) == (b"k1", 2)
        for count in range(5, 9):
            inbox.messages[-1].ack()
            await inbox.has(count)
        assert [(one.data, one.delivery_attempt) for one in inbox.messages[4:]] == [(b"k%d" % n, 1) for n in range(2, 6)]
        assert numbers(inbox, "x") == [0]
        assert (await subscription.stats()).nacked_total == 1


@in_loop
async def test_what_waits_behind_an_expired_message_comes_again_after_it(place: Place) -> None:
    async with place:
        _, subscription = await window(place, 4)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, 4)
        await place.advance(60)  # its handler has returned, so its lease is not extended
        await inbox.has(2)
        await holds(subscription, 4)
        assert [(one.data, one.delivery_attempt) for one in inbox.messages] == [(b"k0", 1), (b"k0", 2)]
        inbox.messages[0].ack()  # too late: it is delivered again
        await place.settled()
        assert len(inbox.messages) == 2
        for count in range(3, 6):
            inbox.messages[-1].ack()
            await inbox.has(count)
        assert numbers(inbox) == [0, 0, 1, 2, 3]


@in_loop
async def test_leases_are_extended_while_messages_wait_for_their_turn(place: Place) -> None:
    if place.is_remote:
        pytest.skip("a remote client extends leases by its own clock, which the test does not move")
    async with place:
        _, subscription = await window(place, 3)
        go_on = asyncio.Event()
        seen = Inbox()

        async def slow(message: IncomingMessage) -> None:
            await go_on.wait()
            seen(message)

        subscription.on("message", slow)
        subscription.open()
        await holds(subscription, 3)
        await place.advance(300, step=10)
        go_on.set()
        await seen.has(3)
        assert [(one.data, one.delivery_attempt) for one in seen.messages] == [(b"k0", 1), (b"k1", 1), (b"k2", 1)]


@in_loop
async def test_many_nacks_with_messages_on_their_way_reorder_nothing(place: Place) -> None:
    async with place.in_real_time():
        topic, subscription = await window(place, 0, max_streams=5)
        handler = Orderly(lambda number, attempt: attempt == 1 and number % 7 == 3)
        subscription.on("message", handler)
        subscription.open()
        await asyncio.gather(
            *(topic.publish_message(b"%s%d" % (key.encode(), n), ordering_key=key) for n in range(150) for key in "abc")
        )
        await handler.has(150, "abc")
        assert handler.problems == []
        assert handler.nacks >= 3 * 21
        await until(lambda: _is_empty(subscription))


@in_loop
async def test_a_lost_connection_reorders_nothing(place: Place) -> None:
    async with place.in_real_time():
        topic, subscription = await window(place, 0)
        handler = Orderly(lambda number, attempt: attempt == 1 and number % 11 == 3)
        errors = Inbox().listen(subscription).errors
        subscription.off("message", subscription._events.listeners["message"][0]).on("message", handler)
        subscription.open()
        for number in range(120):
            await topic.publish_message(b"a%d" % number, ordering_key="a")
            if number % 40 == 39:
                await handler.has(number - 10, "a")
                place.disturb()
        await handler.has(120, "a")
        assert all(isinstance(error, Unavailable) for error in errors)
        # What the handler worked on when the connection was lost it finishes; nothing of the key overtakes it.
        assert handler.problems == []


@in_loop
async def test_dead_letters_do_not_hold_up_their_key(place: Place) -> None:
    async with place:
        await place.topic("grave")
        await (await place.topic("grave")).subscription("triage").create()
        policy = DeadLetterPolicy(dead_letter_topic="grave", max_delivery_attempts=5)
        _, subscription = await window(place, 5, dead_letter_policy=policy)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, 5)
        for count in range(1, 6):
            assert inbox.messages[-1].data == b"k0"
            inbox.messages[-1].nack()
            await inbox.has(count + 1)
        for count in range(7, 10):
            inbox.messages[-1].ack()
            await inbox.has(count)
        assert numbers(inbox) == [0] * 5 + [1, 2, 3, 4]


@in_loop
async def test_a_nack_with_an_answer_reorders_nothing(place: Place) -> None:
    async with place:
        _, subscription = await window(place, 5)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, 5)
        assert await inbox.messages[0].nack_with_response() is AckResponse.SUCCESS
        await inbox.has(2)
        for count in range(2, 6):
            assert await inbox.messages[-1].ack_with_response() is AckResponse.SUCCESS
            await inbox.has(count + 1)
        assert numbers(inbox) == [0, 0, 1, 2, 3, 4]


@in_loop
async def test_a_pause_and_a_close_keep_the_order(place: Place) -> None:
    async with place:
        _, subscription = await window(place, 5)
        inbox = Inbox(ack=False).listen(subscription)
        subscription.open()
        await holds(subscription, 5)
        subscription.pause()
        inbox.messages[0].ack()
        await place.settled()
        assert numbers(inbox) == [0]
        subscription.resume()
        await inbox.has(2)
        await subscription.close()
        assert (await subscription.stats()).in_flight == 0
        subscription.open()
        await inbox.has(3)
        assert [(one.data, one.delivery_attempt) for one in inbox.messages[1:]] == [(b"k1", 1), (b"k1", 2)]


@in_loop
async def test_a_window_needs_a_subscription_with_ordering_and_stays_while_the_stream_is_open(place: Place) -> None:
    async with place:
        _, plain = await place.subscription(ordering_window=2)
        inbox = Inbox().listen(plain)
        plain.open()
        await inbox.has_failed()
        assert isinstance(inbox.errors[0], FailedPrecondition)
        _, subscription = await place.subscription("ordered", message_ordering=True, ordering_window=2)
        subscription.open()
        with pytest.raises(FailedPrecondition, match="ordering_window of an open stream cannot change"):
            subscription.set_options(ordering_window=3)


async def _is_empty(subscription: Subscription) -> bool:
    return (await subscription.stats()).backlog == 0
