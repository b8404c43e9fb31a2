"""A whole router between doubles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.errors import PenstockError
from penstock.http.client.transport import Answer, Failure
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import WarningRecord
from penstock.router.options import RouterOptions
from penstock.router.router import Router
from penstock.testing import ManualClock
from tests.unit.router.doubles import KeptRecords, MemorySource, Request, ScriptedTransport, until

Script = Callable[[Request], Answer | Failure | None]


def open_calls(_request: Request) -> None:
    """Every call stays open until the test answers it."""


class World:
    """A router with one queue Q and one pool P, unless it is given others. Its clock stands still."""

    def __init__(
        self, script: Script | None = None, source: MemorySource | None = None, *, clock: Any = None, **options: Any
    ) -> None:
        self.clock: ManualClock = clock or ManualClock()
        self.transport = ScriptedTransport(script)
        self.records = KeptRecords()
        self.sources: dict[str, MemorySource] = {}
        self.opened: list[MemorySource] = []
        self.cannot_open: PenstockError | None = None
        self._given = source
        options = {"retry_pause": 0.0, **options}
        self.router = Router(self.open, self.transport, self.records, RouterOptions(**options), self.clock)

    def open(self, config: QueueConfig) -> MemorySource:
        if self.cannot_open is not None:
            raise self.cannot_open
        made = self._given or MemorySource(self.clock)
        made.clock, self._given = self.clock, None
        self.sources[config.name] = made
        self.opened.append(made)
        return made

    @property
    def source(self) -> MemorySource:
        """What feeds Q."""
        return self.sources["Q"]

    async def apply(self, *pools: PoolConfig, queues: tuple[str, ...] = ("Q",), connections: int = 1) -> None:
        """Take on a configuration."""
        config = RouterConfig(tuple(QueueConfig(name, f"test:///{name}", connections) for name in queues), pools)
        await self.router.apply(config)

    async def settled(self) -> None:
        """Wait until the router holds nothing, and has seen all there is."""
        await until(
            lambda: (
                all(source.is_seen for source in self.sources.values())
                and not len(self.router.tracker)
                and not self.router._dead_letter_tasks
            )
        )

    async def tick(self, seconds: float) -> None:
        """Let time pass, and whoever waits for it see that."""
        self.clock.advance(seconds)
        for runner in [*self.router.runners.values(), *self.router.draining_runners]:
            runner.run()
        await asyncio.sleep(0)

    def warned(self) -> list[tuple[str, Severity]]:
        """The warnings, oldest first."""
        return [(str(one.category), one.severity) for one in reversed(self.warnings())]

    def warnings(self) -> list[WarningRecord]:
        return self.router.warnings.all(self.clock.now())


@asynccontextmanager
async def running(world: World, *pools: PoolConfig, **shape: Any) -> AsyncIterator[World]:
    """A router that works; at its end it is stopped, and holds nothing."""
    await world.apply(*(pools or (PoolConfig("P", 10),)), **shape)
    try:
        yield world
    finally:
        world.transport.script = lambda _request: Answer(200)
        for request in [*world.transport.open]:
            request.answer()
        await world.router.stop(1)
        assert len(world.router.tracker) == 0


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test inside a loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())
