"""One consumer of a queue: it takes deliverable messages, waits for more, settles them, and releases the rest at the end.

Every API consumes through these classes, whatever its protocol:

    take_blocking     one take that blocks a thread                              MessageQueue, QueueManager
    Consumer          take, settle, release, in any thread
    async_consumer    AsyncConsumer and StreamConsumer: the same for an event loop
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, TypedDict, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import ACK, Settlement, nack, release
from penstock.clock import monotonic
from penstock.errors import BrokerClosed, FailedPrecondition, PenstockError, QueueNotFound, SubscriptionNotFound
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease

Find = Callable[[Catalog, str], Queue]


class DeliveryRules(Protocol):
    """The requirements of a subscription for its deliveries. Called on the event loop: only awaited calls may take time."""

    def check_pulled(self, queue: QueueDescription) -> None:
        """FailedPrecondition for a subscription whose messages are pushed to an endpoint."""

    def transforms(self, queue: QueueDescription) -> bool:
        """Whether deliveries of a subscription must be transformed first. Cheap, because it is checked at every delivery."""

    async def ready(self, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """The leases to deliver; the others are settled as their transforms decide, or all of them if it is cancelled."""

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """A context in which a subscription does not expire for lack of use."""


class PlainDelivery:
    """The rules of work queues: none."""

    def check_pulled(self, queue: QueueDescription) -> None:
        """Allow it: nothing is pushed."""

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


class Consumer:
    """Takes, settles and releases for one identity on one queue, as set by `Terms`. Safe to use from any thread."""

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
            if broker.remote is not None and broker.is_silent:
                want = 0
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
        """The same for deliveries that a client identifies by its own keys; returns the keys without a delivery.

        `offset_of` returns the offset in a key, `key_of` the key of a live delivery.
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
            lease_of = queue.live.get
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
    """Lease deliverable messages, blocking for at most `timeout` microseconds until there are any. See `Consumer`."""
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
            is_silent = broker.remote is not None and broker.is_silent
            leases = queue.lease(now, 0 if is_silent else want, ack_deadline, identity, prefetch)
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
        f"Subscription {queue.name!r} is detached: its topic was deleted, or it was cut off from it",
        hint="delete it and create it again on an existing topic",
    )


def held_by(queue: Queue, consumer: str) -> list[Lease]:
    """The deliveries of a consumer, in order. Call it with the lock held."""
    return [lease for offset in sorted(queue.holding(consumer).held) if (lease := queue.lease_of(offset)) is not None]
