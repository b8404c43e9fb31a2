"""Messages and answers of a hub as plain values, and `HubMessages`, which has the received messages of one subscription.

Backpressure: when `max_waiting` messages wait, the client asks the hub to pause (hub:pause), and to continue (hub:resume) when
half of them are taken. Answers to requests still arrive meanwhile, so a reader may publish and ack for each message it takes.
Messages that were already sent are still accepted. At four times the limit, nothing is read from the socket, unless a call waits
for an answer that may be behind the messages. In all cases the messages pile up at the hub, which disconnects a reader that is
too slow. The client then reconnects, and gets the missed messages or a gap.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec

from penstock.durations import to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError
from penstock.hub.client.core.subscription import Gap, SubscriptionProgress
from penstock.hub.core.messages import Envelope, Position, PresenceNews, Subscribed

log = logging.getLogger("penstock.client")

MAX_WAITING = 1_000
HARD_LIMIT = 4
"""Reading stops at this many times `max_waiting`."""
MAX_HELD = 10_000
"""How many messages of a durable subscription are kept until they are acked: more than a hub delivers without an ack."""

T = TypeVar("T")

Key = tuple[str, Position | None]
"""Identifies a message. Its id alone is not enough: publishers choose ids, and may use one again."""


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata that a hub adds to a forwarded message."""

    topic: str | None = None
    offset: int | None = None
    epoch: str | None = None
    message_id: str | None = None
    ack_id: str | None = None
    original_message_id: str | None = None

    @property
    def position(self) -> Position | None:
        """The position of the message in its topic; None if it has none."""
        return None if self.epoch is None or self.offset is None else Position(self.epoch, self.offset)

    @property
    def key(self) -> Key:
        """Which message it is."""
        return self.message_id or self.original_message_id or "", self.position


_metadata = msgspec.json.Decoder(Metadata | None).decode


def metadata_of(envelope: Envelope) -> Metadata:
    """The metadata of a forwarded message; empty if it cannot be read."""
    try:
        return _metadata(envelope.metadata) or Metadata()
    except msgspec.ValidationError:
        return Metadata()


@dataclass(frozen=True, slots=True, eq=False)
class HubMessage:
    """A message that was published to a topic, or sent to this actor."""

    type: str
    sender: str
    """The address of the actor that sent it. The hub sets it, so it can be trusted."""
    topic: str | None
    """None for a direct message or a broadcast."""
    data: Any  # any JSON value, from another client
    """The data: any JSON value."""
    position: Position | None
    """Its position in the topic; pass it as `since` to continue after it."""
    id: str
    sent_at: datetime | None
    gap: Gap | None
    """Set when messages may be missing just before this one."""
    raw: bytes = field(repr=False)
    """The data as the received JSON text."""
    _ack: Callable[[HubMessage], Awaitable[None]] = field(repr=False)

    @property
    def key(self) -> Key:
        """Which message it is."""
        return self.id, self.position

    async def ack(self) -> None:
        """Acknowledge a message of a durable subscription, so that it is not redelivered."""
        await self._ack(self)

    def decode(self, kind: builtins.type[T]) -> T:
        """The data as a given type: a dataclass, a msgspec Struct, `list[int]` …. Raises InvalidArgument if it does not fit."""
        try:
            return msgspec.json.decode(self.raw, type=kind)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"the data of message {self.id} does not fit: {error}", hint="ask for another type, or look at message.data"
            ) from None

    @classmethod
    def of(
        cls, envelope: Envelope, metadata: Metadata, gap: Gap | None, ack: Callable[[HubMessage], Awaitable[None]]
    ) -> HubMessage:
        """Create the message from its envelope."""
        raw = bytes(envelope.payload)
        return cls(
            type=envelope.type,
            sender=envelope.sender or "",
            topic=metadata.topic,
            data=msgspec.json.decode(raw),
            position=metadata.position,
            id=metadata.message_id or metadata.original_message_id or envelope.message_id or "",
            sent_at=None if envelope.timestamp is None else instant(envelope.timestamp),
            gap=gap,
            raw=raw,
            _ack=ack,
        )


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publish."""

    topic: str
    subscriber_count: int
    """The number of subscribers that it was sent to."""
    message_id: str
    position: Position | None


@dataclass(frozen=True, slots=True)
class Presence:
    """Subscribers of a topic: `event` is `list` for all, or `join` or `leave` for one."""

    topic: str
    event: str
    actors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HubActor:
    """A registered actor."""

    address: str
    capabilities: tuple[str, ...]
    metadata: Mapping[str, object]
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class HubTopic:
    """A topic or pattern, and the number of subscribers of exactly this name."""

    name: str
    subscriber_count: int


@dataclass(frozen=True, slots=True)
class HubTopicInfo:
    """Information about a topic."""

    name: str
    subscriber_count: int
    """The number of subscribers that a message to it would reach."""
    exact_count: int
    """The number of subscribers of exactly this name."""
    has_history: bool
    position: Position | None
    bound_to: str | None
    """The broker's topic that it is bound to."""


@dataclass(frozen=True, slots=True)
class ConnectionNews:
    """A connection was established, or was lost and will be retried."""

    is_connected: bool
    problem: str = ""
    """Why it was lost."""
    retry_in: float | None = None
    """Seconds until the next attempt."""


def instant(milliseconds: float) -> datetime:
    """A time of the protocol as a datetime."""
    return to_datetime(round(milliseconds * 1000))


class SubscriptionOwner(Protocol):
    """The interface of the client for its subscriptions."""

    async def attach(self, messages: HubMessages) -> None:
        """Start to receive messages."""

    async def detach(self, messages: HubMessages) -> None:
        """Stop receiving messages."""

    async def ack(self, *messages: HubMessage) -> None:
        """Acknowledge messages of durable subscriptions."""

    async def taken(self) -> None:
        """Called when a message was taken: there may be room again."""


class HubMessages:
    """The messages of one subscription: `async with hub.subscribe("orders/#") as messages: async for message in messages: …`."""

    def __init__(
        self,
        owner: SubscriptionOwner,
        pattern: str | None,
        *,
        durable: bool = False,
        presence: bool = False,
        since: Position | None = None,
        on_gap: Callable[[Gap], object] | None = None,
        on_presence: Callable[[Presence], object] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        if max_waiting < 1:
            raise InvalidArgument.of("max_waiting", max_waiting, "1 or more")
        self.pattern = pattern
        """None for direct messages."""
        self.durable = durable
        self.wants_presence = presence
        self.present: frozenset[str] = frozenset()
        """The addresses of all subscribers of this topic, with `presence=True`."""
        self.max_waiting = max_waiting
        self.progress = SubscriptionProgress(pattern or "", since)
        self.confirmed = asyncio.Event()
        """Set once the hub has confirmed the subscription, or refused it."""
        self.error: PenstockError | None = None
        self._owner = owner
        self._on_gap = on_gap
        self._on_presence = on_presence
        self._waiting: deque[HubMessage] = deque()
        self._unread: set[Key] = set()
        """The waiting messages of a durable subscription, which may be redelivered meanwhile."""
        self._held: dict[Key, HubMessage] = {}
        """Unacked messages of a durable subscription on this connection. The hub does not redeliver them on this connection."""
        self._gap: Gap | None = None
        self._place = since
        """The position of the last message that was taken, or the start position."""
        self._arrived = asyncio.Event()
        self._is_open = False

    @property
    def position(self) -> Position | None:
        """The position of the last taken message; pass it as `since` to continue later. Waiting messages are after it."""
        return self._place if self._waiting else self.progress.position

    @property
    def waiting(self) -> int:
        """The number of received messages that are not taken yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether reading should stop until messages are taken. False once closed, since no reader has to take the rest."""
        return self._is_open and len(self._waiting) >= HARD_LIMIT * self.max_waiting

    # ── called by the application ────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        if self._is_open or self.confirmed.is_set():
            raise FailedPrecondition("this subscription was used before", hint="call hub.subscribe again for another one")
        self._is_open = True
        try:
            await self._owner.attach(self)
        except BaseException:
            self._is_open = False
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        await self._owner.detach(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HubMessage:
        while not self._waiting:
            if self.error is not None:
                raise self.error
            if not self._is_open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        message = self._waiting.popleft()
        try:
            await self._owner.taken()
        except BaseException:  # the caller was cancelled: keep the message for the next one
            self._waiting.appendleft(message)
            raise
        self._unread.discard(message.key)
        self._place = message.position or self._place
        return message

    async def get(self, timeout: float | None = None) -> HubMessage:  # noqa: ASYNC109  # every call of this client has a timeout
        """The next message. Raises TimeoutError if there is none within `timeout` seconds."""
        async with asyncio.timeout(timeout):
            try:
                return await anext(self)
            except StopAsyncIteration:
                raise FailedPrecondition("the subscription is closed", hint="call hub.subscribe again for another one") from None

    # ── called by the client ──────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, envelope: Envelope, metadata: Metadata) -> None:
        """Add a message, if it is for this subscription and not a duplicate."""
        if self.durable:
            if not self.progress.is_subscribed or metadata.key in self._unread:
                return
        elif self.pattern is not None and not self.progress.takes(metadata.position):
            return
        message = HubMessage.of(envelope, metadata, self._gap, self._owner.ack)
        self._gap = None
        if self.durable:
            if len(self._held) < MAX_HELD:
                self._held[message.key] = message
            if not self._is_open:
                return  # its reader has left: the message is kept for the next one
            self._unread.add(message.key)
        self._waiting.append(message)
        self._arrived.set()

    def settled(self, keys: Iterable[Key]) -> None:
        """Forget messages that were acked."""
        for key in keys:
            self._held.pop(key, None)

    def inherit(self, left: HubMessages) -> None:
        """Take over the unacked messages of an earlier subscription to the same pattern."""
        for key, message in left._held.items():
            self._held[key] = message
            self._unread.add(key)
            self._waiting.append(message)
        self._arrived.set()

    def broke(self) -> None:
        """The connection is lost: unacked messages are redelivered over the next one."""
        self.progress.broke()
        self._held = {key: message for key, message in self._held.items() if key in self._unread}

    def presence_changed(self, news: PresenceNews) -> None:
        """The subscribers of the topic have changed."""
        actors = frozenset(news.actors)
        match news.event:
            case "join":
                self.present |= actors
            case "leave":
                self.present -= actors
            case _:
                self.present = actors
        if self._on_presence is not None:
            _call(self._on_presence, Presence(news.topic, news.event, news.actors))

    def confirm(self, reply: Subscribed) -> None:
        """Handle a confirmation of the hub, unless a newer connection already has one."""
        if not self.progress.is_subscribed:
            self.subscribed(reply)

    def subscribed(self, reply: Subscribed) -> None:
        """Handle a confirmation of the hub."""
        if reply.durable is True and not self.durable:
            # Its messages would not be acked, so delivery would stop silently at the limit of unacked messages.
            self.fail(
                FailedPrecondition(
                    f"{self.pattern!r} is a durable subscription of this address, and is subscribed to without durable",
                    hint="subscribe with durable=True and ack its messages, or end it with hub.unsubscribe first",
                )
            )
            return
        position = None if reply.position is msgspec.UNSET else reply.position
        gap = self.progress.subscribed(position, recovered=reply.recovered is True)
        if not self.confirmed.is_set():
            self._place = self.progress.position
        self.confirmed.set()
        if gap is not None and not self.durable:  # a durable subscription misses nothing
            self._gap = gap
            log.warning("%s", gap)
            if self._on_gap is not None:
                _call(self._on_gap, gap)

    def fail(self, error: PenstockError) -> None:
        """End the subscription with an error, which is raised after the waiting messages."""
        if self._is_open:
            self.error = self.error or error
        self.confirmed.set()
        self._arrived.set()

    def close(self) -> None:
        """End the subscription; waiting messages can still be taken."""
        self._is_open = False
        self._arrived.set()


def _call(listener: Callable[..., object], value: object) -> None:
    try:
        listener(value)
    except Exception:  # an error of a listener must not end the subscription
        log.exception("a listener of the hub failed")
