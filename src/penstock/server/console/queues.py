"""The pages of queues, subscriptions and topics: tables, single ones with their messages, and actions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.access import Verb
from penstock.broker.aio import AsyncBroker
from penstock.broker.positions import preview_seek
from penstock.durations import instant, to_datetime
from penstock.errors import InvalidArgument, QueueNotFound, SubscriptionNotFound, TopicNotFound
from penstock.http.client.target import shown_target
from penstock.ids import parse_message_id
from penstock.server.console.audit import Audit
from penstock.server.console.requests import (
    Action,
    Caller,
    Confirmation,
    Name,
    Named,
    NoParameters,
    Nothing,
    Offset,
    Text,
    View,
    read_time,
)
from penstock.server.console.rows import (
    QueueLine,
    QueueListing,
    QueueTable,
    SubscriptionLine,
    SubscriptionListing,
    SubscriptionTable,
    TopicLine,
    TopicListing,
    TopicTable,
    Why,
    explained,
    line,
    page,
    queue_value,
    reasons,
    topic_line,
    topic_value,
)
from penstock.server.console.sampler import QueueRow, Sampler
from penstock.values.stored_forms import subscription_form
from penstock.wire.reasons import State, advice
from penstock.wire.results import TopicSettings, Unsettled

T = TypeVar("T")

LOOKED_AT = 1_000
"""How many of the oldest messages are searched for their holders."""
SHOWN = 20
PUSH_NOT_SHOWN = "an endpoint that is shown to tokens with the verb consume"


class Waiting(msgspec.Struct):
    """One of the oldest unsettled messages."""

    message_id: str
    published_at: datetime
    key: str
    attempts: int
    why: Why


class Holder(msgspec.Struct):
    """A consumer, how many messages it holds, and when the first lease ends. Without a name: all unnamed consumers."""

    name: str | None
    held: int
    first_deadline_at: datetime | None


class Counted(msgspec.Struct, kw_only=True):
    """Totals since it was created."""

    published: int | None = None
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    ttl_expired: int
    discarded: int
    average_wait_seconds: float | None = None


class QueueDetail(msgspec.Struct, kw_only=True):
    """One queue."""

    at: datetime
    row: QueueLine
    settings: dict[str, Any]
    totals: Counted
    consumers: list[Holder]
    oldest: list[Waiting]
    advice: list[str]


class Position(msgspec.Struct):
    """Every message before the offset `settled_to` is settled; `latest` is the next offset of the topic."""

    settled_to: int
    latest: int


class SubscriptionDetail(msgspec.Struct, kw_only=True):
    """One subscription."""

    at: datetime
    row: SubscriptionLine
    position: Position
    settings: dict[str, Any]
    totals: Counted
    consumers: list[Holder]
    oldest: list[Waiting]
    advice: list[str]


class TopicDetail(msgspec.Struct, kw_only=True):
    """One topic."""

    at: datetime
    row: TopicLine
    settings: TopicSettings
    subscriptions: list[SubscriptionLine]


class PausedReply(msgspec.Struct):
    """Whether delivery is paused now."""

    name: str
    paused: bool


class PurgedReply(msgspec.Struct):
    """How many messages were removed."""

    purged: int


class DeletedReply(msgspec.Struct):
    """What was deleted."""

    deleted: str


class Seeking(Confirmation, kw_only=True, forbid_unknown_fields=True):
    """The place to seek to: a time, an offset, or a snapshot."""

    time: Text | None = None
    offset: Offset | None = None
    snapshot: Name | None = None


class SeekReply(msgspec.Struct):
    """How many messages a seek settles, and how many settled ones are redelivered."""

    settles: int
    redelivers: int
    text: str


class SnapshotName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a snapshot."""

    snapshot: Name


class SnapshotLine(msgspec.Struct):
    """A snapshot."""

    name: str
    topic: str
    created_at: datetime
    expires_at: datetime | None


class SnapshotListing(msgspec.Struct):
    """All snapshots."""

    snapshots: list[SnapshotLine]


class QueuePages:
    """Views and actions for queues, subscriptions and topics."""

    def __init__(self, aio: AsyncBroker, sampler: Sampler, audit: Audit) -> None:
        self._aio, self._sampler, self._audit = aio, sampler, audit

    def views(self) -> list[View[Any]]:
        path = "/console/api"
        return [
            View("queues", f"{path}/queues", "Queues", QueueTable, self.queues, QueueListing),
            View("queue", f"{path}/queues/{{name}}", "A queue", Named, self.queue, QueueDetail),
            View(
                "subscriptions",
                f"{path}/subscriptions",
                "Subscriptions",
                SubscriptionTable,
                self.subscriptions,
                SubscriptionListing,
            ),
            View(
                "subscription", f"{path}/subscriptions/{{name}}", "A subscription", Named, self.subscription, SubscriptionDetail
            ),
            View("snapshots", f"{path}/snapshots", "Snapshots", NoParameters, self.snapshots, SnapshotListing),
            View("topics", f"{path}/topics", "Topics", TopicTable, self.topics, TopicListing),
            View("topic", f"{path}/topics/{{name}}", "A topic", Named, self.topic, TopicDetail),
        ]

    def actions(self) -> list[Action[Any]]:
        path = "/console/api/{}/{{name}}/{}".format
        return [
            Action(path("queues", "pause"), "Pause a queue", Nothing, self.pause_queue, PausedReply),
            Action(path("queues", "resume"), "Resume a queue", Nothing, self.resume_queue, PausedReply),
            Action(path("queues", "purge"), "Remove a queue's waiting messages", Confirmation, self.purge_queue, PurgedReply),
            Action(path("queues", "delete"), "Delete a queue", Confirmation, self.delete_queue, DeletedReply),
            Action(path("subscriptions", "pause"), "Pause a subscription", Nothing, self.pause_subscription, PausedReply),
            Action(path("subscriptions", "resume"), "Resume a subscription", Nothing, self.resume_subscription, PausedReply),
            Action(
                path("subscriptions", "delete"), "Delete a subscription", Confirmation, self.delete_subscription, DeletedReply
            ),
            Action(path("subscriptions", "seek/preview"), "What a seek would do", Seeking, self.preview_seek, SeekReply),
            Action(path("subscriptions", "seek"), "Seek a subscription", Seeking, self.seek, SeekReply),
            Action(path("subscriptions", "snapshot"), "Take a snapshot", SnapshotName, self.take_snapshot, SnapshotName),
            Action(path("topics", "delete"), "Delete a topic", Confirmation, self.delete_topic, DeletedReply),
        ]

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def queues(self, caller: Caller, asked: QueueTable) -> QueueListing:
        """A page of the queues."""
        rows, now = await self._rows(caller, work_queues=True)
        matched, shown = page(rows, asked, queue_value(asked.sort, now))
        why = await reasons(self._aio, shown, now)
        lines = [QueueLine(**line(row, why.get(row.counters.number), now)) for row in shown]
        return QueueListing(at=to_datetime(now), total=len(rows), matched=matched, offset=asked.offset, rows=lines)

    async def subscriptions(self, caller: Caller, asked: SubscriptionTable) -> SubscriptionListing:
        """A page of the subscriptions."""
        rows, now = await self._rows(caller, work_queues=False)
        of_topic = [row for row in rows if not asked.topic or self._plain(caller, row.counters.topic) == asked.topic]
        matched, shown = page(of_topic, asked, queue_value(asked.sort, now))
        lines = await self._subscription_lines(caller, shown, now)
        return SubscriptionListing(at=to_datetime(now), total=len(rows), matched=matched, offset=asked.offset, rows=lines)

    async def topics(self, caller: Caller, asked: TopicTable) -> TopicListing:
        """A page of the topics."""
        await self._sampler.sample()
        rows = self._sampler.topic_rows(caller)
        matched, shown = page(rows, asked, topic_value(asked.sort))
        at, lines = to_datetime(self._aio.advance()), [topic_line(row) for row in shown]
        return TopicListing(at=at, total=len(rows), matched=matched, offset=asked.offset, rows=lines)

    async def queue(self, caller: Caller, asked: Named) -> QueueDetail:
        """One queue."""
        operations, name = caller.operations, asked.name
        settings = await operations.get_queue(name)
        row, now = await self._row(caller, name, work_queues=True)
        if row is None:
            raise QueueNotFound(name)
        stats, oldest = await operations.queue_stats(name), await operations.explain_queue(name, LOOKED_AT)
        why = await reasons(self._aio, [row], now)
        counted = Counted(
            published=stats.published_total,
            delivered=stats.consumed_total,
            acked=stats.acked_total,
            nacked=stats.nacked_total,
            expired=stats.expired_total,
            dead_lettered=stats.dead_lettered_total,
            ttl_expired=stats.ttl_expired_total,
            discarded=stats.discarded_total,
            average_wait_seconds=round(stats.avg_wait_time_ms / 1000, 6) if stats.consumed_total else None,
        )
        state = _state(row, counted, stats.oldest_message_age_secs, 0)
        return QueueDetail(
            at=to_datetime(now),
            row=QueueLine(**line(row, why.get(row.counters.number), now)),
            settings=msgspec.to_builtins(settings),
            totals=counted,
            consumers=_holders(oldest),
            oldest=_waiting(oldest, row, now),
            advice=[*advice(name, state, oldest, is_queue=True)],
        )

    async def subscription(self, caller: Caller, asked: Named) -> SubscriptionDetail:
        """One subscription."""
        operations, name = caller.operations, asked.name
        metadata = await operations.get_subscription(name)
        row, now = await self._row(caller, name, work_queues=False)
        if row is None:
            raise SubscriptionNotFound(name)
        stats, oldest = await operations.subscription_stats(name), await operations.explain_backlog(name, LOOKED_AT)
        [shown] = await self._subscription_lines(caller, [row], now)
        counted = Counted(
            delivered=stats.delivered_total,
            acked=stats.acked_total,
            nacked=stats.nacked_total,
            expired=stats.expired_total,
            dead_lettered=stats.dead_lettered_total,
            ttl_expired=stats.ttl_expired_total,
            discarded=stats.discarded_total,
        )
        state = _state(row, counted, stats.oldest_age_seconds, stats.dead_letter_failures_total)
        end = row.counters.published
        first = parse_message_id(oldest[0].message_id) if oldest else None
        return SubscriptionDetail(
            at=to_datetime(now),
            row=shown,
            position=Position(end, end) if first is None else Position(first[2], max(end, first[2] + 1)),
            settings=msgspec.to_builtins(metadata.options),
            totals=counted,
            consumers=_holders(oldest),
            oldest=_waiting(oldest, row, now),
            advice=[*advice(name, state, oldest)],
        )

    async def topic(self, caller: Caller, asked: Named) -> TopicDetail:
        """One topic."""
        settings = await caller.operations.get_topic_settings(asked.name)
        rows, now = await self._rows(caller, work_queues=False)
        row = next((row for row in self._sampler.topic_rows(caller) if row.name == asked.name), None)
        if row is None:
            raise TopicNotFound(asked.name)
        mine = sorted((one for one in rows if one.counters.stream == row.counters.number), key=lambda one: one.name)
        lines = await self._subscription_lines(caller, mine, now)
        return TopicDetail(at=to_datetime(now), row=topic_line(row), settings=settings, subscriptions=lines)

    async def snapshots(self, caller: Caller, _: NoParameters) -> SnapshotListing:
        """All snapshots."""
        found = await caller.operations.list_snapshots()
        return SnapshotListing([SnapshotLine(one.name, one.topic, one.created, one.expires) for one in found])

    # ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def pause_queue(self, caller: Caller, path: dict[str, str], _: Nothing) -> PausedReply:
        """Pause delivery."""
        await caller.operations.pause_queue(path["name"])
        return self._changed(PausedReply(path["name"], True))

    async def resume_queue(self, caller: Caller, path: dict[str, str], _: Nothing) -> PausedReply:
        """Resume delivery."""
        await caller.operations.resume_queue(path["name"])
        return self._changed(PausedReply(path["name"], False))

    async def purge_queue(self, caller: Caller, path: dict[str, str], body: Confirmation) -> PurgedReply:
        """Remove the waiting messages."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="queue")
        body.check(name)
        purged = await caller.operations.purge_queue(name)
        await self._audit.record(caller, "purge_queue", name, purged)
        return self._changed(PurgedReply(purged))

    async def delete_queue(self, caller: Caller, path: dict[str, str], body: Confirmation) -> DeletedReply:
        """Delete a queue with everything in it."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="queue")
        body.check(name)
        held = await self._held(caller, name, work_queues=True)
        await caller.operations.delete_queue(name)
        await self._audit.record(caller, "delete_queue", name, held)
        return self._changed(DeletedReply(name))

    async def pause_subscription(self, caller: Caller, path: dict[str, str], _: Nothing) -> PausedReply:
        """Pause delivery."""
        await caller.operations.pause_subscription(path["name"])
        return self._changed(PausedReply(path["name"], True))

    async def resume_subscription(self, caller: Caller, path: dict[str, str], _: Nothing) -> PausedReply:
        """Resume delivery."""
        await caller.operations.resume_subscription(path["name"])
        return self._changed(PausedReply(path["name"], False))

    async def delete_subscription(self, caller: Caller, path: dict[str, str], body: Confirmation) -> DeletedReply:
        """Delete a subscription with everything in it."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="subscription")
        body.check(name)
        held = await self._held(caller, name, work_queues=False)
        await caller.operations.delete_subscription(name)
        await self._audit.record(caller, "delete_subscription", name, held)
        return self._changed(DeletedReply(name))

    async def preview_seek(self, caller: Caller, path: dict[str, str], body: Seeking) -> SeekReply:
        """The effect that a seek would have now."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="subscription")
        scoped = caller.operations.queues.scoped(caller.project, name, "subscription")
        moment, snapshot = _moment(body), None
        if body.snapshot is not None:
            caller.principal.check(Verb.READ, caller.project, body.snapshot, kind="snapshot")
            snapshot = caller.operations.queues.scoped(caller.project, body.snapshot, "snapshot")
        at = None if moment is None else instant(moment, "time")
        seek = partial(preview_seek, self._aio.broker, scoped, at=at, offset=body.offset, snapshot=snapshot)
        found = await self._aio.call(seek)
        text = f"settles {found.settles:,}, redelivers {found.redelivers:,}"
        return SeekReply(found.settles, found.redelivers, text)

    async def seek(self, caller: Caller, path: dict[str, str], body: Seeking) -> SeekReply:
        """Seek a subscription."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="subscription")
        body.check(name)
        found = await self.preview_seek(caller, path, body)
        await caller.operations.seek(name, time=_moment(body), offset=body.offset, snapshot=body.snapshot)
        await self._audit.record(caller, "seek", name, found.settles)
        return self._changed(found)

    async def take_snapshot(self, caller: Caller, path: dict[str, str], body: SnapshotName) -> SnapshotName:
        """Keep the present position under a name."""
        await caller.operations.create_snapshot(body.snapshot, path["name"])
        return body

    async def delete_topic(self, caller: Caller, path: dict[str, str], body: Confirmation) -> DeletedReply:
        """Delete a topic; its subscriptions are detached."""
        name = path["name"]
        caller.principal.check(Verb.MANAGE, caller.project, name, kind="topic")
        body.check(name)
        await caller.operations.delete_topic(name)
        await self._audit.record(caller, "delete_topic", name, 1)
        return self._changed(DeletedReply(name))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _rows(self, caller: Caller, *, work_queues: bool) -> tuple[list[QueueRow], int]:
        await self._sampler.sample_ages()
        return self._sampler.queue_rows(caller, work_queues=work_queues), self._aio.broker.clock.now()

    async def _row(self, caller: Caller, name: str, *, work_queues: bool) -> tuple[QueueRow | None, int]:
        rows, now = await self._rows(caller, work_queues=work_queues)
        row = next((row for row in rows if row.name == name), None)
        if row is None:
            self._sampler.invalidate()  # it may be newer than the sample
            rows, now = await self._rows(caller, work_queues=work_queues)
            row = next((row for row in rows if row.name == name), None)
        return row, now

    async def _held(self, caller: Caller, name: str, *, work_queues: bool) -> int:
        """The number of unsettled messages."""
        self._sampler.invalidate()
        row, _ = await self._row(caller, name, work_queues=work_queues)
        return 0 if row is None else row.counters.backlog

    async def _subscription_lines(self, caller: Caller, rows: Sequence[QueueRow], now: int) -> list[SubscriptionLine]:
        why = await reasons(self._aio, rows, now)
        metadata = {one.name: one for one in await caller.operations.list_subscriptions()} if rows else {}
        lines = []
        for row in rows:
            found = metadata.get(row.name)
            lines.append(
                SubscriptionLine(
                    **line(row, why.get(row.counters.number), now),
                    topic=found.topic if found is not None else self._plain(caller, row.counters.topic),
                    filter=found.options.filter if found is not None else "",
                    push=self._push(caller, row),
                    ordered=row.counters.is_ordered,
                    detached=row.counters.is_detached,
                )
            )
        return lines

    def _push(self, caller: Caller, row: QueueRow) -> str | None:
        endpoint = subscription_form(row.counters.spec).push_endpoint
        if not endpoint:
            return None
        return shown_target(endpoint) if caller.principal.may(Verb.CONSUME, caller.project, row.name) else PUSH_NOT_SHOWN

    def _plain(self, caller: Caller, scoped: str) -> str:
        project, name = self._sampler.projects_of.split(scoped)
        return name if project == caller.project else scoped

    def _changed(self, reply: T) -> T:
        self._sampler.invalidate()
        return reply


def _moment(body: Seeking) -> datetime | None:
    """The time of a seek, if it goes to a time; InvalidArgument unless there is exactly one place."""
    if sum(place is not None for place in (body.time, body.offset, body.snapshot)) != 1:
        raise InvalidArgument("a seek goes to one place: expected one of time, offset and snapshot")
    return None if body.time is None else read_time(body.time)


def _state(row: QueueRow, counted: Counted, oldest_age: float, unburied: int) -> State:
    found = row.counters
    return State(
        ready=found.ready,
        delayed=found.delayed,
        in_flight=found.in_flight,
        backlog=found.backlog,
        backlog_bytes=found.size,
        oldest_age=oldest_age,
        delivered=counted.delivered,
        acked=counted.acked,
        nacked=counted.nacked,
        expired=counted.expired,
        dead=counted.dead_lettered,
        discarded=counted.discarded,
        unburied=unburied,
    )


def _waiting(oldest: Sequence[Unsettled], row: QueueRow, now: int) -> list[Waiting]:
    is_taken = bool(row.counters.in_flight or row.out_rate)
    return [
        Waiting(
            one.message_id,
            one.publish_time,
            one.ordering_key,
            one.delivery_attempt,
            explained(one.message_id, one.explanation, one.consumer, now, is_taken=is_taken),
        )
        for one in oldest[:SHOWN]
    ]


def _holders(oldest: Sequence[Unsettled]) -> list[Holder]:
    held: dict[str | None, list[datetime]] = defaultdict(list)
    for one in oldest:
        if one.explanation.reason == "leased" and one.explanation.until is not None:
            held[one.consumer].append(one.explanation.until)
    return [Holder(name, len(ends), min(ends)) for name, ends in sorted(held.items(), key=lambda item: -len(item[1]))]
