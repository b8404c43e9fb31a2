"""Specification 001, "Graceful Shutdown": its four steps, and in which order what is left goes back (decisions 22 and 25)."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from penstock.errors import Unavailable
from penstock.http.client.transport import Answer
from penstock.router.core.config import PoolConfig
from penstock.router.core.message import SourceMessage
from penstock.router.core.outcome import Severity
from penstock.router.router import DRAIN_SECONDS, STOP_POLLING_SECONDS
from tests.unit.router.doubles import OK, MemorySource, body, turns, until
from tests.unit.router.worlds import World, open_calls, run, running

BOTH = pytest.mark.parametrize("fifo", ["strict", "batch"])


def test_graceful_shutdown_time_limits() -> None:
    assert (STOP_POLLING_SECONDS, DRAIN_SECONDS) == (25, 30)


@BOTH
def test_graceful_shutdown_step_2_no_more_polls_while_what_runs_goes_on(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            world.source.put(body("late"))
            await turns()

            assert world.transport.called == ["a"]
            assert not stopping.done()
            world.transport.open[0].answer()
            await stopping
            assert (world.source.acked, world.source.stops) == (["b-1"], 1)

    run(test)


class LongPolls(MemorySource):
    """A queue whose server continues a poll after its caller is gone."""

    polls_at_server = True
    cut = 0

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        try:
            return await super().poll(want, wait)
        except asyncio.CancelledError:
            self.cut += 1
            raise


@BOTH
def test_graceful_shutdown_step_2_polls_at_a_server_are_awaited_and_what_they_bring_is_delivered(fifo: str) -> None:
    async def test() -> None:
        source = LongPolls()
        async with running(World(fifo=fifo, source=source), connections=2) as world:
            await until(lambda: source.polls == 2)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            assert not stopping.done()

            source.put(body("a"))
            await until(lambda: world.transport.called == ["a"])
            source.put(body("b"))
            await stopping

            assert (source.cut, source.polls, source.left) == (0, 2, 0)

    run(test)


def test_graceful_shutdown_step_2_a_poll_at_a_server_that_does_not_end_in_time_is_cut() -> None:
    async def test() -> None:
        source = LongPolls()
        async with running(World(source=source)) as world:
            await until(lambda: source.polls)

            await world.router.stop(0.01)

            assert source.cut == 1

    run(test)


def test_graceful_shutdown_what_the_last_poll_brings_after_another_router_works_goes_back() -> None:
    async def test() -> None:
        source = LongPolls()
        async with running(World(source=source)) as world:
            await until(lambda: source.polls)
            world.router.may_poll = lambda: False
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            source.put(body("a"))
            await stopping

            assert (source.nacked, world.transport.called) == ([("b-1", 0)], [])

    run(test)


@BOTH
def test_graceful_shutdown_step_3_nothing_that_waits_is_begun_and_it_goes_back_after_what_runs(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo), PoolConfig("P", 1)) as world:
            world.source.put(body("a", "x"), body("b", "x"), body("c", "y"))
            await until(lambda: world.transport.open)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            assert world.source.nacked == []  # not yet: a may still fail

            world.transport.open[0].answer(Answer(503))
            await stopping

            # a first: whoever takes them next has them in order. Its call is not tried again while the router stops.
            assert world.source.nacked == [("b-1", 0), ("b-2", 0), ("b-3", 0)]
            assert world.transport.called == ["a"]
            assert len(world.router.tracker) == 0

    run(test)


def test_graceful_shutdown_step_3_what_is_held_goes_back_in_its_old_place() -> None:
    async def test() -> None:
        world = World(lambda request: Answer(429) if request.message_id == "a" else None)
        async with running(world):
            world.source.put(body("a", "x"), body("b", "x"), body("c", "y"))
            await until(lambda: world.router.runners["P"].pool.held)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            world.transport.one("c").answer(Answer(429))
            await stopping

            assert world.source.nacked == [("b-1", 0), ("b-2", 0), ("b-3", 0)]

    run(test)


@BOTH
def test_graceful_shutdown_step_3_calls_that_do_not_end_in_time_are_cut_off_and_their_messages_go_back(
    fifo: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a", "x"), body("b", "y"))
            await until(lambda: len(world.transport.open) == 2)

            await world.router.stop(0.01)

            assert world.transport.cancelled == ["a", "b"]
            assert world.source.nacked == [("b-1", 0), ("b-2", 0)]
            assert len(asyncio.all_tasks()) == 1

    with caplog.at_level(logging.WARNING, "penstock.router"):
        run(test)
    assert "2 calls did not end within 0.01 s and are cut off" in caplog.text


def test_graceful_shutdown_step_3_burials_under_way_are_waited_for() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(404))) as world:
            world.records.gate = asyncio.Event()
            world.source.put(body("a"))
            await until(lambda: world.records.attempts)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            world.records.gate.set()
            await stopping

            assert (world.source.acked, world.source.nacked, len(world.records.buried)) == (["b-1"], [], 1)

    run(test)


def test_graceful_shutdown_step_3_a_burial_that_fails_gives_its_message_back() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(404))) as world:
            world.records.gate = asyncio.Event()
            world.records.trouble = Unavailable("the disk is full")
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.records.attempts)
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            world.records.gate.set()
            await stopping

            assert (world.source.acked, world.source.nacked) == ([], [("b-1", 0), ("b-2", 0)])

    run(test)


def test_warning_shutdown_cleanup_errors_when_messages_cannot_be_given_back() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(body("a", "x"), body("b", "y"), body("c", "z"))
            await until(lambda: world.transport.open)
            world.source.refuses_nacks = True

            await world.router.stop(0.01)

            assert world.warned() == [("SHUTDOWN_CLEANUP_ERRORS", Severity.WARN)]
            assert "3 messages" in world.warnings()[0].message
            assert len(world.router.tracker) == 0

    run(test)


def test_graceful_shutdown_a_source_that_cannot_be_closed_does_not_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(World()) as world:
            await until(lambda: world.source.polls)
            world.source.trouble = Unavailable("away")
            await world.router.stop()
            assert world.records.flushes == 1

    run(test)
    assert "could not be closed cleanly" in caplog.text


def test_graceful_shutdown_draining_pools_and_queues_are_stopped_as_well() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            source = world.source
            source.put(body("a"))
            await until(lambda: world.transport.open)
            await world.apply(queues=())
            stopping = asyncio.create_task(world.router.stop())
            await turns()
            world.transport.open[0].answer()
            await stopping

            assert (source.acked, source.stops) == (["b-1"], 1)
            assert (world.router.draining_feeds, world.router.draining_runners) == ([], [])

    run(test)


def test_graceful_shutdown_twice_and_without_a_start() -> None:
    async def test() -> None:
        world = World()
        await world.router.stop()
        async with running(world):
            await asyncio.gather(world.router.stop(), world.router.stop())
            assert world.source.stops == 1
            await world.router.stop()

    run(test)


@BOTH
def test_graceful_shutdown_a_router_can_be_given_work_again(fifo: str) -> None:
    async def test() -> None:
        async with running(World(fifo=fifo)) as world:
            world.source.put(body("a"))
            await until(lambda: world.source.acked)
            await world.router.stop()

            await world.apply(PoolConfig("P", 10))
            world.transport.script = lambda _request: OK
            world.source.put(body("b"))
            await until(lambda: world.source.acked)

            assert len(world.opened) == 2

    run(test)


def test_graceful_shutdown_a_message_that_was_forced_out_while_its_call_runs_is_not_given_back() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            found = world.router.tracker.find("a")
            assert found is not None
            world.router.force_ack(found)

            await world.router.stop(0.01)

            assert (world.source.acked, world.source.nacked) == (["b-1"], [])

    run(test)
