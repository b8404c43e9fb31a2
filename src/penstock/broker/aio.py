"""A broker as an event loop uses it: nothing here blocks the loop.

What is in memory is done at once, in the loop's own thread. What has to wait for the disk or for a message becomes a future; the
writer's thread hands finished publishes over in groups, one wake-up of the loop for all that were committed together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease
from penstock.broker.core.message import Batch
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.broker.writer import Placed, Ticket
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import BrokerClosed

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8


class Bell:
    """An event of the loop that any thread may ring. Clear it before you look, and no ring after the look is lost."""

    __slots__ = ("_event", "_is_rung", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()
        self._is_rung = False

    def ring(self) -> None:
        """Wake who waits. Cheap when it has been rung and nobody has looked yet."""
        if self._is_rung:
            return
        self._is_rung = True
        if threading.get_ident() == self._thread:
            self._event.set()
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Call it before looking for what a ring announces."""
        self._event.clear()
        self._is_rung = False

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it rings, or after so many seconds."""
        if seconds is None:
            await self._event.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Nudge:
    """Has a function called in the loop, soon, from whatever thread that is asked for; once, however often it is."""

    __slots__ = ("_function", "_is_rung", "_loop", "_thread")

    def __init__(self, function: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._function = function
        self._is_rung = False

    def ring(self) -> None:
        """Have it called."""
        if self._is_rung:
            return
        self._is_rung = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._run)
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_rung = False  # before the call: what happens during it is news
        self._function()


class AsyncBroker:
    """The same broker, for one event loop. Make it inside the running loop; close it before the broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._loop = asyncio.get_running_loop()
        self._finished: deque[tuple[asyncio.Future[Ticket], Ticket]] = deque()
        self._is_notified = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-blocking")
        # Where time jumps, nobody else does what has become due, and who waits in this loop would wait for ever.
        self._stop_listening = broker.clock.listen(Nudge(self._jump).ring)

    def close(self) -> None:
        """Take no more blocking calls; those that run finish by themselves."""
        self._stop_listening()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def publish(self, find: Callable[[Catalog, str], Stream], name: str, batch: Batch) -> Placed:
        """Append messages to the stream that `find` finds by name; returns where they are when they are safe."""
        broker, now = self.broker, self.advance()
        if not broker.is_durable:
            return broker.publish(find, name, batch, now)
        future: asyncio.Future[Ticket] = self._loop.create_future()
        broker.hand_in(find, name, batch, partial(self._finish, future))
        return (await future).placed()

    async def lease(
        self,
        find: Callable[[Catalog, str], Queue],
        name: str,
        want: int,
        *,
        ack_deadline: int | None = None,
        consumer: str | None = None,
        prefetch: int | None = None,
        max_bytes: int | None = None,
        wait: int = 0,
    ) -> tuple[Queue, list[Lease]]:
        """Hand out up to `want` messages, or `max_bytes` of them, waiting at most `wait` microseconds for one."""
        until = monotonic() + wait
        bell = Bell()
        ring = bell.ring
        while True:
            now = self.advance()
            bell.clear()
            with self.broker.lock:
                queue, leases = self.broker.grant(
                    find,
                    name,
                    want,
                    now,
                    ack_deadline=ack_deadline,
                    consumer=consumer,
                    prefetch=prefetch,
                    max_bytes=max_bytes,
                )
                left, is_absent = until - monotonic(), queue.absent is not None
                if leases or (not is_absent and left <= 0):
                    return queue, leases
                if not is_absent:
                    self.broker.bells.hang(queue.number, ring)
            if is_absent:
                await self.call(self.broker.load, queue)
                continue
            try:
                await bell.wait(left / SECOND)
            finally:
                with self.broker.lock:
                    self.broker.bells.take_down(queue.number, ring)

    async def durable(self) -> None:
        """Return when everything so far is durable."""
        if self.broker.is_durable:
            future: asyncio.Future[Ticket] = self._loop.create_future()
            self.broker.when_durable(partial(self._finish, future))
            await future

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that blocks in a thread of its own."""
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    def advance(self) -> int:
        """Let everything happen that has become due, without waiting for the disk; returns the present."""
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
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
