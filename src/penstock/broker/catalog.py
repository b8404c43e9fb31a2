"""What exists: topics, subscriptions, work queues and snapshots, by name and by number."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.broker.core.pages import Pages
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.errors import (
    AlreadyExists,
    DeadLetterCycle,
    QueueNotFound,
    ResourceExhausted,
    SnapshotNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.ids import MAX_STREAMS
from penstock.journal.core import events
from penstock.journal.core.checkpoint import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    DeletedResource,
    Position,
    QueueImage,
    State,
    StreamImage,
    depart,
)
from penstock.journal.core.events import Event
from penstock.values.message import check_name, check_new_name
from penstock.values.policy import Policy

MAX_SHARED = 10_000


class Catalog:
    """Names and numbers. A number is never used twice."""

    def __init__(self, state: State) -> None:
        self._last_number = state.last_number
        self.streams: dict[int, Stream] = {}
        self.queues: dict[int, Queue] = {}
        self.topics: dict[str, Stream] = {}
        self.subscriptions: dict[str, Queue] = {}
        self.work_queues: dict[str, Queue] = {}
        self.snapshots: dict[str, Position] = dict(state.snapshots)
        self.documents: dict[str, bytes] = dict(state.documents)
        self.deleted_resources: dict[int, DeletedResource] = dict(state.deleted_resources)
        """Deleted streams and queues that the event log may still mention."""
        self._policies: dict[Policy, tuple[Policy, bytes]] = {}
        """One object and one stored form for all queues with the same policy: there may be many thousands of them."""
        self._specs: dict[bytes, bytes] = {}
        for stream_image in state.streams.values():
            self._add_stream(Stream(stream_image))
        for image in state.queues.values():
            self._add_queue(image)

    def state(self) -> State:
        """Everything as plain data."""
        return State(
            self._last_number,
            {number: stream.image() for number, stream in self.streams.items()},
            {number: queue.image() for number, queue in self.queues.items()},
            dict(self.snapshots),
            dict(self.documents),
            dict(self.deleted_resources),
        )

    def topic(self, name: str) -> Stream:
        """The topic with this name; TopicNotFound if there is none."""
        stream = self.topics.get(name) if type(name) is str else None
        if stream is None:
            raise TopicNotFound(check_name(name, "topic_name"))
        return stream

    def subscription(self, name: str) -> Queue:
        """The subscription with this name; SubscriptionNotFound if there is none."""
        queue = self.subscriptions.get(name) if type(name) is str else None
        if queue is None:
            raise SubscriptionNotFound(check_name(name, "subscription_name"))
        return queue

    def work_queue(self, name: str) -> Queue:
        """The work queue with this name; QueueNotFound if there is none."""
        queue = self.work_queues.get(name) if type(name) is str else None
        if queue is None:
            raise QueueNotFound(check_name(name, "queue"))
        return queue

    def work_stream(self, name: str) -> Stream:
        """The stream of the work queue with this name."""
        queue = self.work_queues.get(name) if type(name) is str else None
        return self.streams[(queue or self.work_queue(name)).stream]

    def snapshot(self, name: str) -> Position:
        """The snapshot with this name; SnapshotNotFound if there is none."""
        position = self.snapshots.get(name) if type(name) is str else None
        if position is None:
            raise SnapshotNotFound(check_name(name, "snapshot"))
        return position

    def create_topic(
        self, name: str, now: int, created: int | None = None, *, spec: bytes = b"", retention: int | None = None
    ) -> events.TopicCreated:
        """A new topic; `created` is its recorded time of creation, if not now."""
        if name in self.topics:
            raise AlreadyExists("Topic", name)
        check_new_name(name, "topic")
        number = self._number()
        created = now if created is None else created
        self._add_stream(Stream(StreamImage(number, TOPIC, name, created, spec=spec, retention=retention)))
        return events.TopicCreated(number, now, name, created, spec, retention)

    def update_topic(self, name: str, spec: bytes, retention: int | None, now: int) -> events.TopicUpdated:
        stream = self.topic(name)
        stream.spec, stream.retention = spec, retention
        return events.TopicUpdated(stream.number, now, spec, retention)

    def delete_topic(self, name: str, now: int) -> events.TopicDeleted:
        """Remove a topic; its subscriptions stay, detached and empty."""
        stream = self.topic(name)
        for queue in stream.queues:
            queue.detach()
            stream.detach(queue)
        del self.topics[name]
        del self.streams[stream.number]
        depart(self.deleted_resources, stream.number, DeletedResource(TOPIC, name, stream.number, now))
        return events.TopicDeleted(stream.number, now)

    def create_subscription(
        self, name: str, topic: str, policy: Policy, spec: bytes, now: int, *, start: int | None = None
    ) -> events.QueueCreated:
        """A new subscription from the topic's end on, or from an earlier `start` on: then the caller fills it from the log."""
        stream = self.topic(topic)
        if name in self.subscriptions:
            raise AlreadyExists("Subscription", name)
        check_new_name(name, "subscription")
        self._check_letters(stream, policy.dead_letter_topic)
        first = stream.next_offset if start is None else max(min(start, stream.next_offset), stream.earliest)
        return self._create(QueueImage(self._number(), name, stream.number, now, policy, spec, first))

    def create_work_queue(self, name: str, policy: Policy, spec: bytes, now: int) -> events.QueueCreated:
        """A new work queue with its own stream."""
        if name in self.work_queues:
            raise AlreadyExists("Queue", name)
        check_new_name(name, "queue")
        number = self._number()
        self._add_stream(Stream(StreamImage(number, QUEUE, name, now)))
        return self._create(QueueImage(number, name, number, now, policy, spec, 0))

    def update_queue(self, queue: Queue, policy: Policy, spec: bytes, now: int) -> events.QueueUpdated:
        """Change the settings of a subscription or work queue."""
        if policy.dead_letter_topic != queue.policy.dead_letter_topic and not queue.detached:
            self._check_letters(self.streams[queue.stream], policy.dead_letter_topic)
        shared, stored = self._shared(policy)
        queue.update(shared, spec, now)
        return events.QueueUpdated(queue.number, now, stored, spec)

    def detach_subscription(self, name: str, now: int) -> events.QueueDetached | None:
        """Detach a subscription from its topic; None if it is detached."""
        queue = self.subscription(name)
        if queue.detached:
            return None
        self.streams[queue.stream].detach(queue)
        queue.detach()
        return events.QueueDetached(queue.number, now)

    def keep_document(self, name: str, body: bytes, now: int) -> events.DocumentKept:
        """Store a document under a name, replacing an earlier one."""
        self.documents[name] = body
        return events.DocumentKept(name, now, body)

    def drop_document(self, name: str, now: int) -> events.DocumentDropped | None:
        """Delete a document; None if there is none with this name."""
        return events.DocumentDropped(name, now) if self.documents.pop(name, None) is not None else None

    def update_snapshot(self, name: str, spec: bytes, expires_at: int | None, now: int) -> events.SnapshotUpdated:
        self.snapshots[name] = msgspec.structs.replace(self.snapshot(name), spec=spec, expires_at=expires_at)
        return events.SnapshotUpdated(name, now, spec, expires_at)

    def delete_snapshot(self, name: str, now: int) -> events.SnapshotDeleted:
        self.snapshot(name)
        del self.snapshots[name]
        return events.SnapshotDeleted(name, now)

    def delete_queue(self, queue: Queue, now: int) -> events.QueueDeleted:
        """Remove a subscription, or a work queue with its stream."""
        del self.queues[queue.number]
        stream = self.streams.get(queue.stream)
        if stream is not None:
            stream.detach(queue)
        if queue.stream == queue.number:
            kind = QUEUE
            del self.work_queues[queue.name]
            del self.streams[queue.stream]
        else:
            kind = SUBSCRIPTION
            del self.subscriptions[queue.name]
        depart(self.deleted_resources, queue.number, DeletedResource(kind, queue.name, queue.stream, now))
        queue.detach()
        return events.QueueDeleted(queue.number, now)

    def forget_deleted_resources(self, before: int) -> None:
        """Forget what was deleted before an instant: no event that is kept mentions it."""
        self.deleted_resources = {number: gone for number, gone in self.deleted_resources.items() if gone.deleted_at >= before}

    def concerned(self, event: Event) -> Iterable[int]:
        """The queues and topics whose waiters a change notifies. Documents and snapshots have no waiters."""
        match event:
            case events.TopicDeleted():
                return [event.stream, *(queue.number for queue in self.queues.values() if queue.stream == event.stream)]
            case (
                events.TopicCreated()
                | events.TopicUpdated()
                | events.Published()
                | events.DocumentKept()
                | events.DocumentDropped()
            ):
                return ()
            case (
                events.SnapshotTaken()
                | events.SnapshotUpdated()
                | events.SnapshotDeleted()
                | events.Attempted()
                | events.Audited()
            ):
                return ()
            case _:
                return (event.queue,)

    def can_undo(self, event: Event) -> bool:
        """Whether something was just created and is not used yet."""
        match event:
            case events.TopicCreated():
                return event.stream in self.streams and not self.streams[event.stream].queues
            case events.QueueCreated():
                return event.queue in self.queues
            case events.SnapshotTaken():
                return event.name in self.snapshots
            case _:
                return False

    def undo(self, event: Event) -> None:
        """Undo a creation that could not be written."""
        match event:
            case events.TopicCreated():
                self.delete_topic(event.name, event.at)
                del self.deleted_resources[event.stream]
            case events.QueueCreated():
                self.delete_queue(self.queues[event.queue], event.at)
                del self.deleted_resources[event.queue]
            case events.SnapshotTaken():
                del self.snapshots[event.name]
            case _:
                pass

    def _check_letters(self, stream: Stream, letters: str | None) -> None:
        """Refuse a dead-letter topic that would forward dead letters in a cycle."""
        sources: dict[str, str] = {}
        rest = [] if letters is None else [letters]
        while rest:
            topic = rest.pop()
            if topic == stream.name:
                cycle = [topic]
                while (topic := sources.get(topic, stream.name)) != stream.name:
                    cycle.append(topic)
                raise DeadLetterCycle([stream.name, *reversed(cycle)])
            found = self.topics.get(topic)
            for queue in found.queues if found is not None else ():
                target = queue.policy.dead_letter_topic
                if target is not None and target not in sources and target != letters:
                    sources[target] = topic
                    rest.append(target)

    def _add_stream(self, stream: Stream) -> None:
        self.streams[stream.number] = stream
        if stream.kind == TOPIC:
            self.topics[stream.name] = stream

    def _create(self, image: QueueImage) -> events.QueueCreated:
        self._add_queue(image)
        _, policy = self._shared(image.policy)
        return events.QueueCreated(image.number, image.created_at, image.name, image.stream, image.high, policy, image.spec)

    def _add_queue(self, image: QueueImage) -> None:
        image.policy, image.spec = self._shared(image.policy)[0], self._specs.setdefault(image.spec, image.spec)
        stream = self.streams.get(image.stream)
        queue = Queue(image, stream.pages if stream is not None else Pages())
        self.queues[queue.number] = queue
        if image.is_subscription:
            self.subscriptions[queue.name] = queue
        else:
            self.work_queues[queue.name] = queue
        if stream is not None and not queue.detached:
            stream.attach(queue)

    def _shared(self, policy: Policy) -> tuple[Policy, bytes]:
        """The one object that stands for a policy, and its stored form."""
        known = self._policies.get(policy)
        if known is None:
            if len(self._policies) >= MAX_SHARED:
                self._policies.clear()
                self._specs.clear()
            known = self._policies[policy] = (policy, msgspec.msgpack.encode(policy))
        return known

    def _number(self) -> int:
        if self._last_number + 1 >= MAX_STREAMS:
            raise ResourceExhausted(
                f"{MAX_STREAMS} topics, subscriptions and queues were created here, and numbers are not reused"
            )
        self._last_number += 1
        return self._last_number
