"""The broker subscriptions behind durable ones: what they are called, whose they are, and when they end by themselves.

An actor's subscription to a pattern is one broker subscription for each log that may hold something the pattern covers. Beside it
lies a document that says whose it is, which is found again after a restart, and when it was last in use.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress

import msgspec

from penstock.api.message_queue import MessageQueue
from penstock.broker.broker import Broker
from penstock.durations import DAY, SECOND
from penstock.errors import AlreadyExists, PenstockError, SubscriptionNotFound
from penstock.hub.broker.stored_message import TOPIC
from penstock.hub.core.binding import Binding
from penstock.hub.core.topic import covers, has_wildcard
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
"""Nothing ends sooner after a start: whoever could not come while the server was down has that long."""


class Kept(msgspec.Struct, frozen=True):
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


_decode = msgspec.json.Decoder(Kept).decode


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
        self._expiry = expiry
        self._started_at = broker.clock.now()

    def all(self) -> list[Kept]:
        """Those that exist. Where they are as many as may be that takes a tenth of a second: call it in a thread."""
        return self._beginning("")

    def of(self, address: str) -> list[Kept]:
        """Those of one actor, found among all: call it in a thread."""
        return [kept for kept in self._beginning(f"hub.{_readable(address, '')}") if kept.address == address]

    def find(self, name: str) -> Kept | None:
        """The one that the broker calls so. Needs no thread."""
        with self._broker.lock:
            body = self._broker.catalog.documents.get(PREFIX + name)
        return None if body is None else _decode(body)

    def _beginning(self, name: str) -> list[Kept]:
        beginning = PREFIX + name
        with self._broker.lock:
            documents = [*self._broker.catalog.documents.items()]  # to look through them takes longer than others should wait
        return [_decode(body) for name, body in documents if name.startswith(beginning)]

    def is_there(self, kept: Kept) -> bool:
        """Whether a subscription needs nothing to be made or noted. Needs no thread."""
        with self._broker.lock:
            body = self._broker.catalog.documents.get(PREFIX + kept.name)
            if body is None or not self.is_attached(kept):
                return False
        return kept.used_at - _decode(body).used_at < self._grain

    def is_attached(self, kept: Kept) -> bool:
        """Whether there is a subscription, and its topic is still the one that it was made for. Needs no thread."""
        with self._broker.lock:
            queue = self._broker.catalog.subscriptions.get(kept.name)
        return queue is not None and not queue.detached

    def is_left_behind(self, kept: Kept) -> bool:
        """Whether its topic was deleted and made again: all that is in there now is new to it. Needs no thread."""
        with self._broker.lock:
            queue = self._broker.catalog.subscriptions.get(kept.name)
            stream = self._broker.catalog.topics.get(kept.topic)
        return queue is not None and queue.detached and stream is not None and queue.stream != stream.number

    def make(self, kept: Kept, binding: Binding, start: int) -> None:
        """Have a subscription from an offset of its log on, if there is none, and note that it is in use.

        One that was left behind begins at the beginning, whenever that is found out.
        """
        with self._broker.lock:
            is_new = PREFIX + kept.name not in self._broker.catalog.documents
        # The document first: a subscription that nobody knows would hold the log for ever.
        body = msgspec.json.encode(kept)
        self._broker.change(lambda catalog, now: catalog.keep_document(PREFIX + kept.name, body, now))
        try:
            self._subscribe(kept, binding, start)
        except PenstockError:
            if is_new:
                self._broker.change(lambda catalog, now: catalog.drop_document(PREFIX + kept.name, now))
            raise

    def _subscribe(self, kept: Kept, binding: Binding, start: int) -> None:
        with self._broker.lock:
            if self.is_attached(kept):
                return
            self._broker.catalog.topic(kept.topic)  # while there is none, the old one tells that it was left behind
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
            self._topics.register_subscription(kept.name, kept.topic, options)
        with self._broker.lock:
            is_ahead = self._broker.catalog.topic(kept.topic).next_offset > start
        if is_ahead:
            self._topics.seek(kept.name, offset=start)

    def delete(self, kept: Kept) -> None:
        """End a subscription for good."""
        with suppress(SubscriptionNotFound):
            self._topics.unregister_subscription(kept.name)
        self._broker.change(lambda catalog, now: catalog.drop_document(PREFIX + kept.name, now))

    def is_over(self, kept: Kept, now: int) -> bool:
        """Whether nobody came back for so long that it ends."""
        return now - kept.used_at >= self._expiry and now - self._started_at >= GRACE

    @property
    def _grain(self) -> int:
        """How exactly it is known when a subscription was in use: noting it is a write."""
        return min(DAY, self._expiry // 8)
