"""Durable subscriptions of HubClient: what is not acked comes again, to whoever of the same address subscribes next."""

import asyncio
from collections.abc import Iterator

import pytest

from penstock.client import HubClient
from penstock.errors import FailedPrecondition
from penstock.testing.server import LocalServer
from tests.integration.hub.feed_desk import in_loop
from tests.integration.hub.wire import member, opened

SECONDS = 30.0
ANN = "@(agent/ann)"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(hub_history=("log",)) as server:
        yield server


def test_what_was_left_unacked_comes_again_to_the_next_subscription_of_the_same_client(server: LocalServer) -> None:
    """As of a program that leaves when its work fails, and begins again."""

    async def scenario() -> None:
        async with HubClient(server.url) as bob, HubClient(server.url, address=ANN) as ann:
            async with ann.subscribe("jobs", durable=True) as messages:
                for number in range(4):
                    await bob.publish("jobs", number)
                done, failed = await messages.get(SECONDS), await messages.get(SECONDS)
                await done.ack()
            await bob.publish("jobs", 4)

            async with ann.subscribe("jobs", durable=True) as messages:
                again = [await messages.get(SECONDS) for _ in range(4)]
                assert [one.data for one in again] == [failed.data, 2, 3, 4]
                await ann.ack(*again)
                await bob.publish("jobs", 5)
                assert (await messages.get(SECONDS)).data == 5

            async with ann.subscribe("jobs", durable=True) as messages:
                await (await messages.get(SECONDS)).ack()
                await bob.publish("jobs", "the end")
                assert (await messages.get(SECONDS)).data == "the end"
            await ann.unsubscribe("jobs")

    in_loop(scenario())


def test_a_subscription_that_was_ended_for_good_leaves_nothing_to_the_next(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as bob, HubClient(server.url, address=ANN) as ann:
            async with ann.subscribe("ended", durable=True):
                await bob.publish("ended", "old")
            await ann.unsubscribe("ended")
            async with ann.subscribe("ended", durable=True) as messages:
                await bob.publish("ended", "new")
                assert (await messages.get(SECONDS)).data == "new"
            await ann.unsubscribe("ended")

    in_loop(scenario())


def test_two_messages_of_the_same_id_are_two_messages(server: LocalServer) -> None:
    """Pages that number what they publish begin again with 1, each of them."""

    async def scenario() -> None:
        async with HubClient(server.url, address=ANN) as ann, ann.subscribe("numbered", durable=True) as messages:
            for name in ("one", "two"):
                async with opened(server.url) as page:
                    await page.say("hub:connect", {"version": "1.0"})
                    await page.say("hub:register", {"actorAddress": f"@(browser/{name})", "capabilities": ["ui"]})
                    await page.say("hub:publish", {"topic": "numbered", "type": "x", "data": name}, id="1")
                    message = await messages.get(SECONDS)
                    assert (message.id, message.data) == ("1", name)
                    await message.ack()
            await ann.unsubscribe("numbered")

    in_loop(scenario())


def test_one_of_two_messages_of_the_same_id_is_acked_with_all_its_copies_and_the_other_is_not(server: LocalServer) -> None:
    async def scenario() -> None:
        async with (
            HubClient(server.url, address=ANN) as ann,
            ann.subscribe("copied/#", durable=True) as messages,
            ann.subscribe("copied/x", durable=True),
        ):
            for name in ("one", "two"):
                async with member(server.url, f"@(browser/{name})") as page:
                    await page.ask("hub:publish", {"topic": "copied/x", "type": "x", "data": name}, id="1")
            first, second = [await messages.get(SECONDS) for _ in range(2)]
            assert (first.id, first.data, second.id, second.data) == ("1", "one", "1", "two")
            await first.ack()
            while len(ann._ack_ids.get(second.key, ())) < 2:  # noqa: ASYNC110  # nobody is told how many copies came
                await asyncio.sleep(0.001)

        async with HubClient(server.url, address=ANN) as ann:
            async with ann.subscribe("copied/#", durable=True) as messages, ann.subscribe("copied/x", durable=True) as others:
                assert [(await one.get(SECONDS)).data for one in (messages, others)] == ["two", "two"]
            for pattern in ("copied/#", "copied/x"):
                await ann.unsubscribe(pattern)

    in_loop(scenario())


def test_a_durable_subscription_is_not_taken_for_another_and_outlives_the_mistake(server: LocalServer) -> None:
    async def scenario() -> None:
        async with HubClient(server.url) as bob:
            async with HubClient(server.url, address=ANN) as ann, ann.subscribe("bills", durable=True):
                pass
            await bob.publish("bills", 1)
            async with HubClient(server.url, address=ANN) as ann:
                with pytest.raises(FailedPrecondition, match="is a durable subscription of this address") as refused:
                    await ann.subscribe("bills").__aenter__()
                assert "durable=True" in (refused.value.hint or "")
            async with HubClient(server.url, address=ANN) as ann, ann.subscribe("bills", durable=True) as messages:
                assert (await messages.get(SECONDS)).data == 1
                await ann.unsubscribe("bills")

    in_loop(scenario())
