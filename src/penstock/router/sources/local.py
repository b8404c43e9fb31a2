"""Penstock's own queues as sources of a router in the same process: no sockets, no copies, and everything in batches.

Acks, nacks and extensions of one turn of the loop are settled together at its end. A waiting poll gets a message as soon as it is
published. A router holds its messages as one consumer: its next run releases them before it takes any, so that they are delivered
first and in order, and no retry is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from penstock.api.queue_manager import QueueManager
from penstock.broker.aio import AsyncBroker, StopSignal
from penstock.broker.async_consumer import AsyncConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import PLAIN, DeliveryRules, Find
from penstock.broker.lookup import find_work_queue
from penstock.broker.settlement import GIVE_BACK, dead_letter, new_deadline
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import AlreadyExists, BrokerClosed, FailedPrecondition, Unavailable
from penstock.ids import message_id
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.core.message import SourceMessage
from penstock.router.core.tracker import LateAcks
from penstock.router.source import QueueDepth, Source
from penstock.router.sources.penstock import Kind
from penstock.values.lease import Lease
from penstock.values.message import plain_text
from penstock.values.policy import MAX_COUNT, ROUTER_QUEUE
from penstock.values.projects import Projects
from penstock.values.queue import NewMessage

MAX_BYTES = 16 * 1024 * 1024
"""The size limit of one poll; a message beyond it waits for the next."""
MAX_ERROR = 1_000
"""The length limit of an error that is kept with a dead letter, in characters."""
MAX_CONSUMER = 200
STREAM_AT = 14
"""Where the stream number starts in the id of a message."""
CLOSED = "the broker in this process is closed"


def consumer_name(config: QueueConfig) -> str:
    """The consumer name of a router at a queue: the same after a restart of the router."""
    return f"router:{shown_uri(config.name)}"[:MAX_CONSUMER]


class BrokerQueues:
    """The queues of a broker in this process (`LocalQueues`). `rules` are those of the Google Pub/Sub API's subscriptions."""

    def __init__(self, aio: AsyncBroker, *, projects: Projects | None = None, rules: DeliveryRules | None = None) -> None:
        self.aio = aio
        self._projects = projects or Projects()
        self._rules = rules or PLAIN
        self.numbers: dict[str, tuple[int, int]] = {}
        """(queue, stream) of the queues in use, by their names in the router."""

    def open(self, kind: Kind, name: str, config: QueueConfig) -> Source:
        scoped = self._projects.scoped(self._projects.default, name)
        if kind is Kind.SUBSCRIPTION:
            return LocalSource(self, Catalog.subscription, scoped, config, self._rules)
        found = find_work_queue(self.aio.broker, scoped)
        keeps_dead = found is None or bool(found.policy.dead_letter_size)
        return (LocalQueueSource if keeps_dead else LocalWorkSource)(self, Catalog.work_queue, scoped, config, PLAIN)


class LocalSource(AsyncConsumer):
    """A subscription or work queue."""

    identity: str
    ack_deadline: int

    def __init__(self, queues: BrokerQueues, find: Find, name: str, config: QueueConfig, rules: DeliveryRules) -> None:
        super().__init__(
            queues.aio,
            find,
            name,
            rules=rules,
            identity=consumer_name(config),
            ack_deadline=config.visibility_timeout * SECOND,
            prefetch=MAX_COUNT,
            follows=True,
            stopping=StopSignal(),  # its own: a router settles its messages before it stops
        )
        self.lease_seconds: float | None = config.visibility_timeout
        self._queues = queues
        self._alias = config.name
        self._is_started = False
        self._is_replaced = False
        """Whether a queue of this name was deleted whose messages may still be held."""
        self._is_due = False
        self._acks: list[SourceMessage] = []
        self._verdicts: dict[tuple[str, int], list[SourceMessage]] = {}
        """Nacks and extensions, by duration."""
        self._late_acks = LateAcks()
        self._use = ExitStack()

    # ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Find the queue, and requeue messages of an earlier run."""
        if self._is_started:
            return
        try:
            await self._make()
            self._aio.advance()
            self.attach()
        except BrokerClosed:
            raise Unavailable(CLOSED) from None
        self._is_started = True
        self.release()
        self._use.enter_context(self._in_use(self.number))

    async def stop(self) -> None:
        """Carry out the settlements, requeue the rest, and close."""
        if not self._is_started:
            return
        self._is_started = False
        self._use.close()
        self.stop_waiting()
        with suppress(BrokerClosed):
            self._carry_out()
            self._aio.advance()
            self.release()
            self._queues.numbers.pop(self._alias, None)

    @property
    def is_healthy(self) -> bool:
        """Whether it is started; the broker is in the same process."""
        return self._is_started

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        until = monotonic() + int(wait * SECOND)
        while self._is_started:
            try:
                leases = await self.next(want, max(until - monotonic(), 0), MAX_BYTES)
            except BrokerClosed:
                raise Unavailable(CLOSED) from None
            if not leases:
                break
            if self._is_started:  # otherwise `stop` has requeued them
                received = self._received(leases)
                if received:
                    return received
        return ()

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, received: SourceMessage) -> None:
        self._acks.append(received)
        if not self._is_due:
            self._soon()

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Requeue the message. Without a delay it was not tried, so no attempt is counted."""
        self._verdicts.setdefault(("nack", delay), []).append(received)
        if not self._is_due:
            self._soon()

    def refuse(self, received: SourceMessage, delay: int) -> None:
        """Requeue the message after a delay, without counting an attempt: it is held until then."""
        self.extend(received, delay + self.ack_deadline // SECOND)
        asyncio.get_running_loop().call_later(delay, self.nack, received, 0)

    def extend(self, received: SourceMessage, seconds: int) -> None:
        self._verdicts.setdefault(("extend", seconds), []).append(received)
        if not self._is_due:
            self._soon()

    def set_lease(self, seconds: int) -> None:
        self.lease_seconds, self.ack_deadline = seconds, seconds * SECOND

    async def flush(self) -> None:
        """Carry out the settlements, and wait until they are written."""
        with suppress(BrokerClosed, Unavailable):  # given up: it is redelivered
            self._carry_out()
            await self._aio.durable()

    async def depth(self) -> QueueDepth | None:
        """How much is in the queue."""
        self._aio.advance()
        counts = self.counts()
        return QueueDepth(counts.ready, counts.in_flight + counts.delayed)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _make(self) -> None:
        """Create the queue if needed. Not if it needs a topic, or other settings than a router's."""

    def attached(self, before: int) -> None:
        """Remember the queue for the records of the router."""
        self._is_replaced = self._is_replaced or bool(before)
        self._queues.numbers[self._alias] = (self.number, self.queue.stream)

    def _received(self, leases: list[Lease]) -> Sequence[SourceMessage]:
        """These leases as messages, without those that were acked before."""
        stream = f"{self.queue.stream:06x}"
        found = [
            SourceMessage(f"{lease.message.publish_at:014x}{stream}{lease.offset:010x}", lease.message.data, lease, lease.attempt)
            for lease in leases
        ]
        if not len(self._late_acks):
            return found
        news: list[SourceMessage] = []
        for received in found:
            (self.ack if self._late_acks.take(received.broker_id) else news.append)(received)
        return news

    def _soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._carry_out_soon)

    def _carry_out_soon(self) -> None:
        if self._is_due:
            with suppress(BrokerClosed):  # then the leases end by themselves
                self._carry_out()

    def _carry_out(self) -> None:
        self._is_due = False
        acks, verdicts = self._acks, self._verdicts
        if not acks and not verdicts:
            return
        self._acks, self._verdicts = [], {}
        now = self._aio.advance()
        if acks:
            # A finished message stays finished, even if it was delivered again meanwhile.
            for lease in self.ack_messages(self._current(acks)):
                self._late_acks.add(message_id(lease.message.publish_at, self.queue.stream, lease.offset), now)
        for (verb, seconds), told in verdicts.items():
            if verb == "nack" and not seconds:
                self.settle(sorted(self._current(told), key=lambda lease: lease.offset), GIVE_BACK)
            else:
                # A message that has to wait is held by its lease until then: so if this router restarts and knows nothing of it,
                # it is requeued to its place, before later ones.
                self.settle(self._current(told), new_deadline(seconds * SECOND))

    def _current(self, told: Sequence[SourceMessage]) -> list[Lease]:
        """The leases of these messages, without those of a queue with the same name that was deleted since."""
        if not self._is_replaced:
            return [received.receipt for received in told]
        stream = f"{self.queue.stream:06x}"
        return [received.receipt for received in told if received.broker_id.startswith(stream, STREAM_AT)]


class LocalWorkSource(LocalSource):
    """A work queue: unlike a subscription, it accepts messages."""

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue. The group is in the body; the queue has one order for all groups."""
        batch = QueueManager(broker=self._broker).batch(self.name, [NewMessage(body)], self._aio.advance())
        placed = await self._aio.publish(Catalog.work_stream, self.name, batch)
        return placed.message_ids()[0]


class LocalQueueSource(LocalWorkSource):
    """A work queue that has its own dead letters, and is created if it does not exist."""

    async def dead_letter(self, received: SourceMessage, reason: str, error: str, attempts: int) -> None:
        """Move the message to the queue's dead letters."""
        self._carry_out()
        self._aio.advance()
        leases = self._current([received])
        if not leases or self.settle(leases, dead_letter(reason, plain_text(error[:MAX_ERROR]), attempts or None)):
            raise FailedPrecondition(f"the message {received.broker_id} is not held any more: it is redelivered")
        await self._aio.durable()

    async def _make(self) -> None:
        self._broker.check_open()
        if find_work_queue(self._broker, self.name) is None:
            with suppress(AlreadyExists):  # created by another client at this moment
                await self._aio.call(QueueManager(broker=self._broker).create, self.name, ROUTER_QUEUE)
