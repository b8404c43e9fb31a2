"""A loop of its own for a scenario of a client: nobody may fail unheard, and nothing may be left running."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

PATIENCE = 60.0


def run(scenario: Callable[[], Coroutine[Any, Any, None]], *, patience: float = PATIENCE) -> None:
    """Run a scenario to its end, within the patience."""

    async def main() -> None:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(patience):
            await scenario()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:  # the other end of a connection, where it is in this loop, hears of the end in a later turn
            _, left = await asyncio.wait(left, timeout=1)
        assert not left, f"still running: {left}"
        gc.collect()  # an exception that nobody retrieved is told of when its future goes
        assert not unheard, f"failed unheard: {unheard}"

    gc.freeze()  # what other tests have left makes a collection slow, and is not looked for here
    try:
        asyncio.run(main())
    finally:
        gc.unfreeze()


async def until(condition: Callable[[], bool], what: str, *, patience: float = PATIENCE) -> None:
    """Return when something outside of the loop has come true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while not condition():
        assert loop.time() < end, f"waited in vain: {what}"
        await asyncio.sleep(0.002)
