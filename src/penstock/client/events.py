"""Listeners: `on("message", handler)`, as the specification has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any

from penstock.errors import InvalidArgument

log = logging.getLogger("penstock.client")

Listener = Callable[..., Any]


class Events:
    """Who listens to what. Listeners are functions or coroutine functions; those of one event are called in their order."""

    def __init__(self, *names: str) -> None:
        self.listeners: dict[str, list[Listener]] = {name: [] for name in names}
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, event: str, listener: Listener) -> None:
        """Have a listener called."""
        if event not in self.listeners:
            raise InvalidArgument.of("event", event, f"one of {', '.join(map(repr, self.listeners))}")
        if not callable(listener):
            raise InvalidArgument.of("listener", listener, "a function or a coroutine function")
        self.listeners[event].append(listener)

    def remove(self, event: str, listener: Listener) -> None:
        """Have it called no longer; does nothing when it was not."""
        if listener in self.listeners.get(event, ()):
            self.listeners[event].remove(listener)

    def emit(self, event: str, *args: Any) -> bool:
        """Call the listeners; False when there is none. What they raise is logged: it must not end who tells them."""
        listeners = self.listeners[event]
        for listener in [*listeners]:
            try:
                result = listener(*args)
                if result is not None and isawaitable(result):
                    self.keep(_guarded(event, result))
            except Exception:
                log.exception("a listener of %r failed", event)
        return bool(listeners)

    def keep(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside, and hold on to it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Return when nothing runs any more, but for whoever asks."""
        while running := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(running)


async def _guarded(event: str, result: Awaitable[Any]) -> None:
    try:
        await result
    except Exception:
        log.exception("a listener of %r failed", event)
