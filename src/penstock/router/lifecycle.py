"""The lifecycle of a router: it fetches its configuration, works, runs periodic checks, and stops.

    start ──> (wait until it is the primary) ──> first configuration ──> works ──> stop
                        ^                                                  │
                        └───────────── another is the primary ─────────────┘

Specification 001, "Startup Sequence", "Scheduled Tasks" and "Graceful Shutdown".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from penstock.errors import FailedPrecondition, PenstockError, Unavailable
from penstock.router.configuration import Configuration
from penstock.router.core.config import RouterConfig
from penstock.router.core.outcome import Severity
from penstock.router.core.snapshot import StandbyState
from penstock.router.core.warnings import Category
from penstock.router.router import DRAIN_SECONDS, ROUTER, Router

log = logging.getLogger("penstock.router")

HEALTH_SECONDS = 60.0
CLEAN_UP_SECONDS = 10.0
LEAK_SECONDS = 30.0
DEPTH_SECONDS = 30.0
HANDOVER_SECONDS = 3.0
"""How long calls may still run if another router may start at any moment."""


class PrimaryElection(Protocol):
    """Decides which of several routers works: the one that holds the lock."""

    async def start(self) -> None:
        """Try to become the primary; the owner is called for every change, and awaited."""

    async def stop(self) -> None:
        """Notify the owner that it is not the primary any more, and then release the lock. Safe to call twice."""

    @property
    def is_primary(self) -> bool:
        """Whether it is the primary at this moment."""

    def status(self) -> StandbyState:
        """The role of this router."""


class RouterLifecycle:
    """Runs one router. `start` returns at once; `failed` ends if the router cannot continue."""

    def __init__(
        self,
        router: Router,
        configuration: Configuration,
        *,
        election: Callable[[Callable[[bool], Awaitable[None]]], PrimaryElection] | None = None,
        is_enabled: bool = True,
        widen: Callable[[RouterConfig], RouterConfig] = lambda config: config,
    ) -> None:
        self.router = router
        self.configuration = configuration
        self.election = election(self._primacy_changed) if election is not None else None
        if self.election is not None:
            router.may_poll = lambda: self.election is not None and self.election.is_primary
        self.is_enabled = is_enabled
        self._widen = widen
        """Adds queues that are not in the configuration: those of redriven dead letters."""
        self.is_initialised = False
        """Whether the first configuration is applied, or this router has nothing to do now."""
        self.is_stopping = False
        self.failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """Set to the reason why the router cannot start: there is no configuration, and none is cached."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._begun: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. The first configuration is fetched in the background, so that the monitoring API can be served at once.

        Safe to call twice.
        """
        if self._begun is not None or self._tasks:
            return
        if not self.is_enabled:
            self.is_initialised = True
            log.info("the router is disabled")
        elif self.election is not None:
            self.is_initialised = True
            # Fetched while on standby: an endpoint that is down must not keep it from working when it becomes the primary.
            self._begun = asyncio.create_task(self._prepare())
            await self.election.start()
        else:
            self._begun = asyncio.create_task(self._begin())

    async def stop(self) -> None:
        """Stop cleanly: end the checks, then stop the router in its four steps. Safe to call twice."""
        self.is_stopping = True
        if self.election is not None:
            # It stops us before it lets another router start: no other router consumes what is still being processed here.
            await self.election.stop()
        await self._end(DRAIN_SECONDS)

    async def reload(self) -> bool:
        """Fetch the configuration now and apply it; returns whether it changed. FailedPrecondition if the router is idle."""
        if not self._tasks:
            raise _idle()
        # A task of this run: it ends with the router, but not if its caller is cancelled.
        reloading = asyncio.create_task(self._reload())
        self._tasks.append(reloading)
        reloading.add_done_callback(self._forget)
        try:
            return await asyncio.shield(reloading)
        except asyncio.CancelledError:
            if reloading.cancelled():
                raise _idle() from None
            raise

    async def _reload(self) -> bool:
        found = await self.configuration.again(tries=1)
        if found is not None:
            await self._apply(found)
        elif self.configuration.trouble:
            raise Unavailable(f"the configuration cannot be had: {self.configuration.trouble}")
        return found is not None

    def _forget(self, ended: asyncio.Task[Any]) -> None:
        self._tasks = [task for task in self._tasks if task is not ended]
        if not ended.cancelled():
            ended.exception()  # the caller may be gone

    async def _primacy_changed(self, is_primary: bool) -> None:
        if is_primary:
            if self._begun is not None:
                self._begun.cancel()
            self._begun = asyncio.create_task(self._begin())
        else:
            if not self.is_stopping:
                log.warning("this router is not the primary any more: it stops working and stands by")
            await self._end(DRAIN_SECONDS if self.is_stopping else HANDOVER_SECONDS)

    async def _prepare(self) -> None:
        try:
            await self.configuration.first()
        except PenstockError as error:
            log.warning("no configuration yet: %s", error)

    async def _begin(self) -> None:
        known = self.configuration.current
        try:
            await self._apply(known or await self.configuration.first())
        except Exception as error:  # noqa: BLE001  # after any error, a router that does nothing must not seem to work
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        self.is_initialised = True
        self._tasks = [
            asyncio.create_task(self._follow(is_old=known is not None)),
            self._each(HEALTH_SECONDS, self.router.restart_unhealthy),
            self._each(CLEAN_UP_SECONDS, self.router.clean_up),
            self._each(LEAK_SECONDS, self._check_for_leaks),
            self._each(DEPTH_SECONDS, self.router.refresh_depths),
        ]

    async def _end(self, drain_seconds: float) -> None:
        tasks = [*self._tasks, *([self._begun] if self._begun is not None else [])]
        self._tasks, self._begun = [], None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.router.stop(drain_seconds)

    async def _follow(self, *, is_old: bool) -> None:
        interval = self.router.options.sync_interval
        while True:
            try:
                if is_old:  # it was fetched before this router was on standby, which may be long ago
                    is_old = False
                    if (found := await self.configuration.again(tries=1)) is not None:
                        await self._apply(found)
                async for config in self.configuration.follow(interval):
                    await self._apply(config)
            except Exception as error:  # noqa: BLE001  # after any error: the next configuration may work
                self._unexpected_error("a new configuration could not be applied", error)

    async def _apply(self, config: RouterConfig) -> None:
        found = await self.router.apply(self._widen(config))
        for line in found.describe():
            log.info("%s", line)

    async def _check_for_leaks(self) -> None:
        self.router.check_for_leaks()

    def _each(self, seconds: float, check: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._repeat(seconds, check))

    async def _repeat(self, seconds: float, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await check()
            except Exception as error:  # noqa: BLE001  # a check that fails must stop neither the others nor itself
                self._unexpected_error("a check of the router failed", error)

    def _unexpected_error(self, what: str, error: Exception) -> None:
        said = str(error) if isinstance(error, PenstockError) else type(error).__name__
        log.error("%s", what, exc_info=error)
        self.router.warn(Category.PROCESSING, Severity.WARN, f"{what}: {said}", ROUTER)

    async def __aenter__(self) -> RouterLifecycle:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(asyncio.CancelledError):
            await self.stop()


def _idle() -> FailedPrecondition:
    return FailedPrecondition("the router does not work at present", hint="it is disabled, starts, stops, or stands by")
