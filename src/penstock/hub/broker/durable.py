"""Durable subscriptions of the hub: the broker subscriptions behind them, and how they are delivered.

An actor's subscription to a pattern is one broker subscription for each log that may hold something the pattern covers. Beside it
lies a document that names its actor, from which it is found after a restart, and when it was last in use.

Deliveries are at least once and in the order of the log. A delivery is leased for as long as the connection lives, a day at most:
nothing is sent twice to a client that is slow to acknowledge. When the connection ends, everything that is not acknowledged is
requeued to its place, without counting an attempt, and is delivered first when the subscription is resumed. A crash of the server
leaves the same leases, which the next connection takes over. How much is out to one actor is bounded in messages and in bytes,
over all its durable subscriptions: the backlog of a week must not fill the outbox of a client that returns for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from penstock.api.message_queue import MessageQueue
from penstock.broker.aio import AsyncBroker
from penstock.broker.async_consumer import StreamConsumer
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.documents import Documents
from penstock.broker.lookup import find_subscription, find_topic
from penstock.broker.positions import subscribe_from
from penstock.broker.settlement import ACK
from penstock.durations import DAY, SECOND
from penstock.errors import (
    AlreadyExists,
    BrokerClosed,
    FailedPrecondition,
    NotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.hub.broker.stored_message import TOPIC, LogReader
from penstock.hub.broker.topic_log import PART, why
from penstock.hub.core.messages import Message
from penstock.hub.core.names import covers, has_wildcard
from penstock.hub.core.rules import Binding
from penstock.hub.ports import Deliver
from penstock.values.lease import Lease
from penstock.values.policy import SubscriptionOptions

log = logging.getLogger("penstock.hub")

PREFIX = "hub:durable:"
"""In front of a subscription's name: the name of the document that says whose it is."""
MAX_READABLE = 150
MAX_FILTERED = 180
"""So much of a topic fits into a filter, of at most 256 bytes."""
MAX_WAITING = 1_000_000
"""Messages that may wait for one subscription where messages are kept in memory; on disk there is no such limit."""
GRACE = 3_600 * SECOND
"""Nothing ends sooner after a start: clients that could not connect while the server was down have that long."""
CONSUMER = "hub"
"""The holder of what is delivered: a durable subscription has one reader at a time."""
LEASE = DAY
RETRY_SECONDS = 1.0


class StoredSubscription(msgspec.Struct, frozen=True):
    """Whose subscription it is."""

    address: str
    pattern: str
    topic: str
    """The broker's, whose log it reads."""
    bound: str
    """The pattern of hub topics that the log is bound to."""
    used_at: int
    """When its actor was last seen here, about."""

    @property
    def name(self) -> str:
        """What the broker calls it: readable for people, and different for every actor, pattern and log."""
        said = _readable(self.address, self.pattern)
        digest = hashlib.blake2b(f"{self.address}\n{self.pattern}\n{self.topic}\n{self.bound}".encode(), digest_size=8)
        return f"hub.{said}.{digest.hexdigest()}"


_decode = msgspec.json.Decoder(StoredSubscription).decode


def _readable(address: str, pattern: str) -> str:
    return f"{address.strip('@()')}/{pattern}".replace("/", ".").replace("#", "~")[:MAX_READABLE]


def filter_of(pattern: str, binding: Binding) -> str:
    """A filter of the broker that lets everything pass that the pattern covers, and as little else as it can say."""
    beginning = pattern[: min((pattern.index(mark) for mark in "+#" if mark in pattern), default=len(pattern))]
    if not beginning:
        return ""
    if has_wildcard(pattern) or len(pattern) > MAX_FILTERED:
        # orders/# covers orders itself.
        wanted = f'hasPrefix(attributes."{TOPIC}", "{beginning.removesuffix("/")[:MAX_FILTERED]}")'
    else:
        wanted = f'attributes."{TOPIC}" = "{pattern}"'
    return f'{wanted} OR NOT attributes:"{TOPIC}"' if covers(pattern, binding.base) else wanted


class DurableSubscriptions:
    """All of one broker. What changes something blocks until it is durable, and is called in a thread."""

    def __init__(self, broker: Broker, expiry: int) -> None:
        self._broker = broker
        self._topics = MessageQueue(broker=broker)
        self._documents = Documents(broker, PREFIX)
        self._expiry = expiry
        self._started_at = broker.clock.now()

    def all(self) -> list[StoredSubscription]:
        """Those that exist. With the most that may exist it takes a tenth of a second: call it in a thread."""
        return [_decode(body) for body in self._documents.all().values()]

    def of(self, address: str) -> list[StoredSubscription]:
        """Those of one actor, found among all: call it in a thread."""
        found = map(_decode, self._documents.all(f"hub.{_readable(address, '')}").values())
        return [kept for kept in found if kept.address == address]

    def find(self, name: str) -> StoredSubscription | None:
        """The one of that name in the broker. Needs no thread."""
        body = self._documents.get(name)
        return None if body is None else _decode(body)

    def is_there(self, kept: StoredSubscription) -> bool:
        """Whether nothing of a subscription has to be created or stored. Needs no thread."""
        known = self.find(kept.name)
        return known is not None and kept.used_at - known.used_at < self._grain and self.is_attached(kept)

    def is_attached(self, kept: StoredSubscription) -> bool:
        """Whether there is a subscription, and its topic is still the one that it was created for. Needs no thread."""
        queue = find_subscription(self._broker, kept.name)
        return queue is not None and not queue.detached

    def is_left_behind(self, kept: StoredSubscription) -> bool:
        """Whether its topic was deleted and created again: everything in there is new to it. Needs no thread."""
        queue, stream = find_subscription(self._broker, kept.name), find_topic(self._broker, kept.topic)
        return queue is not None and queue.detached and stream is not None and queue.stream != stream.number

    def make(self, kept: StoredSubscription, binding: Binding, start: int) -> None:
        """Have a subscription from an offset of its log on, if there is none, and store that it is in use.

        One that was left behind begins at the beginning, whenever that is found out.
        """
        is_new = self._documents.get(kept.name) is None
        # The document first: a subscription that nobody knows would hold the log forever.
        self._documents.keep(kept.name, msgspec.json.encode(kept))
        try:
            self._subscribe(kept, binding, start)
        except PenstockError:
            if is_new:
                self._documents.drop(kept.name)
            raise

    def _subscribe(self, kept: StoredSubscription, binding: Binding, start: int) -> None:
        if self.is_attached(kept):
            return
        if find_topic(self._broker, kept.topic) is None:
            raise TopicNotFound(kept.topic)  # the old subscription stays, by which it is known to be left behind
        if self.is_left_behind(kept):
            start = 0
        with suppress(SubscriptionNotFound):  # one whose topic was deleted is empty, and stays so
            self._topics.unregister_subscription(kept.name)
        options = SubscriptionOptions(
            ack_deadline_seconds=600,
            message_retention_duration=self._expiry / SECOND,
            filter=filter_of(kept.pattern, binding),
            max_messages=MAX_WAITING,
        )
        with suppress(AlreadyExists):
            subscribe_from(self._broker, kept.name, kept.topic, options, start)

    def delete(self, kept: StoredSubscription) -> None:
        """End a subscription for good."""
        with suppress(SubscriptionNotFound):
            self._topics.unregister_subscription(kept.name)
        self._documents.drop(kept.name)

    def is_over(self, kept: StoredSubscription, now: int) -> bool:
        """Whether nobody came back for so long that it ends."""
        return now - kept.used_at >= self._expiry and now - self._started_at >= GRACE

    @property
    def _grain(self) -> int:
        """How exactly it is known when a subscription was in use: noting it is a write."""
        return min(DAY, self._expiry // 8)


class DeliveryBudget:
    """How much may be out to one actor."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages = self._bytes = 0
        self.members: dict[Delivery, None] = {}
        """Who takes from it."""

    @property
    def left(self) -> int:
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

    def __init__(
        self, aio: AsyncBroker, name: str, *, pattern: str, reader: LogReader, share: DeliveryBudget, deliver: Deliver
    ) -> None:
        super().__init__(
            aio,
            Catalog.subscription,
            name,
            self,
            identity=CONSUMER,
            ack_deadline=LEASE,
            follows=True,
            batch=PART.max_messages,
            batch_bytes=PART.max_bytes,
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
            self.settle([held.lease for held in done], ACK)
            self._share.give_back(len(done), sum(held.size for held in done))

    def _forget(self) -> None:
        out, self._out = self._out, {}
        self._waiting.clear()
        self._share.give_back(len(out), sum(held.size for held in out.values()))

    # ── for the consumer ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        if self._waiting:
            self._hand_out()
        return 0 if self._waiting else max(self._share.left, 0)

    def deliver(self, queue: object, leases: list[Lease]) -> None:
        """Have what the pattern covers wait for its turn, and acknowledge the rest."""
        now, unwanted, stream = self._broker.clock.now(), list[Lease](), self.queue.stream
        for lease in leases:
            message = self._reader.message(lease.message, stream, lease.offset)
            if message is None or not covers(self._pattern, message.topic or "") or _is_over(message, now):
                unwanted.append(lease)
            elif (again := self._out.get(lease.offset)) is not None:
                again.lease = lease  # the one before ran out; it has its place
                self._deliver([again.message])
            else:
                self._waiting.append(_Held(lease, message))
        if unwanted:
            self.settle(unwanted, ACK)
        self._hand_out()

    def fail(self, error: PenstockError) -> None:
        """Nothing can be delivered now. It continues when there is something to deliver from."""
        match error:
            case BrokerClosed() | FailedPrecondition():
                pass  # a topic that was deleted: the feed wakes it when there is another
            case NotFound():
                log.warning(
                    "the durable subscription %r is gone with what was in it; it is created again within a minute", self.name
                )
            case _:
                log.error("the durable subscription %r cannot be read, will try again: %s", self.name, why(error))
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)

    def end(self, error: PenstockError | None) -> None:
        """It ends by `close` alone."""

    def attached(self, before: int) -> None:
        """Start again if the topic was deleted and created again."""
        if before:
            self._forget()
        super().attached(before)

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
    """A durable subscription of an actor to a pattern, delivered to one connection (`penstock.hub.ports.Retained`)."""

    def __init__(self, deliveries: Sequence[Delivery], closed: Callable[[RetainedSubscription], None]) -> None:
        self.deliveries = deliveries
        self._closed = closed

    def start(self) -> None:
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
        """Look, soon: what it reads from was created again."""
        for delivery in self.deliveries:
            delivery.wake()

    def is_delivering(self, name: str) -> bool:
        """Whether it delivers from that subscription of the broker."""
        return any(delivery.name == name for delivery in self.deliveries)
