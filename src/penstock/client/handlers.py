"""Handlers, listeners and iterators: `on("message", handler)`, as specification 004 has it, and `async for`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from penstock.client.message import IncomingMessage
from penstock.errors import InvalidArgument

log = logging.getLogger("penstock.client")

Listener = Callable[..., Any]


class Events:
    """Listeners by event: functions or coroutine functions, called in the order in which they were added."""

    def __init__(self, *names: str) -> None:
        self.listeners: dict[str, list[Listener]] = {name: [] for name in names}
        """The lists are replaced, never modified, so adding or removing a listener does not disturb a loop."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_done: Callable[[], None] | None = None
        """Called when a background task has ended."""

    def add(self, event: str, listener: Listener) -> None:
        self._check(event)
        if not callable(listener):
            raise InvalidArgument.of("listener", listener, "a function or a coroutine function")
        self.listeners[event] = [*self.listeners[event], listener]

    def remove(self, event: str, listener: Listener) -> None:
        """Remove a listener; does nothing if it was not added."""
        self._check(event)
        listeners = self.listeners[event]
        if listener in listeners:
            index = listeners.index(listener)
            self.listeners[event] = [*listeners[:index], *listeners[index + 1 :]]

    def emit(self, event: str, *args: Any) -> bool:
        """Call the listeners; False if there is none. What they raise is logged and does not reach the caller."""
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
        """Run a coroutine in the background, and keep a reference to its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether anything runs except these tasks."""
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


M = TypeVar("M", bound=IncomingMessage)


class Dispatcher(Generic[M]):
    """Passes messages to handlers and iterators. If a handler raises, `fail` is called, and the rest continues."""

    def __init__(self, events: Events, fail: Callable[[Exception, IncomingMessage], None]) -> None:
        self._events = events
        self._listeners = events.listeners
        self._fail = fail
        self._waiting: deque[M] = deque()
        """Messages that arrived while there was no handler."""
        self._asking: deque[asyncio.Future[None]] = deque()
        """Iterators that wait, oldest first."""
        self._workers: dict[M, asyncio.Task[Any] | None] = {}
        """The task that handles each message."""
        self._asked = 0
        """Iterators that have asked for a message and not taken it yet."""
        self._is_over = False
        self._on_free: Callable[[], None] | None = None

    @property
    def free(self) -> int | None:
        """How many more messages would be taken at once, negative if some wait; None: any number, by a handler."""
        return None if self._listeners["message"] else self._asked - len(self._waiting)

    def begin(self, on_done: Callable[[], None], on_free: Callable[[], None]) -> None:
        """A stream starts; `on_done` is called whenever a handler has ended, `on_free` when `free` has changed."""
        self._is_over = False
        self._events.on_done = on_done
        self._on_free = on_free

    def end(self) -> None:
        """A stream has ended: iterators end too, and messages that were not taken are dropped."""
        self._is_over = True
        self._events.on_done = self._on_free = None
        self._waiting.clear()
        while self._asking:
            self._wake()

    def take(self, message: M) -> None:
        """Pass a message to the handlers, or keep it for an iterator."""
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
            except Exception as error:  # noqa: BLE001  # a user's code: whatever it raises, the message returns
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
        """Remove and return the messages that no iterator has taken."""
        waiting = [*self._waiting]
        self._waiting.clear()
        return waiting

    def lose(self, receipts: Collection[int]) -> None:
        """Drop waiting messages whose leases have expired."""
        self._waiting = deque(message for message in self._waiting if message.receipt not in receipts)

    def handler_added(self) -> None:
        """A handler was added: pass it the messages that wait."""
        self.handlers_changed()
        while self._waiting and self._listeners["message"]:
            self.take(self._waiting.popleft())

    async def next(self) -> M | None:
        """The next message; None if the stream is over."""
        self._asked += 1
        self.handlers_changed()
        try:
            while not self._waiting:
                if self._is_over:
                    return None
                asking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._asking.append(asking)
                try:
                    await asking
                except asyncio.CancelledError:
                    if asking.done() and self._waiting:
                        self._wake()  # it was notified of a message: notify another one
                    self.handlers_changed()
                    raise
            message = self._waiting.popleft()
        finally:
            self._asked -= 1
        message.begin()
        return message

    @contextmanager
    def working(self, message: M) -> Iterator[None]:
        self._workers[message] = asyncio.current_task()
        try:
            yield
        finally:
            message.is_worked_on = False
            del self._workers[message]

    def held_by(self, tasks: Collection[asyncio.Task[Any]]) -> set[int]:
        """Receipts of the messages that these tasks handle."""
        return {message.receipt for message, worker in self._workers.items() if worker in tasks}

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether handlers run in other tasks than these."""
        return self._events.is_busy(but)

    def handlers_changed(self) -> None:
        """The number of messages that can be taken may have changed."""
        if self._on_free is not None:
            self._on_free()

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
            except Exception as error:  # noqa: BLE001  # a user's code: whatever it raises, the message returns
                self._fail(error, message)
