"""A router as its operator sees and changes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, NotFound, Unimplemented
from penstock.http.client.transport import Answer
from penstock.router.core.circuit import State
from penstock.router.core.config import PoolConfig
from penstock.router.core.health import readiness
from penstock.router.core.snapshot import SentMessage
from penstock.router.inspection import Inspection
from tests.unit.router.doubles import OK, TARGET, MemorySource, body, turns, until
from tests.unit.router.test_lifecycle import Lived, Lock
from tests.unit.router.worlds import World, open_calls, run


@asynccontextmanager
async def inspected(world: World | None = None) -> AsyncIterator[tuple[Inspection, World]]:
    lived = Lived(world=world or World(open_calls))
    async with lived.lifecycle as lifecycle:
        await until(lambda: lifecycle.is_initialised)
        yield Inspection(lifecycle), lived.world
        lived.world.transport.script = lambda _request: OK
        for request in [*lived.world.transport.open]:
            request.answer()


def test_snapshot_says_what_is_true_now() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.router.runners["P"].pool.update(1, 60)
            world.source.put(body("a", "x"), body("b", "y"))
            await until(lambda: world.transport.open)
            found = inspection.snapshot()

            assert (found.is_enabled, found.is_ready, found.in_flight, found.standby) == (True, True, 2, None)
            (pool,) = found.pools
            assert (pool.code, pool.concurrency, pool.rate_per_minute, pool.active, pool.queued) == ("P", 1, 60, 1, 1)
            assert (pool.capacity, pool.groups, pool.is_draining) == (50, 2, False)
            (queue,) = found.queues
            assert (queue.name, queue.is_connected) == ("Q", True)
            (consumer,) = found.consumers
            assert (consumer.queue, consumer.instance_id, consumer.is_running) == ("Q", "0", True)
            assert consumer.polled_at == world.clock.now()
            (breaker,) = found.breakers
            assert (breaker.name, breaker.state, breaker.size) == ("https://target.example", State.CLOSED, 10)

    run(test)


class JumpingClock(SystemClock):
    """The machine's clock, set to another time by somebody."""

    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_jumps_makes_nothing_late_and_no_age_negative(hours: int) -> None:
    async def test() -> None:
        clock = JumpingClock()
        world = World(clock=clock)
        async with inspected(world) as (inspection, _):
            await until(lambda: world.source.polls)
            world.source.put(body("a"))
            await until(lambda: world.source.acked)
            clock.ahead = hours * 3600 * SECOND
            now, found = clock.now(), inspection.snapshot()

            assert readiness(found, now).is_ready
            assert 0 <= now - found.started_at < 3600 * SECOND
            assert all(0 <= now - consumer.polled_at < 3600 * SECOND for consumer in found.consumers)
            assert all(0 <= now - pool.ended_at < 3600 * SECOND for pool in found.pools)
            assert all(feed.is_polling(now) for feed in world.router.feeds.values())

    run(test)


def test_snapshot_shows_queues_that_cannot_be_opened() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.cannot_open = NotFound("queue R")
            await world.apply(PoolConfig("P", 1), queues=("Q", "R"))
            found = inspection.snapshot()

            assert [(queue.name, queue.is_connected) for queue in found.queues] == [("Q", True), ("R", False)]
            assert [consumer.queue for consumer in found.consumers] == ["Q"]

    run(test)


def test_snapshot_shows_a_consumer_whose_queue_is_not_connected_as_unhealthy() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            (before,) = inspection.snapshot().consumers
            world.source.is_healthy = False
            (consumer,) = inspection.snapshot().consumers

            now = world.clock.now()
            assert (before.is_healthy(now), consumer.is_healthy(now), consumer.is_polling(now)) == (True, False, True)

    run(test)


def test_snapshot_shows_pools_that_drain_and_a_router_that_stands_by() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            await world.apply()
            assert [(pool.code, pool.is_draining) for pool in inspection.snapshot().pools] == [("P", True)]
        lived = Lived(election=Lock)
        async with lived.lifecycle as lifecycle:
            standby = Inspection(lifecycle).snapshot().standby
            assert standby is not None
            assert standby.role == "STANDBY"

    run(test)


def test_in_flight_messages_are_shown_oldest_first_and_can_be_narrowed_down() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.router.runners["P"].pool.update(1, None)
            world.source.put(
                body("Abc", "x", target="https://u:secret@t.example/h?token=secret"), body("b", "y"), body("abd", "z")
            )
            await until(lambda: world.transport.open)
            world.clock.advance(3)

            def names(**asked: object) -> list[str]:
                return [one.message_id for one in inspection.in_flight(100, **asked)]  # type: ignore[arg-type]  # as asked

            assert names() == ["Abc", "b", "abd"]
            assert names(message_id="AB") == ["Abc", "abd"]
            assert names(pool="p") == ["Abc", "b", "abd"]
            assert names(pool="other") == []
            assert names(is_running=True) == ["Abc"]
            assert len(inspection.in_flight(1)) == 1
            first, second, _ = inspection.in_flight(3)
            assert (first.broker_id, first.queue, first.pool, first.group, first.attempts) == ("b-1", "Q", "P", "x", 1)
            assert first.target == "https://t.example/h"
            assert (first.tracked_at, first.started_at) == (world.clock.now() - 3 * SECOND,) * 2
            assert second.started_at == 0

    run(test)


def test_a_message_is_found_by_its_own_id_or_its_queues() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            for name in ("a", "b-1"):
                found = inspection.find(name)
                assert found is not None
                assert found.message_id == "a"
            assert inspection.find("x") is None

    run(test)


def test_a_message_that_failed_says_why_and_when_it_is_tried_again_and_can_be_tried_now() -> None:
    async def test() -> None:
        answers = {"a": Answer(302), "b": OK}
        async with inspected(World(lambda request: answers[request.message_id])) as (inspection, world):
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.router.runners["P"].pool.held)

            first, second = inspection.in_flight(10)
            assert (first.message_id, first.error, first.due) == (
                "a",
                "the target answered with status 302: redirects are not followed",
                world.clock.now() + 30 * SECOND,
            )
            assert (second.message_id, second.error, second.due) == ("b", "", 0)
            found = inspection.snapshot()
            assert (found.pools[0].held, found.breakers[0].error) == (2, first.error)

            assert not inspection.retry_now("b")  # it waits behind the other
            assert not inspection.retry_now("none")
            answers["a"] = OK
            assert inspection.retry_now("a")
            await world.settled()
            assert world.source.acked == ["b-1", "b-2"]
            assert not inspection.retry_now("a")

    run(test)


def test_a_pool_that_is_paused_begins_nothing_until_it_goes_on() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            assert inspection.pause_pool("P", is_paused=True)
            assert inspection.snapshot().pools[0].is_paused
            world.source.put(body("a"))
            await until(lambda: inspection.snapshot().pools[0].queued)
            await world.tick(60)
            assert world.transport.called == []

            assert inspection.pause_pool("P", is_paused=False)
            await until(lambda: world.transport.called == ["a"])
            assert not inspection.pause_pool("none", is_paused=True)

    run(test)


def test_force_ack_while_a_call_runs() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.transport.open)

            forced = await inspection.force_ack("a")

            assert forced is not None
            assert (forced.message.message_id, forced.error) == ("a", None)
            assert (world.source.acked, len(world.router.tracker)) == (["b-1"], 1)
            world.transport.open[0].answer()  # its call ends as it may: it is not acked twice
            await until(lambda: world.transport.called == ["a", "b"])
            assert world.source.acked == ["b-1"]

    run(test)


@pytest.mark.parametrize(
    "found",
    [Answer(200, b'{"ack":false}'), Answer(200, b'{"ack":false,"delaySeconds":3000}')],
    ids=["held", "sent back"],
)
def test_force_ack_while_a_call_runs_that_then_fails_it_is_not_tried_again(found: Answer) -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.transport.open)
            await inspection.force_ack("a")

            world.transport.open[0].answer(found)

            await until(lambda: world.transport.called == ["a", "b"])
            assert (world.source.acked, world.source.nacked) == (["b-1"], [])

    run(test)


def test_force_ack_of_one_that_waits_it_is_never_called() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a", "g"), body("b", "g"), body("c", "g"))
            await until(lambda: world.transport.open)

            await inspection.force_ack("b")
            world.transport.open[0].answer()

            await until(lambda: world.transport.called == ["a", "c"])
            assert world.source.acked == ["b-2", "b-1"]

    run(test)


def test_force_ack_of_one_that_fails_again_and_again_lets_its_group_go_on() -> None:
    async def test() -> None:
        world = World(lambda request: Answer(302) if request.message_id == "a" else OK)
        async with inspected(world) as (inspection, _):
            world.source.put(body("a", "g", pool="UNKNOWN"), body("b", "g", pool="UNKNOWN"))
            await until(lambda: world.router.runners.get("DEFAULT-POOL") and world.router.runners["DEFAULT-POOL"].pool.held)

            await inspection.force_ack("b-1")

            await until(lambda: world.source.acked == ["b-1", "b-2"])

    run(test)


def test_force_ack_says_when_the_queue_may_not_have_heard_and_of_nobody_nothing() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            world.source.is_healthy = False

            assert await inspection.force_ack("x") is None
            forced = await inspection.force_ack("a")
            assert forced is not None
            assert forced.error == "the queue is not reached at present"

    run(test)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((None, None), PoolConfig("P", 10, 30)),
        ((3, None), PoolConfig("P", 3, 30)),
        ((None, 90), PoolConfig("P", 10, 90)),
        ((None, 0), PoolConfig("P", 10, None)),
    ],
)
def test_a_pool_can_be_changed(asked: tuple[int | None, int | None], found: PoolConfig) -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.router.runners["P"].pool.update(10, 30)

            assert await inspection.update_pool("P", *asked) == found
            pool = world.router.runners["P"].pool
            assert (pool.concurrency, pool.limit and pool.limit.per_minute) == (found.concurrency, found.rate_per_minute)
            with pytest.raises(NotFound):
                await inspection.update_pool("X", 1, None)

    run(test)


def test_a_pool_without_a_rate_stays_without() -> None:
    async def test() -> None:
        async with inspected() as (inspection, _):
            assert await inspection.update_pool("P", 2, None) == PoolConfig("P", 2, None)

    run(test)


def test_a_breaker_can_be_reset() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            breaker = world.router.mediator.breaker(TARGET)
            breaker.state = State.OPEN

            assert inspection.reset_breaker("https://target.example")
            assert breaker.state is State.CLOSED
            assert not inspection.reset_breaker("https://other.example")

    run(test)


def test_depths_and_the_configuration_can_be_asked_for_now() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            world.source.is_stuck = True
            world.source.put(body("a"))
            await inspection.refresh_depths()
            assert world.router.feeds["Q"].metrics.pending == 1
            assert not await inspection.reload()

    run(test)


def test_send_puts_a_message_on_a_queue_that_takes_one() -> None:
    class Writable(MemorySource):
        async def send(self, given: bytes, group: str) -> str:
            return self.put(given)[0]

    async def test() -> None:
        async with inspected(World(source=Writable())) as (inspection, world):
            assert await inspection.send(None, body("a"), "g") == SentMessage("b-1", "Q")
            assert await inspection.send("test:///Q", body("b"), "g") == SentMessage("b-2", "Q")
            await until(lambda: len(world.source.acked) == 2)
            with pytest.raises(NotFound):
                await inspection.send("X", body("c"), "g")

    run(test)


def test_send_refuses_where_there_is_nothing_to_write_to() -> None:
    async def test() -> None:
        async with inspected() as (inspection, world):
            with pytest.raises(Unimplemented):
                await inspection.send("Q", body("a"), "g")
            await world.apply(queues=())
            with pytest.raises(FailedPrecondition):
                await inspection.send(None, body("a"), "g")
            await turns()
            assert asyncio.all_tasks()

    run(test)
