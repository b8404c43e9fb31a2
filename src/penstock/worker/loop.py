"""The event loop of a worker's connection: the loop that used it first, or a loop in a thread of its own for code without one.

Other loops and threads are served from there. So `send` and `send_sync` work wherever they are called, and there is one
connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.client.loop_thread import LoopThread
from penstock.client.pubsub import PubSub
from penstock.errors import FailedPrecondition
from penstock.sync import PubSub as BlockingPubSub

T = TypeVar("T")

Work = Callable[[PubSub], Awaitable[T]]


class ClientLoop:
    """A client and its event loop. `make` creates an unopened client; the owner of a `given` one opens and closes it.

    The given client is a `PubSub`, or the blocking one of `penstock.sync`.
    """

    def __init__(self, make: Callable[[], PubSub], given: PubSub | BlockingPubSub | None = None) -> None:
        self._make = make
        self._given: PubSub | None
        self._owner: LoopThread | None = None
        """The loop of a given blocking client."""
        if isinstance(given, BlockingPubSub):
            self._given, self._owner = given._inner, given._thread  # type: ignore[attr-defined]  # the stub has what is public
        else:
            self._given = given
        self._lock = threading.Lock()
        self._place: _Place | None = None
        self._thread: LoopThread | None = None
        """The loop for callers without one."""

    @property
    def is_settled(self) -> bool:
        """Whether there is a connection, or one is being opened."""
        return self._place is not None and self._place.is_alive

    async def call(self, work: Work[T]) -> T:
        place = self._settled()
        if place.loop is asyncio.get_running_loop():
            return await place.do(work)
        return await asyncio.wrap_future(place.submit(work))

    def call_blocking(self, work: Work[T]) -> T:
        """Use the client and wait for the result, from a thread without a loop."""
        if _is_in_a_loop():
            raise FailedPrecondition("this would block the running event loop", hint="await task.send(…) instead")
        with self._lock:
            if not self.is_settled:
                self._settle_apart()
            assert self._place is not None, "it has been settled"
            future = self._place.submit(work)
        return future.result()

    async def move_here(self) -> PubSub:
        """The client in the running loop. It moves here from a loop of its own; FailedPrecondition if it lives in another one."""
        if self._thread is not None:
            await self.close()
        place = self._settled()
        if place.loop is not asyncio.get_running_loop():
            raise FailedPrecondition("the worker is in use in another event loop", hint="await worker.close() there first")
        return await asyncio.shield(place.opening)

    async def close(self) -> None:
        """Close the client, in its loop, once the calls through it are done. Can be called twice."""
        with self._lock:
            place, self._place = self._place, None
            thread, self._thread = self._thread, None
        if place is not None and place.is_alive:
            if place.calls:
                await asyncio.wait([asyncio.wrap_future(call) for call in place.calls.copy()])
            if place.loop is asyncio.get_running_loop():
                await place.close()
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(place.close(), place.loop))
        if thread is not None:
            await asyncio.to_thread(thread.close)

    def _settled(self) -> _Place:
        """The loop of the client; without one, it is the running loop."""
        with self._lock:
            if not self.is_settled:
                if self._owner is None:
                    self._settle()
                else:
                    self._settle_apart()
            assert self._place is not None, "it has been settled"
            return self._place

    def _settle_apart(self) -> None:
        if self._owner is not None:
            self._owner.call(self._settle)
            return
        if self._given is not None:
            raise FailedPrecondition(
                "the worker's client lives in an event loop that has not used the worker yet",
                hint="await worker.open() there, or make the worker with a server instead of a client",
            )
        if self._thread is None or not self._thread.is_alive:
            self._thread = LoopThread()
        self._thread.call(self._settle)

    def _settle(self) -> None:
        self._place = place = _Place(self._make, self._given)
        place.opening.add_done_callback(lambda opening: self._opened(place, opening))

    def _opened(self, place: _Place, opening: asyncio.Task[PubSub]) -> None:
        if (opening.cancelled() or opening.exception() is not None) and self._place is place:
            self._place = None  # the next caller tries again


class _Place:
    """A client in the loop that is running at creation."""

    def __init__(self, make: Callable[[], PubSub], given: PubSub | None) -> None:
        self._make = make
        self._given = given
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self.opening = self.loop.create_task(self._open())
        self.calls: set[Future[Any]] = set()
        """The calls that other threads wait for."""

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs, in this process: after a fork, its thread does not exist in the child."""
        return self.loop.is_running() and self._process == os.getpid()

    async def do(self, work: Work[T]) -> T:
        return await work(await asyncio.shield(self.opening))

    def submit(self, work: Work[T]) -> Future[T]:
        """Run something in the loop, from another thread."""
        future = asyncio.run_coroutine_threadsafe(self.do(work), self.loop)
        self.calls.add(future)
        future.add_done_callback(self.calls.discard)
        return future

    async def close(self) -> None:
        """Close the client, unless its owner does."""
        if self._given is None:
            await asyncio.wait([self.opening])
            if not self.opening.cancelled() and self.opening.exception() is None:  # otherwise its caller got the error
                await self.opening.result().close()

    async def _open(self) -> PubSub:
        if self._given is not None:
            self._given.check_open()
            return self._given
        return await self._make().open()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
