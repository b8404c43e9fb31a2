"""Many feeds of one queue: who looks, who is served, and what that costs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from penstock import Broker, MessageQueue, SubscriptionOptions
from penstock.api.feed import Feed
from penstock.api.service import embedded_service
from penstock.broker.core.queue import Queue
from penstock.errors import SubscriptionNotFound
from penstock.testing import ManualClock
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from tests.unit.api.feed_stand import Basket, Stand, feed_of, scenario


def test_idle_feeds_cost_a_publisher_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stand: Stand) -> None:
        baskets = [stand.open(f"consumer-{number}") for number in range(200)]
        await stand.quiet()
        looks, look = [0], Feed.look

        def counted(feed: Feed) -> bool:
            looks[0] += 1
            return look(feed)

        monkeypatch.setattr(Feed, "look", counted)
        stand.publish(b"a")
        await stand.quiet()
        (served,) = [basket for basket in baskets if basket.leases]
        feed_of(served).settle_receipts(served.receipts)
        await stand.quiet()
        assert looks[0] == 1, "the one that was served; nobody looks again when nothing waits"

    scenario(play)


def test_feeds_are_served_in_turn() -> None:
    async def play(stand: Stand) -> None:
        baskets = [stand.open(f"consumer-{number}") for number in range(4)]
        for _ in range(12):
            stand.publish(b"a")
            await stand.quiet()
            for basket in baskets:  # which rings once more, and must not be the turn of anybody
                feed_of(basket).settle_receipts(basket.receipts)
            await stand.quiet()
        assert [len(basket.leases) for basket in baskets] == [3, 3, 3, 3]

    scenario(play)


def test_the_next_of_a_key_goes_to_its_holder_and_idle_feeds_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stand: Stand) -> None:
        stand.topics.register_subscription("keyed", "topic", SubscriptionOptions(message_ordering=True))
        baskets = [stand.open(f"consumer-{number}", name="keyed") for number in range(50)]
        for basket in baskets:
            feed_of(basket).key_window = 3
        stand.publish(b"0", key="k")
        await stand.quiet()
        (holder,) = [basket for basket in baskets if basket.leases]
        looks, look = list[Feed](), Feed.look

        def counted(feed: Feed) -> bool:
            looks.append(feed)
            return look(feed)

        monkeypatch.setattr(Feed, "look", counted)
        for number in (b"1", b"2", b"3"):
            stand.publish(number, key="k")
            await stand.quiet()
        assert holder.data == [b"0", b"1", b"2"]
        feed_of(holder).settle_receipts(holder.receipts[:1])
        await stand.quiet()
        assert holder.data == [b"0", b"1", b"2", b"3"]
        assert set(looks) == {feed_of(holder)}
        feed_of(holder).close()
        await stand.quiet()
        assert [one.data for one in baskets if one.leases and one is not holder] == [[b"1", b"2", b"3"]]

    scenario(play)


def test_those_that_may_not_have_more_leave_it_to_others() -> None:
    async def play(stand: Stand) -> None:
        full, paused, deaf = stand.open("a", messages=1), stand.open("b", is_paused=True), stand.open("c", has_room=False)
        last = stand.open("d")
        stand.publish(*[b"x"] * 10)
        await stand.quiet()
        assert [len(one.leases) for one in (full, paused, deaf)] == [1, 0, 0]
        assert len(last.leases) == 9

    scenario(play)


def test_all_hear_that_their_subscription_is_gone() -> None:
    async def play(stand: Stand) -> None:
        baskets = [stand.open(f"consumer-{number}") for number in range(5)]
        await stand.quiet()
        stand.topics.unregister_subscription("sub")
        await stand.quiet()
        assert [type(basket.ends[0]) for basket in baskets] == [SubscriptionNotFound] * 5
        assert not stand.broker.notifier.callbacks

    scenario(play)


def test_the_last_that_leaves_takes_the_bell_down_and_the_next_hangs_it_again() -> None:
    async def play(stand: Stand) -> None:
        one, other = stand.open("a"), stand.open("b")
        feed_of(one).close()
        assert stand.broker.notifier.callbacks
        feed_of(other).close()
        assert not stand.broker.notifier.callbacks
        again = stand.open("c")
        await stand.quiet()
        stand.publish(b"x")
        await stand.quiet()
        assert again.data == [b"x"]

    scenario(play)


def test_who_closes_while_it_loads_from_disk_keeps_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first feed reads what is not in memory; the others must not wait for it for ever."""

    async def play() -> None:
        with Broker(data_dir=tmp_path, clock=ManualClock(), window_bytes=1) as broker:
            topics = MessageQueue(broker=broker)
            topics.register_topic("topic")
            topics.register_subscription("sub", "topic")
            service = embedded_service(broker)
            stand = Stand(broker, ManualClock(), service, topics)
            loading, go_on, load = threading.Event(), threading.Event(), broker.load

            def slowly(queue: Queue) -> None:
                loading.set()
                go_on.wait(10)
                load(queue)

            monkeypatch.setattr(broker, "load", slowly)
            first, second = stand.open("a"), stand.open("b")
            await stand.quiet()
            stand.publish(*[b"x" * 1000] * 50)
            await asyncio.to_thread(loading.wait, 10)
            feed_of(first).close()
            go_on.set()
            await asyncio.wait_for(_filled(second, 50), 30)
            feed_of(second).close()
            service.close()
            service.aio.close()

    asyncio.run(play())


def test_what_is_ready_when_its_feed_closes_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transform is done, and its feed closes in the same turn of the loop, before it hears of that."""

    async def play(stand: Stand) -> None:
        basket = stand.open()
        feed = feed_of(basket)

        async def ready(queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
            asyncio.get_running_loop().call_soon(feed.stop)
            return leases

        monkeypatch.setattr(feed, "_transforms", lambda queue: True)
        monkeypatch.setattr(feed, "_ready", ready)
        stand.publish(b"a")
        await stand.quiet()
        assert (basket.leases, stand.in_flight) == ([], 0)
        other = stand.open("other")
        await stand.quiet()
        assert (other.data, other.attempts) == ([b"a"], [1])

    scenario(play)


async def _filled(basket: Basket, count: int) -> None:
    while len(basket.leases) < count:
        basket.filled.clear()
        await basket.filled.wait()
