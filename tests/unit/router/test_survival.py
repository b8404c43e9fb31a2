"""What nobody has thought of: an error that is no PenstockError, anywhere, costs neither a message nor a worker nor a queue."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.errors import Unavailable
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router import feed as feeds
from penstock.router import inspection
from penstock.router.core.circuit import State
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.message import DEFAULT_POOL, SourceMessage
from penstock.router.core.outcome import Severity
from penstock.router.records import Attempt
from tests.unit.router.doubles import OK, TARGET, MemorySource, body, turns, until
from tests.unit.router.test_lifecycle import CONFIG, Lived, Lock
from tests.unit.router.test_mediator import Desk
from tests.unit.router.worlds import World, open_calls, run, running

BUG = RuntimeError("a bug")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(feeds, "LONGEST_PAUSE", 0.002)


def is_warned(world: World, category: str = "PROCESSING", severity: Severity = Severity.WARN) -> bool:
    return (category, severity) in world.warned()


def test_a_poll_that_fails_unexpectedly_is_tried_again_and_warned_of() -> None:
    async def test() -> None:
        source = MemorySource()
        source.trouble = BUG  # first its start, then its polls
        async with running(World(source=source)) as world:
            await until(lambda: is_warned(world))
            source.trouble = None
            await until(lambda: source.polls)
            source.trouble = BUG
            source.put(body("a"))
            await until(lambda: world.router.feeds["Q"].trouble == "it failed unexpectedly")
            assert "a bug" not in str(world.warnings())

            source.trouble = None
            await until(lambda: source.acked)

            assert world.router.feeds["Q"].trouble is None

    run(test)


def test_a_batch_that_cannot_be_routed_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(World()) as world:

            def broken(*_: object) -> None:
                raise BUG

            with monkeypatch.context() as patched:
                patched.setattr(world.router, "route", broken)
                world.source.put(body("a"))
                await until(lambda: world.source.nacked)
            assert world.source.nacked == [("b-1", 30)]
            assert is_warned(world)

            await world.tick(30)
            await until(lambda: world.source.acked)

    run(test)


def test_a_record_that_cannot_be_written_costs_neither_worker_nor_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 1)) as world:

            def broken(_attempt: Attempt) -> None:
                raise BUG

            with monkeypatch.context() as patched:
                patched.setattr(world.records, "attempted", broken)
                world.source.put(body("a", "g"), body("b", "g"))
                await until(lambda: world.router.runners["P"].pool.held)
            assert world.router.runners["P"].pool.active == 0
            assert is_warned(world)

            await world.tick(30)
            await world.settled()

            assert world.source.acked == ["b-1", "b-2"]

    run(test)


def test_a_dead_letter_that_cannot_be_kept_for_no_known_reason_is_tried_again() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(404)), PoolConfig("P", 1)) as world:
            world.records.trouble = BUG
            world.source.put(body("a", "g"))
            await until(lambda: is_warned(world, severity=Severity.CRITICAL))
            assert world.source.acked == []
            await until(lambda: world.router.runners["P"].pool.held)

            world.records.trouble = None
            await world.tick(30)
            await world.settled()

            assert [row[0] for row in world.records.buried] == ["a"]
            assert "a bug" not in str(world.warnings())

    run(test)


def test_a_second_call_that_cannot_be_made_ends_the_attempt() -> None:
    async def test() -> None:
        desk = Desk(lambda _request: Answer(503))

        def breaks(_request: object) -> Answer:
            desk.transport.breaks = BUG
            return Answer(503)

        desk.transport.script = breaks
        calls, outcome = await desk.outcome()

        assert calls == 3
        assert "a bug" not in outcome.error

    run(test)


def test_every_call_of_an_attempt_is_signed_with_its_own_time() -> None:
    async def test() -> None:
        desk = Desk(open_calls, signing_secret="whsec_c2VjcmV0")
        desk.deliver()
        desk.clock.advance(900)  # the first call may take as long
        desk.transport.one("m").answer(Answer(503))
        await until(lambda: len(desk.transport.requests) > 1)
        first, second = (request.headers.partition(b"webhook-timestamp: ")[2][:10] for request in desk.transport.requests)

        assert int(second) - int(first) == 900

    run(test)


@pytest.mark.parametrize("target", ["no url", "", "http://[", "https://" + "x" * 10_000])
def test_targets_and_tokens_of_any_size_are_not_remembered(target: str) -> None:
    async def test() -> None:
        desk = Desk()
        await desk.outcome(target=target, auth_token="t" * 100_000)

        assert list(desk.mediator.breakers) == ["malformed"]
        assert desk.mediator._by_url == {}
        assert list(desk.mediator._tokens) == [""]

    run(test)


def test_a_probe_that_cannot_be_made_is_no_probe() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open()
        desk.clock.advance(5)
        desk.transport.breaks = BUG
        with pytest.raises(RuntimeError):
            desk.deliver()
        desk.transport.breaks, desk.transport.script = None, lambda _request: OK

        for _ in range(3):
            await desk.outcome()

        assert desk.mediator.breaker(TARGET).state is State.CLOSED

    run(test)


def test_a_queue_that_does_not_close_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "CLOSE_SECONDS", 0.01)

    class Stuck(MemorySource):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    async def test() -> None:
        world = World(source=Stuck())
        await world.apply(PoolConfig("P", 1), queues=("Q", "R"))
        await until(lambda: world.sources["R"].polls)
        world.sources["R"].trouble = BUG
        await world.router.stop(1)

        assert world.records.flushes == 1
        assert world.router.feeds == {}
        assert not world.router.mediator.is_stopping

    run(test)


def test_a_queue_that_cannot_be_opened_is_tried_again() -> None:
    async def test() -> None:
        world = World()
        world.cannot_open = Unavailable("not now")
        async with running(world):
            assert world.router.feeds == {}
            assert is_warned(world, "QUEUE_VALIDATION", Severity.ERROR)
            await world.router.restart_unhealthy()
            assert world.router.feeds == {}
            world.cannot_open = None

            await world.router.restart_unhealthy()
            world.source.put(body("a"))

            await until(lambda: world.source.acked)

    run(test)


def test_a_source_that_cannot_be_made_for_no_known_reason_does_not_stop_the_configuration() -> None:
    async def test() -> None:
        world = World()
        world.cannot_open = BUG  # type: ignore[assignment]  # that is the point
        async with running(world):
            assert list(world.router.runners) == ["P"]
            assert is_warned(world, "QUEUE_VALIDATION", Severity.ERROR)

    run(test)


def test_a_nack_that_fails_keeps_no_other_message_from_going_back() -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo="strict"), PoolConfig("P", 1)) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(5)))
            await until(lambda: len(world.router.tracker) == 5)
            world.source.refuses_nacks = True
            await world.apply(queues=("Q",))

            assert len(world.router.tracker) == 1
            world.source.refuses_nacks = False

    run(test)


def test_closing_that_is_cut_off_is_done_when_the_router_stops() -> None:
    class Slow(MemorySource):
        async def stop(self) -> None:
            await super().stop()
            if self.stops == 1:
                await asyncio.Event().wait()

    async def test() -> None:
        source = Slow()
        async with running(World(source=source)) as world:
            await world.apply(PoolConfig("P", 10), queues=())
            cleaning = asyncio.create_task(world.router.clean_up())
            await until(lambda: source.stops)
            cleaning.cancel()
            await turns()
            await world.router.stop(1)

            assert source.stops == 2

    run(test)


def test_the_tracker_forgets_queues_that_are_gone() -> None:
    async def test() -> None:
        async with running(World(), queues=("Q", "R")) as world:
            world.sources["R"].put(body("a"))
            await until(lambda: world.sources["R"].acked)
            await world.apply(PoolConfig("P", 10))
            await world.router.clean_up()

            assert world.router.tracker._by_queue == {}

    run(test)


# ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_force_ack_finds_a_message_that_came_before_its_pool_was_there() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig(DEFAULT_POOL, 1)) as world:
            world.source.put(body("a", "g", pool="X"), body("b", "g", pool="X"))
            await until(lambda: len(world.router.tracker) == 2)
            await world.apply(PoolConfig(DEFAULT_POOL, 1), PoolConfig("X", 1))
            found = world.router.tracker.find("b")
            assert found is not None
            world.router.force_ack(found)
            world.transport.one("a").answer()
            await world.settled()

            assert world.transport.called == ["a"]

    run(test)


def test_a_message_that_was_taken_out_is_no_dead_letter() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            found = world.router.tracker.find("a")
            assert found is not None
            world.router.force_ack(found)
            world.transport.one("a").answer(Answer(404))
            await turns()

            assert (world.records.buried, world.router.runners["P"].pool.active) == ([], 0)

    run(test)


# ── pools that come and go ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [OK, Failure(FailureKind.MALFORMED)], ids=["delivered", "dead"])
@pytest.mark.parametrize("then", [(), (PoolConfig("P", 5),)], ids=["removed", "removed and added again"])
def test_decision_22_what_a_removed_pool_still_works_on_is_not_overtaken(
    answer: Answer | Failure, then: Sequence[PoolConfig]
) -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(body("1", "g"), body("2", "g"), body("3", "g"), body("x", "h"))
            await until(lambda: len(world.router.tracker) == 4)
            await world.apply()
            await world.apply(*then)
            await until(lambda: "x" in world.transport.called)  # another group goes on
            await turns()
            assert "2" not in world.transport.called
            world.transport.script = lambda _request: OK
            for request in [*world.transport.open]:
                request.answer(answer if request.message_id == "1" else OK)
            await world.tick(10)
            await world.settled()

            assert [one for one in world.transport.called if one != "x"] == ["1", "2", "3"]
            await world.router.clean_up()
            assert not world.router._group_moves

    run(test)


def test_decision_22_what_fails_in_a_removed_pool_is_not_overtaken() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(body("1", "g"), body("2", "g"))
            await until(lambda: len(world.router.tracker) == 2)
            await world.apply()
            await until(lambda: ("b-2", 10) in world.source.nacked)
            world.transport.one("1").answer(Answer(429, b"", "30"))
            world.transport.script = lambda _request: OK
            await until(lambda: ("b-1", 30) in world.source.nacked)
            await world.tick(10)
            await turns()
            for _ in range(9):
                await world.tick(10)
                await turns()
            await world.settled()

            assert world.transport.called == ["1", "1", "2"]

    run(test)


def test_decision_22_a_pool_that_is_added_does_not_overtake_the_default_pool() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig(DEFAULT_POOL, 1)) as world:
            world.source.put(*(body(str(number), "g", pool="X") for number in range(3)))
            await until(lambda: len(world.router.tracker) == 3)
            await world.apply(PoolConfig(DEFAULT_POOL, 1), PoolConfig("X", 5))
            world.source.put(body("3", "g", pool="X"))
            await until(lambda: world.source.nacked)
            assert world.transport.called == ["0"]
            world.transport.script = lambda _request: OK
            world.transport.one("0").answer()
            await until(lambda: len(world.router.tracker) == 0)
            await world.tick(10)
            await world.settled()

            assert world.transport.called == ["0", "1", "2", "3"]

    run(test)


# ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_configuration_that_cannot_be_taken_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        lived = Lived()

        async def broken(_config: RouterConfig) -> Any:
            raise BUG

        monkeypatch.setattr(lived.world.router, "apply", broken)
        await lived.lifecycle.start()
        await until(lived.lifecycle.failed.done)

        assert lived.lifecycle.failed.exception() is BUG
        await lived.lifecycle.stop()

    run(test)


def test_a_later_configuration_that_cannot_be_taken_on_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        lived = Lived()
        await lived.lifecycle.start()
        await until(lambda: lived.lifecycle.is_initialised)

        async def broken(_config: RouterConfig) -> Any:
            raise BUG

        with monkeypatch.context() as patched:
            patched.setattr(lived.world.router, "apply", broken)
            lived.place.said = RouterConfig(CONFIG.queues, (PoolConfig("A", 1),))
            lived.waiting.set()
            await until(lambda: is_warned(lived.world))
        lived.place.said = RouterConfig(CONFIG.queues, (PoolConfig("B", 1),))
        await until(lambda: len(lived.waits) > 1)
        lived.waiting.set()
        await until(lambda: "B" in lived.world.router.runners)
        await lived.lifecycle.stop()

    run(test)


def test_a_reload_ends_with_the_router_and_changes_nothing_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        lived = Lived()
        await lived.lifecycle.start()
        await until(lambda: lived.lifecycle.is_initialised)
        router = lived.world.router
        await until(lambda: lived.world.source.polls)
        lived.place.said = RouterConfig((*CONFIG.queues, QueueConfig("R", "test:///R")), CONFIG.pools)
        async with router._lock:  # something else is under way
            reloading = asyncio.create_task(lived.lifecycle.reload())
            await turns()
            stopping = asyncio.create_task(lived.lifecycle.stop())
            await turns()
        await stopping

        with pytest.raises(Exception, match="does not work at present"):
            await reloading
        await turns()
        assert router.feeds == {}

    run(test)


def test_a_reload_goes_on_when_whoever_asked_for_it_goes_away() -> None:
    async def test() -> None:
        lived = Lived()
        await lived.lifecycle.start()
        await until(lambda: lived.lifecycle.is_initialised)
        lived.place.said = RouterConfig((*CONFIG.queues, QueueConfig("R", "test:///R")), CONFIG.pools)
        async with lived.world.router._lock:
            reloading = asyncio.create_task(lived.lifecycle.reload())
            await turns()
            reloading.cancel()
            await turns()
        await until(lambda: "R" in lived.world.router.feeds)
        await lived.lifecycle.stop()

    run(test)


def test_start_twice_begins_once() -> None:
    async def test() -> None:
        lived = Lived()
        await lived.lifecycle.start()
        await lived.lifecycle.start()
        await until(lambda: lived.lifecycle.is_initialised)
        await lived.lifecycle.start()
        await turns()

        assert lived.place.asked == 1
        assert len(lived.world.opened) == 1
        await lived.lifecycle.stop()

    run(test)


def test_standby_what_was_configured_before_it_stood_by_is_looked_at_again() -> None:
    async def test() -> None:
        lived = Lived(election=Lock)
        await lived.lifecycle.start()
        await until(lambda: lived.configuration.current is not None)
        lived.place.said = RouterConfig(CONFIG.queues, (PoolConfig("NEW", 1),))

        await lived.lock.become(True)

        await until(lambda: "NEW" in lived.world.router.runners)
        await lived.lifecycle.stop()

    run(test)


def test_leases_are_extended_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        source = MemorySource(lease_seconds=0.04)
        async with running(World(open_calls, source=source)) as world:
            source.put(body("a"))
            await until(lambda: world.transport.open)
            source.lease_seconds = 0.04

            def broken(_received: SourceMessage, _seconds: int) -> None:
                raise BUG

            with monkeypatch.context() as patched:
                patched.setattr(source, "extend", broken)
                world.clock.advance(1)
                await until(lambda: is_warned(world))
            world.clock.advance(1)
            await until(lambda: source.extended)

    run(test)


def test_force_ack_does_not_wait_for_a_queue_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "FLUSH_SECONDS", 0.01)

    class Away(MemorySource):
        async def flush(self) -> None:
            await asyncio.Event().wait()

    async def test() -> None:
        lived = Lived(world=World(open_calls, source=Away()))
        await lived.lifecycle.start()
        await until(lambda: lived.world.sources)
        lived.world.source.put(body("a"))
        await until(lambda: lived.world.transport.open)
        lived.world.source.is_healthy = False

        forced = await inspection.Inspection(lived.lifecycle).force_ack("a")

        assert forced is not None
        assert lived.world.source.acked == ["b-1"]
        lived.world.transport.one("a").answer()
        await lived.lifecycle.stop()

    run(test)
