"""Durable subscriptions of the hub: the broker subscriptions behind them, and how they are delivered.

An actor's subscription to a pattern is one broker subscription for each log that may have messages that the pattern covers. Each
has a document with its actor, so that it is found after a restart, and the time when it was last in use.

Delivery is at least once and in the order of the log. A message is leased for as long as the connection lives, at most a day:
nothing is sent twice to a client that is slow to acknowledge. When the connection ends, unacknowledged messages are requeued in
their place, without counting an attempt, and are delivered first when the subscription is resumed. After a crash of the server
the leases still exist, and the next connection takes them over. The unacknowledged messages of an actor are limited in number and
in bytes, over all its durable subscriptions: the backlog of a week must not fill the outbox of a returning client.
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
"""The prefix of document names; the rest is the name of the subscription."""
MAX_READABLE = 150
MAX_FILTERED = 180
"""The longest part of a topic that fits into a filter, which has at most 256 bytes."""
MAX_WAITING = 1_000_000
"""Messages that may wait for one subscription of a broker in memory; on disk there is no such limit."""
GRACE = 3_600 * SECOND
"""No subscription expires sooner after a start: clients that could not connect while the server was down have this long."""
CONSUMER = "hub"
"""The holder of the leases: a durable subscription has one reader at a time."""
LEASE = DAY
RETRY_SECONDS = 1.0


class StoredSubscription(msgspec.Struct, frozen=True):
    """The document of a broker subscription: its actor, pattern and log."""

    address: str
    pattern: str
    topic: str
    """The topic of the broker whose log it reads."""
    bound: str
    """The pattern of hub topics that the log is bound to."""
    used_at: int
    """When its actor last used it, approximately."""

    @property
    def name(self) -> str:
        """Its name in the broker: readable for people, and unique for each actor, pattern and log."""
        said = _readable(self.address, self.pattern)
        digest = hashlib.blake2b(f"{self.address}\n{self.pattern}\n{self.topic}\n{self.bound}".encode(), digest_size=8)
        return f"hub.{said}.{digest.hexdigest()}"


_decode = msgspec.json.Decoder(StoredSubscription).decode


def _readable(address: str, pattern: str) -> str:
    return f"{address.strip('@()')}/{pattern}".replace("/", ".").replace("#", "~")[:MAX_READABLE]


def filter_of(pattern: str, binding: Binding) -> str:
    """A filter of the broker that passes all messages that the pattern covers, and as few others as filters can express."""
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
    """All durable subscriptions of one broker. Methods that change something block until it is durable: call them in a thread."""

    def __init__(self, broker: Broker, expiry: int) -> None:
        self._broker = broker
        self._topics = MessageQueue(broker=broker)
        self._documents = Documents(broker, PREFIX)
        self._expiry = expiry
        self._started_at = broker.clock.now()

    def all(self) -> list[StoredSubscription]:
        """All that exist. With the maximum number it takes a tenth of a second: call it in a thread."""
        return [_decode(body) for body in self._documents.all().values()]

    def of(self, address: str) -> list[StoredSubscription]:
        """Those of one actor. It searches all: call it in a thread."""
        found = map(_decode, self._documents.all(f"hub.{_readable(address, '')}").values())
        return [kept for kept in found if kept.address == address]

    def find(self, name: str) -> StoredSubscription | None:
        """The one with this name in the broker. Needs no thread."""
        body = self._documents.get(name)
        return None if body is None else _decode(body)

    def is_there(self, kept: StoredSubscription) -> bool:
        """Whether a subscription is complete, so that `make` has nothing to create or store. Needs no thread."""
        known = self.find(kept.name)
        return known is not None and kept.used_at - known.used_at < self._grain and self.is_attached(kept)

    def is_attached(self, kept: StoredSubscription) -> bool:
        """Whether the subscription exists, and its topic is still the one that it was created for. Needs no thread."""
        queue = find_subscription(self._broker, kept.name)
        return queue is not None and not queue.detached

    def is_left_behind(self, kept: StoredSubscription) -> bool:
        """Whether its topic was deleted and created again, so that it has received no message of it. Needs no thread."""
        queue, stream = find_subscription(self._broker, kept.name), find_topic(self._broker, kept.topic)
        return queue is not None and queue.detached and stream is not None and queue.stream != stream.number

    def make(self, kept: StoredSubscription, binding: Binding, start: int) -> None:
        """Create a subscription that starts at an offset of its log, unless it exists, and store that it is in use.

        If its topic was deleted and created again, it starts at the beginning of the new log, even if that is found out late.
        """
        is_new = self._documents.get(kept.name) is None
        # The document first: a subscription without a document would hold the log forever.
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
            raise TopicNotFound(kept.topic)  # the old subscription stays, since `is_left_behind` needs it
        if self.is_left_behind(kept):
            start = 0
        with suppress(SubscriptionNotFound):  # a subscription of a deleted topic is empty, and stays empty
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
        """Delete a subscription and its document."""
        with suppress(SubscriptionNotFound):
            self._topics.unregister_subscription(kept.name)
        self._documents.drop(kept.name)

    def is_over(self, kept: StoredSubscription, now: int) -> bool:
        """Whether it has expired, because its actor has not used it for the whole expiry."""
        return now - kept.used_at >= self._expiry and now - self._started_at >= GRACE

    @property
    def _grain(self) -> int:
        """The precision of `used_at`: storing it more often would cost more writes."""
        return min(DAY, self._expiry // 8)


class DeliveryBudget:
    """The limit of unacknowledged messages of one actor."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages = self._bytes = 0
        self.members: dict[Delivery, None] = {}
        """The deliveries that share it."""

    @property
    def left(self) -> int:
        return self._max_messages - self._messages if self._bytes < self._max_bytes else 0

    def take(self, size: int) -> bool:
        """Count a message; False if the limit is reached. A single message is always allowed, even if it is larger."""
        if self._messages and (self.left <= 0 or self._bytes + size > self._max_bytes):
            return False
        self._messages += 1
        self._bytes += size
        return True

    def give_back(self, messages: int, size: int) -> None:
        """Stop counting these messages, and wake all deliveries."""
        self._messages -= messages
        self._bytes -= size
        for member in self.members:
            member.wake()


class _Held:
    """A message that was delivered, or waits for delivery."""

    __slots__ = ("lease", "message", "size")

    def __init__(self, lease: Lease, message: Message) -> None:
        self.lease, self.message = lease, message
        self.size = message.weight


class Delivery(StreamConsumer):
    """One broker subscription, delivered to one connection. All methods run in the event loop."""

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
        """Delivered messages that are not acknowledged, by offset."""
        self._waiting: deque[_Held] = deque()
        """Leased messages that are not delivered yet because the limit is reached."""

    def start(self) -> None:
        """Requeue messages that an earlier connection held, and start delivery."""
        super().start()
        self.release()
        self._share.members[self] = None

    def close(self) -> None:
        """Stop delivery, and requeue unacknowledged messages. Safe to call twice."""
        if not self.is_over:
            self.stop()
            self._share.members.pop(self, None)
            self.release()
            self._forget()

    def ack(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages. Those that this delivery did not deliver are ignored: other logs have the same offsets."""
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

    # ── called by StreamConsumer ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        if self._waiting:
            self._hand_out()
        return 0 if self._waiting else max(self._share.left, 0)

    def deliver(self, queue: object, leases: list[Lease]) -> None:
        """Queue messages that the pattern covers for delivery, and acknowledge the others."""
        now, unwanted, stream = self._broker.clock.now(), list[Lease](), self.queue.stream
        for lease in leases:
            message = self._reader.message(lease.message, stream, lease.offset)
            if message is None or not covers(self._pattern, message.topic or "") or _is_over(message, now):
                unwanted.append(lease)
            elif (again := self._out.get(lease.offset)) is not None:
                again.lease = lease  # the previous lease expired; the message is already counted
                self._deliver([again.message])
            else:
                self._waiting.append(_Held(lease, message))
        if unwanted:
            self.settle(unwanted, ACK)
        self._hand_out()

    def fail(self, error: PenstockError) -> None:
        """Handle an error of reading. Delivery continues when there is something to read from again."""
        match error:
            case BrokerClosed() | FailedPrecondition():
                pass  # a deleted topic: the feed wakes it when the topic is created again
            case NotFound():
                log.warning(
                    "the durable subscription %r is gone with what was in it; it is created again within a minute", self.name
                )
            case _:
                log.error("the durable subscription %r cannot be read, will try again: %s", self.name, why(error))
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)

    def end(self, error: PenstockError | None) -> None:
        """Do nothing: only `close` ends it."""

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
        """Try to read again soon, because its broker subscriptions were created again."""
        for delivery in self.deliveries:
            delivery.wake()

    def is_delivering(self, name: str) -> bool:
        """Whether it delivers from this broker subscription."""
        return any(delivery.name == name for delivery in self.deliveries)
