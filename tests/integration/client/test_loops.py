"""A client belongs to the event loop in which it was opened: everything else gets an error at once, and never hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock import IncomingMessage, PubSub, sync
from penstock.errors import FailedPrecondition
from tests.conformance.stream_drivers import Place, in_loop

PATIENCE = 30


async def _prepared(pubsub: PubSub) -> None:
    topic = await pubsub.topic("orders").create()
    await topic.subscription("billing").create()
    await pubsub.queue("work").create()


async def _paused(pubsub: PubSub) -> None:
    pubsub.subscription("billing").pause()


CALLS: dict[str, Callable[[PubSub], Awaitable[object]]] = {
    "topics": lambda pubsub: pubsub.topics(),
    "publish_many": lambda pubsub: pubsub.topic("orders").publish_many([]),
    "flush": lambda pubsub: pubsub.topic("orders").flush(),
    "pull": lambda pubsub: pubsub.subscription("billing").pull(wait=PATIENCE),
    "enqueue": lambda pubsub: pubsub.queue("work").publish("task"),
    "async for": lambda pubsub: anext(aiter(pubsub.subscription("billing"))),
    "pause": _paused,
    "close a subscription": lambda pubsub: pubsub.subscription("billing").close(),
    "open": lambda pubsub: pubsub.open(),
    "close": lambda pubsub: pubsub.close(),
}


@in_loop
async def test_another_event_loop_gets_an_error_that_names_the_blocking_client(place: Place, subtests: pytest.Subtests) -> None:
    async with place:
        pubsub = place.pubsub
        await _prepared(pubsub)
        for name, call in CALLS.items():
            with subtests.test(name), pytest.raises(FailedPrecondition, match="another event loop") as caught:
                await asyncio.to_thread(_in_its_own_loop, call, pubsub)
            assert "penstock.sync" in str(caught.value.hint)
        assert [one.name for one in await pubsub.topics()] == ["orders"], "the client still works in its own loop"


@in_loop
async def test_a_thread_without_an_event_loop_too(place: Place) -> None:
    async with place:
        pubsub = place.pubsub
        await _prepared(pubsub)
        with pytest.raises(FailedPrecondition, match="outside an event loop") as caught:
            await asyncio.to_thread(_called_without_a_loop, pubsub)
        assert "penstock.sync" in str(caught.value.hint)


@in_loop
async def test_a_confirmed_ack_belongs_to_the_loop_but_an_ack_may_come_from_any_thread(place: Place) -> None:
    async with place:
        pubsub = place.pubsub
        await _prepared(pubsub)
        await pubsub.topic("orders").publish_message(b"x")
        async for message in pubsub.subscription("billing"):

            def ack(_: PubSub, message: IncomingMessage = message) -> Awaitable[object]:
                return message.ack_with_response()

            with pytest.raises(FailedPrecondition, match="another event loop"):
                await asyncio.to_thread(_in_its_own_loop, ack, pubsub)
            await asyncio.to_thread(message.ack)
            break


def test_a_client_left_open_in_a_loop_that_has_ended_says_so(place: Place) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(place.__aenter__())
    try:
        with pytest.raises(FailedPrecondition, match="another event loop"):
            asyncio.run(_published(place.pubsub))
    finally:
        loop.run_until_complete(place.__aexit__())
        loop.close()


def _called_without_a_loop(pubsub: PubSub) -> None:
    _ = pubsub.topic("orders").publish_message(b"x")


async def _published(pubsub: PubSub) -> None:
    await pubsub.topic("orders").publish_message(b"x")


@in_loop
async def test_a_closed_client_with_a_broker_of_its_own_says_that_it_cannot_be_opened_again() -> None:
    pubsub = PubSub()
    async with pubsub:
        pass

    with pytest.raises(FailedPrecondition, match="closed and cannot be opened again") as caught:
        await pubsub.open()

    assert "new PubSub" in str(caught.value.hint)
    with pytest.raises(FailedPrecondition, match="is closed"):
        _called_without_a_loop(pubsub)


def test_the_blocking_client_works_in_every_thread() -> None:
    with sync.PubSub() as pubsub:
        pubsub.topic("orders").create()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                pubsub.check_open()
                pubsub.topic("orders").publish_message(b"x")
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)
        assert not failures


def _in_its_own_loop(call: Callable[[PubSub], Awaitable[object]], pubsub: PubSub) -> object:
    async def run() -> object:
        async with asyncio.timeout(PATIENCE):
            return await call(pubsub)

    return asyncio.run(run())
