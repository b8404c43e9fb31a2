"""What operations return, beyond what the in-process faces know already."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.values.queue import QueueStats
from penstock.values.subscription import Explanation, SubscriptionStats
from penstock.wire.frames import Delivery, Opened


class Pulled(msgspec.Struct):
    """What one pull brought."""

    opened: Opened
    deliveries: list[Delivery] = msgspec.field(name="parcels")
    """`parcels` on the wire."""


class TopicSettings(msgspec.Struct, frozen=True):
    """The settings of a topic."""

    retention: float | None = None
    """Seconds for which messages stay for a seek, also when everybody has acked them."""
    schema: str | None = None
    """What every message must fit, written as `encoding` says (JSON or BINARY)."""
    encoding: str | None = None


class TraceEvent(msgspec.Struct):
    """One event in the life of a message."""

    at: datetime
    kind: str
    topic: str | None = None
    """The topic or queue that the message is in."""
    subscription: str | None = None
    """The subscription or queue that the event happened in."""
    attempt: int | None = None
    consumer: str | None = None
    detail: dict[str, str] = {}
    is_task: bool = False
    """Whether `topic` is a work queue."""


class Unsettled(msgspec.Struct):
    """A message that a subscription has not settled, and what keeps it (`reason` None: nothing)."""

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
    """How many messages were ever published to each."""
    subscriptions: list[SubscriptionState]
    queues: list[QueueStats]


class ServerInfo(msgspec.Struct):
    """What answers."""

    version: str
    is_durable: bool
    now: datetime
    project: str
    problem: str | None
    """What is wrong with its disk; None when all is well."""
    started: datetime | None = None
    log_api: bool | None = None
    """Whether it serves the log to Spark and others; None: it does not say, or it is not a server."""


class SchemaInfo(msgspec.Struct, frozen=True):
    """One revision of a schema."""

    name: str
    kind: str
    """AVRO or PROTOCOL_BUFFER."""
    definition: str
    revision: str
    """Its id: 8 hexadecimal digits."""
    created: datetime
