"""Where a worker's connection lives: in the event loop that used it first, or in one of its own for those who have none.

Everybody else, other loops and threads without one, is served from there. So `send` and `send_sync` work wherever they are
called, and there is one connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.portal import Portal
from penstock.client.pubsub import PubSub
from penstock.errors import FailedPrecondition

T = TypeVar("T")

Work = Callable[[PubSub], Awaitable[T]]


class Home:
    """A client and its event loop. `make` gives a client that is not open; a `given` one is its owner's to open and close."""

    def __init__(self, make: Callable[[], PubSub], given: PubSub | None = None) -> None:
        self._make = make
        self._given = given
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[PubSub] | None = None
        self._portal: Portal | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is a connection, or one is being made."""
        return self._loop is not None and self._loop.is_running()

    async def pubsub(self) -> PubSub:
        """The client, opened, in the running loop; FailedPrecondition when it lives in another."""
        if not self._is_here():
            raise FailedPrecondition("the worker is in use in another event loop", hint="await worker.close() there first")
        assert self._opening is not None, "made where it came here"
        return await asyncio.shield(self._opening)

    async def call(self, work: Work[T]) -> T:
        """Do something with the client; from any loop."""
        if self._is_here():
            return await work(await self.pubsub())
        assert self._loop is not None, "it is elsewhere"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.call(work), self._loop))

    def call_blocking(self, work: Work[T]) -> T:
        """Do something with the client, and wait for it; from a thread without a loop."""
        if _is_in_a_loop():
            raise FailedPrecondition("this would block the event loop that runs here", hint="await task.send(…) instead")
        with self._lock:
            if not self.is_settled:
                if self._given is not None:
                    raise FailedPrecondition(
                        "the worker's client lives in an event loop that has not used the worker yet",
                        hint="await worker.open() there, or make the worker with a server instead of a client",
                    )
                if self._portal is None or not self._portal.is_alive:
                    self._portal = Portal()
                self._portal.call(self._settle)
        assert self._loop is not None, "it has been settled"
        return asyncio.run_coroutine_threadsafe(self.call(work), self._loop).result()

    async def move_here(self) -> PubSub:
        """The client in the running loop: one in a loop of its own is closed before."""
        if self._portal is not None:
            await self.close()
        return await self.pubsub()

    async def close(self) -> None:
        """Close the client, wherever it lives. Safe to call twice."""
        if self.is_settled:
            if self._loop is asyncio.get_running_loop():
                await self._close_here()
            else:
                assert self._loop is not None, "it is settled"
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close_here(), self._loop))
        portal, self._portal = self._portal, None
        self._loop = None
        if portal is not None:
            await asyncio.to_thread(portal.close)

    def _is_here(self) -> bool:
        """Whether the client lives in the running loop; one that lives nowhere comes here."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return True
        with self._lock:
            if not self.is_settled:
                self._settle()
        return self._loop is loop

    def _settle(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(self._open())
        self._opening.add_done_callback(self._opened)

    async def _open(self) -> PubSub:
        if self._given is not None:
            self._given.check_open()
            return self._given
        pubsub = self._make()
        await pubsub.open()
        return pubsub

    def _opened(self, opening: asyncio.Task[PubSub]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._loop = None  # who comes next tries again

    async def _close_here(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and self._given is None:
            pubsub = await opening
            await pubsub.close()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
