"""How a promise becomes a test of every driver to which it applies."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.conformance.consumers import google_drivers, hub_drivers, in_process_drivers, native_drivers, queue_api_drivers
from tests.conformance.consumers.driver import Driver
from tests.conformance.consumers.place import Options

DRIVERS: list[type[Driver]] = [
    *native_drivers.DRIVERS,
    *in_process_drivers.DRIVERS,
    *google_drivers.DRIVERS,
    *queue_api_drivers.DRIVERS,
    *hub_drivers.DRIVERS,
]

TIME_LIMIT = 100.0

Promise = Callable[..., Awaitable[None]]


def promise(*needs: str, with_tokens: bool = False, **options: bool) -> Callable[[Promise], Callable[..., None]]:
    """Make a test of a coroutine function whose first argument is a driver that is open.

    `needs` are what not every driver can do (see `Driver.cannot`); `options` are those of its place. `with_tokens` it is
    tested with a server that asks for tokens.
    """

    def decorate(check: Promise) -> Callable[..., None]:
        @functools.wraps(check)
        def test(driver: Driver, **fixtures: Any) -> None:
            async def bounded() -> None:
                async with asyncio.timeout(TIME_LIMIT), driver:
                    await check(driver, **fixtures)

            asyncio.run(bounded())

        test.needs = needs  # type: ignore[attr-defined]  # for `conftest.pytest_generate_tests`
        test.options = Options(**options)  # type: ignore[attr-defined]  # as above
        test.with_tokens = with_tokens  # type: ignore[attr-defined]  # as above
        return test

    return decorate
