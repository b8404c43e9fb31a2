"""The first page: one sentence, what needs attention, the totals, the last half hour, and the server itself."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.access import Verb
from penstock.broker.aio import AsyncBroker
from penstock.durations import SECOND, to_datetime
from penstock.server.console.core.samples import STEP_SECONDS
from penstock.server.console.core.status import Attention, Figures, Level, ServerFigures, Status, attention, status
from penstock.server.console.requests import Caller, NoParameters, View
from penstock.server.console.rows import age, figures
from penstock.server.console.sampler import Sampler, totals

SILENT_SECONDS = 86_400.0
"""A cursor that holds the log and was not set for this long is probably forgotten."""
_STATM = Path("/proc/self/statm")


class TotalFigures(msgspec.Struct, kw_only=True):
    """The totals of everything that the caller may read."""

    backlog: int
    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_seconds: float | None
    in_rate: float | None
    out_rate: float | None
    queues: int
    subscriptions: int
    topics: int


class SeriesFigures(msgspec.Struct, kw_only=True, rename={"in_": "in"}):
    """The last half hour, the newest value last; null is a gap."""

    step_seconds: int
    end_at: datetime | None
    in_: list[float | None]
    out: list[float | None]
    backlog: list[int | None]


class ServerState(msgspec.Struct, kw_only=True):
    """The server itself."""

    version: str
    started_at: datetime
    uptime_seconds: float
    loop_lag_seconds: float
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    memory_bytes: int | None
    is_durable: bool
    problem: str | None


class OverviewReply(msgspec.Struct, kw_only=True):
    """The first page."""

    at: datetime
    status: Status
    attention: list[Attention]
    totals: TotalFigures
    series: SeriesFigures
    server: ServerState


class Pulse(msgspec.Struct):
    """The part of every page: the status, and the number of dead letters."""

    level: Level
    text: str
    dead: int
    problem: str | None


class OverviewPage:
    """The view of the first page."""

    def __init__(
        self,
        aio: AsyncBroker,
        sampler: Sampler,
        *,
        version: str,
        started_at: int,
        data_dir: Path | None,
        open_breakers: Callable[[], Sequence[str]],
    ) -> None:
        self._aio, self._broker, self._sampler = aio, aio.broker, sampler
        self._version, self._started_at, self._data_dir = version, started_at, data_dir
        self._open_breakers = open_breakers
        self._disk: tuple[int | None, int | None] = (None, None)
        self._disk_due = float("-inf")

    def views(self) -> list[View[Any]]:
        return [View("overview", "/console/api/overview", "The first page", NoParameters, self.overview, OverviewReply)]

    async def overview(self, caller: Caller, _: NoParameters) -> OverviewReply:
        """The first page, as far as the caller may see it."""
        rows, total, server = await self._figures(caller)
        now = self._broker.clock.now()
        found = attention(rows, server)
        return OverviewReply(
            at=to_datetime(now),
            status=status(rows, found, total),
            attention=found,
            totals=self._totals(caller, now),
            series=self._series(caller),
            server=self._server(server, now),
        )

    async def pulse(self, caller: Caller) -> Pulse:
        """The state of everything in one sentence."""
        rows, total, server = await self._figures(caller)
        found = status(rows, attention(rows, server), total)
        return Pulse(found.level, found.text, sum(row.dead for row in rows if row.kind == "queue"), server.problem)

    async def _figures(self, caller: Caller) -> tuple[list[Figures], int, ServerFigures]:
        """(queues that are not empty, how many there are in all, the server)."""
        await self._sampler.sample_ages()
        now, sampler = self._broker.clock.now(), self._sampler
        rows = [*sampler.queue_rows(caller, work_queues=True), *sampler.queue_rows(caller, work_queues=False)]
        free, total = await self._disk_space()
        # Cursors and breakers belong to no project: only tokens without restrictions see their names.
        is_operator = caller.principal.may_everywhere(Verb.READ)
        holding = self._broker.cursors.holding() if is_operator else {}
        silent = [(name, (now - at) / SECOND) for name, at in holding.items()]
        server = ServerFigures(
            problem=self._broker.health,
            disk_free_bytes=free,
            disk_total_bytes=total,
            loop_lag_seconds=sampler.lag_seconds,
            open_breakers=self._open_breakers() if is_operator else (),
            silent_cursors=[(name, seconds) for name, seconds in silent if seconds > SILENT_SECONDS],
        )
        filled = [figures(row, now) for row in rows if row.counters.backlog or row.counters.dead]
        return filled, len(rows), server

    async def _disk_space(self) -> tuple[int | None, int | None]:
        """(free bytes, all bytes) of the disk, which may be some seconds old: reading it takes a thread."""
        now = asyncio.get_running_loop().time()
        if self._data_dir is not None and now >= self._disk_due:
            usage = await self._aio.call(shutil.disk_usage, self._data_dir)
            self._disk, self._disk_due = (usage.free, usage.total), now + STEP_SECONDS
        return self._disk

    def _totals(self, caller: Caller, now: int) -> TotalFigures:
        sampler = self._sampler
        queues = [*sampler.queue_rows(caller, work_queues=True), *sampler.queue_rows(caller, work_queues=False)]
        topics = sampler.topic_rows(caller)
        summed = totals([*queues, *topics])
        ages = [seconds for row in queues if (seconds := age(row, now)) is not None]
        published = [row.in_rate for row in (*topics, *(row for row in queues if row.counters.is_work_queue))]
        acked = [row.out_rate for row in queues]
        return TotalFigures(
            backlog=summed.backlog,
            ready=summed.ready,
            in_flight=summed.in_flight,
            delayed=summed.delayed,
            dead=summed.dead,
            oldest_seconds=round(max(ages), 3) if ages else None,
            in_rate=_sum(published),
            out_rate=_sum(acked),
            queues=summed.queues,
            subscriptions=summed.subscriptions,
            topics=summed.topics,
        )

    def _series(self, caller: Caller) -> SeriesFigures:
        kept = self._sampler.series(caller)
        if kept is None:
            return SeriesFigures(step_seconds=STEP_SECONDS, end_at=None, in_=[], out=[], backlog=[])
        return SeriesFigures(
            step_seconds=STEP_SECONDS,
            end_at=to_datetime(round(kept.end * SECOND)) if kept.end else None,
            in_=[*kept.in_rates],
            out=[*kept.out_rates],
            backlog=[*kept.backlog],
        )

    def _server(self, server: ServerFigures, now: int) -> ServerState:
        return ServerState(
            version=self._version,
            started_at=to_datetime(self._started_at),
            uptime_seconds=round(max(now - self._started_at, 0) / SECOND, 3),
            loop_lag_seconds=round(server.loop_lag_seconds, 6),
            disk_free_bytes=server.disk_free_bytes,
            disk_total_bytes=server.disk_total_bytes,
            memory_bytes=_memory(),
            is_durable=self._broker.is_durable,
            problem=server.problem,
        )


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known else None


def _memory() -> int | None:
    """Memory of this process, if the system reports it."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return None
