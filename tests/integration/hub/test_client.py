"""HubClient against a real server: every call, and what becomes of them when connections break."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web

from penstock.access import Keyring
from penstock.client import ConnectionNews, Gap, HubClient, HubMessages, Position, Presence
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import (
    ActorNotFound,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    ServerUnreachable,
    Unauthenticated,
    Unavailable,
)
from penstock.extras import how_to_install
from penstock.hub.client import link
from penstock.hub.core import messages as wire
from penstock.testing import ManualClock
from penstock.testing.proxy import Direction, FaultyProxy
from penstock.testing.server import LocalServer
from tests.ports import free_port

SECONDS = 60.0
ANN, BOB = "@(browser/ann)", "@(service/bob)"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """Shared: every test leaves nobody connected and no durable subscription behind."""
    with LocalServer(hub_history=("chat",)) as server:
        yield server


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(90):
            await scenario

    asyncio.run(within())


class News:
    """What a client says of its connection."""

    def __init__(self) -> None:
        self.heard: list[ConnectionNews] = []
        self._came = asyncio.Event()

    def __call__(self, news: ConnectionNews) -> None:
        self.heard.append(news)
        self._came.set()

    async def until(self, is_so: Callable[[list[ConnectionNews]], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_so(self.heard):
                self._came.clear()
                await self._came.wait()

    async def again(self, connections: int = 2) -> None:
        """Return when there has been a connection so many times."""
        await self.until(lambda heard: sum(one.is_connected for one in heard) >= connections)


def give(hub: HubClient, seconds: float) -> None:
    """Change the timeout of a client that is open: opening it has all the time it needs."""
    hub._timeout = hub._link._timeout = seconds


async def data(messages: HubMessages, count: int) -> list[Any]:
    """The data of the next messages."""
    return [(await messages.get(SECONDS)).data for _ in range(count)]


async def has_nothing(messages: HubMessages, hub: HubClient, topic: str) -> None:
    """Nothing more comes: the next message is one that is published now."""
    await hub.publish(topic, "the end")
    assert (await messages.get(SECONDS)).data == "the end"


@asynccontextmanager
async def through_a_proxy(server: LocalServer, **options: Any) -> AsyncIterator[tuple[HubClient, FaultyProxy, News]]:
    """A client whose connection can be broken."""
    news = News()
    with FaultyProxy("127.0.0.1", server.server.port) as proxy:
        async with HubClient(f"http://{proxy.address}", on_connection=news, **options) as hub:
            yield hub, proxy, news


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_published_reaches_subscribers_as_it_was_published(server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            HubClient(server.url, address=ANN) as ann,
            HubClient(f"{server.url}/".replace("http", "ws"), address=BOB) as bob,
            ann.subscribe("orders/#") as messages,
            ann.subscribe("orders/eu") as exact,
        ):
            published = await bob.publish("orders/eu", {"id": 1, "ü": [None, 1.5]}, type="order:created")
            found = await messages.get(SECONDS)

            assert (published.topic, published.subscriber_count) == ("orders/eu", 1)
            assert (found.type, found.sender, found.topic) == ("order:created", BOB, "orders/eu")
            assert (found.data, found.gap) == ({"id": 1, "ü": [None, 1.5]}, None)
            assert found.position == published.position == messages.position
            assert found.id == published.message_id
            assert found.sent_at is not None
            assert await data(exact, 1) == [found.data]
            await has_nothing(messages, bob, "orders/eu")

    run(scenario())


def test_data_can_be_had_as_a_type_of_ones_own(server: LocalServer) -> None:
    @dataclass
    class Order:
        id: int

    async def scenario() -> None:
        async with HubClient(server.url) as hub, hub.subscribe("orders") as messages:
            await hub.publish("orders", {"id": 7})
            await hub.publish("orders", {"id": "seven"})

            assert (await messages.get(SECONDS)).decode(Order) == Order(7)
            with pytest.raises(InvalidArgument, match="does not fit"):
                (await messages.get(SECONDS)).decode(Order)

    run(scenario())


def test_an_actor_is_sent_to_and_broadcasts_reach_those_with_a_capability() -> None:
    async def scenario(url: str) -> None:
        async with HubClient(url, address=ANN, capabilities=("chat",)) as ann, HubClient(url, address=BOB) as bob:
            async with ann.direct() as messages:
                await bob.send(ANN, "hello", type="greeting")
                assert await bob.broadcast({"n": 1}, type="notice", capability="chat") == 1
                assert await bob.broadcast(None, capability="dance") == 0
                assert await ann.broadcast("me too", include_self=True) == 2

                found = [await messages.get(SECONDS) for _ in range(3)]
                assert [(one.type, one.data, one.sender, one.topic) for one in found] == [
                    ("greeting", "hello", BOB, None),
                    ("notice", {"n": 1}, BOB, None),
                    ("message", "me too", ANN, None),
                ]
            with pytest.raises(ActorNotFound, match="nobody/here"):
                await bob.send("@(nobody/here)", 1)

    with LocalServer() as own:  # everybody is counted
        run(scenario(own.url))


def test_who_and_what_is_there_can_be_asked() -> None:
    async def scenario(url: str) -> None:
        async with (
            HubClient(url, address=ANN, capabilities=("chat", "ui"), metadata={"room": 7}) as ann,
            HubClient(url, address=BOB) as bob,
            ann.subscribe("chat/#"),
            bob.subscribe("news"),
        ):
            assert [one.address for one in await bob.actors()] == [ANN, BOB]
            (found,) = await bob.discover("browser", capabilities=["ui"], metadata={"room": 7})
            assert (found.address, found.capabilities, found.metadata) == (ANN, ("chat", "ui"), {"room": 7})
            assert await bob.discover(capabilities=["dance"]) == []
            assert [(one.name, one.subscriber_count) for one in await bob.topics()] == [("chat/#", 1), ("news", 1)]
            assert [one.name for one in await bob.topics("ne", limit=1)] == ["news"]
            assert await ann.presence("news") == [BOB]
            plain, kept = await ann.topic_info("news"), await ann.topic_info("chat/lobby")
            assert (plain.subscriber_count, plain.exact_count, plain.has_history, plain.bound_to) == (1, 1, False, None)
            assert (kept.subscriber_count, kept.exact_count, kept.has_history, kept.bound_to) == (1, 0, True, "hub.chat")

    with LocalServer(hub_history=("chat",)) as own:  # everybody and everything is listed
        run(scenario(own.url))


def test_presence_is_known_and_told(server: LocalServer) -> None:
    async def scenario() -> None:
        told: list[Presence] = []
        async with (
            HubClient(server.url, address=ANN) as ann,
            HubClient(server.url, address=BOB) as bob,
            ann.subscribe("chat", presence=True, on_presence=told.append) as messages,
        ):
            assert messages.present == {ANN}
            async with bob.subscribe("chat"):
                await has_nothing(messages, ann, "chat")
                assert messages.present == {ANN, BOB}
            await has_nothing(messages, ann, "chat")
            assert messages.present == {ANN}

        assert [(one.event, one.actors) for one in told] == [("list", (ANN,)), ("join", (BOB,)), ("leave", (BOB,))]

    run(scenario())


def test_an_address_is_made_up_when_none_is_given(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as one, HubClient(server.url) as other:
            assert one.address != other.address
            assert one.address.startswith("@(penstock/")
            assert one.is_connected

    run(scenario())


def test_two_subscriptions_to_the_same_pattern_both_receive_and_end_by_themselves(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as hub, hub.subscribe("news") as first:
            async with hub.subscribe("news") as second:
                await hub.publish("news", 1)
                assert await data(first, 1) == await data(second, 1) == [1]
            await hub.publish("news", 2)
            assert await data(first, 1) == [2]
            with pytest.raises(InvalidArgument, match="durable and not"):
                async with hub.subscribe("news", durable=True):
                    pass

    run(scenario())


def test_a_subscription_that_is_left_ends_at_the_hub_and_its_iterator_too(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as hub:
            async with hub.subscribe("news") as messages:
                reading = asyncio.create_task(anext(messages))
                await asyncio.sleep(0)
            with pytest.raises(StopAsyncIteration):
                await reading
            assert await hub.topics("news") == []
            assert (await hub.publish("news")).subscriber_count == 0
            with pytest.raises(FailedPrecondition, match="used before"):
                await messages.__aenter__()

    run(scenario())


def test_a_wrong_call_is_refused_and_the_client_goes_on(server: LocalServer, subtests: pytest.Subtests) -> None:
    calls: list[tuple[Callable[[HubClient], Awaitable[object]], str]] = [
        (lambda hub: hub.publish("orders/#", 1), "one topic"),
        (lambda hub: hub.publish("a b", 1), "'a b'"),
        (lambda hub: hub.publish("a", object()), "JSON"),
        (lambda hub: hub.publish("a", 1, type="hub:error"), "hub:"),
        (lambda hub: hub.publish("a", 1, type=""), "1 to 256"),
        (lambda hub: hub.publish("a", "x" * 2**21), "at most 1048576"),
        (lambda hub: hub.send("ann", 1), "@(browser/ui)"),
        (lambda hub: hub.topic_info("orders/#"), "one topic"),
        (lambda hub: hub.presence("a b"), "the hub refuses"),
        (lambda hub: hub.publish("a", 1, type="\ud800"), "hub:publish cannot be written as JSON"),
        (lambda hub: hub.discover(metadata={"a": object()}), "hub:discover cannot be written as JSON"),
        (lambda _: HubClient(server.url, metadata={"a": object()}).open(), "hub:register cannot be written as JSON"),
    ]

    async def scenario() -> None:
        async with HubClient(server.url) as hub:
            for call, text in calls:
                with subtests.test(text=text):
                    with pytest.raises(InvalidArgument) as refused:
                        await call(hub)
                    assert text in str(refused.value)
                    await hub.publish("fine")

    run(scenario())


WRONG_CLIENTS: list[dict[str, Any]] = [
    {"address": "ann"},
    {"address": "@(Browser/Ann)"},
    {"capabilities": ()},
    {"capabilities": "chat"},
    {"ttl": 0},
    {"ttl": 4000},
    {"timeout": 0},
    {"server": "ftp://example.org"},
    {"server": "ws://user:secret@example.org/ws"},
    {"server": "ws://example.org/ws?token=secret"},
    {"server": "ws://:x"},
    {"server": ""},
]
WRONG_SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"topic": "a b"},
    {"topic": "#/a"},
    {"durable": True, "since": Position("e", 1)},
    {"max_waiting": 0},
]


def test_a_client_or_a_subscription_that_cannot_be_is_refused_without_telling_secrets(subtests: pytest.Subtests) -> None:
    for options in WRONG_CLIENTS:
        with subtests.test(options=options):
            with pytest.raises(InvalidArgument) as refused:
                HubClient(**options)
            assert "secret" not in str(refused.value)
    for options in WRONG_SUBSCRIPTIONS:
        with subtests.test(options=options), pytest.raises(InvalidArgument):
            HubClient().subscribe(**{"topic": "a", **options})
    with pytest.raises(InvalidArgument, match="max_waiting"):
        HubClient().direct(max_waiting=0)


# ── connections that break ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_published_during_a_break_is_brought_exactly_where_the_topic_keeps_a_history(server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            through_a_proxy(server) as (ann, proxy, news),
            HubClient(server.url) as bob,
            ann.subscribe("chat/#") as messages,
            ann.subscribe("chat/lobby") as lobby,
            ann.subscribe("chat/attic") as untouched,
        ):
            for number in range(10):
                await bob.publish("chat/lobby" if number % 2 else "chat/garden", number)
            await data(messages, 5)  # the others wait here, and must not come again

            proxy.refuse()
            proxy.cut()
            await news.until(lambda heard: not heard[-1].is_connected)
            for number in range(10, 20):
                await bob.publish("chat/lobby" if number % 2 else "chat/garden", number)
            await bob.publish("chat/attic", 20)
            proxy.accept()
            await news.again()
            await bob.publish("chat/lobby", 21)

            found = [await messages.get(SECONDS) for _ in range(17)]
            assert [one.data for one in found] == [*range(5, 22)]
            assert [one.gap for one in found] == [None] * 17
            assert await data(lobby, 11) == [*range(1, 20, 2), 21]
            first = await untouched.get(SECONDS)  # what came before its first message is not missed either
            assert (first.data, first.gap) == (20, None)
            await has_nothing(messages, bob, "chat/x")

    run(scenario())


@pytest.mark.parametrize(("pattern", "topic"), [("news", "news"), ("news/#", "news/eu"), ("#", "chat/lobby")])
def test_what_cannot_be_brought_is_told_at_once_and_on_the_next_message(
    server: LocalServer, pattern: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        gaps: asyncio.Queue[Gap] = asyncio.Queue()
        async with (
            through_a_proxy(server) as (ann, proxy, news),
            HubClient(server.url) as bob,
            ann.subscribe(pattern, on_gap=gaps.put_nowait) as messages,
        ):
            await bob.publish(topic, "before")
            before = await messages.get(SECONDS)
            proxy.refuse()
            proxy.cut()
            await news.until(lambda heard: not heard[-1].is_connected)
            await bob.publish(topic, "missed")
            proxy.accept()

            gap = await asyncio.wait_for(gaps.get(), SECONDS)
            assert gap == Gap(pattern, before.position)
            await bob.publish(topic, "after")
            await bob.publish(topic, "later")
            after, later = await messages.get(SECONDS), await messages.get(SECONDS)
            assert (after.data, after.gap, later.data, later.gap) == ("after", gap, "later", None)
        assert any("may be missing" in record.message for record in caplog.records)

    with caplog.at_level(logging.WARNING, "penstock.client"):
        run(scenario())


def test_a_break_in_which_nothing_was_published_is_no_gap_even_without_a_history(server: LocalServer) -> None:
    async def scenario() -> None:
        async with through_a_proxy(server) as (ann, proxy, news), HubClient(server.url) as bob, ann.subscribe("news") as messages:
            await bob.publish("news", 1)
            assert await data(messages, 1) == [1]
            proxy.cut()
            await news.again()
            await bob.publish("news", 2)

            found = await messages.get(SECONDS)
            assert (found.data, found.gap) == (2, None)

    run(scenario())


def test_one_that_returns_later_with_its_position_gets_what_it_missed(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as bob:
            async with HubClient(server.url) as ann, ann.subscribe("chat/lobby") as messages:
                await bob.publish("chat/lobby", 0)
                since = (await messages.get(SECONDS)).position
            for number in (1, 2, 3):
                await bob.publish("chat/lobby", number)

            async with HubClient(server.url) as ann, ann.subscribe("chat/lobby", since=since) as messages:
                assert await data(messages, 3) == [1, 2, 3]
            async with HubClient(server.url) as ann, ann.subscribe("chat/lobby", since=Position("long-gone", 5)) as messages:
                await bob.publish("chat/lobby", 4)
                found = await messages.get(SECONDS)
                assert (found.data, found.gap) == (4, Gap("chat/lobby", Position("long-gone", 5)))

    run(scenario())


def test_a_publish_whose_answer_was_lost_is_sent_again_and_forwarded_once(server: LocalServer) -> None:
    async def scenario() -> None:
        async with through_a_proxy(server) as (ann, proxy, _), HubClient(server.url) as bob, bob.subscribe("news") as messages:
            proxy.swallow(Direction.DOWN)
            publishing = asyncio.create_task(ann.publish("news", "once"))
            assert await data(messages, 1) == ["once"]
            proxy.heal()
            proxy.cut()

            assert (await publishing).subscriber_count == 1
            await has_nothing(messages, bob, "news")

    run(scenario())


def test_a_message_to_an_actor_is_not_sent_twice_and_nobody_pretends_to_know(server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            through_a_proxy(server) as (ann, proxy, news),
            HubClient(server.url, address=BOB) as bob,
            bob.direct() as messages,
        ):
            proxy.swallow(Direction.DOWN)
            sending = asyncio.create_task(ann.send(BOB, "once"))
            assert await data(messages, 1) == ["once"]
            proxy.refuse()
            proxy.cut()

            with pytest.raises(Unavailable, match="may or may not"):
                await sending
            proxy.heal()
            proxy.accept()
            await news.again()
            await ann.send(BOB, "again")
            assert await data(messages, 1) == ["again"]

    run(scenario())


def test_calls_wait_for_a_connection_and_give_up_in_time(server: LocalServer) -> None:
    async def scenario() -> None:
        async with through_a_proxy(server) as (ann, proxy, news):
            proxy.refuse()
            proxy.cut()
            await news.until(lambda heard: not heard[-1].is_connected)
            give(ann, 0.1)
            with pytest.raises(ServerUnreachable):
                await ann.publish("late", 1)
            with pytest.raises(ServerUnreachable):
                async with ann.subscribe("late"):
                    pass
            give(ann, SECONDS)
            proxy.accept()
            await news.again()
            assert (await ann.publish("late", 2)).subscriber_count == 0
            assert await ann.topics("late") == []

    run(scenario())


def test_a_call_that_waits_through_a_break_succeeds_after_it(server: LocalServer) -> None:
    async def scenario() -> None:
        async with through_a_proxy(server) as (ann, proxy, news):
            proxy.refuse()
            proxy.cut()
            await news.until(lambda heard: not heard[-1].is_connected)
            publishing = asyncio.create_task(ann.publish("news", 1))
            subscribing = asyncio.create_task(ann.subscribe("news").__aenter__())
            await asyncio.sleep(0)
            proxy.accept()

            assert (await publishing).topic == "news"
            await subscribing
            assert [one.name for one in await ann.topics("news")] == ["news"]

    run(scenario())


def test_a_connection_that_died_without_a_word_is_noticed_and_replaced(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "HEARTBEAT_SECONDS", 0.1)

    async def scenario() -> None:
        async with through_a_proxy(server) as (ann, proxy, news), ann.subscribe("chat/lobby") as messages:
            proxy.swallow()
            give(ann, 0.2)
            await news.until(lambda heard: not heard[-1].is_connected)
            give(ann, SECONDS)
            assert "nothing came" in news.heard[-1].problem
            proxy.heal()
            proxy.cut()
            await news.again()
            await ann.publish("chat/lobby", "alive")
            assert await data(messages, 1) == ["alive"]

    run(scenario())


def test_a_registration_is_renewed_for_as_long_as_the_client_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "RENEW_AT", 0.001)  # of its minute
    clock = ManualClock()

    async def scenario(server: LocalServer) -> None:
        host = server.server.hub
        assert host is not None
        registry = host.hub.state.registry
        async with HubClient(server.url, address=ANN, ttl=60), asyncio.timeout(SECONDS):
            for _ in range(3):
                clock.advance(50)
                actor = registry.get(ANN, clock.now())
                assert actor is not None
                while actor.expires_at < clock.now() + 60 * SECOND:  # noqa: ASYNC110  # nobody tells of it
                    await asyncio.sleep(0.01)

    with LocalServer(clock=clock) as own:
        run(scenario(own))


def test_a_server_that_stops_is_waited_for_and_one_that_comes_back_is_found(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        port, news = free_port(), News()
        server = await asyncio.to_thread(LocalServer(port=port).start)
        async with HubClient(server.url, on_connection=news) as hub, hub.subscribe("news") as messages:
            await asyncio.to_thread(server.stop)
            await news.until(lambda heard: not heard[-1].is_connected)
            assert not hub.is_connected
            server = await asyncio.to_thread(LocalServer(port=port).start)
            try:
                await news.again()
                await hub.publish("news", "back")
                found = await messages.get(SECONDS)
                assert (found.data, found.gap is not None) == ("back", True)
            finally:
                closing = asyncio.create_task(hub.close())
                await closing
                await asyncio.to_thread(server.stop)
        assert next(one.retry_in for one in news.heard if not one.is_connected) == 0

    run(scenario())


def test_a_first_connection_that_fails_is_told() -> None:
    async def scenario() -> None:
        for url in ("http://127.0.0.1:1", "ws://127.0.0.1:1/ws"):
            with pytest.raises(ServerUnreachable, match="connection refused"):
                await HubClient(url).open()

    run(scenario())


def test_a_missing_library_is_told_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    async def scenario() -> None:
        with pytest.raises(FailedPrecondition) as refused:
            async with HubClient():
                pass
        assert refused.value.hint == how_to_install("hub")

    run(scenario())


def test_a_closed_client_says_so(server: LocalServer) -> None:
    async def scenario() -> None:
        hub = HubClient(server.url)
        with pytest.raises(FailedPrecondition, match="not open"):
            await hub.publish("a", 1)
        for messages in (hub.subscribe("a"), hub.direct()):
            with pytest.raises(FailedPrecondition, match="not open"):
                await messages.__aenter__()
        async with hub:
            pass
        await hub.close()
        with pytest.raises(FailedPrecondition, match="closed"):
            await hub.publish("a", 1)
        with pytest.raises(FailedPrecondition, match="opened before"):
            await hub.open()

    run(scenario())


def test_iterators_end_quietly_when_their_client_is_closed(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as hub, hub.subscribe("news") as messages, hub.direct() as direct:

            async def read(stream: HubMessages) -> list[Any]:
                return [message.data async for message in stream]

            reading = [asyncio.create_task(read(stream)) for stream in (messages, direct)]
            await hub.publish("news", 1)
            await hub.close()

            assert [await one for one in reading] == [[1], []]

    run(scenario())


def test_a_registration_that_ran_out_is_made_again_with_its_subscriptions(server: LocalServer) -> None:
    """As after a night in which the machine slept: nothing was renewed."""

    async def scenario() -> None:
        news = News()
        async with HubClient(server.url, address=ANN, on_connection=news) as hub, hub.subscribe("chat/x") as messages:
            await hub._link.tell(wire.Unregister())
            await news.again()
            await hub.publish("chat/x", "still here")
            assert await data(messages, 1) == ["still here"]

    run(scenario())


def test_a_function_that_gives_no_token_is_told_and_asked_again_later(server: LocalServer) -> None:
    answers = iter([1, 0, 1])

    def token() -> str:
        return str(1 // next(answers))

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="token failed: ZeroDivisionError"):
            async with HubClient(server.url, token=lambda: str(1 // 0)):
                pass
        async with through_a_proxy(server, token=token) as (hub, proxy, news):
            proxy.cut()
            await news.again()
            assert any("ZeroDivisionError" in one.problem for one in news.heard)
            await hub.publish("news")

    run(scenario())


def test_something_that_answers_but_is_no_hub_is_told_in_time() -> None:
    async def mute(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    async def chatter(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello?")
        await socket.receive()
        return socket

    async def scenario() -> None:
        app = web.Application()
        app.router.add_get("/mute", mute)
        app.router.add_get("/chatter", chatter)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            for path, text in (("mute", "does not answer"), ("chatter", "not a hub"), ("other", "no hub")):
                with pytest.raises((ServerUnreachable, FailedPrecondition), match=text):
                    await HubClient(f"ws://127.0.0.1:{port}/{path}", timeout=0.3 if path == "mute" else SECONDS).open()
        finally:
            await runner.cleanup()

    run(scenario())


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_that_another_client_takes_is_given_up_and_not_fought_for(server: LocalServer) -> None:
    async def scenario() -> None:
        news = News()
        async with HubClient(server.url, address=ANN, on_connection=news) as old, old.subscribe("news") as messages:
            reading = asyncio.create_task(messages.get())
            async with HubClient(server.url, address=ANN) as new:
                with pytest.raises(FailedPrecondition, match=r"another connection registered the address @\(browser/ann\)"):
                    await reading
                with pytest.raises(FailedPrecondition, match="another connection"):
                    await old.publish("news", 1)
                assert (await new.publish("news", 1)).subscriber_count == 0
        assert [one.is_connected for one in news.heard] == [True]

    run(scenario())


def test_a_token_that_is_missing_or_wrong_is_refused_and_the_right_one_lets_in(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = Keyring(file).create("ann", SystemClock().now())

    async def scenario(url: str) -> None:
        for wrong in (None, "nonsense", secret[:-4] + "0000"):
            with pytest.raises(Unauthenticated) as refused:
                async with HubClient(url, token=wrong):
                    pass
            assert secret[:-4] not in str(refused.value)

        async def fetched() -> str:
            return secret

        for token in (secret, lambda: secret, fetched):
            async with HubClient(url, token=token) as hub:
                await hub.publish("news", 1)

    with LocalServer(auth="token", token_file=file) as server:
        run(scenario(server.url))


def test_a_jwt_says_who_one_is_and_what_one_may(tmp_path: Path) -> None:
    key = "a key of 32 characters or more, for HS256"
    file = tmp_path / "key"
    file.write_text(key)
    now = SystemClock().now() // SECOND

    def token(**claims: Any) -> str:
        base = {
            "sub": "ann",
            "actorId": "browser/ann",
            "capabilities": ["chat"],
            "iss": "signal-hub",
            "iat": now,
            "exp": now + 600,
        }
        return jwt.encode({**base, **claims}, key, "HS256")

    async def scenario(url: str) -> None:
        mine = token(publish=["chat/#"], subscribe=["chat/#"])
        async with HubClient(url, token=mine) as hub, hub.subscribe("chat/#") as messages:
            assert hub.address == ANN
            await hub.publish("chat/lobby", 1)
            assert await data(messages, 1) == [1]
            with pytest.raises(PermissionDenied, match="publish to orders"):
                await hub.publish("orders", 1)
            with pytest.raises(PermissionDenied, match="subscribe to #"):
                async with hub.subscribe("#"):
                    pass
            await hub.refresh_token(mine)
        with pytest.raises(PermissionDenied, match="register as"):
            async with HubClient(url, token=mine, address=BOB):
                pass
        with pytest.raises(Unauthenticated):
            async with HubClient(url, token=token(exp=now - 600)):
                pass

    with LocalServer(hub_jwt_secret_file=file, insecure=True) as server:
        run(scenario(server.url))


# ── flow ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_that_is_slow_and_asks_for_each_message_gets_all_in_order(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as ann, HubClient(server.url) as bob, ann.subscribe("chat/x", max_waiting=5) as messages:
            await _publish_all(bob, "chat/x", 100)
            for number in range(100):
                found = await messages.get(SECONDS)
                assert (found.data, found.gap) == (number, None)
                await ann.publish("echo", number)  # answers come, however many messages wait

    run(scenario())


async def _publish_all(hub: HubClient, topic: str, count: int, padding: str = "") -> None:
    for number in range(count):
        await hub.publish(topic, f"{number}{padding}" if padding else number)


def test_a_reader_that_stops_is_cut_off_and_brought_everything_when_it_goes_on() -> None:
    async def scenario(url: str) -> None:
        news, padding = News(), "." * 1000
        async with (
            HubClient(url, on_connection=news) as ann,
            HubClient(url) as bob,
            ann.subscribe("chat/x", max_waiting=10) as messages,
        ):
            await _publish_all(bob, "chat/x", 500, padding)
            await news.until(lambda heard: any(not one.is_connected for one in heard))
            assert "did not read" in next(one.problem for one in news.heard if not one.is_connected)

            found = [await messages.get(SECONDS) for _ in range(500)]
            assert [one.data for one in found] == [f"{number}{padding}" for number in range(500)]
            assert [one for one in found if one.gap is not None] == []

    with LocalServer(hub_history=("chat",), hub_max_outbox_bytes=64 * 1024) as server:
        run(scenario(server.url))


# ── durable subscriptions ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_durable_subscription_loses_nothing_over_breaks_and_repeats_nothing_that_waits_or_was_acked(
    server: LocalServer,
) -> None:
    async def scenario() -> None:
        async with (
            through_a_proxy(server, address=ANN) as (ann, proxy, _),
            HubClient(server.url) as bob,
            ann.subscribe("news", durable=True) as messages,
        ):
            for number in range(10):
                await bob.publish("news", number)
            got: list[int] = []
            for number in range(10, 30):
                found = await messages.get(SECONDS)
                got.append(found.data)
                await found.ack()
                await bob.publish("news", number)
                if number % 10 == 5:
                    proxy.cut()
            async with asyncio.timeout(SECONDS):
                while len(set(got)) < 30:
                    found = await messages.get()
                    got.append(found.data)
                    await found.ack()
            assert sorted(got) == [*range(30)]
            await ann.unsubscribe("news")

    run(scenario())


def test_json_of_every_kind_survives(server: LocalServer) -> None:
    values: list[Any] = [None, True, 0, -1.5, "", "\u2028 \x00 \U0001f680", [], {}, {"": [[{}]]}, 2**53, "x" * 100_000]

    async def scenario() -> None:
        async with HubClient(server.url) as hub, hub.subscribe("chat/x") as messages:
            for value in values:
                await hub.publish("chat/x", value)
            assert json.dumps(await data(messages, len(values))) == json.dumps(values)

    run(scenario())
