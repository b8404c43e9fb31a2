"""Hot standby with a real Redis: one primary at a time, whatever happens to it, to Redis or to the lock.

The times are those of production divided by 12: a busy machine that stands still for a moment must not cost the lock.
Every instant counts: whoever is primary is asked every few milliseconds.
"""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.router.core.outcome import Severity
from penstock.router.standby import Standby
from tests.integration.router.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

TTL, RENEW, RETRY, MARGIN, CALL = 2.5, 0.6, 0.1, 0.5, 0.5
SLACK = 3.0
"""Seconds that a busy machine may take for what is to be done at once."""
TIMES: dict[str, Any] = {"ttl": TTL, "renew_every": RENEW, "retry_every": RETRY, "margin": MARGIN, "call_timeout": CALL}
keys = (f"lock-{number}" for number in count())


@pytest.fixture(scope="module")
def redis_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


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

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, len(self.primaries))
            await asyncio.sleep(0.002)

    async def until(self, condition: Callable[[], object], within: float = 30) -> float:
        """Wait for it; how long that took."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < within, "it did not happen in time"
            await asyncio.sleep(0.002)
        return time.monotonic() - begun

    async def stays(self, condition: Callable[[], object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert condition()
            await asyncio.sleep(0.002)

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


def run(server: RedisServer, test: Callable[[Routers], Awaitable[None]]) -> None:
    async def body() -> None:
        async with routers(server) as found:
            await test(found)

    asyncio.run(body())


def test_the_first_becomes_primary_and_stays_it_while_the_others_stand_by(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add(instance_id="one")
        await routers.until(lambda: one.is_primary)
        two = await routers.add(instance_id="two")
        await routers.until(lambda: two.status().is_redis_available)

        await routers.stays(lambda: one.is_primary and not two.is_primary, 1.3 * TTL)
        assert routers.told == [[True], []]
        assert (one.status().role, two.status().role) == ("PRIMARY", "STANDBY")
        assert (one.status().holder, two.status().holder) == ("one", "one")
        assert abs(one.status().refreshed_at / 1e6 - time.time()) < TTL
        with redis_of_all.client() as client:
            assert 0 < client.pttl(routers.key) <= TTL * 1000

    run(redis_of_all, test)


def test_a_router_that_stops_releases_the_lock_at_once_but_not_before_it_has_ended(redis_of_all: RedisServer) -> None:
    seen: list[bool] = []

    async def test(routers: Routers) -> None:
        async def end_slowly(is_primary: bool) -> None:
            if not is_primary:
                await asyncio.sleep(1.3 * TTL)  # longer than the lock would last by itself
                seen.append(two.is_primary)

        one = await routers.add(end_slowly)
        await routers.until(lambda: one.is_primary)
        two = await routers.add()
        stopping = asyncio.create_task(one.stop())
        await routers.until(lambda: not one.is_primary, within=TTL / 2)
        await stopping

        assert seen == [False]
        assert await routers.until(lambda: two.is_primary) < TTL
        await routers.until(lambda: routers.told == [[True, False], [True]])

    run(redis_of_all, test)


def test_of_a_router_that_was_killed_another_takes_over_when_the_lock_has_run_out(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, redis_of_all.url, routers.key, stdout=subprocess.PIPE
        )
        try:
            assert child.stdout is not None
            assert await child.stdout.readline() == b"True\n"
            one = await routers.add()
            await routers.stays(lambda: not one.is_primary, 1.3 * TTL)
            child.kill()
            took = await routers.until(lambda: one.is_primary)
            assert took < TTL + SLACK
            assert one.status().holder == one.instance_id
        finally:
            if child.returncode is None:
                child.kill()
            await child.communicate()

    run(redis_of_all, test)


CHILD = f"""
import asyncio, sys
from penstock.router.standby import Standby

async def tell(is_primary):
    print(is_primary, flush=True)

async def main():
    standby = Standby(sys.argv[1], key=sys.argv[2], on_change=tell, warn=lambda *_: None, **{TIMES})
    await standby.start()
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_lock_that_somebody_took_by_hand_is_given_up_at_once_and_left_alone(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
        with redis_of_all.client() as client:
            client.set(routers.key, "thief", px=60_000)
        assert await routers.until(lambda: routers.told == [[True, False]]) < RENEW + SLACK
        await routers.until(lambda: one.status().holder == "thief")
        await one.stop()
        assert routers.value() == "thief"

    run(redis_of_all, test)


def test_a_lock_that_was_deleted_by_hand_is_given_up_and_taken_again(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
        with redis_of_all.client() as client:
            client.delete(routers.key)
        await routers.until(lambda: routers.told == [[True, False, True]])
        assert one.is_primary

    run(redis_of_all, test)


def test_while_redis_hangs_the_primary_ends_before_its_lock_does(tmp_path: Path) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
        before = one.status().refreshed_at
        await routers.until(lambda: one.status().refreshed_at != before)
        renewed = time.monotonic()
        routers.server.hang()
        await routers.until(lambda: not one.is_primary)
        assert time.monotonic() - renewed < TTL
        await routers.until(lambda: routers.told == [[True, False]])
        assert not one.status().is_redis_available
        assert [severity for severity, _ in routers.warnings] == [Severity.WARN, Severity.CRITICAL]

        routers.server.go_on()
        await routers.until(lambda: one.is_primary)
        assert one.status().is_redis_available
        await routers.until(lambda: routers.told == [[True, False, True]])

    with redis_server(tmp_path) as server:
        run(server, test)


def test_a_short_hang_of_redis_costs_nobody_the_lock(tmp_path: Path) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
        routers.server.hang()
        await routers.until(lambda: routers.warnings)
        routers.server.go_on()
        await routers.until(lambda: one.status().is_redis_available)
        await routers.stays(lambda: one.is_primary, TTL)
        assert routers.told == [[True]]

    with redis_server(tmp_path) as server:
        run(server, test)


def test_redis_that_comes_back_without_the_lock_gives_it_to_nobody_else_too_early(tmp_path: Path) -> None:
    async def test(routers: Routers) -> None:
        for _ in range(3):
            await routers.add()
        for _ in range(2):
            await routers.until(lambda: routers.primaries)
            await asyncio.to_thread(routers.server.kill)
            await asyncio.to_thread(routers.server.start)
            await routers.until(lambda: not routers.primaries)
        took = await routers.until(lambda: routers.primaries)
        assert took < TTL + 1 + SLACK  # Redis says how many whole seconds it is up

    with redis_server(tmp_path) as server:
        run(server, test)


def test_while_the_router_takes_long_to_start_its_lock_is_renewed(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        started = asyncio.Event()

        async def start_slowly(is_primary: bool) -> None:
            if is_primary:
                await asyncio.sleep(1.5 * TTL)
                started.set()

        one = await routers.add(start_slowly)
        await routers.until(lambda: one.is_primary)
        await routers.stays(lambda: one.is_primary, 1.2 * TTL)
        await started.wait()
        assert one.is_primary
        assert routers.told == [[True]]

    run(redis_of_all, test)


def test_a_start_that_loses_its_lock_is_cancelled_and_ended(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
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
        await routers.until(lambda: one.is_primary)
        with redis_of_all.client() as client:
            client.set(routers.key, "thief", px=5000)
        await routers.until(lambda: ends == ["cancelled", "ended"])

        with redis_of_all.client() as client:
            client.delete(routers.key)
        await routers.until(lambda: routers.told == [[True, False, True]])
        await one.stop()
        assert ends == ["cancelled", "ended", "cancelled", "ended"]

    run(redis_of_all, test)


def test_a_router_that_cannot_start_lets_another_one_be_primary(
    redis_of_all: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(routers: Routers) -> None:
        async def fail(is_primary: bool) -> None:
            if is_primary:
                raise InvalidArgument("no configuration")

        one = await routers.add(fail)
        await routers.until(lambda: routers.told == [[True, False]])
        two = await routers.add()
        await routers.until(lambda: two.is_primary, within=SLACK)
        assert not one.is_primary
        assert [severity for severity, _ in routers.warnings] == [Severity.CRITICAL]
        assert "no configuration" in routers.warnings[0][1]

    with caplog.at_level(logging.CRITICAL, "penstock.router"):
        run(redis_of_all, test)


def test_a_router_that_does_not_end_well_releases_its_lock_all_the_same(
    redis_of_all: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(routers: Routers) -> None:
        async def fail(is_primary: bool) -> None:
            if not is_primary:
                raise RuntimeError("broken")

        one = await routers.add(fail)
        await routers.until(lambda: one.is_primary)
        await one.stop()
        assert routers.value() is None

    run(redis_of_all, test)

    assert "did not end well" in caplog.text


def test_two_routers_that_were_given_one_id_are_still_two(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        for _ in range(2):
            await routers.add(instance_id="same")
        await routers.until(lambda: routers.primaries)
        await routers.stays(lambda: len(routers.primaries) == 1, 1.3 * TTL)

    run(redis_of_all, test)


def test_starting_and_stopping_may_be_done_twice_and_again(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        unused = Standby(redis_of_all.url, on_change=nothing, warn=lambda *_: None)
        await unused.stop()

        one = await routers.add()
        await one.start()
        await routers.until(lambda: one.is_primary)
        await asyncio.gather(one.stop(), one.stop())
        await one.stop()
        assert not one.is_primary
        assert routers.value() is None
        assert routers.told == [[True, False]]

        await one.start()
        await routers.until(lambda: one.is_primary)
        await routers.until(lambda: routers.told == [[True, False, True]])

    run(redis_of_all, test)


def test_a_cancel_that_gets_lost_in_redis_keeps_no_router_from_stopping(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
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

    run(redis_of_all, test)


async def nothing(is_primary: bool) -> None:
    """For a router that nobody asks anything of."""


def test_a_redis_that_forgot_the_scripts_is_given_them_again(redis_of_all: RedisServer) -> None:
    async def test(routers: Routers) -> None:
        one = await routers.add()
        await routers.until(lambda: one.is_primary)
        with redis_of_all.client() as client:
            client.script_flush()
        before = one.status().refreshed_at
        await routers.until(lambda: one.status().refreshed_at != before)
        assert one.is_primary
        assert routers.warnings == []

    run(redis_of_all, test)


def test_a_wrong_password_is_warned_of_once_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(routers: Routers) -> None:
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
        await routers.until(lambda: right.is_primary)
        assert "hunter" not in "".join(warnings) + caplog.text

    with caplog.at_level(logging.DEBUG, "penstock"), redis_server(tmp_path, password="hunter2") as server:
        run(server, test)


def test_without_redis_nobody_is_primary_and_when_it_comes_somebody_is(tmp_path: Path) -> None:
    async def test(routers: Routers) -> None:
        await asyncio.to_thread(routers.server.kill)
        one = await routers.add()
        await routers.until(lambda: routers.warnings)
        await routers.stays(lambda: not one.is_primary, 0.3)
        await asyncio.to_thread(routers.server.start)
        await routers.until(lambda: one.is_primary)

    with redis_server(tmp_path) as server:
        run(server, test)


@pytest.mark.parametrize("url", ["http://me:hunter2@host", "host", "redis://me:hunter2@host:port/0"])
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Standby(url, on_change=nothing, warn=lambda *_: None)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("instance_id", ["", " ", "a\n"])
def test_an_instance_id_that_cannot_be_shown_is_refused(instance_id: str) -> None:
    with pytest.raises(InvalidArgument, match="instance_id"):
        Standby("redis://host", instance_id=instance_id, on_change=nothing, warn=lambda *_: None)


def test_every_instance_has_an_id_of_its_own() -> None:
    made = [Standby("redis://host", on_change=nothing, warn=lambda *_: None).instance_id for _ in range(2)]

    assert made[0] != made[1]
