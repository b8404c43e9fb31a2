"""Specification 001, "Startup Sequence", "Scheduled Tasks Summary", the end; standby; decision 27 as far as life decides it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.router import lifecycle
from penstock.router.configuration import Configuration
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.outcome import Severity
from penstock.router.core.snapshot import StandbyState
from penstock.router.lifecycle import CLEAN_UP_SECONDS, HEALTH_SECONDS, LEAK_SECONDS, RouterLifecycle
from tests.unit.router.doubles import body, turns, until
from tests.unit.router.worlds import World, open_calls, run

CONFIG = RouterConfig((QueueConfig("Q", "test:///Q"),), (PoolConfig("P", 10),))


class Place:
    """Where a configuration is kept."""

    name = key = "test"
    tries = 12

    def __init__(self, said: RouterConfig | Exception = CONFIG) -> None:
        self.said = said
        self.asked = 0

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        self.asked += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Lock:
    """Which of several routers works, as the test says."""

    def __init__(self, on_change: Callable[[bool], Awaitable[None]]) -> None:
        self._on_change = on_change
        self.is_primary = False
        self.told: list[str] = []

    async def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        if self.is_primary:
            await self.become(False)
        self.told.append("stop")

    async def become(self, is_primary: bool) -> None:
        self.is_primary = is_primary
        await self._on_change(is_primary)

    def status(self) -> StandbyState:
        role: Any = "PRIMARY" if self.is_primary else "STANDBY"
        return StandbyState(instance_id="me", role=role, is_redis_available=True, holder=None, refreshed_at=0)


class Lived:
    """A life around a router of doubles."""

    def __init__(self, said: RouterConfig | Exception = CONFIG, world: World | None = None, **options: Any) -> None:
        self.world = world or World()
        self.place = Place(said)
        self.waits: list[float] = []
        self.waiting = asyncio.Event()

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            if seconds > 5:
                await self.waiting.wait()
                self.waiting.clear()

        def warn(category: str, severity: Severity, message: str, /) -> None:
            self.world.router.warn(category, severity, message, "QueueManager")

        self.configuration = Configuration([self.place], warn=warn, sleep=sleep)
        self.lifecycle = RouterLifecycle(self.world.router, self.configuration, **options)

    @property
    def lock(self) -> Lock:
        assert isinstance(self.lifecycle.election, Lock)
        return self.lifecycle.election


def test_startup_sequence_start_returns_at_once_and_the_first_sync_begins_the_work() -> None:
    async def test() -> None:
        lived = Lived()
        async with lived.lifecycle as life:
            assert not life.is_initialised
            await until(lambda: life.is_initialised)
            lived.world.source.put(body("a"))
            await until(lambda: lived.world.source.acked)
        assert lived.world.source.stops == 1
        assert len(asyncio.all_tasks()) == 1

    run(test)


def test_startup_sequence_disabled_it_is_initialised_and_does_nothing() -> None:
    async def test() -> None:
        lived = Lived(is_enabled=False)
        async with lived.lifecycle as life:
            await turns()
            assert (life.is_initialised, lived.place.asked, lived.world.opened) == (True, 0, [])
            with pytest.raises(FailedPrecondition):
                await life.reload()

    run(test)


@pytest.mark.parametrize("trouble", [Unavailable("no answer"), InvalidArgument("not JSON")], ids=["away", "malformed"])
def test_startup_sequence_when_all_tries_fail_the_process_is_told_to_end(trouble: Exception) -> None:
    async def test() -> None:
        lived = Lived(trouble)
        async with lived.lifecycle as life:
            with pytest.raises(Unavailable, match="there is no configuration to start with"):
                await life.failed
            assert (lived.place.asked, set(lived.waits)) == (12, {5.0})
            assert lived.world.warned() == [("CONFIG_SYNC_FAILED", Severity.CRITICAL)]
            assert not life.is_initialised

    run(test)


def test_configuration_sync_a_change_is_applied_while_it_works() -> None:
    async def test() -> None:
        lived = Lived()
        async with lived.lifecycle as life:
            await until(lambda: life.is_initialised)
            lived.place.said = RouterConfig(CONFIG.queues, (PoolConfig("P", 3), PoolConfig("R", 1)))
            await until(lambda: lived.waits)
            lived.waiting.set()
            await until(lambda: "R" in lived.world.router.runners)
            assert lived.world.router.runners["P"].pool.concurrency == 3
            assert lived.waits[0] == 300

    run(test)


def test_warning_config_sync_failed_later_the_old_configuration_stays_in_force() -> None:
    async def test() -> None:
        lived = Lived()
        async with lived.lifecycle as life:
            await until(lambda: life.is_initialised)
            lived.place.said = Unavailable("no answer")
            await until(lambda: lived.waits)
            lived.waiting.set()
            await until(lived.world.warned)
            assert lived.world.warned() == [("CONFIG_SYNC_FAILED", Severity.WARN)]
            lived.world.source.put(body("a"))
            await until(lambda: lived.world.source.acked)

    run(test)


def test_reload_fetches_and_applies_now() -> None:
    async def test() -> None:
        lived = Lived()
        async with lived.lifecycle as life:
            with pytest.raises(FailedPrecondition, match="does not work at present"):
                await life.reload()
            await until(lambda: life.is_initialised)
            assert not await life.reload()
            lived.place.said = RouterConfig(CONFIG.queues, ())
            assert await life.reload()
            assert lived.world.router.runners == {}
            lived.place.said = Unavailable("no answer")
            with pytest.raises(Unavailable, match="cannot be had"):
                await life.reload()

    run(test)


def test_scheduled_tasks_their_intervals() -> None:
    assert (HEALTH_SECONDS, CLEAN_UP_SECONDS, LEAK_SECONDS) == (60, 10, 30)


def test_scheduled_tasks_run_again_and_again_and_a_failure_ends_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEALTH_SECONDS", "CLEAN_UP_SECONDS", "LEAK_SECONDS", "DEPTH_SECONDS"):
        monkeypatch.setattr(lifecycle, name, 0.001)

    async def test() -> None:
        lived, counts = Lived(), dict.fromkeys(("restart_unhealthy", "clean_up", "refresh_depths", "check_for_leaks"), 0)

        def counting(name: str) -> Callable[[], Any]:
            def count() -> None:
                counts[name] += 1
                raise Unavailable("a check")

            async def check() -> None:
                count()

            return count if name == "check_for_leaks" else check

        for name in counts:
            monkeypatch.setattr(lived.world.router, name, counting(name))
        async with lived.lifecycle:
            await until(lambda: all(count >= 3 for count in counts.values()))
        ended = dict(counts)
        await asyncio.sleep(0.005)
        assert counts == ended  # step 1 of the shutdown: none of them runs any more
        assert ("PROCESSING", Severity.WARN) in lived.world.warned()

    run(test)


def test_graceful_shutdown_step_1_stop_before_the_configuration_came_and_twice() -> None:
    async def test() -> None:
        lived = Lived(Unavailable("no answer"))
        life = lived.lifecycle
        await life.stop()
        await life.start()
        await life.stop()
        await life.stop()
        assert life.is_stopping
        assert len(asyncio.all_tasks()) == 1
        if life.failed.done():
            life.failed.exception()

    run(test)


# ── standby ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_startup_sequence_a_standby_is_initialised_and_does_not_work() -> None:
    async def test() -> None:
        lived = Lived(election=Lock)
        async with lived.lifecycle as life:
            await until(lambda: lived.place.asked)  # so that it can begin at once when its turn comes
            await turns()
            assert (life.is_initialised, lived.world.opened, lived.lock.told) == (True, [], ["start"])
        assert lived.lock.told == ["start", "stop"]

    run(test)


def test_standby_reload_does_not_begin_work_while_another_is_the_primary() -> None:
    async def test() -> None:
        lived = Lived(election=Lock)
        async with lived.lifecycle as life:
            await until(lambda: lived.configuration.current)
            lived.place.said = RouterConfig(CONFIG.queues, ())
            with pytest.raises(FailedPrecondition, match="does not work at present"):
                await life.reload()
            assert lived.world.opened == []

    run(test)


def test_standby_gained_it_works_and_lost_it_gives_everything_back_and_gained_again_it_works_again() -> None:
    async def test() -> None:
        lived = Lived(election=Lock)
        async with lived.lifecycle:
            await lived.lock.become(True)
            await until(lambda: lived.world.opened)
            lived.world.transport.script = open_calls
            lived.world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: lived.world.transport.open)

            losing = asyncio.create_task(lived.lock.become(False))
            await turns()
            lived.world.transport.open[0].answer()
            await losing
            assert (lived.world.source.acked, lived.world.source.nacked) == (["b-1"], [("b-2", 0)])
            assert len(lived.world.router.tracker) == 0

            lived.world.transport.script = lambda _request: None
            await lived.lock.become(True)
            await until(lambda: len(lived.world.opened) == 2)
            assert lived.world.router.runners["P"].pool.concurrency == 10

    run(test)


def test_standby_lost_calls_get_a_few_seconds_and_not_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "HANDOVER_SECONDS", 0.01)

    async def test() -> None:
        lived = Lived(world=World(open_calls), election=Lock)
        async with lived.lifecycle:
            await lived.lock.become(True)
            await until(lambda: lived.world.opened)
            lived.world.source.put(body("a"))
            await until(lambda: lived.world.transport.open)

            await lived.lock.become(False)

            assert lived.world.transport.cancelled == ["a"]
            assert lived.world.source.nacked == [("b-1", 0)]

    run(test)


def test_standby_polls_only_while_it_is_the_primary_at_that_very_moment() -> None:
    async def test() -> None:
        lived = Lived(election=Lock)
        async with lived.lifecycle:
            assert not lived.world.router.may_poll()
            lived.lock.is_primary = True
            assert lived.world.router.may_poll()
            lived.lock.is_primary = False

    run(test)


def test_standby_a_primary_without_a_configuration_fails_once() -> None:
    async def test() -> None:
        lived = Lived(Unavailable("no answer"), election=Lock)
        async with lived.lifecycle as life:
            await until(lambda: lived.place.asked >= 12)
            await lived.lock.become(True)
            with pytest.raises(Unavailable):
                await life.failed
            await lived.lock.become(False)
            await lived.lock.become(True)
            await until(lambda: lived.place.asked >= 36)

    run(test)
