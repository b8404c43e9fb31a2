"""Worker: runs tasks that messages call. See docs/workers.md.

    made ──start──> working ──stop, SIGTERM──> stopping ──> stopped
                       │          what waits here returns at once; what runs has `shutdown_seconds` to end, or until a
                       │          second signal; what then still runs is cancelled and returns
                       └── a queue is gone, or may not be read: it stops, and `run` raises why

It may be started again. The rules are in `core/`, the running in `executor.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

import msgspec

from penstock.client.handlers import Events, Listener
from penstock.client.options import SubscriberOptions
from penstock.client.pubsub import PubSub
from penstock.durations import SECOND, micros
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, QueueNotFound, short_repr
from penstock.sync import PubSub as BlockingPubSub
from penstock.values.message import check_name
from penstock.values.policy import Duration, FlowControl, QueueConfig, check_count
from penstock.values.queue import NewMessage
from penstock.wire.address import Servers
from penstock.worker.core.call import Call, call_in
from penstock.worker.core.verdict import Outcome, Reject, Retry, TaskResult, TimeLimitExceeded, WorkerStats, text_of
from penstock.worker.executor import Executor, QueueReader
from penstock.worker.loop import ClientLoop
from penstock.worker.task import Task, TaskOptions, renamed_retries

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Listener)

log = logging.getLogger("penstock.worker")

DEFAULT_SERVER = "http://127.0.0.1:8085"
SERVER_VARIABLE, TOKEN_VARIABLE, PROJECT_VARIABLE = "PENSTOCK_SERVER", "PENSTOCK_TOKEN", "PENSTOCK_PROJECT"
PREFETCH_FACTOR = 4
"""Messages that are fetched for each slot: the next ones are here before they are needed."""
QUEUE_NAME = re.compile(r"[\w.~+%:@#-]{1,256}")
"""Names of queues that a worker may create: they appear in logs, and after `--queues`, separated by commas."""
EAGER_ID = "eager"
"""The id that sending returns if the call ran at once, without a message."""
LEASE_SECONDS = 60
FOREVER_SECONDS = 366 * 86_400
CANCEL_SECONDS = 5.0
"""Seconds that cancelled tasks, and listeners, have to end; after a second signal, tasks have a fifth of it."""

_LEVELS = {
    Outcome.SUCCEEDED: logging.INFO,
    Outcome.RETRIED: logging.WARNING,
    Outcome.DEAD: logging.ERROR,
    Outcome.RETURNED: logging.INFO,
}
_EXPECTED = (Retry, Reject, TimeLimitExceeded)
"""Errors whose text is enough: their traceback is not logged."""


class Worker:
    """Tasks, and the process that runs them.

    `Worker("http://host:8085", token="…")` uses a server, `Worker(data_dir="…")` a broker in this process, `Worker(pubsub=…)` a
    client that its owner opens and closes. `Worker()` finds its server in PENSTOCK_SERVER (and PENSTOCK_TOKEN, PENSTOCK_PROJECT)
    when it is used. At most `concurrency` tasks run at a time.
    """

    def __init__(
        self,
        server: Servers | None = None,
        *,
        token: str | None = None,
        project: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        pubsub: PubSub | BlockingPubSub | None = None,
        concurrency: int = 20,
        prefetch: int | None = None,
        shutdown_seconds: Duration = 30,
        create_queues: bool = True,
        queue_config: QueueConfig | None = None,
    ) -> None:
        if sum(one is not None for one in (server, data_dir, pubsub)) > 1:
            raise InvalidArgument("more than one of server, data_dir and pubsub is given, expected at most one of them")
        if queue_config is not None and not isinstance(queue_config, QueueConfig):
            raise InvalidArgument.of("queue_config", queue_config, "a QueueConfig")
        self._server, self._token, self._project, self._data_dir = server, token, project, data_dir
        self._is_placed = data_dir is not None or pubsub is not None
        self._client_loop = ClientLoop(self._client, pubsub)
        self._concurrency = check_count(concurrency, "concurrency", 1, 10_000)
        self._prefetch = None if prefetch is None else check_count(prefetch, "prefetch", 1, 1_000_000)
        self._shutdown = micros(shutdown_seconds, "shutdown_seconds", maximum=FOREVER_SECONDS) / SECOND
        self._create_queues = create_queues
        self._queue_config = queue_config
        self._tasks: dict[str, Task[..., Any]] = {}
        self._events = Events("success", "failure")
        self._stats = WorkerStats()
        self._executor: Executor | None = None
        self._readers: list[QueueReader] = []
        self._stopping: asyncio.Task[None] | None = None
        self._failure: PenstockError | None = None
        self._over, self._hurry = asyncio.Event(), asyncio.Event()
        self._eager: list[Call] | None = None
        """The calls that were sent, while `eager`; None: calls go to their queues."""

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, queue: Callable[P, R]) -> Task[P, R]: ...

    @overload
    def task(
        self,
        queue: str = "default",
        *,
        name: str | None = None,
        max_retries: int | None = None,
        backoff: tuple[float, float] | float = (1, 300),
        time_limit: Duration | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        retries: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        queue: str | Callable[P, R] = "default",
        *,
        name: str | None = None,
        max_retries: int | None = None,
        backoff: tuple[float, float] | float = (1, 300),
        time_limit: Duration | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        retries: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]] | Task[P, R]:
        """As a decorator: make a task of a function, or of a coroutine function. Its calls go through the named queue.

        `@worker.task` without parentheses takes the queue `default`.

        `name`: what messages call it (default: the function's name). `max_retries`: how often a failed call is tried again
        (default: what the queue says). `backoff`: (first, longest) seconds before a retry, doubling in between. `time_limit`:
        seconds a call may take. `priority`: 0–9, 9 first. `ttl`: seconds after which a call that has not started becomes a
        dead letter.
        `retries` is deprecated: use `max_retries`.
        """
        if callable(queue):
            return self.task()(queue)
        check_name(queue, "queue")
        if not QUEUE_NAME.fullmatch(queue):
            raise InvalidArgument.of("queue", queue, "at most 256 letters, digits and -._~+%:@#", hint='@worker.task("emails")')
        options = TaskOptions.of(
            max_retries=renamed_retries(max_retries, retries), backoff=backoff, time_limit=time_limit, priority=priority, ttl=ttl
        )

        def decorate(function: Callable[P, R]) -> Task[P, R]:
            if not callable(function):
                raise InvalidArgument.of("the task", function, "a function or a coroutine function")
            task = Task(self, function, name=name or str(getattr(function, "__name__", "")), queue=queue, options=options)
            if task.name in self._tasks:
                raise InvalidArgument(f"there is a task {task.name!r} already", hint=f'@worker.task("{queue}", name="…")')
            self._tasks[task.name] = task
            return task

        return decorate

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """Every task, by its name."""
        return {**self._tasks}

    @property
    def queues(self) -> list[str]:
        """The queues of the tasks."""
        return [*dict.fromkeys(task.queue for task in self._tasks.values())]

    # ── listening ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_success(self, listener: L) -> L:
        """Call a function or coroutine function with the TaskResult of each successful call. Also a decorator."""
        self._events.add("success", listener)
        return listener

    def on_failure(self, listener: L) -> L:
        """Likewise for each failed call; `result.outcome` is `retried` if it will be retried. Also a decorator."""
        self._events.add("failure", listener)
        return listener

    @property
    def stats(self) -> WorkerStats:
        """What has been done, in numbers."""
        executor = self._executor
        return replace(self._stats, running=executor.running if executor else 0, waiting=executor.waiting if executor else 0)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, queues: Collection[str] | None = None) -> None:
        """Work until SIGTERM or SIGINT, and return once everything has ended. Blocks; `serve` is the coroutine."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self.serve(queues))

    async def serve(self, queues: Collection[str] | None = None) -> None:
        """Work until SIGTERM or SIGINT, or until `stop`. Raises the error that made it impossible to continue."""
        with self._signals():
            try:
                if await self._started(queues):
                    await self._over.wait()
                    await self.stop()
            finally:
                await self.close()
        if self._failure is not None:
            raise self._failure

    async def _started(self, queues: Collection[str] | None) -> bool:
        """Start; False if a signal came first, perhaps while connecting."""
        starting, told = asyncio.ensure_future(self.start(queues)), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            for one in (starting, told):
                one.cancel()
            await asyncio.gather(starting, told, return_exceptions=True)
        return self._executor is not None

    async def start(self, queues: Collection[str] | None = None) -> None:
        """Start working in the running loop, for all queues of the tasks or for some. Does nothing if it is running."""
        if self._executor is not None:
            return
        # Before the first wait: a signal during the connection attempt must not be lost.
        self._over.clear()
        self._hurry.clear()
        names = self._chosen(queues)
        pubsub = await self._client_loop.move_here()
        if self._create_queues:
            for name in names:
                await self._create(pubsub, name)
        self._failure, self._stopping = None, None
        self._executor = Executor(self._tasks, self._concurrency, self._stats, tell=self._tell, is_heard=self._is_heard)
        options = SubscriberOptions(
            flow_control=FlowControl(max_messages=self._prefetch or PREFETCH_FACTOR * self._concurrency),
            ack_deadline=LEASE_SECONDS,
            max_extension=FOREVER_SECONDS,
            max_streams=1,
        )
        self._readers = [QueueReader(name, pubsub.link, self._executor, options, self._failed) for name in names]
        for reader in self._readers:
            reader.stream.start()
        log.info(
            "worker=started server=%s queues=%s tasks=%d concurrency=%d",
            pubsub.link.address,
            ",".join(names),
            len(self._tasks),
            self._concurrency,
        )

    async def stop(self) -> None:
        """Take no more messages; return once running calls have ended, or were interrupted after `shutdown_seconds`.

        Can be called twice.
        """
        if self._executor is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(self._executor))
        await asyncio.shield(self._stopping)

    async def open(self) -> Self:
        """Connect, to send calls. Sending the first call does it too."""
        await self._client_loop.move_here()
        return self

    async def close(self) -> None:
        """Stop, if it is running, and disconnect. Can be called twice."""
        await self.stop()
        await self._client_loop.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def configure(self, *, server: Servers | None = None, token: str | None = None, concurrency: int | None = None) -> None:
        """Change its settings before it is used, as the command line does."""
        if self._client_loop.is_settled:
            raise FailedPrecondition("the worker is in use")
        if server is not None:
            if self._is_placed:
                raise InvalidArgument(
                    f"a server, {server!r}, is given to a worker that has a data directory or a client of its own"
                )
            self._server = server
        self._token = token or self._token
        if concurrency is not None:
            self._concurrency = check_count(concurrency, "concurrency", 1, 10_000)

    # ── for tests ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def eager(self) -> Iterator[list[Call]]:
        """Run calls directly where they are sent; their exceptions are raised there.

        For tests of code that sends calls: there is no server and no queue, and `delay` and retries have no effect. Returns the
        list of calls that were sent.
        """
        before, self._eager = self._eager, []
        try:
            yield self._eager
        finally:
            self._eager = before

    @contextmanager
    def using(self, pubsub: PubSub | BlockingPubSub) -> Iterator[None]:
        """Send calls to the queues of another client, such as the fixture `pubsub` of a test.

        Its owner opens and closes the client; it may be a blocking one.
        """
        if self._client_loop.is_settled:
            raise FailedPrecondition("the worker is in use", hint="close it first, or enter this before anything is sent")
        before, self._client_loop = self._client_loop, ClientLoop(self._client, pubsub)
        try:
            yield
        finally:
            self._client_loop = before

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, queue: str, message: NewMessage) -> str:
        """Publish a message to a queue, as `task.send` does. Returns its id once it is durable."""
        if self._eager is not None:
            call, task = self._called(message)
            if task.is_async:
                await task.function(*call.args, **call.kwargs)
            else:
                await asyncio.to_thread(task.function, *call.args, **call.kwargs)
            return EAGER_ID
        return await self._client_loop.call(partial(self._publish, queue, message))

    def send_sync(self, queue: str, message: NewMessage) -> str:
        """The same, for code without an event loop."""
        if self._eager is not None:
            call, task = self._called(message)
            result = task.function(*call.args, **call.kwargs)
            if task.is_async:
                asyncio.run(result)
            return EAGER_ID
        return self._client_loop.call_blocking(partial(self._publish, queue, message))

    def _called(self, message: NewMessage) -> tuple[Call, Task[..., Any]]:
        """The call in a message, as a worker would get it, and its task."""
        assert self._eager is not None, "calls run where they are sent"
        call = call_in(msgspec.json.encode(message.payload))
        self._eager.append(call)
        return call, self._tasks[call.task]

    async def _publish(self, queue: str, message: NewMessage, pubsub: PubSub) -> str:
        place = pubsub.queue(queue)
        try:
            return await place.publish_message(message)
        except QueueNotFound:
            if not self._create_queues:
                raise
            await self._create(pubsub, queue)
            return await place.publish_message(message)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _client(self) -> PubSub:
        if self._data_dir is not None:
            return PubSub(data_dir=self._data_dir, project=self._project)
        server = self._server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
        token = self._token or os.environ.get(TOKEN_VARIABLE) or None
        return PubSub(server, token=token, project=self._project or os.environ.get(PROJECT_VARIABLE) or None)

    async def _create(self, pubsub: PubSub, name: str) -> None:
        """Create a missing queue. A caller that may not create queues can still work on existing ones."""
        queue = pubsub.queue(name)
        if not await queue.exists():
            await queue.create(self._queue_config, exist_ok=True)

    def _chosen(self, queues: Collection[str] | None) -> list[str]:
        known = self.queues
        if not known:
            raise FailedPrecondition("the worker has no tasks", hint='@worker.task("emails")')
        for name in queues or ():
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else None
                raise InvalidArgument(f"no task uses the queue {name!r}, expected some of {', '.join(known)}", hint=hint)
        return known if queues is None else [name for name in known if name in queues]

    async def _stop(self, executor: Executor) -> None:
        self._over.set()
        log.info("worker=stopping running=%d", executor.running)
        ends: asyncio.Future[Any] = asyncio.gather(executor.finished(), *(reader.stream.stop() for reader in self._readers))
        hurry: asyncio.Future[Any] = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({ends, hurry}, timeout=self._shutdown, return_when=asyncio.FIRST_COMPLETED)
        if not ends.done():
            await executor.abandon(CANCEL_SECONDS / 5 if hurry.done() else CANCEL_SECONDS)
        hurry.cancel()
        await ends
        executor.close()
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._heard()
        except TimeoutError:
            log.warning("worker=stopping problem=a listener still runs after %g s; it is not waited for", CANCEL_SECONDS)
        self._executor, self._readers = None, []
        stats = self._stats
        log.info(
            "worker=stopped succeeded=%d retried=%d dead=%d returned=%d",
            stats.succeeded,
            stats.retried,
            stats.dead,
            stats.returned,
        )

    async def _heard(self) -> None:
        """Return once every listener has ended."""
        ended = asyncio.Event()
        self._events.on_done = ended.set
        while self._events.is_busy():
            ended.clear()
            await ended.wait()

    def _failed(self, error: PenstockError) -> None:
        """A queue cannot be consumed any more: raise the error in `run`."""
        log.error("worker=failed problem=%s", error)
        self._failure = self._failure or error
        self._over.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops cleanly, the second at once. Outside the main thread there are none."""
        loop, caught = asyncio.get_running_loop(), []
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._on_signal, number)
            except (ValueError, RuntimeError, NotImplementedError):
                break
            caught.append(number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._over.is_set():
            log.warning("worker=stopping signal=%s problem=a second signal: running tasks are interrupted", number.name)
            self._hurry.set()
        else:
            log.info("worker=stopping signal=%s seconds=%g", number.name, self._shutdown)
            self._over.set()

    def _is_heard(self, outcome: Outcome) -> bool:
        return log.isEnabledFor(_LEVELS[outcome]) or bool(
            self._events.listeners["success" if outcome is Outcome.SUCCEEDED else "failure"]
        )

    def _tell(self, result: TaskResult) -> None:
        error = result.error
        log.log(
            _LEVELS[result.outcome],
            "task=%s queue=%s id=%s attempt=%d/%d seconds=%.6f outcome=%s%s%s",
            result.task or "?",
            result.queue,
            result.message_id,
            result.attempt,
            result.max_retries + 1,
            result.seconds,
            result.outcome,
            "" if result.delay is None else f" retry_in={result.delay:g}",
            "" if error is None else f" error={short_repr(text_of(error))}{_place(error)}",
            exc_info=_traced(error) if result.outcome is Outcome.DEAD and not isinstance(error, _EXPECTED) else None,
        )
        if result.outcome is Outcome.SUCCEEDED:
            self._events.emit("success", result)
        elif result.outcome is not Outcome.RETURNED:
            self._events.emit("failure", result)


def _own(error: BaseException) -> TracebackType | None:
    """The traceback of a task's error from the task's function on: the worker's frames are of no use."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("penstock.worker."):
        frames = frames.tb_next
    return frames


def _traced(error: BaseException | None) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return None if error is None else (type(error), error, _own(error))


def _place(error: BaseException) -> str:
    """Where an error was raised, as in ` at=app.py:16`; empty for errors about the message."""
    frames = _own(error)
    if frames is None or isinstance(error, _EXPECTED):
        return ""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return f" at={Path(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory of uvloop if it is installed: half of the time of a message is spent in the loop."""
    try:
        import uvloop  # noqa: PLC0415  # it is no dependency of a client
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
