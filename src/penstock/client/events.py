"""Listeners: `on("message", handler)`, as the specification has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from inspect import isawaitable
from typing import Any

from penstock.errors import InvalidArgument

log = logging.getLogger("penstock.client")

Listener = Callable[..., Any]


class Events:
    """Who listens to what. Listeners are functions or coroutine functions; those of one event are called in their order."""

    def __init__(self, *names: str) -> None:
        self.listeners: dict[str, list[Listener]] = {name: [] for name in names}
        """The lists are replaced, never changed: who goes through one is not disturbed by a listener that comes or goes."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_done: Callable[[], None] | None = None
        """Called when something that ran beside has ended."""

    def add(self, event: str, listener: Listener) -> None:
        """Have a listener called."""
        self._check(event)
        if not callable(listener):
            raise InvalidArgument.of("listener", listener, "a function or a coroutine function")
        self.listeners[event] = [*self.listeners[event], listener]

    def remove(self, event: str, listener: Listener) -> None:
        """Have it called no longer; does nothing when it was not."""
        self._check(event)
        listeners = self.listeners[event]
        if listener in listeners:
            index = listeners.index(listener)
            self.listeners[event] = [*listeners[:index], *listeners[index + 1 :]]

    def emit(self, event: str, *args: Any) -> bool:
        """Call the listeners; False when there is none. What they raise is logged: it must not end who tells them."""
        listeners = self.listeners[event]
        for listener in listeners:
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
        task.add_done_callback(self._done)

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether anything runs, but for these tasks."""
        return not self._tasks.issubset(but)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self.on_done is not None:
            self.on_done()

    def _check(self, event: str) -> None:
        if event not in self.listeners:
            raise InvalidArgument.of("event", event, f"one of {', '.join(map(repr, self.listeners))}")


async def _guarded(event: str, result: Awaitable[Any]) -> None:
    try:
        await result
    except Exception:
        log.exception("a listener of %r failed", event)
