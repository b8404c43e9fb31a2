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

from penstock.broker.aio import AsyncBroker, Nudge
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import release
from penstock.durations import DAY
from penstock.errors import BrokerClosed, FailedPrecondition, NotFound
from penstock.hub.core.message import Message
from penstock.hub.core.topic import covers
from penstock.hub.feed import Deliver
from penstock.hub_host.logs import PART_BYTES, PART_MESSAGES, why
from penstock.hub_host.stored import LogReader

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


class Delivery:
    """One broker subscription, delivered to one connection. All methods belong to the event loop."""

    def __init__(self, aio: AsyncBroker, name: str, *, pattern: str, reader: LogReader, share: Share, deliver: Deliver) -> None:
        self._aio, self._broker = aio, aio.broker
        self.name = name
        self._pattern, self._reader, self._deliver = pattern, reader, deliver
        self._share = share
        self._nudge = Nudge(self._look)
        self.wake = self._nudge.ring
        """Look, soon."""
        self._number = 0
        """Of the queue that the bell hangs on."""
        self._out: dict[int, _Held] = {}
        """What was delivered and is not acknowledged, by offset."""
        self._offsets: dict[str, list[int]] = {}
        """The same by the ids of messages, which a client may have given to several."""
        self._waiting: deque[_Held] = deque()
        """Leased, for want of room not delivered."""
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def start(self) -> None:
        """Take back what an earlier life held, and deliver."""
        now = self._aio.advance()
        with self._broker.lock:
            self._broker.check_open()
            queue = self._broker.catalog.subscription(self.name)
            self._hang(queue)
            release(self._broker, queue, CONSUMER, now)
        self._share.members[self] = None
        self.wake()

    def close(self) -> None:
        """Deliver no more; what is not acknowledged goes back. Safe to call twice."""
        if self._is_over:
            return
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._share.members.pop(self, None)
        now = self._broker.clock.now()
        with self._broker.lock:
            queue = self._broker.catalog.queues.get(self._number)
            self._broker.bells.take_down(self._number, self.wake)
            if queue is not None:
                release(self._broker, queue, CONSUMER, now)
        self._forget()

    def ack(self, message_ids: Sequence[str]) -> None:
        """These are done. Unknown ones are passed over."""
        done = [
            held
            for message_id in message_ids
            for offset in self._offsets.pop(message_id, ())
            if (held := self._out.pop(offset, None)) is not None
        ]
        if done:
            self._settle([held.lease for held in done])
            self._share.give_back(len(done), sum(held.size for held in done))

    def _forget(self) -> None:
        """Nothing is out any more."""
        out, self._out, self._offsets = self._out, {}, {}
        self._waiting.clear()
        self._share.give_back(len(out), sum(held.size for held in out.values()))

    def _hang(self, queue: Queue) -> None:
        """Be told of what comes into this queue. Call it with the lock held."""
        self._broker.bells.take_down(self._number, self.wake)
        self._number = queue.number
        self._broker.bells.hang(queue.number, self.wake)

    def _look(self) -> None:
        if self._is_over or self._task is not None:
            return
        if self._waiting:
            self._hand_out()
        want = min(self._share.left, PART_MESSAGES)
        if self._waiting or want <= 0:
            return  # the share wakes it
        try:
            queue, leases = self._grant(want)
        except (BrokerClosed, FailedPrecondition):
            return  # a topic that was deleted: the feed wakes it when there is another
        except NotFound:
            log.warning("the durable subscription %r is gone with what was in it; it is made again within a minute", self.name)
            return
        if leases:
            self._sort(queue, leases)
            self._hand_out()
            self.wake()
        elif queue.absent is not None:
            self._task = asyncio.get_running_loop().create_task(self._aio.call(self._broker.load, queue))
            self._task.add_done_callback(self._loaded)

    def _grant(self, want: int) -> tuple[Queue, list[Lease]]:
        now = self._aio.advance()
        with self._broker.lock:
            queue, leases = self._broker.grant(
                Catalog.subscription, self.name, want, now, ack_deadline=LEASE, consumer=CONSUMER, max_bytes=PART_BYTES
            )
            if queue.number != self._number:
                self._hang(queue)  # its topic was deleted and made again
                self._forget()
            return queue, leases

    def _sort(self, queue: Queue, leases: list[Lease]) -> None:
        """Have what is wanted wait for its turn, and acknowledge the rest."""
        now, unwanted = self._broker.clock.now(), list[Lease]()
        for lease in leases:
            message = self._reader.message(lease.message, queue.stream, lease.offset)
            if message is None or not covers(self._pattern, message.topic or "") or _is_over(message, now):
                unwanted.append(lease)
            elif (again := self._out.get(lease.offset)) is not None:
                again.lease = lease  # the one before ran out; it has its place
                self._deliver([message])
            else:
                self._waiting.append(_Held(lease, message))
        self._settle(unwanted)

    def _hand_out(self) -> None:
        news: list[Message] = []
        while self._waiting and self._share.take(self._waiting[0].size):
            held = self._waiting.popleft()
            self._out[held.lease.offset] = held
            self._offsets.setdefault(held.message.message_id, []).append(held.lease.offset)
            news.append(held.message)
        if news:
            self._deliver(news)

    def _settle(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        now = self._broker.clock.now()
        with self._broker.lock:
            queue = self._broker.catalog.queues.get(self._number)
            if queue is None:
                return
            found = (queue.find(lease.offset, lease.attempt, lease.epoch) for lease in leases)
            live = [lease for lease in found if lease is not None]
            if live:
                self._broker.settle(queue, live, now, Queue.ack)

    def _loaded(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._is_over:
            return
        error = task.exception()
        if error is None:
            self.wake()
            return
        log.error("the durable subscription %r cannot be read, will try again: %s", self.name, why(error))
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)


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

    def ack(self, message_ids: Sequence[str]) -> None:
        """These are done and are not delivered again."""
        for delivery in self.deliveries:
            delivery.ack(message_ids)

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
