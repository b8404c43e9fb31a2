"""What happened in each pool and each queue: `/monitoring/pool-stats` and `/monitoring/queue-stats`."""

from __future__ import annotations

import msgspec
from aiohttp import web

from penstock.http.request import Request, json_response
from penstock.http.routes import Parameter, Route
from penstock.router.core.metrics import FIVE_MINUTES, THIRTY_MINUTES
from penstock.router.core.snapshot import PoolState, QueueState
from penstock.router.monitoring.requests import WINDOW, WindowQuery, query, reading
from penstock.router.monitoring.view import RouterView


def _camel(name: str) -> str:
    """`total_failed_5min` as `totalFailed5min`."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class PoolStats(msgspec.Struct, kw_only=True, rename=_camel):
    """A process pool. `totalProcessed` is the sum of succeeded and failed messages.

    Attempts that are retried (`totalTransient`), or that the target answered with 429 (`totalThrottled`), are not part of it.
    `totalRateLimited` counts waits for the pool's own limit.
    """

    pool_code: str
    total_processed: int
    total_succeeded: int
    total_failed: int
    total_transient: int
    total_throttled: int
    total_rate_limited: int
    success_rate: float
    active_workers: int
    available_permits: int
    max_concurrency: int
    queue_size: int
    max_queue_capacity: int
    average_processing_time_ms: float
    total_processed_5min: int
    total_succeeded_5min: int
    total_failed_5min: int
    success_rate_5min: float
    total_processed_30min: int
    total_succeeded_30min: int
    total_failed_30min: int
    success_rate_30min: float
    total_rate_limited_5min: int
    total_rate_limited_30min: int


class QueueStats(msgspec.Struct, kw_only=True, rename=_camel):
    """A queue. `currentSize` is the number of its messages, `throughput` the messages consumed per second.

    Dead letters also count as consumed; `totalDeadLettered` is since the start.
    """

    name: str
    total_messages: int
    total_consumed: int
    total_failed: int
    success_rate: float
    current_size: int
    throughput: float
    pending_messages: int
    messages_not_visible: int
    total_messages_5min: int
    total_consumed_5min: int
    total_failed_5min: int
    success_rate_5min: float
    total_messages_30min: int
    total_consumed_30min: int
    total_failed_30min: int
    success_rate_30min: float
    total_deferred: int
    total_dead_lettered: int


class StatsRoutes:
    """Routes for the statistics of pools and queues."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        refresh = Parameter("refresh", "Read the depth of every queue first.", bool)
        return [
            reading("/monitoring/pool-stats", self.pools, "Pools by code", dict[str, PoolStats], parameters=(WINDOW,)),
            reading(
                "/monitoring/queue-stats", self.queues, "Queues by name", dict[str, QueueStats], parameters=(WINDOW, refresh)
            ),
        ]

    async def pools(self, request: Request) -> web.StreamResponse:
        span, now = query(request, WindowQuery).span, self._view.clock.now()
        return json_response({pool.code: pool_stats(pool, span, now) for pool in self._view.snapshot().pools})

    async def queues(self, request: Request) -> web.StreamResponse:
        asked = query(request, WindowQuery)
        if asked.refresh:
            await self._view.refresh_depths()
        now = self._view.clock.now()
        return json_response({queue.name: queue_stats(queue, asked.span, now) for queue in self._view.snapshot().queues})


def pool_stats(pool: PoolState, span: int | None, now: int) -> PoolStats:
    numbers = pool.metrics.numbers
    total, recent, half_hour = numbers(span, now), numbers(FIVE_MINUTES, now), numbers(THIRTY_MINUTES, now)
    return PoolStats(
        pool_code=pool.code,
        total_processed=total.processed,
        total_succeeded=total.succeeded,
        total_failed=total.failed,
        total_transient=total.transient,
        total_throttled=total.throttled,
        total_rate_limited=total.rate_limited,
        success_rate=total.success_rate,
        active_workers=pool.active,
        available_permits=max(pool.concurrency - pool.active, 0),
        max_concurrency=pool.concurrency,
        queue_size=pool.queued,
        max_queue_capacity=pool.capacity,
        average_processing_time_ms=round(total.average_time / 1000, 3),
        total_processed_5min=recent.processed,
        total_succeeded_5min=recent.succeeded,
        total_failed_5min=recent.failed,
        success_rate_5min=recent.success_rate,
        total_processed_30min=half_hour.processed,
        total_succeeded_30min=half_hour.succeeded,
        total_failed_30min=half_hour.failed,
        success_rate_30min=half_hour.success_rate,
        total_rate_limited_5min=recent.rate_limited,
        total_rate_limited_30min=half_hour.rate_limited,
    )


def queue_stats(queue: QueueState, span: int | None, now: int) -> QueueStats:
    """The statistics of a queue; the totals are of the span, the throughput of the last five minutes."""
    metrics = queue.metrics
    total, recent, half_hour = (metrics.numbers(each, now) for each in (span, FIVE_MINUTES, THIRTY_MINUTES))
    return QueueStats(
        name=queue.name,
        total_messages=total.received,
        total_consumed=total.consumed,
        total_failed=total.failed,
        success_rate=total.success_rate,
        current_size=metrics.pending + metrics.not_visible,
        throughput=round(recent.per_second, 3),
        pending_messages=metrics.pending,
        messages_not_visible=metrics.not_visible,
        total_messages_5min=recent.received,
        total_consumed_5min=recent.consumed,
        total_failed_5min=recent.failed,
        success_rate_5min=recent.success_rate,
        total_messages_30min=half_hour.received,
        total_consumed_30min=half_hour.consumed,
        total_failed_30min=half_hour.failed,
        success_rate_30min=half_hour.success_rate,
        total_deferred=total.deferred,
        total_dead_lettered=sum(metrics.dead.values()),
    )
