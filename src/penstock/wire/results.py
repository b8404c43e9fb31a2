"""The results of operations that are not among the values."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.values.queue import QueueStats
from penstock.values.subscription import Explanation, SubscriptionStats
from penstock.wire.frames import Delivery, Opened


class Pulled(msgspec.Struct):
    """The result of a pull."""

    opened: Opened
    deliveries: list[Delivery] = msgspec.field(name="parcels")
    """`parcels` on the wire."""


class TopicSettings(msgspec.Struct, frozen=True):
    """The settings of a topic."""

    retention: float | None = None
    """Seconds for which messages are kept for a seek, also when all subscriptions have acked them."""
    schema: str | None = None
    """The schema of all messages, encoded as `encoding` says (JSON or BINARY)."""
    encoding: str | None = None


class TraceEvent(msgspec.Struct):
    """One event in the life of a message."""

    at: datetime
    kind: str
    topic: str | None = None
    """The topic or queue of the message."""
    subscription: str | None = None
    """The subscription or queue of the event."""
    attempt: int | None = None
    consumer: str | None = None
    detail: dict[str, str] = {}
    is_task: bool = False
    """Whether `topic` is a work queue."""


class Unsettled(msgspec.Struct):
    """An unsettled message of a subscription, and what it waits for (`reason` None: nothing)."""

    message_id: str
    publish_time: datetime
    ordering_key: str
    delivery_attempt: int
    explanation: Explanation
    consumer: str | None = None
    """The holder."""


class SnapshotInfo(msgspec.Struct):
    """A snapshot."""

    name: str
    topic: str
    created: datetime
    expires: datetime | None


class SubscriptionState(msgspec.Struct):
    """A subscription, and its state in numbers."""

    name: str
    topic: str
    detached: bool
    stats: SubscriptionStats
    paused: bool = False


class Overview(msgspec.Struct):
    """Everything that a caller may see, in numbers, at one moment."""

    at: datetime
    topics: dict[str, int]
    """Messages ever published to each."""
    subscriptions: list[SubscriptionState]
    queues: list[QueueStats]


class ServerInfo(msgspec.Struct):
    """The version and health of a server."""

    version: str
    is_durable: bool
    now: datetime
    project: str
    problem: str | None
    """The problem of its disk; None if there is none."""
    started: datetime | None = None
    log_api: bool | None = None
    """Whether it serves the log API, to Spark and others; None: unknown, or it is not a server."""


class SchemaInfo(msgspec.Struct, frozen=True):
    """One revision of a schema."""

    name: str
    kind: str
    """AVRO or PROTOCOL_BUFFER."""
    definition: str
    revision: str
    """Its id: 8 hexadecimal digits."""
    created: datetime
