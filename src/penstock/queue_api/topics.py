"""Topics for the clients of the queue API: publish to one, and read one by offset as an event stream (a room).

A room and a topic are the same thing here: what is published to either can be read by offset and pulled by subscriptions.
"""

from __future__ import annotations

import msgspec

from penstock.access import Verb
from penstock.api.queues import ProjectQueues
from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.broker.publish import dropped, publish_async
from penstock.broker.window import read
from penstock.broker.writer import Placement
from penstock.durations import SECOND
from penstock.errors import AlreadyExists, InvalidArgument, TopicNotFound
from penstock.journal.core.events import Event
from penstock.queue_api.replies import EventPublished, Events, PublishedToTopic, RoomEvent, RoomStats
from penstock.values.descriptions import StreamDescription
from penstock.values.message import Message

EVENT = "event"
"""The attribute with the kind of an event."""


class ProjectTopics:
    """The topics of one project for one caller."""

    __slots__ = ("_broker", "_principal", "_project", "_queues")

    def __init__(self, queues: ProjectQueues) -> None:
        self._queues = queues.queues
        self._broker = queues.queues.broker
        self._principal = queues.principal
        self._project = queues.project

    async def publish(self, topic: str, payload: object) -> PublishedToTopic:
        name = self._name(Verb.PUBLISH, topic)
        subscriptions = self._found(name, topic).subscriptions
        placed = await self._publish(topic, name, Message(data=_encoded(payload, "payload")))
        return PublishedToTopic(message_id=placed.message_ids()[0], topic=topic, subscribers_matched=subscriptions)

    async def publish_event(self, room: str, event: str, data: object) -> EventPublished:
        name = self._name(Verb.PUBLISH, room)
        message = Message(data=_encoded(data, "data"), attributes={EVENT: event})
        placed = await self._publish(room, name, message)
        if placed.dropped is not None:
            raise dropped(room)
        return EventPublished(offset=placed.first, room=room)

    async def create(self, room: str) -> bool:
        """Create a topic; False if it exists."""
        name = self._name(Verb.MANAGE, room)

        def make(catalog: Catalog, now: int) -> Event:
            self._queues.projects.check_room("topics", name, catalog.topics)
            return catalog.create_topic(name, now)

        try:
            await self._queues.blocking(self._broker.broker.change, make)
        except AlreadyExists:
            return False
        return True

    async def delete(self, room: str) -> bool:
        """Delete a topic; False if there is none."""
        name = self._name(Verb.MANAGE, room)
        try:
            await self._queues.blocking(self._broker.broker.change, lambda catalog, now: catalog.delete_topic(name, now))
        except TopicNotFound:
            return False
        return True

    def list(self) -> list[str]:
        """The names of the topics that the caller may read."""
        self._principal.check(Verb.READ, self._project)
        mine = [self._queues.projects.split(found.name) for found in lookup.topics(self._broker.broker)]
        return [
            name for project, name in mine if project == self._project and self._principal.may(Verb.READ, self._project, name)
        ]

    async def read(self, room: str, first: int, limit: int) -> Events:
        """The events from an offset; those that the retention has removed are skipped."""
        name = self._name(Verb.CONSUME, room)
        if first < 0:
            raise InvalidArgument.of("from_offset", first, "an integer, 0 or more")
        if not 1 <= limit <= 1_000:
            raise InvalidArgument.of("limit", limit, "an integer from 1 to 1000")
        stream = self._found(name, room)
        first = max(first, stream.earliest)
        stop = min(first + limit, stream.next_offset)
        events = await self._queues.blocking(self._read, stream.number, first, stop, room)
        return Events(events=events, next_offset=max(first, stop))

    def stats(self, room: str) -> RoomStats:
        name = self._name(Verb.READ, room)
        stream = self._found(name, room)
        first, after = stream.earliest, stream.next_offset
        return RoomStats(
            room=room, first_offset=first, next_offset=after, event_count=after - first, subscribers=stream.subscriptions
        )

    def _read(self, stream: int, first: int, stop: int, room: str) -> RoomEvents:
        return [
            RoomEvent(
                offset=offset,
                event=(message.attributes or {}).get(EVENT, ""),
                data=_decoded(message.data),
                timestamp=message.publish_at // SECOND,
                room=room,
            )
            for start, messages in read(self._broker.broker.journal, stream, first, stop)
            for offset, message in enumerate(messages, start)
        ]

    def _name(self, verb: Verb, topic: str) -> str:
        self._principal.check(verb, self._project, topic, kind="topic")
        return self._queues.scoped(self._project, topic, "topic")

    def _found(self, name: str, topic: str) -> StreamDescription:
        try:
            return lookup.topic(self._broker.broker, name)
        except TopicNotFound:
            raise TopicNotFound(topic) from None

    async def _publish(self, topic: str, name: str, message: Message) -> Placement:
        """Publish to a topic by the broker's name; errors have the caller's name for it."""
        try:
            return await publish_async(self._broker, Catalog.topic, name, [message])
        except TopicNotFound:
            raise TopicNotFound(topic) from None


RoomEvents = list[RoomEvent]


def _encoded(value: object, field: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        raise InvalidArgument(f"{field} is nested too deeply") from None


def _decoded(data: bytes) -> object:
    """Published JSON as a value; anything else as text or a list of byte values."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return data.decode()
        except UnicodeDecodeError:
            return list(data)
