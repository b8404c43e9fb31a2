"""Hot standby with a real Redis: one primary at a time, whatever happens to it, to Redis or to the lock.

The times are those of production divided by 10: a busy machine that stands still for a moment must not cost the lock. Each
coroutine marked `shared_server` or `own_server` is a test case; they mostly wait, so that one test plays them at the same time.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.router.core.outcome import Severity
from penstock.router.standby import Standby
from tests.integration.router.redis_server import RedisServer, needs_redis, redis_server
from tests.together import play_together

pytestmark = needs_redis

TTL, RENEW, RETRY, MARGIN, CALL = 3.0, 0.6, 0.1, 0.5, 0.5
LOOK = 0.01
"""Seconds between two looks at who is primary."""
TIMES: dict[str, Any] = {"ttl": TTL, "renew_every": RENEW, "retry_every": RETRY, "margin": MARGIN, "call_timeout": CALL}
keys = (f"lock-{number}" for number in count())


class Routers:
    """Several routers that stand by for each other, and what they were told."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.key = next(keys)
        self.all: list[Standby] = []
        self.told: list[list[bool]] = []
        self.warnings: list[tuple[Severity, str]] = []
        self.most = 0
        """Primaries at one instant."""

    async def add(self, on_change: Callable[[bool], Awaitable[None]] | None = None, **options: Any) -> Standby:
        told: list[bool] = []

        async def tell(is_primary: bool) -> None:
            told.append(is_primary)
            if on_change is not None:
                await on_change(is_primary)

        def warn(category: str, severity: Severity, message: str) -> None:
            assert category == "STANDBY"
            self.warnings.append((severity, message))

        standby = Standby(self.server.url, key=self.key, on_change=tell, warn=warn, **TIMES | options)
        self.all.append(standby)
        self.told.append(told)
        await standby.start()
        return standby

    @property
    def primaries(self) -> list[Standby]:
        return [standby for standby in self.all if standby.is_primary]

    async def until_primary(self, standby: Standby) -> None:
        """Return when it is primary and was told so."""
        told = self.told[self.all.index(standby)]
        await self.until(lambda: standby.is_primary and told[-1:] == [True])

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, len(self.primaries))
            await asyncio.sleep(LOOK)

    async def until(self, condition: Callable[[], object], within: float = 60) -> None:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110  # nobody sets an event when a lock changes hands
                await asyncio.sleep(LOOK)

    async def stays(self, condition: Callable[[], object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert condition()
            await asyncio.sleep(LOOK)

    def value(self) -> str | None:
        with self.server.client() as client:
            found = client.get(self.key)
        assert found is None or isinstance(found, str)
        return found


@asynccontextmanager
async def routers(server: RedisServer) -> AsyncIterator[Routers]:
    found = Routers(server)
    watching = asyncio.create_task(found.watch())
    try:
        async with asyncio.timeout(90):
            yield found
        assert found.most <= 1, "two routers were primary at the same instant"
    finally:
        watching.cancel()
        await asyncio.gather(*(standby.stop() for standby in found.all))


Play = Callable[[Routers], Coroutine[Any, Any, None]]
SHARED: list[Play] = []
OWN: list[Play] = []


def shared_server(play: Play) -> Play:
    """A test case that may share its Redis with others."""
    SHARED.append(play)
    return play


def own_server(play: Play) -> Play:
    """A test case that kills or hangs its Redis, or needs one with a password."""
    OWN.append(play)
    return play


async def played(play: Play, server: RedisServer) -> None:
    async with routers(server) as found:
        await play(found)


@shared_server
async def the_first_becomes_primary_and_stays_it_while_the_others_stand_by(routers: Routers) -> None:
    one = await routers.add(instance_id="one")
    await routers.until_primary(one)
    two = await routers.add(instance_id="two")
    await routers.until(lambda: two.status().is_redis_available)

    await routers.stays(lambda: one.is_primary and not two.is_primary, 1.3 * TTL)
    assert routers.told == [[True], []]
    assert (one.status().role, two.status().role) == ("PRIMARY", "STANDBY")
    assert (one.status().holder, two.status().holder) == ("one", "one")
    assert abs(one.status().refreshed_at / 1e6 - time.time()) < 60, "it is wall time"
    with routers.server.client() as client:
        assert 0 < client.pttl(routers.key) <= TTL * 1000


@shared_server
async def a_router_that_stops_releases_the_lock_at_once_but_not_before_it_has_ended(routers: Routers) -> None:
    seen: list[tuple[bool, bool]] = []

    async def end_slowly(is_primary: bool) -> None:
        if not is_primary:
            await asyncio.sleep(1.3 * TTL)  # longer than the lock would last by itself
            seen.append((one.is_primary, two.is_primary))

    one = await routers.add(end_slowly)
    await routers.until_primary(one)
    lock = routers.value()
    two = await routers.add()
    await one.stop()
    assert seen == [(False, False)]
    assert routers.value() != lock
    await routers.until(lambda: routers.told == [[True, False], [True]])


@shared_server
async def a_lock_that_somebody_took_by_hand_is_given_up_at_once_and_left_alone(routers: Routers) -> None:
    one = await routers.add()
    await routers.until_primary(one)
    with routers.server.client() as client:
        client.set(routers.key, "thief", px=60_000)
    await routers.until(lambda: routers.told == [[True, False]])
    await routers.until(lambda: one.status().holder == "thief")
    await one.stop()
    assert routers.value() == "thief"


@shared_server
async def a_lock_that_was_deleted_by_hand_is_given_up_and_taken_again(routers: Routers) -> None:
    one = await routers.add()
    await routers.until_primary(one)
    with routers.server.client() as client:
        client.delete(routers.key)
    await routers.until(lambda: routers.told == [[True, False, True]])
    assert one.is_primary


@shared_server
async def a_lock_that_a_killed_router_left_behind_is_taken_soon_after_it_has_run_out(routers: Routers) -> None:
    with routers.server.client() as client:
        client.set(routers.key, "killed", px=round(TTL * 1000))
    one = await routers.add()
    await routers.until(lambda: one.status().holder == "killed")
    assert not one.is_primary
    await routers.until(lambda: one.is_primary, within=3 * TTL)
    assert one.status().holder == one.instance_id


@own_server
async def while_redis_hangs_the_primary_ends_before_its_lock_does(routers: Routers) -> None:
    one = await routers.add()
    await routers.until_primary(one)
    before = one.status().refreshed_at
    await routers.until(lambda: one.status().refreshed_at != before)
    renewed = time.monotonic()
    routers.server.hang()
    while True:
        now = time.monotonic()
        if not one.is_primary:
            break
        assert now - renewed < TTL
        await asyncio.sleep(LOOK)
    await routers.until(lambda: routers.told == [[True, False]])
    assert not one.status().is_redis_available
    # On a busy machine Redis may have been slow before, which is a warning of its own.
    assert [severity for severity, _ in routers.warnings][-2:] == [Severity.WARN, Severity.CRITICAL]

    routers.server.go_on()
    await routers.until_primary(one)
    assert one.status().is_redis_available
    await routers.until(lambda: routers.told == [[True, False, True]])


@own_server
async def a_short_hang_of_redis_costs_nobody_the_lock(routers: Routers) -> None:
    one = await routers.add()
    await routers.until_primary(one)
    routers.server.hang()
    await routers.until(lambda: routers.warnings)
    routers.server.go_on()
    await routers.until(lambda: one.status().is_redis_available)
    await routers.stays(lambda: one.is_primary, TTL)
    assert routers.told == [[True]]


@own_server
async def redis_that_comes_back_without_the_lock_gives_it_to_nobody_else_too_early(routers: Routers) -> None:
    for _ in range(3):
        await routers.add()
    await routers.until(lambda: routers.primaries)
    await asyncio.to_thread(routers.server.kill)
    await asyncio.to_thread(routers.server.start)
    await routers.until(lambda: not routers.primaries)
    await routers.until(lambda: routers.primaries)


@shared_server
async def while_the_router_takes_long_to_start_its_lock_is_renewed(routers: Routers) -> None:
    started = asyncio.Event()

    async def start_slowly(is_primary: bool) -> None:
        if is_primary:
            await asyncio.sleep(1.5 * TTL)
            started.set()

    one = await routers.add(start_slowly)
    await routers.until_primary(one)
    await routers.stays(lambda: one.is_primary, 1.2 * TTL)
    await started.wait()
    assert one.is_primary
    assert routers.told == [[True]]


@shared_server
async def a_start_that_loses_its_lock_is_cancelled_and_ended(routers: Routers) -> None:
    ends: list[str] = []

    async def never_ready(is_primary: bool) -> None:
        try:
            if is_primary:
                await asyncio.Event().wait()
            ends.append("ended")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    one = await routers.add(never_ready)
    await routers.until_primary(one)
    with routers.server.client() as client:
        client.set(routers.key, "thief", px=5000)
    await routers.until(lambda: ends == ["cancelled", "ended"])

    with routers.server.client() as client:
        client.delete(routers.key)
    await routers.until(lambda: routers.told == [[True, False, True]])
    await one.stop()
    assert ends == ["cancelled", "ended", "cancelled", "ended"]


@shared_server
async def a_router_that_cannot_start_lets_another_one_be_primary(routers: Routers) -> None:
    async def fail(is_primary: bool) -> None:
        if is_primary:
            raise InvalidArgument("no configuration")

    one = await routers.add(fail)
    await routers.until(lambda: routers.told == [[True, False]])
    two = await routers.add()
    await routers.until_primary(two)
    assert not one.is_primary
    [problem] = [message for severity, message in routers.warnings if severity is Severity.CRITICAL]
    assert "no configuration" in problem


@shared_server
async def a_router_that_does_not_end_well_releases_its_lock_all_the_same(routers: Routers) -> None:
    async def fail(is_primary: bool) -> None:
        if not is_primary:
            raise RuntimeError("broken")

    one = await routers.add(fail)
    await routers.until_primary(one)
    await one.stop()
    assert routers.value() is None


@shared_server
async def two_routers_that_were_given_one_id_are_still_two(routers: Routers) -> None:
    for _ in range(2):
        await routers.add(instance_id="same")
    await routers.until(lambda: routers.primaries)
    await routers.stays(lambda: len(routers.primaries) == 1, 1.3 * TTL)


@shared_server
async def starting_and_stopping_may_be_done_twice_and_again(routers: Routers) -> None:
    unused = Standby(routers.server.url, on_change=nothing, warn=lambda *_: None)
    await unused.stop()

    one = await routers.add()
    await one.start()
    await routers.until_primary(one)
    await asyncio.gather(one.stop(), one.stop())
    await one.stop()
    assert not one.is_primary
    assert routers.value() is None
    assert routers.told == [[True, False]]

    await one.start()
    await routers.until_primary(one)
    await routers.until(lambda: routers.told == [[True, False, True]])


@shared_server
async def a_cancel_that_gets_lost_in_redis_keeps_no_router_from_stopping(routers: Routers) -> None:
    one = await routers.add()
    await routers.until_primary(one)
    renew, is_asked, lost = one._renew, asyncio.Event(), []

    async def renew_anyway() -> bool:
        is_asked.set()
        try:
            await asyncio.sleep(CALL / 2)
        except asyncio.CancelledError:
            lost.append(True)
        return await renew()

    one._renew = renew_anyway  # type: ignore[method-assign]  # as the library does when an answer comes at that moment
    await is_asked.wait()
    await one.stop()
    assert lost
    assert routers.value() is None


async def nothing(is_primary: bool) -> None:
    """For a router that nobody asks anything of."""


@own_server
async def a_wrong_password_is_warned_of_once_and_never_shown(routers: Routers) -> None:
    wrong = routers.server.url.replace("hunter2", "hunter3")
    warnings: list[str] = []
    standby = Standby(
        wrong, key=routers.key, on_change=nothing, warn=lambda category, severity, text: warnings.append(text), **TIMES
    )
    await standby.start()
    await routers.until(lambda: warnings)
    await asyncio.sleep(3 * RETRY)
    await standby.stop()
    assert len(warnings) == 1
    assert "redis://***@127.0.0.1" in warnings[0]
    assert not standby.is_primary
    assert standby.status().holder is None

    right = await routers.add()
    await routers.until_primary(right)
    assert "hunter" not in "".join(warnings)


@own_server
async def without_redis_nobody_is_primary_and_when_it_comes_somebody_is(routers: Routers) -> None:
    await asyncio.to_thread(routers.server.kill)
    one = await routers.add()
    await routers.until(lambda: routers.warnings)
    await routers.stays(lambda: not one.is_primary, 0.3)
    await asyncio.to_thread(routers.server.start)
    await routers.until_primary(one)


def test_one_router_at_a_time_is_primary(
    shared_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    with caplog.at_level(logging.DEBUG, "penstock"), ExitStack() as stack:
        scenes = {play.__name__: partial(played, play, shared_redis) for play in SHARED}
        for play in OWN:
            server = stack.enter_context(redis_server(tmp_path, password="hunter2"))
            scenes[play.__name__] = partial(played, play, server)
        play_together(scenes, subtests)
    assert "did not end well" in caplog.text
    assert "hunter" not in caplog.text


def test_a_redis_that_forgot_the_scripts_is_given_them_again(shared_redis: RedisServer) -> None:
    async def forgets(routers: Routers) -> None:
        one = await routers.add()
        await routers.until_primary(one)
        with shared_redis.client() as client:
            client.script_flush()
        before = one.status().refreshed_at
        await routers.until(lambda: one.status().refreshed_at != before)
        assert one.is_primary
        assert routers.warnings == []

    asyncio.run(played(forgets, shared_redis))


def test_an_address_that_cannot_be_is_refused(subtests: pytest.Subtests) -> None:
    for url in ["http://me:hunter2@host", "host", "redis://me:hunter2@host:port/0"]:
        with subtests.test(url=url):
            with pytest.raises(InvalidArgument) as refused:
                Standby(url, on_change=nothing, warn=lambda *_: None)
            assert "hunter2" not in str(refused.value)


def test_an_instance_id_that_cannot_be_shown_is_refused(subtests: pytest.Subtests) -> None:
    for instance_id in ["", " ", "a\n"]:
        with subtests.test(instance_id=instance_id), pytest.raises(InvalidArgument, match="instance_id"):
            Standby("redis://host", instance_id=instance_id, on_change=nothing, warn=lambda *_: None)


def test_every_instance_has_an_id_of_its_own() -> None:
    made = [Standby("redis://host", on_change=nothing, warn=lambda *_: None).instance_id for _ in range(2)]

    assert made[0] != made[1]
