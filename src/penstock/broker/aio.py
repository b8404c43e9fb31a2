"""The asynchronous form of a broker: nothing here blocks the event loop.

Operations in memory run at once, in the loop's own thread. Operations that wait for the disk or for a message return a future;
the writer's thread wakes the loop once for all publishes of one commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.stream import Stream
from penstock.broker.writer import Placement, Ticket
from penstock.errors import BrokerClosed
from penstock.values.message import Batch

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8


class LoopCallback:
    """Schedules a function in the loop, from any thread; several requests before it runs are one call."""

    __slots__ = ("_function", "_is_scheduled", "_loop", "_thread")

    def __init__(self, function: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._function = function
        self._is_scheduled = False

    def notify(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._run)
        else:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_scheduled = False  # before the call: requests during it schedule another
        self._function()


class Waiter(Protocol):
    """A consumer that waits for a queue."""

    @property
    def identity(self) -> str | None:
        """The name under which it consumes."""

    @property
    def connection(self) -> str | None:
        """The address of its client, if known."""

    @property
    def prefetch_limit(self) -> int | None:
        """How many messages it may hold; None: as many as the queue's settings allow."""

    def look(self) -> bool:
        """Take the deliverable messages; False if none are left for other consumers."""

    def stop_waiting(self) -> None:
        """End a wait without messages."""


class StopSignal:
    """Ends waits without messages: those in progress, and later ones."""

    __slots__ = ("is_set", "waiters")

    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()
        self.is_set = False

    def set(self) -> None:
        """End the waits. Call it in the event loop."""
        self.is_set = True
        for waiter in [*self.waiters]:
            waiter.stop_waiting()


class WaiterQueue:
    """The consumers that wait for one queue, in turn. Call all methods in the event loop, except `notify`.

    A notification asks one consumer after the other until no message is left: a hundred idle consumers cost no more than one.
    """

    def __init__(self, broker: Broker, number: int) -> None:
        self._queues, self._number = broker.catalog.queues, number
        self._spec: bytes | None = None
        self.waiters: dict[Waiter, None] = {}
        """The consumer without a delivery for the longest time comes first."""
        self.notify = LoopCallback(self._look).notify
        """Schedules a look of these consumers."""

    def _look(self) -> None:
        queue = self._queues.get(self._number)
        # Otherwise the notification was for a settled message, and nothing is deliverable.
        if queue is None or queue.spec is not self._spec or queue.detached or queue.is_deliverable:
            self._spec = queue.spec if queue is not None else None
            for waiter in [*self.waiters]:
                if not waiter.look():
                    break
        if queue is not None and queue.reserved:
            for waiter in [*self.waiters]:
                if queue.is_reserved_for(waiter.identity):
                    waiter.look()


class AsyncBroker:
    """The same broker, for one event loop. Make it inside the running loop; close it before the broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._loop = asyncio.get_running_loop()
        self._finished: deque[tuple[asyncio.Future[Ticket], Ticket]] = deque()
        self._is_notified = False
        self._turns: dict[int, WaiterQueue] = {}
        """By number of the queue."""
        self.stopping = StopSignal()
        """Ends all waits without a signal of their own."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-blocking")
        # With a manual clock there is no timer, so callers that wait in this loop would wait forever.
        self._stop_listening = broker.clock.listen(LoopCallback(self._jump).notify)

    def close(self) -> None:
        """Start no more blocking calls; those that run finish by themselves."""
        self._stop_listening()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def publish(self, find: Callable[[Catalog, str], Stream], name: str, batch: Batch) -> Placement:
        """Append messages to the stream that `find` finds by name; returns their places once they are durable."""
        broker, now = self.broker, self.advance()
        if not broker.is_durable:
            return broker.publish(find, name, batch, now)
        future: asyncio.Future[Ticket] = self._loop.create_future()
        broker.submit(find, name, batch, partial(self._finish, future))
        return (await future).placed()

    def ticket(self, stream: Stream, batch: Batch) -> tuple[Ticket, asyncio.Future[Ticket]]:
        """Return a publish for the broker to commit, and the future of its outcome."""
        future: asyncio.Future[Ticket] = self._loop.create_future()
        return Ticket(stream, batch, partial(self._finish, future)), future

    def join(self, number: int, waiter: Waiter) -> None:
        """Notify a consumer whenever messages of a queue may be deliverable."""
        turns = self._turns.get(number)
        if turns is None:
            turns = self._turns[number] = WaiterQueue(self.broker, number)
            with self.broker.lock:
                self.broker.notifier.add(number, turns.notify)
        turns.waiters[waiter] = None

    def leave(self, number: int, waiter: Waiter) -> None:
        """Stop notifying a consumer. Does nothing if it was not registered."""
        turns = self._turns.get(number)
        if turns is not None and turns.waiters.pop(waiter, self) is None and not turns.waiters:
            del self._turns[number]
            with self.broker.lock:
                self.broker.notifier.remove(number, turns.notify)

    def connected(self, number: int) -> dict[str, Waiter]:
        """The consumers of a queue that wait for messages or have a stream open, by their names."""
        turns = self._turns.get(number)
        return {} if turns is None else {one.identity: one for one in turns.waiters if one.identity is not None}

    def served(self, number: int, waiter: Waiter) -> None:
        """Note that a consumer had its turn: the next time, others come first."""
        waiters = self._turns[number].waiters
        if len(waiters) > 1:
            del waiters[waiter]
            waiters[waiter] = None

    def notify(self, number: int) -> None:
        """Schedule a look of the consumers that wait for a queue."""
        if (turns := self._turns.get(number)) is not None:
            turns.notify()

    async def durable(self) -> None:
        """Return when everything so far is durable."""
        if self.broker.is_durable:
            future: asyncio.Future[Ticket] = self._loop.create_future()
            self.broker.when_durable(partial(self._finish, future))
            await future

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that blocks in a thread of its own."""
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    def call_later(self, seconds: float, function: Callable[[], object]) -> asyncio.TimerHandle:
        """Have a function called in the loop after a while."""
        return self._loop.call_later(seconds, function)

    def advance(self) -> int:
        """Do everything that is due, without waiting for the disk; returns the current time."""
        now = self.broker.clock.now()
        if now >= self.broker.next_due:
            self.broker.advance(now)
        return now

    def _jump(self) -> None:
        with suppress(BrokerClosed):
            self.advance()

    def _finish(self, future: asyncio.Future[Ticket], ticket: Ticket) -> None:
        """Called by the writer."""
        self._finished.append((future, ticket))
        if not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_notified = False
        while self._finished:
            future, ticket = self._finished.popleft()
            if not future.done():
                if ticket.error is not None:
                    future.set_exception(ticket.error)
                else:
                    future.set_result(ticket)
