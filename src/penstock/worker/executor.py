"""Runs the calls in queues: at most `concurrency` at a time, highest priority first, within their time limits.

A `QueueReader` receives the deliveries of one queue from a MessageStream. The `Executor` runs them, blocking functions in
`ThreadRunner`, and settles their messages by the rules of `core/verdict.py`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

from penstock.client.link import Link
from penstock.client.message import IncomingMessage
from penstock.client.options import SubscriberOptions
from penstock.client.queue import QueueTask
from penstock.client.stream import MessageStream
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, PenstockError
from penstock.wire import frames
from penstock.worker.core.call import Call, call_in
from penstock.worker.core.verdict import (
    SUCCESS,
    Backoff,
    Outcome,
    Reject,
    TaskResult,
    TimeLimitExceeded,
    Verdict,
    WorkerStats,
    judge,
    text_of,
)
from penstock.worker.task import Task

log = logging.getLogger("penstock.worker")

PRIORITIES = 10
MAX_SHOWN = 20
_NO_BACKOFF = Backoff(0, 0)
_RETURNED = Verdict(Outcome.RETURNED)

Tell = Callable[[TaskResult], None]
Done = Callable[[BaseException | None], None]
Job = tuple[Callable[[], Any], Done]


class TaskRun:
    """One running call."""

    __slots__ = ("began", "call", "future", "is_over", "message", "reader", "task", "timer")

    def __init__(self, reader: QueueReader, message: QueueTask) -> None:
        self.reader = reader
        self.message = message
        self.began = monotonic()
        self.task: Task[..., Any] | None = None
        self.call: Call | None = None
        self.is_over = False
        """Its message is already settled or released; its end changes nothing."""
        self.future: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Executor:
    """Runs the calls of readers. Belongs to one event loop."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        concurrency: int,
        stats: WorkerStats,
        *,
        tell: Tell,
        is_heard: Callable[[Outcome], bool],
    ) -> None:
        self._tasks = tasks
        self._concurrency = concurrency
        self._stats = stats
        self._tell = tell
        self._is_heard = is_heard
        """Whether each outcome is logged: with thousands a second, one would rather not write a line each."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """The context variables of every run: a task must not see those that another one has set."""
        self._threads = ThreadRunner(self._context)
        self._waiting: list[deque[tuple[QueueReader, QueueTask]]] = [deque() for _ in range(PRIORITIES)]
        self._running: set[TaskRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting))

    # ── from the readers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, reader: QueueReader, message: QueueTask) -> None:
        """Run it, or keep it until there is a free slot: highest priority first, then in order of arrival."""
        self._waiting[-1 - message.priority].append((reader, message))
        self._pump()

    def take_back(self, reader: QueueReader) -> list[QueueTask]:
        return self._take_out(lambda one, _: one is reader)

    def lose(self, reader: QueueReader, receipts: Collection[int]) -> None:
        """Drop calls that have not started and whose lease has expired: they are redelivered."""
        self._take_out(lambda one, message: one is reader and message.receipt in receipts)

    def is_busy(self, reader: QueueReader) -> bool:
        """Whether a call from a reader runs."""
        return any(run.reader is reader for run in self._running)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def finished(self) -> None:
        """Return once no call runs."""
        await self._idle.wait()

    async def abandon(self, seconds: float) -> None:
        """Interrupt the running calls, and release their messages.

        Coroutines are cancelled, and have this long to end; threads cannot be, and continue by themselves.
        """
        for run in [*self._running]:
            if run.future is not None:
                run.future.cancel()
            else:
                self._leave(run)
                self._return(run)
        futures = [run.future for run in self._running if run.future is not None]
        if futures:
            await asyncio.wait(futures, timeout=seconds)
        for run in [*self._running]:
            self._return(run)

    def close(self) -> None:
        self._threads.close()

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        while len(self._running) < self._concurrency:
            for level in self._waiting:
                if level:
                    self._begin(*level.popleft())
                    break
            else:
                return

    def _begin(self, reader: QueueReader, message: QueueTask) -> None:
        run = TaskRun(reader, message)
        try:
            run.call = call = call_in(message.data)
            run.task = task = self._find(call.task)
        except InvalidArgument as error:
            self._settle(run, Reject(str(error)))
            return
        self._running.add(run)
        self._idle.clear()
        # Report the start first, and run it in the next iteration: if it kills this process, the attempt must count.
        message.begin()
        if task.is_async:
            run.future = self._loop.create_task(self._perform(run, task, call), context=self._context.copy())
        else:
            function = partial(task.function, *call.args, **call.kwargs)
            self._loop.call_soon(self._threads.run, function, partial(self._returned, run))
            if task.options.time_limit is not None:
                run.timer = self._loop.call_later(task.options.time_limit, self._overrun, run, task)

    async def _perform(self, run: TaskRun, task: Task[..., Any], call: Call) -> None:
        error: BaseException | None = None
        limit = task.options.time_limit
        try:
            if limit is None:
                await task.function(*call.args, **call.kwargs)
            else:
                error = await _limited(task.function, call, limit)
        except asyncio.CancelledError as problem:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # a coroutine of a task has one
                self._return(run)
                return
            error = problem  # the task's own: it awaited something that was cancelled
        except (GeneratorExit, KeyboardInterrupt):  # the loop is closed, or is being cancelled
            self._return(run)
            raise
        except BaseException as problem:  # noqa: BLE001  # a user's code: whatever it raises, the worker continues
            error = problem
        self._finish(run, error)

    def _returned(self, run: TaskRun, error: BaseException | None) -> None:
        if run.timer is not None:
            run.timer.cancel()
        if run.is_over:
            self._stats.abandoned_threads -= 1
        self._finish(run, error)

    def _overrun(self, run: TaskRun, task: Task[..., Any]) -> None:
        """A function exceeds its time limit. A thread cannot be stopped: it is left alone, and another one takes its place."""
        log.warning(
            "task=%s id=%s problem=the time limit is over and the function still runs; its thread is left behind",
            task.name,
            run.message.id,
        )
        self._leave(run)
        self._finish(run, TimeLimitExceeded(task.options.time_limit or 0))

    def _leave(self, run: TaskRun) -> None:
        self._stats.abandoned_threads += 1
        if run.timer is not None:
            run.timer.cancel()

    def _take_out(self, is_chosen: Callable[[QueueReader, QueueTask], bool]) -> list[QueueTask]:
        items = [item for level in self._waiting for item in level]
        out = [message for reader, message in items if is_chosen(reader, message)]
        if out:
            for level in self._waiting:
                kept = [item for item in level if not is_chosen(*item)]
                level.clear()
                level.extend(kept)
        return out

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, run: TaskRun, error: BaseException | None) -> None:
        """A call has ended, unless it was given up before."""
        if not run.is_over:
            try:
                self._settle(run, error)
            finally:
                self._end(run)

    def _return(self, run: TaskRun) -> None:
        """Give up a call: another worker gets its message."""
        if not run.is_over:
            run.message.give_back()
            self._stats.returned += 1
            self._report(run, _RETURNED, None)
            self._end(run)

    def _end(self, run: TaskRun) -> None:
        run.is_over = True
        self._running.discard(run)
        self._pump()
        if not self._running:
            self._idle.set()
        run.reader.worked()

    def _settle(self, run: TaskRun, error: BaseException | None) -> None:
        message, stats = run.message, self._stats
        if error is None:
            message.ack()
            stats.succeeded += 1
            self._report(run, SUCCESS, None)
            return
        if isinstance(error, TypeError):
            error = _misfit(run) or error
        backoff = run.task.options.backoff if run.task is not None else _NO_BACKOFF
        verdict = judge(error, message.delivery_attempt, message.max_retries, backoff)
        message.nack(verdict.requeue, text_of(error), None if verdict.delay is None else verdict.delay / SECOND)
        if verdict.outcome is Outcome.DEAD:
            stats.dead += 1
        else:
            stats.retried += 1
        stats.timed_out += isinstance(error, TimeLimitExceeded)
        self._report(run, verdict, error)

    def _report(self, run: TaskRun, verdict: Verdict, error: BaseException | None) -> None:
        if not self._is_heard(verdict.outcome):
            return
        message = run.message
        self._tell(
            TaskResult(
                run.task.name if run.task is not None else "",
                run.reader.name,
                message.id,
                message.delivery_attempt,
                message.max_retries,
                (monotonic() - run.began) / SECOND,
                verdict.outcome,
                error,
                None if verdict.delay is None else verdict.delay / SECOND,
            )
        )

    def _find(self, name: str) -> Task[..., Any]:
        task = self._tasks.get(name)
        if task is None:
            known = sorted(self._tasks)
            shown = ", ".join(known[:MAX_SHOWN]) + (", …" if len(known) > MAX_SHOWN else "")
            raise InvalidArgument(f"the message calls the task {name!r}, which this worker does not know; it knows {shown}")
        return task


async def _limited(function: Callable[..., Any], call: Call, seconds: float) -> TimeLimitExceeded | None:
    """Await a function for at most this long; returns the outcome if it did not end in time."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            await function(*call.args, **call.kwargs)
    except TimeoutError:
        if not scope.expired():
            raise  # raised by the function itself
        return TimeLimitExceeded(seconds)
    return None


def _misfit(run: TaskRun) -> Reject | None:
    """The reason why the function could not be called with these arguments, if that is the error: a retry would not help."""
    if run.task is not None and run.call is not None:
        try:
            run.task.check_arguments(run.call.args, run.call.kwargs)
        except InvalidArgument as error:
            return Reject(str(error))
    return None


class QueueReader:
    """A queue of a worker: the source of a stream, and the destination of its messages."""

    kind = frames.QUEUE
    message_type: type[IncomingMessage] = QueueTask

    def __init__(
        self, name: str, link: Link, executor: Executor, options: SubscriberOptions, on_failure: Callable[[PenstockError], None]
    ) -> None:
        self.name = name
        self.link = link
        self._executor = executor
        self._on_failure = on_failure
        self._on_done: Callable[[], None] | None = None
        self.stream = MessageStream(self, options)

    def worked(self) -> None:
        if self._on_done is not None:
            self._on_done()

    # ── for the stream ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def dispatcher(self) -> Self:
        return self

    free = None
    """No limit: a worker's stream has no high-water mark."""

    def begin(self, on_done: Callable[[], None], on_free: Callable[[], None]) -> None:
        self._on_done = on_done

    def end(self) -> None:
        self._on_done = None

    def take(self, message: QueueTask) -> None:
        """Pass a message to the executor; its lease is extended while it is here."""
        message.is_worked_on = True
        self._executor.take(self, message)

    def drain(self) -> list[QueueTask]:
        return self._executor.take_back(self)

    def lose(self, receipts: Collection[int]) -> None:
        self._executor.lose(self, receipts)

    def held_by(self, tasks: Collection[asyncio.Task[Any]]) -> set[int]:
        """Nothing: no task stops its own worker."""
        return set()

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether a call of this queue runs."""
        return self._executor.is_busy(self)

    def emit(self, event: str, *args: Any) -> None:
        if event == "error":
            log.warning("queue=%s problem=%s", self.name, args[0])
        elif event == "close" and self.stream.failure is not None:
            self._on_failure(self.stream.failure)


class ThreadRunner:
    """Runs functions, each in a thread of its own. The caller limits their number; idle threads are reused."""

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Thread] = []
        self._numbers = itertools.count(1)
        self._is_closed = False

    def run(self, function: Callable[[], Any], done: Done) -> None:
        """Call a function in a thread and then `done`, in the loop, with its exception."""
        thread = self._idle.pop() if self._idle else _Thread(self._free, self._loop, next(self._numbers))
        thread.jobs.put((partial(self._context.copy().run, function), done))

    def close(self) -> None:
        """End the idle threads. Busy ones end after their function."""
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
    """A thread that runs one function after the other. It is a daemon: a function that never returns keeps no process alive."""

    def __init__(self, free: Callable[[_Thread], None], loop: asyncio.AbstractEventLoop, number: int) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._free = free
        self._loop = loop
        threading.Thread(target=self._turn, name=f"penstock-task-{number}", daemon=True).start()

    def _turn(self) -> None:
        while (job := self.jobs.get()) is not None:
            function, done = job
            error = _called(function)
            with suppress(RuntimeError):  # the loop is closed: the result is not needed any more
                self._loop.call_soon_threadsafe(self._end, done, error)
            del job, function, done, error  # its references must not live until the next one

    def _end(self, done: Done, error: BaseException | None) -> None:
        self._free(self)
        done(error)


def _called(function: Callable[[], Any]) -> BaseException | None:
    try:
        result = function()
        if inspect.iscoroutine(result):
            result.close()
            return TypeError("the function returned a coroutine: declare it with `async def`")
    except BaseException as error:  # noqa: BLE001  # a user's code: whatever it raises, the worker continues
        return error
    return None
