"""What comes from a hub: messages, answers in plain values, and `HubMessages`: what one subscription has received.

If nobody takes them: beyond `max_waiting` messages the hub is asked to hold messages back (hub:pause), and to continue
(hub:resume) when half of them are taken. Answers to requests still come meanwhile, so a reader may publish and ack for each
message it takes. Those that were on their way are taken in; beyond four times the limit nothing is read from the socket at all,
unless a call waits for an answer that may lie behind them. In all cases what waits piles up at the hub, which cuts off a reader
that is too slow; the client comes back, and is brought what it missed or told of a gap.
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
"""Times `max_waiting`: when nothing is read any more."""
MAX_HELD = 10_000
"""How many messages of a durable subscription are kept until they are acked, far more than a hub has out at a time."""

T = TypeVar("T")

Key = tuple[str, Position | None]
"""What distinguishes a message from all others. Its id alone does not: those who publish choose it, and may choose one again."""


class Metadata(msgspec.Struct, rename="camel"):
    """What a hub says beside a forwarded message."""

    topic: str | None = None
    offset: int | None = None
    epoch: str | None = None
    message_id: str | None = None
    ack_id: str | None = None
    original_message_id: str | None = None

    @property
    def position(self) -> Position | None:
        """Where the message is."""
        return None if self.epoch is None or self.offset is None else Position(self.epoch, self.offset)

    @property
    def key(self) -> Key:
        """Which message it is."""
        return self.message_id or self.original_message_id or "", self.position


_metadata = msgspec.json.Decoder(Metadata | None).decode


def metadata_of(envelope: Envelope) -> Metadata:
    """What the hub says beside a forwarded message; nothing, when it cannot be read."""
    try:
        return _metadata(envelope.metadata) or Metadata()
    except msgspec.ValidationError:
        return Metadata()


@dataclass(frozen=True, slots=True, eq=False)
class HubMessage:
    """A message that was published to a topic, or sent to this actor."""

    type: str
    sender: str
    """The address of the actor that sent it. The hub vouches for it."""
    topic: str | None
    """None of a direct message or a broadcast."""
    data: Any  # JSON that somebody else wrote
    """What was sent: any JSON value."""
    position: Position | None
    """Where it is in its topic; pass it as `since` to continue behind it."""
    id: str
    sent_at: datetime | None
    gap: Gap | None
    """Set when messages may be missing just before this one."""
    raw: bytes = field(repr=False)
    """The data as JSON, as it came."""
    _ack: Callable[[HubMessage], Awaitable[None]] = field(repr=False)

    @property
    def key(self) -> Key:
        """Which message it is."""
        return self.id, self.position

    async def ack(self) -> None:
        """Tell the hub that a message of a durable subscription is done, so that it is not redelivered."""
        await self._ack(self)

    def decode(self, kind: builtins.type[T]) -> T:
        """The data as a type of yours: a dataclass, a msgspec Struct, `list[int]` …; InvalidArgument when it does not fit."""
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
        """A forwarded message as it came."""
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
    """What became of a publish."""

    topic: str
    subscriber_count: int
    """To how many subscribers it was sent."""
    message_id: str
    position: Position | None


@dataclass(frozen=True, slots=True)
class Presence:
    """Who subscribes to a topic: `list` of all, or `join` and `leave` of one."""

    topic: str
    event: str
    actors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HubActor:
    """Somebody who is registered at a hub."""

    address: str
    capabilities: tuple[str, ...]
    metadata: Mapping[str, object]
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class HubTopic:
    """A topic, or a pattern, and how many subscribe to it by that very name."""

    name: str
    subscriber_count: int


@dataclass(frozen=True, slots=True)
class HubTopicInfo:
    """What is known of a topic."""

    name: str
    subscriber_count: int
    """Whom a message to it would reach."""
    exact_count: int
    """How many of them subscribe to it by that very name."""
    has_history: bool
    position: Position | None
    bound_to: str | None
    """The broker's topic that it is bound to."""


@dataclass(frozen=True, slots=True)
class ConnectionNews:
    """A connection stands, or was lost and will be tried again."""

    is_connected: bool
    problem: str = ""
    """Why it was lost."""
    retry_in: float | None = None
    """In how many seconds it is tried again."""


def instant(milliseconds: float) -> datetime:
    """An instant of the wire."""
    return to_datetime(round(milliseconds * 1000))


class SubscriptionOwner(Protocol):
    """The client, as its subscriptions know it."""

    async def attach(self, messages: HubMessages) -> None:
        """Begin to receive."""

    async def detach(self, messages: HubMessages) -> None:
        """Receive no more."""

    async def ack(self, *messages: HubMessage) -> None:
        """Messages of durable subscriptions are done."""

    async def taken(self) -> None:
        """A message was taken: there may be room again."""


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
        """None of direct messages."""
        self.durable = durable
        self.wants_presence = presence
        self.present: frozenset[str] = frozenset()
        """The addresses of those who subscribe to this topic too, if it was asked for with `presence=True`."""
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
        """Which messages of a durable subscription wait, and may be sent again while they do."""
        self._held: dict[Key, HubMessage] = {}
        """What came of a durable subscription over this connection and is not acked. The hub does not send it again here."""
        self._gap: Gap | None = None
        self._place = since
        """The position of the last message that was taken, or from where on they come."""
        self._arrived = asyncio.Event()
        self._is_open = False

    @property
    def position(self) -> Position | None:
        """How far one has come; pass it as `since` to continue behind it another time. What still waits here lies behind it."""
        return self._place if self._waiting else self.progress.position

    @property
    def waiting(self) -> int:
        """How many messages have come and are not taken yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read before some are taken. Nobody has to take what is left of a closed one."""
        return self._is_open and len(self._waiting) >= HARD_LIMIT * self.max_waiting

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        except BaseException:  # the caller has gone meanwhile: it is for the next one
            self._waiting.appendleft(message)
            raise
        self._unread.discard(message.key)
        self._place = message.position or self._place
        return message

    async def get(self, timeout: float | None = None) -> HubMessage:  # noqa: ASYNC109  # as every call of this client has one
        """The next message; TimeoutError when none comes in this many seconds."""
        async with asyncio.timeout(timeout):
            try:
                return await anext(self)
            except StopAsyncIteration:
                raise FailedPrecondition("the subscription is closed", hint="call hub.subscribe again for another one") from None

    # ── what the client calls ─────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, envelope: Envelope, metadata: Metadata) -> None:
        """A message has come that may be for this subscription."""
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
                return  # its reader has left: it is for the next subscriber
            self._unread.add(message.key)
        self._waiting.append(message)
        self._arrived.set()

    def settled(self, keys: Iterable[Key]) -> None:
        """These were acked."""
        for key in keys:
            self._held.pop(key, None)

    def inherit(self, left: HubMessages) -> None:
        """Begin with what a subscription to the same pattern has received and not acked before it was left."""
        for key, message in left._held.items():
            self._held[key] = message
            self._unread.add(key)
            self._waiting.append(message)
        self._arrived.set()

    def broke(self) -> None:
        """The connection is gone: what is not acked is redelivered over the next one."""
        self.progress.broke()
        self._held = {key: message for key, message in self._held.items() if key in self._unread}

    def presence_changed(self, news: PresenceNews) -> None:
        """Who is there has changed."""
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
        """The hub has confirmed it, unless a connection that came meanwhile had it confirmed already."""
        if not self.progress.is_subscribed:
            self.subscribed(reply)

    def subscribed(self, reply: Subscribed) -> None:
        """The hub has confirmed it."""
        if reply.durable is True and not self.durable:
            # It would stop when so much is out that nobody acks, without a word.
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
        if gap is not None and not self.durable:  # what a durable subscription missed was kept for it
            self._gap = gap
            log.warning("%s", gap)
            if self._on_gap is not None:
                _call(self._on_gap, gap)

    def fail(self, error: PenstockError) -> None:
        """Nothing more will come, and this is why: raised after the messages that wait."""
        if self._is_open:
            self.error = self.error or error
        self.confirmed.set()
        self._arrived.set()

    def close(self) -> None:
        """Nothing more will come, as was asked for."""
        self._is_open = False
        self._arrived.set()


def _call(listener: Callable[..., object], value: object) -> None:
    try:
        listener(value)
    except Exception:  # a listener must not end what it listens to
        log.exception("a listener of the hub failed")
