"""What comes from a hub: messages, and answers in plain values."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.hub.client.core.following import Gap
from penstock.hub.core.messages import Envelope, Position

T = TypeVar("T")

Key = tuple[str, Position | None]
"""What tells a message from all others. Its id alone does not: those who publish choose it, and may choose one again."""


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
    """Where it is in its topic; pass it as `since` to go on behind it."""
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
        """Tell the hub that a message of a durable subscription is done, so that it does not come again."""
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
