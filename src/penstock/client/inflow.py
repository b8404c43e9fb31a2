"""Messages on their way to whoever wants them: to handlers as they come, or to iterators that ask for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from penstock.client.events import Events
from penstock.client.message import IncomingMessage

M = TypeVar("M", bound=IncomingMessage)


class Inflow(Generic[M]):
    """Hands messages over. A handler that raises gives its message back, and the error is told; the rest goes on."""

    def __init__(self, events: Events, fail: Callable[[Exception, IncomingMessage], None]) -> None:
        self._events = events
        self._listeners = events.listeners
        self._fail = fail
        self._waiting: deque[M] = deque()
        """What came while there was no handler."""
        self._asking: deque[asyncio.Future[None]] = deque()
        """Iterators that found nothing, longest waiting first."""
        self._workers: dict[M, asyncio.Task[Any] | None] = {}
        """Who works on what, where that is a task."""
        self._is_over = False

    def begin(self, on_done: Callable[[], None]) -> None:
        """A stream begins, and wants to hear whenever a handler has ended."""
        self._is_over = False
        self._events.on_done = on_done

    def end(self) -> None:
        """A stream has ended: iterators end too, and what nobody has taken is nobody's any more."""
        self._is_over = True
        self._events.on_done = None
        self._waiting.clear()
        while self._asking:
            self._wake()

    def take(self, message: M) -> None:
        """Hand a message over."""
        message.is_worked_on = True
        handlers = self._listeners["message"]
        if not handlers:
            self._waiting.append(message)
            self._wake()
            return
        running: list[Awaitable[Any]] | None = None
        for handler in handlers:
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
            message.begin()
            self._events.keep(self._finish(message, running))

    def drain(self) -> list[M]:
        """Take back what no iterator has asked for yet; handlers that come later get it no more."""
        waiting = [*self._waiting]
        self._waiting.clear()
        return waiting

    def lose(self, receipts: Collection[int]) -> None:
        """The leases of deliveries have run out: who has not taken them gets them no more."""
        self._waiting = deque(message for message in self._waiting if message.receipt not in receipts)

    def attend(self) -> None:
        """A handler was added: it gets what waits."""
        while self._waiting and self._listeners["message"]:
            self.take(self._waiting.popleft())

    async def next(self) -> M | None:
        """The next message; None when the stream is over."""
        while not self._waiting:
            if self._is_over:
                return None
            asking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._asking.append(asking)
            try:
                await asking
            except asyncio.CancelledError:
                if asking.done() and self._waiting:
                    self._wake()  # it was told of a message: another one must be
                raise
        message = self._waiting.popleft()
        message.begin()
        return message

    @contextmanager
    def working(self, message: M) -> Iterator[None]:
        """The current task works on a message."""
        self._workers[message] = asyncio.current_task()
        try:
            yield
        finally:
            message.is_worked_on = False
            del self._workers[message]

    def held_by(self, tasks: Collection[asyncio.Task[Any]]) -> set[int]:
        """Receipts of what these tasks work on."""
        return {message.receipt for message, worker in self._workers.items() if worker in tasks}

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether handlers run, but for those in these tasks."""
        return self._events.is_busy(but)

    def _wake(self) -> None:
        while self._asking:
            asking = self._asking.popleft()
            if not asking.done():
                asking.set_result(None)
                return

    async def _finish(self, message: M, running: list[Awaitable[Any]]) -> None:
        with self.working(message):
            try:
                if len(running) == 1:
                    await running[0]
                    return
                for result in await asyncio.gather(*running, return_exceptions=True):
                    if isinstance(result, Exception):
                        self._fail(result, message)
            except asyncio.CancelledError:
                message.nack()
                raise
            except Exception as error:  # noqa: BLE001  # a user's code: whatever it raises, the message goes back
                self._fail(error, message)
