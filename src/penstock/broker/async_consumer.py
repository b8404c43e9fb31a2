"""Consumers of an event loop.

    AsyncConsumer     a wait can be cancelled                                    unary pulls, long polls, the router
    StreamConsumer    delivers to a sink as messages become deliverable          streams, push, WebSockets, the hub

A waiting consumer holds no lease. A lease that is granted while the wait is being cancelled is released before the cancellation
continues, so nothing stays leased without a consumer. A message wakes only consumers that can use it; the one that has waited
longest comes first.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Protocol, Unpack

from penstock.broker.aio import AsyncBroker, LoopCallback, StopSignal
from penstock.broker.consumer import PLAIN, Consumer, DeliveryRules, Find, Handle, Terms
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import GIVE_BACK
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import BrokerClosed, PenstockError
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease

log = logging.getLogger("penstock.feed")

BATCH = 250
"""How many messages one consumer gets before others have their turn."""
BATCH_BYTES = 1024 * 1024
CHECK_SECONDS = 1.0
"""How often a waiting consumer checks whether its caller is still authorized."""


class TakenRecord:
    """The deliveries of a request: `undo` requeues them if the client did not get the response."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: list[tuple[Consumer, list[Handle]]] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def context(self) -> Context:
        """A context whose tasks record their deliveries here."""
        context = copy_context()
        context.run(_record.set, self)
        return context

    def add(self, consumer: Consumer, leases: list[Lease]) -> None:
        self._taken.append((consumer, [Handle(lease.offset, lease.attempt, lease.epoch) for lease in leases]))

    def undo(self) -> None:
        """Requeue the deliveries that are still held, without counting an attempt."""
        for consumer, handles in self._taken:
            with suppress(BrokerClosed):
                consumer.settle(handles, GIVE_BACK)
        self._taken.clear()


_record: ContextVar[TakenRecord | None] = ContextVar("penstock_taken", default=None)


class AsyncConsumer(Consumer):
    """A consumer of an event loop. All methods belong to the loop."""

    def __init__(
        self,
        aio: AsyncBroker,
        find: Find,
        name: str,
        *,
        rules: DeliveryRules = PLAIN,
        stopping: StopSignal | None = None,
        still: Callable[[], object] | None = None,
        connection: str | None = None,
        **terms: Unpack[Terms],
    ) -> None:
        super().__init__(aio.broker, find, name, rules, **terms)
        self._aio = aio
        self._transforms, self._ready, self._in_use = rules.transforms, rules.ready, rules.in_use
        self._stopping = stopping or aio.stopping
        self._still = still
        """Raises if the caller is no longer authorized: its token was revoked or has expired."""
        self._connection = connection
        self._waits: set[_Wait] = set()

    @property
    def connection(self) -> str | None:
        """The address of its client, if known."""
        return self._connection

    @property
    def prefetch_limit(self) -> int | None:
        """How many messages it may hold; None: as many as the queue's settings allow."""
        return self.prefetch

    def attach(self) -> None:
        """Find the queue. NotFound if there is none, FailedPrecondition if it cannot be pulled."""
        with self._broker.lock:
            self._broker.check_open()
            self._queue = self._find(self._broker.catalog, self.name)
            self._rules.check_pulled(self.queue)
            if self.queue.number != self.number:
                self._meet(self._queue)

    async def next(self, want: int, wait: int = 0, max_bytes: int = BATCH_BYTES) -> list[Lease]:
        """Take messages, waiting at most `wait` microseconds for the first. It may be cancelled at any point."""
        leases = await self._next(want, wait, max_bytes)
        if leases and (record := _record.get()) is not None:
            record.add(self, leases)
        return leases

    async def _next(self, want: int, wait: int, max_bytes: int) -> list[Lease]:
        until = monotonic() + wait
        leases = self.take(want, max_bytes)
        while True:
            if leases:
                if not self._transforms(self.queue):
                    return leases
                leases = await self._ready(self.queue, leases, max_bytes)
                if leases:
                    return leases
            elif self._queue.absent is not None:
                await self._aio.call(self._broker.load, self._queue)
            elif (left := until - monotonic()) > 0 and not self._stopping.is_set:
                taken = await self._taken(want, max_bytes, left)
                if taken is None:
                    return []
                leases = taken
                continue
            else:
                return leases
            leases = self.take(want, max_bytes)

    async def _taken(self, want: int, max_bytes: int, wait: int) -> list[Lease] | None:
        """Take what is deliverable: nothing if a message has to be loaded first; None if the wait is over."""
        loop, number = asyncio.get_running_loop(), self.number
        waiting = _Wait(self, want, max_bytes, loop.create_future(), self._still)
        timer = loop.call_later(wait / SECOND, waiting.stop_waiting)
        self._aio.join(number, waiting)
        self._stopping.waiters.add(waiting)
        self._waits.add(waiting)
        try:
            waiting.look()  # for messages that arrived before it joined
            waiting.check()
            return await waiting.future
        except asyncio.CancelledError:
            waiting.give_back()
            raise
        finally:
            timer.cancel()
            waiting.stop_checking()
            self._aio.leave(number, waiting)
            self._stopping.waiters.discard(waiting)
            self._waits.discard(waiting)

    def stop_waiting(self) -> None:
        """End every wait without messages."""
        for waiting in [*self._waits]:
            waiting.stop_waiting()


class _Wait:
    """One wait of a consumer (`penstock.broker.aio.Waiter`)."""

    __slots__ = ("_consumer", "_max_bytes", "_still", "_timer", "_want", "future")

    def __init__(
        self,
        consumer: AsyncConsumer,
        want: int,
        max_bytes: int,
        future: asyncio.Future[list[Lease] | None],
        still: Callable[[], object] | None,
    ) -> None:
        self._consumer, self._want, self._max_bytes = consumer, want, max_bytes
        self.future = future
        self._still = still
        self._timer: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> str | None:
        return self._consumer.identity

    @property
    def connection(self) -> str | None:
        """The address of the consumer's client."""
        return self._consumer.connection

    @property
    def prefetch_limit(self) -> int | None:
        """How many messages the consumer may hold."""
        return self._consumer.prefetch_limit

    def check(self) -> None:
        """Check now and every `CHECK_SECONDS` that the caller is still authorized; end with the error if it is not."""
        if self._still is None or self.future.done():
            return
        try:
            self._still()
        except PenstockError as error:
            self.future.set_exception(error)
        else:
            self._timer = self.future.get_loop().call_later(CHECK_SECONDS, self.check)

    def stop_checking(self) -> None:
        """Stop the checks."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> bool:
        """Take up to the requested number of messages; False if none are left for other consumers."""
        if self.future.done():
            return True
        consumer = self._consumer
        try:
            leases = consumer.take(self._want, self._max_bytes)
        except PenstockError as error:
            self.future.set_exception(error)
            return True
        if leases or consumer._queue.absent is not None:
            self.future.set_result(leases)
        return consumer._queue.is_deliverable

    def stop_waiting(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def give_back(self) -> None:
        """Requeue messages that were taken during a cancellation."""
        if self.future.done() and not self.future.cancelled() and self.future.exception() is None:
            self._consumer.settle(self.future.result() or (), GIVE_BACK)


class Sink(Protocol):
    """Receives the deliveries of a StreamConsumer. Called on the event loop; its methods return at once."""

    @property
    def room(self) -> int:
        """How many deliveries it can take now; when that grows, call `StreamConsumer.wake`."""

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        """Take deliveries."""

    def end(self, error: PenstockError | None) -> None:
        """Called when the consumer ends by itself, without a call of `close`."""


class StreamConsumer(AsyncConsumer):
    """Delivers to a sink as messages become deliverable, in batches, so that other consumers have their turn."""

    def __init__(
        self,
        aio: AsyncBroker,
        find: Find,
        name: str,
        sink: Sink,
        *,
        rules: DeliveryRules = PLAIN,
        batch: int = BATCH,
        batch_bytes: int = BATCH_BYTES,
        **terms: Unpack[Terms],
    ) -> None:
        super().__init__(aio, find, name, rules=rules, **terms)
        self._sink = sink
        self._batch, self._batch_bytes = batch, batch_bytes
        self._callback = LoopCallback(self.look)
        self._use = ExitStack()
        self._task: asyncio.Task[list[Lease]] | None = None
        self.is_over = False

    def start(self) -> None:
        """Start delivering. NotFound if there is no such queue, FailedPrecondition if it cannot be pulled."""
        self.attach()
        self._use.enter_context(self._in_use(self.number))
        self.wake()

    def wake(self) -> None:
        """Look for messages soon: the sink may have room again."""
        self._callback.notify()

    def stop(self) -> None:
        """Stop delivering. The identity keeps its leases: `release` requeues them. Safe to call twice."""
        if not self.is_over:
            self.is_over = True
            if self._task is not None:
                self._task.cancel()
            self._aio.leave(self.number, self)
            self._use.close()

    def fail(self, error: PenstockError) -> None:
        if not self.is_over:
            self.stop()
            self._sink.end(error)

    def look(self) -> bool:
        """Deliver one batch, and schedule the next if it was not empty; False if nothing is left for other consumers."""
        if self.is_over or self._task is not None:
            return True
        room = self._room()
        if room < 0:
            return True
        try:
            leases = self.take(min(room, self._batch), self._batch_bytes)
        except PenstockError as error:
            self.fail(error)
            return True
        queue = self._queue
        if leases:
            self._aio.served(self.number, self)
            if self._transforms(queue.description):
                self._later(self._ready(queue.description, leases, self._batch_bytes))
            else:
                self._pass_on(queue.description, leases)
                if not queue.is_deliverable and not queue.is_reserved_for(self.identity):
                    return False  # it is notified of what becomes deliverable later
                self._callback.notify()
        elif queue.absent is not None:
            self._later(self._load(queue))
            return False
        return queue.is_deliverable

    def _room(self) -> int:
        """How many messages it may take now; negative if it need not check at all."""
        return self._sink.room or -1

    def attached(self, before: int) -> None:
        if before:
            self._aio.leave(before, self)
        self._aio.join(self.number, self)

    async def _load(self, queue: Queue) -> list[Lease]:
        await self._aio.call(self._broker.load, queue)
        return []

    def _later(self, work: Coroutine[None, None, list[Lease]]) -> None:
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[list[Lease]]) -> None:
        self._task = None
        self._aio.notify(self.number)  # also for other consumers: they left the message that had to be loaded to this one
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PenstockError):
            self.fail(error)
        elif error is not None:
            self._break(error)
        elif not task.cancelled() and (leases := task.result()):
            if self.is_over:
                self.settle(leases, GIVE_BACK)
            else:
                self._pass_on(self.queue, leases)

    def _pass_on(self, queue: QueueDescription, leases: list[Lease]) -> None:
        try:
            self._sink.deliver(queue, leases)
        except Exception as error:  # noqa: BLE001  # after any error, no consumer has the messages
            self.settle(leases, GIVE_BACK)
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Log an unexpected error, without its text, which may contain a payload."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.error("a consumer failed with %s at %s:%s", type(error).__name__, place.filename, place.lineno)
        self.fail(PenstockError("an internal error of the broker"))
