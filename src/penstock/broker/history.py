"""The event log in rows: one for each event, with names instead of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.broker.core import events
from penstock.broker.core.events import Event, spread
from penstock.broker.journal import Journal
from penstock.ids import message_id


class Row(msgspec.Struct, gc=False):
    """One event. `stream` and `subscription` are numbers here; whoever shows them knows the names."""

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


def rows(first: int, event: Event, stream_of: dict[int, int]) -> Iterator[Row]:  # noqa: PLR0912  # one case for each event
    """The events of a record whose first event has the offset `first`. `stream_of` gives the stream of a queue's number."""
    match event:
        case events.Published():
            for index in range(event.count):
                offset = event.first + index
                yield Row(
                    first + index, event.at, "published", event.stream, None, offset, message_id(event.at, event.stream, offset)
                )
        case events.Dropped():
            stream = stream_of.get(event.queue)
            offsets = (offset for start, stop in event.ranges for offset in range(start, stop))
            detail = {"why": event.why, "cause": event.cause} if event.cause else {"why": event.why}
            for index, offset in enumerate(offsets):
                yield Row(first + index, event.at, "dropped", stream, event.queue, offset, detail=detail)
        case events.TopicCreated():
            yield Row(first, event.at, "topic_created", event.stream, detail={"name": event.name})
        case events.TopicDeleted():
            yield Row(first, event.at, "topic_deleted", event.stream)
        case events.QueueCreated():
            kind = "queue_created" if event.queue == event.stream else "subscription_created"
            yield Row(first, event.at, kind, event.stream, event.queue, detail={"name": event.name})
        case events.QueueDeleted():
            yield Row(first, event.at, "queue_deleted", stream_of.get(event.queue), event.queue)
        case events.TopicUpdated():
            yield Row(first, event.at, "topic_updated", event.stream)
        case events.QueueUpdated():
            yield Row(first, event.at, "queue_updated", stream_of.get(event.queue), event.queue)
        case events.QueueDetached():
            yield Row(first, event.at, "subscription_detached", stream_of.get(event.queue), event.queue)
        case events.SnapshotUpdated():
            yield Row(first, event.at, "snapshot_updated", detail={"name": event.name})
        case events.DocumentKept():
            yield Row(first, event.at, "document_kept", detail={"name": event.name})
        case events.DocumentDropped():
            yield Row(first, event.at, "document_dropped", detail={"name": event.name})
        case events.SnapshotDeleted():
            yield Row(first, event.at, "snapshot_deleted", detail={"name": event.name})
        case events.SnapshotTaken():
            yield Row(first, event.at, "snapshot_taken", stream_of.get(event.queue), event.queue, detail={"name": event.name})
        case events.Seeked():
            yield Row(first, event.at, "seeked", stream_of.get(event.queue), event.queue, detail={"high": str(event.high)})
        case events.ConsumerReleased():
            detail = {"consumer": event.consumer}
            yield Row(first, event.at, "consumer_released", stream_of.get(event.queue), event.queue, detail=detail)
        case events.Paused():
            yield Row(first, event.at, "paused" if event.paused else "resumed", stream_of.get(event.queue), event.queue)
        case _:
            yield from _message_rows(first, event, stream_of.get(event.queue))


def concerns(event: Event, stream: int, offset: int, stream_of: dict[int, int]) -> bool:
    """Whether a record may speak of a message; cheaper than its rows."""
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
            | events.Buried()
            | events.Stranded()
            | events.Redriven()
            | events.DeadRemoved()
        ):
            return stream_of.get(event.queue) == stream and offset in event.offsets
        case _:
            return False


def life(journal: Journal, stream: int, offset: int, stream_of: dict[int, int]) -> list[Row]:
    """The events of one message, oldest first, in the queues that `stream_of` names."""
    found: list[Row] = []
    for first, event in journal.read_events(0, journal.event_range()[1]):
        if concerns(event, stream, offset, stream_of):
            found += [row for row in rows(first, event, stream_of) if row.message_offset == offset and row.stream == stream]
    return found


MessageEvent = (
    events.Leased
    | events.Acked
    | events.Returned
    | events.Extended
    | events.Buried
    | events.Stranded
    | events.Redriven
    | events.DeadRemoved
)


def _message_rows(first: int, event: MessageEvent, stream: int | None) -> Iterator[Row]:
    kind, attempts, consumer, details = _describe(event)
    published, tries = spread(event.published, event.count), spread(attempts, event.count)
    for index, (offset, publish_at, attempt) in enumerate(zip(event.offsets, published, tries, strict=True)):
        name = message_id(publish_at, stream, offset) if stream is not None else None
        detail = {key: value if isinstance(value, str) else str(value[index]) for key, value in details.items()}
        yield Row(first + index, event.at, kind, stream, event.queue, offset, name, attempt or None, consumer, detail)


def _describe(event: MessageEvent) -> tuple[str, events.Column, str | None, dict[str, str | list[int]]]:
    """(kind, attempts, consumer, details) of a record; a detail is a text for all or a number for each."""
    count = event.count
    match event:
        case events.Leased():
            return "leased", event.attempts, event.consumer, {"deadline": spread(event.deadline, count)}
        case events.Acked():
            return "acked", event.attempts, None, {}
        case events.Returned():
            error = {"error": event.error} if event.error else {}
            return event.cause, event.attempts, None, {"due": spread(event.due, count), **error}
        case events.Extended():
            return "extended", 0, None, {"deadline": spread(event.deadline, count)}
        case events.Buried():
            texts = {"reason": event.reason, "cause": event.cause, "target": event.target, "error": event.error}
            return "dead_lettered", event.attempts, None, {key: text for key, text in texts.items() if text}
        case events.Stranded():
            return "stranded", event.attempts, None, {"target": event.target}
        case events.Redriven():
            return "redriven", 0, None, {}
        case events.DeadRemoved():
            return event.why, 0, None, {}
