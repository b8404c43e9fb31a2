"""Threads for work that users wrote: one lane for each of them, so that a slow one delays only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.errors import ResourceExhausted

P = ParamSpec("P")
T = TypeVar("T")


class Lanes:
    """Runs blocking calls, those of one lane one at a time and in order. Belongs to one event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lanes: dict[Hashable, tuple[asyncio.Lock, int]] = {}
        """The lanes in use, and how many calls of each run or wait."""

    async def run(self, lane: Hashable, max_wait: float | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns. ResourceExhausted when its turn does not come within `max_wait` seconds.

        A caller that is cancelled leaves at once; its lane is free when the function has returned.
        """
        lock, users = self._lanes.get(lane) or (asyncio.Lock(), 0)
        self._lanes[lane] = lock, users + 1
        try:
            async with asyncio.timeout(max_wait):
                await lock.acquire()
        except BaseException as error:
            self._leave(lane)
            if isinstance(error, TimeoutError):
                raise ResourceExhausted(
                    f"earlier messages of this topic took more than {max_wait:g} s in its schema or transforms",
                    hint="try again, publish less at once, or make the transforms faster",
                ) from None
            raise
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))
        except BaseException:
            lock.release()
            self._leave(lane)
            raise
        running.add_done_callback(lambda done: self._end(lane, lock, done))
        return await asyncio.shield(running)

    def close(self) -> None:
        """Take no more work; what runs finishes by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, lane: Hashable, lock: asyncio.Lock, done: asyncio.Future[T]) -> None:
        lock.release()
        self._leave(lane)
        if not done.cancelled():
            done.exception()  # or asyncio would report it where the caller was cancelled

    def _leave(self, lane: Hashable) -> None:
        lock, users = self._lanes[lane]
        if users > 1:
            self._lanes[lane] = lock, users - 1
        else:
            del self._lanes[lane]
