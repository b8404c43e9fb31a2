"""The operations on topics, subscriptions and messages: every public method of `Operations` is one operation.

A client in the same process awaits the method. A remote client sends its name and arguments, which are checked against the same
signature, and gets the result in the type of the signature. So there is one list of operations, and it cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

from penstock.access import Action, Principal, Right, Verb
from penstock.api.feed import Feed, opened
from penstock.api.message_queue import subscription_settings
from penstock.api.queues import MAX_ANSWERED, QueueOperations
from penstock.api.schema_operations import SchemaOperations, retention_span
from penstock.api.service import Service
from penstock.broker import backlog, lookup
from penstock.broker.async_consumer import AsyncConsumer, Sink
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Find
from penstock.broker.history import EventRow
from penstock.broker.positions import take_snapshot
from penstock.broker.publish import originated, publish_async
from penstock.broker.settlement import ACK, Settlement, new_deadline, settle_of
from penstock.durations import DAY, SECOND, micros, to_datetime
from penstock.errors import (
    AlreadyExists,
    DeadLetterCycle,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PenstockError,
    QueueFull,
    SubscriptionFull,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.ids import parse_message_id
from penstock.journal.core.events import Event
from penstock.values.descriptions import SnapshotDescription, StreamDescription
from penstock.values.message import Batch, Message, check_string, check_text
from penstock.values.policy import DeadLetterPolicy, SubscriptionOptions, check_count, converted
from penstock.values.projects import check_project
from penstock.values.queue import NewMessage
from penstock.values.subscription import Explanation, SubscriptionMetadata, SubscriptionStats, TopicMetadata
from penstock.wire.frames import Delivery, Limits
from penstock.wire.results import (
    Overview,
    Pulled,
    ServerInfo,
    SnapshotInfo,
    SubscriptionState,
    TopicSettings,
    TraceEvent,
    Unsettled,
)

P = ParamSpec("P")
T = TypeVar("T")

MAX_LISTED = 1_000
MAX_PULL_SECONDS = 60.0
MAX_MESSAGE_ID = 4_096


class Operations(QueueOperations, SchemaOperations):
    """The operations of one caller on one project. Names are relative to the project, or `projects/P/topics/N` in full."""

    def __init__(self, service: Service, principal: Principal, project: str) -> None:
        super().__init__(service.queues, principal, check_project(project))
        self._service = service
        self._blocking = service.queues.blocking
        """Runs calls that may wait for the disk."""
        self._aio = service.aio
        self._topics = service.topics

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_topic(
        self, topic: str, retention: float | None = None, schema: str | None = None, encoding: str = "JSON"
    ) -> TopicMetadata:
        name = self._name(Verb.MANAGE, topic, "topic")
        if schema is not None:
            await self._change(self._topic_with_schema(name, topic, schema, encoding, retention))
        else:
            span = retention_span(retention, has_schema=False)

            def create(catalog: Catalog, now: int) -> Event:
                self._service.projects.check_room("topics", name, catalog.topics)
                return catalog.create_topic(name, now, retention=span)

            await self._change(create)
        return self._found_topic(name, topic)

    async def get_topic(self, topic: str) -> TopicMetadata:
        return self._found_topic(self._name(Verb.READ, topic, "topic"), topic)

    async def list_topics(self) -> list[TopicMetadata]:
        found = self._now(self._topics.get_all_topics)
        return [replace(one, name=name) for one, name in self._listed(found, lambda one: one.name)]

    async def get_topic_settings(self, topic: str) -> TopicSettings:
        return self._topic_settings(self._name(Verb.READ, topic, "topic"))

    async def update_topic(self, topic: str, changes: dict[str, Any]) -> TopicSettings:
        name = self._name(Verb.MANAGE, topic, "topic")
        await self._change(self._topic_update(name, topic, changes))
        return self._topic_settings(name)

    async def delete_topic(self, topic: str) -> None:
        name = self._name(Verb.MANAGE, topic, "topic")
        await self._change(lambda catalog, now: catalog.delete_topic(name, now))

    async def publish(self, topic: str, messages: list[Message], origin: tuple[str, int] | None = None) -> list[str]:
        name = self._name(Verb.PUBLISH, topic, "topic")
        return (await publish_async(self._aio, Catalog.topic, name, messages, origin=origin)).message_ids()

    async def publish_checked(self, topic: str, batch: Batch) -> list[str]:
        """Publish messages that the client in this process checked when `publish` was called."""
        name = self._name(Verb.PUBLISH, topic, "topic")
        return (await publish_async(self._aio, Catalog.topic, name, batch)).message_ids()

    async def enqueue(self, queue: str, messages: list[NewMessage], origin: tuple[str, int] | None = None) -> list[str]:
        name = self._name(Verb.PUBLISH, queue, "queue")
        batch = originated(self._service.queues.manager.batch(name, messages, self._aio.broker.clock.now()), origin)
        return (await self._aio.publish(Catalog.work_stream, name, batch)).message_ids()

    # ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_subscription(self, subscription: str, topic: str, options: SubscriptionOptions) -> SubscriptionMetadata:
        name = self._name(Verb.MANAGE, subscription, "subscription")
        topic_name = self._name(Verb.READ, topic, "topic")
        if options.dead_letter_policy is not None:
            letters = self._name(Verb.PUBLISH, options.dead_letter_policy.dead_letter_topic, "topic")
            options = replace(options, dead_letter_policy=replace(options.dead_letter_policy, dead_letter_topic=letters))
        policy, spec = subscription_settings(topic_name, options, durable=self._aio.broker.is_durable)

        def create(catalog: Catalog, now: int) -> Event:
            self._service.projects.check_room("subscriptions", name, catalog.subscriptions)
            return catalog.create_subscription(name, topic_name, policy, spec, now)

        await self._change(create)
        return await self.get_subscription(subscription)

    async def get_subscription(self, subscription: str) -> SubscriptionMetadata:
        name = self._name(Verb.READ, subscription, "subscription")
        found = self._now(self._topics.get_subscription, name)
        if found is None:
            raise SubscriptionNotFound(subscription)
        return self._plainly(found)

    async def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionMetadata]:
        wanted = None if topic is None else self._name(Verb.READ, topic, "topic")
        found = [one for one in self._now(self._topics.get_all_subscriptions) if wanted is None or one.topic == wanted]
        return [self._plainly(one) for one, _ in self._listed(found, lambda one: one.name)]

    async def update_subscription(self, subscription: str, changes: dict[str, Any]) -> SubscriptionMetadata:
        name = self._name(Verb.MANAGE, subscription, "subscription")
        if changes.get("dead_letter_policy") is not None:
            letters = converted(changes["dead_letter_policy"], DeadLetterPolicy, "dead_letter_policy")
            target = self._name(Verb.PUBLISH, letters.dead_letter_topic, "topic")
            changes = changes | {"dead_letter_policy": replace(letters, dead_letter_topic=target)}
        await self._blocking(partial(self._topics.update_subscription, name, **changes))
        return await self.get_subscription(subscription)

    async def delete_subscription(self, subscription: str) -> None:
        name = self._name(Verb.MANAGE, subscription, "subscription")
        await self._change(lambda catalog, now: catalog.delete_queue(catalog.subscription(name), now))

    async def pause_subscription(self, subscription: str) -> None:
        await self._blocking(self._topics.pause, self._name(Verb.MANAGE, subscription, "subscription"))

    async def resume_subscription(self, subscription: str) -> None:
        await self._blocking(self._topics.resume, self._name(Verb.MANAGE, subscription, "subscription"))

    async def subscription_stats(self, subscription: str) -> SubscriptionStats:
        return await self._blocking(self._topics.stats, self._name(Verb.READ, subscription, "subscription"))

    async def seek(
        self,
        subscription: str,
        time: datetime | None = None,
        offset: int | None = None,
        snapshot: str | None = None,
    ) -> None:
        name = self._name(Verb.MANAGE, subscription, "subscription")
        position = None if snapshot is None else self._name(Verb.READ, snapshot, "snapshot")
        await self._aio.call(self._topics.seek, name, time=time, offset=offset, snapshot=position)

    async def pull(self, subscription: str, max_messages: int = 1, wait: float = 0, ack_deadline: float | None = None) -> Pulled:
        name = self._name(Verb.CONSUME, subscription, "subscription")
        check_count(max_messages, "max_messages", 1)
        span = micros(wait, "wait", maximum=MAX_PULL_SECONDS)
        deadline = None if ack_deadline is None else micros(ack_deadline, "ack_deadline", minimum=1e-3, maximum=DAY // SECOND)
        consumer = AsyncConsumer(self._aio, Catalog.subscription, name, rules=self._service.rules, ack_deadline=deadline)
        leases = await consumer.next(min(max_messages, MAX_LISTED), span, MAX_ANSWERED)
        deliveries = [Delivery.of(lease.offset, lease.attempt, lease.epoch, lease.message) for lease in leases]
        return Pulled(opened(consumer.queue), deliveries)

    async def peek(self, subscription: str, max_messages: int = 1) -> Pulled:
        name = self._name(Right.SEE, subscription, "subscription")
        most = min(check_count(max_messages, "max_messages", 1), MAX_LISTED)
        queue, waiting = await self._aio.call(backlog.upcoming, self._aio.broker, Catalog.subscription, name, most, MAX_ANSWERED)
        return Pulled(opened(queue), [Delivery.of(one.offset, one.attempts + 1, 0, one.message) for one in waiting])

    async def acknowledge(self, subscription: str, ack_ids: list[str]) -> list[str]:
        return await self._settle(subscription, ack_ids, ACK)

    async def modify_ack_deadline(self, subscription: str, ack_ids: list[str], seconds: float) -> list[str]:
        span = micros(seconds, "seconds", maximum=DAY // SECOND)
        return await self._settle(subscription, ack_ids, new_deadline(span))

    def open(
        self, subscription: str, consumer: str, limits: Limits, sink: Sink, *, owner: object, held: Sequence[int] | None = None
    ) -> Feed:
        """Open a stream of a subscription's deliveries."""
        name = self._name(Verb.CONSUME, subscription, "subscription")
        return self._service.feeds.open(Catalog.subscription, name, consumer, limits, sink, owner=owner, held=held)

    def open_queue(
        self, queue: str, consumer: str, limits: Limits, sink: Sink, *, owner: object, held: Sequence[int] | None = None
    ) -> Feed:
        """Open a stream of a work queue's deliveries."""
        name = self._name(Verb.CONSUME, queue, "queue")
        return self._service.feeds.open(Catalog.work_queue, name, consumer, limits, sink, owner=owner, held=held)

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_snapshot(self, snapshot: str, subscription: str) -> SnapshotInfo:
        source = self._name(Verb.READ, subscription, "subscription")
        name = self._name(Verb.MANAGE, snapshot, "snapshot")

        def take(catalog: Catalog, now: int) -> Event:
            self._service.projects.check_room("snapshots", name, catalog.snapshots)
            return take_snapshot(catalog, name, source, now)

        await self._change(take)
        return self._snapshot(lookup.snapshot(self._aio.broker, name))

    async def list_snapshots(self) -> list[SnapshotInfo]:
        found = self._now(lookup.snapshots, self._aio.broker)
        return [self._snapshot(one) for one, _ in self._listed(found, lambda one: one.name)]

    async def delete_snapshot(self, snapshot: str) -> None:
        await self._blocking(self._topics.delete_snapshot, self._name(Verb.MANAGE, snapshot, "snapshot"))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def trace(self, message_id: str) -> list[TraceEvent]:
        self.principal.check(Verb.READ, self.project)
        check_text(message_id, "message_id", MAX_MESSAGE_ID)
        if not message_id:
            raise InvalidArgument.of("message_id", message_id, "the id of a message")
        if not self.may_trace(parse_message_id(message_id)):
            return []
        return self.trace_events(await self._aio.call(self._aio.broker.history, message_id))

    def may_trace(self, place: tuple[int, int, int] | None) -> bool:
        """Whether the caller may know about the message at a place (publish time, stream, offset).

        If not, the answer is that of an unknown message: a guessed id must not reveal the name of a topic.
        """
        stream = lookup.find_stream(self._aio.broker, place[1]) if place is not None else None
        return stream is None or self._may_read(stream)

    def trace_events(self, rows: Sequence[EventRow]) -> list[TraceEvent]:
        """The events of one message that the caller may see."""
        broker = self._aio.broker
        streams = {number: lookup.find_stream(broker, number) for row in rows if (number := row.stream) is not None}
        queues = lookup.queue_names(broker)
        told = []
        for row in rows:
            stream = None if row.stream is None else streams[row.stream]
            if self._may_read(stream) if row.stream is not None else self.project == self._service.projects.default:
                told.append(
                    TraceEvent(
                        to_datetime(row.at),
                        row.kind,
                        None if stream is None else self._service.projects.split(stream.name)[1],
                        None if row.queue is None else self._plain(queues.get(row.queue, "")),
                        row.attempt,
                        row.consumer,
                        {key: _shown(key, value) for key, value in row.detail.items()},
                        stream is not None and stream.kind == "queue",
                    )
                )
        return told

    def _may_read(self, stream: StreamDescription | None) -> bool:
        """Whether a stream still exists, and the caller may read it."""
        return stream is not None and self.principal.may(Verb.READ, *self._service.projects.split(stream.name))

    async def explain(self, subscription: str, message_id: str) -> Explanation | None:
        return await self._blocking(self._topics.explain, self._name(Verb.READ, subscription, "subscription"), message_id)

    async def explain_backlog(self, subscription: str, limit: int = 20) -> list[Unsettled]:
        return await self._unsettled(Catalog.subscription, self._name(Verb.READ, subscription, "subscription"), limit)

    async def explain_queue(self, queue: str, limit: int = 20) -> list[Unsettled]:
        return await self._unsettled(Catalog.work_queue, self._name(Verb.READ, queue, "queue"), limit)

    async def explain_task(self, queue: str, message_id: str) -> Explanation | None:
        name = self._name(Verb.READ, queue, "queue")
        return await self._aio.call(backlog.explain, self._aio.broker, Catalog.work_queue, name, message_id)

    async def overview(self) -> Overview:
        metadata = await self.list_subscriptions()
        now = self._aio.advance()
        found = self._listed(lookup.topics(self._aio.broker), lambda one: one.name)
        topics = {name: topic.next_offset for topic, name in found}
        subscriptions = []
        for one in metadata:
            try:
                stats = self._now(self._topics.stats, self._name(Verb.READ, one.name, "subscription"))
            except NotFound:
                continue  # it was deleted in the meantime
            subscriptions.append(SubscriptionState(one.name, one.topic, one.detached, stats, stats.paused))
        queues = []
        for queue in await self.list_queues():
            try:
                queues.append(await self.queue_stats(queue))
            except NotFound:
                continue
        return Overview(to_datetime(now), topics, subscriptions, queues)

    async def info(self) -> ServerInfo:
        broker, service, started = self._aio.broker, self._service, to_datetime(self._service.started_at)
        now = to_datetime(broker.clock.now())
        return ServerInfo(service.version, broker.is_durable, now, self.project, broker.health, started, service.log_api)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, verb: Action, name: str, kind: str) -> str:
        """The broker's name of a resource, if the caller may do this to it."""
        project = self.project
        if check_string(name, kind).startswith("projects/"):
            parts = name.split("/")
            if len(parts) != 4 or parts[2] != f"{kind}s" or not parts[1] or not parts[3]:
                raise InvalidArgument.of(kind, name, f"a plain name, or projects/PROJECT/{kind}s/NAME")
            project, name = parts[1], parts[3]
        self.principal.check(verb, project, name, kind=kind)
        return self._service.queues.scoped(project, name, kind)

    def _plain(self, scoped: str) -> str:
        """The caller's name for a broker's name."""
        project, name = self._service.projects.split(scoped)
        return name if project == self.project else scoped

    def for_caller(self, error: PenstockError) -> PenstockError:
        """The error for a caller: with the caller's names of resources, without the project."""
        match error:
            case NotFound() if isinstance(error.name, str):
                return type(error)(self._plain(error.name))
            case AlreadyExists():
                return AlreadyExists(error.kind, self._plain(error.name))
            case DeadLetterCycle():
                return DeadLetterCycle([self._plain(topic) for topic in error.topics])
            case SubscriptionFull():
                return SubscriptionFull(self._plain(error.subscription), self._plain(error.topic))
            case QueueFull():
                return QueueFull(self._plain(error.queue))
            case OutOfRange():
                return OutOfRange(self._plain(error.stream), error.offset, error.earliest, error.latest)
            case _:
                return error

    async def _change(self, change: Callable[[Catalog, int], Event | None]) -> None:
        await self._blocking(self._aio.broker.change, change)

    def _found_topic(self, name: str, topic: str) -> TopicMetadata:
        found = self._now(self._topics.get_topic, name)
        if found is None:
            raise TopicNotFound(topic)
        return replace(found, name=self._plain(found.name))

    async def _settle(self, subscription: str, ack_ids: list[str], verb: Settlement) -> list[str]:
        name = self._name(Verb.CONSUME, subscription, "subscription")
        settled = settle_of(self._aio.broker, name, ack_ids, verb, self._aio.advance())
        if settled.has_forwards or settled.queue.policy.exactly_once:
            await self._aio.durable()
        return settled.failed

    async def _unsettled(self, find: Find, name: str, limit: int) -> list[Unsettled]:
        most = min(check_count(limit, "limit", 1), MAX_LISTED)
        found = await self._aio.call(backlog.unsettled, self._aio.broker, find, name, most)
        return [
            Unsettled(one.message_id, to_datetime(one.message.publish_at), one.message.key, one.attempts, one.why, one.consumer)
            for one in found
        ]

    def _listed(self, found: Sequence[T], name_of: Callable[[T], str]) -> Iterator[tuple[T, str]]:
        """The names of the project that the caller may read, without the project."""
        self.principal.check(Verb.READ, self.project)
        for one in found:
            project, name = self._service.projects.split(name_of(one))
            if project == self.project and self.principal.may(Verb.READ, project, name):
                yield one, name

    def _snapshot(self, found: SnapshotDescription) -> SnapshotInfo:
        return SnapshotInfo(
            self._plain(found.name),
            self._plain(found.topic) if found.topic is not None else "",
            to_datetime(found.taken_at),
            None if found.expires_at is None else to_datetime(found.expires_at),
        )

    def _now(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._aio.advance()  # so that the call has no due work to wait for
        return function(*args, **kwargs)

    def _plainly(self, found: SubscriptionMetadata) -> SubscriptionMetadata:
        options = found.options
        if options.dead_letter_policy is not None:
            letters = self._plain(options.dead_letter_policy.dead_letter_topic)
            options = replace(options, dead_letter_policy=replace(options.dead_letter_policy, dead_letter_topic=letters))
        return replace(found, name=self._plain(found.name), topic=self._plain(found.topic), options=options)


def _shown(key: str, value: str) -> str:
    return to_datetime(int(value)).isoformat() if key in {"deadline", "due"} and value.isdecimal() else value
