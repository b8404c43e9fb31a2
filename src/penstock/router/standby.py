"""Hot standby: of several routers with one Redis, one is the primary, and another takes over when it fails.

The lock is a key with a time to live; its value identifies the holder, and the run of the holder. Each step is atomic in Redis:
take it if it is free, renew it if it is still ours, delete it if it is still ours. `core.primary_lease` decides when a router may
act on it.

`on_change` is called with True, then with False, then with True …, one call after the other. Becoming primary may take long (the
whole router starts), so the lock is renewed meanwhile; if it is lost before that is done, the call is cancelled. If the call
fails, the lock goes to another router. Either way a call with False follows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.clock import Clock, SystemClock, steady
from penstock.durations import SECOND, micros
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.extras import how_to_install
from penstock.router.core.config import shown_uri
from penstock.router.core.outcome import Severity
from penstock.router.core.primary_lease import Lease
from penstock.router.core.snapshot import StandbyState
from penstock.router.core.warnings import Warn

if TYPE_CHECKING:
    from redis.asyncio import Redis

KEY: Final = "message-router-primary-lock"
CATEGORY: Final = "STANDBY"

_RENEW: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

OnChange = Callable[[bool], Awaitable[None]]
log = logging.getLogger("penstock.router")


class Standby:
    """One of several routers. Durations are seconds."""

    def __init__(
        self,
        url: str,
        *,
        on_change: OnChange,
        warn: Warn,
        instance_id: str | None = None,
        key: str = KEY,
        ttl: float = 30,
        renew_every: float = 10,
        retry_every: float = 2,
        margin: float = 5,
        call_timeout: float = 3,
        clock: Clock | None = None,
    ) -> None:
        self._key = key
        self._warn = warn
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._now = steady(self._clock)
        self._name = shown_uri(url)
        self.instance_id = f"{socket.gethostname()}-{secrets.token_hex(4)}" if instance_id is None else instance_id
        if not self.instance_id.strip() or not self.instance_id.isprintable():
            raise InvalidArgument.of("instance_id", instance_id, "a name of characters that can be printed")
        # Two routers with the same id, or one that restarts with it, are still different holders.
        self._value = f"{self.instance_id}#{secrets.token_hex(8)}"
        self._lease = Lease(
            ttl=micros(ttl, "ttl"),
            margin=micros(margin, "margin"),
            renew_every=micros(renew_every, "renew_every"),
            retry_every=micros(retry_every, "retry_every"),
        )
        self._call_timeout = call_timeout
        self._redis = _open(url, call_timeout)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Lock()
        self._is_stopping = False
        self._talking = asyncio.Lock()
        """Held during a request to Redis: a late answer must not undo a release."""
        self._changed = asyncio.Event()
        self._terms = 0
        """How many times this router became the primary."""
        self._term = 0
        """The number of the present term as primary; 0 if it is not."""
        self._told = 0
        """The term that `on_change` was last called for."""
        self._all_told = asyncio.Event()
        self._holder: str | None = None
        self._refreshed_at = 0
        self._error = ""

    @property
    def is_primary(self) -> bool:
        """Whether this router may act at this moment: correct even if the event loop was blocked."""
        return self._term != 0 and self._lease.is_held(self._now())

    def status(self) -> StandbyState:
        return StandbyState(
            instance_id=self.instance_id,
            role="PRIMARY" if self.is_primary else "STANDBY",
            is_redis_available=not self._error and self._refreshed_at > 0,
            holder=self._holder,
            refreshed_at=self._refreshed_at,
        )

    async def start(self) -> None:
        """Start to request the lock, and return. Safe to call twice."""
        if self._tasks:
            return
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._tell())]

    async def stop(self) -> None:
        """Stop being primary, call `on_change`, and release the lock after that has ended.

        Safe to call twice, and before a start, but not inside `on_change`: it waits until that has ended.
        """
        async with self._stopping:
            if not self._tasks:
                return
            self._is_stopping = True
            self._set_term(False)
            try:
                while self._told:  # the lock is renewed until `on_change` has ended its work
                    self._all_told.clear()
                    await self._all_told.wait()
            finally:
                running = set(self._tasks)
                while running:  # an answer may arrive just as a task is cancelled, and hide the cancellation
                    for task in running:
                        task.cancel()
                    _, running = await asyncio.wait(running, timeout=self._call_timeout)
                self._tasks = []
                self._lease.refused(self._now())
                await self._release()
                await self._disconnect()

    async def _run(self) -> None:
        while not self._is_stopping or self._lease.is_ours(self._now()):
            if self._now() >= self._lease.next_at:
                async with self._talking:
                    await self._ask()
            now = self._now()
            self._set_term(self._lease.is_held(now))
            await asyncio.sleep(max(self._lease.wake_at(now) - now, 0) / SECOND)

    def _set_term(self, is_held: bool) -> None:
        is_held = is_held and not self._is_stopping
        if is_held == (self._term != 0):
            return
        if is_held:
            self._terms += 1
        self._term = self._terms if is_held else 0
        log.info("router %s is %s", self.instance_id, "the primary" if is_held else "on standby")
        self._changed.set()

    async def _ask(self) -> None:
        """One request: renew the lock if it is ours, otherwise try to acquire it."""
        sent_at = self._now()
        is_ours = self._lease.is_ours(sent_at)
        limit = min(self._call_timeout, self._lease.left(sent_at) / SECOND) if is_ours else self._call_timeout
        try:
            async with asyncio.timeout(limit):
                is_granted = await (self._renew() if is_ours else self._acquire())
                uptime = await self._uptime() if is_granted and not is_ours else None
        except Exception as error:  # noqa: BLE001  # after any error, the lease goes by the clock, and the next try may work
            self._lease.unanswered(self._now())
            self._set_term(self._lease.is_held(self._now()))
            await self._fail(error)
            return
        if not is_granted:
            self._lease.refused(self._now())
            if is_ours:
                log.warning("the lock of router %s is not its own any more", self.instance_id)
        elif is_ours:
            self._lease.renewed(sent_at)
        else:
            self._lease.acquired(sent_at, self._now(), uptime)
        if self._error:
            log.info("Redis at %s answers again", self._name)
        self._error, self._refreshed_at = "", self._clock.now()

    async def _acquire(self) -> bool:
        if await self._redis.set(self._key, self._value, nx=True, px=self._lease.ttl // 1000):
            self._holder = self.instance_id
            return True
        found = await self._redis.get(self._key)
        holder = "" if found is None else str(found)
        self._holder = holder.rpartition("#")[0] or holder or None
        # Ours, but we did not know: the answer to an earlier request was lost, or was late.
        return holder == self._value and await self._renew()

    async def _renew(self) -> bool:
        is_ours = bool(await self._redis.register_script(_RENEW)(keys=[self._key], args=[self._value, self._lease.ttl // 1000]))
        self._holder = self.instance_id if is_ours else None
        return is_ours

    async def _uptime(self) -> int | None:
        """How long Redis has been up, at least; None if we are not allowed to ask."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  # it is installed, or we would not be here

        try:
            return int((await self._redis.info("server"))["uptime_in_seconds"]) * SECOND
        except (ResponseError, KeyError):
            return None

    async def _fail(self, error: Exception) -> None:
        problem = _why(error, self._call_timeout)
        if not self._error:
            what = "this router stays primary a little longer" if self.is_primary else "nobody becomes primary without it"
            self._warn(CATEGORY, Severity.WARN, f"Redis at {self._name} does not answer: {problem}; {what}")
        self._error = problem
        await self._disconnect()  # a late answer must not be taken for that of the next request

    async def _tell(self) -> None:
        """Call `on_change` for every change, in order."""
        while True:
            while self._told == self._term:
                self._all_told.set()
                await self._changed.wait()
                self._changed.clear()
            if self._told:
                if self._error and not self._is_stopping:
                    self._warn(
                        CATEGORY, Severity.CRITICAL, f"this router is not primary any more: Redis at {self._name} is silent"
                    )
                await self._report_deposed()
                self._told = 0
            else:
                self._told = self._term
                await self._report_elected()

    async def _report_elected(self) -> None:
        term = self._term
        telling = asyncio.ensure_future(self._on_change(True))
        try:
            while not telling.done() and self._term == term:
                self._changed.clear()
                waiting = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait([telling, waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            telling.cancel()
            await asyncio.wait([telling])
        if not telling.cancelled() and (error := telling.exception()) is not None:
            log.error("router %s cannot act as the primary", self.instance_id, exc_info=error)
            self._warn(CATEGORY, Severity.CRITICAL, f"this router cannot act as the primary: {type(error).__name__}: {error}")
            await self._give_up()

    async def _report_deposed(self) -> None:
        try:
            await self._on_change(False)
        except Exception:
            log.exception("router %s did not end well as the primary", self.instance_id)

    async def _give_up(self) -> None:
        async with self._talking:
            self._lease.refused(self._now() + self._lease.ttl)
            self._set_term(False)
            await self._release()

    async def _release(self) -> None:
        """Delete the lock, if it is ours. If that fails, it expires."""
        try:
            async with asyncio.timeout(self._call_timeout):
                if await self._redis.register_script(_RELEASE)(keys=[self._key], args=[self._value]):
                    self._holder = None
        except Exception as error:  # noqa: BLE001  # optional: it only saves the other routers a wait
            log.info("the lock of router %s is not released: %s", self.instance_id, _why(error, self._call_timeout))

    async def _disconnect(self) -> None:
        with suppress(Exception):  # a connection that does not close properly is closed all the same
            async with asyncio.timeout(1):
                await self._redis.connection_pool.disconnect()


def _open(url: str, timeout: float) -> Redis:
    try:
        from redis.asyncio import Redis  # noqa: PLC0415  # only a standby needs it
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
    except ImportError as error:
        raise FailedPrecondition("hot standby needs the library redis", hint=how_to_install("router")) from error
    try:
        return Redis.from_url(
            url,
            decode_responses=True,
            protocol=2,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),  # `Lease` decides when to try again
        )
    except ValueError:
        raise InvalidArgument.of("standby", shown_uri(url), "a URL such as redis://host:6379/0") from None


def _why(error: Exception, timeout: float) -> str:
    """Why Redis did not answer. Redis quotes unknown requests, which may contain the password: that part is removed."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    return f"{type(error).__name__}: {str(error).partition(', with args')[0]}"
