"""The state of all streams and queues as plain data: the content of a checkpoint, and how events change it.

The state machine uses structures made for speed; this is the same state in a form for the disk. `State.replay` applies events;
a queue is then built from its image by `Queue.restore`. Applying events needs no delivery rules: priorities, keys, limits and
filters play no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, assert_never

import msgspec

from penstock.journal.core import events
from penstock.journal.core.events import Event, spread
from penstock.journal.core.producers import Producers
from penstock.journal.core.ranges import Ranges, holds, merge, subtract
from penstock.values.policy import Policy

SINGLY = 1_000
"""Up to this many dropped messages are settled one by one; more, as ranges."""

TOPIC = "topic"
QUEUE = "queue"
SUBSCRIPTION = "subscription"

MAX_DELETED_RESOURCES = 100_000
"""The maximum number of deleted resources that are remembered; the oldest are removed first."""


class Trace(msgspec.Struct, array_like=True, gc=False):
    """The state of an unsettled message that was delivered, delayed or redriven."""

    attempts: int = 0
    error: str | None = None
    cause: str | None = None
    """How its last lease ended: `nacked`, `expired` or `released`."""
    immortal: bool = False
    """Its time to live was cleared by a redrive."""
    due: int | None = None
    deadline: int | None = None
    """Only set while it is leased."""
    epoch: int = 0
    consumer: str | None = None


class DeadLetterEntry(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A message in a queue's own list of dead letters."""

    offset: int
    publish_at: int
    reason: str
    cause: str
    at: int
    attempts: int
    error: str | None = None


class Counters(msgspec.Struct, array_like=True, gc=False):
    """Totals since the queue was created. The live queue and the replay use the same methods to count."""

    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    dead_letter_failures: int = 0
    evicted: int = 0
    ttl_expired: int = 0
    retired: int = 0
    waited: int = 0
    """Microseconds between publish and first delivery, summed over `first_deliveries`."""
    first_deliveries: int = 0

    def note(self, event: Event) -> None:
        count = _COUNTED.get(type(event))
        if count is not None:
            count(self, event)

    def count_leased(self, event: events.Leased) -> None:
        """Count a delivery."""
        count = len(event.offsets)
        self.delivered += count
        if event.attempts == 1 and type(event.published) is int:
            self.waited += (event.at - event.published) * count
            self.first_deliveries += count
        else:
            attempts, published = spread(event.attempts, event.count), spread(event.published, event.count)
            waits = [event.at - since for attempt, since in zip(attempts, published, strict=True) if attempt == 1]
            self.waited += sum(waits)
            self.first_deliveries += len(waits)

    def count_acked(self, event: events.Acked) -> None:
        """Count a settlement."""
        self.acked += len(event.offsets)

    def _returned(self, event: events.Returned) -> None:
        self._failed(event.cause, event.count)

    def _buried(self, event: events.DeadLettered) -> None:
        self._failed(event.cause, event.count)
        self.dead_lettered += event.count
        if event.reason == "ttl_expired":
            self.ttl_expired += event.count

    def _stranded(self, event: events.DeadLetterFailed) -> None:
        self.dead_letter_failures += event.count

    def _dropped(self, event: events.Dropped) -> None:
        self._failed(event.cause, event.count)
        if event.why == "overflow":
            self.discarded += event.count
        elif event.why == "ttl":
            self.ttl_expired += event.count
        elif event.why == "retention":
            self.retired += event.count

    def _dead_removed(self, event: events.DeadRemoved) -> None:
        if event.why == "evicted":
            self.evicted += event.count

    def _failed(self, cause: str, count: int) -> None:
        if cause == "nacked":
            self.nacked += count
        elif cause == "expired":
            self.expired += count


_COUNTED: dict[type, Callable[[Counters, Any], None]] = {
    events.Leased: Counters.count_leased,
    events.Acked: Counters.count_acked,
    events.Returned: Counters._returned,
    events.DeadLettered: Counters._buried,
    events.DeadLetterFailed: Counters._stranded,
    events.Dropped: Counters._dropped,
    events.DeadRemoved: Counters._dead_removed,
}


class QueueImage(msgspec.Struct, array_like=True):
    """One subscription or work queue."""

    number: int
    name: str
    stream: int
    created_at: int
    policy: Policy
    spec: bytes
    """The settings as the user gave them."""
    high: int
    """Offsets from here on were published after this image, and are not yet matched with the filter."""
    unsettled: Ranges = []
    traces: dict[int, Trace] = {}
    dead: dict[int, DeadLetterEntry] = {}
    """In the order in which they were dead-lettered."""
    counters: Counters = msgspec.field(default_factory=Counters)
    consumers: dict[str, None] = {}
    """In the order in which they first appeared."""
    epoch: int = 0
    paused: bool = False
    detached: bool = False

    @property
    def is_subscription(self) -> bool:
        """Whether it gets its messages from a topic; a work queue has a stream of its own."""
        return self.stream != self.number


class StreamImage(msgspec.Struct, array_like=True):
    """One topic's or work queue's stream."""

    number: int
    kind: str
    name: str
    created_at: int
    next_offset: int = 0
    published_at: int = 0
    producers: Producers = msgspec.field(default_factory=Producers)
    spec: bytes = b""
    retention: int | None = None


class Position(msgspec.Struct, array_like=True, frozen=True):
    """A position of a queue: which offsets below `high` were unsettled."""

    queue: int
    stream: int
    at: int
    unsettled: Ranges
    high: int
    spec: bytes = b""
    """The settings as the user gave them."""
    expires_at: int | None = None


class DeletedResource(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A deleted topic, subscription or work queue: the data that is needed to read events about it."""

    kind: str
    name: str
    stream: int
    deleted_at: int


def depart(deleted_resources: dict[int, DeletedResource], number: int, gone: DeletedResource) -> None:
    """Remember a deleted resource under its number."""
    deleted_resources[number] = gone
    if len(deleted_resources) > MAX_DELETED_RESOURCES:
        del deleted_resources[next(iter(deleted_resources))]


class State(msgspec.Struct, array_like=True):
    """The whole state: the content of a checkpoint, from which a restart builds the broker."""

    last_number: int = 0
    streams: dict[int, StreamImage] = {}
    queues: dict[int, QueueImage] = {}
    snapshots: dict[str, Position] = {}
    documents: dict[str, bytes] = {}
    """Documents of the APIs: schemas, access policies."""
    deleted_resources: dict[int, DeletedResource] = {}
    """Deleted resources that the event log may still name, in the order of their deletion."""

    def replay(self, happened: Iterable[Event]) -> None:
        """Apply events in order, then update `unsettled` of every queue."""
        folds = {number: Fold(queue) for number, queue in self.queues.items()}
        for event in happened:
            self._apply(event, folds)
        for fold in folds.values():
            fold.finish(self.streams)

    def _apply(self, event: Event, folds: dict[int, Fold]) -> None:  # noqa: PLR0912  # one case for each event
        match event:
            case events.Published():
                stream = self.streams[event.stream]
                if event.producers:
                    stream.producers.learn(event.producers, event.first, event.at)
                stream.next_offset = event.first + event.count
                stream.published_at = event.at
            case events.TopicCreated():
                created = event.at if event.created is None else event.created
                self.streams[event.stream] = StreamImage(
                    event.stream, TOPIC, event.name, created, spec=event.spec, retention=event.retention
                )
                self.last_number = event.stream
            case events.TopicUpdated():
                self.streams[event.stream].spec, self.streams[event.stream].retention = event.spec, event.retention
            case events.TopicDeleted():
                stream = self.streams.pop(event.stream)
                depart(self.deleted_resources, event.stream, DeletedResource(TOPIC, stream.name, event.stream, event.at))
                for queue in self.queues.values():
                    if queue.stream == event.stream:
                        folds[queue.number] = _detached(queue)
            case events.QueueDetached():
                folds[event.queue] = _detached(self.queues[event.queue])
            case events.QueueUpdated():
                queue = self.queues[event.queue]
                queue.policy, queue.spec = msgspec.msgpack.decode(event.policy, type=Policy), event.spec
            case events.QueueCreated():
                folds[event.queue] = Fold(self._create_queue(event))
            case events.QueueDeleted():
                queue = self.queues.pop(event.queue)
                del folds[event.queue]
                kind = SUBSCRIPTION if queue.is_subscription else QUEUE
                depart(self.deleted_resources, event.queue, DeletedResource(kind, queue.name, queue.stream, event.at))
                if not queue.is_subscription:
                    del self.streams[queue.stream]
            case events.SnapshotTaken():
                self.snapshots[event.name] = Position(
                    event.queue, event.stream, event.at, event.unsettled, event.high, event.spec, event.expires_at
                )
            case events.SnapshotUpdated():
                self.snapshots[event.name] = msgspec.structs.replace(
                    self.snapshots[event.name], spec=event.spec, expires_at=event.expires_at
                )
            case events.SnapshotDeleted():
                del self.snapshots[event.name]
            case events.DocumentKept():
                self.documents[event.name] = event.body
            case events.DocumentDropped():
                del self.documents[event.name]
            case (
                events.Leased()
                | events.Acked()
                | events.Returned()
                | events.Extended()
                | events.DeadLettered()
                | events.DeadLetterFailed()
                | events.Dropped()
                | events.Redriven()
                | events.DeadRemoved()
                | events.Seeked()
                | events.Paused()
                | events.ConsumerReleased()
            ):
                if event.queue in folds:
                    folds[event.queue].apply(event, self.streams)
            case events.Attempted() | events.Audited():
                pass  # attempts of a router and audited actions change no state
            case _:
                assert_never(event)

    def _create_queue(self, event: events.QueueCreated) -> QueueImage:
        policy = msgspec.msgpack.decode(event.policy, type=Policy)
        if event.stream == event.queue:
            self.streams[event.stream] = StreamImage(event.stream, QUEUE, event.name, event.at)
        image = QueueImage(event.queue, event.name, event.stream, event.at, policy, event.spec, event.start)
        self.queues[event.queue] = image
        self.last_number = event.queue
        return image


def _detached(queue: QueueImage) -> Fold:
    """Detach a queue from its topic, and forget its messages."""
    queue.detached = True
    queue.unsettled, queue.traces = [], {}
    return Fold(queue)


QueueEvent = (
    events.Leased
    | events.Acked
    | events.Returned
    | events.Extended
    | events.DeadLettered
    | events.DeadLetterFailed
    | events.Dropped
    | events.Redriven
    | events.DeadRemoved
    | events.Seeked
    | events.Paused
    | events.ConsumerReleased
)


class Fold:
    """Applies events to one queue's image. Changes of single offsets are collected, so that each needs no list operation."""

    def __init__(self, image: QueueImage) -> None:
        self._image = image
        self._covered = image.high
        self._fate: dict[int, bool] = {}
        """Overrides `unsettled` for single offsets: True is unsettled."""

    def apply(self, event: QueueEvent, streams: dict[int, StreamImage]) -> None:  # noqa: PLR0912, PLR0915  # one case for each event
        image, traces, fate = self._image, self._image.traces, self._fate
        image.counters.note(event)
        match event:
            case events.Leased():
                for offset, attempt in zip(event.offsets, spread(event.attempts, event.count), strict=True):
                    trace = traces.setdefault(offset, Trace())
                    trace.attempts, trace.due = attempt, None
                    trace.deadline, trace.epoch, trace.consumer = event.deadline, event.epoch, event.consumer
                # Opening a queue raises the epoch without an event. Epochs after the next crash must not repeat this one.
                image.epoch = max(image.epoch, event.epoch)
                if event.consumer is not None:
                    image.consumers[event.consumer] = None
            case events.Acked():
                self._settle(event.offsets)
            case events.Returned():
                attempts, dues = spread(event.attempts, event.count), spread(event.due, event.count)
                for offset, attempt, due in zip(event.offsets, attempts, dues, strict=True):
                    trace = traces.setdefault(offset, Trace())
                    trace.attempts, trace.due = attempt, due
                    trace.deadline, trace.consumer = None, None
                    trace.cause, trace.error = event.cause, event.error or trace.error
                if event.cause == "released":
                    image.epoch += 1
            case events.Extended():
                for offset, deadline in zip(event.offsets, spread(event.deadline, event.count), strict=True):
                    if offset in traces:
                        traces[offset].deadline = deadline
            case events.DeadLettered():
                self._settle(event.offsets)
                if event.target is None:
                    for entry in entries(event):
                        image.dead[entry.offset] = entry
            case events.Redriven():
                for offset in event.offsets:
                    image.dead.pop(offset, None)
                    traces[offset] = Trace(immortal=True)
                    fate[offset] = True
                image.epoch = event.epoch
            case events.DeadRemoved():
                for offset in event.offsets:
                    image.dead.pop(offset, None)
            case events.Dropped() if event.count <= SINGLY:
                self._settle([offset for start, stop in event.ranges for offset in range(start, stop)])
            case events.Dropped():
                self.finish(streams)
                image.unsettled = subtract(image.unsettled, event.ranges)
                image.traces = {offset: trace for offset, trace in traces.items() if not holds(event.ranges, offset)}
            case events.Seeked():
                fate.clear()
                image.unsettled, image.high, image.epoch = event.unsettled, event.high, event.epoch
                self._covered = event.high
                image.traces = {o: trace for o, trace in traces.items() if o >= event.high or holds(event.unsettled, o)}
                for trace in image.traces.values():
                    trace.deadline, trace.consumer, trace.due = None, None, None
            case events.Paused():
                image.paused = event.paused
            case events.ConsumerReleased():
                image.consumers.pop(event.consumer, None)
            case events.DeadLetterFailed():
                pass
            case _:
                assert_never(event)

    def finish(self, streams: dict[int, StreamImage]) -> None:
        """Merge new messages and changes of single offsets into `unsettled`. `high` stays: the filter is not applied yet."""
        image, stream = self._image, streams.get(self._image.stream)
        ranges = list(image.unsettled)
        if stream is not None and not image.detached and stream.next_offset > self._covered:
            ranges.append((self._covered, stream.next_offset))
            self._covered = stream.next_offset
        ranges += [(offset, offset + 1) for offset, is_unsettled in self._fate.items() if is_unsettled]
        settled = merge((offset, offset + 1) for offset, is_unsettled in self._fate.items() if not is_unsettled)
        image.unsettled = subtract(merge(ranges), settled)
        self._fate.clear()

    def _settle(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._image.traces.pop(offset, None)
            self._fate[offset] = False


def entries(event: events.DeadLettered) -> Iterator[DeadLetterEntry]:
    """The dead letters that an event makes."""
    published, attempts = spread(event.published, event.count), spread(event.attempts, event.count)
    for offset, publish_at, attempt in zip(event.offsets, published, attempts, strict=True):
        yield DeadLetterEntry(offset, publish_at, event.reason, event.cause, event.at, attempt, event.error)


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(State)


def decode(body: bytes) -> State:
    return _decoder.decode(body)
