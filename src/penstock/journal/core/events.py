"""The records of the event log: what happens to messages and queues.

One record may contain many events (a pull of a hundred messages is one `Leased`); each event has its own offset in the event log,
so a record covers `count` offsets. From these records and the messages, every queue is rebuilt, and the history of every message
is shown. `published` has the publish times of the messages, or one number if they share it: with it the message ids are known
after the messages themselves have been removed from the log.

Records are stored as MessagePack arrays that begin with their tag: fields are only ever added at the end, with a default, and
a tag is never reused.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.journal.core.ranges import Ranges

Column = int | list[int]
Texts = str | list[str]


class _One(msgspec.Struct, array_like=True, gc=False):
    """A record of one event."""

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return 1


class _Many(_One):
    """A record of one event for each of `offsets`, messages of the queue's stream."""

    queue: int
    at: int
    offsets: list[int]
    published: Column

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return len(self.offsets)


class Published(_One, tag=1):
    """Messages were appended to a stream."""

    stream: int
    at: int
    first: int
    size: int
    producers: list[tuple[str, int] | None] | None = None

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return self.size


class Leased(_Many, tag=2):
    """Messages were delivered until `deadline`."""

    attempts: Column
    epoch: int
    deadline: int
    consumer: str | None = None


class Acked(_Many, tag=3):
    """Messages were acked."""

    attempts: Column


class Returned(_Many, tag=4):
    """Leases ended without success; the messages are deliverable again at `due`."""

    cause: str
    """`nacked`, `expired` or `released`; a released message does not count the attempt."""
    attempts: Column
    due: Column
    error: str | None = None


class Extended(_Many, tag=5):
    """The deadlines of leases were changed."""

    deadline: Column


class DeadLettered(_Many, tag=6):
    """Messages were dead-lettered: to the queue's own list (`target` is None), or to a topic."""

    reason: str
    cause: str
    attempts: Column
    target: str | None = None
    error: str | None = None


class DeadLetterFailed(_Many, tag=7):
    """Messages should have been dead-lettered, but no subscription of the dead-letter topic would receive them; they stay."""

    attempts: Column
    target: str


class Dropped(_One, tag=8):
    """Messages left a queue undelivered: `why` is `ttl`, `retention`, `overflow` or `purge`."""

    queue: int
    at: int
    why: str
    ranges: Ranges
    cause: str = ""
    """How the lease ended, if there was one: `nacked` or `expired`."""

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return sum(stop - start for start, stop in self.ranges)


class Redriven(_Many, tag=9):
    """Dead letters were requeued as new messages: attempts 0, no time to live."""

    epoch: int


class DeadRemoved(_Many, tag=10):
    """Dead letters were removed from the queue's list: `evicted` by newer ones, or `purged`. They stay in the log."""

    why: str


class Seeked(_One, tag=11):
    """A queue's position was set. Unsettled are these offsets below `high`, and all from there on that match the filter.

    It ends all leases.
    """

    queue: int
    at: int
    unsettled: Ranges
    high: int
    epoch: int


class Paused(_One, tag=12):
    """Delivery of a queue was paused (`paused`) or resumed."""

    queue: int
    at: int
    paused: bool


class TopicCreated(_One, tag=13):
    """A topic and its stream were created."""

    stream: int
    at: int
    name: str
    created: int | None = None
    """The topic's own creation time, if it is not `at`."""
    spec: bytes = b""
    """The settings as the user gave them."""
    retention: int | None = None
    """How far back subscriptions may seek over settled messages; None for their own settings."""


class TopicDeleted(_One, tag=14):
    """A topic was deleted; its subscriptions are detached and empty."""

    stream: int
    at: int


class QueueCreated(_One, tag=15):
    """A subscription of `stream`, or a work queue with its own stream (`stream == queue`), was created; it begins at `start`."""

    queue: int
    at: int
    name: str
    stream: int
    start: int
    policy: bytes
    spec: bytes


class QueueDeleted(_One, tag=16):
    """A subscription or work queue was deleted, with all its messages."""

    queue: int
    at: int


class SnapshotTaken(_One, tag=17):
    """A snapshot of a queue's position was created."""

    queue: int
    at: int
    name: str
    stream: int
    unsettled: Ranges
    high: int
    spec: bytes = b""
    expires_at: int | None = None


class SnapshotDeleted(_One, tag=18):
    """A snapshot was deleted."""

    name: str
    at: int


class ConsumerReleased(_One, tag=19):
    """A consumer was removed, and its messages were released."""

    queue: int
    at: int
    consumer: str


class TopicUpdated(_One, tag=20):
    """The settings of a topic were changed."""

    stream: int
    at: int
    spec: bytes
    retention: int | None


class QueueUpdated(_One, tag=21):
    """The settings of a subscription or work queue were changed."""

    queue: int
    at: int
    policy: bytes
    spec: bytes


class QueueDetached(_One, tag=22):
    """A subscription was detached from its topic: it is empty, and gets no more messages."""

    queue: int
    at: int


class SnapshotUpdated(_One, tag=23):
    """The settings of a snapshot were changed."""

    name: str
    at: int
    spec: bytes
    expires_at: int | None


class DocumentKept(_One, tag=24):
    """A document of an API (a schema, an access policy) was stored under a name, and replaces an earlier one."""

    name: str
    at: int
    body: bytes


class DocumentDropped(_One, tag=25):
    """A document was deleted."""

    name: str
    at: int


class Attempted(_One, tag=26):
    """A router tried to deliver messages to their targets. It is reported afterwards, and changes no state.

    For a queue of this broker the record has the offsets of the messages, for other queues only their ids.
    """

    queue: int | None
    at: int
    offsets: list[int] | None
    published: Column | None
    ids: list[str]
    """The ids that the messages themselves contain."""
    source: str
    """The queue's name in the router."""
    pools: Texts
    targets: Texts
    """URLs without query and user."""
    numbers: Column
    """The number of the attempt."""
    calls: Column
    statuses: Column
    """0: there was no answer."""
    durations: Column
    outcomes: Texts
    errors: Texts

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return len(self.ids)


class Audited(_One, tag=27):
    """A caller did something to a resource that cannot be undone. The record itself changes no state."""

    at: int
    who: str
    """The id of the token; empty on a server without authentication."""
    action: str
    """Such as `purge_queue`."""
    resource: str
    """Its name in the broker."""
    affected: int
    """The number of affected messages."""


Event = (
    Published
    | Leased
    | Acked
    | Returned
    | Extended
    | DeadLettered
    | DeadLetterFailed
    | Dropped
    | Redriven
    | DeadRemoved
    | Seeked
    | Paused
    | TopicCreated
    | TopicDeleted
    | QueueCreated
    | QueueDeleted
    | SnapshotTaken
    | SnapshotDeleted
    | ConsumerReleased
    | TopicUpdated
    | QueueUpdated
    | QueueDetached
    | SnapshotUpdated
    | DocumentKept
    | DocumentDropped
    | Attempted
    | Audited
)

encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(list[Event])


def decode(body: bytes) -> list[Event]:
    return _decoder.decode(body)


def column(values: list[int]) -> Column:
    """One number if all are the same, otherwise the list."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def text_column(values: list[str]) -> Texts:
    """One text if all are the same, otherwise the list."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def spread(values: Column, count: int) -> list[int]:
    """The list of a column's values."""
    return [values] * count if isinstance(values, int) else values
