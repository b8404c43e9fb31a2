"""Durable subscriptions as they are delivered: at least once, in the order of the log, never more than a client can hold.

A delivery is leased for as long as the connection lives, a day at most. So nothing is sent twice to one that is slow to
acknowledge; when the connection ends, whatever it did not acknowledge goes back to its place, without counting as a try, and
comes first to whoever resumes the subscription. A crash of the server leaves the same leases, which the next to resume takes
over.

What is out to one actor is bounded in messages and in bytes, over all its durable subscriptions: the backlog of a week must not
fill the outbox of the one who comes back for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import StreamConsumer
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.durations import DAY
from penstock.errors import BrokerClosed, FailedPrecondition, NotFound, PenstockError
from penstock.hub.broker.stored_message import LogReader
from penstock.hub.broker.topic_log import PART_BYTES, PART_MESSAGES, why
from penstock.hub.core.message import Message
from penstock.hub.core.topic import covers
from penstock.hub.feed import Deliver
from penstock.values.descriptions import QueueDescription

log = logging.getLogger("penstock.hub")

CONSUMER = "hub"
"""Who holds what is delivered: a durable subscription has one reader at a time."""
LEASE = DAY
RETRY_SECONDS = 1.0


class Share:
    """How much may be out to one actor."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages = self._bytes = 0
        self.members: dict[Delivery, None] = {}
        """Who takes from it."""

    @property
    def left(self) -> int:
        """How many more messages may go out."""
        return self._max_messages - self._messages if self._bytes < self._max_bytes else 0

    def take(self, size: int) -> bool:
        """Take a place for a message; False when there is none. One message may always be out, however large."""
        if self._messages and (self.left <= 0 or self._bytes + size > self._max_bytes):
            return False
        self._messages += 1
        self._bytes += size
        return True

    def give_back(self, messages: int, size: int) -> None:
        """These are not out any more: let everybody look."""
        self._messages -= messages
        self._bytes -= size
        for member in self.members:
            member.wake()


class _Held:
    """A message that is out, or waits to go out."""

    __slots__ = ("lease", "message", "size")

    def __init__(self, lease: Lease, message: Message) -> None:
        self.lease, self.message = lease, message
        self.size = message.weight


class Delivery(StreamConsumer):
    """One broker subscription, delivered to one connection. All methods belong to the event loop."""

    def __init__(self, aio: AsyncBroker, name: str, *, pattern: str, reader: LogReader, share: Share, deliver: Deliver) -> None:
        super().__init__(
            aio,
            Catalog.subscription,
            name,
            self,
            identity=CONSUMER,
            ack_deadline=LEASE,
            follows=True,
            batch=PART_MESSAGES,
            batch_bytes=PART_BYTES,
        )
        self._pattern, self._reader, self._deliver = pattern, reader, deliver
        self._share = share
        self._out: dict[int, _Held] = {}
        """What was delivered and is not acknowledged, by offset."""
        self._waiting: deque[_Held] = deque()
        """Leased, for want of room not delivered."""

    def start(self) -> None:
        """Take back what an earlier life held, and deliver."""
        super().start()
        self.release()
        self._share.members[self] = None

    def close(self) -> None:
        """Deliver no more; what is not acknowledged is requeued. Safe to call twice."""
        if not self.is_over:
            self.stop()
            self._share.members.pop(self, None)
            self.release()
            self._forget()

    def ack(self, messages: Sequence[Message]) -> None:
        """These are done. What this delivery did not bring is passed over: other logs have the same offsets."""
        done: list[_Held] = []
        for message in messages:
            offset = -1 if message.position is None else message.position.offset
            if offset in self._out and self._out[offset].message is message:
                done.append(self._out.pop(offset))
        if done:
            self.settle([held.lease for held in done], Queue.ack)
            self._share.give_back(len(done), sum(held.size for held in done))

    def _forget(self) -> None:
        """Nothing is out any more."""
        out, self._out = self._out, {}
        self._waiting.clear()
        self._share.give_back(len(out), sum(held.size for held in out.values()))

    # ── for the consumer ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        """How many more messages may be out."""
        if self._waiting:
            self._hand_out()
        return 0 if self._waiting else max(self._share.left, 0)

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        """Have what the pattern covers wait for its turn, and acknowledge the rest."""
        now, unwanted = self._broker.clock.now(), list[Lease]()
        for lease in leases:
            message = self._reader.message(lease.message, queue.stream, lease.offset)
            if message is None or not covers(self._pattern, message.topic or "") or _is_over(message, now):
                unwanted.append(lease)
            elif (again := self._out.get(lease.offset)) is not None:
                again.lease = lease  # the one before ran out; it has its place
                self._deliver([again.message])
            else:
                self._waiting.append(_Held(lease, message))
        if unwanted:
            self.settle(unwanted, Queue.ack)
        self._hand_out()

    def fail(self, error: PenstockError) -> None:
        """Nothing can be delivered now. It goes on when there is something to deliver from."""
        match error:
            case BrokerClosed() | FailedPrecondition():
                pass  # a topic that was deleted: the feed wakes it when there is another
            case NotFound():
                log.warning(
                    "the durable subscription %r is gone with what was in it; it is made again within a minute", self.name
                )
            case _:
                log.error("the durable subscription %r cannot be read, will try again: %s", self.name, why(error))
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)

    def end(self, error: PenstockError | None) -> None:
        """It ends by `close` alone."""

    def _meet(self, queue: Queue) -> None:
        if self.number:
            self._forget()  # its topic was deleted and made again
        super()._meet(queue)

    def _hand_out(self) -> None:
        news: list[Message] = []
        while self._waiting and self._share.take(self._waiting[0].size):
            held = self._waiting.popleft()
            self._out[held.lease.offset] = held
            news.append(held.message)
        if news:
            self._deliver(news)


def _is_over(message: Message, now: int) -> bool:
    return message.expires_at is not None and message.expires_at <= now


class RetainedSubscription:
    """A durable subscription of an actor to a pattern, delivered to one connection (`penstock.hub.feed.Retained`)."""

    def __init__(self, deliveries: Sequence[Delivery], closed: Callable[[RetainedSubscription], None]) -> None:
        self.deliveries = deliveries
        self._closed = closed

    def start(self) -> None:
        """Begin."""
        for delivery in self.deliveries:
            delivery.start()

    def ack(self, messages: Sequence[Message]) -> None:
        """These are done and are not delivered again."""
        for delivery in self.deliveries:
            delivery.ack(messages)

    def close(self) -> None:
        """Deliver no more. Safe to call twice."""
        self._closed(self)
        for delivery in self.deliveries:
            delivery.close()

    def wake(self) -> None:
        """Look, soon: what it reads from was made again."""
        for delivery in self.deliveries:
            delivery.wake()

    def is_delivering(self, name: str) -> bool:
        """Whether it delivers from that subscription of the broker."""
        return any(delivery.name == name for delivery in self.deliveries)
