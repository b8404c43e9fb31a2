"""What happens to messages and queues: the records of the event log.

One record may stand for many events (a pull of a hundred is one `Leased`); each event has its own offset in the event log, so a
record covers `count` of them. Together with the messages these records rebuild every queue and tell every message's life.
`published` holds the publish times of the messages named, one number when they share it: with it a record can name message
ids after the messages themselves have left the log.

Records are stored as MessagePack arrays that begin with their tag: fields are only ever added at the end, with a default, and
a tag is never used for anything else.
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
    """Messages were settled for good."""

    attempts: Column


class Returned(_Many, tag=4):
    """Leases ended without success; the messages are deliverable again at `due`."""

    cause: str
    """`nacked`, `expired` or `released`; a released message does not count the attempt."""
    attempts: Column
    due: Column
    error: str | None = None


class Extended(_Many, tag=5):
    """Leases got another deadline."""

    deadline: Column


class DeadLettered(_Many, tag=6):
    """Messages were dead-lettered: to the queue's own list (`target` is None), or to a topic."""

    reason: str
    cause: str
    attempts: Column
    target: str | None = None
    error: str | None = None


class DeadLetterFailed(_Many, tag=7):
    """A message should have been dead-lettered, but nobody would receive it there; it stays."""

    attempts: Column
    target: str


class Dropped(_One, tag=8):
    """Messages left a queue undelivered: `why` is `ttl`, `retention`, `overflow` or `purge`."""

    queue: int
    at: int
    why: str
    ranges: Ranges
    cause: str = ""
    """How the lease ended, when there was one: `nacked` or `expired`."""

    @property
    def count(self) -> int:
        """How many offsets of the event log the record covers."""
        return sum(stop - start for start, stop in self.ranges)


class Redriven(_Many, tag=9):
    """Dead letters returned to their queue, as new: attempts 0, no time to live."""

    epoch: int


class DeadRemoved(_Many, tag=10):
    """Dead letters left the queue's list: `evicted` by newer ones, or `purged`. They stay in the log."""

    why: str


class Seeked(_One, tag=11):
    """A queue's position was set: unsettled are these offsets below `high` and, as the filter lets them, all from there on.

    No lease outlives it.
    """

    queue: int
    at: int
    unsettled: Ranges
    high: int
    epoch: int


class Paused(_One, tag=12):
    """A queue stopped (`paused`) or continued delivering."""

    queue: int
    at: int
    paused: bool


class TopicCreated(_One, tag=13):
    """A topic and its stream exist."""

    stream: int
    at: int
    name: str
    created: int | None = None
    """What the topic says of itself, when it is another time than `at`."""
    spec: bytes = b""
    """The settings as the user gave them."""
    retention: int | None = None
    """How long subscriptions may seek back over what they have settled; None: as they ask themselves."""


class TopicDeleted(_One, tag=14):
    """A topic is gone; its subscriptions are detached and empty."""

    stream: int
    at: int


class QueueCreated(_One, tag=15):
    """A subscription of `stream`, or a work queue with a stream of its own (`stream == queue`), exists from `start` on."""

    queue: int
    at: int
    name: str
    stream: int
    start: int
    policy: bytes
    spec: bytes


class QueueDeleted(_One, tag=16):
    """A subscription or work queue is gone with everything it held."""

    queue: int
    at: int


class SnapshotTaken(_One, tag=17):
    """A queue's position was kept under a name."""

    queue: int
    at: int
    name: str
    stream: int
    unsettled: Ranges
    high: int
    spec: bytes = b""
    expires_at: int | None = None


class SnapshotDeleted(_One, tag=18):
    """A snapshot is gone."""

    name: str
    at: int


class ConsumerReleased(_One, tag=19):
    """A consumer went away, and with it what it held."""

    queue: int
    at: int
    consumer: str


class TopicUpdated(_One, tag=20):
    """A topic has other settings."""

    stream: int
    at: int
    spec: bytes
    retention: int | None


class QueueUpdated(_One, tag=21):
    """A subscription or work queue has other settings."""

    queue: int
    at: int
    policy: bytes
    spec: bytes


class QueueDetached(_One, tag=22):
    """A subscription is cut off from its topic: it is empty, and nothing comes any more."""

    queue: int
    at: int


class SnapshotUpdated(_One, tag=23):
    """A snapshot has other settings."""

    name: str
    at: int
    spec: bytes
    expires_at: int | None


class DocumentKept(_One, tag=24):
    """A document of an API (a schema, an access policy) was stored under a name, in place of the one before."""

    name: str
    at: int
    body: bytes


class DocumentDropped(_One, tag=25):
    """A document is gone."""

    name: str
    at: int


class Attempted(_One, tag=26):
    """A router tried to deliver messages to their targets; it says so after the fact, and nothing follows from it here.

    Of a queue of this broker the record knows the places of the messages, of any other queue only their ids.
    """

    queue: int | None
    at: int
    offsets: list[int] | None
    published: Column | None
    ids: list[str]
    """What the messages call themselves."""
    source: str
    """The queue's name in the router."""
    pools: Texts
    targets: Texts
    """Without query and user."""
    numbers: Column
    """The how manyth try it was."""
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
    """Somebody did something to a resource that cannot be undone; nothing follows from the record itself."""

    at: int
    who: str
    """The id of a token; empty on a server that asks for none."""
    action: str
    """Such as `purge_queue`."""
    resource: str
    """Its name in the broker."""
    affected: int
    """How many messages it was done to."""


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
    """One number when all are the same, the list otherwise."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def text_column(values: list[str]) -> Texts:
    """One text when all are the same, the list otherwise."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def spread(values: Column, count: int) -> list[int]:
    """The list a column stands for."""
    return [values] * count if isinstance(values, int) else values
