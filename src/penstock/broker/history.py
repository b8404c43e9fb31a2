"""The event log in rows: one for each event, with names instead of numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from penstock.durations import SECOND
from penstock.ids import message_id, parse_message_id
from penstock.journal.core import events
from penstock.journal.core.events import Column, Event, Texts, spread
from penstock.journal.journal import ReadableJournal

Detail = dict[str, str | list[int] | list[str]]
"""One text for all events of a record, or a number or text for each; an empty one has no meaning."""


MARGIN = 10 * SECOND
"""How far before a message's publish time its events are searched, since a clock may have been set back a little."""


class EventRow(msgspec.Struct, gc=False):
    """One event. `stream` and `subscription` are numbers; the caller looks up their names."""

    offset: int
    at: int
    kind: str
    stream: int | None = None
    queue: int | None = None
    message_offset: int | None = None
    message_id: str | None = None
    attempt: int | None = None
    consumer: str | None = None
    detail: dict[str, str] = {}


class EventRecord(msgspec.Struct, gc=False):
    """The fields of the events of one record: one text for all of them, or a value for each."""

    kind: str
    at: int
    stream: int | None = None
    queue: int | None = None
    offsets: Sequence[int] | None = None
    """The messages, one for each event; None for a single event that is not about a message."""
    published: Column | None = None
    """When the messages were published; None if the log does not record it."""
    attempts: Column = 0
    consumer: Texts | None = None
    detail: Detail = {}
    names: Sequence[str] | None = None
    """The ids of messages that are in no stream of this broker, one for each event."""

    @property
    def count(self) -> int:
        each = self.offsets if self.offsets is not None else self.names
        return 1 if each is None else len(each)

    def cut(self, start: int, stop: int) -> EventRecord:
        """Only these events, counted from the first."""
        if (self.offsets is None and self.names is None) or (start <= 0 and stop >= self.count):
            return self
        part = slice(max(start, 0), stop)
        return msgspec.structs.replace(
            self,
            offsets=self.offsets[part] if self.offsets is not None else None,
            published=self.published[part] if isinstance(self.published, list) else self.published,
            attempts=self.attempts[part] if isinstance(self.attempts, list) else self.attempts,
            consumer=self.consumer[part] if isinstance(self.consumer, list) else self.consumer,
            detail={name: value if isinstance(value, str) else value[part] for name, value in self.detail.items()},
            names=self.names[part] if self.names is not None else None,
        )

    def detail_of(self, index: int) -> dict[str, str]:
        """The details of one event that are not in the columns."""
        each = ((name, value if isinstance(value, str) else value[index]) for name, value in self.detail.items())
        return {name: str(value) for name, value in each if value != ""}


def record(event: Event, stream_of: Mapping[int, int]) -> EventRecord:  # noqa: PLR0911, PLR0912  # one case for each event
    """The fields of a record. `stream_of` returns the stream of a queue's number."""
    at = event.at
    match event:
        case events.Published():
            return EventRecord("published", at, event.stream, None, range(event.first, event.first + event.count), at)
        case events.Dropped():
            offsets = [offset for start, stop in event.ranges for offset in range(start, stop)]
            detail: Detail = {"why": event.why, "cause": event.cause} if event.cause else {"why": event.why}
            return EventRecord("dropped", at, stream_of.get(event.queue), event.queue, offsets, detail=detail)
        case events.TopicCreated():
            return EventRecord("topic_created", at, event.stream, detail={"name": event.name})
        case events.TopicDeleted():
            return EventRecord("topic_deleted", at, event.stream)
        case events.QueueCreated():
            kind = "queue_created" if event.queue == event.stream else "subscription_created"
            return EventRecord(kind, at, event.stream, event.queue, detail={"name": event.name})
        case events.QueueDeleted():
            return EventRecord("queue_deleted", at, stream_of.get(event.queue), event.queue)
        case events.TopicUpdated():
            return EventRecord("topic_updated", at, event.stream)
        case events.QueueUpdated():
            return EventRecord("queue_updated", at, stream_of.get(event.queue), event.queue)
        case events.QueueDetached():
            return EventRecord("subscription_detached", at, stream_of.get(event.queue), event.queue)
        case events.SnapshotUpdated():
            return EventRecord("snapshot_updated", at, detail={"name": event.name})
        case events.DocumentKept():
            return EventRecord("document_kept", at, detail={"name": event.name})
        case events.DocumentDropped():
            return EventRecord("document_dropped", at, detail={"name": event.name})
        case events.SnapshotDeleted():
            return EventRecord("snapshot_deleted", at, detail={"name": event.name})
        case events.SnapshotTaken():
            return EventRecord("snapshot_taken", at, stream_of.get(event.queue), event.queue, detail={"name": event.name})
        case events.Seeked():
            return EventRecord("seeked", at, stream_of.get(event.queue), event.queue, detail={"high": str(event.high)})
        case events.ConsumerReleased():
            detail = {"consumer": event.consumer}
            return EventRecord("consumer_released", at, stream_of.get(event.queue), event.queue, detail=detail)
        case events.Paused():
            return EventRecord("paused" if event.paused else "resumed", at, stream_of.get(event.queue), event.queue)
        case events.Attempted():
            return _attempted(event, stream_of)
        case events.Audited():
            told = {"action": event.action, "resource": event.resource, "who": event.who, "affected": str(event.affected)}
            return EventRecord("audited", at, detail={name: text for name, text in told.items() if text})
        case _:
            kind, attempts, consumer, detail = _describe(event)
            stream = stream_of.get(event.queue)
            return EventRecord(kind, at, stream, event.queue, event.offsets, event.published, attempts, consumer, detail)


def rows(first: int, event: Event, stream_of: Mapping[int, int]) -> Iterator[EventRow]:
    """The events of a record whose first event has the offset `first`."""
    told = record(event, stream_of)
    count = told.count
    offsets: Sequence[int | None] = told.offsets if told.offsets is not None else [None] * count
    published, attempts = spread(told.published or 0, count), spread(told.attempts, count)
    for index, (offset, publish_at, attempt) in enumerate(zip(offsets, published, attempts, strict=True)):
        name = told.names[index] if told.names is not None else None
        if offset is not None and told.stream is not None and told.published is not None:
            name = message_id(publish_at, told.stream, offset)
        consumer = told.consumer[index] if isinstance(told.consumer, list) else told.consumer
        detail = told.detail_of(index)
        yield EventRow(
            first + index, told.at, told.kind, told.stream, told.queue, offset, name, attempt or None, consumer, detail
        )


def concerns(event: Event, stream: int, offset: int, stream_of: Mapping[int, int]) -> bool:
    """Whether a record may mention a message; cheaper than reading its rows."""
    match event:
        case events.Published():
            return event.stream == stream and event.first <= offset < event.first + event.count
        case events.Dropped():
            return stream_of.get(event.queue) == stream and any(start <= offset < stop for start, stop in event.ranges)
        case (
            events.Leased()
            | events.Acked()
            | events.Returned()
            | events.Extended()
            | events.DeadLettered()
            | events.DeadLetterFailed()
            | events.Redriven()
            | events.DeadRemoved()
        ):
            return stream_of.get(event.queue) == stream and offset in event.offsets
        case events.Attempted(queue=int(queue), offsets=list(offsets)):
            return stream_of.get(queue) == stream and offset in offsets
        case _:
            return False


def first_event(journal: ReadableJournal, publish_at: int) -> int:
    """The offset in the event log after which all events of a message published at this time are."""
    earliest, latest = journal.event_range()
    return earliest + bisect_left(range(earliest, latest), publish_at - MARGIN, key=partial(_happened_at, journal))


def _happened_at(journal: ReadableJournal, offset: int) -> int:
    return next((event.at for _, event in journal.read_events(offset, offset + 1)), 0)


def life(journal: ReadableJournal, stream: int, offset: int, stream_of: Mapping[int, int], start: int = 0) -> list[EventRow]:
    """The events of one message, oldest first, in the queues that `stream_of` names. None of them is before `start`."""
    found: list[EventRow] = []
    for first, event in journal.read_events(start, journal.event_range()[1]):
        if concerns(event, stream, offset, stream_of):
            found += [row for row in rows(first, event, stream_of) if row.message_offset == offset and row.stream == stream]
    return found


def life_of(journal: ReadableJournal, name: str, stream_of: Mapping[int, int]) -> list[EventRow]:
    """The events of the message with an id: the broker's, or the id that the message itself has for a router."""
    place = parse_message_id(name)
    if place is not None:
        found = life(journal, place[1], place[2], stream_of, first_event(journal, place[0]))
        # The id of another broker may match a place here: the message there is another one.
        if any(row.message_id == name for row in found):
            return found
    found, before = [], []
    for first, event in journal.read_events(0, journal.event_range()[1]):
        if isinstance(event, events.Attempted) and name in event.ids:
            found += [row for row, one in zip(rows(first, event, stream_of), event.ids, strict=True) if one == name]
        if place is not None and concerns(event, place[1], place[2], stream_of):
            # The clock was set back since, so its events are before those of its time.
            before += [row for row in rows(first, event, stream_of) if (row.stream, row.message_offset) == place[1:]]
    if any(row.message_id == name for row in before):
        return before
    places = {(row.stream, row.message_offset) for row in found}
    stream, offset = places.pop() if len(places) == 1 else (None, None)
    return found if stream is None or offset is None else life(journal, stream, offset, stream_of)


class LifeReader:
    """Reads the events of a message step by step; later steps find later events.

    The id is the broker's, which contains where to begin, or the id that the message itself has for a router.
    """

    def __init__(self, journal: ReadableJournal, name: str) -> None:
        self._journal, self._name = journal, name
        self.place = parse_message_id(name)
        """When it was published, its stream and its offset; None while they are not known."""
        self.rows: list[EventRow] = []
        self.start = self.position = journal.event_range()[0] if self.place is None else first_event(journal, self.place[0])
        """The offsets where reading started, and where it continues."""
        self.read_to = 0
        """The time of the last event that was read."""
        self._is_from_start = False

    @property
    def is_complete(self) -> bool:
        """Whether the end of the log was reached."""
        return self.position >= self._journal.event_range()[1]

    @property
    def progress(self) -> float:
        """How much of the log was read, from 0 to 1."""
        latest = self._journal.event_range()[1]
        return 1.0 if latest <= self.start else min((self.position - self.start) / (latest - self.start), 1.0)

    def step(self, stream_of: Mapping[int, int], most: int) -> None:
        """Read about `most` events."""
        earliest, latest = self._journal.event_range()
        self.position = max(self.position, earliest)
        for first, event in self._journal.read_events(self.position, min(self.position + most, latest)):
            self.position, self.read_to = max(self.position, first + event.count), event.at
            if self.place is not None:
                _, stream, offset = self.place
                if concerns(event, stream, offset, stream_of):
                    found = rows(first, event, stream_of)
                    self.rows += [row for row in found if row.message_offset == offset and row.stream == stream]
            elif isinstance(event, events.Attempted) and self._found_by_router(first, event, stream_of):
                return  # the message is older than this
        if not self.rows and self.is_complete and self.start > earliest and not self._is_from_start:
            # The clock was set back since, so its events are before those of its time.
            self._is_from_start, self.start, self.position = True, earliest, earliest

    def _found_by_router(self, first: int, event: events.Attempted, stream_of: Mapping[int, int]) -> bool:
        """Add attempts of a router; returns whether they contain the message's place, so that its events can be read."""
        if self._name not in event.ids:
            return False
        index = event.ids.index(self._name)
        stream = stream_of.get(event.queue) if event.queue is not None else None
        if stream is None or event.offsets is None or event.published is None:
            self.rows += [row for row, one in zip(rows(first, event, stream_of), event.ids, strict=True) if one == self._name]
            return False
        published = spread(event.published, len(event.ids))[index]
        self.place, self.rows = (published, stream, event.offsets[index]), []
        self.start = self.position = first_event(self._journal, published)
        return True


MessageEvent = (
    events.Leased
    | events.Acked
    | events.Returned
    | events.Extended
    | events.DeadLettered
    | events.DeadLetterFailed
    | events.Redriven
    | events.DeadRemoved
)


def _describe(event: MessageEvent) -> tuple[str, Column, str | None, Detail]:
    """(kind, attempts, consumer, details) of a record; a detail is a text for all or a number for each."""
    match event:
        case events.Leased():
            return "leased", event.attempts, event.consumer, {"deadline": _each(event.deadline)}
        case events.Acked():
            return "acked", event.attempts, None, {}
        case events.Returned():
            error = {"error": event.error} if event.error else {}
            return event.cause, event.attempts, None, {"due": _each(event.due), **error}
        case events.Extended():
            return "extended", 0, None, {"deadline": _each(event.deadline)}
        case events.DeadLettered():
            texts = {"reason": event.reason, "cause": event.cause, "target": event.target, "error": event.error}
            return "dead_lettered", event.attempts, None, {key: text for key, text in texts.items() if text}
        case events.DeadLetterFailed():
            return "stranded", event.attempts, None, {"target": event.target}
        case events.Redriven():
            return "redriven", 0, None, {}
        case events.DeadRemoved():
            return event.why, 0, None, {}


def _attempted(event: events.Attempted, stream_of: Mapping[int, int]) -> EventRecord:
    stream = stream_of.get(event.queue) if event.queue is not None else None
    detail: Detail = {
        "target": event.targets,
        "status": _each(event.statuses),
        "duration": _each(event.durations),
        "outcome": event.outcomes,
        "calls": _each(event.calls),
        "queue": event.source,
        "error": event.errors,
    }
    names: list[str] | None = event.ids
    if stream is not None and event.offsets is not None:
        detail["id"], names = event.ids, None
    return EventRecord(
        "attempted", event.at, stream, event.queue, event.offsets, event.published, event.numbers, event.pools, detail, names
    )


def _each(values: Column) -> str | list[int]:
    return str(values) if isinstance(values, int) else values
