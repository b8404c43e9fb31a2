"""Calls of one key run in order, and a slow one delays only its own key."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.keyed_threads import KeyedThreads
from penstock.errors import BrokerClosed, ResourceExhausted


def scenario(play: Callable[[KeyedThreads, threading.Event], Awaitable[None]]) -> None:
    """Run a test with two threads; what waits for the event ends when the test does."""

    async def run() -> None:
        threads, end = KeyedThreads("test", 2), threading.Event()
        try:
            async with asyncio.timeout(60):
                await play(threads, end)
        finally:
            end.set()
            threads.close()

    asyncio.run(run())


def is_idle(threads: KeyedThreads) -> bool:
    """Whether nothing is left when everything has ended."""
    if threads._pool is not None:
        threads._pool.shutdown()
    return not threads._waiting


def test_a_slow_key_does_not_hold_up_another_however_much_waits_in_it() -> None:
    async def play(threads: KeyedThreads, end: threading.Event) -> None:
        slow = [asyncio.create_task(threads.run("slow", None, end.wait, 60)) for _ in range(10)]
        assert await asyncio.gather(*(threads.run("quick", None, abs, -number) for number in range(10))) == [*range(10)]
        assert not any(task.done() for task in slow)
        end.set()
        assert await asyncio.gather(*slow) == [True] * 10

    scenario(play)


def test_calls_of_one_key_keep_their_order() -> None:
    async def play(threads: KeyedThreads, _: threading.Event) -> None:
        order: list[int] = []
        await asyncio.gather(*(threads.run("key", None, order.append, number) for number in range(100)))
        assert order == [*range(100)]

    scenario(play)


def test_a_turn_that_does_not_come_in_time_is_refused_and_the_next_one_runs() -> None:
    async def play(threads: KeyedThreads, end: threading.Event) -> None:
        slow = asyncio.create_task(threads.run("key", None, end.wait, 60))
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted, match="earlier messages of this topic took more than"):
            await threads.run("key", 0.01, abs, -1)
        end.set()
        assert await slow
        assert await threads.run("key", None, abs, -1) == 1
        assert is_idle(threads)

    scenario(play)


def test_a_caller_who_leaves_keeps_the_key_until_the_work_ends() -> None:
    """Or somebody could fill all threads by asking and leaving."""

    async def play(threads: KeyedThreads, end: threading.Event) -> None:
        for _ in range(10):
            left = asyncio.create_task(threads.run("slow", None, end.wait, 60))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        assert await threads.run("quick", None, abs, -1) == 1
        end.set()
        assert await threads.run("slow", None, abs, -2) == 2
        assert is_idle(threads)

    scenario(play)


def test_an_error_of_the_work_is_the_callers() -> None:
    async def play(threads: KeyedThreads, _: threading.Event) -> None:
        for _turn in range(2):
            with pytest.raises(ValueError, match="invalid literal"):
                await threads.run("key", None, int, "x")
        assert is_idle(threads)

    scenario(play)


def test_a_closed_pool_refuses_what_waits_and_what_comes() -> None:
    async def play(threads: KeyedThreads, end: threading.Event) -> None:
        running = asyncio.create_task(threads.run("key", None, end.wait, 60))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(threads.run("key", None, abs, -1)) for _ in range(2)]
        await asyncio.sleep(0)
        threads.close()
        for task in waiting:
            with pytest.raises(BrokerClosed):
                await task
        with pytest.raises(BrokerClosed):
            await threads.run("other", None, abs, -1)
        end.set()
        assert await running
        assert is_idle(threads)

    scenario(play)


def test_calls_that_found_no_thread_are_refused_when_the_pool_closes() -> None:
    async def play(threads: KeyedThreads, end: threading.Event) -> None:
        running = [asyncio.create_task(threads.run(number, None, end.wait, 60)) for number in range(2)]
        await asyncio.sleep(0)
        queued = asyncio.create_task(threads.run("key", None, abs, -1))
        await asyncio.sleep(0)
        threads.close()
        with pytest.raises(BrokerClosed):
            await queued
        end.set()
        assert await asyncio.gather(*running) == [True, True]

    scenario(play)
