"""The resources of a broker as values: streams, queues and snapshots at one moment."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.values.policy import Policy


class TopicSettings(Protocol):
    """The settings of a topic that its rules depend on."""

    @property
    def name(self) -> str:
        """The name of the topic."""

    @property
    def spec(self) -> bytes:
        """The settings as the API that created it stored them; empty when there are none."""


class StreamDescription(msgspec.Struct, frozen=True):
    """A topic, or the stream of a work queue."""

    number: int
    kind: str
    """`topic` or `queue`."""
    name: str
    created_at: int
    spec: bytes
    """The settings as the API that created it stored them; empty when there are none."""
    retention: int | None
    """How long messages are kept, in microseconds, also when every subscription has settled them."""
    earliest: int
    """The first offset that the log still has."""
    next_offset: int
    subscriptions: int
    """The number of attached subscriptions."""


class QueueDescription(msgspec.Struct, frozen=True):
    """A subscription or a work queue."""

    number: int
    name: str
    stream: int
    """The number of the stream that it reads: a work queue's own, or the topic's of a subscription."""
    created_at: int
    policy: Policy
    spec: bytes
    """The settings as they were given, encoded."""
    detached: bool
    """The subscription's topic was deleted, or the subscription was detached from it."""


class SnapshotDescription(msgspec.Struct, frozen=True):
    """A named position of a subscription."""

    name: str
    topic: str | None
    """None if the topic was deleted."""
    taken_at: int
    expires_at: int | None
    spec: bytes
    """The settings as the API that took it stored them."""


class Cursor(msgspec.Struct, frozen=True):
    """A named position of a reader outside the broker, and how far behind it is."""

    name: str
    offsets: dict[str, int]
    """The next offset to read, by stream; the event log is `EVENTS`."""
    lag: dict[str, int]
    updated_at: int
    holds: bool
    """Whether retention waits for it: messages that it has not read yet stay in the log."""
