"""The outline of a checkpoint: the names of all resources and the end of each stream, without the content of queues.

Readers of a log need no more. It is much smaller than the state, and is updated with new events.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.journal.core import events
from penstock.journal.core.checkpoint import QUEUE, SUBSCRIPTION, TOPIC, DeletedResource, depart
from penstock.journal.core.events import Event


class StreamOutline(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a `StreamImage`; the others are skipped."""

    number: int
    kind: str
    name: str
    created_at: int
    next_offset: int = 0
    published_at: int = 0


class QueueOutline(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a `QueueImage`; the others are skipped."""

    number: int
    name: str
    stream: int


_OUTSIDE = frozenset({events.Published, events.TopicCreated, events.TopicDeleted, events.QueueCreated, events.QueueDeleted})


class Outline(msgspec.Struct, array_like=True):
    """The outline of a `State`, with the same fields in the same order."""

    last_number: int = 0
    streams: dict[int, StreamOutline] = {}
    queues: dict[int, QueueOutline] = {}
    snapshots: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    deleted_resources: dict[int, DeletedResource] = {}

    def follow(self, happened: Iterable[Event]) -> bool:
        """Apply new events; returns whether a topic or queue was created or deleted."""
        has_new_names = False
        for event in happened:
            # Most events are about the messages of a queue.
            if type(event) not in _OUTSIDE:
                continue
            match event:
                case events.Published():
                    stream = self.streams[event.stream]
                    stream.next_offset, stream.published_at = event.first + event.count, event.at
                    continue
                case events.TopicCreated():
                    self.streams[event.stream] = StreamOutline(event.stream, TOPIC, event.name, event.at)
                case events.TopicDeleted():
                    gone = self.streams.pop(event.stream)
                    depart(self.deleted_resources, event.stream, DeletedResource(TOPIC, gone.name, event.stream, event.at))
                case events.QueueCreated():
                    self.queues[event.queue] = QueueOutline(event.queue, event.name, event.stream)
                    if event.queue == event.stream:
                        self.streams[event.stream] = StreamOutline(event.stream, QUEUE, event.name, event.at)
                case events.QueueDeleted():
                    queue = self.queues.pop(event.queue)
                    is_work_queue = self.streams.pop(event.queue, None) is not None
                    kind = QUEUE if is_work_queue else SUBSCRIPTION
                    depart(self.deleted_resources, event.queue, DeletedResource(kind, queue.name, queue.stream, event.at))
            has_new_names = True
        return has_new_names


_decoder = msgspec.msgpack.Decoder(Outline)


def decode(body: bytes) -> Outline:
    return _decoder.decode(body)


EVENTS = "_penstock.events"
"""The name of the event log where a stream's name is expected: in offsets and cursors."""


class StreamSpan(msgspec.Struct, frozen=True):
    """The available range of a stream: the offsets from `earliest` up to, not including, `latest`."""

    stream: str
    """Its name in the log: the name of a topic, or `queue:NAME` for a work queue."""
    number: int
    earliest: int
    latest: int
    published_at: int
    """When the last message was published, in microseconds; 0 if there was none."""


def stream_name(kind: str, name: str) -> str:
    """The name of a stream in the log. It is unique, although a topic and a work queue may have the same name."""
    return name if kind == TOPIC and not name.startswith((f"{TOPIC}:", f"{QUEUE}:")) else f"{kind}:{name}"
