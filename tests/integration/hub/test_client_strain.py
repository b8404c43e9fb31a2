"""HubClient at its limits: too much at once, too little time, and ends that come in the middle of something."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.client import ConnectionNews, HubClient, Published
from penstock.errors import FailedPrecondition, ServerUnreachable, Unavailable
from penstock.hub.client import link
from penstock.hub.core import messages as wire
from penstock.hub.core.rules import HubRules
from penstock.rate_limit import RateLimit
from penstock.testing.proxy import FaultyProxy
from penstock.testing.server import LocalServer
from tests.integration.hub.serving import serving

SECONDS = 60.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run it, and see that it leaves nothing behind."""

    async def within() -> None:
        async with asyncio.timeout(90):
            await scenario
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(within())


def give(hub: HubClient, seconds: float) -> None:
    """Change the timeout of a client that is open: opening it has all the time it needs."""
    hub._timeout = hub._link._timeout = seconds


async def soon(is_so: Callable[[], bool]) -> None:
    """Return when it is so."""
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.01)


# ── too fast ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_far_more_than_the_rate_allows_is_published_without_being_cut_off() -> None:
    async def scenario() -> None:
        news: list[ConnectionNews] = []
        async with (
            serving(HubRules(rate=RateLimit(2_000, 100), flood=400)) as running,
            HubClient(running.url, on_connection=news.append, timeout=SECONDS) as hub,
        ):
            found = await asyncio.gather(*(hub.publish("news", number) for number in range(1_500)))
        assert len({one.message_id for one in found}) == 1_500
        assert [one.is_connected for one in news] == [True]

    run(scenario())


def test_what_finds_no_turn_in_its_time_says_so() -> None:
    async def scenario(url: str) -> None:
        async with HubClient(url) as hub:
            give(hub, 1.0)
            found = await asyncio.gather(*(hub.publish("news", number) for number in range(400)), return_exceptions=True)
            refused = [one for one in found if type(one) is Unavailable]
            unanswered = [one for one in found if isinstance(one, ServerUnreachable)]  # asked in the last moment
            published = [one for one in found if isinstance(one, Published)]
            assert refused
            assert published
            assert len(refused) + len(unanswered) + len(published) == 400
            assert all("waited 1 s for its turn" in str(one) for one in refused)
            assert all(re.search(r"no answer to hub:publish for \d\.\d\d s", str(one)) for one in unanswered)

    with LocalServer(hub_rate_limit=100, hub_rate_burst=20) as server:
        run(scenario(server.url))


def test_a_hub_that_does_not_answer_is_named_and_for_how_long(server: LocalServer) -> None:
    async def scenario() -> None:
        with FaultyProxy("127.0.0.1", server.server.port) as proxy:
            async with HubClient(f"http://{proxy.address}") as hub:
                proxy.swallow()
                give(hub, 0.2)
                with pytest.raises(ServerUnreachable, match=r"no answer to hub:publish for \d\.\d\d s"):
                    await hub.publish("news", 1)
                proxy.cut()

    run(scenario())


def test_more_subscriptions_than_the_rate_allows_at_once_all_come_back_after_a_break() -> None:
    async def scenario(server: LocalServer) -> None:
        back = asyncio.Event()
        count = 0

        def heard(news: ConnectionNews) -> None:
            nonlocal count
            count += news.is_connected
            if count == 2:
                back.set()

        with FaultyProxy("127.0.0.1", server.server.port) as proxy:
            async with HubClient(f"http://{proxy.address}", on_connection=heard) as hub:
                streams = [hub.subscribe(f"news/{number}") for number in range(40)]
                for messages in streams:
                    await messages.__aenter__()
                proxy.cut()
                async with asyncio.timeout(SECONDS):
                    await back.wait()
                assert count == 2
                assert len(await hub.topics()) == 40

    with LocalServer(hub_rate_limit=100, hub_rate_burst=10) as server:
        run(scenario(server))


# ── too full ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server() -> Any:
    with LocalServer(hub_rate_limit=0, hub_history=("log",)) as server:
        yield server


def test_ending_a_subscription_that_nobody_reads_lets_the_others_go_on(server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            HubClient(server.url) as writer,
            HubClient(server.url) as hub,
            hub.subscribe("full", max_waiting=5),
            hub.subscribe("other") as other,
        ):
            for number in range(100):
                await writer.publish("full", number)
            await writer.publish("other", "before")  # held back, as the client has asked for
            await hub.unsubscribe("full")
            assert (await other.get(SECONDS)).data == "before"

    run(scenario())


def test_a_client_closes_at_once_although_nobody_took_what_came(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "DISCONNECT_SECONDS", SECONDS)

    async def scenario() -> None:
        async with (
            HubClient(server.url) as writer,
            HubClient(server.url) as hub,
            hub.subscribe("full", max_waiting=1) as messages,
        ):
            await asyncio.gather(*(writer.publish("full", number) for number in range(200)))
            await soon(lambda: messages.is_full)
            began = time.monotonic()
            await hub.close()
            assert time.monotonic() - began < SECONDS / 2

    run(scenario())


def test_a_position_does_not_skip_what_was_received_and_never_taken(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as writer, HubClient(server.url) as hub:
            async with hub.subscribe("log/taken") as messages:
                before = messages.position
                for number in range(5):
                    await writer.publish("log/taken", number)
                await soon(lambda: messages.waiting == 5)
                assert messages.position == before
                first = await messages.get(SECONDS)
                assert messages.position == first.position
            async with hub.subscribe("log/taken", since=messages.position) as rest:
                assert [(await rest.get(SECONDS)).data for _ in range(4)] == [1, 2, 3, 4]
                last = rest.position
            assert last is not None
            async with hub.subscribe("log/taken", since=last) as nothing:
                await writer.publish("log/taken", "new")
                assert (await nothing.get(SECONDS)).data == "new"

    run(scenario())


def test_a_message_whose_taker_is_cancelled_is_for_the_next_one(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as writer, HubClient(server.url) as hub, hub.subscribe("news") as messages:
            is_stuck, free = asyncio.Event(), asyncio.Event()
            taken = hub.taken

            async def stuck() -> None:
                is_stuck.set()
                await free.wait()

            monkeypatch.setattr(hub, "taken", stuck)
            taker = asyncio.create_task(messages.get())
            await writer.publish("news", 1)
            await writer.publish("news", 2)
            async with asyncio.timeout(SECONDS):
                await is_stuck.wait()
            taker.cancel()
            await asyncio.gather(taker, return_exceptions=True)
            monkeypatch.setattr(hub, "taken", taken)
            assert [(await messages.get(SECONDS)).data for _ in range(2)] == [1, 2]

    run(scenario())


def test_a_subscription_that_is_full_again_does_not_keep_the_client_from_coming_back(server: LocalServer) -> None:
    async def scenario() -> None:
        news: list[ConnectionNews] = []
        with FaultyProxy("127.0.0.1", server.server.port) as proxy:
            async with (
                HubClient(server.url) as writer,
                HubClient(f"http://{proxy.address}", on_connection=news.append, timeout=SECONDS) as hub,
                hub.subscribe("log/full", max_waiting=1) as full,
                hub.subscribe("log/other") as other,
            ):
                for number in range(200):
                    await writer.publish("log/full", number)
                proxy.cut()
                while len(news) == 1:  # a broken connection is noticed by who reads
                    await full.get(SECONDS)
                await soon(lambda: full.is_full and other.progress.is_subscribed)
                await soon(lambda: hub.is_connected)
                assert [one.is_connected for one in news] == [True, False, True]

    run(scenario())


def test_signs_of_life_are_asked_for_again_on_a_connection_after_one_that_was_not_read(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "RENEW_AT", 0.01)  # of its minute

    async def scenario() -> None:
        news: list[ConnectionNews] = []

        def heard(one: ConnectionNews) -> None:
            news.append(one)
            if not one.is_connected:
                give(hub, SECONDS)

        async with (
            HubClient(server.url) as writer,
            HubClient(server.url, on_connection=heard, ttl=60) as hub,
            hub.subscribe("full", max_waiting=1) as full,
        ):
            await asyncio.gather(*(writer.publish("full", number) for number in range(200)))
            await soon(lambda: full.is_full and hub._link._is_reading_held)
            give(hub, 0.2)
            await soon(lambda: len(news) == 3)  # it could not renew its registration: the answer was not read
            assert "nothing came from the hub" in news[1].problem
            assert not hub._link._is_reading_held  # or a silent end would be taken for the same

    run(scenario())


# ── too late ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_that_never_gives_a_token_is_told_in_time(server: LocalServer) -> None:
    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    async def scenario() -> None:
        with pytest.raises(Unavailable, match=r"gives the token took longer than 0\.2 s"):
            async with HubClient(server.url, token=never, timeout=0.2):
                pass

    run(scenario())


def test_a_client_that_is_closed_while_its_connection_ends_leaves_nothing_behind(server: LocalServer) -> None:
    async def scenario() -> None:
        for turns in range(12):
            with FaultyProxy("127.0.0.1", server.server.port) as proxy:
                async with HubClient(f"http://{proxy.address}") as hub, hub.subscribe("news"):
                    proxy.cut()
                    for _ in range(turns):
                        await asyncio.sleep(0)

    run(scenario())


def test_a_subscription_that_waits_for_a_connection_ends_with_its_client(server: LocalServer) -> None:
    async def scenario() -> None:
        lost = asyncio.Event()
        with FaultyProxy("127.0.0.1", server.server.port) as proxy:
            async with HubClient(
                f"http://{proxy.address}", on_connection=lambda news: None if news.is_connected else lost.set()
            ) as hub:
                proxy.refuse()
                proxy.cut()
                async with asyncio.timeout(SECONDS):
                    await lost.wait()
                waiting = asyncio.create_task(hub.subscribe("news").__aenter__())
                await asyncio.sleep(0)
            with pytest.raises(FailedPrecondition, match="closed"):
                await waiting

    run(scenario())


def test_an_opening_that_is_called_off_in_its_last_moment_leaves_nothing_behind(server: LocalServer) -> None:
    async def scenario() -> None:
        async def opened() -> None:
            async with HubClient(server.url, on_connection=lambda _: opening.cancel()):
                raise AssertionError("it was called off")

        opening = asyncio.create_task(opened())
        assert isinstance((await asyncio.gather(opening, return_exceptions=True))[0], asyncio.CancelledError)

    run(scenario())


def test_a_closing_that_is_called_off_leaves_nothing_behind(server: LocalServer) -> None:
    async def scenario() -> None:
        with FaultyProxy("127.0.0.1", server.server.port) as proxy:
            hub = await HubClient(f"http://{proxy.address}").open()
            proxy.swallow()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await hub.close()
            with pytest.raises(FailedPrecondition, match="closed"):
                await hub.publish("news")

    run(scenario())


def test_a_subscription_that_is_called_off_while_it_begins_ends_at_the_hub_too(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as hub:
            begins = asyncio.create_task(hub.subscribe("gone", presence=True).__aenter__())
            async with asyncio.timeout(SECONDS):
                while not any(isinstance(one.command, wire.Presence) for one in hub._link._waiting.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            begins.cancel()
            await asyncio.gather(begins, return_exceptions=True)
            assert await hub.topics("gone") == []

    run(scenario())
