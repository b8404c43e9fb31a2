"""Lanes: whoever is slow delays only who shares the lane."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import ResourceExhausted
from penstock.google.user_threads import Lanes


def scenario(play: Callable[[Lanes, threading.Event], Awaitable[None]]) -> None:
    """Run a test with two threads; what waits for the event ends when the test does."""

    async def run() -> None:
        lanes, end = Lanes("test", 2), threading.Event()
        try:
            async with asyncio.timeout(60):
                await play(lanes, end)
        finally:
            end.set()
            lanes.close()

    asyncio.run(run())


def test_a_slow_lane_does_not_hold_up_another_however_much_waits_in_it() -> None:
    async def play(lanes: Lanes, end: threading.Event) -> None:
        slow = [asyncio.create_task(lanes.run("slow", None, end.wait, 60)) for _ in range(10)]
        assert await asyncio.gather(*(lanes.run("quick", None, abs, -number) for number in range(10))) == [*range(10)]
        assert not any(task.done() for task in slow)
        end.set()
        assert await asyncio.gather(*slow) == [True] * 10

    scenario(play)


def test_calls_of_one_lane_keep_their_order() -> None:
    async def play(lanes: Lanes, _: threading.Event) -> None:
        order: list[int] = []
        await asyncio.gather(*(lanes.run("lane", None, order.append, number) for number in range(100)))
        assert order == [*range(100)]

    scenario(play)


def test_a_turn_that_does_not_come_in_time_is_refused_and_the_lane_goes_on() -> None:
    async def play(lanes: Lanes, end: threading.Event) -> None:
        slow = asyncio.create_task(lanes.run("lane", None, end.wait, 60))
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted, match="earlier messages of this topic took more than"):
            await lanes.run("lane", 0.01, abs, -1)
        end.set()
        assert await slow
        assert await lanes.run("lane", None, abs, -1) == 1
        assert lanes._lanes == {}

    scenario(play)


def test_a_caller_who_leaves_keeps_the_lane_until_the_work_ends() -> None:
    """Or somebody could fill all threads by asking and leaving."""

    async def play(lanes: Lanes, end: threading.Event) -> None:
        for _ in range(10):
            left = asyncio.create_task(lanes.run("slow", None, end.wait, 60))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        assert await lanes.run("quick", None, abs, -1) == 1
        end.set()
        assert await lanes.run("slow", None, abs, -2) == 2
        assert lanes._lanes == {}

    scenario(play)


def test_an_error_of_the_work_is_the_callers() -> None:
    async def play(lanes: Lanes, _: threading.Event) -> None:
        for _turn in range(2):
            with pytest.raises(ValueError, match="invalid literal"):
                await lanes.run("lane", None, int, "x")
        assert lanes._lanes == {}

    scenario(play)
