"""The results of `MessageQueue`: topics, subscriptions, deliveries and numbers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from penstock.durations import to_datetime
from penstock.ids import message_id
from penstock.values.message import StoredMessage
from penstock.values.policy import SubscriptionOptions


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic."""

    name: str
    created: datetime


@dataclass(frozen=True, slots=True)
class SubscriptionMetadata:
    """A subscription. `detached` is set when its topic was deleted; `topic` keeps the name."""

    name: str
    topic: str
    created: datetime
    options: SubscriptionOptions
    detached: bool = False


class SubscriptionSpec(msgspec.Struct, array_like=True):
    """The stored settings of a subscription, as they were given."""

    topic: str
    options: SubscriptionOptions
    form: bytes = b""
    """The same in the form of the API that created it, with the settings that only that API has."""


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """One delivery of a message. Settle it by its `ack_id` before its deadline. `peek` returns an empty `ack_id`."""

    ack_id: str
    delivery_attempt: int
    _stored: StoredMessage
    _stream: int
    _offset: int

    @property
    def id(self) -> str:
        """The message's id: unique across all streams, sortable by time."""
        return message_id(self._stored.publish_at, self._stream, self._offset)

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._stored.data

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes, as a new dict."""
        return dict(self._stored.attributes or {})

    @property
    def ordering_key(self) -> str | None:
        """The ordering key; None if there is none."""
        return self._stored.key or None

    @property
    def publish_time(self) -> datetime:
        """When it was published; a dead letter keeps the time of its first publication."""
        return to_datetime(self._stored.origin_at or self._stored.publish_at)

    @property
    def length(self) -> int:
        """Bytes of the payload."""
        return len(self._stored.data)

    @property
    def priority(self) -> int:
        """0 to 9; 9 is delivered first."""
        return self._stored.priority


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The numbers of a subscription.

    backlog = ready + delayed + in_flight; ready includes messages that wait behind their key.
    """

    ready: int
    delayed: int
    in_flight: int
    in_flight_bytes: int
    backlog: int
    backlog_bytes: int
    oldest_age_seconds: float
    delivered_total: int
    acked_total: int
    nacked_total: int
    expired_total: int
    dead_lettered_total: int
    discarded_total: int
    dead_letter_failures_total: int
    ttl_expired_total: int = 0
    retired_total: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message is not delivered now. `reason` is None if nothing prevents it."""

    reason: str | None
    until: datetime | None = None
    by: str | None = None
    """The id of the message that must be settled first."""
