"""Penstock's own queues as sources of a router in the same process: no sockets, no copies, and everything in batches.

What a source is told in one turn of the loop is carried out at its end, under the broker's lock once. A waiting poll hangs on the
queue's bell, so a message is on its way as soon as it is published. What a router holds it holds as one consumer: its next life
gives that back before it takes anything, so that it comes first and in order, and no retry is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from penstock.api.rules import DeliveryRules, PlainDelivery
from penstock.broker.aio import AsyncBroker, Bell
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease
from penstock.broker.core.message import plain_text
from penstock.broker.core.policy import MAX_COUNT
from penstock.broker.core.policy import QueueConfig as Settings
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import Settlement, release
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import AlreadyExists, BrokerClosed, FailedPrecondition, Unavailable
from penstock.ids import message_id
from penstock.projects import Projects
from penstock.queue_manager import QueueManager
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.core.message import Received
from penstock.router.core.settled import Settled
from penstock.router.source import Depth, Source
from penstock.router.sources.penstock import Kind
from penstock.work import NewMessage

MAX_BYTES = 16 * 1024 * 1024
"""How much one poll brings; a message beyond it waits for the next."""
MAX_ERROR = 1_000
"""Characters of an error that is kept with a dead letter."""
SETTINGS = Settings(max_depth=10_000_000, max_retries=1_000_000, dead_letter_max_size=1_000_000)
"""Of a queue that the router makes: how often a message is tried is the router's to say."""
MAX_CONSUMER = 200
MOST_AT_ONCE = 8
"""Sources of one queue that are open at a time: each change of its settings opens it again, while an older one is drained."""

_PLAIN = PlainDelivery()


def consumer_name(config: QueueConfig) -> str:
    """Who holds what a router takes from a queue: the same in every life of the router."""
    return f"router:{shown_uri(config.name)}"[:MAX_CONSUMER]


class BrokerQueues:
    """The queues of a broker in this process (`LocalQueues`). `rules` are what the Pub/Sub door made of its subscriptions."""

    def __init__(self, aio: AsyncBroker, *, projects: Projects | None = None, rules: DeliveryRules | None = None) -> None:
        self.aio = aio
        self._projects = projects or Projects()
        self._rules = rules or _PLAIN
        self.numbers: dict[str, tuple[int, int]] = {}
        """(queue, stream) of the queues that are taken from, by their names in the router."""
        self.consumers: set[str] = set()
        """Those of the sources that are open."""

    def open(self, kind: Kind, name: str, config: QueueConfig) -> Source:
        """A source of one of them, not started."""
        scoped = self._projects.scoped(self._projects.default, name)
        if kind is Kind.SUBSCRIPTION:
            return LocalSource(self, Catalog.subscription, scoped, config, self._rules)
        with self.aio.broker.lock:
            found = self.aio.broker.catalog.work_queues.get(scoped)
        keeps_dead = found is None or bool(found.policy.dead_letter_size)
        return (LocalQueueSource if keeps_dead else LocalWorkSource)(self, Catalog.work_queue, scoped, config, _PLAIN)


class LocalSource:
    """A subscription or work queue."""

    def __init__(
        self,
        queues: BrokerQueues,
        find: Callable[[Catalog, str], Queue],
        name: str,
        config: QueueConfig,
        rules: DeliveryRules,
    ) -> None:
        self.lease_seconds: float | None = config.visibility_timeout
        self._queues, self._aio, self._broker, self._rules = queues, queues.aio, queues.aio.broker, rules
        self._find, self._name = find, name
        self._alias = config.name
        self._lease = config.visibility_timeout * SECOND
        name = consumer_name(config)
        self._names = [name, *(f"{name}#{number}" for number in range(2, MOST_AT_ONCE + 1))]
        self._consumer = name
        self._bell: Bell | None = None
        """There is one from start to stop."""
        self._number = 0
        """Of the queue that the bell hangs on."""
        self._is_due = False
        self._acks: list[Received] = []
        self._verdicts: dict[tuple[str, int], list[Received]] = {}
        """Nacks and extensions, by how long."""
        self._is_acking = False
        self._settled = Settled()
        self._rest = ExitStack()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Find the queue, and give back what an earlier life held."""
        if self._bell is not None:
            return
        await self._make()
        now = self._aio.advance()
        with self._broker.lock:
            self._check_open()
            queue = self._find(self._broker.catalog, self._name)
            self._rules.check_pulled(queue)
            self._bell = Bell()
            self._hang(queue)
            # A queue that is opened again, while the router still works on what came from it, is another consumer's.
            is_alone = self._queues.consumers.isdisjoint(self._names)
            self._consumer = next((name for name in self._names if name not in self._queues.consumers), self._names[-1])
            self._queues.consumers.add(self._consumer)
            self._give_back(queue, now, self._names if is_alone else [self._consumer])
        self._rest.enter_context(self._rules.in_use(queue.number))

    async def stop(self) -> None:
        """Carry out what was told, give back the rest, and let go."""
        bell, self._bell = self._bell, None
        if bell is None:
            return
        self._rest.close()
        self._queues.consumers.discard(self._consumer)
        try:
            self._carry_out()
            now = self._aio.advance()
        except BrokerClosed:
            bell.ring()
            return
        with self._broker.lock:
            queue = self._broker.catalog.queues.get(self._number)
            self._broker.bells.take_down(self._number, self._ring)
            if queue is not None:
                self._give_back(queue, now, [self._consumer])
        if self._queues.consumers.isdisjoint(self._names):
            self._queues.numbers.pop(self._alias, None)
        bell.ring()

    @property
    def is_healthy(self) -> bool:
        """Whether it is started; the broker is in the same process."""
        return self._bell is not None

    async def poll(self, want: int, wait: float) -> Sequence[Received]:
        """What there is, or what comes within the time."""
        until = monotonic() + int(wait * SECOND)
        while (bell := self._bell) is not None:
            bell.clear()
            queue, leases = self._grant(want)
            if leases:
                received = await self._received(queue, leases)
                if received or self._bell is None:
                    return received
                continue
            if queue.absent is not None:
                await self._aio.call(self._broker.load, queue)
                continue
            left = until - monotonic()
            if left <= 0:
                break
            await bell.wait(left / SECOND)
        return ()

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, received: Received) -> None:
        """The message is done with."""
        self._acks.append(received)
        if not self._is_due:
            self._soon()

    def nack(self, received: Received, delay: int) -> None:
        """Back to the queue. With no delay nobody has tried it, so no try is counted."""
        self._verdicts.setdefault(("nack", delay), []).append(received)
        if not self._is_due:
            self._soon()

    def refuse(self, received: Received, delay: int) -> None:
        """Back to the queue in a while, and no try is counted: it is held until then."""
        self.extend(received, delay + self._lease // SECOND)
        asyncio.get_running_loop().call_later(delay, self.nack, received, 0)

    def extend(self, received: Received, seconds: int) -> None:
        """Another deadline."""
        self._verdicts.setdefault(("extend", seconds), []).append(received)
        if not self._is_due:
            self._soon()

    async def flush(self) -> None:
        """Carry out what was told, and have it written down."""
        with suppress(BrokerClosed, Unavailable):  # given up: it comes again
            self._carry_out()
            await self._aio.durable()

    async def depth(self) -> Depth | None:
        """How much is in the queue."""
        self._aio.advance()
        with self._broker.lock:
            queue = self._find(self._broker.catalog, self._name)
            return Depth(queue.ready, queue.in_flight + queue.delayed)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _make(self) -> None:
        """What needs a topic, or other settings than a router's, is not made here."""

    def _check_open(self) -> None:
        try:
            self._broker.check_open()
        except BrokerClosed:
            raise Unavailable("the broker in this process is closed") from None

    def _hang(self, queue: Queue) -> None:
        """Be told of what comes into this queue. Call it with the lock held."""
        self._broker.bells.take_down(self._number, self._ring)
        self._number = queue.number
        self._queues.numbers[self._alias] = (queue.number, queue.stream)
        self._broker.bells.hang(queue.number, self._ring)

    def _ring(self) -> None:
        """Something may be deliverable. Called with the lock held, by any thread."""
        if self._is_acking and not self._broker.catalog.queues[self._number].is_deliverable:
            return  # acks of one's own bring nothing, unless they end what others waited behind
        if (bell := self._bell) is not None:
            bell.ring()

    def _give_back(self, queue: Queue, now: int, consumers: Sequence[str]) -> None:
        # Exactly once: a delivery that somebody may have worked on ends by its deadline alone.
        if not queue.policy.exactly_once:
            for consumer in consumers:
                release(self._broker, queue, consumer, now)

    def _grant(self, want: int) -> tuple[Queue, list[Lease]]:
        try:
            now = self._aio.advance()
            with self._broker.lock:
                queue, leases = self._broker.grant(
                    self._find,
                    self._name,
                    want,
                    now,
                    ack_deadline=self._lease,
                    consumer=self._consumer,
                    prefetch=MAX_COUNT,
                    max_bytes=MAX_BYTES,
                )
                if queue.number != self._number:
                    self._hang(queue)  # it was deleted and made again
        except BrokerClosed:
            raise Unavailable("the broker in this process is closed") from None
        return queue, leases

    async def _received(self, queue: Queue, leases: list[Lease]) -> Sequence[Received]:
        """What is handed out of these leases; nothing, where the source was stopped meanwhile and they went back."""
        if self._rules.transforms(queue):
            leases = await self._rules.ready(queue, leases, MAX_BYTES)
            if self._bell is None:
                return ()
        stream = f"{queue.stream:06x}"
        found = [
            Received(f"{lease.message.publish_at:014x}{stream}{lease.offset:010x}", lease.message.data, lease, lease.attempt)
            for lease in leases
        ]
        if not len(self._settled):
            return found
        news: list[Received] = []
        for received in found:
            (self.ack if self._settled.take(received.broker_id) else news.append)(received)
        return news

    def _soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._carry_out_soon)

    def _carry_out_soon(self) -> None:
        if self._is_due:
            with suppress(BrokerClosed):  # whose leases end by themselves
                self._carry_out()

    def _carry_out(self) -> None:
        """Do what was told in this turn of the loop."""
        self._is_due = False
        acks, verdicts = self._acks, self._verdicts
        if not acks and not verdicts:
            return
        self._acks, self._verdicts = [], {}
        now = self._aio.advance()
        with self._broker.lock:
            self._broker.check_open()
            queue = self._broker.catalog.queues.get(self._number)
            if queue is None:
                return
            if acks:
                self._ack(queue, acks, now)
            for (verb, seconds), told in verdicts.items():
                live = {lease.offset: lease for received in told if (lease := _live(queue, received)) is not None}
                if live:
                    self._broker.settle(queue, [*live.values()], now, _settlement(verb, seconds * SECOND))

    def _ack(self, queue: Queue, acks: list[Received], now: int) -> None:
        live: dict[int, Lease] = {}
        lease_of = queue.lease_of
        for received in acks:
            told: Lease = received.receipt
            lease = lease_of(told.offset)
            if lease is told or (lease is not None and self._holds(queue, lease, received)):
                live[told.offset] = lease
            elif queue.is_unsettled(told.offset, told.message):
                self._settled.add(received.broker_id, now)
        if live:
            self._is_acking = True
            try:
                self._broker.settle(queue, [*live.values()], now, Queue.ack)
            finally:
                self._is_acking = False

    def _holds(self, queue: Queue, lease: Lease, received: Received) -> bool:
        """Whether a lease is of the same message, and this router's."""
        # A message that is done with is done with, however often it was handed out meanwhile.
        return _is_of(queue, lease, received) and lease.consumer is not None and lease.consumer.consumer_id in self._names


class LocalWorkSource(LocalSource):
    """A work queue: unlike a subscription, it can be written to."""

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue. The group is in the body; the queue keeps one order for all of them."""
        batch = QueueManager(broker=self._broker).batch(self._name, [NewMessage(body)], self._aio.advance())
        placed = await self._aio.publish(Catalog.work_stream, self._name, batch)
        return placed.message_ids()[0]


class LocalQueueSource(LocalWorkSource):
    """A work queue that keeps dead letters of its own, and is made when there is none."""

    async def bury(self, received: Received, reason: str, error: str) -> None:
        """Move the message to the queue's dead letters."""
        self._carry_out()
        now = self._aio.advance()
        with self._broker.lock:
            self._check_open()
            queue = self._find(self._broker.catalog, self._name)
            lease = _live(queue, received)
            if lease is None:
                raise FailedPrecondition(f"the message {received.broker_id} is not held any more: it comes again")
            text = plain_text(error[:MAX_ERROR])
            self._broker.settle(
                queue, [lease], now, lambda queue, leases, now: queue.condemn(leases, now, reason=reason, error=text)
            )
        await self._aio.durable()

    async def _make(self) -> None:
        with self._broker.lock:
            self._check_open()
            if self._name in self._broker.catalog.work_queues:
                return
        with suppress(AlreadyExists):  # made by somebody else, in this moment
            await self._aio.call(QueueManager(broker=self._broker).create, self._name, SETTINGS)


def _live(queue: Queue, received: Received) -> Lease | None:
    """The live lease of exactly this delivery, whatever its deadline is now."""
    told: Lease = received.receipt
    lease = queue.find(told.offset, told.attempt, told.epoch)
    return lease if lease is not None and _is_of(queue, lease, received) else None


def _is_of(queue: Queue, lease: Lease, received: Received) -> bool:
    """Whether a lease is of this message, and not of one in a queue of the same name that was made later."""
    return message_id(lease.message.publish_at, queue.stream, lease.offset) == received.broker_id


def _settlement(verb: str, span: int) -> Settlement:
    if verb == "nack" and not span:
        return lambda queue, leases, now: queue.give_back(sorted(leases, key=lambda lease: lease.offset), now)
    # A message that has to wait is held by its lease until then: so it goes back to its place when this router starts anew, which
    # knows nothing of it, before what came after it.
    return lambda queue, leases, now: queue.extend(leases, now + span, now)
