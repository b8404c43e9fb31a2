"""Durable subscriptions over a real broker: at least once, in order, across disconnects, restarts and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock import Message
from penstock.errors import TopicNotFound
from penstock.hub.broker.durable import RetainedSubscription, filter_of
from penstock.hub.core.dialects import SPECIFIED
from penstock.hub.core.messages import Position
from penstock.hub.core.rules import Binding, HubRules
from penstock.testing import ManualClock
from tests.integration.hub.feed_desk import ALICE, Desk, Inbox, in_loop, said

BOB = "@(browser/bob)"
DAY = 86_400


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.long), "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "disk" else None


async def retain(
    desk: Desk, pattern: str, *, address: str = ALICE, bindings: Sequence[Binding] | None = None
) -> tuple[Inbox, RetainedSubscription]:
    inbox = Inbox()
    return inbox, await desk.feed.retain(address, pattern, bindings or [desk.binding], inbox.take)


def attempts(desk: Desk) -> set[int]:
    """The number of the delivery of everything that is out."""
    with desk.broker.lock:
        queues = desk.broker.catalog.subscriptions.values()
        return {lease.attempt for queue in queues for lease in queue._leases.live()}


def test_what_was_not_acknowledged_comes_again_in_order_and_what_was_does_not(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            await desk.append(said("orders/eu", "before"))
            inbox, retained = await retain(desk, "orders/#")
            for number in range(5):
                await desk.append(said("orders/eu", f"{number}"))
            assert await inbox.until(5) == ["0", "1", "2", "3", "4"]
            assert inbox.messages[0].position == Position(desk.binding.epoch, 1)
            retained.ack(inbox.named("0", "2"))
            retained.close()
            retained.close()
            assert attempts(desk) == set()  # nothing is held any more
            await desk.append(said("orders/eu", "away"))

            inbox, retained = await retain(desk, "orders/#")
            assert await inbox.until(4) == ["1", "3", "4", "away"]
            assert attempts(desk) == {1}  # nobody has tried
            retained.ack(inbox.named("1", "3", "4", "away"))
            retained.close()

            inbox, retained = await retain(desk, "orders/#")
            await desk.append(said("orders/eu", "last"))
            assert await inbox.until(1) == ["last"]

    in_loop(scenario())


def test_it_outlives_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            inbox, retained = await retain(desk, "orders/#")
            await retain(desk, "orders/eu", address=BOB)
            for text in ("done", "seen"):
                await desk.append(said("orders/eu", text))
            await inbox.until(2)
            retained.ack(inbox.named("done"))
        async with Desk(tmp_path) as desk:
            assert sorted(desk.durable) == [(ALICE, "orders/#"), (BOB, "orders/eu")]
            await desk.append(said("orders/us", "away"))
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(2) == ["seen", "away"]
            inbox, _ = await retain(desk, "orders/eu", address=BOB)
            assert await inbox.until(2) == ["done", "seen"]

    in_loop(scenario())


def test_what_was_out_when_the_server_died_comes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "out"))
            await inbox.until(1)
            await asyncio.to_thread(desk.broker.close)  # before anybody could give anything back
        async with Desk(tmp_path) as desk:
            assert attempts(desk) == {1}
            await desk.append(said("orders", "new"))
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(2) == ["out", "new"]

    in_loop(scenario())


def test_the_later_connection_takes_over(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            first, old = await retain(desk, "orders/#")
            await desk.append(said("orders", "one"))
            await first.until(1)
            second, _ = await retain(desk, "orders/#")
            assert await second.until(1) == ["one"]
            old.ack(first.named("one"))
            old.close()
            await desk.append(said("orders", "two"))

            assert await second.until(2) == ["one", "two"]
            assert first.data == ["one"]
            third, _ = await retain(desk, "orders/#")
            assert await third.until(2) == ["one", "two"]

    in_loop(scenario())


def test_connections_that_come_at_once_take_over_in_their_order(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            inboxes = [Inbox() for _ in range(5)]
            await asyncio.gather(*(desk.feed.retain(ALICE, "orders/#", [desk.binding], inbox.take) for inbox in inboxes))
            await desk.append(said("orders", "one"))

            assert await inboxes[-1].until(1) == ["one"]
            assert [len(inbox.messages) for inbox in inboxes] == [0, 0, 0, 0, 1]

    in_loop(scenario())


def test_only_what_the_pattern_covers_is_delivered_and_nothing_else_piles_up(place: Path | None) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(place, clock=clock) as desk:
            inbox, retained = await retain(desk, "orders/+/new")
            over = clock.now() + 5_000_000
            for topic in ("orders", "orders/eu", "orders/eu/old", "orders/eu/new"):
                await desk.append(said(topic, topic))
            assert await inbox.until(1) == ["orders/eu/new"]
            retained.ack(inbox.named("orders/eu/new"))
            retained.close()
            await desk.append(said("orders/eu/new", "expired", expires_at=over))
            await asyncio.to_thread(desk.topics.publish, "orders", [Message(b'"of a service"')])
            clock.advance(10)

            inbox, retained = await retain(desk, "orders/+/new")
            await desk.append(said("orders/us/new", "last"))
            assert await inbox.until(1) == ["last"]
            retained.ack(inbox.named("last"))
            backlog = [queue.backlog for queue in desk.broker.catalog.subscriptions.values()]
            assert backlog == [0]

    in_loop(scenario())


def test_the_broker_keeps_only_what_may_be_wanted() -> None:
    filters = {
        "orders/eu": 'attributes."hub.topic" = "orders/eu"',
        "orders": 'attributes."hub.topic" = "orders" OR NOT attributes:"hub.topic"',
        "orders/#": 'hasPrefix(attributes."hub.topic", "orders") OR NOT attributes:"hub.topic"',
        "orders/+/new": 'hasPrefix(attributes."hub.topic", "orders")',
        "#": "",
        "+/eu": "",
        "o" * 256: f'hasPrefix(attributes."hub.topic", "{"o" * 180}")',
    }
    assert {pattern: filter_of(pattern, Binding("orders/#", "orders")) for pattern in filters} == filters


def test_no_more_is_out_than_was_agreed_over_all_subscriptions_of_an_actor(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place, limits=HubRules(max_unacked=10)) as desk:
            eu, from_eu = await retain(desk, "orders/eu")
            us, from_us = await retain(desk, "orders/us")
            for number in range(20):
                await desk.append(said("orders/eu", f"eu {number}"))
                await desk.append(said("orders/us", f"us {number}"))
            await desk.until(lambda: len(eu.messages) + len(us.messages) >= 10)
            await asyncio.to_thread(desk.broker.sync)
            assert len(eu.messages) + len(us.messages) == 10

            for count in (20, 30, 40):
                for retained in (from_eu, from_us):
                    retained.ack(eu.messages + us.messages)
                await desk.until(partial(lambda count: len(eu.messages) + len(us.messages) == count, count))
            assert eu.data == [f"eu {number}" for number in range(20)]
            assert us.data == [f"us {number}" for number in range(20)]

    in_loop(scenario())


def test_no_more_bytes_are_out_than_half_of_what_may_wait_for_a_connection(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place, limits=HubRules(max_outbox_bytes=20_000)) as desk:
            inbox, retained = await retain(desk, "orders/#")
            texts = ["x" * 3_000, "y" * 3_000, "z" * 50_000, *(f"{number}" for number in range(30))]
            for text in texts:
                await desk.append(said("orders", text, name=text[:3]))
            taken: list[str] = []
            while len(taken) < len(texts):
                await inbox.until(len(taken) + 1)
                news = inbox.messages[len(taken) :]
                assert len(news) == 1 or sum(len(message.data) + 320 for message in news) <= 10_000
                taken += [message.message_id for message in news]
                retained.ack(news)
            assert inbox.data == texts

    in_loop(scenario())


def test_who_acknowledges_nothing_is_sent_as_much_as_documented() -> None:
    """Half of what may wait, in bytes of frames; 1,000 messages would be more."""

    async def scenario() -> None:
        half = HubRules().max_outbox_bytes // 2
        for size, least in ((300, 0.85 * half), (3_000, 0.97 * half)):
            async with Desk(None) as desk:
                inbox, _ = await retain(desk, "orders/#")
                batch = [Message(b'"%s"' % (b"x" * size), {}) for _ in range(1_000)]
                await asyncio.to_thread(desk.topics.publish, "orders", batch)
                await inbox.until(1)
                await inbox.until(half // inbox.messages[0].weight)
                acked = [msgspec.structs.replace(message, ack_id="x" * 36) for message in inbox.messages]
                sent = sum(len(b"".join(SPECIFIED.parts(one, str))) + len('"@(browser/client-ui)"') for one in acked)
                assert least < sent <= half, (size, sent)

    in_loop(scenario())


@pytest.mark.parametrize("window_bytes", [1 << 20, 1 << 12], ids=["from memory", "from the journal"])
def test_a_long_backlog_comes_as_a_whole_and_in_order(tmp_path: Path, window_bytes: int) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path, window_bytes=window_bytes) as desk:
            inbox, retained = await retain(desk, "orders/#")
            retained.close()
            for first in range(0, 2_000, 500):
                batch = [Message(b'"%d"' % number, {"hub.id": f"{number}"}) for number in range(first, first + 500)]
                await asyncio.to_thread(desk.topics.publish, "orders", batch)
            inbox, retained = await retain(desk, "orders/#")
            done = 0
            while done < 2_000:
                await inbox.until(done + 1)
                retained.ack(inbox.messages[done:])
                done = len(inbox.messages)
            assert inbox.data == [f"{number}" for number in range(2_000)]

    in_loop(scenario())


def test_messages_with_the_same_id_are_acknowledged_one_by_one(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            inbox, retained = await retain(desk, "orders/#")
            for text in ("one", "two", "three"):
                await desk.append(said("orders", text, name="same"))
            await inbox.until(3)
            retained.ack(inbox.messages[1:2])
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(2) == ["one", "three"]

    in_loop(scenario())


def test_what_is_held_for_a_day_without_a_word_comes_again(place: Path | None) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(place, clock=clock) as desk:
            inbox, retained = await retain(desk, "orders/#")
            await desk.append(said("orders", "one"))
            await inbox.until(1)
            clock.advance(DAY)
            assert await inbox.until(2) == ["one", "one"]
            retained.ack(inbox.named("one"))
            retained.close()
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "two"))
            assert await inbox.until(1) == ["two"]

    in_loop(scenario())


def test_a_service_may_put_a_message_off_for_durable_ones_and_who_follows_the_log_hears_of_it_at_once(place: Path | None) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(place, clock=clock) as desk:
            inbox, _ = await retain(desk, "orders/#")
            later = Message(b'"later"', deliver_at=clock.now() / 1_000_000 + 60)
            await asyncio.to_thread(desk.topics.publish, "orders", [later, Message(b'"now"')])
            assert await desk.inbox.until(2) == ["later", "now"]
            assert await inbox.until(1) == ["now"]
            clock.advance(60)
            assert await inbox.until(2) == ["now", "later"]

    in_loop(scenario())


def test_one_that_is_ended_is_gone_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            inbox, _ = await retain(desk, "orders/#")
            await retain(desk, "orders/#", address=BOB)
            await desk.feed.release(ALICE, ["orders/#", "never/made"])
            await desk.append(said("orders", "one"))
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "two"))
            assert await inbox.until(1) == ["two"]
            await desk.feed.release(ALICE, ["orders/#"])
            assert len(desk.broker.catalog.subscriptions) == 1
        async with Desk(tmp_path) as desk:
            assert desk.durable == [(BOB, "orders/#")]

    in_loop(scenario())


def test_a_new_one_begins_where_forwarding_is_so_that_who_was_forwarded_to_has_no_hole() -> None:
    async def scenario() -> None:
        async with Desk(None) as desk:
            desk.topics.publish("orders", [Message(b'"one"'), Message(b'"two"')])  # nobody had a turn to forward them
            assert desk.inbox.data == []
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "three"))
            assert await inbox.until(3) == ["one", "two", "three"]

    in_loop(scenario())


def test_one_that_nobody_comes_back_for_ends_after_its_time(place: Path | None) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(place, clock=clock) as desk:
            _, retained = await retain(desk, "orders/#")
            await retain(desk, "orders/#", address=BOB)
            retained.close()
            for _ in range(32):
                clock.advance(DAY)
                await desk.feed.tidy()
            assert desk.expired == [(ALICE, "orders/#")]
            assert [name for name in desk.broker.catalog.subscriptions if "alice" in name] == []
            assert [name for name in desk.broker.catalog.subscriptions if "bob" in name] != []
            await retain(desk, "orders/#")
            await desk.feed.tidy()
            assert len(desk.broker.catalog.subscriptions) == 2

    in_loop(scenario())


def test_a_server_that_was_down_for_long_gives_its_clients_time_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(tmp_path, clock=clock) as desk:
            await retain(desk, "orders/#")
        clock.advance(100 * DAY)
        async with Desk(tmp_path, clock=clock) as desk:
            await desk.feed.tidy()
            assert len(desk.broker.catalog.subscriptions) == 1
            clock.advance(3_600)
            await desk.feed.tidy()
            assert len(desk.broker.catalog.subscriptions) == 0

    in_loop(scenario())


def test_it_goes_on_with_a_topic_that_was_deleted_and_made_again(place: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.follower.RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        async with Desk(place) as desk:
            inbox, retained = await retain(desk, "orders/#")
            await desk.append(said("orders", "old"))
            await inbox.until(1)
            await asyncio.to_thread(desk.topics.unregister_topic, "orders")
            await asyncio.to_thread(desk.topics.register_topic, "orders")
            await desk.append(said("orders", "new"))

            assert await inbox.until(2) == ["old", "new"]
            retained.ack(inbox.named("old", "new"))
            retained.close()
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "last"))
            assert await inbox.until(1) == ["last"]

    in_loop(scenario())


def make_again(desk: Desk, topic: str) -> None:
    """Delete a topic, and make one of the same name."""
    desk.topics.unregister_topic(topic)
    desk.topics.register_topic(topic)


def test_one_whose_topic_was_made_again_while_no_hub_ran_gets_all_that_is_in_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            await retain(desk, "orders/#")
            desk.feed.stop()
            await asyncio.to_thread(make_again, desk, "orders")
        async with Desk(tmp_path) as desk:
            await desk.append(said("orders", "one"))
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "two"))
            assert await inbox.until(2) == ["one", "two"]

    in_loop(scenario())


def test_one_whose_topic_was_made_again_holds_what_comes_before_its_actor_does(tmp_path: Path) -> None:
    """The topic itself keeps messages for a week; who comes back later finds what its own subscription holds."""
    clock = ManualClock()

    async def scenario() -> None:
        async with Desk(tmp_path, clock=clock) as desk:
            await retain(desk, "orders/#")
            desk.feed.stop()
            await asyncio.to_thread(make_again, desk, "orders")
        async with Desk(tmp_path, clock=clock) as desk:
            (queue,) = desk.broker.catalog.subscriptions.values()
            assert queue.detached
            await desk.feed.tidy()  # waits for the one that the start has begun
            (queue,) = desk.broker.catalog.subscriptions.values()
            assert not queue.detached
            await desk.append(said("orders", "one"))
            clock.advance(20 * DAY)
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(1) == ["one"]

    in_loop(scenario())


def test_who_comes_back_before_anybody_noticed_that_the_topic_was_made_again_misses_nothing(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            _, retained = await retain(desk, "orders/#")
            retained.close()
            make_again(desk, "orders")  # in the loop's own thread: the tail cannot look in between
            desk.topics.publish("orders", [Message(b'"one"')])
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(1) == ["one"]

    in_loop(scenario())


def test_who_comes_back_while_there_is_no_topic_misses_nothing_of_the_next(
    place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.follower.RETRY_SECONDS", 3_600)  # nobody looks but who comes back

    async def scenario() -> None:
        async with Desk(place) as desk:
            _, retained = await retain(desk, "orders/#")
            retained.close()
            await asyncio.to_thread(desk.topics.unregister_topic, "orders")
            with pytest.raises(TopicNotFound):
                await retain(desk, "orders/#")
            await asyncio.to_thread(desk.topics.register_topic, "orders")
            await asyncio.to_thread(desk.topics.publish, "orders", [Message(b'"one"')])
            inbox, _ = await retain(desk, "orders/#")
            assert await inbox.until(1) == ["one"]

    in_loop(scenario())


def test_one_that_somebody_detached_goes_on_from_now_and_repeats_nothing(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            inbox, retained = await retain(desk, "orders/#")
            await desk.append(said("orders", "old"))
            await inbox.until(1)
            retained.ack(inbox.named("old"))
            retained.close()
            (name,) = desk.broker.catalog.subscriptions
            await asyncio.to_thread(desk.broker.change, lambda catalog, now: catalog.detach_subscription(name, now))
            inbox, _ = await retain(desk, "orders/#")
            await desk.append(said("orders", "new"))
            assert await inbox.until(1) == ["new"]

    in_loop(scenario())


def test_one_that_somebody_deletes_under_its_actor_is_made_again(place: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            inbox, _ = await retain(desk, "orders/#")
            (name,) = desk.broker.catalog.subscriptions
            await asyncio.to_thread(desk.topics.unregister_subscription, name)
            await desk.until(lambda: "is gone" in caplog.text)
            await desk.feed.tidy()
            await desk.append(said("orders", "one"))
            assert await inbox.until(1) == ["one"]

    in_loop(scenario())


def test_one_whose_topic_is_missing_is_refused_and_leaves_nothing_behind(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            await asyncio.to_thread(desk.topics.unregister_topic, "orders")
            with pytest.raises(TopicNotFound):
                await retain(desk, "orders/#")
            assert not desk.broker.catalog.documents
            assert not desk.broker.catalog.subscriptions

    in_loop(scenario())


def test_one_that_cannot_be_made_in_all_its_logs_leaves_nothing_behind_in_any(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place, Binding("orders/#", "orders"), Binding("bills/#", "bills")) as desk:
            await retain(desk, "orders/#", bindings=[desk.bindings[0]])
            before = {*desk.broker.catalog.documents}
            await asyncio.to_thread(desk.topics.unregister_topic, "bills")
            with pytest.raises(TopicNotFound):
                await retain(desk, "#", bindings=[*desk.bindings, desk.everything])
            assert {*desk.broker.catalog.documents} == before
            assert len(desk.broker.catalog.subscriptions) == 1

    in_loop(scenario())


def test_one_that_cannot_be_looked_after_keeps_nobody_else_from_it(place: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with Desk(place, Binding("orders/#", "orders"), Binding("bills/#", "bills"), clock=clock) as desk:
            await retain(desk, "orders/#", bindings=[desk.bindings[0]])
            _, retained = await retain(desk, "bills/#", bindings=[desk.bindings[1]])
            retained.close()
            await asyncio.to_thread(desk.topics.unregister_topic, "orders")
            clock.advance(31 * DAY)
            await desk.feed.tidy()
            assert desk.expired == [(ALICE, "bills/#")]
            assert "could not be looked after" in caplog.text

    in_loop(scenario())


def test_what_waits_in_the_log_of_everything_comes_though_the_topic_has_a_history_by_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            _, retained = await retain(desk, "chat/#", bindings=[desk.everything])
            retained.close()
            await desk.append(said("chat/a", "one"), desk.everything)
        async with Desk(tmp_path, Binding("chat/#", "hub.chat")) as desk:
            inbox, retained = await retain(desk, "chat/#")
            await desk.append(said("chat/a", "two"))
            assert sorted(await inbox.until(2)) == ["one", "two"]
            retained.ack(inbox.named("one", "two"))
            retained.close()
            inbox, _ = await retain(desk, "chat/#")
            await desk.append(said("chat/a", "three"))
            assert await inbox.until(1) == ["three"]
            await desk.feed.release(ALICE, ["chat/#"])
            assert not desk.broker.catalog.documents

    in_loop(scenario())


def test_a_pattern_may_need_several_logs(place: Path | None) -> None:
    async def scenario() -> None:
        orders, shop = Binding("orders/#", "sales"), Binding("shop/#", "sales")
        async with Desk(place, orders, shop) as desk:
            inbox, retained = await retain(desk, "#", bindings=[orders, shop, desk.everything])
            await desk.append(said("orders/eu", "one"), orders)
            await desk.append(said("shop/eu", "two"), shop)
            await desk.append(said("elsewhere", "three"), desk.everything)
            assert sorted(await inbox.until(3)) == ["one", "three", "two"]
            retained.ack(inbox.named("one", "two", "three"))
            await desk.until(lambda: not any(queue.backlog for queue in desk.broker.catalog.subscriptions.values()))
            assert len(inbox.messages) == 3

    in_loop(scenario())


def test_its_name_says_whose_it_is_and_fits_the_broker(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            long = f"@({'k' * 120}/{'n' * 130})"
            for address in (ALICE, long):
                await retain(desk, "orders/+/#", address=address)
                await retain(desk, "orders/" + "x" * 249, address=address)
            names = [*desk.broker.catalog.subscriptions]
            assert len(set(names)) == 4
            assert names[0].startswith("hub.browser.alice.orders.+.~.")
            assert all(len(name) <= 255 and "/" not in name for name in names)

    in_loop(scenario())
