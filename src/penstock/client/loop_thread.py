"""An event loop in a thread of its own, for programs without one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import forks
from penstock.errors import FailedPrecondition

THREADS = 32
"""Handlers that run concurrently."""


class LoopThread:
    """An event loop in a thread of its own, and calls into it from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-handler")
        self._thread = threading.Thread(target=self._turn, name="penstock-client", daemon=True)
        self._thread.start()
        forks.own(self, "client")

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the loop's thread; an awaitable result is awaited.

        An interrupted wait cancels it.
        """
        if not self.is_alive:
            raise FailedPrecondition("the client is closed", hint="create a new PubSub with the same arguments")
        if self.is_here:
            raise FailedPrecondition(
                "a function that the client calls, such as the `where` of a redrive, cannot wait for the client",
                hint="make a list first, and call the client outside",
            )
        future = asyncio.run_coroutine_threadsafe(_called(function), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def beside(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run a function that may block in a thread; call this from the loop."""
        return self._loop.run_in_executor(self._threads, function, *args)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's own thread, which must not wait for itself."""
        return threading.get_ident() == self._thread.ident

    def close(self) -> None:
        """End the loop and the threads. Can be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def _called(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result
