"""The logs behind the hub: what is forwarded, written and read back, over a real broker on disk and in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest

from penstock import Message
from penstock.broker.catalog import Catalog
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, TopicNotFound, TransformFailed
from penstock.hub.core.messages import Position
from penstock.hub.core.rules import Binding, HubRules
from penstock.testing import ManualClock
from penstock.values.message import accept
from tests.integration.hub.feed_desk import ALICE, Desk, Inbox, in_loop, said
from tests.topic_rules import make_topics

WEEK = 7 * 86_400


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.long), "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "disk" else None


# ── forwarding ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_published_by_whatever_way_is_forwarded_once_and_in_order(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            await asyncio.to_thread(desk.topics.publish, "orders", [Message(b'"service"')])
            await desk.aio.publish(Catalog.topic, "orders", accept([Message(b'"door"')], 1))
            await desk.append(said("orders/eu", "client"))

            assert await desk.inbox.until(3) == ["service", "door", "client"]
            assert [message.topic for message in desk.inbox.messages] == ["orders", "orders", "orders/eu"]
            epoch = desk.binding.epoch
            assert [message.position for message in desk.inbox.messages] == [Position(epoch, offset) for offset in range(3)]
            assert desk.binding.next_offset == 3

    in_loop(scenario())


@pytest.mark.parametrize("window_bytes", [1 << 20, 0], ids=["from memory", "from the journal"])
def test_thousands_of_messages_come_in_order(place: Path | None, window_bytes: int) -> None:
    async def scenario() -> None:
        async with Desk(place, window_bytes=window_bytes) as desk:
            done: list[Position | PenstockError] = []
            for number in range(1_000):
                desk.feed.append(desk.binding, said("orders", f"client {number}"), done.append)
                if number % 100 == 0:
                    batch = [Message(b'"service %d"' % (number + one)) for one in range(100)]
                    await asyncio.to_thread(desk.topics.publish, "orders", batch)
            came = await desk.inbox.until(2_000)

            assert [one for one in came if one.startswith("client")] == [f"client {number}" for number in range(1_000)]
            assert [one for one in came if one.startswith("service")] == [f"service {number}" for number in range(1_000)]
            offsets = [message.position.offset for message in desk.inbox.messages if message.position is not None]
            assert offsets == [*range(2_000)]
            mine = [Position(desk.binding.epoch, at) for at, one in enumerate(came) if one.startswith("client")]
            await desk.until(lambda: len(done) == 1_000)
            assert done == mine

    in_loop(scenario())


def test_what_was_there_before_the_start_is_not_forwarded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path) as desk:
            await desk.append(said("orders", "before"))
            epoch = desk.binding.epoch
        async with Desk(tmp_path) as desk:
            assert (desk.binding.epoch, desk.binding.next_offset) == (epoch, 1)
            await desk.append(said("orders", "after"))
            assert await desk.inbox.until(1) == ["after"]
            assert await desk.history(desk.binding, 0, 2) == ["before", "after"]

    in_loop(scenario())


def test_a_log_in_memory_has_another_name_in_every_run() -> None:
    async def scenario() -> None:
        epochs = set()
        for _ in range(2):
            async with Desk(None, clock=ManualClock()) as desk:
                epochs.add(desk.binding.epoch)
        assert len(epochs) == 2

    in_loop(scenario())


def test_a_message_in_the_log_of_other_topics_is_passed_over_but_by_durable_ones(
    place: Path | None,
) -> None:
    """Who was away asks the log of a topic for what was missed, and no other: a message that is not in there would be a hole."""

    async def scenario() -> None:
        exact, wide = Binding("orders/eu/#", "eu"), Binding("orders/#", "orders")
        async with Desk(place, exact, wide) as desk:
            durable = Inbox()
            await desk.feed.retain(ALICE, "orders/eu/1", [exact, wide], durable.take)
            strayed = Message(b'"strayed"', {"hub.topic": "orders/eu/1"})
            await asyncio.to_thread(desk.topics.publish, "orders", [strayed, Message(b'"wide"', {"hub.topic": "orders/us"})])
            assert await desk.inbox.until(1) == ["wide"]
            assert await durable.until(1) == ["strayed"]
            await desk.append(said("orders/eu/1", "exact"), exact)
            assert await desk.inbox.until(2) == ["wide", "exact"]
            assert await durable.until(2) == ["strayed", "exact"]

    in_loop(scenario())


def test_a_durable_subscription_gets_what_is_published_while_it_is_made(place: Path | None) -> None:
    """Publishers count it from its request on."""

    async def scenario() -> None:
        async with Desk(place) as desk:
            await desk.append(said("orders/eu", "earlier"))
            await desk.inbox.until(1)
            durable = Inbox()
            async with desk.feed._turns.setdefault(ALICE, asyncio.Lock()):  # something else is done for the same actor
                making = asyncio.create_task(desk.feed.retain(ALICE, "orders/#", desk.bindings, durable.take))
                await asyncio.sleep(0)
                await desk.append(said("orders/eu", "meanwhile"))
                await desk.inbox.until(2)
            await making
            assert await durable.until(1) == ["meanwhile"]

    in_loop(scenario())


def test_a_message_of_another_topic_than_the_binding_covers_is_passed_over(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            other = {"hub.topic": "elsewhere"}
            for text in (b'"seen"', b'"not seen"'):
                attributes = other if b"not" in text else {}
                await asyncio.to_thread(desk.topics.publish, "orders", [Message(text, attributes)])
            await desk.append(said("orders", "last"))
            await asyncio.to_thread(desk.topics.publish, "orders", [Message(b'"not seen"', other)])

            assert await desk.inbox.until(2) == ["seen", "last"]
            await desk.until(lambda: desk.binding.next_offset == 4)
            assert await desk.history(desk.binding, 0, 4) == ["seen", "last"]

    in_loop(scenario())


def test_a_message_that_is_too_large_is_skipped_told_once_and_counted(
    place: Path | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Desk(place, limits=HubRules(max_message_bytes=1024)) as desk:
            for body in (b"x" * 1025, b"\xff" * 1000, b'"fits"'):
                await asyncio.to_thread(desk.topics.publish, "orders", [Message(body)])

            assert await desk.inbox.until(1) == ["fits"]
            assert await desk.history(desk.binding, 0, 3) == ["fits"]
            assert desk.feed.oversized == 2

    in_loop(scenario())
    assert [record.message.partition(" is ")[2] for record in caplog.records if "skipped" in record.message] == [
        "skipped: 1025 bytes, expected at most 1024",
        "skipped: 1349 bytes, expected at most 1024",
    ]


def test_two_patterns_may_share_a_log(place: Path | None) -> None:
    async def scenario() -> None:
        orders, shop = Binding("orders/#", "sales"), Binding("shop/#", "sales")
        async with Desk(place, orders, shop) as desk:
            await desk.append(said("orders/eu", "one"), orders)
            await desk.append(said("shop/eu", "two"), shop)

            assert sorted(await desk.inbox.until(2)) == ["one", "two"]
            assert await desk.history(orders, 0, 2) == ["one"]
            assert await desk.history(shop, 0, 2) == ["two"]

    in_loop(scenario())


def test_what_left_the_log_before_it_could_be_forwarded_is_counted_and_the_rest_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Desk(None) as desk:
            large = b'"' + b"x" * 262_144 + b'"'
            for _ in range(600):  # in one turn of the loop, and more than a broker in memory keeps
                desk.topics.publish("orders", [Message(large)])
            desk.topics.publish("orders", [Message(b'"last"')])
            await desk.until(lambda: desk.binding.next_offset == 601)

            assert desk.inbox.data[-1] == "last"
            assert desk.feed.missed == 601 - len(desk.inbox.messages) > 0
            assert set(desk.skipped) == {desk.binding}
            offsets = [message.position.offset for message in desk.inbox.messages if message.position is not None]
            assert offsets == [*range(desk.feed.missed, 601)]

    in_loop(scenario())
    assert "left the log before the hub could forward them" in caplog.text


# ── a topic that is deleted ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bound_topic_that_is_deleted_takes_nothing_until_it_is_there_again(
    place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.follower.RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        async with Desk(place) as desk:
            await desk.append(said("orders", "old"))
            await desk.inbox.until(1)
            before = desk.binding.epoch
            await asyncio.to_thread(desk.topics.unregister_topic, "orders")
            with pytest.raises(TopicNotFound, match="orders"):
                await desk.append(said("orders", "lost"))
            assert await desk.feed.read(desk.binding, 0, 1) is None

            await asyncio.to_thread(desk.topics.register_topic, "orders")
            position = await desk.append(said("orders", "new"))

            assert await desk.inbox.until(2) == ["old", "new"]
            assert position == Position(desk.binding.epoch, 0)
            assert desk.binding.epoch != before
            assert desk.binding.next_offset == 1

    in_loop(scenario())


def test_a_topic_of_the_hubs_own_is_made_again_by_itself(place: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.follower.RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        chat = Binding("chat/#", "hub.chat")
        async with Desk(place, chat) as desk:
            before = chat.epoch
            await asyncio.to_thread(desk.topics.unregister_topic, "hub.chat")
            await desk.until(lambda: chat.epoch != before)
            await desk.append(said("chat", "new"))

            assert await desk.inbox.until(1) == ["new"]

    in_loop(scenario())


@pytest.mark.parametrize("binding", ["hub", "hub.chat"])
def test_a_topic_of_the_hubs_own_that_somebody_else_makes_is_followed_too(
    binding: str, place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.follower.RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        async with Desk(place, Binding("chat/#", "hub.chat")) as desk:
            if binding == "hub.chat":
                monkeypatch.setattr(desk.feed, "_make_own", _nothing)  # as where the disk is full
                await asyncio.to_thread(desk.topics.unregister_topic, binding)
            await asyncio.to_thread(desk.topics.register_topic, binding)
            topic, bound = ("chat", desk.binding) if binding == "hub.chat" else ("news", desk.everything)
            await desk.append(said(topic, "new"), bound)

            assert await desk.inbox.until(1) == ["new"]

    in_loop(scenario())


async def _nothing(topic: str) -> None:
    pass


def test_what_was_lost_with_a_topic_is_told_and_counted() -> None:
    async def scenario() -> None:
        async with Desk(None) as desk:
            desk.topics.publish("orders", [Message(b"1")])
            desk.topics.unregister_topic("orders")  # in the same turn of the loop
            await desk.until(lambda: desk.skipped == [desk.binding])
            assert desk.feed.missed == 1
            assert desk.inbox.data == []

    in_loop(scenario())


def test_the_hubs_own_topics_are_kept_for_as_long_as_it_was_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Desk(tmp_path, Binding("chat/#", "hub.chat"), Binding("orders/#", "orders")) as desk:
            kept = {name: stream.retention for name, stream in desk.broker.catalog.topics.items()}
            week = WEEK * 1_000_000
            assert kept == {"hub.chat": week, "orders": None}
            await desk.append(said("elsewhere"), desk.everything)
            assert desk.broker.catalog.topics["hub"].retention == week

    in_loop(scenario())


def test_the_log_of_everything_is_made_when_it_is_needed(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            assert [*desk.broker.catalog.topics] == ["orders"]
            done: list[Position | PenstockError] = []
            for number in range(10):
                desk.feed.append(desk.everything, said("elsewhere", f"{number}"), done.append)
            assert await desk.inbox.until(10) == [f"{number}" for number in range(10)]
            await desk.until(lambda: len(done) == 10)
            assert done == [Position(desk.everything.epoch, number) for number in range(10)]
            assert desk.everything.epoch

    in_loop(scenario())


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_written_so_that_services_can_read_it(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            desk.topics.register_subscription("billing", "orders")
            await desk.append(said("orders/eu", "hello", name="id-1", expires_at=1_767_225_600_123_456))

            (got,) = await asyncio.to_thread(desk.topics.pull, "billing", 1)
            assert got.data == b'"hello"'
            assert got.attributes == {
                "hub.topic": "orders/eu",
                "hub.type": "note",
                "hub.from": ALICE,
                "hub.id": "id-1",
                "hub.expires": "1767225600123",
            }
            (message,) = desk.inbox.messages
            assert (message.message_id, message.sender, message.type) == ("id-1", ALICE, "note")
            assert message.expires_at == 1_767_225_600_123_000

    in_loop(scenario())


def test_what_the_log_does_not_take_is_told(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place) as desk:
            with pytest.raises(InvalidArgument, match="1025 bytes"):
                await desk.append(said("orders", name="x" * 1025))

    in_loop(scenario())


def test_who_is_told_of_a_write_and_fails_keeps_nobody_else_waiting(place: Path | None) -> None:
    async def scenario() -> None:
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        async with Desk(place) as desk:
            desk.feed.append(desk.binding, said("orders", "one"), lambda _: 1 / 0)  # type: ignore[arg-type]  # it fails on purpose
            assert (await desk.append(said("orders", "two"))).offset == 1
        assert [type(one) for one in failed] == [ZeroDivisionError]

    in_loop(scenario())


def test_the_rules_of_a_topic_hold_for_clients_too(place: Path | None) -> None:
    async def scenario() -> None:
        async with Desk(place, Binding("checked/#", "checked"), Binding("scripted/#", "scripted")) as desk:
            await asyncio.to_thread(desk.topics.unregister_topic, "checked")
            await asyncio.to_thread(desk.topics.unregister_topic, "scripted")
            await asyncio.to_thread(make_topics, desk.broker)
            outcomes: dict[bytes, Position | PenstockError] = {}
            given = (b'{"id": "one"}', b'"wrong"', b'{"id": "two"}'), (b'"a"', b'"drop"', b'"fail"', b'"b"')
            for binding, texts in zip(desk.bindings, given, strict=True):
                for text in texts:
                    message = msgspec.structs.replace(said(binding.stream), data=text)
                    desk.feed.append(binding, message, partial(outcomes.__setitem__, text))
            await desk.until(lambda: len(outcomes) == 7)

            assert isinstance(outcomes[b'"wrong"'], InvalidArgument)
            assert isinstance(outcomes[b'"drop"'], FailedPrecondition)
            assert isinstance(outcomes[b'"fail"'], TransformFailed)
            placed = [outcomes[text] for text in (b'{"id": "one"}', b'{"id": "two"}', b'"a"', b'"b"')]
            assert [one.offset for one in placed if isinstance(one, Position)] == [0, 1, 0, 1]

    in_loop(scenario())


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("window_bytes", [1 << 20, 0], ids=["from memory", "from the journal"])
def test_a_range_is_read_in_parts(place: Path | None, window_bytes: int) -> None:
    async def scenario() -> None:
        async with Desk(place, window_bytes=window_bytes) as desk:
            texts = [f"{number} " + "x" * 20_000 for number in range(40)]
            for text in texts:
                await desk.append(said("orders", text, name="n"))

            first = await desk.feed.read(desk.binding, 5, 40)
            assert first is not None
            assert 1 <= len(first[0]) <= 13
            assert await desk.history(desk.binding, 5, 40) == texts[5:]
            assert await desk.feed.read(desk.binding, 40, 40) == ([], 40)

    in_loop(scenario())


def test_what_is_not_in_the_log_as_a_whole_is_not_read(place: Path | None) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with Desk(place, clock=clock) as desk:
            desk.topics.register_topic("tick")
            await desk.append(said("orders", "old"))
            clock.advance(WEEK + 1)
            await desk.append(said("orders", "new"))
            await asyncio.to_thread(desk.topics.publish, "tick", [Message(b"tick")])
            for _ in range(3):
                await asyncio.to_thread(desk.broker.sync)

            assert await desk.history(desk.binding, 1, 2) == ["new"]
            assert await desk.feed.read(desk.binding, 0, 2) is None
            assert await desk.feed.read(desk.binding, 1, 3) is None
            assert await desk.feed.read(_as_of(desk.binding, "another"), 1, 2) is None

    in_loop(scenario())


def _as_of(binding: Binding, epoch: str) -> Binding:
    return Binding(binding.pattern, binding.stream, epoch=epoch)
