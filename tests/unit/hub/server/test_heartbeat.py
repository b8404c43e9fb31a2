"""Connections are asked whether they are there: each in its turn, not all at once, and those that are not are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.hub.server import heartbeat
from penstock.hub.server.heartbeat import HeartbeatScheduler


class Connection:
    """Answers, or does not."""

    def __init__(self, *, answers: bool = True) -> None:
        self.due = 0.0
        self.asked: list[float] = []
        self.is_cut = False
        self._answers = answers

    def ask(self) -> bool:
        self.asked.append(asyncio.get_running_loop().time())
        return self._answers

    def abort(self) -> None:
        self.is_cut = True


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # what is asked has no event
            await asyncio.sleep(0.001)


def test_each_is_asked_once_a_period_and_who_does_not_answer_is_cut() -> None:
    async def scenario() -> None:
        beat = HeartbeatScheduler(0.2)
        living, dead = Connection(), Connection(answers=False)
        began = asyncio.get_running_loop().time()
        beat.add(living)
        beat.add(dead)
        await until(lambda: len(living.asked) == 3)
        assert dead.is_cut
        assert not living.is_cut
        assert living.asked[0] - began >= 0.2
        assert min(later - sooner for sooner, later in zip(living.asked, living.asked[1:], strict=False)) >= 0.2
        beat.discard(living)
        beat.discard(dead)

    asyncio.run(scenario())


def test_those_that_came_at_once_are_not_asked_at_once() -> None:
    async def scenario() -> None:
        beat = HeartbeatScheduler(0.6)
        many = [Connection() for _ in range(heartbeat.PER_STEP * 3)]
        for one in many:
            beat.add(one)
        await until(lambda: all(one.asked for one in many))
        moments = sorted(one.asked[0] for one in many)
        for position in range(len(moments) - heartbeat.PER_STEP * 2):
            assert moments[position + heartbeat.PER_STEP * 2] - moments[position] >= heartbeat.STEP_SECONDS / 2
        for one in many:
            beat.discard(one)

    asyncio.run(scenario())


def test_who_has_left_is_not_asked_and_leaves_no_timer() -> None:
    async def scenario() -> None:
        beat = HeartbeatScheduler(0.05)
        gone, late = Connection(), Connection()
        beat.add(gone)
        beat.discard(gone)
        beat.discard(gone)
        beat.add(late)
        await until(lambda: late.asked)
        assert gone.asked == []
        beat.discard(late)

    asyncio.run(scenario())


def test_who_is_cut_may_leave_meanwhile() -> None:
    async def scenario() -> None:
        beat = HeartbeatScheduler(0.05)

        class Leaving(Connection):
            def abort(self) -> None:
                super().abort()
                beat.discard(self)

        dead, living = Leaving(answers=False), Connection()
        beat.add(dead)
        beat.add(living)
        await until(lambda: len(living.asked) == 2)
        assert len(dead.asked) == 1
        beat.discard(living)

    asyncio.run(scenario())
