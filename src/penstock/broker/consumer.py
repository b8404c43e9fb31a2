"""One consumer of a queue: it takes what is deliverable, waits for more, settles it, and releases what it holds at the end.

Every API consumes through this module, whatever its protocol:

    take_blocking     one take that blocks a thread                              MessageQueue, QueueManager
    Consumer          take, settle, release, in any thread
    AsyncConsumer     the same for an event loop; a wait can be cancelled        unary pulls, long polls, the router
    StreamConsumer    delivers to a sink as messages become deliverable          streams, push, WebSockets, the hub

A waiting consumer holds no lease. A lease that is granted while the wait is being cancelled is released before the cancellation
continues, so nothing stays leased without a consumer. A message wakes only consumers that can use it; the one that has waited
longest comes first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from typing import NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from penstock.broker.aio import AsyncBroker, LoopCallback, StopSignal
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import ACK, GIVE_BACK, Settlement, nack, release
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import BrokerClosed, FailedPrecondition, PenstockError, QueueNotFound, SubscriptionNotFound
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease

log = logging.getLogger("penstock.feed")

BATCH = 250
"""How many messages one consumer gets before it is another one's turn."""
BATCH_BYTES = 1024 * 1024
CHECK_SECONDS = 1.0
"""How often a waiting consumer checks that its caller is still authorized."""

Find = Callable[[Catalog, str], Queue]


class DeliveryRules(Protocol):
    """The rules of a subscription for its deliveries. Called on the event loop: only the coroutines may take time."""

    def check_pulled(self, queue: QueueDescription) -> None:
        """FailedPrecondition for a subscription whose messages are pushed to an endpoint."""

    def transforms(self, queue: QueueDescription) -> bool:
        """Whether deliveries of a subscription must be transformed first. Called for every delivery, so it must be cheap."""

    async def ready(self, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """Return the leases to deliver. The others are settled according to their transforms; if it is cancelled, all are."""

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """A context in which a subscription does not expire."""


class PlainDelivery:
    """Rules that allow everything: those of work queues."""

    def check_pulled(self, queue: QueueDescription) -> None:
        """Allow all queues: work queues are not pushed."""

    def transforms(self, queue: QueueDescription) -> bool:
        return False

    async def ready(self, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
        return leases

    def in_use(self, number: int) -> AbstractContextManager[None]:
        return nullcontext()


PLAIN = PlainDelivery()


class Delivered(Protocol):
    """Identifies a delivery: a lease, or a `Handle`."""

    @property
    def offset(self) -> int: ...  # as of a lease
    @property
    def attempt(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class Counts(NamedTuple):
    """How many messages of a queue are deliverable or wait for their key, are delayed, and are leased."""

    ready: int
    delayed: int
    in_flight: int


class Handle(NamedTuple):
    """Identifies a delivery without keeping its message in memory."""

    offset: int
    attempt: int
    epoch: int


D = TypeVar("D", bound=Delivered)
K = TypeVar("K")


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


class Terms(TypedDict, total=False):
    """How a consumer takes messages.

    A queue that is deleted and recreated is another queue: taking from it raises NotFound, unless the consumer `follows` it.
    """

    identity: str | None
    """The holder of the leases. Leases without one end by an ack id or their deadline."""
    ack_deadline: int | None
    prefetch: int | None
    prefetch_bytes: int | None
    """How much the identity may hold."""
    key_window: int
    """How many messages of one ordering key it may hold; while it holds one, no other consumer gets messages of that key."""
    follows: bool


_record: ContextVar[TakenRecord | None] = ContextVar("penstock_taken", default=None)


class Consumer:
    """Takes, settles and releases for one identity on one queue, as `Terms` say. Safe to use from any thread."""

    def __init__(
        self,
        broker: Broker,
        find: Find,
        name: str,
        rules: DeliveryRules = PLAIN,
        *,
        identity: str | None = None,
        ack_deadline: int | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        key_window: int = 1,
        follows: bool = False,
    ) -> None:
        self._broker, self._find, self.name = broker, find, name
        self._rules = rules
        self.identity = identity
        self.ack_deadline, self.prefetch, self.prefetch_bytes = ack_deadline, prefetch, prefetch_bytes
        self.key_window = key_window
        self._follows = follows
        self.number = 0
        """The number of the queue; 0 before the first take."""
        self._queue: Queue
        """The queue, after the first take."""
        self._checked: QueueDescription | None = None
        """The queue as the delivery rules see it."""

    @property
    def queue(self) -> QueueDescription:
        """The current state of the queue. Call it after the first take."""
        return self._queue.description

    def take(self, want: int, max_bytes: int | None = None) -> list[Lease]:
        """Lease what is deliverable now. If a message is not in memory, it stops there and sets `_queue.absent`: load it."""
        broker, lock = self._broker, self._broker.lock
        now = broker.clock.now()
        if now >= broker.next_due:
            broker.advance(now)
        lock.acquire()
        try:
            if broker.is_closed:
                raise BrokerClosed
            self._queue = queue = self._find(broker.catalog, self.name)
            if queue.number != self.number:
                self._meet(queue)
            if queue.description is not self._checked:
                self._rules.check_pulled(queue.description)
                self._checked = queue.description
            if queue.detached:
                raise _detached(queue)
            leases = queue.lease(
                now, want, self.ack_deadline, self.identity, self.prefetch, self.prefetch_bytes, max_bytes, self.key_window
            )
            if leases:
                broker.emit(queue.leased(leases, now))
                if queue.soonest < queue.scheduled:
                    broker.reschedule(queue)
            return leases
        finally:
            lock.release()

    def settle(self, deliveries: Iterable[D], verb: Settlement) -> list[D]:
        """Settle deliveries, or change their deadlines; returns those that were not held any more."""
        broker, failed, live = self._broker, list[D](), dict[int, Lease]()
        now = broker.clock.now()
        with broker.lock:
            broker.check_open()
            queue = broker.catalog.queues.get(self.number)
            if queue is None:
                return [*deliveries]
            for one in deliveries:
                # Compared by handle: an extension creates another lease of the same delivery.
                found = queue.find(one.offset, one.attempt, one.epoch)
                if found is not None:
                    live[found.offset] = found
                else:
                    failed.append(one)
            if live:
                broker.settle(queue, [*live.values()], now, verb)
        return failed

    def settle_by_key(
        self, verbs: Iterable[tuple[Sequence[K], Settlement]], offset_of: Callable[[K], int], key_of: Callable[[Lease], K]
    ) -> list[K]:
        """The same for deliveries that a client identifies by keys of its own; returns the keys without a delivery.

        `offset_of` gives the offset in a key, `key_of` the key of a live delivery.
        """
        broker, now = self._broker, self._broker.clock.now()
        failed: list[K] = []
        with broker.lock:
            if broker.is_closed:
                raise BrokerClosed
            queue = broker.catalog.queues.get(self.number)
            if queue is None:
                return [key for keys, _ in verbs for key in keys]
            lease_of = queue.live.get
            for keys, verb in verbs:
                settled: dict[int, Lease] = {}
                for key in keys:
                    offset = offset_of(key)
                    lease = lease_of(offset)
                    if lease is None or key_of(lease) != key or offset in settled:
                        failed.append(key)
                    else:
                        settled[offset] = lease
                if settled:
                    broker.settle(queue, [*settled.values()], now, verb)
        return failed

    def held(self) -> list[Lease]:
        """The deliveries that the identity holds, in order."""
        with self._broker.lock:
            queue = self._broker.catalog.queues.get(self.number)
            return held_by(queue, self.identity) if queue is not None and self.identity is not None else []

    def holding(self) -> tuple[int, int] | None:
        """The number and bytes of the deliveries that the identity holds; None if the queue was deleted. Cheap."""
        queue = self._broker.catalog.queues.get(self.number)
        if queue is None or self.identity is None:
            return None
        holding = queue.holding(self.identity)
        return len(holding.held), holding.size

    def current(self) -> QueueDescription | None:
        """The current state of the queue; None if it was deleted, even if it was recreated."""
        with self._broker.lock:
            queue = self._broker.catalog.queues.get(self.number)
            return queue.description if queue is not None else None

    def release(self, failed: Callable[[Lease], bool] | None = None, error: str | None = None) -> None:
        """Requeue all deliveries of the identity, not counted as attempts; nack those that `failed` selects, with the error.

        Deliveries with exactly-once delivery that a client may have processed are an exception: only their deadline ends them.
        """
        broker = self._broker
        with broker.lock:
            queue = broker.catalog.queues.get(self.number)
            if queue is not None and self.identity is not None and not queue.policy.exactly_once:
                now = broker.clock.now()
                if failed is not None and (tried := [lease for lease in held_by(queue, self.identity) if failed(lease)]):
                    broker.settle(queue, tried, now, nack(error=error))
                release(broker, queue, self.identity, now)

    def forget(self) -> None:
        """Forget the identity if it holds nothing; otherwise its leases last until their deadlines."""
        broker = self._broker
        with broker.lock:
            queue = broker.catalog.queues.get(self.number)
            if queue is not None and self.identity is not None and not queue.holding(self.identity).held:
                release(broker, queue, self.identity, broker.clock.now())

    def ack_messages(self, leases: Iterable[Lease]) -> list[Lease]:
        """Acknowledge the messages of these leases, also if the identity holds them by a later lease.

        Returns those that wait for redelivery or are leased to another consumer: they cannot be acknowledged now.
        """
        broker, failed, live = self._broker, list[Lease](), dict[int, Lease]()
        now = broker.clock.now()
        with broker.lock:
            broker.check_open()
            queue = broker.catalog.queues.get(self.number)
            if queue is None:
                return []
            lease_of = queue.lease_of
            for lease in leases:
                held = lease_of(lease.offset)
                if held is lease or (held is not None and self._is_mine(held)):
                    live[lease.offset] = held
                elif queue.is_unsettled(lease.offset, lease.message):
                    failed.append(lease)
            if live:
                broker.settle(queue, [*live.values()], now, ACK)
        return failed

    def _is_mine(self, lease: Lease) -> bool:
        return lease.consumer is not None and lease.consumer.consumer_id == self.identity

    def counts(self) -> Counts:
        """Return how many messages the queue with this name has. NotFound if there is none."""
        with self._broker.lock:
            queue = self._find(self._broker.catalog, self.name)
            return Counts(queue.ready, queue.delayed, queue.in_flight)

    def _meet(self, queue: Queue) -> None:
        """Called, with the lock held, when a queue is found for the first time."""
        if self.number and not self._follows:
            raise (QueueNotFound if self._find is Catalog.work_queue else SubscriptionNotFound)(self.name)
        before, self.number = self.number, queue.number
        self.attached(before)

    def attached(self, before: int) -> None:
        """Called, with the lock held, when the queue was found or, if `before` is another number, recreated."""


def take_blocking(  # noqa: PLR0917  # by position: a keyword costs time here
    broker: Broker,
    find: Find,
    name: str,
    want: int,
    timeout: int = 0,
    identity: str | None = None,
    ack_deadline: int | None = None,
    prefetch: int | None = None,
) -> tuple[QueueDescription, list[Lease]]:
    """Lease what is deliverable, blocking for at most `timeout` microseconds until something is. See `Consumer`."""
    until, started, lock = 0, 0, broker.lock
    granted: list[Lease] = []  # not list[Lease](), which is slower than a function call
    while True:
        now = broker.clock.now()
        if now >= broker.next_due:
            now = broker.catch_up()
        lock.acquire()
        try:
            if broker.is_closed:
                raise BrokerClosed
            queue = find(broker.catalog, name)
            if queue.detached:
                raise _detached(queue)
            leases = queue.lease(now, want, ack_deadline, identity, prefetch)
            if leases:
                broker.emit(queue.leased(leases, now))
                if queue.soonest < queue.scheduled:
                    broker.reschedule(queue)
            if queue.absent is None:
                if leases or granted or not timeout:
                    return queue.description, granted + leases if granted else leases
                if not started:
                    until, started = now + timeout, monotonic()
                # Wall time may step back, and a manual clock may stand still: real time ends the wait too.
                left = min(until - now, timeout - (monotonic() - started))
                if left <= 0:
                    return queue.description, []
                changed = threading.Condition(lock)
                broker.notifier.add(queue.number, changed.notify)
                try:
                    broker.clock.wait(changed, left)
                finally:
                    broker.notifier.remove(queue.number, changed.notify)
                continue
        finally:
            lock.release()
        granted += leases
        want -= len(leases)
        try:
            broker.load(queue)
        except PenstockError:
            if granted:
                return queue.description, granted
            raise


def _detached(queue: Queue) -> FailedPrecondition:
    return FailedPrecondition(
        f"Subscription {queue.name!r} is detached: its topic was deleted, or it was detached from it",
        hint="delete it and recreate it on an existing topic",
    )


def held_by(queue: Queue, consumer: str) -> list[Lease]:
    """The leases of a consumer, in order. Call it with the lock held."""
    return [lease for offset in sorted(queue.holding(consumer).held) if (lease := queue.lease_of(offset)) is not None]


class AsyncConsumer(Consumer):
    """A consumer of an event loop. Call all methods in the loop."""

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
            waiting.look()  # for messages that came before it joined
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
        """How many messages it may take now; negative if it need not look at all."""
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
        self._aio.notify(self.number)  # for other consumers too: they left the message that had to be loaded to this one
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
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody has the messages
            self.settle(leases, GIVE_BACK)
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Log an unexpected error, without its text, which may contain a payload."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        log.error("a consumer failed with %s at %s:%s", type(error).__name__, place.filename, place.lineno)
        self.fail(PenstockError("an internal error of the broker"))
