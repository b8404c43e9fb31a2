"""Messages on their way to whoever wants them: to handlers as they come, or to an iterator that asks for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from penstock.client.events import Events, Listener
from penstock.client.message import IncomingMessage

M = TypeVar("M", bound=IncomingMessage)


class Inflow(Generic[M]):
    """Hands messages over. A handler that raises gives its message back, and the error is told; the rest goes on."""

    def __init__(self, events: Events, fail: Callable[[Exception, IncomingMessage], None]) -> None:
        self._events = events
        self._fail = fail
        self._handlers: list[Listener] = events.listeners["message"]
        self._waiting: deque[M] = deque()
        self._arrived: asyncio.Event | None = None
        self._current: M | None = None
        self._is_over = False

    def begin(self) -> None:
        """A stream begins."""
        self._is_over = False

    def end(self) -> None:
        """A stream has ended: iterators end too, when they have taken what there is."""
        self._is_over = True
        self._wake()

    def take(self, message: M) -> None:
        """Hand a message over."""
        message.is_worked_on = True
        if not self._handlers:
            self._waiting.append(message)
            self._wake()
            return
        running: list[Awaitable[Any]] | None = None
        for handler in self._handlers:
            try:
                result = handler(message)
            except Exception as error:  # noqa: BLE001  # a user's code: whatever it raises, the message goes back
                self._fail(error, message)
                break
            if result is not None and isawaitable(result):
                running = running or []
                running.append(result)
        if running is None:
            message.is_worked_on = False
        else:
            self._events.keep(self._finish(message, running))

    def drain(self) -> list[M]:
        """Take back what no iterator has asked for yet; handlers that come later get it no more."""
        waiting = [*self._waiting]
        self._waiting.clear()
        return waiting

    def attend(self) -> None:
        """A handler was added: it gets what waits."""
        while self._waiting and self._handlers:
            self.take(self._waiting.popleft())

    async def next(self) -> M | None:
        """The next message; None when the stream is over. The one before is no longer worked on."""
        if self._current is not None:
            self._current.is_worked_on = False
            self._current = None
        while not self._waiting:
            if self._is_over:
                return None
            self._arrived = self._arrived or asyncio.Event()
            self._arrived.clear()
            await self._arrived.wait()
        self._current = self._waiting.popleft()
        return self._current

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()

    async def _finish(self, message: M, running: list[Awaitable[Any]]) -> None:
        try:
            for one in running:
                await one
        except Exception as error:  # noqa: BLE001  # a user's code: whatever it raises, the message goes back
            self._fail(error, message)
        finally:
            message.is_worked_on = False
