"""The pages of the parts that use the broker: workers, the router, the hub, and the readers of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec

from penstock.access import Verb
from penstock.broker import backlog
from penstock.broker.aio import AsyncBroker
from penstock.broker.backlog import HeldMessage
from penstock.broker.browse import browse
from penstock.broker.log_view import BrokerLog
from penstock.durations import SECOND, to_datetime
from penstock.errors import FailedPrecondition, NotFound, PermissionDenied
from penstock.hub.core.close_codes import SLOW_READER
from penstock.hub.service import HubService
from penstock.router.broker_records import dead_letter_queue
from penstock.router.core.circuit import State
from penstock.router.core.metrics import FIVE_MINUTES
from penstock.router.monitoring.view import RouterView
from penstock.server.console.audit import Audit
from penstock.server.console.payloads import Payloads
from penstock.server.console.requests import Action, Caller, Confirmation, NoParameters, Text, View
from penstock.server.console.rows import age
from penstock.server.console.sampler import QueueRow, Sampler
from penstock.server.console.tasks import MAX_TASK_BYTES, TaskListing, TaskReader, task_of

T = TypeVar("T")

HELD = 1_000
"""How many messages in flight are read for each queue."""
MAX_QUEUES = 200
MAX_RUNNING = 20
SHOWN = 200
METRICS_STREAM = "_penstock.metrics"
"""The topic to which the metrics job of the pipeline publishes its rows."""
SHOWN_METRICS = 20
LEVELS_STREAM = "_penstock.levels"
"""The topic to which the metrics job publishes the levels of queues."""
SHOWN_LEVELS, SHOWN_WINDOWS, MAX_LEVEL_BYTES = 1_000, 60, 16 * 1024 * 1024
TRIAGE_STREAM = "_penstock.triage"
"""The topic to which `penstock pipeline triage` publishes the groups that it found."""
LOOKED_AT, MAX_TRIAGE_BYTES = 5, 4 * 1024 * 1024
SHOWN_STREAMS = 100


class Running(msgspec.Struct, kw_only=True):
    """A message that a worker holds."""

    queue: str
    message_id: str
    task: str | None
    attempt: int
    since_at: datetime | None
    deadline_at: datetime


class WorkerLine(msgspec.Struct, kw_only=True):
    """A consumer, and its messages; those with the earliest deadlines first."""

    name: str
    connection: str | None
    """The address of its client, if that has a stream open."""
    queues: list[str]
    held: int
    running: list[Running]


class OutcomeLine(msgspec.Struct):
    """How the deliveries of a work queue ended since it was created."""

    queue: str
    done: int
    failed: int
    """Nacked, or not settled in time."""
    dead: int


class WorkerListing(msgspec.Struct, kw_only=True):
    """The consumers of work queues, their messages, and how deliveries ended; queues with the most failures first."""

    at: datetime
    workers: list[WorkerLine]
    tasks: TaskListing
    outcomes: list[OutcomeLine]
    is_bounded: bool


class TargetLine(msgspec.Struct, kw_only=True):
    """A target, and its circuit breaker. The rate is of the last ten calls; without calls there is none."""

    name: str
    state: str
    failure_rate: float | None
    succeeded: int
    failed: int
    rejected: int
    error: str
    """The result of the last call that the target did not accept."""
    paused_until_at: datetime | None
    """The end of the pause that it asked for."""
    next_try_at: datetime | None
    """When an open breaker lets a call through."""


class PoolLine(msgspec.Struct, kw_only=True):
    """A pool; rate and time are of the last five minutes."""

    code: str
    active: int
    queued: int
    held: int
    concurrency: int
    rate_per_minute: int | None
    success_rate: float | None
    """The average of all attempts."""
    average_seconds: float | None
    is_paused: bool


class SourceLine(msgspec.Struct, kw_only=True):
    """A queue that the router consumes from."""

    name: str
    pending: int
    not_visible: int
    per_second: float
    is_connected: bool
    dead: int
    dead_letters: str
    """The work queue that keeps its dead letters."""


class FlightLine(msgspec.Struct, kw_only=True):
    """A message in the router."""

    message_id: str
    broker_id: str
    queue: str
    pool: str
    group: str
    target: str
    since_at: datetime
    attempts: int
    error: str
    """Why the last attempt did not deliver it."""
    next_attempt_at: datetime | None
    """None: it is being delivered, or waits for its turn."""
    is_running: bool


class WarningLine(msgspec.Struct, kw_only=True):
    """A warning of the router."""

    at: datetime
    level: str
    text: str


class RouterPage(msgspec.Struct, kw_only=True):
    """The router."""

    at: datetime
    is_ready: bool
    targets: list[TargetLine]
    pools: list[PoolLine]
    queues: list[SourceLine]
    in_flight: list[FlightLine]
    in_flight_total: int
    warnings: list[WarningLine]


class TopicSubscribers(msgspec.Struct):
    """A topic or pattern of the hub."""

    name: str
    subscribers: int


class ActorLine(msgspec.Struct, kw_only=True):
    """An actor that is registered at the hub."""

    address: str
    capabilities: tuple[str, ...]
    since_at: datetime
    subscriptions: int


class HubPage(msgspec.Struct, kw_only=True):
    """The hub. The totals are since it started."""

    at: datetime
    connections: int
    actors: int
    topics: int
    opened_total: int
    received_total: int
    sent_total: int
    slow_readers_total: int
    errors: dict[str, int]
    topic_rows: list[TopicSubscribers]
    actor_rows: list[ActorLine]
    """Ordered by address; the first ones."""


class StreamPosition(msgspec.Struct):
    """The position of a reader in one stream, and when the last message that it has read was published."""

    stream: str
    offset: int
    lag: int
    read_to_at: datetime | None


class CursorLine(msgspec.Struct, kw_only=True):
    """A reader of the log, and how far behind it is. A reader with `holds` keeps messages in the log."""

    name: str
    lag: int
    holds: bool
    updated_at: datetime
    silent_seconds: float
    streams: list[StreamPosition]


class MetricsLine(msgspec.Struct, kw_only=True):
    """The counts of the metrics job in one window, for a stream or a subscription."""

    window_end: datetime
    stream: str
    subscription: str | None = None
    consumer: str | None = None
    published: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    wait_p95_ms: float | None = None


class PipelinePage(msgspec.Struct, kw_only=True):
    """The readers of the log, the one furthest behind first; and the newest rows that the metrics job has published."""

    at: datetime
    cursors: list[CursorLine]
    metrics: list[MetricsLine]
    triages: int
    """How many triages have been published; if it changes, the view `triage` has a new one."""
    windows: int
    """The same for windows of levels, and the view `levels/history`."""


class LevelLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The level of a queue or subscription, in total or of one priority; or the use of a pool or a target of the router."""

    kind: Literal["queue", "subscription", "pool", "target"]
    name: str
    priority: int | None = None
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_seconds: float | None = None
    utilisation: float | None = None
    retries: int = 0
    """A total, like the next field."""
    rate_limit_waits: int = 0
    is_open: bool = False


class LevelPage(msgspec.Struct, kw_only=True):
    """What the metrics job samples: those that are not empty first, at most a thousand of each kind."""

    at: datetime
    levels: list[LevelLine]


class LevelWindow(msgspec.Struct, kw_only=True):
    """A window of a queue, subscription, pool or target, as the metrics job has published it."""

    window_end: datetime
    kind: str
    name: str
    priority: int | None = None
    ready: int
    ready_max: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_ms: float | None = None
    utilisation: float | None = None
    retries: int
    rate_limit_waits: int
    open_ms: float


class LevelHistory(msgspec.Struct, kw_only=True):
    """The last windows, the newest first."""

    windows: list[list[LevelWindow]]


class CauseLine(msgspec.Struct, kw_only=True):
    """Dead letters with the same cause, as found by a triage."""

    id: str
    stream: str
    subscription: str
    reason: str
    error: str
    target: str
    status: int
    shape: str
    version: str
    count: int
    first_at: datetime
    last_at: datetime
    samples: list[str]
    example: str = ""
    action: str = ""
    condition: str = ""


class TriagePage(msgspec.Struct, kw_only=True):
    """The newest triage, its largest groups first; if there is none, `at` is null."""

    at: datetime | None = None
    total: int = 0
    groups: list[CauseLine] = []


class TargetAction(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a target."""

    target: Text


class PoolAction(msgspec.Struct, forbid_unknown_fields=True):
    """The code of a pool."""

    pool: Text


class MessageAction(msgspec.Struct, forbid_unknown_fields=True):
    """The id of a message."""

    message_id: Text


class ForcedAck(Confirmation, kw_only=True, forbid_unknown_fields=True):
    """The id of a message, confirmed."""

    message_id: Text


class DoneReply(msgspec.Struct):
    """The resource that was changed."""

    done: str


class PartPages:
    """Views and actions for workers, router, hub and pipeline."""

    def __init__(
        self,
        aio: AsyncBroker,
        sampler: Sampler,
        payloads: Payloads,
        audit: Audit,
        *,
        router: RouterView | None,
        hub: HubService | None,
    ) -> None:
        self._aio, self._broker, self._sampler, self._payloads = aio, aio.broker, sampler, payloads
        self._audit, self._router, self._hub = audit, router, hub
        self._log = BrokerLog(aio.broker)
        self._tasks = TaskReader(aio, sampler, payloads)

    def views(self) -> list[View[Any]]:
        path = "/console/api"
        views: list[View[Any]] = [
            View("workers", f"{path}/workers", "Workers and what they hold", NoParameters, self.workers, WorkerListing),
            View("pipeline", f"{path}/pipeline", "Readers of the log", NoParameters, self.pipeline, PipelinePage),
            View("levels", f"{path}/levels", "Levels of queues and pools", NoParameters, self.levels, LevelPage),
            View("history", f"{path}/levels/history", "Levels over time", NoParameters, self.history, LevelHistory),
            View("triage", f"{path}/triage", "Causes of dead letters", NoParameters, self.triage, TriagePage),
        ]
        if self._router is not None:
            views.append(View("router", f"{path}/router", "The router", NoParameters, self.router, RouterPage))
        if self._hub is not None:
            views.append(View("hub", f"{path}/hub", "The hub", NoParameters, self.hub, HubPage))
        return views

    def actions(self) -> list[Action[Any]]:
        if self._router is None:
            return []
        path = "/console/api/router"
        return [
            Action(f"{path}/reset-breaker", "Close a breaker", TargetAction, self.reset_breaker, DoneReply),
            Action(f"{path}/pause-pool", "Pause a pool", PoolAction, self.pause_pool, DoneReply),
            Action(f"{path}/resume-pool", "Resume a pool", PoolAction, self.resume_pool, DoneReply),
            Action(f"{path}/retry-now", "Try a message now", MessageAction, self.retry_now, DoneReply),
            Action(f"{path}/force-ack", "Ack a message by force", ForcedAck, self.force_ack, DoneReply),
        ]

    async def workers(self, caller: Caller, _: NoParameters) -> WorkerListing:
        """The consumers of work queues, and the messages that each holds."""
        await self._sampler.sample()
        all_rows = self._sampler.queue_rows(caller, work_queues=True)
        rows = [row for row in all_rows if row.counters.in_flight]
        by_worker: dict[str, list[tuple[str, HeldMessage]]] = defaultdict(list)
        queues_of: dict[str, set[str]] = defaultdict(set)
        connections: dict[str, str | None] = {}
        is_bounded = len(rows) > MAX_QUEUES or any(row.counters.in_flight > HELD for row in rows)
        for row in all_rows:
            for name, waiter in self._aio.connected(row.counters.number).items():
                queues_of[name].add(row.name)
                connections[name] = waiter.connection
        for row in rows[:MAX_QUEUES]:
            for one in await self._aio.call(backlog.held, self._broker, row.counters.number, HELD):
                by_worker[one.consumer or ""].append((row.name, one))
                queues_of[one.consumer or ""].add(row.name)
        lines = []
        for name in sorted(queues_of, key=lambda name: (-len(by_worker[name]), name))[:SHOWN]:
            held = by_worker[name]
            first = sorted(held, key=lambda item: item[1].deadline)[:MAX_RUNNING]
            running = [self._running(caller, queue, one) for queue, one in first]
            lines.append(
                WorkerLine(
                    name=name,
                    connection=connections.get(name),
                    queues=sorted(queues_of[name]),
                    held=len(held),
                    running=running,
                )
            )
        ended = [
            OutcomeLine(row.name, found.acked, found.failed, found.dead_lettered)
            for row in all_rows
            if (found := row.counters).acked or found.failed or found.dead_lettered
        ]
        ended.sort(key=lambda line: (-line.failed / (line.done + line.failed or 1), line.queue))
        tasks = await self._tasks.read(caller)
        return WorkerListing(
            at=to_datetime(self._broker.clock.now()),
            workers=lines,
            tasks=tasks,
            outcomes=ended[:SHOWN],
            is_bounded=is_bounded,
        )

    async def pipeline(self, caller: Caller, _: NoParameters) -> PipelinePage:
        """The readers of the log whose streams the caller may read."""
        _check_operator(caller, Verb.READ, "the readers of the log")
        now = self._broker.clock.now()
        lines = []
        for cursor in await self._aio.call(self._broker.cursors.all):
            read_to = await self._aio.call(self._read_to, cursor.offsets)
            streams = [
                StreamPosition(name, offset, cursor.lag.get(name, 0), read_to.get(name))
                for name, offset in sorted(cursor.offsets.items())
            ]
            lines.append(
                CursorLine(
                    name=cursor.name,
                    lag=sum(cursor.lag.values()),
                    holds=cursor.holds,
                    updated_at=to_datetime(cursor.updated_at),
                    silent_seconds=round(max(now - cursor.updated_at, 0) / SECOND, 3),
                    streams=streams,
                )
            )
        metrics, triages, windows = await self._aio.call(self._metrics)
        cursors = sorted(lines, key=lambda line: -line.lag)
        return PipelinePage(at=to_datetime(now), cursors=cursors, metrics=metrics, triages=triages, windows=windows)

    async def levels(self, caller: Caller, _: NoParameters) -> LevelPage:
        """The present level of every queue, subscription, pool and target."""
        _check_operator(caller, Verb.READ, "the levels of all queues")
        await self._sampler.sample_ages()
        now = self._broker.clock.now()
        levels: list[LevelLine] = []
        for is_queue in (True, False):
            found = self._sampler.queue_rows(caller, work_queues=is_queue)
            for row in sorted(found, key=lambda row: -row.counters.backlog)[:SHOWN_LEVELS]:
                levels += _levels_of(row, "queue" if is_queue else "subscription", now)
        if self._router is not None:
            snapshot = self._view().snapshot()
            levels += [
                LevelLine(
                    kind="pool",
                    name=pool.code,
                    ready=pool.queued,
                    in_flight=pool.active,
                    delayed=pool.held,
                    utilisation=round(pool.active / pool.concurrency, 4),
                    retries=pool.metrics.transient + pool.metrics.throttled,
                    rate_limit_waits=pool.metrics.rate_limited,
                )
                for pool in snapshot.pools[:SHOWN_LEVELS]
            ]
            levels += [
                LevelLine(kind="target", name=breaker.name, is_open=breaker.state == State.OPEN)
                for breaker in snapshot.breakers[:SHOWN_LEVELS]
            ]
        return LevelPage(at=to_datetime(now), levels=levels)

    async def history(self, caller: Caller, _: NoParameters) -> LevelHistory:
        """The last windows that the metrics job has published."""
        _check_operator(caller, Verb.READ, "the levels of all queues")
        windows = await self._aio.call(self._newest, LEVELS_STREAM, SHOWN_WINDOWS, MAX_LEVEL_BYTES, _decode_levels)
        return LevelHistory(windows=windows)

    async def triage(self, caller: Caller, _: NoParameters) -> TriagePage:
        """The newest triage. Fields of payloads are only shown to callers who may see payloads."""
        _check_operator(caller, Verb.READ, "the triage of dead letters")
        found: list[TriagePage] = await self._aio.call(self._newest, TRIAGE_STREAM, LOOKED_AT, MAX_TRIAGE_BYTES, _decode_triage)
        if not found:
            return TriagePage()
        for group in found[0].groups:
            name = group.stream.removeprefix("queue:") if group.stream.startswith("queue:") else group.subscription
            if self._payloads.visibility(caller, name) != "shown":
                group.shape = ""
        return found[0]

    def _read_to(self, offsets: Mapping[str, int]) -> dict[str, datetime]:
        """By stream, when the last event before these offsets was written. For the first hundred streams."""
        found: dict[str, datetime] = {}
        for name, offset in islice(sorted(offsets.items()), SHOWN_STREAMS):
            with suppress(NotFound):  # its stream was deleted
                if offset and (at := self._log.written_at(name, offset - 1)) is not None:
                    found[name] = to_datetime(at)
        return found

    def _metrics(self) -> tuple[list[MetricsLine], int, int]:
        """The newest metrics, and how many triages and windows of levels have been published."""
        lines = self._newest(METRICS_STREAM, SHOWN_METRICS, SHOWN_METRICS * MAX_TASK_BYTES, _decode_metrics)
        return lines, self._published(TRIAGE_STREAM), self._published(LEVELS_STREAM)

    def _published(self, stream: str) -> int:
        try:
            return self._log.span(stream).latest
        except NotFound:
            return 0

    def _newest(self, stream: str, most: int, max_bytes: int, decode: Callable[[bytes], T]) -> list[T]:
        """The newest messages of a stream of the pipeline, newest first."""
        try:
            span = self._log.span(stream)
        except NotFound:
            return []
        step = browse(
            self._broker.journal, span.number, span.earliest, span.latest, newest_first=True, most=most, max_bytes=max_bytes
        )
        found = []
        for _, message in step.found:
            with suppress(msgspec.DecodeError):  # from another publisher: the topic is not protected
                found.append(decode(message.data))
        return found

    async def router(self, caller: Caller, _: NoParameters) -> RouterPage:
        """The router."""
        _check_operator(caller, Verb.READ, "the router")
        view = self._view()
        found, now = view.snapshot(), view.clock.now()
        pools = []
        for pool in found.pools:
            recent = pool.metrics.numbers(FIVE_MINUTES, now)
            pools.append(
                PoolLine(
                    code=pool.code,
                    active=pool.active,
                    queued=pool.queued,
                    held=pool.held,
                    concurrency=pool.concurrency,
                    rate_per_minute=pool.rate_per_minute,
                    success_rate=round(recent.succeeded / recent.attempts, 4) if recent.attempts else None,
                    average_seconds=round(recent.average_time / SECOND, 6) if recent.attempts else None,
                    is_paused=pool.is_paused,
                )
            )
        targets = [
            TargetLine(
                name=breaker.name,
                state=str(breaker.state),
                failure_rate=round(breaker.failure_rate, 4) if breaker.buffered else None,
                succeeded=breaker.succeeded,
                failed=breaker.failed,
                rejected=breaker.rejected,
                error=breaker.error,
                paused_until_at=to_datetime(breaker.paused_until) if breaker.paused_until else None,
                next_try_at=to_datetime(breaker.open_until) if breaker.open_until else None,
            )
            for breaker in found.breakers
        ]
        await self._sampler.sample()
        letters = {row.name: row.counters.dead for row in self._sampler.queue_rows(caller, work_queues=True)}
        sources = []
        for queue in found.queues:
            # Its own queue, if it is a work queue of this broker; otherwise the queue that the router created for dead letters.
            own = queue.name.rpartition("/queues/")[2]
            keeper = own if own in letters else dead_letter_queue(queue.name)
            sources.append(
                SourceLine(
                    name=queue.name,
                    pending=queue.metrics.pending,
                    not_visible=queue.metrics.not_visible,
                    per_second=round(queue.metrics.numbers(FIVE_MINUTES, now).per_second, 3),
                    is_connected=queue.is_connected,
                    dead=letters.get(keeper, 0),
                    dead_letters=keeper,
                )
            )
        flights = [
            FlightLine(
                message_id=one.message_id,
                broker_id=one.broker_id,
                queue=one.queue,
                pool=one.pool,
                group=one.group,
                target=one.target,
                since_at=to_datetime(one.tracked_at),
                attempts=one.attempts,
                error=one.error,
                next_attempt_at=to_datetime(one.due) if one.due else None,
                is_running=bool(one.started_at),
            )
            for one in view.in_flight(SHOWN)
        ]
        warnings = [
            WarningLine(at=to_datetime(one.at), level=str(one.severity), text=one.message)
            for one in view.warnings.all(now)[:SHOWN]
        ]
        targets.sort(key=lambda target: (target.state != State.OPEN, -(target.failure_rate or 0.0), target.name))
        return RouterPage(
            at=to_datetime(now),
            is_ready=found.is_ready,
            targets=targets,
            pools=pools,
            queues=sources,
            in_flight=flights,
            in_flight_total=found.in_flight,
            warnings=warnings,
        )

    async def hub(self, caller: Caller, _: NoParameters) -> HubPage:
        """The hub."""
        _check_operator(caller, Verb.READ, "the hub")
        assert self._hub is not None, "the view exists only with a hub"
        hub = self._hub.hub
        state, metrics = hub.state, hub.metrics
        now = self._broker.clock.now()
        actors = [
            ActorLine(
                address=actor.address,
                capabilities=actor.capabilities,
                since_at=to_datetime(actor.registered_at),
                subscriptions=len(actor.session.subscriptions),
            )
            for actor in islice(state.registry.with_capability(None, now), SHOWN)
        ]
        rows = [TopicSubscribers(name, number) for name, number in state.table.names(limit=SHOWN)]
        return HubPage(
            at=to_datetime(now),
            connections=len(state.sessions),
            actors=len(state.registry),
            topics=len(state.table),
            opened_total=metrics.opened,
            received_total=metrics.received,
            sent_total=metrics.sent,
            slow_readers_total=metrics.closed[SLOW_READER.reason],
            errors=dict(metrics.errors),
            topic_rows=sorted(rows, key=lambda row: (-row.subscribers, row.name)),
            actor_rows=actors,
        )

    async def reset_breaker(self, caller: Caller, _: dict[str, str], body: TargetAction) -> DoneReply:
        """Close a breaker, and forget its calls."""
        _check_operator(caller, Verb.MANAGE, "the router")
        if not self._view().reset_breaker(body.target):
            raise NotFound(body.target)
        return DoneReply(body.target)

    async def pause_pool(self, caller: Caller, _: dict[str, str], body: PoolAction) -> DoneReply:
        """Start no deliveries in a pool, until `resume_pool` or the end of the router. Running ones finish."""
        return self._set_paused(caller, body, is_paused=True)

    async def resume_pool(self, caller: Caller, _: dict[str, str], body: PoolAction) -> DoneReply:
        """Resume a pool."""
        return self._set_paused(caller, body, is_paused=False)

    async def retry_now(self, caller: Caller, _: dict[str, str], body: MessageAction) -> DoneReply:
        """Try a message now that waits for its next attempt."""
        _check_operator(caller, Verb.MANAGE, "the router")
        view = self._view()
        if view.find(body.message_id) is None:
            raise NotFound(body.message_id)
        if not view.retry_now(body.message_id):
            raise FailedPrecondition(f"message {body.message_id} waits for no next attempt: it runs, or waits for its turn")
        return DoneReply(body.message_id)

    async def force_ack(self, caller: Caller, _: dict[str, str], body: ForcedAck) -> DoneReply:
        """Remove a message from the router and its queue, whatever the result of its call."""
        _check_operator(caller, Verb.MANAGE, "the router")
        body.check(body.message_id)
        if await self._view().force_ack(body.message_id) is None:
            raise NotFound(body.message_id)
        await self._audit.record(caller, "force_ack", body.message_id, 1)
        return DoneReply(body.message_id)

    def _set_paused(self, caller: Caller, body: PoolAction, *, is_paused: bool) -> DoneReply:
        _check_operator(caller, Verb.MANAGE, "the router")
        if not self._view().pause_pool(body.pool, is_paused=is_paused):
            raise NotFound(f"pool {body.pool}")
        return DoneReply(body.pool)

    def _view(self) -> RouterView:
        if self._router is None:
            raise FailedPrecondition("this server has no router", hint="start it with --router")
        return self._router

    def _running(self, caller: Caller, queue: str, one: HeldMessage) -> Running:
        return Running(
            queue=queue,
            message_id=one.message_id,
            task=task_of(one.message) if self._payloads.visibility(caller, queue) == "shown" else None,
            attempt=one.attempt,
            since_at=to_datetime(one.leased_at) if one.leased_at else None,
            deadline_at=to_datetime(one.deadline),
        )


_decode_metrics = msgspec.json.Decoder(MetricsLine).decode
_decode_levels = msgspec.json.Decoder(list[LevelWindow]).decode
_decode_triage = msgspec.json.Decoder(TriagePage).decode


def _levels_of(row: QueueRow, kind: Literal["queue", "subscription"], now: int) -> list[LevelLine]:
    """The level of a queue, and of each of its priorities with ready messages."""
    found, oldest = row.counters, age(row, now)
    whole = LevelLine(
        kind=kind,
        name=row.name,
        ready=found.ready,
        in_flight=found.in_flight,
        delayed=found.delayed,
        dead=found.dead,
        oldest_seconds=None if oldest is None else round(oldest, 3),
        retries=found.failed,
    )
    return [whole, *(LevelLine(kind=kind, name=row.name, priority=one, ready=count) for one, count in found.priorities)]


def open_breakers(view: RouterView) -> list[str]:
    """The targets whose breakers are open."""
    return [breaker.name for breaker in view.snapshot().breakers if breaker.state == State.OPEN]


def _check_operator(caller: Caller, verb: Verb, what: str) -> None:
    """Resources that belong to no project need a token without restrictions."""
    if not caller.principal.may_everywhere(verb):
        raise PermissionDenied(verb, f"{what}, with a token for one project or for some names")
