"""Specification 001, "Queue Consumer Layer": the contract that all consumers share."""

import asyncio
import logging

import pytest

from penstock.durations import SECOND
from penstock.errors import NotFound, Unavailable
from penstock.router import feed as feeds
from penstock.router.core.config import PoolConfig, QueueConfig
from penstock.router.feed import Feed
from tests.unit.router.doubles import OK, MemorySource, body, turns, until
from tests.unit.router.worlds import World, open_calls, run, running


def test_queue_consumer_start_begins_polling_with_one_poll_for_each_connection() -> None:
    async def test() -> None:
        async with running(World(), connections=3) as world:
            await until(lambda: world.source.polls == 3)
            assert world.source.starts == 1
            assert all(world.router.feeds["Q"].polled_at)

    run(test)


def test_queue_consumer_stop_ends_the_polls_and_is_safe_twice() -> None:
    async def test() -> None:
        async with running(World()) as world:
            await until(lambda: world.source.polls)
            feed = world.router.feeds["Q"]
            assert await feed.stop_polling(1)
            assert await feed.stop_polling(1)
            assert not feed.is_polling(world.clock.now())
            await feed.close()
            await feed.close()

    run(test)


def test_queue_consumer_that_never_started_can_be_closed() -> None:
    async def test() -> None:
        world, source = World(), MemorySource()
        feed = Feed(QueueConfig("Q", "test:///Q"), source, world.router, world.clock, 10)
        await feed.close()
        assert source.stops == 1

    run(test)


def test_queue_consumer_a_poll_that_does_not_end_is_not_waited_for_for_ever() -> None:
    class Stubborn(MemorySource):
        async def poll(self, want: int, wait: float) -> list[object]:  # type: ignore[override]  # it never returns
            self.polls += 1
            while not self.is_stuck:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
            return []

    async def test() -> None:
        source = Stubborn()
        async with running(World(source=source)) as world:
            await until(lambda: source.polls)
            feed = world.router.feeds["Q"]
            polls = [*feed._tasks]

            assert not await feed.stop_polling(0.01)

            source.is_stuck = True
            for task in polls:
                task.cancel()

    run(test)


@pytest.mark.parametrize(("age", "is_healthy"), [(59.9, True), (60, False)])
@pytest.mark.parametrize("trouble", [None, Unavailable("away")], ids=["silent", "failing"])
def test_queue_consumer_is_healthy_within_60_seconds_of_its_last_successful_poll_or_of_its_start(
    age: float, is_healthy: bool, trouble: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE", 0.001)

    async def test() -> None:
        async with running(World(), connections=2) as world:
            feed = world.router.feeds["Q"]
            assert feed.is_polling(world.clock.now() + int(age * SECOND)) is is_healthy
            await until(lambda: world.source.polls == 2)
            world.source.is_stuck, world.source.trouble = True, trouble
            world.clock.advance(age)
            if trouble is not None:
                await until(lambda: world.source.polls > 4)  # a poll that fails is none

            assert feed.is_polling(world.clock.now()) is is_healthy

    run(test)


def test_queue_consumer_one_poll_of_several_that_stalls_is_enough_to_be_unhealthy() -> None:
    async def test() -> None:
        async with running(World(), connections=2) as world:
            feed = world.router.feeds["Q"]
            await until(lambda: all(feed.polled_at))
            world.clock.advance(61)
            feed.polled_at[0] = world.clock.now()

            assert not feed.is_polling(world.clock.now())

    run(test)


def test_queue_consumer_a_full_or_partial_batch_is_followed_by_the_next_poll_at_once() -> None:
    """The specification sleeps 100 ms after a partial batch; here nothing sleeps."""

    async def test() -> None:
        async with running(World(), PoolConfig("P", 256)) as world:
            for turn in range(5):
                world.source.put(*(body(f"{turn}-{number}", f"{number}") for number in range(turn + 1)))
                await world.settled()
            assert world.source.left == 0

    run(test)


@pytest.mark.parametrize(
    ("trouble", "level"), [(Unavailable("away"), logging.WARNING), (NotFound("queue Q"), logging.ERROR)], ids=["away", "missing"]
)
def test_queue_consumer_a_queue_that_is_not_reached_is_tried_again_and_told_once(
    trouble: Exception, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(feeds, "LONGEST_PAUSE", 0.004)

    async def test() -> None:
        source = MemorySource()
        source.trouble = trouble
        async with running(World(source=source)) as world:
            feed = world.router.feeds["Q"]
            await until(lambda: feed.trouble)
            await asyncio.sleep(0.02)
            source.trouble = None
            source.put(body("a"))
            await until(lambda: source.acked)
            assert feed.trouble is None
            source.trouble = trouble
            source.put(body("b"))
            await until(lambda: feed.trouble)
            polls = source.polls
            await until(lambda: source.polls > polls + 1)
            source.trouble = None
            await until(lambda: not source.left)

    with caplog.at_level(logging.DEBUG, "penstock.router"):
        run(test)
    told = [record for record in caplog.records if "cannot be polled" in record.message]
    assert [record.levelno for record in told] == [level, level]


def test_queue_consumer_a_start_that_hangs_ends_with_the_feed() -> None:
    class Slow(MemorySource):
        async def start(self) -> None:
            self.starts += 1
            await asyncio.sleep(3600)

    async def test() -> None:
        source = Slow()
        async with running(World(source=source), connections=2) as world:
            await until(lambda: source.starts)
            await world.router.stop()
            assert (source.starts, source.polls, len(asyncio.all_tasks())) == (1, 0, 1)

    run(test)


def test_standby_a_router_that_may_not_poll_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE", 0.001)

    async def test() -> None:
        world = World()
        world.router.may_poll = lambda: False
        async with running(world):
            world.source.put(body("a"))
            await until(lambda: all(world.router.feeds["Q"].polled_at))
            await asyncio.sleep(0.01)
            assert world.source.polls == 0

            world.router.may_poll = lambda: True
            await until(lambda: world.source.acked)

    run(test)


def test_backpressure_a_queue_whose_only_pool_is_full_waits_for_room_and_looks_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "ROOM_SECONDS", 0.01)

    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1), PoolConfig("R", 1)) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(51)))
            await until(lambda: world.transport.open)
            await turns()
            assert world.source.polls == 1

            world.source.put(body("other", pool="R"))  # behind what is stuck there may be messages of others
            await until(lambda: "other" in world.transport.called)

    run(test)


def test_backpressure_room_that_comes_back_is_used_at_once() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(50)))
            await until(lambda: world.router.runners["P"].pool.room == 1)
            await turns()
            assert world.source.polls == 1
            world.transport.script = lambda _request: OK
            world.transport.open[0].answer()
            await until(lambda: world.source.polls == 2)

            assert world.source.wanted[1] >= 25

    run(test)


def test_backpressure_pools_that_a_queue_feeds_no_more_are_forgotten() -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 1), PoolConfig("R", 1)) as world:
            feed = world.router.feeds["Q"]
            world.source.put(body("a"), body("b", pool="R"))
            await until(lambda: len(world.source.acked) == 2)
            assert set(feed._fed) == {"P", "R"}

            world.clock.advance(301)
            world.source.put(body("c"))
            await until(lambda: len(world.source.acked) == 3)
            await until(lambda: world.source.polls == 3)
            await world.apply(PoolConfig("R", 1))
            world.source.put(body("d", pool="R"))
            await until(lambda: len(world.source.acked) == 4)
            await until(lambda: world.source.polls == 4)

            assert set(feed._fed) <= {"P", "R"}

    run(test)


def test_metrics_of_a_queue_count_what_came_and_what_became_of_it() -> None:
    async def test() -> None:
        async with running(World()) as world:
            world.source.put(body("a"), b"no json")
            await until(lambda: len(world.source.acked) == 2)

            numbers = world.router.feeds["Q"].metrics.numbers(None, world.clock.now())
            assert (numbers.received, numbers.consumed, numbers.failed, numbers.deferred) == (2, 2, 0, 0)

    run(test)
