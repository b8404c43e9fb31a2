"""The router's metrics for Prometheus, under the names that dashboards for such routers use: `flowcatalyst_*` and `fc_*`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Literal

from penstock.durations import SECOND
from penstock.http.monitoring.samples import Collector, Histogram, Metric, Sample
from penstock.router.core.circuit import State
from penstock.router.core.metrics import BOUNDS, QueueCounts, QueueMetrics
from penstock.router.core.snapshot import PoolState
from penstock.router.monitoring.view import RouterView

SLICE = 64
YIELD_SECONDS = 0.0005
"""After each slice of pools the collecting thread pauses, so that the event loop gets the interpreter."""

_SECONDS = tuple(bound / SECOND for bound in BOUNDS)


def _metric(name: str, help_: str, *labels: str) -> Metric:
    kind: Literal["counter", "gauge", "histogram"] = "counter" if name.endswith("_total") else "gauge"
    return Metric(name, "histogram" if name.endswith("_seconds") else kind, help_, labels)


def _pool(name: str, help_: str, *labels: str) -> Metric:
    return _metric(f"flowcatalyst_pool_{name}", help_, "pool", *labels)


def _queue(name: str, help_: str, *labels: str) -> Metric:
    return _metric(f"flowcatalyst_queue_{name}", help_, "queue", *labels)


_AVAILABLE = _metric("flowcatalyst_broker_available", "1 while every queue is connected, 0 while one is not.")
_POOLS = _metric("flowcatalyst_queuemanager_pools_active", "Process pools.")
_DEFAULT_POOL = _metric(
    "flowcatalyst_queuemanager_default_pool_usage_total", "Messages that went to the default pool because theirs is not there."
)
_IN_PIPELINE = _metric("fc_in_pipeline_messages", "Messages in the router.")


def _durations(pool: PoolState) -> Histogram:
    return Histogram(_SECONDS, tuple(pool.metrics.durations), pool.metrics.time / SECOND)


_WAITING, _TRIED, _GROUPS = "Messages that wait in the pool.", "Deliveries that are being tried.", "Groups that hold messages."
_LIMITED, _DURATION = "Waits for the pool's own rate limit.", "How long attempts took."
_READY, _NOT_VISIBLE = "Messages that can be delivered.", "Messages that are delivered, or have to wait."
_CAME = "Messages that came from the queue."

_OF_POOL: list[tuple[Metric, Callable[[PoolState], float | Histogram]]] = [
    (_pool("messages_submitted_total", "Messages that the pool took."), lambda pool: pool.metrics.submitted),
    (_pool("messages_succeeded_total", "Messages that were delivered."), lambda pool: pool.metrics.succeeded),
    (_pool("messages_failed_total", "Deliveries that failed."), lambda pool: pool.metrics.failed),
    (_pool("messages_ratelimited_total", _LIMITED), lambda pool: pool.metrics.rate_limited),
    (_pool("messages_throttled_total", "Attempts that the target answered with 429."), lambda pool: pool.metrics.throttled),
    (_pool("messages_transient_total", "Deliveries that are tried again."), lambda pool: pool.metrics.transient),
    (_pool("processing_duration_seconds", _DURATION), _durations),
    (_pool("workers_active", _TRIED), lambda pool: pool.active),
    (
        _pool("semaphore_available", "Deliveries that could be tried beside them."),
        lambda pool: max(pool.concurrency - pool.active, 0),
    ),
    (_pool("queue_size", _WAITING), lambda pool: pool.queued),
    (_pool("messagegroups_count", _GROUPS), lambda pool: pool.groups),
    (_metric("fc_pool_queue_size", _WAITING, "pool"), lambda pool: pool.queued),
    (_metric("fc_pool_active_workers", _TRIED, "pool"), lambda pool: pool.active),
    (_metric("fc_pool_message_groups", _GROUPS, "pool"), lambda pool: pool.groups),
    (_metric("fc_rate_limit_exceeded_total", _LIMITED, "pool"), lambda pool: pool.metrics.rate_limited),
    (_metric("fc_mediation_duration_seconds", _DURATION, "pool"), _durations),
]
_ERRORS = _pool("errors_total", "Attempts that did not succeed, by what they came to.", "errorType")
_PROCESSED = _metric("fc_messages_processed_total", "Messages that came to an end.", "pool", "success")

_COUNTED: list[tuple[Metric, Callable[[QueueCounts], float]]] = [
    (_queue("messages_received_total", _CAME), lambda counts: counts.received),
    (_queue("messages_consumed_total", "Messages that were acked at the queue."), lambda counts: counts.consumed),
    (_queue("messages_failed_total", "Messages released because they could not be delivered."), lambda counts: counts.failed),
    (
        _queue("messages_deferred_total", "Messages released because there was no room, or a target asked for it."),
        lambda counts: counts.deferred,
    ),
    (_metric("fc_consumer_messages_received_total", _CAME, "consumer"), lambda counts: counts.received),
]
_OF_QUEUE: list[tuple[Metric, Callable[[QueueMetrics], float]]] = [
    (_queue("depth", "Messages in the queue."), lambda metrics: metrics.pending + metrics.not_visible),
    (_queue("pending", _READY), lambda metrics: metrics.pending),
    (_queue("not_visible", _NOT_VISIBLE), lambda metrics: metrics.not_visible),
    (_metric("fc_queue_pending_messages", _READY, "queue"), lambda metrics: metrics.pending),
    (_metric("fc_queue_in_flight_messages", _NOT_VISIBLE, "queue"), lambda metrics: metrics.not_visible),
]
_DEAD = _queue("messages_dead_lettered_total", "Messages that are kept as dead letters, by reason.", "reason")
_OUTCOMES = _metric("fc_queue_messages_total", "What became of a queue's messages.", "queue", "outcome")

_OPEN = _metric("fc_circuit_breaker_open", "1 while calls to the target are held back.", "target")
_CALLS = _metric("fc_circuit_breaker_calls_total", "Calls to the target.", "target", "outcome")


def router_collector(view: RouterView) -> Collector:
    def collect() -> Iterator[Sample]:
        snapshot, now = view.snapshot(), view.clock.now()
        yield Sample(_AVAILABLE, (), int(all(queue.is_connected for queue in snapshot.queues)))
        yield Sample(_POOLS, (), sum(not pool.is_draining for pool in snapshot.pools))
        yield Sample(_DEFAULT_POOL, (), snapshot.default_pool_used)
        yield Sample(_IN_PIPELINE, (), snapshot.in_flight)
        pause = threading.Event()
        for position, pool in enumerate(snapshot.pools, 1):
            yield from (Sample(metric, (pool.code,), value(pool)) for metric, value in _OF_POOL)
            yield from (Sample(_ERRORS, (pool.code, kind), count) for kind, count in [*pool.metrics.errors.items()])
            yield Sample(_PROCESSED, (pool.code, "true"), pool.metrics.succeeded)
            yield Sample(_PROCESSED, (pool.code, "false"), pool.metrics.failed)
            if position % SLICE == 0:
                pause.wait(YIELD_SECONDS)
        for queue in snapshot.queues:
            metrics, counts = queue.metrics, queue.metrics.numbers(None, now)
            yield from (Sample(metric, (queue.name,), value(counts)) for metric, value in _COUNTED)
            yield from (Sample(metric, (queue.name,), value(metrics)) for metric, value in _OF_QUEUE)
            yield from (Sample(_DEAD, (queue.name, reason), count) for reason, count in [*metrics.dead.items()])
            for outcome, count in (("acked", counts.consumed), ("nacked", counts.failed), ("deferred", counts.deferred)):
                yield Sample(_OUTCOMES, (queue.name, outcome), count)
        for breaker in snapshot.breakers:
            yield Sample(_OPEN, (breaker.name,), int(breaker.state is State.OPEN))
            yield Sample(_CALLS, (breaker.name, "success"), breaker.succeeded)
            yield Sample(_CALLS, (breaker.name, "failure"), breaker.failed)

    return collect
