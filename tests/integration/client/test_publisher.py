"""Publishing through the client: to a broker in this process and to a running server, with the same results."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from penstock import Message
from penstock.broker.broker import Broker
from penstock.client import OnLimit, PublisherFlowControl, PublishOptions, PubSub, Subscription, Topic
from penstock.errors import (
    FailedPrecondition,
    InvalidArgument,
    PublishingPaused,
    ResourceExhausted,
    SubscriptionFull,
    TopicNotFound,
    Unavailable,
)

DEADLINE = 20
LONG = 30.0
"""Longer than the deadline: what waits for it fails the test."""

Connect = Callable[[], PubSub]
Scenario = Callable[[PubSub, Topic], Awaitable[None]]


@pytest.fixture(params=["embedded", "server"])
def connect(request: pytest.FixtureRequest, project: str) -> Iterator[Connect]:
    """Makes clients of one broker."""
    if request.param == "server":
        url = request.getfixturevalue("shared_server").url
        yield lambda: PubSub(url, project=project)
    else:
        with Broker() as broker:
            yield lambda: PubSub(broker=broker)


def run(connect: Connect, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), connect() as pubsub:
            await scenario(pubsub, await pubsub.topic("orders").create())

    asyncio.run(main())


async def received(subscription: Subscription, count: int) -> list[bytes]:
    """What is in a subscription, in order; it is acked."""
    found: list[bytes] = []
    while len(found) < count:
        messages = await subscription.pull(1000, wait=5)
        assert messages, f"{len(found)} of {count} messages came"
        for message in messages:
            found.append(message.data)
            await message.ack_with_response()
    return found


class Gate:
    """A link whose publishes are counted, and wait while it is closed. What passes is really published."""

    def __init__(self, pubsub: PubSub) -> None:
        self.requests: list[list[bytes]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.arrived = asyncio.Event()
        self._publish = pubsub.link.publish
        pubsub.link.publish = self.publish  # type: ignore[method-assign]  # around the real one

    async def publish(self, topic: str, messages: list[Message]) -> list[str]:
        self.requests.append([message.data for message in messages])
        self.arrived.set()
        await self.is_open.wait()
        return await self._publish(topic, messages)

    async def request(self, number: int) -> None:
        """Return when so many requests have been made."""
        while len(self.requests) < number:
            self.arrived.clear()
            await self.arrived.wait()


# ── what is published arrives ────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_that_is_published_arrives_as_it_was_given(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        first = await topic.publish_message(
            b"paid", {"region": "eu"}, "customer-7", priority=9, ttl=timedelta(hours=1), producer_id="p", sequence=1
        )
        again = await topic.publish_message(b"paid", producer_id="p", sequence=1)
        second = await topic.publish_json({"number": 7}, {"kind": "json"})

        messages = [*await subscription.pull(10, wait=5)]
        assert again == first, "it is known by its producer and sequence"
        assert [message.id for message in messages] == [first, second]
        assert (messages[0].data, dict(messages[0].attributes), messages[0].ordering_key) == (
            b"paid",
            {"region": "eu"},
            "customer-7",
        )
        assert (json.loads(messages[1].data), dict(messages[1].attributes)) == ({"number": 7}, {"kind": "json"})

    run(connect, scenario)


def test_a_thousand_at_once_have_a_thousand_ids_in_order(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        gate = Gate(pubsub)
        ids = await asyncio.gather(*[topic.publish_message(b"%d" % number) for number in range(1000)])

        assert len(set(ids)) == 1000
        assert len(gate.requests) == 10
        assert sorted(await received(subscription, 1000)) == sorted(b"%d" % number for number in range(1000))

    run(connect, scenario)


def test_publish_many_returns_the_ids_in_order_and_makes_few_requests(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        gate = Gate(pubsub)
        keys = ["", "a", "b"]
        ids = await topic.publish_many(Message(b"%d" % number, ordering_key=keys[number % 3]) for number in range(2500))

        assert [len(request) for request in gate.requests] == [1000, 1000, 500]
        assert ids == sorted(set(ids))
        assert len(await received(subscription, 2500)) == 2500

    run(connect, scenario)


def test_a_large_message_and_a_large_batch_pass(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        gate = Gate(pubsub)
        await topic.publish_message(b"x" * 10 * 1024 * 1024)
        await topic.publish_many([Message(b"x" * 3 * 1024 * 1024)] * 4)

        assert [len(request) for request in gate.requests] == [1, 2, 2]

    run(connect, scenario)


# ── when it is sent ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lone_publish_waits_for_no_timer(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        topic.set_publish_options(PublishOptions(max_seconds=LONG))
        for key in ["", "k", "k", ""]:
            await topic.publish_message(b"x", ordering_key=key)

    run(connect, scenario)


def test_who_publishes_in_a_loop_leaves_room_for_others(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(20):
            await topic.publish_message(b"x")
        task.cancel()
        assert turns >= 20

    run(connect, scenario)


def test_while_a_batch_is_on_its_way_messages_gather(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        topic.set_publish_options(PublishOptions(max_seconds=LONG))
        gate = Gate(pubsub)
        gate.is_open.clear()
        futures = [topic.publish_message(b"first")]
        await gate.request(1)
        for number in range(150):
            futures.append(topic.publish_message(b"%d" % number))
            await asyncio.sleep(0)
        await gate.request(2)
        gate.is_open.set()
        await asyncio.gather(*futures)

        assert [len(request) for request in gate.requests] == [1, 100, 50]

    run(connect, scenario)


def test_messages_gather_for_max_seconds_at_most(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        topic.set_publish_options(PublishOptions(max_seconds=0.02))
        gate = Gate(pubsub)
        gate.is_open.clear()
        futures = [topic.publish_message(b"first")]
        await gate.request(1)
        futures.append(topic.publish_message(b"second"))
        await gate.request(2)  # though the first has no answer
        gate.is_open.set()
        await asyncio.gather(*futures)

    run(connect, scenario)


def test_of_one_key_one_request_is_on_its_way_and_the_order_holds(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        gate = Gate(pubsub)
        gate.is_open.clear()
        futures: list[Awaitable[Any]] = [topic.publish_message(b"%03d" % number, ordering_key="k") for number in range(250)]
        many = asyncio.ensure_future(topic.publish_many([Message(b"%03d" % number, {}, "k") for number in range(250, 300)]))
        await gate.request(1)
        await asyncio.sleep(0.02)  # as long as a timer takes: the time must not send what has to wait
        assert len(gate.requests) == 1
        futures += [many, *[topic.publish_message(b"%03d" % number, ordering_key="k") for number in range(300, 310)]]
        gate.is_open.set()
        await asyncio.gather(*futures)

        assert await received(subscription, 310) == [b"%03d" % number for number in range(310)]

    run(connect, scenario)


def test_flush_sends_what_gathers_and_returns_when_all_is_settled(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        await topic.flush()  # there is nothing: it returns
        topic.set_publish_options(PublishOptions(max_seconds=LONG))
        gate = Gate(pubsub)
        gate.is_open.clear()
        futures = [topic.publish_message(b"a")]
        await gate.request(1)
        futures.append(topic.publish_message(b"b"))
        flushing = asyncio.ensure_future(topic.flush())
        await gate.request(2)
        later = topic.publish_message(b"c")
        gate.is_open.set()
        await flushing

        assert [future.done() for future in futures] == [True, True]
        await later

    run(connect, scenario)


def test_close_publishes_what_waits(connect: Connect) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), connect() as other:
            topic = await other.topic("orders").create()
            subscription = await topic.subscription("billing").create()
            async with connect() as pubsub:
                for number in range(250):
                    _ = pubsub.topic("orders").publish_message(b"%d" % number, ordering_key="k")
            assert await received(subscription, 250) == [b"%d" % number for number in range(250)]

    asyncio.run(main())


def test_a_closed_client_refuses_and_one_that_is_opened_again_publishes(connect: Connect) -> None:
    pubsub = connect()

    async def once() -> None:
        with pytest.raises(FailedPrecondition, match=r"not open|is closed"):
            await pubsub.topic("orders").publish_message(b"x")
        async with asyncio.timeout(DEADLINE), pubsub:
            topic = await pubsub.topic("orders").create(exist_ok=True)
            await topic.publish_message(b"x")
        with pytest.raises(FailedPrecondition, match="is closed"):
            await topic.publish_message(b"x")
        with pytest.raises(FailedPrecondition, match="is closed"):
            await topic.publish_many([Message(b"x")])

    asyncio.run(once())
    asyncio.run(once())


def test_a_close_gives_up_what_it_cannot_publish(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE):
            pubsub = await connect().open()
            topic = await pubsub.topic("orders").create()
            gate = Gate(pubsub)
            gate.is_open.clear()
            futures = [topic.publish_message(b"%d" % number, ordering_key="k") for number in range(150)]
            await gate.request(1)
            topic.set_publish_options(PublishOptions(give_up_seconds=0.05))
            await pubsub.close()

            for error in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(error, Unavailable)

    asyncio.run(main())


# ── what is refused at once ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mistake_is_shown_where_it_is_made(subtests: pytest.Subtests) -> None:
    mistakes: list[dict[str, Any]] = [
        {"data": "text"},
        {"data": b""},
        {"data": b"x" * (10 * 1024 * 1024 + 1)},
        {"attributes": {"a": 1}},
        {"ordering_key": "k" * 1025},
        {"priority": 10},
        {"ttl": -1},
        {"deliver_at": "tomorrow"},
        {"producer_id": "p"},
    ]
    many: list[Any] = [[], None, b"x", Message(b"x"), [b"x"], [Message(b"x"), Message(b"")]]

    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        gate = Gate(pubsub)
        for mistake in mistakes:
            with subtests.test(mistake=[*mistake]), pytest.raises(InvalidArgument):
                _ = topic.publish_message(**{"data": b"x", **mistake})
        for messages in many:
            with subtests.test(messages=messages), pytest.raises(InvalidArgument):
                await topic.publish_many(messages)
        assert gate.requests == []

    run(PubSub, scenario)


def test_options_and_keys_are_checked() -> None:
    topic = PubSub().topic("orders")

    for key in (None, 1, b"k", "k" * 1025):
        with pytest.raises(InvalidArgument):
            topic.resume_publishing(key)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="PublishOptions"):
        topic.set_publish_options({"max_messages": 1})  # type: ignore[arg-type]
    assert topic.publish_options == PublishOptions()


# ── failure ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_key_is_paused_until_it_is_resumed(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, _: Topic) -> None:
        topic = pubsub.topic("later")
        futures = [topic.publish_message(b"%03d" % number, ordering_key="k") for number in range(150)]
        other = topic.publish_message(b"x", ordering_key="other")
        results = await asyncio.gather(*futures, return_exceptions=True)

        assert [type(result) for result in results] == [TopicNotFound] * 100 + [PublishingPaused] * 50
        with pytest.raises(TopicNotFound):
            await other
        await topic.create()
        subscription = await topic.subscription("late").create()
        with pytest.raises(PublishingPaused, match="Publishing paused for ordering key: k"):
            await topic.publish_message(b"x", ordering_key="k")
        with pytest.raises(PublishingPaused):
            await topic.publish_many([Message(b"x"), Message(b"x", ordering_key="k")])
        await topic.publish_message(b"unkeyed")
        topic.resume_publishing("k")
        await topic.publish_message(b"resumed", ordering_key="k")
        assert await received(subscription, 2) == [b"unkeyed", b"resumed"]

    run(connect, scenario)


def test_without_a_key_only_the_batch_fails(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, _: Topic) -> None:
        topic = pubsub.topic("later")
        with pytest.raises(TopicNotFound):
            await topic.publish_message(b"x")
        with pytest.raises(TopicNotFound):
            await topic.publish_many([Message(b"x")])
        await topic.create()
        await topic.publish_message(b"x")

    run(connect, scenario)


def test_a_failed_publish_is_raised_if_it_is_awaited_and_logged_if_not(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [record.message for record in caplog.records if "could not be published" in record.message]

    async def scenario(pubsub: PubSub, _: Topic) -> None:
        missing = pubsub.topic("missing")
        with pytest.raises(TopicNotFound):
            await missing.publish_message(b"awaited")
        assert logged() == []
        unwatched = missing.publish_message(b"not awaited")
        await missing.flush()
        assert unwatched.done()
        assert [line.split(":")[0] for line in logged()] == ["1 messages for topic missing could not be published"]

    run(connect, scenario)


def test_one_bad_message_does_not_harm_the_others_of_its_batch(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}

    async def scenario(pubsub: PubSub, _: Topic) -> None:
        await pubsub.schema("order").create("AVRO", json.dumps(schema))
        topic = await pubsub.topic("checked").create(schema="order")
        subscription = await topic.subscription("billing").create()
        bad = {17, 60}
        futures = [topic.publish_json({"number": "no" if number in bad else number}) for number in range(80)]
        results = await asyncio.gather(*futures, return_exceptions=True)

        assert {number for number, result in enumerate(results) if isinstance(result, InvalidArgument)} == bad
        assert len({result for result in results if isinstance(result, str)}) == 78
        numbers = [json.loads(data)["number"] for data in await received(subscription, 78)]
        assert numbers == [number for number in range(80) if number not in bad]
        assert [record.args for record in caplog.records if "refused" in record.message] == [], "they are raised"
        keyed = [topic.publish_json({"number": number}, ordering_key="k") for number in (1, "no", 3)]
        refused = await asyncio.gather(*keyed, return_exceptions=True)
        assert [type(one) for one in refused] == [InvalidArgument] * 3, "in order, or not at all"

    run(connect, scenario)


def test_of_a_batch_that_is_split_each_half_has_its_own_fate(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        publish = pubsub.link.publish

        async def refuse(name: str, messages: list[Message]) -> list[str]:
            data = [message.data for message in messages]
            if b"bad" in data:
                raise InvalidArgument("one of them is bad")
            return await publish("nowhere" if b"lost" in data else name, messages)

        pubsub.link.publish = refuse  # type: ignore[method-assign, assignment]  # around the real one
        futures = [topic.publish_message(data) for data in (b"a", b"b", b"c", b"bad", b"d", b"e", b"lost", b"lost")]
        results = await asyncio.gather(*futures, return_exceptions=True)

        kinds = [type(result) for result in results]
        assert kinds == [str, str, str, InvalidArgument, *[TopicNotFound] * 4]
        assert await received(subscription, 3) == [b"a", b"b", b"c"]

    run(connect, scenario)


async def full(topic: Topic) -> Subscription:
    """A subscription that refuses everything until it is emptied."""
    subscription = await topic.subscription("small", overflow="reject", max_messages=1).create()
    await topic.publish_message(b"first")
    return subscription


def test_what_may_pass_is_tried_until_it_does_and_keeps_its_order(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await full(topic)
        gate = Gate(pubsub)
        waiting = [topic.publish_message(b"second", ordering_key="k")]
        await gate.request(1)
        waiting.append(topic.publish_message(b"third", ordering_key="k"))
        await gate.request(2)
        assert [*map(sorted, gate.requests)] == [[b"second"], [b"second"]], "the third waits behind it"
        assert await received(subscription, 2) == [b"first", b"second"]
        assert await received(subscription, 1) == [b"third"]
        await asyncio.gather(*waiting)

    run(connect, scenario)


class Lines(logging.Handler):
    """What is logged, as text alone: a record would keep its error, and with it everything that failed, alive."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_patience_ends_and_the_log_says_so_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    loud: list[dict[str, Any]] = []
    handler = Lines()
    log = logging.getLogger("penstock.client")
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "propagate", False)

    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: loud.append(context))
        await full(topic)
        topic.set_publish_options(PublishOptions(give_up_seconds=0.15))
        futures = [topic.publish_message(b"%d" % number) for number in range(50)]
        with pytest.raises(SubscriptionFull):
            await futures[0]
        del futures  # nobody looks at the others
        gc.collect()

    run(connect, scenario)
    gc.collect()
    (line,) = handler.lines  # the one that was awaited raised its error, and is not logged too
    assert line.startswith("49 messages for topic orders could not be published: Subscription is full: small")
    assert loud == []


def test_no_answer_is_a_failure_in_the_end() -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        gate = Gate(pubsub)
        gate.is_open.clear()
        topic.set_publish_options(PublishOptions(give_up_seconds=0.05))
        with pytest.raises(Unavailable, match="may or may not be stored"):
            await topic.publish_message(b"x", ordering_key="k")
        with pytest.raises(PublishingPaused):
            await topic.publish_message(b"x", ordering_key="k")

    run(PubSub, scenario)


def test_who_stops_waiting_disturbs_nobody(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        subscription = await topic.subscription("billing").create()
        futures = [topic.publish_message(b"%d" % number) for number in range(3)]
        futures[1].cancel()
        many = asyncio.ensure_future(topic.publish_many([Message(b"3")]))
        await asyncio.sleep(0)
        many.cancel()
        with suppress(asyncio.CancelledError):
            await many
        await topic.flush()

        assert [future.cancelled() for future in futures] == [False, True, False]
        assert sorted(await received(subscription, 4)) == [b"0", b"1", b"2", b"3"]

    run(connect, scenario)


# ── flow control ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_flow_control_refuses(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        limits = PublisherFlowControl(max_outstanding_messages=2, max_outstanding_bytes=100, on_limit=OnLimit.ERROR)
        topic.set_publish_options(PublishOptions(flow_control=limits))
        first = topic.publish_message(b"x" * 99)
        with pytest.raises(ResourceExhausted, match="Flow control: max bytes exceeded"):
            _ = topic.publish_message(b"xx")
        second = topic.publish_message(b"x")
        with pytest.raises(ResourceExhausted, match="Flow control: max messages exceeded"):
            _ = topic.publish_message(b"x")
        with pytest.raises(ResourceExhausted):
            await topic.publish_many([Message(b"x")])
        await asyncio.gather(first, second)
        await topic.publish_message(b"x" * 500)  # alone, it passes

    run(connect, scenario)


def test_flow_control_lets_messages_wait_in_line(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        topic.set_publish_options(PublishOptions(flow_control=PublisherFlowControl(max_outstanding_messages=4)))
        gate = Gate(pubsub)
        gate.is_open.clear()
        futures = [topic.publish_message(b"%d" % number) for number in range(10)]
        await gate.request(1)
        turns = [asyncio.ensure_future(topic.flow_controlled()) for _ in range(2)]
        await asyncio.sleep(0)
        assert [len(request) for request in gate.requests] == [4]
        assert [turn.done() for turn in turns] == [False, False]
        gate.is_open.set()
        await asyncio.gather(*futures, *turns)
        assert [len(request) for request in gate.requests] == [4, 4, 2]
        await topic.flow_controlled()

    run(connect, scenario)


def test_who_awaits_room_never_has_more_outstanding_than_allowed(connect: Connect) -> None:
    async def scenario(pubsub: PubSub, topic: Topic) -> None:
        topic.set_publish_options(PublishOptions(flow_control=PublisherFlowControl(max_outstanding_messages=5)))
        outstanding: set[asyncio.Future[str]] = set()
        most = 0

        async def producer() -> None:
            nonlocal most
            for _ in range(20):
                await topic.flow_controlled()
                future = topic.publish_message(b"x")
                outstanding.add(future)
                future.add_done_callback(outstanding.discard)
                most = max(most, len([one for one in outstanding if not one.done()]))

        await asyncio.gather(*[producer() for _ in range(10)])
        await topic.flush()
        assert most == 5

    run(connect, scenario)
