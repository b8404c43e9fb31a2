"""Threads for functions that block. Unlike a ThreadPoolExecutor's they can be left behind: nobody waits for them at exit."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

Done = Callable[[BaseException | None], None]
Job = tuple[Callable[[], Any], Done]


class Threads:
    """Runs functions, each in a thread of its own. How many at once is its caller's decision; idle threads are kept."""

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Thread] = []
        self._numbers = itertools.count(1)
        self._is_closed = False

    def run(self, function: Callable[[], Any], done: Done) -> None:
        """Call a function in a thread, and then, in the loop, `done` with what it raised."""
        thread = self._idle.pop() if self._idle else _Thread(self._free, self._loop, next(self._numbers))
        thread.jobs.put((partial(self._context.copy().run, function), done))

    def close(self) -> None:
        """Let the idle threads end. Those that run something end with it."""
        self._is_closed = True
        for thread in self._idle:
            thread.jobs.put(None)
        self._idle.clear()

    def _free(self, thread: _Thread) -> None:
        if self._is_closed:
            thread.jobs.put(None)
        else:
            self._idle.append(thread)


class _Thread:
    """A thread that does one thing after the other. It is a daemon: a function that never returns keeps no process alive."""

    def __init__(self, free: Callable[[_Thread], None], loop: asyncio.AbstractEventLoop, number: int) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._free = free
        self._loop = loop
        threading.Thread(target=self._turn, name=f"penstock-task-{number}", daemon=True).start()

    def _turn(self) -> None:
        while (job := self.jobs.get()) is not None:
            function, done = job
            error = _called(function)
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                self._loop.call_soon_threadsafe(self._end, done, error)
            del job, function, done, error  # what it holds must not live until the next one

    def _end(self, done: Done, error: BaseException | None) -> None:
        self._free(self)
        done(error)


def _called(function: Callable[[], Any]) -> BaseException | None:
    try:
        result = function()
        if inspect.iscoroutine(result):
            result.close()
            return TypeError("the function returned a coroutine: declare it with `async def`")
    except BaseException as error:  # noqa: BLE001  # a user's code: whatever it raises, the worker goes on
        return error
    return None
