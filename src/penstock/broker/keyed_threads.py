"""Threads for user code: the calls of one key run one at a time, so that a slow call delays only its own key.

Every broker has an instance, and few use it: imports are done and threads are created at the first call.
"""
# ruff: noqa: PLC0415  # see above

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.errors import BrokerClosed, PenstockError, ResourceExhausted

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")


class Call:
    """A call that runs, or waits for its turn. `work` must not raise; if it never runs, `refuse` is called instead."""

    __slots__ = ("_key", "_refuse", "_threads", "work")

    def __init__(
        self, threads: KeyedThreads, key: Hashable, work: Callable[[], None], refuse: Callable[[PenstockError], None]
    ) -> None:
        self._threads = threads
        self._key = key
        self.work = work
        self._refuse = refuse

    def give_up(self, max_wait: float = 0) -> None:
        """Refuse the call if it still waits for earlier ones after `max_wait` seconds; otherwise do nothing."""
        if self._threads.remove(self._key, self):
            self._refuse(
                ResourceExhausted(
                    f"earlier messages of this topic took more than {max_wait:g} s in its schema or transforms",
                    hint="try again, publish less at once, or make the transforms faster",
                )
            )

    def end(self) -> None:
        """Refuse a call that will not run because the broker is closed."""
        self._refuse(BrokerClosed())


class KeyedThreads:
    """Runs blocking calls, those of one key one at a time and in order. Safe to use from every thread."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[Call]] = {}
        """By key, the calls that wait while another call of the key runs."""

    def start(self, key: Hashable, work: Callable[[], None], refuse: Callable[[PenstockError], None]) -> Call:
        """Call `work` when the earlier calls of its key have returned."""
        call = Call(self, key, work, refuse)
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.append(call)
                return call
            self._waiting[key] = deque()
        self._submit(key, call)
        return call

    def is_busy(self, key: Hashable) -> bool:
        """Whether a call of this key runs or waits."""
        return key in self._waiting

    def remove(self, key: Hashable, call: Call) -> bool:
        """Forget a call that waits for its turn; False if it is running or has run."""
        with self._lock, suppress(KeyError, ValueError):
            self._waiting[key].remove(call)
            return True
        return False

    async def run(self, key: Hashable, max_wait: float | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the function. ResourceExhausted if its turn does not come within `max_wait` seconds.

        A cancelled caller returns at once; the next call of the key runs when the function has returned.
        """
        import asyncio
        from concurrent.futures import Future

        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a cancelled caller must not prevent setting the result

        def work() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it is passed to the caller
                future.set_exception(error)

        call = self.start(key, work, future.set_exception)
        timer = None if max_wait is None else asyncio.get_running_loop().call_later(max_wait, call.give_up, max_wait)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if timer is not None:
                timer.cancel()
            call.give_up()  # has an effect only if the caller was cancelled

    def close(self) -> None:
        """Refuse waiting and new calls; running calls finish by themselves."""
        with self._lock:
            self._is_closed = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [call for waiting in self._waiting.values() for call in waiting]
            for waiting in self._waiting.values():
                waiting.clear()
        for call in left:
            call.end()

    def _submit(self, key: Hashable, call: Call) -> None:
        try:
            running = self._open_pool().submit(self._run, key, call)
        except RuntimeError:  # it is closed
            with self._lock:
                left = [call, *self._waiting.pop(key)]
            for one in left:
                one.end()
            return
        running.add_done_callback(lambda done: _end(call, done))

    def _open_pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._is_closed:
                raise RuntimeError("closed before the first call")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
            return self._pool

    def _run(self, key: Hashable, call: Call) -> None:
        try:
            call.work()
        finally:
            with self._lock:
                waiting = self._waiting[key]
                following = waiting.popleft() if waiting else None
                if following is None:
                    del self._waiting[key]
            if following is not None:
                self._submit(key, following)


def _end(call: Call, done: Future[None]) -> None:
    if done.cancelled():
        call.end()
